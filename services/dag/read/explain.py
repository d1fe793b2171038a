"""What a DAG waits for now, since when, and how far it is to its end; and one node's life so far.

The shard says what is released and what is kept by other things than the graph; the queue, asked once for
the nodes of a page, whether their items wait or are being worked on. Without the queue the rest is told.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from services.dag import store
from services.dag.errors import QueueUnavailable
from services.dag.model import UNFINISHED, Dag, NodeNo
from services.dag.queue_client import Attempt, Standing
from services.dag.read import critical_path
from services.dag.read.queries import Queries, begun_at, obstacles
from services.dag.run.context import Context
from services.dag.store.explain import WaitedNode
from services.dag.store.reads import HeldSince, ShownNode
from shared.errors import NotFound, invalid
from shared.http import cursors
from shared.shards.shard_map import Shard

_CHAIN_PAGE: Final = 10_000
_SCANS_PER_PAGE: Final = 10
_STANDINGS: Final = {
    "ready": "queued",
    "delayed": "delayed",
    "leased": "running",
    "dead": "ending",
}
_OUTCOMES: Final = {"succeeded": "acked", "failed": "failed", "cancelled": "cancelled"}


@dataclass(slots=True)
class FrontierNode:
    """A node that nothing in the graph keeps: it is out, or waits for `waits_for`."""

    row: WaitedNode
    since: datetime
    standing: str
    item: Standing | None = None
    waits_for: list[dict[str, Any]] = field(default_factory=list)


@dataclass(slots=True)
class Frontier:
    """A page of a DAG's frontier. `chain` (keys, nodes, seconds, topics) is told with the first page."""

    dag: Dag
    waits_for: list[dict[str, Any]]
    nodes: list[FrontierNode]
    next_cursor: str | None
    chain: dict[str, Any] | None


@dataclass(slots=True)
class Timeline:
    """One node's present generation."""

    row: ShownNode
    begun_at: datetime
    attempts: list[dict[str, Any]]
    item: Standing | None


