"""Runs go on from an earlier event, or with other ends of what they asked for: given outputs, or those of a retry.

What code asked for from that event on is void: it is cancelled where it has not ended, and code is not told of its
end. What happened otherwise stays, signals too, but for a request to end that came since. The log keeps all of it:
`void` is the number of the reset, and an event of the run's says to which event, why and by whose token. What is
asked for anew has keys of its own, which end with ~ and that number.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from services.dag import store
from services.dag.build.run_spec import home_of
from services.dag.errors import (
    DagCancelling,
    LimitExceeded,
    NotReplaceable,
    UnknownNode,
    Upgrading,
    WorkflowFinished,
)
from services.dag.model import UNFINISHED, Dag, Send
from services.dag.queue_items import encode
from services.dag.run import deciders, reopening, unarchive
from services.dag.run.context import Context
from services.dag.run.decisions import Settlement
from services.dag.store.resets import Asked, Replacement
from services.dag.store.runs import Run
from services.dag.workflows.control import RunControl
from services.dag.workflows.values import Replacing, Reset
from shared.errors import FieldError, invalid
from shared.ids import ShardNo
from shared.postgres.connections import Transaction

# Commands that one reset makes void: more of them would hold the run's lock for too long.
VOID_MAX: Final = 10_000

_WITH_OUTPUT: Final = frozenset({"item", "sub", "child", "step"})
# What `start` and `send` ask for takes effect whatever becomes of the run.
_CANCELLED: Final = frozenset({"item", "sub", "child", "timer"})


class Rewriter:
    """Verbs that make void what runs have asked for."""

    def __init__(self, context: Context, control: RunControl) -> None:
        self._context = context
        self._control = control

    async def reset(self, namespace: str, workflow_id: str, wanted: Reset) -> str:
        """Let a run's code go on as when it was told of an event; its DAG's id.

        Raises:
            Invalid: that is no event that the code is told of, or it has ended before it.
            LimitExceeded: too much was asked for since.
            DagCancelling: what the run had not ended is still being cancelled.
        """

        async def act(tx: Transaction, settlement: Settlement, dag: Dag, run: Run) -> str:
            if await store.resets.has(tx, run, wanted.id):
                return dag.id
            if not await store.resets.is_told(tx, run, wanted.event):
                raise invalid("/event", f"event {wanted.event} is none that the run's code is told of")
            ended_at = await store.resets.end_asked(tx, run)
            if ended_at is not None and ended_at < wanted.event:
                raise invalid("/event", f"the run's code has ended at event {ended_at}: it was told of none since")
            rewriting = _Rewriting(tx, settlement, dag, run)
            await rewriting.begin()
            await rewriting.go_back(wanted.event)
            await rewriting.finish(wanted.event, wanted.id, {"reason": wanted.reason, "by": wanted.by})
            return dag.id

        return await self._control.change(namespace, workflow_id, act)

    async def resume(self, namespace: str, workflow_id: str, wanted: Replacing) -> str:
        """Go on with a run that has failed or is stuck, with other outputs, or ends that are still to come; its
        DAG's id. What has these outputs already, or has succeeded where it is to be retried, is left as it is.

        Raises:
            UnknownNode: it has asked for nothing of a key.
            NotReplaceable: it has not ended, or has no output, or was asked for because of another that is
                replaced; or the run is neither failed nor stuck.
            WorkflowFinished: the run is over otherwise.
            LimitExceeded, DagCancelling: as for `reset`.
        """

        home = home_of(self._context.shards, namespace, workflow_id)
        # Nothing else asks anything of the queue, which may be away.
        queue_shard = await self._context.queue_shard(home) if wanted.retry else None

        async def act(tx: Transaction, settlement: Settlement, dag: Dag, run: Run) -> str:
            if await store.resets.has(tx, run, wanted.id):
                return dag.id
            if run.over and run.state != "failed":
                raise WorkflowFinished(f"the run has ended: {run.state}")
            if run.over:
                await unarchive.check(tx, dag)
            asked = await store.resets.asked(tx, run, [*wanted.outputs, *wanted.retry])
            news, again = _news(asked, wanted.outputs), _again(asked, wanted.retry)
            if not news and not again:
                if run.over or run.stuck is not None or dag.paused:
                    await store.resets.note(tx, run, wanted.id)
                return await self._control.go_on(tx, settlement, dag, run)
            if not run.over and run.stuck is None:
                raise NotReplaceable("the run goes on: ends are replaced of one that has failed or is stuck")
            await _check_ended(tx, dag, asked, [*news, *again])
            first = await _first(tx, run, [asked[key] for key in (*news, *again)])
            for key in (*news, *again):
                if asked[key].after >= first:
                    raise NotReplaceable(
                        f"{key} was asked for after event {first}, from which on all is asked for anew: replace "
                        "one end at a time"
                    )
            rewriting = _Rewriting(tx, settlement, dag, run)
            await rewriting.begin()
            await rewriting.take_back([asked[key] for key in (*news, *again)])
            await rewriting.go_back(first)
            if news:
                await rewriting.replace(
                    [Replacement(asked[key].kind, key, asked[key].generation, news[key]) for key in news]
                )
            if queue_shard is not None:
                await rewriting.run_again(self._context, {key: asked[key] for key in again}, queue_shard)
            said = {"replaced": list(news) or None, "retried": again or None}
            await rewriting.finish(first, wanted.id, {"reason": wanted.reason, "by": wanted.by, **said})
            return dag.id

        return await self._control.change(namespace, workflow_id, act)


def _news(asked: Mapping[str, Asked], outputs: Mapping[str, str]) -> dict[str, str]:
    """Of these outputs those that are not there already."""
    news: dict[str, str] = {}
    for key, output in outputs.items():
        it = _with_output(asked, key, f"/outputs/{key}")
        if it.state != "succeeded" or json.loads(it.output or "null") != json.loads(output):
            news[key] = output
    return news


def _again(asked: Mapping[str, Asked], keys: Sequence[str]) -> list[str]:
    """Of these keys those whose ends are no successes."""
    places = {key: f"/retry/{nth}" for nth, key in enumerate(keys)}
    return [key for key, place in places.items() if _with_output(asked, key, place).state != "succeeded"]


def _with_output(asked: Mapping[str, Asked], key: str, pointer: str) -> Asked:
    if key not in asked:
        detail = f"the run has asked for nothing under the key {key!r}"
        raise UnknownNode(f"{pointer}: {detail}", errors=[FieldError(pointer, detail)])
    if asked[key].kind not in _WITH_OUTPUT:
        raise NotReplaceable(f"{key} has no output: it is a {asked[key].kind}")
    return asked[key]


async def _check_ended(tx: Transaction, dag: Dag, asked: Mapping[str, Asked], news: Sequence[str]) -> None:
    """Of a step without a result nobody will tell one, since the delivery that has it is over."""
    waiting = [key for key in news if asked[key].ended is None and asked[key].kind != "step"]
    nodes, _ = await store.dags.nodes_by_key(tx, dag.no, waiting)
    for key in waiting:
        if key in nodes and nodes[key].state in UNFINISHED:
            raise NotReplaceable(f"{key} has not ended: cancel it first, or let it end")
        asked[key].generation = nodes[key].generation if key in nodes else 1


async def _first(tx: Transaction, run: Run, replaced: Sequence[Asked]) -> int:
    """The event from which on nothing holds."""
    ended_at = await store.resets.end_asked(tx, run)
    told = [it.ended for it in replaced if it.ended is not None]
    return min([*told, run.last_event + 1 if ended_at is None else ended_at])


class _Rewriting:
    """One reset within its transaction."""

    def __init__(self, tx: Transaction, settlement: Settlement, dag: Dag, run: Run) -> None:
        self._tx = tx
        self._settlement = settlement
        self._dag = dag
        self._run = run
        self._was_over = run.over
        self._number = run.resets + 1
        self._gone: set[str] = set()

    async def begin(self) -> None:
        """See that the run may be rewritten; one that is over goes on."""
        tx, dag, run = self._tx, self._dag, self._run
        if await store.timers.has_older_owner(tx, store.timers.RESETS_LEVEL):
            raise Upgrading("an older process owns the shard; send again once it has gone", retry_after_s=1.0)
        if not run.over:
            return
        if not dag.over:
            raise DagCancelling("what the run had not ended is still being cancelled; try again")
        await unarchive.check(tx, dag)
        await store.dags.reopen_dag(tx, dag)
        dag.ends_as = None
        self._settlement.restart(dag)
        await store.resets.take_back_end(tx, run)

    async def take_back(self, replaced: Sequence[Asked]) -> None:
        """Code is not told of these ends any more."""
        ends = [it.ended for it in replaced if it.ended is not None]
        if ends:
            await store.resets.void_ends(self._tx, self._run, ends, self._number)

    async def go_back(self, event: int) -> None:
        """What was asked for from that event on is void."""
        tx, dag, run = self._tx, self._dag, self._run
        if await store.resets.count_void(tx, run, event, VOID_MAX + 1) > VOID_MAX:
            raise LimitExceeded(
                f"the run has asked for over {VOID_MAX} things since event {event}: go back less far, or start "
                "another"
            )
        void = await store.resets.void_from(tx, run, event, self._number)
        self._gone = {key for _, key in void}
        nodes, _ = await store.dags.nodes_by_key(tx, dag.no, [key for kind, key in void if kind in _CANCELLED])
        living = [node for node in nodes.values() if node.state in UNFINISHED]
        if told := [node.no for node in living if not node.timer]:
            await store.dags.cancel_by_call(tx, told, f"the run was reset to event {event}")
        self._settlement.cancel_items(living)
        markers = {name: after for name, after in json.loads(run.markers).items() if after < event}
        run.markers = encode(markers)

    async def replace(self, ends: Sequence[Replacement]) -> None:
        """Code is told these."""
        await store.resets.append_replaced(self._tx, self._run, ends)
        self._gone |= {end.key for end in ends}

    async def run_again(self, context: Context, ends: Mapping[str, Asked], queue_shard: ShardNo) -> None:
        """What these have come to is still to come: each begins its next generation, a step is open anew."""
        tx, dag, run = self._tx, self._dag, self._run
        steps = [key for key, it in ends.items() if it.kind == "step"]
        run.open_steps = list(dict.fromkeys([*run.open_steps, *steps]))
        nodes, _ = await store.dags.nodes_by_key(tx, dag.no, [key for key in ends if key not in steps])
        if not nodes:
            return
        nos = sorted(node.no for node in nodes.values())
        await reopening.reopen(context, self._settlement, dag, nos, queue_shard)
        for node in await store.dags.nodes_by_no(tx, nos):
            self._settlement.consider(node)

    async def finish(self, event: int, reset_id: str, said: Mapping[str, object]) -> None:
        """The log says so, and the decider is delivered anew; whoever has it loses it."""
        tx, dag, run = self._tx, self._dag, self._run
        if self._was_over:
            await store.resets.append_missed_ends(tx, run)
        await store.resets.note(tx, run, reset_id)
        known = {name: value for name, value in said.items() if value is not None}
        await store.resets.append(
            tx,
            run,
            event,
            self._number,
            reset_id=reset_id,
            data=encode({"reset": self._number, "event": event, **known}),
            markers=run.markers,
            open_steps=[key for key in run.open_steps if key not in self._gone],
            deadline_anew=run.cancel_requested and not self._was_over,
        )
        old = await store.runs.decider(tx, dag.no)
        await store.duties.drop_sends(tx, [dag.node_no(0)])
        await deciders.renew(tx, self._settlement, dag, run, old, state="blocked")
        if old.state == "released":
            cancel = Send(dag.node_no(0), old.generation, "cancel", old.item_id, dag.namespace)
            self._settlement.sends.append(cancel)
        self._settlement.wake(dag)
