"""What others do with a run: they signal it, ask it to end, end it, pause it, move it, and let it go on."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from typing import TypeVar

from services.dag import store
from services.dag.build import run_spec
from services.dag.errors import DagCancelling, SignalReused, SignalsFull, WorkflowFinished
from services.dag.model import DECIDER, NODE_BITS, Dag, Item, NodeNo, Parent, Send
from services.dag.run import deciders, run_ends, unarchive
from services.dag.run.context import Context
from services.dag.run.control import Controller
from services.dag.run.decisions import Settlement
from services.dag.store.runs import Run
from services.dag.store.turns import TakenSignal
from services.dag.workflows.values import Signal, signal_data
from shared.crash import crash_point
from shared.errors import NotFound, ShardUnavailable, invalid
from shared.fallback import Fallback
from shared.metrics import RELEASED
from shared.postgres.connections import Transaction
from shared.shards.shard_map import Shard

T = TypeVar("T")

_ATTEMPTS_MAX = 8
_TOPIC_CHARS_MAX = 128

Act = Callable[[Transaction, Settlement, Dag, Run], Awaitable[T]]


class RunControl:
    """Verbs on the run that a workflow's id means."""

    def __init__(self, context: Context, controller: Controller) -> None:
        self._context = context
        self._settings = context.settings
        self._controller = controller

    async def signal(self, namespace: str, workflow_id: str, signal: Signal) -> bool:
        """Tell a run something; False where it was told before, as signals are known by their ids.

        Raises:
            NotFound
            SignalReused: the id is that of an update, and this is none; or the other way round.
            WorkflowFinished: the run is over.
            SignalsFull: it has as many unread signals as it may.
        """
        shard = run_spec.home_of(self._context.shards, namespace, workflow_id)
        home = self._context.home(shard)
        taken = await store.turns.take_signal(
            shard,
            namespace,
            workflow_id,
            name=signal.name,
            signal_id=signal.id,
            data=signal_data(signal),
            asks=signal.asks,
            unread_max=self._settings.unread_signals_max,
            id_age_s=self._settings.id_window_s / 4,
            taking=None if home is None else home.taking,
            overdue_s=self._settings.overdue_s,
        )
        if taken is None:
            Fallback("run_state").counted("run_signal")
            is_new = await self._signal(namespace, workflow_id, signal)
        elif is_new := taken.is_new:
            self._tell(shard, namespace, taken)
        if not is_new:
            asks = await store.runs.asks_by_id(shard, namespace, workflow_id, signal.id)
            if asks is not None and asks != signal.asks:
                used, unused = ("an update", "a signal") if asks else ("a signal", "an update")
                raise SignalReused(f"the id was used by {used} of this run; send {unused} with another one")
        return is_new

    def _tell(self, shard: Shard, namespace: str, taken: TakenSignal) -> None:
        """A signal is committed: a decider that was parked is delivered, who follows the run is told."""
        if taken.item is not None:
            no = NodeNo(taken.dag_no << NODE_BITS)
            item = Item(taken.dag_id, DECIDER, taken.item)
            send = Send(no, taken.generation, "enqueue", taken.item_id, namespace, item=item)
            crash_point("after_commit_before_relay")
            self._context.dispatch(shard, [send])
            RELEASED.labels(shard.number).inc()
        self._context.turned(shard, taken.dag_id)

    async def _signal(self, namespace: str, workflow_id: str, signal: Signal) -> bool:
        """By the long way, which says what is wrong."""

        async def act(tx: Transaction, settlement: Settlement, dag: Dag, run: Run) -> bool:
            limit = self._settings.unread_signals_max
            is_full = run.signals - run.received_total >= limit
            if (run.over or is_full) and await store.runs.has_signal(tx, run, signal.id):
                return False
            if run.over:
                raise WorkflowFinished(f"the run has ended: {run.state}")
            if is_full:
                raise SignalsFull(f"the run has {limit} signals that it has not received", retry_after_s=1.0)
            data = signal_data(signal)
            told = signal.name, signal.id, data
            is_new = await store.runs.add_signal(tx, dag.no, *told, asks=signal.asks)
            if not is_new:
                return False
            settlement.wake(dag)
            return True

        return await self.change(namespace, workflow_id, act)

    async def cancel(self, namespace: str, workflow_id: str, reason: str | None) -> str:
        """Ask a run to end; its DAG's id. One that is over is left as it is."""

        async def act(tx: Transaction, settlement: Settlement, dag: Dag, run: Run) -> str:
            await run_ends.request(tx, settlement, dag, run, reason, self._settings.cancel_grace_s)
            return dag.id

        return await self.change(namespace, workflow_id, act)

    async def terminate(self, namespace: str, workflow_id: str, reason: str | None) -> str:
        """End a run; its DAG's id. One that is over is left as it is."""

        async def act(tx: Transaction, settlement: Settlement, dag: Dag, run: Run) -> str:
            await run_ends.terminate(tx, settlement, dag, run, reason or "it was terminated")
            return dag.id

        return await self.change(namespace, workflow_id, act)

    async def pause(self, namespace: str, workflow_id: str) -> str:
        """Release nothing more of a run, its decider neither; its DAG's id."""

        async def act(tx: Transaction, settlement: Settlement, dag: Dag, run: Run) -> str:
            if not run.over and not dag.paused:
                dag.paused = True
                await store.dags.set_flags(tx, dag)
                settlement.changed(dag)
            return dag.id

        return await self.change(namespace, workflow_id, act)

    async def resume(self, namespace: str, workflow_id: str) -> str:
        """Go on with a run that is paused, or has failed, and at once with one that is stuck; its DAG's id.

        Raises:
            DagCancelling: what the run had not ended is still being cancelled.
        """

        return await self.change(namespace, workflow_id, self.go_on)

    async def go_on(self, tx: Transaction, settlement: Settlement, dag: Dag, run: Run) -> str:
        """The same in a transaction of the caller's."""
        if run.state == "failed":
            await self._reopen(tx, settlement, dag, run)
        if run.over:
            return dag.id
        if dag.paused:
            dag.paused = False
            await self._controller.go_on(tx, settlement, dag)
        if run.stuck is not None:
            old = await store.runs.decider(tx, dag.no)
            await store.runs.unstick(tx, run)
            await deciders.renew(tx, settlement, dag, run, old, state="released")
        return dag.id

    async def move(self, namespace: str, workflow_id: str, version: str | None) -> str:
        """Let workers of another version go on with a run, or, with None, those of any; its DAG's id. Whoever has
        it now loses it, with what was not written.

        Raises:
            WorkflowFinished: the run is over.
        """

        async def act(tx: Transaction, settlement: Settlement, dag: Dag, run: Run) -> str:
            if run.over:
                raise WorkflowFinished(f"the run has ended: {run.state}")
            if run.version == version:
                return dag.id
            if version is not None and len(deciders.topic_of(run.type, version)) > _TOPIC_CHARS_MAX:
                raise invalid("/version", "with the run's type it is too long for a topic")
            await store.runs.pin(tx, run, version)
            await self._deliver_anew(tx, settlement, dag, run)
            return dag.id

        return await self.change(namespace, workflow_id, act)

    async def _deliver_anew(self, tx: Transaction, settlement: Settlement, dag: Dag, run: Run) -> None:
        """The decider's next generation. The item of the one before is cancelled: perhaps nobody would take it."""
        old = await store.runs.decider(tx, dag.no)
        await store.duties.drop_sends(tx, [dag.node_no(0)])
        await store.runs.unstick(tx, run)
        await deciders.renew(tx, settlement, dag, run, old, state=old.state)
        if old.state == "released":
            cancel = Send(dag.node_no(0), old.generation, "cancel", old.item_id, dag.namespace)
            settlement.sends.append(cancel)

    async def _reopen(self, tx: Transaction, settlement: Settlement, dag: Dag, run: Run) -> None:
        """A run that has failed goes on, with code that was mended: its end is taken back. What had not ended then
        was cancelled, and its code is told so."""
        if not dag.over:
            raise DagCancelling("what the run had not ended is still being cancelled; try again")
        await unarchive.check(tx, dag)
        old = await store.runs.decider(tx, dag.no)
        await store.dags.reopen_dag(tx, dag)
        dag.ends_as = None
        settlement.restart(dag)
        await store.runs.take_back_end(tx, run)
        run.state = "running"
        await deciders.renew(tx, settlement, dag, run, old, state="released")

    async def with_child(
        self,
        namespace: str,
        workflow_id: str,
        parent: Parent,
        act: Callable[[Transaction, Settlement, Dag], Awaitable[None]],
    ) -> bool:
        """Do something with the run that goes in the place of a node, in its generation; whether there is one."""
        shard = run_spec.home_of(self._context.shards, namespace, workflow_id)

        async def work(tx: Transaction, settlement: Settlement, dag: Dag, _run: Run) -> bool:
            if (dag.parent_dag, dag.parent_node, dag.parent_generation) != parent[:3]:
                return False
            await act(tx, settlement, dag)
            return True

        if await store.runs.dag_of_id(shard, namespace, workflow_id) is None:
            return False
        return await self.change(namespace, workflow_id, work)

    async def change(self, namespace: str, workflow_id: str, act: Act[T]) -> T:
        """Do something with the run that an id means, under its lock."""
        shard = run_spec.home_of(self._context.shards, namespace, workflow_id)
        for _ in range(_ATTEMPTS_MAX):
            try:
                done = await self._attempt(shard, namespace, workflow_id, act)
            except unarchive.Archived as archived:
                await unarchive.bring_back(self._context, shard, archived.dag)
                continue
            if done is not None:
                return done[0]
        raise ShardUnavailable("the run goes on as new ones too fast; try again", retry_after_s=1.0)

    async def _attempt(self, shard: Shard, namespace: str, workflow_id: str, act: Act[T]) -> tuple[T] | None:
        """None where the id means another run by now."""

        async def work(tx: Transaction) -> tuple[Settlement | None, tuple[T] | None]:
            dag = await store.runs.lock(tx, namespace, workflow_id)
            if dag is None:
                raise unknown()
            run = await store.runs.of(tx, dag.no)
            if run.state == "continued":
                return None, None
            settlement = Settlement(tx, [dag], self._settings, self._context.home(shard))
            done = await act(tx, settlement, dag, run)
            await settlement.run()
            return settlement, (done,)

        return await self._context.settle(shard, work)


def unknown() -> NotFound:
    """What is said of an id that means no run."""
    return NotFound("there is no such workflow in this namespace")


def new_signal_id() -> str:
    """Of a signal that was sent without one."""
    return uuid.uuid4().hex
