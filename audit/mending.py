"""The repairs: each a compare-and-set under the locks that the services take, so that twice is harmless."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from audit.finding import Finding
from audit.reading import SQL, Reader
from shared import ids

CHUNK = 500

# Cancels managed items by id, as the DAG service would: (namespace, ids) to how many it did.
Cancel = Callable[[str, Sequence[str]], Awaitable[int]]


async def mend(findings: Sequence[Finding], shards: Mapping[str, Reader], cancel: Cancel) -> int:
    """Mend what can be mended; how many findings that was. `shards` by schema."""
    done = await _mend_dags(findings, shards)
    done += await _mend_counts(findings, shards)
    orphans: dict[str, list[str]] = {}
    for finding in findings:
        shard = shards[finding.shard]
        if finding.kind == "item_orphaned":
            orphans.setdefault(finding.detail["namespace"], []).append(finding.ident)
        elif finding.kind in ("item_lost", "revive_lost", "sub_lost"):
            done += await _send_again(shard, finding.detail)
        elif finding.kind == "timer_lost":
            done += await _restart_timer(shard, finding.detail)
        elif finding.kind == "disabled_lost":
            done += await _make_anew(shard, finding.detail)
        elif finding.kind == "sub_end_lost":
            done += await _report_again(shards[finding.detail["home"]], finding.detail["sub_no"])
        elif finding.kind == "end_lost":
            done += await _tell_end(shards, finding)
        elif finding.kind == "item_nowhere":
            done += await _place(shard, finding.ident)
        elif finding.kind == "place_empty":
            drop = getattr(SQL, f"drop_{finding.detail['place']}")
            done += await shard.row(drop, id=finding.ident) is not None
    for namespace, item_ids in orphans.items():
        for start in range(0, len(item_ids), CHUNK):
            done += await cancel(namespace, item_ids[start : start + CHUNK])
    return done


async def _mend_dags(findings: Sequence[Finding], shards: Mapping[str, Reader]) -> int:
    """Recount, under the DAG's lock, and let the service decide anew what that may change."""
    wrong: dict[tuple[str, int], list[int]] = {}
    counted = 0
    for finding in findings:
        if finding.kind in ("node_counters", "edge_unflipped", "dag_totals", "dag_unended", "node_stuck"):
            nos = wrong.setdefault((finding.shard, finding.detail["dag_no"]), [])
            if finding.detail["node_no"] is not None:
                nos.append(finding.detail["node_no"])
            counted += 1
    for (schema, dag_no), nos in wrong.items():
        shard = shards[schema]
        for start in range(0, max(len(nos), 1), CHUNK):
            part = sorted(nos)[start : start + CHUNK]
            async with shard.connection.transaction():
                await shard.fetch(SQL.lock_dag, no=dag_no)
                await shard.fetch(SQL.flag_edges, nos=part)
                await shard.fetch(SQL.recount_nodes, nos=part)
                await shard.fetch(SQL.recount_totals, no=dag_no)
                await shard.fetch(SQL.decide_again, no=dag_no)
    return counted


async def _mend_counts(findings: Sequence[Finding], shards: Mapping[str, Reader]) -> int:
    """Counts are compared anew, by one snapshot, once no other repair does the same."""
    done = 0
    for schema in sorted({finding.shard for finding in findings if finding.kind == "counts_wrong"}):

        async def work(shard: Reader) -> int:
            rows = await shard.fetch(SQL.wrong_counts)
            for row in rows:
                names = ("topic_id", "ready", "delayed", "leased", "disabled", "dead", "bytes")
                await shard.fetch(SQL.add_counts, **{name: row[name] for name in names})
            return len(rows)

        done += await _locked(shards[schema], "counts", work)
    return done


async def _send_again(shard: Reader, node: Mapping[str, Any]) -> int:
    # What it is given is fetched by the handler: the same values, by reference.
    path = f"/v1/namespaces/{node['namespace']}/dags/{node['dag']}/node/inputs?key={quote(node['key'], safe='')}"
    inputs = json.dumps({"$ref": path}) if node["pass_outputs"] else None
    async with shard.connection.transaction():
        await shard.fetch(SQL.lock_dag, no=node["dag_no"])
        row = await shard.row(
            SQL.send_again,
            node_no=node["no"],
            generation=node["generation"],
            item_id=node["item_id"],
            inputs=inputs,
        )
    return int(row is not None)


async def _restart_timer(shard: Reader, node: Mapping[str, Any]) -> int:
    async with shard.connection.transaction():
        await shard.fetch(SQL.lock_dag, no=node["dag_no"])
        row = await shard.row(SQL.restart_timer, node_no=node["node_no"])
    return int(row is not None)


async def _make_anew(shard: Reader, node: Mapping[str, Any]) -> int:
    async with shard.connection.transaction():
        await shard.fetch(SQL.lock_dag, no=node["dag_no"])
        row = await shard.row(
            SQL.make_anew, node_no=node["no"], generation=node["generation"], item_id=node["item_id"]
        )
    return int(row is not None)


async def _report_again(shard: Reader, dag_no: int) -> int:
    async with shard.connection.transaction():
        await shard.fetch(SQL.lock_dag, no=dag_no)
        row = await shard.row(SQL.report_again, no=dag_no)
    return int(row is not None)


async def _tell_end(shards: Mapping[str, Reader], finding: Finding) -> int:
    """Put the completion back that was lost. It carries no output: that went with it."""
    node = finding.detail
    service, _, number = finding.shard.rpartition("_")
    queue = shards[f"{service.removesuffix('dag')}queue_{ids.shard_of(node['item_id']):03d}"]
    context = json.dumps({"dag": node["dag"], "node": node["key"], "generation": node["generation"]})

    async def work(queue: Reader) -> int:
        if await queue.fetch(SQL.waiting_completions, ids=[node["item_id"]]):
            return 0
        row = await queue.row(
            SQL.tell_end,
            item_id=node["item_id"],
            topic=node["topic"],
            namespace=node["namespace"],
            dag_shard=f"acks/{int(number):03d}",
            outcome=node["outcome"],
            attempt=(node["attempts"] or 0) + (node["outcome"] == "acked"),
            error=node["error"],
            context=context,
        )
        return int(row is not None)

    return await _locked(queue, "ends", work)


async def _place(shard: Reader, item_id: str) -> int:
    async def work(shard: Reader) -> int:
        return int(await shard.row(SQL.place_item, id=item_id) is not None)

    return await _locked(shard, "places", work)


async def _locked(shard: Reader, name: str, work: Callable[[Reader], Awaitable[int]]) -> int:
    """One repair of a kind at a time on a shard; its statements look after it has the lock."""
    async with shard.connection.transaction():
        await shard.fetch(SQL.serialize, name=name)
        return await work(shard)
