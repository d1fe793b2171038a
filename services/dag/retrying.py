"""Retry: failed nodes, and what was skipped or cancelled because of them, run again in a new generation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from services.dag import keeping, store, store_duties, store_edges, store_subdags
from services.dag.activating import Activator, Undecided, unfinished_error
from services.dag.context import Context, own
from services.dag.errors import DagCancelling, DagFinished, NothingToRetry, UnknownNode
from services.dag.gateway import pick_shard
from services.dag.model import Dag, Parent, Send
from services.dag.settling import Settlement
from services.dag.store import Replaced
from shared import ids
from shared.errors import FieldError
from shared.pg import Transaction

T = TypeVar("T")

_ATTEMPTS_MAX = 8


class Retrier:
    """Begins new generations. One transaction, in chunks: half a retry would be a DAG nobody asked for."""

    def __init__(self, context: Context, activator: Activator) -> None:
        self._context = context
        self._settings = context.settings
        self._activator = activator

    async def retry(
        self, namespace: str, dag_id: str, keys: Sequence[str] | None, *, parent: Parent | None = None
    ) -> Dag:
        """Retry these nodes, or all that failed. With `parent` only if the DAG has not run for that generation
        of its node yet, which it does from then on.

        Raises:
            NothingToRetry: none of them failed.
            DagCancelling: a cancel has not been confirmed yet.
            DagFinished: the DAG was cancelled by call.
            UnknownNode: a key that the DAG does not have.
        """
        shard, dag_id = self._context.shard_of(dag_id)
        queue_shards = await self._context.queue.shards()

        async def work(tx: Transaction) -> tuple[Settlement | None, Dag]:
            dag = own(await store.lock_dags(tx, [dag_id]), namespace)
            if parent is not None:
                if (dag.parent_generation or 0) >= parent.generation:
                    return None, dag
                await store_subdags.adopt(tx, dag, parent)
            if dag.state == "cancelling":
                raise DagCancelling("a cancel of the DAG has not been confirmed yet")
            if dag.state == "cancelled":
                raise DagFinished("the DAG was cancelled; create another one")
            await keeping.check(tx, dag)
            roots = await self._roots(tx, dag, keys)
            reach = await store.retry_reach(tx, roots)
            settlement = Settlement(tx, [dag], self._settings)
            await self._reopen(tx, settlement, dag, reach, queue_shards)
            await settlement.run()
            return settlement, dag

        for _ in range(_ATTEMPTS_MAX):
            try:
                return await self._context.settle(shard, work)
            except Undecided as undecided:
                for unfinished in undecided.additions:
                    await self._activator.drive(shard, unfinished)
            except keeping.Kept as kept:
                await keeping.thaw(self._context, shard, kept.dag)
        raise unfinished_error()

    async def _roots(self, tx: Transaction, dag: Dag, keys: Sequence[str] | None) -> list[int]:
        by_policy = dag.over and dag.cancel_cause in ("failure", "deadline")
        states = ["cancelled"] if keys is not None else ["failed", "cancelled"] if by_policy else ["failed"]
        roots: list[int] = []
        if keys is not None:
            roots = await self._named(tx, dag, keys)
            if not roots:
                raise NothingToRetry("none of these nodes failed")
        if keys is None or by_policy:
            first_no = dag.node_no(0)
            for no in range(first_no, dag.last_no + 1, self._settings.list_scan_nodes_max):
                last_no = no + self._settings.list_scan_nodes_max - 1
                roots += await store.retry_roots(tx, no, last_no, states)
        if not roots:
            raise NothingToRetry("no node of the DAG failed")
        return sorted(set(roots))

    async def _named(self, tx: Transaction, dag: Dag, keys: Sequence[str]) -> list[int]:
        found, _ = await store.nodes_by_key(tx, dag.no, dict.fromkeys(keys))
        unknown = [i for i, key in enumerate(keys) if key not in found]
        if unknown:
            errors = [FieldError(f"/nodes/{i}", "there is no node with this key") for i in unknown[:20]]
            raise UnknownNode("a key names no node of the DAG", errors=errors)
        if any(node.state == "intent" for node in found.values()):
            raise Undecided(await store_duties.adding_of(tx, dag.no))
        return [node.no for node in found.values() if node.state in ("failed", "cancelled")]

    async def _reopen(
        self,
        tx: Transaction,
        settlement: Settlement,
        dag: Dag,
        nos: Sequence[int],
        queue_shards: Sequence[int],
    ) -> None:
        await store.reopen_dag(tx, dag)
        settlement.restart(dag)
        subs: list[Replaced] = []
        for chunk in self._chunks(nos):
            await store_duties.drop_sends(tx, chunk)
            await store_duties.delete_spread(tx, chunk)
            await store.retry_externals(tx, dag.no, chunk)
            queue_shard = pick_shard(queue_shards)
            for old in await store.retry_nodes(tx, {no: ids.new_id(queue_shard) for no in chunk}):
                settlement.reopened(dag, old)
                if old.sub:
                    subs.append(old)
                elif old.made:
                    settlement.sends.append(Send(old.no, old.generation, "cancel", old.item_id, dag.namespace))
        await self._renew_subs(tx, settlement, dag, subs)
        # Only now does every upstream stand as it will; what it stood as before is counted out.
        touched = set(nos)
        for chunk in self._chunks(nos):
            touched.update(await store_edges.open_children(tx, chunk))
        for chunk in self._chunks(sorted(touched)):
            await store_edges.recount_edges(tx, chunk)
            for node in await store.nodes_by_no(tx, chunk):
                settlement.consider(node)

    async def _renew_subs(
        self, tx: Transaction, settlement: Settlement, dag: Dag, subs: Sequence[Replaced]
    ) -> None:
        """A sub-DAG that failed goes on from where it failed; in any other's place another one is made."""
        others = [old for old in subs if old.was != "failed"]
        if others:
            new_ids = {old.no: ids.new_id(self._context.shards.next().number) for old in others}
            await store.rename_items(tx, new_ids)
        for old in others:
            if old.was == "released":
                settlement.sends.append(Send(old.no, old.generation, "stop", old.item_id, dag.namespace))

    def _chunks(self, nos: Sequence[T]) -> Iterator[Sequence[T]]:
        size = self._settings.retry_chunk_nodes
        return (nos[start : start + size] for start in range(0, len(nos), size))
