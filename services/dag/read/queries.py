"""What a DAG and its nodes look like to those who ask."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from services.dag import queue_items, store
from services.dag.errors import LimitExceeded
from services.dag.model import UNDO, Dag, NodeNo
from services.dag.read import surroundings
from services.dag.read.drawing import EDGE_BYTES_MIN, Form, Vertex
from services.dag.run import compensation_input
from services.dag.run.context import Context, shutting_down
from services.dag.store.explain import WaitedNode
from services.dag.store.reads import HeldSince, ShownNode
from shared import ids
from shared.admission.connection_priority import Urgency
from shared.errors import NotFound, ShardUnavailable, invalid
from shared.http import cursors
from shared.ids import ShardNo
from shared.postgres.batcher import Batcher, BatcherLimits
from shared.postgres.connections import Transaction
from shared.shards.asking import Listed, ask_all
from shared.shards.shard_map import Shard

_LAST_ID = "ffffffff-ffff-ffff-ffff-ffffffffffff"
_GRAPH_PAGE = 5_000
_SCANS_PER_PAGE = 10
_UNDECLARED_PER_PAGE = 1_000
_DAGS_PER_LOOK_MAX = 1_000


@dataclass(slots=True)
class NodeDetail:
    """A node's row and what surrounds it."""

    row: ShownNode
    upstream: list[str] = field(default_factory=list)
    downstream: list[str] = field(default_factory=list)
    externals: list[dict[str, Any]] = field(default_factory=list)
    blocked_by: list[dict[str, Any]] = field(default_factory=list)
    compensates: str | None = None
    timer: dict[str, Any] | None = None
    # Its lists are cut: they would take more than a page may.
    is_cut: bool = False


def begun_at(row: ShownNode | WaitedNode) -> datetime:
    """When a node's generation began: it was made then, or a retry gave it an item's id of that time."""
    return began(row.generation, row.created_at, row.item_id)


def began(generation: int, created_at: datetime, item_id: str) -> datetime:
    """As `begun_at`, of a node of which this is known."""
    if generation == 1:
        return created_at
    return max(created_at, datetime.fromtimestamp(ids.time_ms_of(item_id) / 1000, UTC))


def obstacles(dag: Dag, since: datetime, kept: HeldSince) -> list[dict[str, Any]]:
    """The DAG's own obstacles, for a node that has been waiting since then."""
    found: list[dict[str, Any]] = [{"kind": "hold", "since": since}] if dag.held else []
    if dag.paused:
        found.append({"kind": "pause", "since": max(since, kept.paused_at or since)})
    if dag.reopening:
        found.append({"kind": "retry", "since": max(since, kept.retried_at or since)})
    return found


