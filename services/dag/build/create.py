"""Creating DAGs and adding to them.

One transaction writes what is wanted and decides it; then the queue is given disabled items of all nodes that
wait. What stops in between is driven forward, by the same call repeated or by the sweeper (see
`queue_registration`).
"""

from __future__ import annotations

import zlib
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeVar

from services.dag import queue_items, store
from services.dag.build import addition, content_digest, create_batch, expand, insertion, met_edges
from services.dag.build.add_batch import Growth
from services.dag.build.addition import Existing, Plan
from services.dag.build.expand import Expansion
from services.dag.build.queue_registration import Given, QueueRegistrar, Ungiven, unfinished_error
from services.dag.build.quotas import Quotas
from services.dag.build.subdag_spec import SubSpec, given
from services.dag.build.topological_orders import Orders, OrderStale
from services.dag.errors import LimitExceeded, QueueUnavailable, Upgrading, managed_error
from services.dag.graph import Order
from services.dag.model import (
    Added,
    Addition,
    Dag,
    Item,
    NewDag,
    NewEdge,
    NewNode,
    NodeNo,
    Parent,
    Resolved,
)
from services.dag.run import unarchive
from services.dag.run.context import Context, own
from services.dag.run.decisions import Settlement
from services.dag.store.create import Columns
from services.dag.store.dags import NodeRow
from shared import ids
from shared.beside import beside
from shared.crash import crash_point
from shared.errors import ShardUnavailable, Unavailable, something_done
from shared.fallback import Fallback
from shared.ids import ShardNo
from shared.postgres.connections import Transaction
from shared.shards.map_file import SLOTS
from shared.shards.shard_map import Shard

T = TypeVar("T")
_ATTEMPTS_MAX = 8


class Created(NamedTuple):
    """A DAG, whether the call has made it, and whether it was made of what the call asks for."""

    dag: Dag
    made: bool
    same: bool


class Written(NamedTuple):
    """What a transaction did. The queue is still to be given the items of those `rows` that wait there. Of a
    DAG that was there, `same`: whether it was made of what the call asks for."""

    dag: Dag
    made: bool
    nodes: dict[str, Added]
    rows: Sequence[NodeRow] = ()
    order: Order | None = None
    same: bool = True

    @property
    def addition(self) -> Addition:
        """What was added; there is something."""
        return Addition(self.rows[0].no, self.rows[-1].no)


