"""A close look at one shard: what its server tells, and how this process itself sees it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

from shared.errors import ServiceError
from shared.postgres.sql import Statement, load
from shared.shards.ownership import Ownership
from shared.shards.shard_map import Shard, ShardMap

SQL = load(Path(__file__).parent)
_EXTENSIONS = load(Path(__file__).with_name("extensions"))
_PARTS = {
    "sessions": SQL.inspect_sessions,
    "transactions": SQL.inspect_transactions,
    "locks": SQL.inspect_locks,
    "tables": SQL.inspect_tables,
    "standbys": SQL.inspect_standbys,
}


async def look(shard: Shard) -> dict[str, Any]:
    """What the server tells; a part that it does not tell is None, and `untold` says why."""
    untold: list[str] = []

    async def rows(name: str, statement: Statement) -> list[dict[str, Any]] | None:
        try:
            return [dict(row) for row in await shard.pool.fetch(statement)]
        except ServiceError as error:
            untold.append(f"{name}: {error.detail}")
        except Exception as error:  # what a role may not see is as good as not there
            untold.append(f"{name}: {type(error).__name__}")
        return None

    found: dict[str, Any] = {name: await rows(name, statement) for name, statement in _PARTS.items()}
    server = await rows("server", SQL.inspect_server)
    found["server"] = server[0] if server else None
    found["statements"] = await _statements(rows)
    return found | {"untold": untold}


async def _statements(rows: Any) -> list[dict[str, Any]] | None:
    places = await rows("statements", SQL.inspect_extension)
    if not places:
        return None
    statement = _EXTENSIONS.inspect_statements
    text = statement.text.replace("extension.", f"{places[0]['schema']}.")
    found: list[dict[str, Any]] | None = await rows("statements", replace(statement, text=text))
    return found


def view(shard: Shard, shards: ShardMap, ownership: Ownership, connections_max: int) -> dict[str, Any]:
    """How this process sees the shard, from memory: it answers also where the shard does not."""
    owner = ownership.seen(shard.number)
    taken = sorted(shard.pool.latencies_s)
    address = shard.address
    return {
        "breaker": shard.breaker.state,
        "takes_items": shard.breaker.takes_items,
        "is_full": shard.breaker.is_full,
        "draining": shards.is_draining(shard.number),
        "owns": ownership.owns(shard.number),
        "owner": owner.name,
        "owner_epoch": owner.epoch,
        "map_version": shards.version,
        "schema": address.schema,
        "shard_epoch": address.epoch,
        "connections_in_use": shard.pool.line.taken + shard.relaxed.line.taken,
        "connections_max": 2 * connections_max,
        "calls_waiting": shard.pool.line.waiting + shard.relaxed.line.waiting,
        "latency_ms_p50": _ms(taken, 50),
        "latency_ms_p99": _ms(taken, 99),
    }


def why(shown: dict[str, Any], views: dict[str, dict[str, Any]]) -> str:
    """In a sentence: how the shard is, and what of it is the news."""
    told = list(views.values())
    away = sorted(name for name, each in views.items() if each["breaker"] != "closed")
    owners = {each["owner"] for each in told}
    waits = sum(each["calls_waiting"] for each in told)
    locks = len(shown.get("locks") or ())
    causes = (
        (
            len(away) == len(views),
            "It answers no process: its server is away, or the way to it is.",
        ),
        (away, f"It answers some processes, and not {', '.join(away)}: look at the way from there."),
        (any(each["is_full"] for each in told), "Its disk is full: it takes nothing new until there is room."),
        (_differ(told, "map_version"), "Not all processes follow the same version of the shard map yet."),
        (any(each["draining"] for each in told), "It drains, by the shard map: nothing new without an id comes."),
        (len(owners) > 1, "Processes name different owners: it changes hands, or one of them is slow to look."),
        (None in owners, "Nobody owns it, so its duties are done seldom: does any process of the service run?"),
        (waits, f"It answers; {waits} {'call waits' if waits == 1 else 'calls wait'} for a connection to it."),
        (locks, f"It answers; {locks} sessions wait for a lock."),
    )
    return next((said for holds, said in causes if holds), "It answers, and every process that was asked agrees.")


def _differ(told: list[dict[str, Any]], name: str) -> bool:
    return len({each[name] for each in told}) > 1


def _ms(taken: list[float], percent: int) -> float | None:
    return round(taken[len(taken) * percent // 100] * 1000, 3) if taken else None


async def looked_at(shard: Shard, seconds_max: float) -> dict[str, Any]:
    """`look`, unless it takes too long."""
    try:
        async with asyncio.timeout(seconds_max):
            return await look(shard)
    except TimeoutError:
        return dict.fromkeys((*_PARTS, "server", "statements")) | {"untold": ["the server did not answer in time"]}
