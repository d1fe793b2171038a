"""Verbs on a DAG that exists: hold, pause, close, cancel, skip, externals, deadlines."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence, Set
from typing import NamedTuple

from services.dag import store
from services.dag.errors import (
    DagFinished,
    LimitExceeded,
    NodeReleased,
    UnknownNode,
    managed_error,
    reopening_error,
)
from services.dag.model import DECIDER, Dag, DagNo, Node, Resolved
from services.dag.run import run_ends, unarchive
from services.dag.run.context import Context, own
from services.dag.run.decisions import Settlement
from shared.errors import FieldError, something_done
from shared.http.nearest import nearest
from shared.postgres.connections import Transaction
from shared.shards.shard_map import Shard

_ERROR_CHARS = 1_000

_CANCEL_STATUSES = {"blocked": "cancelled", "released": "cancelling", "cancelled": "already_cancelled"}

# How many of a node's externals a misspelt name is compared with.
_HINTS_MAX = 20

Act = Callable[[Transaction, Settlement, Dag], Awaitable[None]]


class EventAnswer(NamedTuple):
    """Of an event: whether it is news, whether a node waits, or has waited, for it, and else what to say."""

    is_new: bool
    declared: bool
    hint: str | None


class Controller:
    """Changes DAGs by their callers' verbs, and by their deadlines."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._settings = context.settings

    async def release(self, namespace: str, dag_id: str) -> Dag:
        """Lift a hold. Nothing happens when there is none."""

        async def act(tx: Transaction, settlement: Settlement, dag: Dag) -> None:
            if dag.held:
                dag.held = False
                await self.go_on(tx, settlement, dag)

        return await self._change(namespace, dag_id, act)

    async def close(self, namespace: str, dag_id: str) -> Dag:
        """Nothing more is announced: the DAG may end, also once it was retried."""

        async def act(tx: Transaction, settlement: Settlement, dag: Dag) -> None:
            if dag.open or not (dag.over or dag.closed):
                dag.open, dag.closed = False, True
                await store.dags.set_flags(tx, dag)
                settlement.changed(dag)

        return await self._change(namespace, dag_id, act)

    async def pause(self, namespace: str, dag_id: str) -> Dag:
        """Release nothing more."""

        async def act(tx: Transaction, settlement: Settlement, dag: Dag) -> None:
            if not dag.over and not dag.paused:
                dag.paused = True
                await store.dags.set_flags(tx, dag)
                settlement.changed(dag)

        return await self._change(namespace, dag_id, act)

    async def resume(self, namespace: str, dag_id: str) -> Dag:
        """Release again, first what became ready meanwhile."""

        async def act(tx: Transaction, settlement: Settlement, dag: Dag) -> None:
            if dag.paused:
                dag.paused = False
                await self.go_on(tx, settlement, dag)

        return await self._change(namespace, dag_id, act)

    async def cancel(self, namespace: str, dag_id: str, reason: str | None) -> Dag:
        """Cancel what is unfinished. The answer is `cancelling` until the queue has confirmed all of it. One that
        changes nothing leaves no reason."""

        async def act(tx: Transaction, settlement: Settlement, dag: Dag) -> None:
            if not dag.over:
                settlement.cancel_rest(dag, "call", reason)

        return await self._change(namespace, dag_id, act)

    async def expire(self, shard: Shard, dag_no: DagNo) -> None:
        """A deadline has passed: cancel the rest."""

        async def work(tx: Transaction) -> tuple[Settlement | None, None]:
            [dag] = await store.dags.lock_dag_nos(tx, [dag_no])
            settlement = Settlement(tx, [dag], self._settings, self._context.home(shard))
            if dag.state != "running" or not await store.dags.past_deadline(tx, dag_no):
                return None, None
            if dag.workflow is not None:
                await run_ends.expire(tx, settlement, dag, self._settings.cancel_grace_s)
            else:
                settlement.cancel_rest(dag, "deadline", f"its deadline of {dag.deadline_s:g} s passed")
            await settlement.run()
            return settlement, None

        await self._context.settle(shard, work)

    async def expire_externals(self, shard: Shard, dag_no: DagNo, overdue: Sequence[tuple[str, str]]) -> None:
        """Deadlines of externals have passed: each counts as resolved, and failed, where it is waited for.

        A cleanup node fails by it in its phase; before, it has no part in how the DAG ends.
        """

        async def work(tx: Transaction) -> tuple[Settlement, None]:
            [dag] = await store.dags.lock_dag_nos(tx, [dag_no])
            settlement = Settlement(tx, [dag], self._settings, self._context.home(shard))
            known, _ = await store.dags.nodes_by_key(tx, dag_no, dict.fromkeys(key for key, _ in overdue))
            waiting = {key for key, node in known.items() if _minds_deadlines(dag, node)}
            names: dict[str, list[str]] = {}
            for key, name in await store.edges.expire_externals(tx, dag_no, overdue, waiting):
                if key in waiting:
                    names.setdefault(key, []).append(name)
            counts = {key: (len(late), True) for key, late in names.items()}
            for node in await store.dags.count_resolved(tx, dag_no, counts) if counts else ():
                why = f"not resolved by its deadline: {', '.join(sorted(names[node.key]))}"[:_ERROR_CHARS]
                if node.run_on is not None:
                    settlement.consider(node, why)
                elif node.state == "blocked":
                    settlement.end(node, "failed", why)
            await settlement.run()
            return settlement, None

        await self._context.settle(shard, work)

    async def skip(self, namespace: str, dag_id: str, keys: Sequence[str]) -> Dag:
        """Take blocked nodes as skipped.

        Raises:
            UnknownNode: a key that the DAG does not have.
            NodeReleased: a node is past that; none was skipped.
            DagFinished: a node of a DAG that is being cancelled.
        """

        async def act(tx: Transaction, settlement: Settlement, dag: Dag) -> None:
            nodes = await self._named(tx, dag, keys)
            late = [i for i, node in enumerate(nodes) if node.state not in ("blocked", "skipped")]
            if late:
                errors = [FieldError(f"/nodes/{i}", f"it is {nodes[i].state}") for i in late[:20]]
                raise NodeReleased("a node is released or over and cannot be skipped", errors=errors)
            blocked = {node.no: node for node in nodes if node.state == "blocked"}
            if blocked and dag.state != "running":
                raise DagFinished("the DAG is being cancelled")
            for node in blocked.values():
                settlement.end(node, "skipped")
            if blocked:
                await store.dags.skip_by_call(tx, list(blocked))

        return await self._change(namespace, dag_id, act)

    async def cancel_nodes(
        self, namespace: str, dag_id: str, keys: Sequence[str], reason: str | None
    ) -> list[tuple[str, str]]:
        """Cancel nodes; (key, status) of each.

        A blocked one, or a timer, is `cancelled`. Another released one is `cancelling` until the queue has
        confirmed that it will not be delivered; should its ack come first, it has succeeded. What comes below is
        decided by its triggers, as after any end.

        Raises:
            UnknownNode: a key that the DAG does not have; none was cancelled.
        """
        statuses: dict[str, str] = {}

        async def act(tx: Transaction, settlement: Settlement, dag: Dag) -> None:
            statuses.clear()
            if dag.workflow is not None and DECIDER in keys:
                raise managed_error()
            nodes = {node.key: node for node in await self._named(tx, dag, keys)}
            touched = []
            for key, node in nodes.items():
                statuses[key] = _CANCEL_STATUSES.get(node.state, "finished")
                if node.state in ("blocked", "released"):
                    touched.append(node.no)
            if touched:
                await store.dags.cancel_by_call(tx, touched, reason)
            for node in nodes.values():
                is_blocked = node.state == "blocked" and (dag.state == "running" or node.sub)
                if is_blocked or (node.timer and node.state in ("blocked", "released")):
                    statuses[node.key] = "cancelled"
                    settlement.end(node, "cancelled", reason)
                elif node.state in ("blocked", "released"):
                    statuses[node.key] = "cancelling"
                    settlement.cancel_items([node])

        await self._change(namespace, dag_id, act, on_runs=True)
        return [(key, statuses[key]) for key in keys]

    async def resolve(self, namespace: str, dag_id: str, facts: Sequence[Resolved]) -> list[EventAnswer]:
        """Resolve externals, declared or not yet.

        Raises:
            DagReopening: one that failed before a retry is perhaps still to be opened again.
        """
        first: dict[tuple[str, str], Resolved] = {}
        for fact in facts:
            first.setdefault((fact.node, fact.name), fact)
        news: set[tuple[str, str]] = set()
        waited_for: set[tuple[str, str]] = set()

        async def act(tx: Transaction, settlement: Settlement, dag: Dag) -> None:
            news.clear()
            waited_for.clear()
            await unarchive.check(tx, dag)
            known = await self._check(tx, dag, list(first))
            waited_for.update(pair for pair, each in known.items() if each.declared)
            rows = await store.edges.resolve_externals(tx, dag.no, list(first.values()))
            counts: dict[str, tuple[int, bool]] = {}
            for key, name, declared, failed in rows:
                news.add((key, name))
                if declared:
                    count, any_failed = counts.get(key, (0, False))
                    counts[key] = (count + 1, any_failed or failed)
            if counts:
                for node in await store.dags.count_resolved(tx, dag.no, counts):
                    settlement.consider(node)

        dag = await self._change(namespace, dag_id, act)
        with something_done():
            hints = await self._hints(dag, first.keys() - waited_for)
        seen: set[tuple[str, str]] = set()
        answers = []
        for fact in facts:
            pair = (fact.node, fact.name)
            answers.append(EventAnswer(pair in news and pair not in seen, pair in waited_for, hints.get(pair)))
            seen.add(pair)
        return answers

    async def _hints(self, dag: Dag, idle: Set[tuple[str, str]]) -> dict[tuple[str, str], str]:
        """What is said of events that nothing waits for, which may be early, or misspelt."""
        if not idle:
            return {}
        shard, _ = self._context.shard_of(dag.id)
        keys = sorted({key for key, _ in idle})
        names: dict[str, list[str]] = {}
        for key, name in await store.reads.declared_names(shard, dag.no, keys, _HINTS_MAX, over=dag.over):
            names.setdefault(key, []).append(name)
        return {
            (key, name): "nothing waits for this yet" + nearest(name, names.get(key, ())) for key, name in idle
        }

    async def _check(
        self, tx: Transaction, dag: Dag, wanted: Sequence[tuple[str, str]]
    ) -> dict[tuple[str, str], store.edges.Known]:
        known = await store.edges.find_externals(tx, dag.no, wanted)
        if dag.reopening and any(each.failed for each in known.values()):
            raise reopening_error()
        # Facts about externals that nobody declared take room too.
        dag.externals += len(wanted) - len(known)
        if dag.externals > self._settings.externals_per_dag_max:
            limit = self._settings.externals_per_dag_max
            raise LimitExceeded(f"the DAG would have over {limit} externals")
        if len(known) < len(wanted):
            await store.dags.grow_dag(tx, dag, structure_changed=False)
        return known

    async def go_on(self, tx: Transaction, settlement: Settlement, dag: Dag) -> None:
        """Release what became ready while the DAG was held or paused."""
        await store.dags.set_flags(tx, dag)
        settlement.changed(dag)
        reached = await settlement.walk_blocked(dag, dag.node_no(0) - 1)
        if reached is not None:
            await store.duties.insert_scan(tx, dag.no, "release", reached)
            settlement.walking = True

    async def _named(self, tx: Transaction, dag: Dag, keys: Sequence[str]) -> list[Node]:
        """The nodes of these keys.

        Raises:
            UnknownNode
            DagReopening: some are perhaps still to be reopened.
        """
        if dag.reopening:
            raise reopening_error()
        await unarchive.check(tx, dag)
        found, _ = await store.dags.nodes_by_key(tx, dag.no, dict.fromkeys(keys))
        unknown = [i for i, key in enumerate(keys) if key not in found]
        if unknown:
            errors = [FieldError(f"/nodes/{i}", "there is no node with this key") for i in unknown[:20]]
            raise UnknownNode("a key names no node of the DAG", errors=errors)
        return [found[key] for key in keys]

    async def _change(self, namespace: str, dag_id: str, act: Act, *, on_runs: bool = False) -> Dag:
        shard, dag_id = self._context.shard_of(dag_id)

        async def work(tx: Transaction) -> tuple[Settlement, Dag]:
            dag = own(await store.dags.lock_dags(tx, [dag_id]), namespace)
            if dag.workflow is not None and not on_runs:
                raise managed_error()
            settlement = Settlement(tx, [dag], self._settings, self._context.home(shard))
            await act(tx, settlement, dag)
            await settlement.run()
            return settlement, dag

        return await unarchive.unarchived(self._context, shard, work)


def _minds_deadlines(dag: Dag, node: Node) -> bool:
    """True where a node still waits for externals: a cleanup node until its DAG is over, another one while that
    runs; amid a retry only once it is blocked, as what has ended is perhaps still to be reopened."""
    if dag.reopening and node.state != "blocked":
        return False
    return not dag.over if node.run_on is not None else dag.state == "running"
