"""DAG shards against the queue: items that one side knows and the other has lost.

The two are never read at one moment, so every difference is looked at again on the side that was read first. An
item's end and its completion are one transaction, and a completion is acked only after the DAG has committed it:
whoever finds neither item nor completion, and then the node still released, has found a loss.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from audit.dags import pages, stretches
from audit.finding import Finding
from audit.queues import NO_ID
from audit.reading import CHUNK_ROWS, SQL, Reader, Scope, Tick, silent
from shared import ids

_STATES = {"disabled": "revive_lost", "dead": "end_lost"}


async def check(
    dag_shards: Sequence[Reader], queue_shards: Sequence[Reader], scope: Scope, tick: Tick = silent
) -> list[Finding]:
    """Released nodes without items, items without nodes."""
    queues = {shard.address.number: shard for shard in queue_shards}
    found: list[Finding] = []
    for shard in dag_shards:
        async for page in pages(shard, scope):
            found += await _released(shard, page, queues, scope, tick)
    if scope.dag is None:
        for shard in queue_shards:
            found += await _managed(shard, {s.address.number: s for s in dag_shards}, scope, tick)
    return found


async def _released(
    shard: Reader, page: dict[int, Any], queues: dict[int, Reader], scope: Scope, tick: Tick
) -> list[Finding]:
    found: list[Finding] = []
    async for after, last in stretches(shard, page, tick):
        rows = await shard.fetch(
            SQL.released_page, after_no=after, last_no=last, age_s=scope.age_s, rows_max=CHUNK_ROWS
        )
        nodes = [row for row in rows if row["dag_no"] in page]
        suspects = await _suspects(shard.address.schema, nodes, queues)
        if not suspects:
            continue
        still = await shard.fetch(
            SQL.still_released,
            nos=[finding.detail["no"] for finding in suspects],
            generations=[finding.detail["generation"] for finding in suspects],
        )
        lost = {row["no"] for row in still}
        found += [finding for finding in suspects if finding.detail["no"] in lost]
    return found


async def _suspects(schema: str, nodes: Sequence[Any], queues: dict[int, Reader]) -> list[Finding]:
    by_queue: dict[int, dict[str, Any]] = {}
    for node in nodes:
        by_queue.setdefault(ids.shard_of(node["item_id"]), {})[node["item_id"]] = node
    suspects: list[Finding] = []
    for number, wanted in by_queue.items():
        queue = queues.get(number)
        if queue is None:
            continue  # not of the map that was given: nothing can be said
        async with queue.snapshot():
            facts = await queue.fetch(SQL.item_facts, ids=list(wanted))
            asked = [row["id"] for row in facts if not row["lives"] or row["parked"] is not None]
            told = await queue.fetch(SQL.waiting_completions, ids=asked) if asked else []
        waiting = {row["id"]: row["reason"] for row in told}
        for row in facts:
            kind = _judge(row, waiting)
            if kind is not None:
                node = wanted[row["id"]]
                outcome = "dead" if row["parked"] == "dead" else row["outcome"]
                detail = {**dict(node), "outcome": outcome, "attempts": row["attempts"], "error": row["error"]}
                suspects.append(Finding(kind, schema, f"{node['dag']} {node['key']}", detail))
    return suspects


def _judge(fact: Any, waiting: dict[str, str | None]) -> str | None:
    """What is wrong with a released node's item; None when nothing is."""
    if fact["id"] in waiting:
        return "end_given_up" if waiting[fact["id"]] == "dead" else None
    if fact["lives"]:
        return _STATES.get(fact["parked"])
    return "end_lost" if fact["outcome"] else "item_lost"


async def _managed(shard: Reader, dag_shards: dict[int, Reader], scope: Scope, tick: Tick) -> list[Finding]:
    found: list[Finding] = []
    after = NO_ID
    while page := await shard.fetch(
        SQL.managed_page, after_id=after, age_s=scope.age_s, since=scope.since, rows_max=CHUNK_ROWS
    ):
        after = page[-1]["id"]
        tick(len(page))
        by_dag: dict[int, dict[str, tuple[str, str]]] = {}
        for row in page:
            context = json.loads(row["ack_context"]) if row["counts"] else {}
            if "dag" in context:
                by_dag.setdefault(ids.shard_of(context["dag"]), {})[row["id"]] = (context["dag"], context["node"])
        orphans: list[str] = []
        for number, items in by_dag.items():
            if number in dag_shards:
                known = await dag_shards[number].fetch(
                    SQL.owners,
                    dags=[dag for dag, _ in items.values()],
                    keys=[key for _, key in items.values()],
                    item_ids=list(items),
                )
                orphans += items.keys() - {row["item_id"] for row in known}
        spaces = {row["id"]: row["namespace"] for row in page}
        if orphans:
            again = await shard.fetch(SQL.item_facts, ids=sorted(orphans))
            found += [
                Finding("item_orphaned", shard.address.schema, row["id"], {"namespace": spaces[row["id"]]})
                for row in again
                if row["lives"] and row["parked"] != "dead"
            ]
    return found
