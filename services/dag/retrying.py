"""Retry: nodes run again, each in a new generation.

By default these are the failed ones and what was skipped or cancelled because of them; a caller may name
nodes from which on everything below runs again, what succeeded too, or have all of the DAG run again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from services.dag import cleaning, items, keeping, store, store_duties, store_edges, store_subdags
from services.dag.activating import Activator, Undecided, unfinished_error
from services.dag.context import Context, own
from services.dag.errors import DagCancelling, DagFinished, LimitExceeded, NothingToRetry, UnknownNode
from services.dag.gateway import pick_shard
from services.dag.model import Dag, Parent, Retry, Send
from services.dag.settling import Settlement
from services.dag.store import Replaced
from shared import ids
from shared.errors import FieldError, Invalid, Unavailable, pointer_to
from shared.pg import Transaction

T = TypeVar("T")

_ATTEMPTS_MAX = 8
_SPARED = ("skipped", "cancelled")
_ENDED = ("succeeded", "failed", *_SPARED)
_BEGUN = (*_ENDED, "released")


class Retrier:
    """Begins new generations. One transaction, in chunks: half a retry would be a DAG nobody asked for."""

    def __init__(self, context: Context, activator: Activator) -> None:
        self._context = context
        self._settings = context.settings
        self._activator = activator

    async def retry(self, namespace: str, dag_id: str, wanted: Retry, *, parent: Parent | None = None) -> Dag:
        """Retry nodes. With `parent` only if the DAG has not run for that generation of its node yet, which it
        does from then on.

        Raises:
            NothingToRetry: none of them failed, or has ended.
            DagCancelling: a cancel has not been confirmed yet.
            DagFinished: the DAG was cancelled by call.
            UnknownNode: a key that the DAG does not have.
            LimitExceeded: more nodes than one retry may run again.
            Invalid: a payload for a node that would not run again.
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
            if dag.cleanup_phase and not dag.over:
                raise DagCancelling("the DAG is cleaning up; retry it when it has ended")
            await keeping.check(tx, dag)
            nos = await cleaning.widen_retry(tx, dag, await self._wanted(tx, dag, wanted))
            await self._change_payloads(tx, dag, set(nos), wanted.payloads)
            settlement = Settlement(tx, [dag], self._settings)
            if dag.cleanups:
                settlement.cleanup_changed(dag)
            await self._reopen(tx, settlement, dag, nos, queue_shards)
            await settlement.run()
            return settlement, dag

        refusal: Unavailable = unfinished_error()
        for _ in range(_ATTEMPTS_MAX):
            try:
                return await self._context.settle(shard, work)
            except Undecided as undecided:
                for unfinished in undecided.additions:
                    await self._activator.drive(shard, unfinished)
                refusal = unfinished_error()
            except keeping.Kept as kept:
                await keeping.thaw(self._context, shard, kept.dag)
                refusal = keeping.thawing_error()
        raise refusal

    async def _wanted(self, tx: Transaction, dag: Dag, wanted: Retry) -> list[int]:
        """All nodes that are to run again, ascending."""
        if wanted.everything:
            found = set(await self._all_in(tx, dag, _BEGUN, by_call_too=True))
        elif wanted.down_from is not None:
            roots = await self._named(tx, dag, wanted.down_from, "/from", _ENDED)
            found = await self._below(tx, roots, _BEGUN)
        elif wanted.nodes is not None:
            roots = await self._named(tx, dag, wanted.nodes, "/nodes", ("failed", "cancelled"))
            found = await self._below(tx, roots, _SPARED)
        else:
            found = await self._below(tx, await self._all_in(tx, dag, ["failed"]), _SPARED)
        by_policy = dag.over and dag.cancel_cause in ("failure", "deadline")
        if by_policy and (found or not (wanted.nodes or wanted.down_from)):
            # What failure or a deadline cancelled comes back with what is retried.
            found |= await self._below(tx, await self._all_in(tx, dag, ["cancelled"]), _SPARED)
        if not found:
            raise NothingToRetry("none of these nodes failed" if wanted.nodes else "there is nothing to run again")
        if len(found) > self._settings.retry_nodes_max:
            limit = self._settings.retry_nodes_max
            raise LimitExceeded(f"over {limit} nodes would run again; name some of them, a part at a time")
        return sorted(found)

    async def _all_in(
        self, tx: Transaction, dag: Dag, states: Sequence[str], *, by_call_too: bool = False
    ) -> list[int]:
        found: list[int] = []
        step = self._settings.list_scan_nodes_max
        for no in range(dag.node_no(0), dag.last_no + 1, step):
            found += await store.retry_roots(tx, no, no + step - 1, states, by_call_too=by_call_too)
            if len(found) > self._settings.retry_nodes_max:
                break
        return found

    async def _below(self, tx: Transaction, roots: Sequence[int], states: Sequence[str]) -> set[int]:
        return await store.retry_reach(tx, roots, states, self._settings.retry_nodes_max + 1) if roots else set()

    async def _named(
        self, tx: Transaction, dag: Dag, keys: Sequence[str], pointer: str, states: Sequence[str]
    ) -> list[int]:
        """Those of the nodes of these keys that are in one of `states`."""
        found, _ = await store.nodes_by_key(tx, dag.no, dict.fromkeys(keys))
        unknown = [i for i, key in enumerate(keys) if key not in found]
        if unknown:
            errors = [FieldError(f"{pointer}/{i}", "there is no node with this key") for i in unknown[:20]]
            raise UnknownNode("a key names no node of the DAG", errors=errors)
        if any(node.state == "intent" for node in found.values()):
            raise Undecided(await store_duties.adding_of(tx, dag.no))
        return [node.no for node in found.values() if node.state in states]

    async def _change_payloads(
        self, tx: Transaction, dag: Dag, nos: set[int], payloads: Mapping[str, str]
    ) -> None:
        if not payloads:
            return
        found, _ = await store.nodes_by_key(tx, dag.no, payloads)
        errors = []
        for key in payloads:
            node = found.get(key)
            if node is None or node.no not in nos or node.sub:
                errors.append(FieldError(pointer_to("payloads", key), "no item of this node would run again"))
        if errors:
            raise Invalid("a payload is for a node that this retry does not run again", errors=errors[:20])
        specs = await store.node_specs(tx, [node.no for node in found.values()])
        for node in found.values():
            specs[node.no] = items.with_payload(specs[node.no], payloads[node.key])
        await store.set_specs(tx, specs)

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
            queue_shard = pick_shard(queue_shards, ids.shard_of(dag.id))
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