class Explainer:
    """Answers what DAGs and nodes wait for."""

    def __init__(self, context: Context, queries: Queries) -> None:
        self._context = context
        self._queries = queries
        self._settings = context.settings
        # One chain at a time: all of a DAG is in memory meanwhile.
        self._walking = asyncio.Lock()

    async def frontier(self, namespace: str, dag_id: str, *, limit: int, cursor: str | None) -> Frontier:
        """A page of what the DAG waits for, in the order of the nodes' making."""
        shard, dag = await self._queries.find(namespace, dag_id)
        query = f"frontier|{dag.id}"
        after_no = dag.node_no(0) - 1
        if cursor is not None:
            position = cursors.decode(query, cursor)
            if not position.isdecimal() or len(position) > 9:
                raise invalid("/cursor", "this is not a cursor of this list")
            after_no = dag.node_no(min(int(position), dag.next_n))
        if cursor is None:
            await self._queries.whole(dag)
        since = await store.reads.kept_since(shard, dag)
        rows, reached = ([], dag.last_no) if dag.over else await self._page(shard, dag, after_no, limit)
        out = [row for row in rows if row.state == "released"]
        kept = [row for row in rows if row.state != "released"]
        found = {row.no: node for row, node in zip(out, await self._out(shard, dag, out), strict=True)}
        found |= {node.row.no: node for node in await self._kept(shard, dag, kept, since)}
        more = reached < dag.last_no
        return Frontier(
            dag,
            _waits_of(dag, since),
            [found[row.no] for row in rows],
            cursors.encode(query, str(reached - dag.node_no(0))) if more else None,
            await self._chain(shard, dag) if cursor is None else None,
        )

    async def timeline(self, namespace: str, dag_id: str, key: str) -> Timeline:
        """One node's life: made, released, tried, ended."""
        shard, dag = await self._queries.find(namespace, dag_id)
        row = await store.reads.node_by_key(shard, dag.no, key, over=dag.over)
        if row is None:
            raise NotFound("the DAG has no node with this key")
        item = None
        if row.state == "released" and row.timer:
            item = (await self._running_timers(shard, [row])).get(row.item_id)
        elif row.state == "released" and not row.sub:
            item = (await self._ask(dag, [row.item_id])).get(row.item_id)
        return Timeline(row, begun_at(row), _attempts(row, item, await self._logged(dag, row, item)), item)

    async def timelines(
        self, namespace: str, dag_id: str, *, limit: int, cursor: str | None
    ) -> tuple[list[Timeline], str | None]:
        """The lives of a page of nodes, in the order of their making; the queue is asked once for all of them."""
        shard, dag, rows, more = await self._queries.rows(namespace, dag_id, limit=limit, cursor=cursor)
        out = [row for row in rows if row.state == "released" and not row.sub]
        standings = await self._running_timers(shard, [row for row in out if row.timer])
        standings |= await self._ask(dag, [row.item_id for row in out if not row.timer])
        tried = [row.item_id for row in rows if _has_failed(row, standings.get(row.item_id))]
        logged = await self._logged_of_many(dag, tried)
        return [
            Timeline(row, begun_at(row), _attempts(row, item, logged.get(row.item_id, ())), item)
            for row in rows
            for item in [standings.get(row.item_id)]
        ], more

    async def _page(self, shard: Shard, dag: Dag, after_no: int, limit: int) -> tuple[list[WaitedNode], int]:
        """Up to `limit` rows with a bounded number of upstreams and externals, and how far they reach."""
        rows: list[WaitedNode] = []
        upstreams = 0
        for _ in range(_SCANS_PER_PAGE):
            last_no = min(after_no + self._settings.list_scan_nodes_max, dag.last_no)
            room = limit - len(rows)
            page = await store.explain.frontier_page(shard, after_no, last_no, room)
            for row in page:
                upstreams += 0 if row.state == "released" else row.upstreams + row.ext_left
                if upstreams > self._settings.page_edges_max and rows:
                    return rows, rows[-1].no
                rows.append(row)
            if len(page) == room:
                return rows, rows[-1].no
            after_no = last_no
            if after_no >= dag.last_no:
                break
        return rows, after_no

    async def _out(self, shard: Shard, dag: Dag, rows: Sequence[WaitedNode]) -> list[FrontierNode]:
        """Released nodes: what the queue knows of them."""
        if not rows:
            return []
        # In this order: what was sent after the outbox was read is at worst called `ending` for a moment.
        unsent = await store.explain.unsent(shard, [row.no for row in rows])
        timers = await self._running_timers(shard, [row for row in rows if row.timer])
        asked = [row.item_id for row in rows if not row.sub and not row.timer]
        try:
            items = await self._context.queue.standings(dag.namespace, asked) if asked else {}
        except QueueUnavailable:
            items = None
        nodes = []
        for row in rows:
            item = items.get(row.item_id) if items is not None else None
            standing = "unknown" if items is None else "ending"
            if row.sub:
                standing = "sending" if row.no in unsent else "running"
            elif row.timer:
                item = timers.get(row.item_id)
                standing = "delayed" if item is not None else "ending"
            elif item is not None and item.state != "disabled":
                # What the queue shows counts for more than a row that is about to be deleted.
                standing = _STANDINGS[item.state]
            elif item is not None or row.no in unsent:
                standing = "sending"
            since = item.since if item is not None and item.since is not None else row.released_at
            nodes.append(FrontierNode(row, since or row.created_at, standing, item))
        return nodes

    async def _running_timers(self, shard: Shard, rows: Sequence[WaitedNode | ShownNode]) -> dict[str, Standing]:
        """Timers, as if they were items that are not due yet, by their item ids."""
        found = await store.timers.of(shard, [row.no for row in rows]) if rows else {}
        return {
            row.item_id: Standing("delayed", 0, row.released_at, found[row.no].due_at, None, None)
            for row in rows
            if found[row.no].due_at is not None
        }

    async def _kept(
        self, shard: Shard, dag: Dag, rows: Sequence[WaitedNode], since: HeldSince
    ) -> list[FrontierNode]:
        """Blocked nodes whose upstreams are done: externals, a hold, a pause or a retry at work keep them."""
        if not rows:
            return []
        ended = await store.explain.upstreams_ended(shard, [row.no for row in rows])
        nodes = {
            row.key: FrontierNode(row, max(begun_at(row), ended[row.no] or begun_at(row)), "kept") for row in rows
        }
        for key, name in await store.explain.open_externals(shard, dag.no, list(nodes)):
            nodes[key].waits_for.append({"kind": "external", "name": name, "since": nodes[key].since})
        for node in nodes.values():
            node.waits_for += obstacles(dag, node.since, since)
            if not node.waits_for:
                node.standing = "releasing" if dag.state == "running" else "cancelling"
        return list(nodes.values())

    async def _ask(self, dag: Dag, item_ids: Sequence[str]) -> dict[str, Standing]:
        if not item_ids:
            return {}
        try:
            return await self._context.queue.standings(dag.namespace, item_ids)
        except QueueUnavailable:
            return {}

    async def _logged(self, dag: Dag, row: ShownNode, item: Standing | None) -> list[Attempt]:
        """Deliveries that failed. The queue is asked only where there was one."""
        if not _has_failed(row, item):
            return []
        try:
            return await self._context.queue.attempts(dag.namespace, row.item_id)
        except QueueUnavailable:
            return []

    async def _logged_of_many(self, dag: Dag, item_ids: Sequence[str]) -> dict[str, list[Attempt]]:
        try:
            return await self._context.queue.attempts_of_many(dag.namespace, item_ids) if item_ids else {}
        except QueueUnavailable:
            return {}

    async def _chain(self, shard: Shard, dag: Dag) -> dict[str, Any] | None:
        """The longest chain left; None for a DAG too large to be walked for a question, or at its end."""
        if dag.over or dag.next_n > self._settings.chain_nodes_max or dag.edges > self._settings.chain_edges_max:
            return None
        async with self._walking:
            return await self._walked(shard, dag)

    async def _walked(self, shard: Shard, dag: Dag) -> dict[str, Any]:
        base, last_no = dag.node_no(0), dag.last_no
        left: dict[int, critical_path.Left] = {}
        took: list[tuple[str, float]] = []
        after_no = base - 1
        while page := await store.explain.chain_nodes(shard, after_no, last_no, _CHAIN_PAGE):
            for no, state, topic, took_s, out_s in page:
                if state in UNFINISHED:
                    left[no - base] = critical_path.Left(topic, out_s if state == "released" else None)
                elif state == "succeeded" and took_s is not None:
                    took.append((topic, took_s))
            after_no = page[-1].no
        ups, downs = array("I"), array("I")
        after = (base - 1, -1)
        while found := await store.edges.edge_columns(shard, after, last_no, _CHAIN_PAGE):
            ups += found.ups
            downs += found.downs
            after = (base + ups[-1], base + downs[-1])
        edges = zip(ups, downs, strict=True)
        chain = await asyncio.to_thread(critical_path.longest, left, edges, critical_path.means(took))
        shown = [NodeNo(base + n) for n in chain.nodes[: critical_path.KEYS_SHOWN_MAX]]
        keys = await store.explain.keys_of(shard, shown)
        return {
            "nodes": len(chain.nodes),
            "keys": [keys[no] for no in shown],
            "expected_s": chain.expected_s,
            "unknown_topics": chain.unknown[: critical_path.KEYS_SHOWN_MAX],
        }


