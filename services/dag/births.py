"""New DAGs, whole: one statement writes and decides several of them, and one call gives the queue their items.

Nobody can wait for a DAG that is not there yet, add to it or end it, so how its nodes stand follows from the call
alone: what A and B do (see `building`) needs no look in between. The nodes are decided before the queue has heard
of those that wait. That is safe: the `adding` row, written with them, stands until it has (see `activating`), and
a node that is to be released before is enqueued where it cannot be revived. The caller is answered when the queue
has all of them. What needs more than the call to be decided goes the long way.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from services.dag import addition, items, store_births, store_reads
from services.dag.activating import Activator
from services.dag.addition import Standing
from services.dag.changes import Log
from services.dag.context import Context
from services.dag.errors import QueueUnavailable
from services.dag.gateway import Answer
from services.dag.graph import decide
from services.dag.model import Addition, Dag, Item, NewDag, NewEdge, NewNode, Send
from services.dag.settings import DagSettings
from services.dag.store import NodeRow
from services.dag.store_births import Birth, Born
from shared import ids
from shared.batcher import Batcher, BatcherLimits
from shared.crash import crash_point
from shared.errors import ServiceError
from shared.lanes import Urgency
from shared.metrics import RELEASED
from shared.shards import Shard

_NOTHING = Standing({}, {})
_UNBORN_AT = datetime.fromtimestamp(0, UTC)
_TAKEN = frozenset({"enqueued", "duplicate"})
# Calls that are already written wait for the queue however long its line is.
_NEVER_S = float("inf")


class _Give(NamedTuple):
    """An item on its way to the queue."""

    namespace: str
    body: dict[str, Any]


def plan(
    dag_id: str,
    namespace: str,
    new: NewDag,
    nodes: Sequence[NewNode],
    edges: Sequence[NewEdge],
    queue_shard: int,
    settings: DagSettings,
) -> Birth | None:
    """A new DAG as it will stand, or None where the long way is to tell: of what is there already (externals may
    be resolved, a key may be taken), of nodes that are no items, of none, and of what is wrong with the call."""
    if not nodes or any(node.sub or node.run_on is not None or node.external for node in nodes):
        return None
    dag = _unborn(dag_id, namespace, new)
    try:
        adding = addition.plan(dag, nodes, edges, _NOTHING, set())
        addition.check_limits(dag, adding, _NOTHING, settings)
    except ServiceError:
        return None
    counts = addition.new_counts(adding, _NOTHING)
    log = Log([dag])
    rows = []
    item_ids = ids.kin(ids.new_ids(queue_shard, len(adding.nodes)), dag_id)
    for n, node in enumerate(adding.nodes):
        verdict = decide(node.trigger, counts[node.key])
        if verdict == "skip":
            return None
        state = "released" if verdict == "fire" and dag.releasing else "blocked"
        given = state == "blocked" and not dag.lifted
        rows.append(NodeRow(n, node, item_ids[n], state, given, counts[node.key], 0, False))
        log.node(n, 1, state)
        dag.move(None, state)
    numbers = {row.new.key: row.no for row in rows}
    dag.next_n, dag.edges = len(rows), len(adding.edges)
    pairs = [(numbers[edge.upstream], numbers[edge.downstream]) for edge in adding.edges]
    return Birth(dag, rows, pairs, log.written([dag]))


class Births:
    """Makes new DAGs; those that several callers want at once share a statement and a call."""

    def __init__(self, context: Context, activator: Activator) -> None:
        self._context = context
        self._settings = context.settings
        self._activator = activator
        self._bearing: dict[int, Batcher[Birth, Born | None]] = {}
        self._giving: dict[int, Batcher[_Give, Answer]] = {}

    async def make(self, shard: Shard, birth: Birth) -> Dag | None:
        """Make a DAG and give the queue its items; None when its key is taken.

        Raises:
            AddUnfinished: the DAG is there, and the queue will be given its items by and by.
        """
        if len(birth.nodes) > self._settings.birth_nodes_max:
            [born] = await store_births.bear_dags(shard, [birth], delay_s=self._settings.overdue_s)
        else:
            [born] = await self._bearer(shard).submit([birth], birth.dag.namespace)
        if born is None:
            return None
        crash_point("after_birth")
        dag = birth.dag
        dag.no, dag.created_at, dag.deadline_at = born
        dag.structure_version = min(dag.edges, 1)
        if dag.released:
            RELEASED.labels(shard.number).inc(dag.released)
        return await self._give(shard, birth)

    def _bearer(self, shard: Shard) -> Batcher[Birth, Born | None]:
        if shard.number not in self._bearing:

            async def flush(births: list[Birth]) -> list[Born | None]:
                # In the order of their keys: two processes that make DAGs of the same keys wait in one order.
                order = sorted(
                    range(len(births)), key=lambda i: (births[i].dag.namespace, births[i].dag.key or "")
                )
                begun_s = self._context.clock.monotonic_s()
                found = await store_births.bear_dags(
                    shard, [births[i] for i in order], delay_s=self._settings.overdue_s
                )
                self._context.gauges[shard.number].db_latency_s.add(self._context.clock.monotonic_s() - begun_s)
                born = dict(zip(order, found, strict=True))
                return [born[i] for i in range(len(births))]

            limits = BatcherLimits(self._settings.births_per_flush_max, wait_s=self._settings.standing_wait_s_max)
            self._bearing[shard.number] = Batcher(flush, limits, Urgency.ENQUEUE, shard.pool)
        return self._bearing[shard.number]

    async def _give(self, shard: Shard, birth: Birth) -> Dag:
        dag = birth.dag
        sends = [
            Send(dag.node_no(row.no), 1, "enqueue", row.item_id, dag.namespace, _inputs(row), _item(dag, row))
            for row in birth.nodes
            if row.state == "released"
        ]
        if not any(row.enqueued for row in birth.nodes):
            self._context.dispatch(shard, sends)
            return dag
        rows = [row for row in birth.nodes if row.enqueued or not dag.lifted]
        unfinished = Addition(dag.node_no(0), dag.last_no)
        try:
            answers = await self._giver(ids.shard_of(rows[0].item_id)).submit(
                [_Give(dag.namespace, _body(shard, dag, row)) for row in rows], dag.namespace
            )
        except QueueUnavailable:
            answers = []
        crash_point("after_give")
        if answers and all(answer.status in _TAKEN for answer in answers):
            self._context.forget(shard, sends, [unfinished.first_no])
            return dag
        self._context.dispatch(shard, sends)
        await self._activator.drive(shard, unfinished)
        return await store_reads.get_dag(shard, dag.id, dag.namespace) or dag

    def _giver(self, queue_shard: int) -> Batcher[_Give, Answer]:
        if queue_shard not in self._giving:
            limits = BatcherLimits(self._settings.send_items_max, waiting_max=1 << 62, wait_s=_NEVER_S)
            self._giving[queue_shard] = Batcher(self._flush_gives, limits)
        return self._giving[queue_shard]

    async def _flush_gives(self, gives: list[_Give]) -> list[Answer]:
        found: dict[int, Answer] = {}
        by_namespace: dict[str, list[int]] = {}
        for i, give in enumerate(gives):
            by_namespace.setdefault(give.namespace, []).append(i)
        for namespace, places in by_namespace.items():
            answers = await self._context.queue.enqueue(namespace, [gives[i].body for i in places])
            found |= zip(places, answers, strict=True)
        return [found[i] for i in range(len(gives))]


def _unborn(dag_id: str, namespace: str, new: NewDag) -> Dag:
    return Dag(
        no=0,
        id=dag_id,
        namespace=namespace,
        key=new.key,
        name=new.name,
        state="running",
        open=new.open,
        held=new.held,
        paused=False,
        closed=False,
        on_failure=new.on_failure,
        deadline_s=new.deadline_s,
        deadline_at=None,
        cancel_cause=None,
        reason=None,
        metadata=new.metadata,
        created_at=_UNBORN_AT,
        finished_at=None,
        next_n=0,
        structure_version=0,
        edges=0,
        externals=0,
        intent=0,
        blocked=0,
        released=0,
        succeeded=0,
        failed=0,
        skipped=0,
        cancelled=0,
        started_lift=new.started_lift or 0,
        path_lift=new.path_lift or 0,
    )


def _item(dag: Dag, row: NodeRow) -> Item | None:
    """What the relay would otherwise have to read back; lifted ones are worked out as they are sent."""
    return None if dag.lifted else Item(dag.id, row.new.key, row.new.item)


def _body(shard: Shard, dag: Dag, row: NodeRow) -> dict[str, Any]:
    item = Item(dag.id, row.new.key, row.new.item)
    return items.item_body(item, row.item_id, 1, shard.number, disabled=row.enqueued, inputs=_inputs(row))


def _inputs(row: NodeRow) -> str | None:
    """What a node is given that asks for outputs and has nothing above it."""
    return "{}" if row.new.pass_outputs and row.state == "released" else None
