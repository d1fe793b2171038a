"""A failed child DAG that is retried by its own id: the node that it failed for begins its next generation first.

What runs for a node runs only while that is released, and no transaction spans both DAGs. So a retry goes from
above: each level is tried, in a transaction that is rolled back, before anything is written further up; then the
topmost node is released, and so on down to the DAG that was asked for. A crash between two levels leaves a node
that is released, and its `start` row, by which its DAG goes on with all that failed in it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Final, NamedTuple, TypeVar

from services.dag import store
from services.dag.errors import DagCancelling, DagFinished, Managed, NothingToRetry, ParentWaits
from services.dag.model import UNFINISHED, Dag, Parent, Ref, Retry, Send
from services.dag.run import unarchive
from services.dag.run.context import Context
from services.dag.run.decisions import Settlement
from services.dag.store.subdags import ParentNode
from shared import ids
from shared.errors import Unavailable
from shared.ids import ShardNo
from shared.postgres.connections import Transaction
from shared.shards.shard_map import Shard

T = TypeVar("T")


class Above(NamedTuple):
    """What a DAG that failed for a node is to run for now: a generation of the node, in which that is released;
    None where the node succeeded, or its DAG was cancelled. `start` is the row by which it would go on."""

    parent: Parent | None
    start: Send | None = None


NOBODY: Final = Above(None)

# Begins new generations of a locked DAG's nodes, for what is above it (`retry`). Raises NodeFirst.
Begin = Callable[[Transaction, Settlement, Dag, Retry, ShardNo, Above | None], Awaitable[None]]

# A transaction that retries a DAG, for what is above it.
Work = Callable[[Transaction, Above | None], Awaitable[tuple[Settlement | None, T]]]


class NodeFirst(Exception):
    """This DAG has failed for a node, and it was not found out yet what becomes of that."""

    def __init__(self, dag: Dag) -> None:
        super().__init__(dag.id)
        self.dag = dag


class _OnlyTried(Exception):
    """Ends a transaction of which nothing is kept."""


async def take_up(tx: Transaction, dag: Dag, above: Above | None) -> None:
    """Let a locked DAG that is retried run for what is above it; one that has not failed for a node is left.

    Raises:
        NodeFirst: that was not asked for yet.
        Unavailable: the DAG has ended anew meanwhile.
    """
    if dag.state != "failed" or dag.verdict is not None or dag.parent_dag is None:
        return
    if above is None:
        raise NodeFirst(dag)
    if above.parent is None:
        return
    if (dag.parent_generation or 0) >= above.parent.generation:
        raise Unavailable("the DAG was retried, and has ended again, meanwhile; try again", retry_after_s=0.1)
    await store.subdags.adopt(tx, dag, above.parent)


class SubDagRetries:
    """Takes the nodes of child DAGs into their next generations."""

    def __init__(self, context: Context, begin: Begin) -> None:
        self._context = context
        self._settings = context.settings
        self._begin = begin

    async def from_above(self, shard: Shard, work: Work[T]) -> T:
        """Run a transaction that retries a DAG; where that has failed for a node, once the node is released again.

        Raises:
            ParentWaits: the node would have to wait.
            DagCancelling: a cancel of the parent, or of the node, has not been confirmed yet.
            DagReopening: an earlier retry of the parent is still finding out what runs again.
            DagThawing, Unavailable: the parent cannot be written now.
        """

        async def only_try(tx: Transaction) -> tuple[None, None]:
            await work(tx, NOBODY)
            raise _OnlyTried

        try:
            return await unarchive.unarchived(self._context, shard, lambda tx: work(tx, None))
        except NodeFirst as found:
            with suppress(_OnlyTried):
                await unarchive.unarchived(self._context, shard, only_try)
            async with self._node_first(found.dag) as above:
                return await unarchive.unarchived(self._context, shard, lambda tx: work(tx, above))

    @asynccontextmanager
    async def _node_first(self, child: Dag) -> AsyncIterator[Above]:
        """While this is entered, the node's `start` row is not on its way. It is sent where this is left by an
        exception: the child goes on by it."""
        home = self._home(child)
        queue_shard = await self._context.queue_shard(home)
        try:
            above = await self.from_above(
                home, partial(self._take, child=child, home=home, queue_shard=queue_shard)
            )
        except (DagFinished, NothingToRetry, Managed):
            above = NOBODY
        start = [above.start] if above.start is not None else []
        try:
            yield above
        except BaseException:
            self._context.dispatch(home, start)
            raise
        self._context.forget(home, start, [])

    async def _take(
        self, tx: Transaction, above: Above | None, *, child: Dag, home: Shard, queue_shard: ShardNo
    ) -> tuple[Settlement | None, Above]:
        found = await self._locked(tx, child)
        if found is None:
            return None, NOBODY
        dag, node = found
        settlement = Settlement(tx, [dag], self._settings, self._context.home(home))
        if node.state not in UNFINISHED:
            await self._begin(tx, settlement, dag, Retry([node.key]), queue_shard, above)
        elif dag.state == "cancelling" or node.by_call:
            raise DagCancelling(f"a cancel of node {node.key!r} of DAG {dag.id}, its parent, is not confirmed yet")
        elif node.state == "released" and node.generation == child.parent_generation:
            # It has not been told of the child's end yet, and need not be.
            await store.subdags.set_generation(tx, node.no, node.generation + 1)
            settlement.renewed(dag, Ref(node.no, node.generation + 1))
            settlement.sends.append(Send(node.no, node.generation + 1, "start", child.id, dag.namespace))
        await settlement.run()
        now = await store.subdags.node_of_child(tx, dag, node.key)
        if now is None or now.item_id != child.id:
            raise NothingToRetry("another DAG is to be made in the node's place")
        if now.state != "released":
            raise ParentWaits(
                f"node {node.key!r} of DAG {dag.id}, for which it failed, would have to wait now: retry that "
                "node, or what it waits for, there; this DAG goes on when the node is released"
            )
        start = next((each for each in settlement.sends if (each.no, each.action) == (now.no, "start")), None)
        if start is not None:
            # The row stays, should this process end. Sent now, it would let the child go on before the call does.
            settlement.sends.remove(start)
        return settlement, Above(Parent(dag.id, node.key, now.generation, child.depth), start)

    async def _locked(self, tx: Transaction, child: Dag) -> tuple[Dag, ParentNode] | None:
        """The parent, and the node, if the child is in its place."""
        assert child.parent_dag is not None and child.parent_node is not None, "it has a parent"
        dags = await store.dags.lock_dags(tx, [child.parent_dag])
        if not dags:
            return None
        await unarchive.check(tx, dags[0])
        node = await store.subdags.node_of_child(tx, dags[0], child.parent_node)
        return None if node is None or node.item_id != child.id else (dags[0], node)

    def _home(self, child: Dag) -> Shard:
        assert child.parent_dag is not None, "it has a parent"
        home = self._context.shards.get(ids.shard_of(child.parent_dag))
        assert home is not None, "the parent lives where its id says"
        return home
