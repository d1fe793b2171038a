"""New DAGs, whole: one statement writes and decides several of them, and one call gives the queue their items.

Nobody can wait for a DAG that is not there yet, add to it or end it, so how its nodes stand follows from the call
alone, and needs no look at anything. The caller is answered when the queue has all of them (see
`queue_registration`). What needs more than the call to be decided goes the long way (see `create`).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from services.dag import changes, store
from services.dag.build import addition
from services.dag.build.addition import Existing
from services.dag.build.queue_registration import QueueRegistrar
from services.dag.graph import decide
from services.dag.model import Dag, DagNo, NewDag, NewEdge, NewNode
from services.dag.run.context import Context
from services.dag.settings import DagSettings
from services.dag.store.create import Columns, CreatedDag, NodeBatch
from shared import ids
from shared.admission.connection_priority import Urgency
from shared.crash import crash_point
from shared.errors import ServiceError, something_done
from shared.fallback import Fallback
from shared.ids import ShardNo
from shared.metrics import RELEASED
from shared.postgres.batcher import Batcher, BatcherLimits
from shared.shards.shard_map import Shard

_NOTHING = Existing({}, {})
_UNBORN_AT = datetime.fromtimestamp(0, UTC)


def plan(
    dag_id: str,
    namespace: str,
    new: NewDag,
    nodes: Sequence[NewNode],
    edges: Sequence[NewEdge],
    queue_shard: ShardNo,
    settings: DagSettings,
) -> NodeBatch | Fallback:
    """A new DAG as it will stand. A fallback where the long way is to tell: of what is there already (externals
    may be resolved, a key may be taken), of nodes that are no items, of none, and of what is wrong in the call."""
    if not nodes:
        return Fallback("empty")
    if not all(map(_is_common, nodes)):
        return Fallback("shape")
    dag = _unsaved_dag(dag_id, namespace, new)
    try:
        adding = addition.plan(dag, nodes, edges, _NOTHING, set())
        addition.check_limits(dag, adding, _NOTHING, settings)
    except ServiceError:
        return Fallback("refused")
    counts = addition.new_counts(adding, _NOTHING)
    if any(decide(node.trigger, counts[node.key]) == "skip" for node in adding.nodes):
        return Fallback("skipped")
    numbers = {node.key: n for n, node in enumerate(adding.nodes)}
    columns = Columns(
        keys=list(numbers),
        topics=[node.topic for node in adding.nodes],
        triggers=[node.trigger for node in adding.nodes],
        passes=[node.pass_outputs for node in adding.nodes],
        fingerprints=[node.fingerprint for node in adding.nodes],
        items=[node.item for node in adding.nodes],
        lefts=[counts[key].left for key in numbers],
        ups=[numbers[edge.upstream] for edge in adding.edges],
        downs=[numbers[edge.downstream] for edge in adding.edges],
    )
    return lay_out(dag_id, namespace, new, columns, queue_shard)


def _is_common(node: NewNode) -> bool:
    return not (node.sub or node.timer or node.run_on is not None or node.external or node.tolerate)


def lay_out(dag_id: str, namespace: str, new: NewDag, columns: Columns, queue_shard: ShardNo) -> NodeBatch:
    """A new DAG as it will stand: what has no upstream is released, unless the DAG keeps it."""
    dag = _unsaved_dag(dag_id, namespace, new)
    count, roots = len(columns.keys), columns.lefts.count(0)
    dag.next_n, dag.edges = count, len(columns.ups)
    dag.structure_version = min(dag.edges, 1)
    dag.released = roots if dag.releasing else 0
    dag.blocked = count - dag.released
    item_ids = ids.with_dag_tag(ids.new_ids(queue_shard, count), dag_id)
    return NodeBatch(dag, columns, item_ids, changes.of_creation(dag, columns.lefts), content=new.content)


class CreateBatches:
    """Makes new DAGs; those that several callers want at once share a statement and a call."""

    def __init__(self, context: Context, registrar: QueueRegistrar) -> None:
        self._context = context
        self._settings = context.settings
        self._registrar = registrar
        self._batchers: dict[ShardNo, Batcher[NodeBatch, CreatedDag | None]] = {}

    async def make(self, shard: Shard, batch: NodeBatch) -> Dag | None:
        """Make a DAG and give the queue its items; None when its key is taken.

        Raises:
            AddUnfinished: the DAG is there, and the queue will be given its items by and by.
        """
        is_small = sum(map(len, batch.columns.items)) <= self._settings.create_batch_bytes_max
        if batch.dag.next_n > self._settings.create_batch_nodes_max or not is_small:
            # Its items are a call of their own. One that went ahead, as overdue, would be acked before the queue
            # has those that wait for it.
            [created] = await store.create.insert_dags(shard, [batch], delay_s=self._settings.stopped_add_s)
        else:
            [created] = await self._batcher_of(shard).submit([batch], batch.dag.namespace)
        if created is None:
            return None
        crash_point("after_create")
        dag = batch.dag
        dag.no, dag.created_at, dag.deadline_at = created
        if dag.released:
            RELEASED.labels(shard.number).inc(dag.released)
        if await self._registrar.give_batch(shard, batch):
            return dag
        with something_done():
            return await store.reads.get_dag(shard, dag.id, dag.namespace) or dag

    def _batcher_of(self, shard: Shard) -> Batcher[NodeBatch, CreatedDag | None]:
        if shard.number not in self._batchers:

            async def flush(batches: list[NodeBatch]) -> list[CreatedDag | None]:
                # In the order of their keys: two processes that make DAGs of the same keys wait in one order.
                order = sorted(
                    range(len(batches)), key=lambda i: (batches[i].dag.namespace, batches[i].dag.key or "")
                )
                begun_s = self._context.clock.monotonic_s()
                found = await store.create.insert_dags(
                    shard, [batches[i] for i in order], delay_s=self._settings.overdue_s
                )
                self._context.gauges[shard.number].db_latency_s.add(self._context.clock.monotonic_s() - begun_s)
                created = dict(zip(order, found, strict=True))
                return [created[i] for i in range(len(batches))]

            limits = BatcherLimits(self._settings.creates_per_flush_max, wait_s=self._settings.standing_wait_s_max)
            self._batchers[shard.number] = Batcher(flush, limits, Urgency.ENQUEUE, shard.pool)
        return self._batchers[shard.number]


def _unsaved_dag(dag_id: str, namespace: str, new: NewDag) -> Dag:
    return Dag(
        no=DagNo(0),
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
        blocked=0,
        released=0,
        succeeded=0,
        failed=0,
        skipped=0,
        cancelled=0,
        started_lift=new.started_lift or 0,
        path_lift=new.path_lift or 0,
    )
