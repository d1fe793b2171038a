"""A turn of a decider is one transaction: what its code asks for is written, and the run is parked, or not.

The worker must hold the decider's living generation, and know that one's secret. The same turn again is answered
again. Whatever does not fit the run as it is refuses all of it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from services.dag import store
from services.dag.build import addition, insertion
from services.dag.build.addition import Existing, Plan
from services.dag.build.create import Builder, Written
from services.dag.errors import HistoryMismatch, LimitExceeded, TurnLost, Upgrading, WorkflowFinished
from services.dag.model import Addition, Dag, Node
from services.dag.queue_items import encode
from services.dag.run import deciders
from services.dag.run.context import Context, own
from services.dag.run.decisions import Settlement
from services.dag.run.watches import Watch
from services.dag.store.runs import Decider, Run, StoredEvent
from services.dag.workflows.starting import Begun, Starter
from services.dag.workflows.values import DAG_ENDS, Command, RunEnd, Turn, TurnAnswer
from shared.crash import crash_point
from shared.errors import NotFound
from shared.ids import ShardNo
from shared.postgres.connections import Transaction
from shared.shards.shard_map import Shard

# Records that may come more than once under a key.
_REPEATED: Final = frozenset({"cancel", "publish", "answer", "marker", "end"})
_OVER_REASON: Final = "the workflow has ended"


class TurnCommits:
    """Takes turns."""

    def __init__(self, context: Context, builder: Builder, starter: Starter) -> None:
        self._context = context
        self._settings = context.settings
        self._builder = builder
        self._starter = starter

    async def take(self, namespace: str, dag_id: str, turn: Turn, watch: Watch | None = None) -> TurnAnswer:
        """Write a turn. With a `watch` of the run that has nothing to be told then is not parked: its answer
        waits, for what the watch is told after this commit.

        Raises:
            NotFound: there is no such run.
            TurnLost: another generation, or another worker, goes on with it.
            WorkflowFinished: it has ended.
            HistoryMismatch: the turn asks for what the run has otherwise.
            LimitExceeded: the run would outgrow a limit.
        """
        shard, dag_id = self._context.shard_of(dag_id)
        queue_shard = await self._context.queue_shard(shard)

        async def work(tx: Transaction) -> tuple[Settlement | None, tuple[TurnAnswer, Sequence[Written]]]:
            dag = own(await store.dags.lock_dags(tx, [dag_id]), namespace)
            if dag.workflow is None:
                raise NotFound("there is no such run in this namespace")
            if watch is not None:
                watch.begin(dag)
            keys = [command.key for command in turn.commands if command.kind not in _REPEATED]
            run, decider, known = await store.runs.for_turn(tx, dag.no, keys)
            writing = _Writing(self._context, tx, shard, dag, run, decider, turn, queue_shard)
            begun: Begun | None = None
            if turn.turn == run.turn and turn.digest == run.turn_digest:
                await writing.rest(waits=watch is not None)
                await writing.settlement.run()
                return writing.settlement, (await self._answer(tx, writing), ())
            _check_turn(run, decider, turn)
            if turn.stuck is not None:
                await writing.stick()
            else:
                writing.refuse_diverging(known)
                await writing.write()
                await writing.rest(waits=watch is not None)
                if run.state == "continued":
                    assert writing.end is not None, "that is how it ended"
                    begun = await self._starter.continue_as(tx, shard, dag, run, writing.end.input, queue_shard)
                    writing.made.append(begun.written)
            await writing.settlement.run()
            if begun is not None and begun.settlement is not None:
                writing.settlement.sends += begun.settlement.sends
            writing.settlement.told(dag)
            return writing.settlement, (await self._answer(tx, writing), writing.made)

        answer, made = await self._context.settle(shard, work)
        crash_point("after_turn")
        for each in made:
            await self._builder.give_made(shard, each)
        return answer

    async def _answer(self, tx: Transaction, writing: _Writing) -> TurnAnswer:
        run, turn = writing.run, writing.turn
        if run.over:
            return TurnAnswer(run.turn, ended=True)
        if not writing.is_awake:
            return TurnAnswer(run.turn, parked=True)
        if writing.waits:
            return TurnAnswer(run.turn, waits=True, dag_no=run.dag_no)
        page = await store.runs.history(
            tx,
            run.dag_no,
            turn.last,
            rows_max=self._settings.history_events_max,
            bytes_max=self._settings.page_bytes_max,
        )
        return TurnAnswer(run.turn, page.events, page.more)


def _check_turn(run: Run, decider: Decider, turn: Turn) -> None:
    if run.over:
        raise WorkflowFinished(f"the run has ended: {run.state}")
    is_living = decider.state == "released" and decider.generation == turn.generation
    if not is_living or not deciders.knows(run, turn.secret):
        raise TurnLost(f"generation {turn.generation} of the run's decider is over")
    if turn.turn != run.turn + 1:
        raise TurnLost(f"the run's last turn was {run.turn}; turn {turn.turn} does not follow it")
    if turn.last > run.last_event:
        raise HistoryMismatch(f"the run has no event {turn.last} yet")


class _Writing:
    """One turn within its transaction. `made`: nodes whose items the queue is to be given afterwards."""

    def __init__(
        self,
        context: Context,
        tx: Transaction,
        shard: Shard,
        dag: Dag,
        run: Run,
        decider: Decider,
        turn: Turn,
        queue_shard: ShardNo,
    ) -> None:
        self._context = context
        self._settings = context.settings
        self._tx = tx
        self._dag = dag
        self.run = run
        self.decider = decider
        self.turn = turn
        self.waits = False
        self._queue_shard = queue_shard
        self.settlement = Settlement(tx, [dag], context.settings, context.home(shard))
        self.made: list[Written] = []
        self.end: RunEnd | None = None
        self._events: list[StoredEvent] = []
        self._published: dict[str, tuple[str, int]] = {}

    async def stick(self) -> None:
        """The code cannot go on: the decider comes again after a while, and again."""
        run = self.run
        run.turn, run.turn_digest, run.stuck = self.turn.turn, self.turn.digest, self.turn.stuck
        attempts = await store.runs.stick(self._tx, run)
        await self._renew("released", deciders.stuck_delay_s(attempts))

    def refuse_diverging(self, known: Sequence[str]) -> None:
        """All of it, before anything is written.

        Raises:
            HistoryMismatch
        """
        run, turn = self.run, self.turn
        if not run.seen <= turn.seen <= run.last_event:
            raise HistoryMismatch(f"seen would go from {run.seen} to {turn.seen} of {run.last_event} events")
        if known:
            raise HistoryMismatch(f"the run has {known[0]} already")
        new: set[tuple[str, ...]] = set()
        for command in turn.commands:
            if not run.seen < command.after <= run.last_event:
                raise HistoryMismatch(
                    f"{command.kind} {command.key} is asked for after event {command.after}; the run is at "
                    f"{run.seen} of {run.last_event}"
                )
            name = (command.kind, command.key, str(command.after)) if command.kind in _REPEATED else (command.key,)
            if name in new:
                raise HistoryMismatch(f"{command.kind} {command.key} is asked for twice")
            new.add(name)
        if any(command.end for command in turn.commands[:-1]):
            raise HistoryMismatch("something is asked for after the run's end")
        self._refuse_results()

    def _refuse_results(self) -> None:
        """A result is of a step that is open, by now or with this turn, and comes once.

        Raises:
            HistoryMismatch
        """
        waiting = set(self.run.open_steps)
        for command in self.turn.commands:
            if command.kind == "step":
                waiting.add(command.key)
            elif command.kind == "cancel":
                waiting.discard(command.key)
        for result in self.turn.results:
            if result.key not in waiting:
                raise HistoryMismatch(f"the result of {result.key} is none that the run waits for")
            waiting.remove(result.key)

    async def write(self) -> None:
        """Write it."""
        run, turn = self.run, self.turn
        nodes = await self._add_nodes()
        markers: dict[str, int] = json.loads(run.markers)
        open_steps = dict.fromkeys(run.open_steps)
        for command in turn.commands:
            self._record(command)
            match command.kind:
                case "step":
                    open_steps[command.key] = None
                case "marker":
                    markers.setdefault(command.key.removeprefix("marker:"), command.after)
                case "cancel" if command.key in open_steps:
                    del open_steps[command.key]
                    self._append("step", command.key, "cancelled", error="cancelled")
        for result in turn.results:
            del open_steps[result.key]
            self._append("step", result.key, result.state, output=result.output, error=result.error)
        answers = dict(command.answer for command in turn.commands if command.answer is not None)
        if answers and not await store.runs.answer_updates(self._tx, self._dag.no, answers):
            raise HistoryMismatch("it answers an update that the run was not sent")
        await self._cancel(nodes)
        run.open_steps, run.markers = list(open_steps), encode(markers)
        run.seen, run.turn, run.turn_digest = turn.seen, turn.turn, turn.digest
        run.received = encode(turn.received or {})
        run.received_total = min(sum((turn.received or {}).values()), run.signals)
        if self.end is not None:
            run.state, run.output, run.error = self.end.state, self.end.output, self.end.error
        await self._check_published()
        published = [(key, value, event) for key, (value, event) in self._published.items()]
        await store.runs.write_turn(self._tx, run, self._events, published, turn.made_by)
        if self.end is not None:
            await self._finish(self.end)

    @property
    def is_awake(self) -> bool:
        """Whether the decider's generation of this turn lives."""
        return self.decider.state == "released" and self.decider.generation == self.turn.generation

    async def rest(self, *, waits: bool) -> None:
        """If the run has nothing to do and nothing to be told, it is parked, or its turn waits. One that is paused
        does not wait: nothing of it is released."""
        run = self.run
        is_idle = run.last_told <= run.seen and not run.open_steps and not self.settlement.tells(self._dag)
        if run.over or not self.is_awake or not is_idle:
            return
        self.waits = waits and not self._dag.paused
        if not self.waits:
            await self._renew("blocked")

    async def _renew(self, state: str, delay_s: float = 0.0) -> None:
        self.decider = await deciders.renew(
            self._tx, self.settlement, self._dag, self.run, self.decider, state=state, delay_s=delay_s
        )

    def _record(self, command: Command) -> None:
        state = "succeeded" if command.kind == "marker" else "added"
        event = self._append(command.kind, command.key, state, data=command.data, after=command.after)
        if command.value is not None:
            self._published[command.key] = command.value, event
        self.end = command.end

    def _append(
        self,
        kind: str,
        key: str,
        state: str,
        *,
        output: str | None = None,
        error: str | None = None,
        data: str | None = None,
        after: int | None = None,
    ) -> int:
        run = self.run
        run.last_event += 1
        self._events.append(StoredEvent(run.last_event, None, kind, key, 1, state, output, error, data, after))
        if after is None:
            run.last_told = run.last_event
        return run.last_event

    async def _add_nodes(self) -> dict[str, Node]:
        """The nodes that are asked for, released where the DAG is not paused; by key."""
        dag, tx = self._dag, self._tx
        adding = Plan([command.node for command in self.turn.commands if command.node is not None])
        if not adding.nodes:
            return {}
        nothing = Existing({}, {})
        addition.check_limits(dag, adding, nothing, self._settings)
        if dag.unfinished + len(adding.nodes) > self._settings.run_unfinished_max:
            limit = self._settings.run_unfinished_max
            raise LimitExceeded(f"the run would have over {limit} nodes that have not ended")
        if any(node.timer for node in adding.nodes) and await store.timers.has_older_owner(tx):
            raise Upgrading("an older process owns the shard; send again once it has gone", retry_after_s=1.0)
        numbers = {node.key: dag.node_no(dag.next_n + i) for i, node in enumerate(adding.nodes)}
        rows = await insertion.insert(self._context, tx, dag, adding, nothing, numbers, self._queue_shard)
        self.settlement.made(dag, (row.no for row in rows))
        nodes = {row.new.key: insertion.node_of(dag, row) for row in rows}
        for node in nodes.values():
            self.settlement.consider(node)
        insertion.attach_items(self.settlement, dag, rows)
        if any(row.enqueued for row in rows):
            await store.duties.insert_adding(tx, Addition(rows[0].no, rows[-1].no))
            self.made.append(Written(dag, True, {}, rows))
        return nodes

    async def _cancel(self, new: dict[str, Node]) -> None:
        """Cancel what code waits for no longer; what has ended is left."""
        keys = [command.key for command in self.turn.commands if command.kind == "cancel"]
        if not keys:
            return
        old, _ = await store.dags.nodes_by_key(self._tx, self._dag.no, [key for key in keys if key not in new])
        nodes = [node for key in keys if (node := new.get(key) or old.get(key)) is not None]
        nodes = [node for node in nodes if node.state in ("blocked", "released")]
        if told := [node.no for node in nodes if not node.timer]:
            await store.dags.cancel_by_call(self._tx, told, None)
        self.settlement.cancel_items(nodes)

    async def _check_published(self) -> None:
        if not self._published:
            return
        sizes = await store.runs.published_sizes(self._tx, self._dag.no)
        sizes |= {key: len(value.encode()) for key, (value, _) in self._published.items()}
        if len(sizes) > self._settings.values_per_dag_max:
            raise LimitExceeded(f"the run would show over {self._settings.values_per_dag_max} values")
        if sum(sizes.values()) > self._settings.dag_values_bytes_max:
            raise LimitExceeded(f"the run would show over {self._settings.dag_values_bytes_max} bytes")

    async def _finish(self, end: RunEnd) -> None:
        """The run is over: so is its decider, and the rest of its DAG is cancelled."""
        dag = self._dag
        dag.ends_as = DAG_ENDS[end.state]
        await store.runs.end_dag_as(self._tx, dag)
        await store.runs.set_decider_end(self._tx, self.run)
        [decider] = await store.dags.nodes_by_no(self._tx, [dag.node_no(0)])
        self.settlement.end(decider, dag.ends_as, end.error)
        if dag.unfinished:
            self.settlement.cancel_rest(dag, "end", _OVER_REASON)
