"""DAG shards against the queue and each other: items and sub-DAGs that one side knows and the other has lost.

The two are never read at one moment, so every difference is looked at again on the side that was read first. An
item's end and its completion are one transaction, and a completion is acked only after the DAG has committed it:
whoever finds neither item nor completion, and then the node as it was, has found a loss. A sub-DAG's end
and the outbox row that tells it are one transaction too.
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
from shared.ids import ShardNo

_STATES = {"disabled": "revive_lost", "dead": "end_lost"}


async def check(
    dag_shards: Sequence[Reader], queue_shards: Sequence[Reader], scope: Scope, tick: Tick = silent
) -> list[Finding]:
    """Nodes without items or sub-DAGs, items without nodes."""
    queues = {shard.address.number: shard for shard in queue_shards}
    homes = {shard.address.number: shard for shard in dag_shards}
    found: list[Finding] = []
    for shard in dag_shards:
        async for page in pages(shard, scope):
            found += await _waiting(shard, page, homes, queues, scope, tick)
    if scope.dag is None:
        for shard in queue_shards:
            found += await _managed(shard, homes, scope, tick)
    return found


async def _waiting(
    shard: Reader,
    page: dict[int, Any],
    dag_shards: dict[ShardNo, Reader],
    queues: dict[ShardNo, Reader],
    scope: Scope,
    tick: Tick,
) -> list[Finding]:
    found: list[Finding] = []
    async for after, last in stretches(shard, page, tick):
        rows = await shard.fetch(
            SQL.waiting_page, after_no=after, last_no=last, age_s=scope.age_s, rows_max=CHUNK_ROWS
        )
        nodes = [row for row in rows if row["dag_no"] in page and not page[row["dag_no"]]["cancelling"]]
        schema = shard.address.schema
        suspects = await _suspects(schema, [node for node in nodes if not node["sub"]], queues)
        suspects += await _sub_suspects(schema, [node for node in nodes if node["sub"]], dag_shards)
        if not suspects:
            continue
        still = await shard.fetch(
            SQL.still_waiting,
            nos=[finding.detail["no"] for finding in suspects],
            generations=[finding.detail["generation"] for finding in suspects],
            states=[finding.detail["state"] for finding in suspects],
        )
        lost = {row["no"] for row in still}
        found += [finding for finding in suspects if finding.detail["no"] in lost]
    return found


async def _sub_suspects(schema: str, nodes: Sequence[Any], dag_shards: dict[ShardNo, Reader]) -> list[Finding]:
    suspects: list[Finding] = []
    for number in sorted({ids.shard_of(node["item_id"]) for node in nodes} & dag_shards.keys()):
        wanted = [node for node in nodes if ids.shard_of(node["item_id"]) == number]
        home = dag_shards[number]
        facts = await home.fetch(SQL.sub_facts, ids=[node["item_id"] for node in wanted])
        known = {fact["id"]: fact for fact in facts}
        for node in wanted:
            fact = known.get(node["item_id"])
            ident = f"{node['dag']} {node['key']}"
            if fact is None or fact["generation"] < node["generation"]:
                suspects.append(Finding("sub_lost", schema, ident, dict(node)))
            elif fact["over"] and not fact["telling"]:
                detail = {**dict(node), "home": home.address.schema, "sub_no": fact["no"]}
                suspects.append(Finding("sub_end_lost", schema, ident, detail))
    return suspects


async def _suspects(schema: str, nodes: Sequence[Any], queues: dict[ShardNo, Reader]) -> list[Finding]:
    by_queue: dict[ShardNo, dict[str, Any]] = {}
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
            node = wanted[row["id"]]
            kind = _judge(row, node["state"], waiting)
            if kind is not None:
                outcome = "dead" if row["parked"] == "dead" else row["outcome"]
                detail = {**dict(node), "outcome": outcome, "attempts": row["attempts"], "error": row["error"]}
                suspects.append(Finding(kind, schema, f"{node['dag']} {node['key']}", detail))
    return suspects


def _judge(fact: Any, state: str, waiting: dict[str, str | None]) -> str | None:
    """What is wrong with the item of a node in this state; None when nothing is."""
    if fact["id"] in waiting:
        return "end_given_up" if waiting[fact["id"]] == "dead" else None
    if fact["lives"]:
        return None if (state, fact["parked"]) == ("blocked", "disabled") else _STATES.get(fact["parked"])
    if fact["outcome"]:
        return "end_lost"
    return "item_lost" if state == "released" else "disabled_lost"


async def _managed(shard: Reader, dag_shards: dict[ShardNo, Reader], scope: Scope, tick: Tick) -> list[Finding]:
    found: list[Finding] = []
    after = NO_ID
    while page := await shard.fetch(
        SQL.managed_page, after_id=after, age_s=scope.age_s, since=scope.since, rows_max=CHUNK_ROWS
    ):
        after = page[-1]["id"]
        tick(len(page))
        by_dag: dict[ShardNo, dict[str, tuple[str, str]]] = {}
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
