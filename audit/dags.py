"""A DAG shard by itself: counters and states against nodes, edges and externals."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from audit.finding import Finding
from audit.reading import CHUNK_ROWS, FINDINGS_MAX, SQL, Reader, Scope, Tick, silent

_DAGS_PER_PAGE = 200


async def check(shard: Reader, scope: Scope, tick: Tick = silent) -> list[Finding]:
    """What is wrong with a shard's DAGs, all of it as of one moment; at most about FINDINGS_MAX."""
    found: list[Finding] = []
    async with shard.snapshot():
        only_no: int | None = None
        async for page in pages(shard, scope):
            only_no = next(iter(page))
            for row in await shard.fetch(SQL.wrong_totals, nos=list(page)):
                found.append(_finding("dag_totals", shard, row["id"], row["no"], None))
            still = [no for no, dag in page.items() if not dag["walking"]]
            for row in await shard.fetch(SQL.unended, nos=still):
                found.append(_finding("dag_unended", shard, row["id"], row["no"], None))
            for row in await shard.fetch(SQL.ended_early, nos=list(page)):
                found.append(_finding("dag_ended_early", shard, row["id"], row["no"], None))
            await _nodes(shard, page, found, tick)
            if len(found) >= FINDINGS_MAX:
                return found
        if scope.dag is None or only_no is not None:
            await _left(shard, scope, only_no if scope.dag else None, found)
    return found


async def pages(shard: Reader, scope: Scope) -> AsyncIterator[dict[int, Any]]:
    """The DAGs in scope, in order, some at a time, by number."""
    after = 0
    while page := await shard.fetch(
        SQL.dags_page, after_no=after, dag_id=scope.dag, since=scope.since, rows_max=_DAGS_PER_PAGE
    ):
        after = page[-1]["no"]
        yield {row["no"]: row for row in page}


async def stretches(shard: Reader, page: dict[int, Any], tick: Tick) -> AsyncIterator[tuple[int, int]]:
    """The numbers of a page's nodes as (after, last), so many rows at a time."""
    after, last = (min(page) << 22) - 1, ((max(page) + 1) << 22) - 1
    while (found := await shard.row(SQL.stretch, after_no=after, last_no=last, rows_max=CHUNK_ROWS))["rows"]:
        tick(found["rows"])
        yield after, found["last_no"]
        after = found["last_no"]


async def _nodes(shard: Reader, page: dict[int, Any], found: list[Finding], tick: Tick) -> None:
    async for after, last in stretches(shard, page, tick):
        for node in await shard.fetch(SQL.wrong_nodes, after_no=after, last_no=last, rows_max=CHUNK_ROWS):
            dag = page.get(node["no"] >> 22)
            if dag is not None and (kind := _kind(node, dag["walking"])) is not None:
                found.append(_finding(kind, shard, f"{dag['id']} {node['key']}", dag["no"], node["no"]))
        for node in await shard.fetch(SQL.lost_timers, after_no=after, last_no=last):
            if (dag := page.get(node["no"] >> 22)) is not None:
                ident = f"{dag['id']} {node['key']}"
                found.append(_finding("timer_lost", shard, ident, dag["no"], node["no"]))


def _kind(node: Any, walking: bool) -> str | None:
    """What is wrong with a node; what a walk is still to count or decide is not."""
    if node["counters"]:
        return "node_counters"
    if walking:
        return None
    return "edge_unflipped" if node["unflipped"] else "node_stuck" if node["stuck"] else None


def _finding(kind: str, shard: Reader, ident: str, dag_no: int, node_no: int | None) -> Finding:
    return Finding(kind, shard.address.schema, ident, {"dag_no": dag_no, "node_no": node_no})


async def _left(shard: Reader, scope: Scope, dag_no: int | None, found: list[Finding]) -> None:
    """What should have been gone on with long ago."""
    schema, limits = shard.address.schema, {"age_s": scope.age_s, "dag_no": dag_no, "rows_max": FINDINGS_MAX}
    for row in await shard.fetch(SQL.old_outbox, **limits):
        found.append(Finding("outbox_old", schema, f"{row['id']} {row['key']}", {"action": row["action"]}))
    for row in await shard.fetch(SQL.old_adding, **limits):
        found.append(Finding("adding_old", schema, row["id"]))
