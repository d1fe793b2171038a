"""What the map says of each shard, and what each says of itself."""

from __future__ import annotations

from typing import Any

from shards.door import Refused, connect, identity, server
from shards.held import Held
from shards.moving import incoming
from shared.settings import ShardAddress, fenced
from shared.shards.map_file import Plan

_ITEMS = """
SELECT coalesce(sum(ready + delayed + leased + disabled + dead), 0)::bigint
FROM (SELECT ready, delayed, leased, disabled, dead FROM {0}.topic_stat
    UNION ALL SELECT ready, delayed, leased, disabled, dead FROM {0}.stat_delta) AS c
"""


async def rows(held: Held) -> list[tuple[str, ...]]:
    """A table of the shards, its header first."""
    found = [("shard", "server", "map", "state", "epoch", "slots", "items")]
    return found + [await _row(held.plan, address) for address in held.plan.shards]


async def _row(plan: Plan, address: ShardAddress) -> tuple[str, ...]:
    state = "draining" if address.draining else "active"
    slots = str(len(plan.slots_of(address.number)))
    try:
        connection = await connect(address.dsn)
    except Refused:
        return (address.schema, server(address.dsn), state, "unreachable", "", slots, "")
    try:
        found, epoch, items = await _look(connection, address)
    finally:
        await connection.close()
    return (address.schema, server(address.dsn), state, found, epoch, slots, items)


async def _look(connection: Any, address: ShardAddress) -> tuple[str, str, str]:
    for schema in (address.schema, fenced(address.schema), incoming(address.schema)):
        known = await identity(connection, schema)
        if known is None:
            continue
        items = ""
        if address.schema.startswith("queue") and await connection.fetchval(
            "SELECT to_regclass($1) IS NOT NULL", f"{schema}.topic_stat"
        ):
            items = str(await connection.fetchval(_ITEMS.format(schema)))
        said = f"moving to {known.move['to']}" if known.state == "moving" else known.state
        if known.state == "open" and not address.is_met_by(known.number, known.epoch, known.incarnation):
            said = "not the shard of the map"
        if "slots" in known.move:
            said += f", {len(known.move['slots'])} slots on their way to {known.move['target']}"
        return said, str(known.epoch), items
    return "not there", "", ""
