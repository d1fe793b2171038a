"""The node that a DAG runs for, where that DAG is retried by its own id: it begins its next generation with it.

The child's transaction comes first, and none spans both. So the parent is asked beforehand what would become of
the node, in a transaction that is rolled back: a child whose node would have to wait is not begun. Afterwards it
follows, and what had to wait after all, as its DAG was paused meanwhile, or retried from further up, is taken from
the child: that is stopped, and another one is made once the node is released. Nothing runs for a node that waits.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from services.dag import store
from services.dag.errors import DagCancelling, DagFinished, Managed, NothingToRetry, ParentWaits
from services.dag.model import UNFINISHED, Dag, Parent, Ref, Retry, Send
from services.dag.run import unarchive
from services.dag.run.context import Context
from services.dag.run.decisions import Settlement
from services.dag.store.subdags import ParentNode
from shared import ids
from shared.errors import ServiceError
from shared.ids import ShardNo
from shared.postgres.connections import Transaction
from shared.shards.shard_map import Shard


class Along(NamedTuple):
    """What becomes of the node with a DAG that is retried by its own id: it `goes` along, or the DAG runs for
    nobody, or is not retried."""

    goes: bool
    refusal: ServiceError | None = None


ALONE: Final = Along(goes=False)
GOES: Final = Along(goes=True)

# Begins new generations of a locked DAG's nodes (`retry`).
Begin = Callable[[Transaction, Settlement, Dag, Retry, ShardNo, Along], Awaitable[None]]


class _Seen(Exception):
    """Ends a transaction that only asks: the node as it would be, its DAG, and how that stood."""

    def __init__(self, node: ParentNode | None, dag: Dag, was: str) -> None:
        super().__init__(dag.id)
        self.node, self.dag, self.was = node, dag, was


class Followers:
    """Nodes that go along with their DAGs."""

    def __init__(self, context: Context, begin: Begin) -> None:
        self._context = context
        self._settings = context.settings
        self._begin = begin

    async def asked(self, shard: Shard, namespace: str, dag_id: str) -> Along:
        """What would become of the node that this DAG has failed for, if it did.

        Raises:
            Unavailable: the parent cannot say now.
        """
        child = await store.reads.get_dag(shard, dag_id, namespace)
        if child is None or child.parent_dag is None or child.workflow is not None:
            return ALONE
        home = self._home(child)
        queue_shard = await self._context.queue_shard(home)

        async def only_ask(tx: Transaction) -> tuple[None, None]:
            found = await self._locked(tx, child)
            if found is None:
                return None, None
            dag, node = found
            was = dag.state
            if node.generation <= (child.parent_generation or 0):
                await self._next_generation(tx, home, dag, node, queue_shard, ALONE)
            raise _Seen(await store.subdags.node_of_child(tx, dag, node.key), dag, was)

        try:
            await unarchive.unarchived(self._context, home, only_ask)
        except _Seen as seen:
            return await self._judged(home, child, seen)
        except (DagFinished, NothingToRetry, Managed):
            return ALONE
        except DagCancelling as error:
            return Along(goes=False, refusal=DagCancelling(f"its parent, {child.parent_dag}: {error.detail}"))
        return ALONE

    async def _judged(self, home: Shard, child: Dag, seen: _Seen) -> Along:
        if seen.node is None or seen.node.state not in UNFINISHED:
            return ALONE
        # Of a large retry it is found out only later what waits: until then all does.
        if seen.node.state == "blocked":
            detail = (
                f"node {seen.node.key!r} of DAG {seen.dag.id}, for which it failed, would have to wait now: retry "
                "that node, or what it waits for, there; this DAG goes on when the node is released"
            )
            return Along(goes=False, refusal=ParentWaits(detail))
        if seen.was == "failed":
            above = await self.asked(home, seen.dag.namespace, seen.dag.id)
            if above.refusal is not None:
                return above
        return GOES

    async def follow(self, shard: Shard, child: Dag) -> bool:
        """Let the node that a child runs for be in the generation that the child runs for; whether it is then
        released, for this child. A child that is retried by itself has taken the node's next generation.

        Raises:
            DagCancelling, DagFinished, DagReopening: as of a retry of the node.
        """
        generation = child.parent_generation or 0
        queue_shard = await self._context.queue_shard(shard)
        along: Along | None = None

        async def step(tx: Transaction) -> tuple[Settlement | None, int | None]:
            found = await self._locked(tx, child)
            if found is None:
                return None, None
            dag, node = found
            if node.generation >= generation or (along is None and node.state not in UNFINISHED):
                return None, node.generation
            moved = await self._next_generation(tx, shard, dag, node, queue_shard, along or GOES)
            return moved, node.generation + 1

        reached: int | None = 0
        while reached is not None and reached < generation:
            reached = await unarchive.unarchived(self._context, shard, step)
            if along is None and reached is not None and reached < generation:
                along = await self._above(shard, child)
        if reached is None:
            return False
        return await unarchive.unarchived(self._context, shard, lambda tx: self._kept(tx, shard, child))

    async def _above(self, shard: Shard, child: Dag) -> Along:
        """A parent that failed in the place of a node takes that along, too, unless it is nobody's by now."""
        assert child.parent_dag is not None, "it has a parent"
        above = await self.asked(shard, child.namespace, child.parent_dag)
        return GOES if above.refusal is not None else above

    async def _locked(self, tx: Transaction, child: Dag) -> tuple[Dag, ParentNode] | None:
        """The parent, and the node, if the child is in its place."""
        assert child.parent_dag is not None and child.parent_node is not None, "it has a parent"
        dags = await store.dags.lock_dags(tx, [child.parent_dag])
        if not dags:
            return None
        await unarchive.check(tx, dags[0])
        node = await store.subdags.node_of_child(tx, dags[0], child.parent_node)
        return None if node is None or node.item_id != child.id else (dags[0], node)

    async def _next_generation(
        self, tx: Transaction, shard: Shard, dag: Dag, node: ParentNode, queue_shard: ShardNo, along: Along
    ) -> Settlement:
        settlement = Settlement(tx, [dag], self._settings, self._context.home(shard))
        if node.state in UNFINISHED:
            await store.subdags.set_generation(tx, node.no, node.generation + 1)
            settlement.renewed(dag, Ref(node.no, node.generation + 1), node.state)
            if dag.state != "running" or node.by_call:
                # A cancel on its way is for the generation before.
                settlement.cancel_items(await store.dags.nodes_by_no(tx, [node.no]))
        else:
            await self._begin(tx, settlement, dag, Retry([node.key]), queue_shard, along)
        await settlement.run()
        return settlement

    async def _kept(self, tx: Transaction, shard: Shard, child: Dag) -> tuple[Settlement | None, bool]:
        """Whether the node is the child's: released, in its generation. A child whose node waits, or has ended
        without it, is stopped."""
        found = await self._locked(tx, child)
        if found is None:
            return None, False
        dag, node = found
        generation = child.parent_generation or 0
        if node.state == "released" or (child.over and node.generation > generation):
            return None, node.generation == generation
        if node.state != "blocked" and (child.over or node.state not in ("skipped", "cancelled")):
            return None, False
        settlement = Settlement(tx, [dag], self._settings, self._context.home(shard))
        if node.state == "blocked":
            [waiting] = await store.dags.nodes_by_no(tx, [node.no])
            settlement.consider(waiting)
            if waiting.state == "released":
                await settlement.run()
                return settlement, node.generation == generation
            if waiting.state == "blocked":
                await store.subdags.set_generation(tx, node.no, node.generation + 1)
                await store.dags.rename_items(tx, {node.no: ids.new_id(self._context.shards.next().number)})
                settlement.renewed(dag, Ref(node.no, node.generation + 1), "blocked")
        settlement.sends.append(Send(node.no, generation, "stop", child.id, dag.namespace))
        await settlement.run()
        return settlement, False

    def _home(self, child: Dag) -> Shard:
        assert child.parent_dag is not None, "it has a parent"
        home = self._context.shards.get(ids.shard_of(child.parent_dag))
        assert home is not None, "the parent lives where its id says"
        return home


def next_generation(child: Dag) -> Parent:
    """The node's generation that a child takes which is retried by itself."""
    assert child.parent_dag is not None and child.parent_node is not None, "it has a parent"
    return Parent(child.parent_dag, child.parent_node, (child.parent_generation or 0) + 1, child.depth)
