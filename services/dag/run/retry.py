"""Retry: nodes run again, each in a new generation.

By default these are the failed ones and what was skipped or cancelled because of them; a caller may name
nodes from which on everything below runs again, what succeeded too, or have all of the DAG run again. Up to
`retry_at_once_nodes_max` nodes and `retry_at_once_edges_max` edges are one transaction; more are begun here and
continued in steps (`reopening`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from functools import partial
from typing import TypeVar

from services.dag import queue_items, store
from services.dag.errors import (
    DagCancelling,
    DagFinished,
    LimitExceeded,
    NothingToRetry,
    UnknownNode,
    managed_error,
    reopening_error,
)
from services.dag.model import Dag, NodeNo, Parent, Retry, within
from services.dag.run import cleanup, reopening, unarchive
from services.dag.run.context import Context, own
from services.dag.run.decisions import Settlement
from services.dag.run.reopening import BEGUN, ENDED, SPARED
from services.dag.run.subdag_retry import Above, SubDagRetries, has_gone_on, take_up
from services.dag.store.reopening import RetryPlan
from shared.errors import FieldError, Invalid, pointer_to
from shared.ids import ShardNo
from shared.postgres.connections import Transaction
from shared.shards.shard_map import Shard

T = TypeVar("T")

_SPECS_PER_STATEMENT = 50


class Retrier:
    """Begins new generations; nothing runs before all of them are begun."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._settings = context.settings
        self._sub_dags = SubDagRetries(context, self._begin)

    async def retry(self, namespace: str, dag_id: str, wanted: Retry) -> Dag:
        """Retry nodes. The node that an ended DAG ran for goes first (`subdag_retry`).

        Raises:
            NothingToRetry: none of them failed, or has ended.
            DagCancelling: a cancel has not been confirmed yet.
            DagFinished: the DAG, or its parent, was cancelled by call, or its node has gone on without it.
            UnknownNode: a key that the DAG does not have.
            DagReopening: an earlier retry is still finding out what runs again.
            ParentWaits: the DAG ran for a node that would have to wait now.
            LimitExceeded: payloads for nodes that neither failed nor are named, with a retry that goes in steps.
            Invalid: a payload for a node that would not run again.
        """
        shard, dag_id = self._context.shard_of(dag_id)
        queue_shard = await self._context.queue_shard(shard)
        work = partial(self._retried, namespace=namespace, dag_id=dag_id, shard=shard, wanted=wanted)
        return await self._sub_dags.from_above(shard, wanted, partial(work, queue_shard=queue_shard))

    async def go_on(self, namespace: str, dag_id: str, wanted: Retry, parent: Parent) -> None:
        """Retry a DAG whose node has begun a generation that it has not run for yet.

        Raises: as `retry`, but for `ParentWaits`.
        """
        shard, dag_id = self._context.shard_of(dag_id)
        queue_shard = await self._context.queue_shard(shard)
        work = partial(self._retried, namespace=namespace, dag_id=dag_id, shard=shard, wanted=wanted)
        above = Above(parent)
        await unarchive.unarchived(self._context, shard, lambda tx: work(tx, above, queue_shard=queue_shard))

    async def _retried(
        self,
        tx: Transaction,
        above: Above | None,
        *,
        namespace: str,
        dag_id: str,
        shard: Shard,
        wanted: Retry,
        queue_shard: ShardNo,
    ) -> tuple[Settlement | None, Dag]:
        dag = own(await store.dags.lock_dags(tx, [dag_id]), namespace)
        if has_gone_on(dag, above):
            return None, dag  # somebody else was ahead with the same
        settlement = Settlement(tx, [dag], self._settings, self._context.home(shard))
        await self._begin(tx, settlement, dag, wanted, queue_shard, above)
        await settlement.run()
        return settlement, dag

    async def _begin(
        self,
        tx: Transaction,
        settlement: Settlement,
        dag: Dag,
        wanted: Retry,
        queue_shard: ShardNo,
        above: Above | None,
    ) -> None:
        """Begin the new generations of a locked DAG's nodes; one that had ended runs for what is `above` it from
        now on.

        Raises: as `retry`, and `NodeFirst`.
        """
        if dag.workflow is not None:
            raise managed_error()
        if dag.state == "cancelling":
            raise DagCancelling("a cancel of the DAG has not been confirmed yet")
        if dag.state == "cancelled":
            raise DagFinished("the DAG was cancelled; create another one")
        if dag.reopening:
            raise reopening_error()
        if dag.cleanup_phase and not dag.over:
            raise DagCancelling("the DAG is cleaning up; retry it when it has ended")
        await unarchive.check(tx, dag)
        if dag.over and dag.key is None and await store.dags.content_of(tx, dag.no) is not None:
            raise DagFinished("another DAG has taken its key since, as `unique` lets it; create one of that key")
        found = await self._wanted(tx, dag, wanted)
        had_ended = dag.over
        if isinstance(found, RetryPlan):
            await reopening.begin(self._context, settlement, dag, found, queue_shard)
            await self._set_payloads(tx, dag, wanted.payloads)
        else:
            nos = await cleanup.widen_retry(tx, dag, found)
            if dag.cleanups:
                settlement.cleanup_changed(dag)
            await self._reopen(tx, settlement, dag, nos, queue_shard)
            # What succeeded with the old ones is noted by now.
            await self._set_payloads(tx, dag, wanted.payloads, set(nos))
        if had_ended and dag.verdict is None:
            await take_up(tx, dag, above)
        if wanted.below is not None and wanted.nodes is not None:
            for node in (await store.dags.retry_named(tx, dag.no, wanted.nodes)).values():
                settlement.retries[node.no] = wanted.below

    async def _wanted(self, tx: Transaction, dag: Dag, wanted: Retry) -> list[NodeNo] | RetryPlan:
        """All nodes that are to run again, ascending; or how to find them, when they are too many for one
        transaction."""
        by_policy = dag.over and dag.cancel_cause in ("failure", "deadline")
        # What failure or a deadline cancelled comes back with what is retried.
        again = ["cancelled"] if by_policy else []
        if wanted.everything:
            plan = RetryPlan(roots=BEGUN, by_call_too=True)
        elif wanted.down_from is not None:
            plan = RetryPlan(await self._named(tx, dag, wanted.down_from, "/from", ENDED), BEGUN, again)
        elif wanted.nodes is not None:
            named = await self._named(tx, dag, wanted.nodes, "/nodes", ("failed", "cancelled"))
            plan = RetryPlan(named, SPARED, again)
        else:
            plan = RetryPlan(roots=["failed", *again])
        if (wanted.nodes is not None or wanted.down_from is not None) and not plan.named:
            raise NothingToRetry(
                "none of these nodes failed, or was cancelled, or skipped by a call"
                if wanted.nodes
                else "there is nothing to run again"
            )
        cleanups = await store.cleanup.numbers(tx, dag) if dag.cleanups and dag.over else set()
        roots = await self._all_in(tx, dag, plan, cleanups) if plan.roots else []
        if not plan.named and not roots:
            raise NothingToRetry("there is nothing to run again")
        # No ordinary node is below one that cleans up.
        plan = plan._replace(cleanup_alone=bool(cleanups) and cleanups.issuperset([*plan.named, *roots]))
        found = await self._at_once(tx, dag, plan, roots)
        if found is not None:
            return sorted(found)
        if wanted.payloads:
            await self._check_payloads(tx, dag, plan, wanted.payloads)
        return plan

    async def _at_once(
        self, tx: Transaction, dag: Dag, plan: RetryPlan, roots: Sequence[NodeNo]
    ) -> set[NodeNo] | None:
        """All nodes that run again, if one transaction can do it."""
        nodes_max, edges_max = self._settings.retry_at_once_nodes_max, self._settings.retry_at_once_edges_max
        if len(roots) > nodes_max:
            return None
        if dag.cleanups and dag.over and not plan.cleanup_alone:
            if dag.cleanups > nodes_max:
                return None
            nodes = await store.dags.nodes_by_no(tx, await store.cleanup.again(tx, dag))
            edges_max -= sum(node.upstreams for node in nodes)
        found: set[NodeNo] = set()
        for nos, states in ((plan.named, plan.below), (roots, () if plan.by_call_too else SPARED)):
            reach = await store.reopening.reach(tx, nos, states, edges_max) if nos and edges_max >= 0 else None
            if nos and reach is None:
                return None
            if reach is not None:
                found |= reach.again
                edges_max -= reach.edges
        return found if len(found) <= nodes_max else None

    async def _all_in(self, tx: Transaction, dag: Dag, plan: RetryPlan, cleanups: set[NodeNo]) -> list[NodeNo]:
        """The nodes that stand in one of the plan's `roots`. Of more than one transaction reopens some are enough,
        one of them no cleanup if there is such a one."""
        found: list[NodeNo] = []
        step = self._settings.list_scan_nodes_max
        for no in range(dag.node_no(0), dag.last_no + 1, step):
            found += await store.dags.retry_roots(tx, no, no + step - 1, plan.roots, by_call_too=plan.by_call_too)
            if len(found) > self._settings.retry_at_once_nodes_max and not cleanups.issuperset(found):
                break
        return found

    async def _named(
        self, tx: Transaction, dag: Dag, keys: Sequence[str], pointer: str, states: Sequence[str]
    ) -> list[NodeNo]:
        """Those of the nodes of these keys that are in one of `states`, or that a caller skipped."""
        found = await store.dags.retry_named(tx, dag.no, dict.fromkeys(keys))
        unknown = [i for i, key in enumerate(keys) if key not in found]
        if unknown:
            errors = [FieldError(f"{pointer}/{i}", "there is no node with this key") for i in unknown[:20]]
            raise UnknownNode("a key names no node of the DAG", errors=errors)
        return [
            node.no
            for node in found.values()
            if node.state in states or (node.state == "skipped" and node.by_call)
        ]

    async def _check_payloads(
        self, tx: Transaction, dag: Dag, plan: RetryPlan, payloads: Mapping[str, str]
    ) -> None:
        """Of a large retry payloads are taken for nodes that are named, or failed: what else runs again is found
        only later."""
        named = set(plan.named)
        found, _ = await store.dags.nodes_by_key(tx, dag.no, payloads)
        for node in found.values():
            if node.no not in named and not (node.state == "failed" and "failed" in plan.roots):
                raise LimitExceeded(
                    f"over {self._settings.retry_at_once_nodes_max} nodes would run again, or over "
                    f"{self._settings.retry_at_once_edges_max} edges be counted anew: with so many, give payloads "
                    "for nodes that failed, or that the call names, or retry a part of them"
                )

    async def _set_payloads(
        self, tx: Transaction, dag: Dag, payloads: Mapping[str, str], nos: Set[NodeNo] | None = None
    ) -> None:
        """New payloads, for nodes among `nos`, if these are given."""
        if not payloads:
            return
        found, _ = await store.dags.nodes_by_key(tx, dag.no, payloads)
        errors = []
        for key in payloads:
            node = found.get(key)
            if node is None or node.sub or node.timer or (nos is not None and node.no not in nos):
                errors.append(FieldError(pointer_to("payloads", key), "no item of this node would run again"))
        if errors:
            raise Invalid("a payload is for a node that this retry does not run again", errors=errors[:20])
        nodes = list(found.values())
        for start in range(0, len(nodes), _SPECS_PER_STATEMENT):
            some = nodes[start : start + _SPECS_PER_STATEMENT]
            specs = await store.dags.node_specs(tx, [node.no for node in some])
            for node in some:
                specs[node.no] = queue_items.with_payload(specs[node.no], payloads[node.key])
            await store.dags.set_specs(tx, specs)

    async def _reopen(
        self, tx: Transaction, settlement: Settlement, dag: Dag, nos: Sequence[NodeNo], queue_shard: ShardNo
    ) -> None:
        await store.dags.reopen_dag(tx, dag)
        settlement.restart(dag)
        for chunk in self._chunks(nos):
            await reopening.reopen(self._context, settlement, dag, chunk, queue_shard)
        # Only now does every upstream stand as it will; what it stood as before is counted out.
        touched = set(nos)
        for chunk in self._chunks(nos):
            touched.update(await store.edges.open_children(tx, chunk))
        for chunk in self._chunks(sorted(touched)):
            nodes = await store.dags.nodes_by_no(tx, chunk)
            while nodes:
                counted = [node.no for node in within(nodes, self._settings.retry_step_edges)]
                await store.edges.recount_edges(tx, counted)
                for node in await store.dags.nodes_by_no(tx, counted):
                    settlement.consider(node)
                del nodes[: len(counted)]

    def _chunks(self, nos: Sequence[T]) -> Iterator[Sequence[T]]:
        size = self._settings.retry_step_nodes
        return (nos[start : start + size] for start in range(0, len(nos), size))
