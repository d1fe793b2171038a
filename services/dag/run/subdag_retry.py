"""A child DAG that has ended and is retried by its own id: the node that it ran for begins anew first.

What runs for a node runs only while that is released, and no transaction spans both DAGs. So a retry goes from
above: each level is tried, in a transaction that is rolled back, before anything is written further up; then the
topmost node is released, with how its DAG is to be retried in its `start` row, and so on down to the DAG that was
asked for. From the first commit on those rows alone bring it to its end: the call goes ahead of them, to answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
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
from shared.errors import ServiceError, Unavailable
from shared.ids import ShardNo
from shared.postgres.connections import Transaction
from shared.shards.shard_map import Shard

T = TypeVar("T")


class Above(NamedTuple):
    """The generation of a node, released in it, that a DAG is to run for; None where its parent is gone."""

    parent: Parent | None


NOBODY: Final = Above(None)

# A transaction that retries a DAG for what is above it, None where that was not asked for yet.
Work = Callable[[Transaction, Above | None], Awaitable[tuple[Settlement | None, T]]]
# Begins new generations of a locked DAG's nodes (`retry`).
Begin = Callable[[Transaction, Settlement, Dag, Retry, ShardNo, Above | None], Awaitable[None]]


class NodeFirst(Exception):
    """This DAG has ended, and its node is to begin its next generation before it runs again."""

    def __init__(self, dag: Dag) -> None:
        super().__init__(dag.id)
        self.dag = dag


class _OnlyTried(Exception):
    """Ends a transaction of which nothing is kept."""


def has_gone_on(dag: Dag, above: Above | None) -> bool:
    """Whether a locked DAG runs already for what is above it, or has."""
    parent = None if above is None else above.parent
    return parent is not None and parent.generation <= (dag.parent_generation or 0)


async def take_up(tx: Transaction, dag: Dag, above: Above | None) -> None:
    """Let a locked DAG, which had ended and is begun anew, run for what is above it.

    Raises:
        NodeFirst: that was not asked for yet.
    """
    if dag.parent_dag is None:
        return
    if above is None:
        raise NodeFirst(dag)
    if above.parent is not None:
        await store.subdags.adopt(tx, dag, above.parent)


class SubDagRetries:
    """Takes the nodes of child DAGs into their next generations."""

    def __init__(self, context: Context, begin: Begin) -> None:
        self._context = context
        self._settings = context.settings
        self._begin = begin

    async def from_above(self, shard: Shard, wanted: Retry, work: Work[T]) -> T:
        """Run a transaction that retries a DAG, once its node is released if it had ended for one.

        Raises:
            ParentWaits: the node would have to wait.
            DagCancelling: a cancel of the parent, or of the node, has not been confirmed yet.
            DagFinished: the parent was cancelled, or the node has gone on without this DAG.
            DagReopening: an earlier retry of the parent is still finding out what runs again.
            DagThawing, Unavailable: the parent cannot be written now, or lets the DAG go on just now.
        """

        async def only_try(tx: Transaction) -> tuple[None, None]:
            await work(tx, NOBODY)
            raise _OnlyTried

        try:
            return await unarchive.unarchived(self._context, shard, lambda tx: work(tx, None))
        except NodeFirst as found:
            with suppress(_OnlyTried):
                await unarchive.unarchived(self._context, shard, only_try)
            above = await self._node_first(found.dag, wanted)
            try:
                return await unarchive.unarchived(self._context, shard, lambda tx: work(tx, above))
            except ServiceError as error:
                if above.parent is not None:
                    error.outcome = "unknown"  # by the row of its node it may be done yet
                raise

    async def _node_first(self, child: Dag, wanted: Retry) -> Above:
        """Release the node of a DAG that is to be retried so."""
        assert child.parent_dag is not None and child.parent_node is not None, "it has a parent"
        home = self._context.shards.get(ids.shard_of(child.parent_dag))
        assert home is not None, "the parent lives where its id says"
        queue_shard = await self._context.queue_shard(home)
        take = partial(self._take, child=child, wanted=wanted, home=home, queue_shard=queue_shard)
        try:
            return await self.from_above(home, Retry([child.parent_node], below=wanted), take)
        except DagFinished as error:
            raise DagFinished(
                f"of its parent, {child.parent_dag}: {error.detail}", outcome=error.outcome
            ) from error
        except DagCancelling as error:
            raise DagCancelling(
                f"of its parent, {child.parent_dag}: {error.detail}", outcome=error.outcome
            ) from error
        except (NothingToRetry, Managed) as error:
            raise DagFinished(
                f"node {child.parent_node!r} of DAG {child.parent_dag}, for which it ran, has gone on without it: "
                "retry that DAG `from` this node",
                outcome=error.outcome,
            ) from error

    async def _take(
        self,
        tx: Transaction,
        above: Above | None,
        *,
        child: Dag,
        wanted: Retry,
        home: Shard,
        queue_shard: ShardNo,
    ) -> tuple[Settlement | None, Above]:
        dags = await store.dags.lock_dags(tx, [child.parent_dag or ""])
        if not dags:
            return None, NOBODY
        [dag] = dags
        await unarchive.check(tx, dag)
        node = await _node_of(tx, dag, child)
        if has_gone_on(dag, above):
            return None, _begun(dag, node, child)
        generation = node.generation + 1
        settlement = Settlement(tx, dags, self._settings, self._context.home(home))
        if node.state not in UNFINISHED:
            await self._begin(tx, settlement, dag, Retry([node.key], below=wanted), queue_shard, above)
        elif dag.state == "cancelling" or node.by_call:
            raise DagCancelling(f"a cancel of node {node.key!r} is not confirmed yet")
        elif node.generation > (child.parent_generation or 0):
            if above is None and node.state == "released":
                raise Unavailable("the DAG is about to go on with its node; try again", retry_after_s=0.1)
        elif node.state == "released":
            # It has not been told of the child's end yet, and need not be.
            await store.subdags.set_generation(tx, node.no, generation)
            settlement.renewed(dag, Ref(node.no, generation))
            settlement.sends.append(Send(node.no, generation, "start", child.id, dag.namespace))
            settlement.retries[node.no] = wanted
        await settlement.run()
        node = await _node_of(tx, dag, child)
        if node.state != "released":
            raise ParentWaits(
                f"node {node.key!r} of DAG {dag.id}, for which it ran, would not be released now: retry that "
                "node, or what it waits for, there; this DAG goes on when the node is released"
            )
        return settlement, Above(Parent(dag.id, node.key, node.generation, child.depth))


def _begun(dag: Dag, node: ParentNode, child: Dag) -> Above:
    """The generation that a node has begun by the row of what is above. It may have ended since, as its child did:
    what has come of it is for nobody to begin once more."""
    generation = (child.parent_generation or 0) + 1
    is_there = node.state == "released" or node.state not in UNFINISHED
    if node.generation < generation or (node.generation == generation and not is_there):
        raise Unavailable(f"DAG {dag.id} has gone on meanwhile; look at it", retry_after_s=0.1)
    return Above(Parent(dag.id, node.key, generation, child.depth))


async def _node_of(tx: Transaction, dag: Dag, child: Dag) -> ParentNode:
    assert child.parent_node is not None, "it has a parent"
    node = await store.subdags.node_of_child(tx, dag, child.parent_node)
    if node is None or node.item_id != child.id:
        raise DagFinished(f"another DAG has its place at node {child.parent_node!r}, or is to be made there")
    return node
