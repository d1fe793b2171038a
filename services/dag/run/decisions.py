"""One transaction's decisions about nodes, under the locks of their DAGs' rows.

Every duty that changes nodes tells a `Settlement` what ended or may now be decided, then runs it: edges of
ended nodes are flipped and counted, their children decided, skips followed down the graph, DAGs ended, and
everything written at once. What exceeds one step (`edges_per_step_max`, `skip_levels_per_step_max`) is left
to the walks in `duties.long_steps`, under the same rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from services.dag import changes, queue_items, store
from services.dag.graph import decide
from services.dag.model import (
    CLEANUP_ENDS,
    UNDO,
    Action,
    Cause,
    Dag,
    DagNo,
    DagState,
    Node,
    NodeNo,
    Ref,
    Retry,
    Send,
    dag_of,
)
from services.dag.run.compensation_input import inputs as undone_inputs
from services.dag.settings import DagSettings
from services.dag.store.dags import Ended, Moved, Replaced
from shared import ids
from shared.ids import ShardNo
from shared.postgres.connections import Transaction


class Home(NamedTuple):
    """Where a DAG shard's new items go: the queue's shard for them, and all those that take items now."""

    shard: ShardNo
    taking: frozenset[ShardNo]


class Settlement:
    """What one transaction decides, within `bounds`. Made anew for each attempt of the transaction. Items that the
    queue was never given go to `home`, once released; without one, where they were meant to go."""

    def __init__(
        self, tx: Transaction, dags: Sequence[Dag], bounds: DagSettings, home: Home | None = None
    ) -> None:
        self.tx = tx
        self.dags = {dag.no: dag for dag in dags}
        self.sends: list[Send] = []
        self.released = 0
        self.walking = False
        self.finished: list[Dag] = []
        self.written: list[Dag] = []
        self.bounds = bounds
        self._home = home
        self._log = changes.Log(dags)
        self._was = {dag.no: dag.state for dag in dags}
        self._moved: dict[NodeNo, Moved] = {}
        self._frontier: list[tuple[Ref, DagNo, str]] = []
        self._passing: list[tuple[Send, Node]] = []
        self._changed: set[DagNo] = set()
        self._cleaning: set[DagNo] = set()
        self._cleanup_changed: set[DagNo] = set()
        self._left_closed: set[DagNo] = set()
        self._reasoned: set[DagNo] = set()
        self._failed_first: dict[DagNo, NodeNo] = {}
        self._undone: list[NodeNo] = []
        self._tolerating: set[DagNo] = set()
        # Nodes of runs of workflows that have ended, which their code is told of; and what else wakes a run.
        self._told: list[int] = []
        self._woken: set[DagNo] = set()
        self._asked: set[DagNo] = set()
        # Timers that begin, and that are over before their time; and in how many seconds those that begin end.
        self._timers: list[NodeNo] = []
        self._stopped_timers: list[NodeNo] = []
        self.timers_s: list[float] = []
        # How DAGs in the place of nodes are to be retried that are released here.
        self.retries: dict[NodeNo, Retry] = {}

    def join(self, other: Settlement) -> None:
        """Another one of this transaction, of other DAGs, is run; what it decided is told with this."""
        self.sends += other.sends
        self.finished += other.finished
        self.written += other.written
        self.timers_s += other.timers_s
        self.released += other.released
        self.walking |= other.walking

    def grown(self, dag: Dag, released: int) -> None:
        """A statement of this transaction has written more nodes of a DAG, so many released, and its row."""
        self.written.append(dag)
        self.released += released

    def told(self, dag: Dag) -> None:
        """A run has been written: who follows it is told after the commit, also where the DAG is as it was."""
        if dag.no not in self._changed:
            self.written.append(dag)

    def changed(self, dag: Dag) -> None:
        """Write this DAG's row, and look whether the DAG has ended."""
        self._changed.add(dag.no)

    def ended(self, end: Ended) -> None:
        """A statement of this transaction has made a node terminal."""
        self._log.node(end.no, end.generation, end.state)
        self._end(self.dags[end.dag_no], Ref(end.no, end.generation), end.was, end.state, end)

    def end(self, node: Node, state: str, error: str | None = None) -> None:
        """Make a node terminal now; the item that the queue may have of it is cancelled."""
        dag = self.dags[node.dag_no]
        self._moved[node.no] = Moved(state, error)
        self._log.node(node.no, node.generation, state)
        if node.timer and node.state == "released":
            self._stopped_timers.append(node.no)
        if node.enqueued:
            self.sends.append(Send(node.no, node.generation, "cancel", node.item_id, dag.namespace))
        was, node.state = node.state, state  # type: ignore[assignment]
        self._end(dag, Ref(node.no, node.generation), was, state, node)

    def wake(self, dag: Dag) -> None:
        """A run has an event that its code is to be told of: its decider, where it is parked, is released."""
        self._woken.add(dag.no)
        self._changed.add(dag.no)

    def tells(self, dag: Dag) -> bool:
        """Whether nodes of this run have ended in this transaction."""
        return dag.no in self._woken

    def decider_renewed(self, dag: Dag, was: str, ref: Ref, item_id: str, state: str) -> None:
        """A run's decider has been written in its next generation: blocked where the run is parked."""
        dag.move(was, state)
        self.renewed(dag, ref, state)
        if state == "released":
            self.sends.append(Send(ref.no, ref.generation, "enqueue", item_id, dag.namespace))

    def restart(self, dag: Dag) -> None:
        """A retried DAG runs again, whatever it was before."""
        dag.state = "running"
        dag.cancel_cause = None
        dag.reason = None
        self._was[dag.no] = "running"
        self._changed.add(dag.no)

    def reopened(self, dag: Dag, old: Replaced) -> None:
        """A retry has made a node blocked, in its next generation."""
        dag.move(old.was, "blocked")
        if old.was == "failed" and old.tolerate:
            dag.tolerated -= 1
            self._tolerating.add(dag.no)
        if old.timer and old.was == "released":
            self._stopped_timers.append(old.no)
        if old.run_on is not None:
            dag.cleanup_left += 1
            self.cleanup_changed(dag)
        self._log.node(old.no, old.generation + 1, "blocked")
        self._changed.add(dag.no)

    def renewed(self, dag: Dag, ref: Ref, state: str = "released") -> None:
        """A node has gone on to this generation, in the state that it is in."""
        self._log.node(ref.no, ref.generation, state)
        self._changed.add(dag.no)

    def made(self, dag: Dag, nos: Iterable[NodeNo]) -> None:
        """Nodes of these numbers are new."""
        for no in nos:
            self._log.node(no, 1, "blocked")
        self._changed.add(dag.no)

    def consider(self, node: Node, why_failed: str = "an external dependency was resolved as failed") -> None:
        """Decide a blocked node by its counts; any other, or one of a DAG that is being cancelled or reopened, is
        left. `why_failed` is the error of one that fails by its externals."""
        dag = self.dags[node.dag_no]
        # A row read in this transaction does not show yet what the transaction has decided.
        state = self._moved[node.no].state if node.no in self._moved else node.state
        if dag.workflow is not None and node.no == dag.node_no(0):
            # Only what its code is to be told of wakes it.
            self._asked.add(dag.no)
            return
        if state != "blocked" or dag.reopening or (dag.state != "running" and node.run_on is None):
            return
        if node.run_on is not None and (node.run_on == UNDO or dag.cleanup_phase < 2):
            return
        node.state = "blocked"
        verdict = decide(node.trigger, node.counts)
        if node.run_on is not None and dag.verdict not in CLEANUP_ENDS[node.run_on]:
            self.end(node, "skipped")
        elif node.ext_failed:
            self.end(node, "failed", why_failed)
        elif verdict == "skip":
            self.end(node, "skipped")
        elif verdict == "fire" and node.ext_left == 0 and dag.lets_go(node):
            self._release(dag, node)

    def compensate(self, node: Node) -> None:
        """It is a compensation's turn."""
        if node.state == "blocked":
            self._release(self.dags[node.dag_no], node)

    def cleanup_changed(self, dag: Dag) -> None:
        """Write how far the DAG's cleanup is."""
        self._cleanup_changed.add(dag.no)
        self._changed.add(dag.no)

    def cancel_rest(self, dag: Dag, cause: Cause, reason: str | None = None) -> None:
        """Begin to cancel all unfinished nodes, but for what cleans up. A call's cancel overrides another
        cause, and its reason; one that is repeated, or comes when all that is left cleans up, changes nothing."""
        if dag.concluded or dag.cancel_cause == "call":
            return
        if dag.reopening:
            self._left_closed.add(dag.no)
            self.cleanup_changed(dag)
        if dag.state == "running" or (dag.state == "cancelling" and cause == "call"):
            dag.state = "cancelling"
            dag.cancel_cause, dag.reason = cause, reason
            self._reasoned.add(dag.no)
        self._changed.add(dag.no)

    def cancel_items(self, nodes: Iterable[Node]) -> None:
        """Tell the queue to cancel the items of unfinished nodes; its answers end them. What it was never given
        ends at once, and so does a timer. A sub-DAG that was begun is cancelled, and its end ends the node."""
        for node in nodes:
            namespace = self.dags[node.dag_no].namespace
            if node.timer or (node.state == "blocked" and not node.enqueued):
                self.end(node, "cancelled", why_cancelled(self.dags[node.dag_no]))
            else:
                action: Action = "stop" if node.sub else "cancel"
                self.sends.append(Send(node.no, node.generation, action, node.item_id, namespace))

    def report(self, dag: Dag) -> None:
        """Tell the node in whose place a DAG has run how it has ended."""
        assert dag.parent_dag is not None, "it has a parent"
        self.sends.append(Send(dag.node_no(0), dag.endings, "report", dag.parent_dag, dag.namespace))

    async def walk_blocked(self, dag: Dag, after_no: int) -> int | None:
        """Decide a stretch of blocked nodes after `after_no`; how far that came, None at the end."""
        last_no = after_no + self.bounds.scan_nodes_max
        for node in await store.dags.nodes_between(self.tx, after_no + 1, last_no, ["blocked"]):
            self.consider(node)
        return last_no if last_no < dag.last_no else None

    async def run(self) -> None:
        """Follow everything to its end and write it."""
        await self._flip()
        await self._wake_deciders()
        await self._begin_cancels()
        await self._give_reasons()
        await self._pass_outputs()
        for no in self._changed:
            self._finish(self.dags[no])
        await self._clean_up()
        for no in sorted(self._tolerating):
            await store.dags.set_tolerated(self.tx, self.dags[no])
        if self._changed or self._moved or self.sends:
            await self._write()
        for send in self.sends if self.retries else ():
            if send.action == "start" and send.no in self.retries:
                send.retry = self.retries[send.no].dump()
                await store.subdags.note_retry(self.tx, send)
        if self._told:
            await store.runs.append_ends(self.tx, self._told)
        # Their times count from when they were released, so that has to be written before.
        if self._stopped_timers:
            await store.timers.delete(self.tx, self._stopped_timers)
        if self._timers:
            self.timers_s = await store.timers.start(self.tx, self._timers)

    def _end(self, dag: Dag, ref: Ref, was: str, state: str, node: Ended | Node) -> None:
        run_on = node.run_on
        dag.move(was, state)
        if run_on is not None:
            dag.cleanup_left -= 1
            self._cleanup_changed.add(dag.no)
            if run_on == UNDO and state == "succeeded":
                self._undone.append(ref.no)
        self._changed.add(dag.no)
        self._frontier.append((ref, dag.no, state))
        if dag.workflow is not None and ref.no != dag.node_no(0):
            self._told.append(ref.no)
            self._woken.add(dag.no)
        if state == "failed" and node.tolerate:
            dag.tolerated += 1
            self._tolerating.add(dag.no)
        elif state == "failed" and run_on is None and dag.on_failure == "cancel" and dag.state == "running":
            self._failed_first[dag.no] = ref.no
            self.cancel_rest(dag, "failure")

    def _release(self, dag: Dag, node: Node) -> None:
        dag.move("blocked", "released")
        self._changed.add(dag.no)
        if not node.enqueued and not node.sub and not node.timer:
            node.item_id = self._taken_id(node.item_id)
        self._moved[node.no] = Moved("released", item_id=node.item_id)
        self._log.node(node.no, node.generation, "released")
        node.state = "released"
        self.released += 1
        if node.timer:
            self._timers.append(node.no)
            return
        action = "start" if node.sub else "revive" if node.enqueued else "enqueue"
        send = Send(node.no, node.generation, action, node.item_id, dag.namespace)  # type: ignore[arg-type]
        self.sends.append(send)
        if node.pass_outputs:
            self._passing.append((send, node))

    def _taken_id(self, item_id: str) -> str:
        """An id that the queue will take, for an item that it was never given: one that has grown old, or is of a
        shard that is away or takes no items any more, is replaced."""
        shard = ids.shard_of(item_id)
        is_away = self._home is not None and shard not in self._home.taking
        [fresh] = ids.with_dag_tag(
            [ids.new_id(self._home.shard if self._home is not None and is_away else shard)], item_id
        )
        age_s = (ids.time_ms_of(fresh) - ids.time_ms_of(item_id)) / 1000
        return fresh if is_away or age_s > self.bounds.id_window_s / 4 else item_id

    async def _wake_deciders(self) -> None:
        waiting = [no for no in self._woken | self._asked if self.dags[no].state == "running"]
        for node, is_behind in await store.runs.deciders(self.tx, waiting) if waiting else ():
            dag = self.dags[node.dag_no]
            if node.state == "blocked" and dag.releasing and (is_behind or dag.no in self._woken):
                self._release(dag, node)

    async def _flip(self) -> None:
        budget = self.bounds.edges_per_step_max
        for _ in range(self.bounds.skip_levels_per_step_max):
            frontier = self._take_frontier()
            if not frontier:
                return
            frontier += await self._skip_below(frontier, budget // 2)
            nodes, edges = await store.edges.flip_edges(
                self.tx, [(ref.no, state) for ref, state in frontier], budget
            )
            for node in nodes:
                self.consider(node)
            budget -= edges
            if budget <= 0:
                await self._spread(frontier)
                break
        await self._spread(self._take_frontier())

    async def _skip_below(self, frontier: list[tuple[Ref, str]], edges_max: int) -> list[tuple[Ref, str]]:
        """Skip what is surely skipped below nodes that were: all the way down at once, where going level by level
        would be a statement for each level of a chain. Their edges are flipped with those of the frontier."""
        skipped = [
            ref.no
            for ref, state in frontier
            if state == "skipped" and self.dags[dag_of(ref.no)].state == "running"
        ]
        if not skipped or not edges_max:
            return []
        for node in await store.edges.skipped_below(self.tx, skipped, edges_max):
            if node.no not in self._moved:
                self.end(node, "skipped")
        return self._take_frontier()

    def _take_frontier(self) -> list[tuple[Ref, str]]:
        """Nodes whose edges are to be flipped. Nothing is decided in a DAG that is being cancelled, and a
        retry counts anew, so there they need no flipping."""
        taken = [(ref, state) for ref, no, state in self._frontier if self.dags[no].flipping]
        self._frontier = []
        return taken

    async def _spread(self, frontier: list[tuple[Ref, str]]) -> None:
        if frontier:
            await store.duties.insert_spread(self.tx, (ref for ref, _ in frontier))
            self.walking = True

    async def _begin_cancels(self) -> None:
        for no in self._changed:
            if self.dags[no].state == "cancelling" and self._was[no] == "running":
                await store.duties.clear_spread(self.tx, no)
                await store.duties.insert_scan(self.tx, no, "cancel", self.dags[no].node_no(0) - 1)
                self.walking = True
        for no in self._left_closed:
            # All but cleanup stays closed: that is to come again.
            if not await store.reopening.keep_cleanup_alone(self.tx, self.dags[no]):
                self.dags[no].cleanup_phase = 0

    async def _give_reasons(self) -> None:
        keys = await store.dags.node_keys(self.tx, list(self._failed_first.values())) if self._failed_first else {}
        for no in sorted(self._reasoned):
            dag = self.dags[no]
            if dag.cancel_cause == "failure":
                dag.reason = f'node "{keys[self._failed_first[no]]}" failed, and on_failure is cancel'
            await store.dags.set_flags(self.tx, dag)

    async def _pass_outputs(self) -> None:
        if not self._passing:
            return
        undoing = [node.no for _, node in self._passing if node.run_on == UNDO]
        fitting = await self._fitting()
        parts: dict[NodeNo, list[tuple[str, str]]] = {no: [] for no in fitting}
        for no, name, value in await store.dags.inputs(self.tx, fitting) if fitting else ():
            parts[no].append((name, value))
        if undoing:
            parts |= await undone_inputs(
                self.tx,
                undoing,
                bytes_max=self.bounds.inputs_bytes_max,
                step_bytes_max=self.bounds.inputs_step_bytes_max,
            )
        for send, node in self._passing:
            send.inputs = self._inputs(node, parts.get(node.no))

    async def _fitting(self) -> list[NodeNo]:
        """Nodes whose inputs go with their items; the others are given references. Nodes with more upstreams than
        are looked at here have more inputs than an item takes."""
        edges = self.bounds.inputs_step_edges_max
        looked_at = []
        for send, node in self._passing:
            if node.run_on != UNDO and node.upstreams <= edges:
                edges -= node.upstreams
                looked_at.append(send.no)
        sizes = await store.dags.inputs_sizes(self.tx, looked_at) if looked_at else {}
        left = self.bounds.inputs_step_bytes_max
        fitting = []
        for no in looked_at:
            if sizes[no] <= min(left, self.bounds.inputs_bytes_max):
                left -= sizes[no]
                fitting.append(no)
        return fitting

    def _inputs(self, node: Node, parts: list[tuple[str, str]] | None) -> str:
        if parts is not None:
            body = queue_items.inputs_body(parts)
            small = len(body.encode()) <= self.bounds.inputs_bytes_max
            if small and not queue_items.deeper_than(body, self.bounds.inputs_depth_max):
                return body
        dag = self.dags[node.dag_no]
        return queue_items.inputs_reference(dag.namespace, dag.id, node.key)

    def _finish(self, dag: Dag) -> None:
        if dag.unfinished > dag.cleanup_left or dag.over or dag.reopening:
            return
        verdict = dag.verdict or _verdict(dag)
        if verdict is not None and not dag.cleanup_left:
            dag.state = verdict
        elif verdict is not None and dag.verdict is None:
            dag.verdict, dag.cleanup_phase = verdict, 1
            self._cleaning.add(dag.no)
        elif verdict is not None and not dag.released:
            self._cleaning.add(dag.no)
        if dag.over and dag.state != self._was[dag.no] and dag.parent_dag is not None:
            self.report(dag)

    async def _clean_up(self) -> None:
        """What comes next of compensation and cleanup is found by a walk."""
        for no in sorted(self._cleaning):
            await store.duties.insert_scan(self.tx, no, "cleanup", self.dags[no].node_no(0) - 1)
            self.walking = True
        if self._undone:
            await store.cleanup.note_undone(self.tx, self._undone)
        for no in sorted(self._cleaning | self._cleanup_changed):
            await store.cleanup.set_cleanup(self.tx, self.dags[no])

    async def _write(self) -> None:
        written = [(self.dags[no], self._was[no]) for no in sorted(self._changed)]
        logged = self._log.written(dag for dag, _ in written)
        finished_at = await store.dags.settle(
            self.tx, self._moved, self.sends, written, logged, delay_s=self.bounds.overdue_s
        )
        for dag, was in written:
            self.written.append(dag)
            dag.finished_at = finished_at[dag.no]
            if dag.over and was != dag.state:
                self.finished.append(dag)


def why_cancelled(dag: Dag) -> str | None:
    """The error of nodes that are cancelled with their DAG; None while it runs."""
    if dag.state != "cancelling":
        return None
    return f"the DAG was cancelled: {dag.reason}" if dag.reason else "the DAG was cancelled"


def _verdict(dag: Dag) -> DagState | None:
    """The end that a DAG's ordinary nodes, all terminal, have come to; None while it may not end."""
    if dag.ends_as is not None:
        return dag.ends_as
    if dag.state == "cancelling":
        return "cancelled" if dag.cancel_cause == "call" else "failed"
    if dag.open or dag.held or not (dag.total or dag.closed):
        return None
    return "failed" if dag.failed > dag.tolerated else "succeeded"