class Queries:
    """Reads; everything here may be asked again. Calls that look for DAGs at the same time share a statement."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._settings = context.settings
        self._looking: dict[ShardNo, Batcher[str, Dag | None]] = {}

    async def dag(self, namespace: str, dag_id: str) -> Dag:
        """A DAG.

        Raises:
            NotFound: it does not exist, or is another tenant's.
        """
        _, dag = await self.find(namespace, dag_id)
        return await self.whole(dag)

    async def whole(self, dag: Dag) -> Dag:
        """A DAG as it is told, with the events that nothing waits for."""
        await self._look_for_undeclared([dag])
        return dag

    async def _look_for_undeclared(self, dags: Sequence[Dag]) -> None:
        by_shard: dict[ShardNo, list[Dag]] = {}
        for dag in dags:
            if dag.externals:
                by_shard.setdefault(ids.shard_of(dag.id), []).append(dag)
        for number, some in by_shard.items():
            shard = self._context.shards.get(number)
            assert shard is not None, "they were read there"
            rows_max = max(1, min(self._settings.undeclared_shown_max, _UNDECLARED_PER_PAGE // len(some)))
            found = await store.reads.undeclared(shard, some, rows_max)
            for dag in some:
                dag.undeclared = found[dag.no]

    async def dags(
        self,
        namespace: str,
        *,
        state: str | None,
        name: str | None,
        key: str | None,
        limit: int,
        cursor: str | None,
    ) -> Listed[Dag, str]:
        """A page of DAGs, newest first; with a `key` there is one at most.

        Raises:
            Unavailable: no shard answers, or it is asked for a `key` that a shard that does not may have.
        """
        query = f"dags|{namespace}|{state}|{name}|{key}"
        before_id = _LAST_ID if cursor is None else cursors.decode(query, cursor)
        if cursor is not None and len(before_id) != len(_LAST_ID):
            raise invalid("/cursor", "this is not a cursor of this list")

        async def part(shard: Shard) -> list[Dag]:
            return await store.reads.list_dags(
                shard, namespace, state=state, name=name, key=key, before_id=before_id, rows_max=limit + 1
            )

        pages, away = await ask_all(list(self._context.shards), part)
        found = sorted((dag for page in pages for dag in page), key=lambda dag: dag.id, reverse=True)
        if key is not None and away and not found:
            raise ShardUnavailable(f"shard {away[0]}, which may have it, does not answer", retry_after_s=1.0)
        more = len(found) > limit
        found = found[:limit]
        await self._look_for_undeclared(found)
        return Listed(found, cursors.encode(query, found[-1].id) if more else None, away)

    async def wait(self, namespace: str, dag_id: str, timeout_s: float) -> Dag:
        """A DAG, when it has ended or at the timeout.

        Raises:
            ShuttingDown: before either, the process does.
        """
        clock = self._context.clock
        until_s = clock.monotonic_s() + timeout_s
        shard, dag_id = self._context.shard_of(dag_id)
        with self._context.watches.watching(shard, dag_id) as watch:
            while True:
                dag, watch.dag = watch.dag, None
                if dag is None:
                    _, dag = await self.find(namespace, dag_id)
                left_s = until_s - clock.monotonic_s()
                if dag.over or left_s <= 0:
                    return await self.whole(dag)
                if self._context.watches.leaving:
                    raise shutting_down()
                try:
                    async with asyncio.timeout(left_s):
                        await watch.event.wait()
                except TimeoutError:
                    pass
                watch.event.clear()

    async def standing_of(self, dag: Dag, key: str) -> ShownNode | None:
        """One node, without what surrounds it."""
        shard, _ = self._context.shard_of(dag.id)
        return await store.reads.node_by_key(shard, dag.no, key, over=dag.over)

    async def node(self, namespace: str, dag_id: str, key: str) -> NodeDetail:
        """One node."""
        async with self.reading(namespace, dag_id) as (shard, dag):
            row = await store.reads.node_by_key(shard, dag.no, key, over=dag.over)
            if row is None:
                raise NotFound("the DAG has no node with this key")
            return (await self._details(shard, dag, [row]))[0]

    async def nodes(
        self, namespace: str, dag_id: str, *, state: str | None, limit: int, cursor: str | None
    ) -> tuple[list[NodeDetail], str | None]:
        """A page of nodes in the order of their making; shorter than `limit` where edges abound."""
        async with self.reading(namespace, dag_id) as (shard, dag):
            query = f"nodes|{dag.id}|{state}"
            rows, reached = await self._page(shard, dag, state, self._begin(dag, query, cursor), limit)
            details = await self._details(shard, dag, await self._fitting(shard, dag, rows))
        if len(details) < len(rows):
            reached = details[-1].row.no
        more = reached < dag.last_no
        return details, cursors.encode(query, str(reached - dag.node_no(0))) if more else None

    async def rows(
        self, namespace: str, dag_id: str, *, limit: int, cursor: str | None
    ) -> tuple[Shard, Dag, list[ShownNode], str | None]:
        """The same without what surrounds them, and where they live."""
        async with self.reading(namespace, dag_id) as (shard, dag):
            query = f"rows|{dag.id}"
            rows, reached = await self._page(shard, dag, None, self._begin(dag, query, cursor), limit)
        more = cursors.encode(query, str(reached - dag.node_no(0))) if reached < dag.last_no else None
        return shard, dag, rows, more

    async def exported(
        self, namespace: str, dag_id: str, *, limit: int, cursor: str | None
    ) -> tuple[list[tuple[NodeDetail, str]], str | None]:
        """A page of nodes, each with what its item is made of, as JSON text."""
        async with self.reading(namespace, dag_id) as (shard, dag):
            details, more = await self.nodes(namespace, dag_id, state=None, limit=limit, cursor=cursor)
            nos = [detail.row.no for detail in details]
            specs = await store.archive.specs_of(shard, nos, self._settings.page_bytes_max)
        if len(specs) < len(nos):
            reached = max(specs)
            more = cursors.encode(f"nodes|{dag.id}|{None}", str(reached - dag.node_no(0)))
        if dag.workflow is not None and dag.node_no(0) in specs:
            # With the secret in a decider's payload anybody could go on with the run.
            decider = json.loads(specs[dag.node_no(0)])
            specs[dag.node_no(0)] = queue_items.encode(
                {name: value for name, value in decider.items() if name != "payload"}
            )
        return [(each, specs[each.row.no]) for each in details if each.row.no in specs], more

    async def graph(self, namespace: str, dag_id: str, nodes_max: int, form_of: Callable[[Dag], Form]) -> bytes:
        """All nodes and edges, in a form.

        Raises:
            LimitExceeded: the DAG has more than `nodes_max` nodes, or takes more than `graph_bytes_max`.
        """
        async with self.reading(namespace, dag_id) as (shard, dag):
            if dag.next_n > nodes_max:
                raise LimitExceeded(f"the DAG has {dag.next_n} nodes; in this form at most {nodes_max} are shown")
            left = self._settings.graph_bytes_max
            if dag.edges * EDGE_BYTES_MIN > left:
                raise _graph_too_large(left)
            written = []
            async for part in self._drawn(shard, dag, form_of(dag)):
                left -= len(part)
                if left < 0:
                    raise _graph_too_large(self._settings.graph_bytes_max)
                written.append(part)
        return b"".join(written)

    async def _drawn(self, shard: Shard, dag: Dag, form: Form) -> AsyncIterator[bytes]:
        """A graph part by part, each of one page, so that other calls come in between."""
        base, last_no = dag.node_no(0), dag.last_no
        yield form.begin()
        count = 0
        while page := await store.reads.graph_nodes(shard, base + count - 1, last_no, _GRAPH_PAGE, over=dag.over):
            vertices = [
                Vertex(
                    row.key,
                    row.state,
                    row.topic or None,
                    row.generation,
                    row.item_id if row.sub else None,
                )
                for row in page
            ]
            yield form.nodes(count, vertices)
            count += len(page)
        drawn, after = 0, (base - 1, -1)
        while found := await store.edges.edges_page(shard, after, last_no, _GRAPH_PAGE, over=dag.over):
            edges = [(up - base, down - base) for up, down in found if down < base + count]
            if edges:
                yield form.edges(drawn, edges)
            drawn += len(edges)
            after = found[-1]
        if not drawn:
            yield form.edges(0, [])
        yield form.end()

    async def inputs(self, namespace: str, dag_id: str, key: str) -> str:
        """What a node is given of its upstreams and externals, as JSON text.

        Raises:
            LimitExceeded: that is more than a process should hold at once.
        """
        async with self.reading(namespace, dag_id) as (shard, dag):
            row = await store.reads.node_by_key(shard, dag.no, key, over=dag.over)
            if row is None:
                raise NotFound("the DAG has no node with this key")
            limit = self._settings.inputs_fetched_bytes_max

            async def read(tx: Transaction) -> list[store.dags.NodeInput]:
                nos = [row.no]
                if row.run_on == UNDO:
                    told = await compensation_input.inputs(tx, nos, bytes_max=limit, over=dag.over)
                    if row.no not in told:
                        raise LimitExceeded(f"the inputs have over {limit} bytes; fetch what it undoes by itself")
                    return [store.dags.NodeInput(row.no, name, value) for name, value in told[row.no]]
                sizes = await (store.archive.inputs_sizes if dag.over else store.dags.inputs_sizes)(tx, nos)
                if sizes[row.no] > limit:
                    raise LimitExceeded(
                        f"the inputs have over {limit} bytes; fetch the upstreams' outputs one by one"
                    )
                return await (store.archive.inputs if dag.over else store.dags.inputs)(tx, nos)

            parts = await shard.pool.transaction(read)
        return queue_items.inputs_body([(name, value) for _, name, value in parts])

    async def output(self, namespace: str, dag_id: str, key: str) -> str:
        """A node's output, as JSON text.

        Raises:
            NotFound: there is no such node, or it has given none.
        """
        shard, dag = await self.find(namespace, dag_id)
        row = await store.reads.node_by_key(shard, dag.no, key, over=dag.over)
        if row is None or row.output is None:
            raise NotFound("the DAG has no node with this key" if row is None else "the node has given no output")
        return str(row.output)

    async def outputs(
        self, namespace: str, dag_id: str, *, limit: int, cursor: str | None
    ) -> tuple[list[tuple[str, str]], str | None]:
        """A page of (key, output as JSON text) of the nodes that nothing waits for: what a DAG has come to."""
        async with self.reading(namespace, dag_id) as (shard, dag):
            query = f"outputs|{dag.id}"
            after_no = self._begin(dag, query, cursor)
            found: list[tuple[str, str]] = []
            left = self._settings.page_bytes_max
            for _ in range(_SCANS_PER_PAGE):
                last_no = min(after_no + self._settings.list_scan_nodes_max, dag.last_no)
                room = limit - len(found)
                page = await store.subdags.outputs_page(
                    shard, after_no=after_no, last_no=last_no, rows_max=room, bytes_max=left, over=dag.over
                )
                found += [(key, output) for _, key, output, _ in page]
                left -= page[-1][3] if page else 0
                is_full = len(page) == room or left <= 0
                after_no = page[-1][0] if is_full else last_no
                if is_full or after_no >= dag.last_no:
                    break
        more = cursors.encode(query, str(after_no - dag.node_no(0))) if after_no < dag.last_no else None
        return found, more

    def _begin(self, dag: Dag, query: str, cursor: str | None) -> int:
        """The number of the node that a page goes on after."""
        return dag.node_no(0) - 1 if cursor is None else self._position(dag, query, cursor)

    @staticmethod
    def _position(dag: Dag, query: str, cursor: str) -> int:
        """The number of the node that a cursor goes on after."""
        position = cursors.decode(query, cursor)
        if not position.isdecimal() or len(position) > 9:
            raise invalid("/cursor", "this is not a cursor of this list")
        return dag.node_no(min(int(position), dag.next_n))

    @asynccontextmanager
    async def reading(self, namespace: str, dag_id: str) -> AsyncIterator[tuple[Shard, Dag]]:
        """A DAG and where it lives, for several looks at what it has, all of which was there.

        Raises:
            NotFound: as `find`; also where it was dropped meanwhile, as its time is over.
        """
        shard, dag = await self.find(namespace, dag_id)
        yield shard, dag
        if dag.over:
            await self.find(namespace, dag_id)

    async def find(self, namespace: str, dag_id: str) -> tuple[Shard, Dag]:
        """A DAG and where it lives.

        Raises:
            NotFound: it does not exist, or is another tenant's.
        """
        shard, canonical = self._context.shard_of(dag_id)
        [dag] = await self._looker(shard).submit([canonical], namespace)
        if dag is None or dag.namespace != namespace:
            raise NotFound("there is no such DAG in this namespace")
        return shard, dag

    def _looker(self, shard: Shard) -> Batcher[str, Dag | None]:
        if shard.number not in self._looking:

            async def flush(dag_ids: list[str]) -> list[Dag | None]:
                found = await store.reads.get_dags(shard, list(set(dag_ids)))
                return [found.get(dag_id) for dag_id in dag_ids]

            limits = BatcherLimits(_DAGS_PER_LOOK_MAX, wait_s=self._settings.standing_wait_s_max)
            self._looking[shard.number] = Batcher(flush, limits, Urgency.LIST, shard.pool)
        return self._looking[shard.number]

    async def _page(
        self, shard: Shard, dag: Dag, state: str | None, after_no: int, limit: int
    ) -> tuple[list[ShownNode], int]:
        """Up to `limit` rows, and how far they reach; looks at a bounded number of nodes, and of bytes."""
        left = self._settings.page_bytes_max
        if state is None:
            rows = await store.reads.nodes_page(
                shard,
                states=None,
                after_no=after_no,
                last_no=dag.last_no,
                rows_max=limit,
                bytes_max=left,
                over=dag.over,
            )
            return rows, rows[-1].no if rows else dag.last_no
        rows = []
        for _ in range(_SCANS_PER_PAGE):
            last_no = min(after_no + self._settings.list_scan_nodes_max, dag.last_no)
            room = limit - len(rows)
            found = await store.reads.nodes_page(
                shard,
                states=[state],
                after_no=after_no,
                last_no=last_no,
                rows_max=room,
                bytes_max=left,
                over=dag.over,
            )
            rows += found
            left -= found[-1].bytes if found else 0
            if len(found) == room or left <= 0:
                return rows, found[-1].no
            after_no = last_no
            if after_no >= dag.last_no:
                break
        return rows, after_no

    async def _fitting(self, shard: Shard, dag: Dag, rows: Sequence[ShownNode]) -> Sequence[ShownNode]:
        """As many of these rows, one at least, as have no more than `page_edges_max` edges together."""
        limit = self._settings.page_edges_max
        nos = [row.no for row in rows]
        outs = await store.reads.out_degrees(shard, nos, limit, over=dag.over) if rows else {}
        total = 0
        for i, row in enumerate(rows):
            total += row.upstreams + outs[row.no]
            if total > limit and i > 0:
                return rows[:i]
        return rows

    async def _details(self, shard: Shard, dag: Dag, rows: Sequence[ShownNode]) -> list[NodeDetail]:
        """The rows, or the first of them, with what surrounds them: as many as that has room for."""
        around = await surroundings.of(shard, dag, rows, self._settings.page_bytes_max)
        found = {row.no: NodeDetail(row) for row in around.rows}
        if not found:
            return []
        if around.is_cut:
            found[around.rows[-1].no].is_cut = True
        waiting = {no for no, detail in found.items() if detail.row.state == "blocked"}
        kept = await store.reads.kept_since(shard, dag) if waiting else HeldSince()
        for no, key, state, satisfied, since, _ in around.upstreams:
            found[no].upstream.append(key)
            if no in waiting and not satisfied:
                blocker = {"kind": "node", "key": key, "state": state, "since": since}
                found[no].blocked_by.append(blocker)
        for no, key, _ in around.downstreams:
            found[no].downstream.append(key)
        by_key = {detail.row.key: no for no, detail in found.items()}
        for key, name, resolved, failed, reason, deadline_at, _ in around.externals:
            no = by_key[key]
            external = {"name": name, "resolved": resolved, "failed": failed}
            if deadline_at is not None or reason is not None:
                external |= {"deadline_at": deadline_at, "reason": reason}
            found[no].externals.append(external)
            if no in waiting and not resolved:
                since = begun_at(found[no].row)
                found[no].blocked_by.append({"kind": "external", "name": name, "since": since})
        for no in waiting:
            found[no].blocked_by += obstacles(dag, begun_at(found[no].row), kept)
            if found[no].row.run_on is not None and dag.cleanup_phase < 2:
                found[no].blocked_by.append({"kind": "end", "since": begun_at(found[no].row)})
        await self._add_kinds(shard, found)
        return list(found.values())

    async def _add_kinds(self, shard: Shard, found: dict[NodeNo, NodeDetail]) -> None:
        """When timers end, and what compensations undo."""
        if timers := [no for no, detail in found.items() if detail.row.timer]:
            for no, timer in (await store.timers.of(shard, timers)).items():
                found[no].timer = {**json.loads(timer.spec), "due_at": timer.due_at}
        if undo := [no for no, detail in found.items() if detail.row.run_on == UNDO]:
            for no, key in (await store.cleanup.compensated_keys(shard, undo)).items():
                found[no].compensates = key


def _graph_too_large(bytes_max: int) -> LimitExceeded:
    return LimitExceeded(
        f"the graph takes over {bytes_max} bytes as a whole; go through its nodes page by page, each has its edges"
    )