class Builder:
    """Creates DAGs and adds nodes and edges."""

    def __init__(self, context: Context, registrar: QueueRegistrar) -> None:
        self._context = context
        self._registrar = registrar
        self._settings = context.settings
        self._orders = Orders(context.settings.order_bytes_max)
        self._batches = create_batch.CreateBatches(context, registrar)
        self._growth = Growth(context, registrar, self._orders)
        self.quotas = Quotas(context.shards, context.settings, context.clock)

    async def create(
        self, namespace: str, new: NewDag, nodes: Sequence[NewNode], dependencies: Sequence[NewEdge]
    ) -> Created:
        """Make a DAG, or find the one of the same key."""
        keys, fingerprints = [node.key for node in nodes], [node.fingerprint for node in nodes]
        new = content_digest.marked(new, keys, fingerprints, dependencies)

        def make(shard: Shard) -> Awaitable[Created]:
            return self._create(shard, ids.new_id(shard.number), namespace, new, nodes, dependencies)

        return await self._placed(namespace, new.key, make)

    async def create_plain(self, namespace: str, new: NewDag, columns: Columns) -> Dag | Fallback:
        """Make a DAG of the common shape; a fallback when `create` is to say how it stands with that."""
        new = content_digest.marked(new, columns.keys, columns.fingerprints, ())

        async def make(shard: Shard) -> Dag | Fallback:
            queue_shard = await self._queue_shard(shard)
            await self.quotas.look(namespace)
            if self.quotas.is_limited(namespace):
                return Fallback("quota")
            batch = create_batch.lay_out(ids.new_id(shard.number), namespace, new, columns, queue_shard)
            return await self._batches.make(shard, batch) or Fallback("key_taken")

        return await self._placed(namespace, new.key, make)

    async def add_plain(
        self, namespace: str, dag_id: str, columns: Columns, above: Sequence[str]
    ) -> list[Added] | Fallback:
        """Add nodes of the common shape; a fallback when `add` is to say how it stands with that."""
        shard, dag_id = self._context.shard_of(dag_id)
        queue_shard = await self._queue_shard(shard)
        await self.quotas.look(namespace)
        if self.quotas.is_limited(namespace):
            return Fallback("quota")
        async with self._orders.gate(dag_id):
            batch = await self._growth.write(shard, dag_id, namespace, columns, above, queue_shard)
        return batch if isinstance(batch, Fallback) else await self._growth.give(shard, batch)

    async def _placed(self, namespace: str, key: str | None, make: Callable[[Shard], Awaitable[T]]) -> T:
        """Make a DAG where its key has its home; without a key on the next shard, or on one after it where that
        cannot be reached."""
        shards = self._context.shards
        if key is not None:
            return await make(shards.of_slot(zlib.crc32(f"{namespace}/{key}".encode()) % SLOTS))
        for _ in shards.writable[1:]:
            try:
                return await make(shards.next())
            except ShardUnavailable as error:
                if error.outcome != "none":
                    raise
        return await make(shards.next())

    async def make_within(
        self,
        tx: Transaction,
        shard: Shard,
        dag_id: str,
        namespace: str,
        made_of: SubSpec,
        facts: Sequence[Resolved],
        queue_shard: ShardNo,
        parent: Parent | None = None,
        *,
        paused: bool = False,
    ) -> tuple[Settlement | None, Written]:
        """Make a DAG of its own, or of a parent, some of whose externals are resolved, in a transaction of the
        caller's, who settles it and then calls `give_made`."""
        if parent is None:
            self.quotas.add(tx, namespace, dags=1)
        dag = await store.dags.insert_dag(tx, dag_id, namespace, made_of.dag, parent)
        assert dag is not None, "its id is new"
        if paused:
            dag.paused = True
            await store.dags.set_flags(tx, dag)
        if facts:
            await store.edges.resolve_externals(tx, dag.no, facts)
            dag.externals += len(facts)
        edges = await self._edges(made_of.nodes, made_of.dependencies)
        return await self._write(tx, shard, dag, made_of.nodes, edges, queue_shard)

    async def give_made(self, shard: Shard, made: Written) -> None:
        """Give the queue what waits of a DAG that `make_within` has made.

        Raises:
            AddUnfinished: it will be given that by and by.
        """
        await self._give(shard, made)

    async def create_sub(
        self, shard: Shard, dag_id: str, namespace: str, spec: SubSpec, parent: Parent
    ) -> Created:
        """Make the DAG that runs in a node's place, under the id that the node has for it, or find it."""
        return await self._create(shard, dag_id, namespace, spec.dag, spec.nodes, spec.dependencies, parent)

    async def _create(
        self,
        shard: Shard,
        dag_id: str,
        namespace: str,
        new: NewDag,
        nodes: Sequence[NewNode],
        dependencies: Sequence[NewEdge],
        parent: Parent | None = None,
    ) -> Created:
        edges = await self._edges(nodes, dependencies)
        queue_shard = await self._queue_shard(shard) if nodes else ShardNo(0)
        await self.quotas.look(namespace)
        if parent is None and not self.quotas.is_limited(namespace) and not self._is_large(edges):
            batch = create_batch.plan(dag_id, namespace, new, nodes, edges, queue_shard, self._settings)
            if isinstance(batch, Fallback):
                batch.counted("dag_create_whole")
            elif (made := await self._batches.make(shard, batch)) is not None:
                return Created(made, True, True)

        async def work(tx: Transaction) -> tuple[Settlement | None, Written | list[Addition]]:
            if new.unique and new.key is not None:
                await store.dags.leave_key(tx, namespace, new.key)
            dag = await store.dags.insert_dag(tx, dag_id, namespace, new, parent)
            if dag is None:
                assert new.key is not None or parent is not None, "nothing else can be taken"
                found = await store.dags.find_dag(tx, namespace, key=new.key, dag_id=dag_id)
                if found is None:
                    return None, []  # it was dropped meanwhile, and is made the next time
                unfinished = await store.duties.adding_of(tx, found.no) if nodes else []
                # A call that is repeated is answered when the queue has its nodes; what others add is theirs.
                own_nodes = [each for each in unfinished if each.first_no == found.node_no(0)]
                same = new.content == await store.dags.content_of(tx, found.no)
                return None, own_nodes or Written(found, False, {}, same=same)
            if parent is None:
                self.quotas.add(tx, namespace, dags=1)
            else:
                await self._pass_on(tx, dag, nodes, parent)
            return await self._write(tx, shard, dag, nodes, edges, queue_shard)

        for _ in range(_ATTEMPTS_MAX):
            written = await self._context.settle(shard, work)
            if isinstance(written, Written):
                break
            for unfinished in written:
                await self._registrar.drive(shard, unfinished)
        else:
            raise unfinished_error()
        if await self._give(shard, written):
            return Created(written.dag, written.made, written.same)
        with something_done():
            dag = await store.reads.get_dag(shard, written.dag.id, namespace) or written.dag
        return Created(dag, written.made, written.same)

    async def add(
        self,
        namespace: str,
        dag_id: str,
        nodes: Sequence[NewNode],
        dependencies: Sequence[NewEdge],
        expansion: Expansion | None = None,
    ) -> list[Added]:
        """Add nodes and edges, all or nothing; how the nodes stand then, in the call's order. With an
        `expansion` the nodes are children of that one.

        Raises:
            NodeNotRunning: the node that is to be expanded does not run.
            NotFound, NodeExists, NodeReleased, DagFinished, Cycle, UnknownNode, LimitExceeded: nothing was
                done.
            AddUnfinished: the nodes are written, and are being added by and by.
        """
        shard, dag_id = self._context.shard_of(dag_id)
        edges = await self._edges(nodes, dependencies)
        queue_shard = await self._queue_shard(shard) if nodes else ShardNo(0)
        await self.quotas.look(namespace)

        async def work(tx: Transaction) -> tuple[Settlement | None, Written]:
            dag = own(await store.dags.lock_dags(tx, [dag_id]), namespace)
            if dag.workflow is not None:
                raise managed_error()
            await unarchive.check(tx, dag)
            return await self._write(tx, shard, dag, nodes, edges, queue_shard, expansion)

        written = await self._write_until_clear(shard, dag_id, work)
        found = written.nodes
        if not await self._give(shard, written):
            found |= await self._registrar.look_again(shard, written.addition)
        return [found[node.key] for node in nodes]

    async def _give(self, shard: Shard, written: Written) -> bool:
        """Give the queue what waits of an add; False when others may have changed how its nodes stand.

        Raises:
            AddUnfinished
        """
        dag = written.dag
        waiting = [row for row in written.rows if row.enqueued]
        if not waiting:
            return True
        crash_point("after_add")
        texts = [
            queue_items.item_text(
                Item(dag.id, row.new.key, row.new.item),
                row.item_id,
                1,
                shard.number,
                disabled=True,
                lift=dag.started_lift,
            )
            for row in waiting
        ]
        given = Given(ids.shard_of(waiting[0].item_id), texts)
        return await self._registrar.give(shard, dag, written.addition, given)

    async def _pass_on(self, tx: Transaction, dag: Dag, nodes: Sequence[NewNode], parent: Parent) -> None:
        """What the parent node was given is an external of those nodes that ask for it."""
        facts = [Resolved(key, name, parent.inputs, False) for key, name in given(nodes)]
        if facts:
            await store.edges.resolve_externals(tx, dag.no, facts)
            dag.externals += len(facts)

    async def _write_until_clear(
        self,
        shard: Shard,
        dag_id: str,
        work: Callable[[Transaction], Awaitable[tuple[Settlement | None, Written]]],
    ) -> Written:
        refusal: Unavailable = unfinished_error()
        for _ in range(_ATTEMPTS_MAX):
            try:
                async with self._orders.gate(dag_id):
                    written = await self._settle_with_order(shard, work)
                    if written.order is not None:
                        # Only what is committed may be trusted.
                        written.order.version = written.dag.structure_version
                    return written
            except Ungiven as ungiven:
                for unfinished in ungiven.additions:
                    await self._registrar.drive(shard, unfinished)
                refusal = unfinished_error()
            except unarchive.Archived as archived:
                await unarchive.bring_back(self._context, shard, archived.dag)
                refusal = unarchive.unarchiving_error()
        raise refusal

    async def _settle_with_order(
        self, shard: Shard, work: Callable[[Transaction], Awaitable[tuple[Settlement | None, Written]]]
    ) -> Written:
        """Run the transaction; where it needs the DAG's order and the one in memory is not it, load that first."""
        for _ in range(_ATTEMPTS_MAX):
            try:
                return await self._context.settle(shard, work)
            except OrderStale as stale:
                await self._orders.load(shard, stale.dag)
        raise ShardUnavailable("the DAG changes too fast to check its edges; try again", retry_after_s=1.0)

    async def _write(
        self,
        tx: Transaction,
        shard: Shard,
        dag: Dag,
        nodes: Sequence[NewNode],
        edges: Sequence[NewEdge],
        queue_shard: ShardNo,
        expansion: Expansion | None = None,
    ) -> tuple[Settlement | None, Written]:
        existing = await self._existing(tx, dag, nodes, edges, expansion)
        known_edges = await self._known_edges(tx, edges, existing)
        is_large = self._is_large(edges)
        adding = await beside(is_large, addition.plan, dag, nodes, edges, existing, known_edges)
        found = {
            key: Added(key, node.item_id, node.state)
            for key, node in existing.nodes.items()
            if key in existing.fingerprints
        }
        if adding.met:
            await met_edges.check(tx, adding.met, existing)
        children: list[str] = []
        if expansion is not None or dag.expanded:
            limit = self._settings.expand_edges_max
            children = await expand.widen(tx, dag, nodes, adding, existing, expansion, limit)
        if adding.empty and not children:
            return None, Written(dag, True, found)
        is_large = self._is_large(adding.edges)
        await beside(is_large, addition.check_limits, dag, adding, existing, self._settings)
        if any(node.timer for node in adding.nodes) and await store.timers.has_older_owner(tx):
            raise Upgrading("an older process owns the shard; send again once it has gone", retry_after_s=1.0)
        if not dag.depth:
            self.quotas.add(tx, dag.namespace, nodes=len(adding.nodes), edges=len(adding.edges))
        await self._check_out_degrees(tx, dag, adding, existing)
        numbers = {key: node.no for key, node in existing.nodes.items()}
        numbers |= {node.key: dag.node_no(dag.next_n + i) for i, node in enumerate(adding.nodes)}
        order = await self._check_cycles(tx, shard, dag, adding, existing, numbers)
        rows = await insertion.insert(self._context, tx, dag, adding, existing, numbers, queue_shard)
        if expansion is not None and children:
            await expand.record(tx, dag, expansion.node, children, numbers)
        settlement = Settlement(tx, [dag], self._settings, self._context.home(shard))
        settlement.changed(dag)
        if adding.cleanups:
            settlement.cleanup_changed(dag)
        settlement.made(dag, (row.no for row in rows))
        if adding.late:
            for node in await store.dags.count_late(tx, addition.late_counts(adding, existing)):
                settlement.consider(node)
        if any(row.enqueued for row in rows):
            await store.duties.insert_adding(tx, Addition(rows[0].no, rows[-1].no))
        found |= {row.new.key: Added(row.new.key, row.item_id, "blocked") for row in rows if row.waits}
        decided = [insertion.node_of(dag, row) for row in rows if not row.waits]
        for node in decided:
            settlement.consider(node)
        await settlement.run()
        found |= {node.key: Added(node.key, node.item_id, node.state) for node in decided}
        if not dag.lifted:
            insertion.attach_items(settlement, dag, rows)
        return settlement, Written(dag, True, found, rows, order)

    async def _existing(
        self,
        tx: Transaction,
        dag: Dag,
        nodes: Sequence[NewNode],
        edges: Sequence[NewEdge],
        expansion: Expansion | None,
    ) -> Existing:
        if dag.next_n == 0:
            return Existing({}, {})
        keys = await beside(self._is_large(edges), addition.named, nodes, edges)
        if expansion is not None:
            keys.append(expansion.node)
        found, fingerprints = await store.dags.nodes_by_key(tx, dag.no, keys)
        # A call that is repeated answers what it answers when the queue has all of it.
        again = [found[node.key].no for node in nodes if node.key in found and found[node.key].state == "blocked"]
        running = await store.duties.adding_of(tx, dag.no) if again else []
        if ungiven := [a for a in running if any(a.first_no <= no <= a.last_no for no in again)]:
            raise Ungiven(ungiven)
        return Existing(found, fingerprints)

    async def _known_edges(
        self, tx: Transaction, edges: Sequence[NewEdge], existing: Existing
    ) -> set[tuple[str, str]]:
        old = await beside(self._is_large(edges), addition.between_old, edges, existing)
        known: set[tuple[str, str]] = set()
        for begin in range(0, len(old), self._settings.edges_at_once_max):
            some = old[begin : begin + self._settings.edges_at_once_max]
            pairs = {(existing.nodes[edge.upstream].no, existing.nodes[edge.downstream].no): edge for edge in some}
            found = await store.edges.existing_edges(tx, list(pairs))
            known |= {(pairs[pair].upstream, pairs[pair].downstream) for pair in found}
        return known

    async def _check_out_degrees(self, tx: Transaction, dag: Dag, adding: Plan, existing: Existing) -> None:
        limit = self._settings.degree_max
        if dag.edges + len(adding.edges) <= limit:
            return
        added = await beside(self._is_large(adding.edges), addition.added_below, adding, existing)
        degrees = await store.edges.out_degrees(tx, list(added), limit) if added else {}
        if any(degrees[no] + count > limit for no, count in added.items()):
            raise LimitExceeded(f"a node would have over {limit} downstreams")

    async def _check_cycles(
        self,
        tx: Transaction,
        shard: Shard,
        dag: Dag,
        adding: Plan,
        existing: Existing,
        numbers: dict[str, NodeNo],
    ) -> Order | None:
        """Refuse edges that would close a cycle; the order that then knows them, if there is one.

        A cycle with old nodes leaves them by one edge of the call and comes back by another, so most calls
        need no order at all.
        """
        order = self._orders.fresh(shard, dag)
        if order is None and dag.edges == 0 and adding.late:
            order = self._orders.empty(shard, dag)
        if order is None:
            leaves_old = await beside(self._is_large(adding.edges), addition.leaves_old, adding, existing)
            if adding.late and leaves_old:
                raise OrderStale(dag)
            return None
        order.grow(dag.next_n + len(adding.nodes))
        order.version = None
        edges = await beside(self._is_large(adding.edges), addition.numbered, adding.edges, numbers)
        cycle = await self._orders.insert(order, edges)
        if cycle:
            order.version = dag.structure_version
            named = {no: key for key, no in numbers.items()}
            nos = [dag.node_no(n) for n in cycle]
            named |= {node.no: node.key for node in await store.dags.nodes_by_no(tx, nos)}
            raise addition.cycle_error([named[no] for no in nos])
        return order

    def _is_large(self, edges: Sequence[NewEdge]) -> bool:
        return len(edges) > self._settings.edges_at_once_max

    async def _edges(self, nodes: Sequence[NewNode], dependencies: Sequence[NewEdge]) -> list[NewEdge]:
        """All edges that a call names, each once."""
        count = sum(len(node.upstream) for node in nodes) + len(dependencies)
        is_large = count > self._settings.edges_at_once_max
        return await beside(is_large, addition.edges_of, nodes, dependencies)

    async def _queue_shard(self, shard: Shard) -> ShardNo:
        """A queue shard for the items of one call, which keep their order that way."""
        try:
            return await self._context.queue_shard(shard)
        except QueueUnavailable as error:
            raise QueueUnavailable(error.detail, retry_after_s=1.0) from error
