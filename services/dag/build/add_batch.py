"""More nodes of the common shape for a DAG that is there: two statements, column by column.

Large graphs are built by calls that say nodes and what those wait for. Under the DAG's lock one statement reads
what the call names, one writes the nodes as they stand, as `create_batch` does of new DAGs. Whatever is not as
simple is left to `create`: what is there already or is not there, upstreams that failed, outputs to pass on,
limits, and DAGs that do not run, rank their nodes, expand themselves, or are known here by a topological order,
which is to grow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from services.dag import changes, store
from services.dag.build.queue_registration import QueueRegistrar
from services.dag.build.topological_orders import Orders
from services.dag.model import Added, Dag, Node
from services.dag.run.context import Context, own
from services.dag.run.decisions import Settlement
from services.dag.store.create import Columns, NodeBatch
from shared import ids
from shared.crash import crash_point
from shared.fallback import Fallback
from shared.ids import ShardNo
from shared.postgres.connections import Transaction
from shared.shards.shard_map import Shard

_COUNTED = frozenset({"blocked", "released", "succeeded"})


class Growth:
    """Adds nodes to DAGs."""

    def __init__(self, context: Context, registrar: QueueRegistrar, orders: Orders) -> None:
        self._context = context
        self._settings = context.settings
        self._registrar = registrar
        self._orders = orders

    async def write(
        self,
        shard: Shard,
        dag_id: str,
        namespace: str,
        columns: Columns,
        above: Sequence[str],
        queue_shard: ShardNo,
    ) -> NodeBatch | Fallback:
        """Write nodes, which wait for each other and for those of the keys `above`; a fallback: nothing was done.

        Raises:
            NotFound: there is no such DAG.
        """

        async def work(tx: Transaction) -> tuple[Settlement | None, NodeBatch | Fallback]:
            dag = own(await store.dags.lock_dags(tx, [dag_id]), namespace)
            if self._orders.fresh(shard, dag) is not None:
                return None, Fallback("order_known")
            if not self._has_room(dag, columns):
                return None, Fallback("dag_state")
            upper = await self._upper(tx, dag, columns, above)
            if upper is None:
                return None, Fallback("upstreams")
            satisfied = [node.state == "succeeded" for node in upper]
            batch = self._lay_out(dag, columns, satisfied, queue_shard)
            if batch is None:
                return None, Fallback("outputs")
            is_large = len(columns.keys) > self._settings.create_batch_nodes_max
            delay_s = self._settings.stopped_add_s if is_large else self._settings.overdue_s
            await store.create.insert_node_batch(
                tx, batch, [node.no for node in upper], satisfied, delay_s=delay_s
            )
            settlement = Settlement(tx, [dag], self._settings, self._context.home(shard))
            settlement.grown(dag, len(batch.released))
            return settlement, batch

        return await self._context.settle(shard, work)

    async def give(self, shard: Shard, batch: NodeBatch) -> list[Added]:
        """Give the queue the items of nodes just written; how they stand then, in the call's order.

        Raises:
            DagFinished: the DAG was cancelled meanwhile.
            AddUnfinished: they are written, and are being added by and by.
        """
        crash_point("after_add")
        released = set(batch.released)
        keys = batch.columns.keys
        if await self._registrar.give_batch(shard, batch):
            return [
                Added(key, item_id, "released" if n in released else "blocked")
                for n, (key, item_id) in enumerate(zip(keys, batch.item_ids, strict=True))
            ]
        found = await self._registrar.look_again(shard, batch.addition)
        return [found[key] for key in keys]

    def _has_room(self, dag: Dag, columns: Columns) -> bool:
        return (
            dag.state == "running"
            and dag.cleanup_phase == 0
            and not dag.path_lift
            and (dag.releasing or not dag.lifted)
            and not dag.expanded
            and dag.workflow is None
            and dag.next_n + len(columns.keys) <= self._settings.nodes_per_dag_max
            and dag.edges + len(columns.ups) <= self._settings.edges_per_dag_max
        )

    async def _upper(self, tx: Transaction, dag: Dag, columns: Columns, above: Sequence[str]) -> list[Node] | None:
        """The nodes of the keys `above`, none of which has failed or was left out; None unless they are there, and
        no new one is."""
        found, _ = await store.dags.nodes_by_key(tx, dag.no, [*columns.keys, *above])
        if len(found) != len(above) or not all(key in found for key in above):
            return None
        upper = [found[key] for key in above]
        if any(node.state not in _COUNTED or node.run_on is not None for node in upper):
            return None
        limit = self._settings.degree_max
        if dag.edges + len(columns.ups) > limit and upper:
            added = Counter([up for up in columns.ups if up < 0])
            degrees = await store.edges.out_degrees(tx, [node.no for node in upper], limit)
            if any(degrees[node.no] + added[-i] > limit for i, node in enumerate(upper, 1)):
                return None
        return upper

    def _lay_out(
        self, dag: Dag, columns: Columns, satisfied: Sequence[bool], queue_shard: ShardNo
    ) -> NodeBatch | None:
        """The DAG and its new nodes as they will stand; None when one is to be passed outputs now."""
        lefts = list(columns.lefts)
        for up, down in zip(columns.ups, columns.downs, strict=True) if any(satisfied) else ():
            lefts[down] -= up < 0 and satisfied[-1 - up]
        fires = [n for n, left in enumerate(lefts) if not left] if dag.releasing else []
        if any(columns.passes[n] and columns.lefts[n] for n in fires):
            return None
        count, first_n = len(lefts), dag.next_n
        dag.next_n += count
        dag.edges += len(columns.ups)
        dag.move(None, "blocked", count - len(fires))
        dag.move(None, "released", len(fires))
        item_ids = ids.with_dag_tag(ids.new_ids(queue_shard, count), dag.id)
        news = changes.of_creation(dag, lefts, first_n)
        return NodeBatch(dag, columns._replace(lefts=lefts), item_ids, news, first_n)