def _waits_of(dag: Dag, since: HeldSince) -> list[dict[str, Any]]:
    """What keeps the DAG itself from going on, or from its end."""
    if dag.over:
        return []
    found = obstacles(dag, dag.created_at, since)
    done = dag.unfinished == dag.cleanup_left and not dag.cleanup_phase
    if dag.state == "running" and done and (dag.open or not (dag.total or dag.closed)):
        found.append({"kind": "close", "since": dag.created_at})
    return found


def _has_failed(row: ShownNode, item: Standing | None) -> bool:
    """Whether a delivery of the node's item failed in this generation."""
    if row.sub or row.timer:
        return False
    if item is not None:
        return item.attempt - (item.state == "leased") >= 1
    return row.attempts > 1 or row.state == "failed"


def _attempts(row: ShownNode, item: Standing | None, logged: Sequence[Attempt]) -> list[dict[str, Any]]:
    """The deliveries of the node's item: those that failed, as they were logged, and the present or last one."""
    found = [attempt._asdict() for attempt in logged]
    told = {attempt.attempt for attempt in logged}
    if item is not None:
        running = item.state == "leased"
        before = item.attempt - running
        if before and before not in told:
            found.append(_attempt(before, "failed", error=item.error))
        if running:
            found.append(_attempt(item.attempt, "running", started_at=item.since, worker=item.worker))
    elif row.attempts and row.state in _OUTCOMES and row.attempts not in told:
        found.append(
            _attempt(
                row.attempts,
                _OUTCOMES[row.state],
                started_at=row.started_at,
                ended_at=row.finished_at,
                error=row.error,
                worker=row.worker,
            )
        )
    return [{"worker": None, **attempt} for attempt in found]


def _attempt(number: int, outcome: str, **known: Any) -> dict[str, Any]:
    nothing = dict.fromkeys(("started_at", "ended_at", "error"))
    return {"attempt": number, "outcome": outcome, **nothing, **known}
