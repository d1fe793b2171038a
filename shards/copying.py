"""Copying a fenced schema to another server, table by table, and comparing what arrived."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from shards.door import Refused, tables

_CHUNKS_MAX = 16

Report = Callable[[str, int, int], None]


async def copy_schema(
    source: Any, from_schema: str, target: Any, to_schema: str, report: Report
) -> dict[str, int]:
    """Fill the tables of `to_schema` with those of `from_schema`; rows by table.

    Runs in the target's open transaction. `report` is told (table, bytes so far, bytes in all, about).

    Raises:
        Refused: the schemas differ, or what arrived is not what was sent.
    """
    names = await tables(source, from_schema)
    if names != await tables(target, to_schema):
        raise Refused("the two servers' schemas have different tables: are both at the newest revision?")
    total = await source.fetchval(
        "SELECT coalesce(sum(pg_table_size(format('%I.%I', $1::text, name)::regclass)), 0)::bigint "
        "FROM unnest($2::text[]) AS name",
        from_schema,
        names,
    )
    done = 0
    await target.execute(f"TRUNCATE {', '.join(f'{to_schema}.{name}' for name in names)}")
    for name in names:
        columns = await _columns(source, from_schema, name)
        if columns != await _columns(target, to_schema, name):
            raise Refused(f"table {name} has different columns on the two servers")

        def moved(count: int, name: str = name) -> None:
            nonlocal done
            done += count
            report(name, done, max(total, done))

        await _pump(source, from_schema, target, to_schema, name, [column for column, _ in columns], moved)
    await _copy_sequences(source, from_schema, target, to_schema)
    return await _compare(source, from_schema, target, to_schema, names)


async def _pump(
    source: Any,
    from_schema: str,
    target: Any,
    to_schema: str,
    table: str,
    columns: list[str],
    moved: Callable[[int], None],
) -> None:
    chunks: asyncio.Queue[bytes | None] = asyncio.Queue(_CHUNKS_MAX)

    async def take(data: bytes) -> None:
        await chunks.put(data)

    async def read() -> None:
        try:
            await source.copy_from_table(
                table, schema_name=from_schema, columns=columns, output=take, format="binary"
            )
        finally:
            await chunks.put(None)

    async def sent() -> AsyncIterator[bytes]:
        while (data := await chunks.get()) is not None:
            moved(len(data))
            yield data

    reading = asyncio.create_task(read())
    try:
        await target.copy_to_table(table, schema_name=to_schema, columns=columns, source=sent(), format="binary")
        await reading
    finally:
        reading.cancel()


async def _columns(connection: Any, schema: str, table: str) -> list[tuple[str, str]]:
    rows = await connection.fetch(
        "SELECT attname, format_type(atttypid, atttypmod) AS type FROM pg_attribute "
        "WHERE attrelid = format('%I.%I', $1::text, $2::text)::regclass AND attnum > 0 AND NOT attisdropped "
        "AND attgenerated = '' ORDER BY attnum",
        schema,
        table,
    )
    return [(row["attname"], row["type"]) for row in rows]


async def _copy_sequences(source: Any, from_schema: str, target: Any, to_schema: str) -> None:
    for row in await source.fetch("SELECT sequencename FROM pg_sequences WHERE schemaname = $1", from_schema):
        name = row["sequencename"]
        at = await source.fetchrow(f"SELECT last_value, is_called FROM {from_schema}.{name}")
        await target.execute(
            "SELECT setval(format('%I.%I', $1::text, $2::text)::regclass, $3, $4)",
            to_schema,
            name,
            at["last_value"],
            at["is_called"],
        )


async def _compare(source: Any, from_schema: str, target: Any, to_schema: str, names: list[str]) -> dict[str, int]:
    counts = {}
    for name in names:
        here, there = await asyncio.gather(
            source.fetchrow(_digest(from_schema, name)), target.fetchrow(_digest(to_schema, name))
        )
        if tuple(here) != tuple(there):
            raise Refused(f"table {name} did not arrive as it was sent: {tuple(here)} became {tuple(there)}")
        counts[name] = int(here["count"])
    return counts


def _digest(schema: str, table: str) -> str:
    """Rows, and a sum over the hashes of their texts: the order in which rows lie does not matter."""
    return (
        "SELECT count(*) AS count, "
        "coalesce(sum(('x' || left(md5(t::text), 15))::bit(60)::bigint::numeric), 0)::text AS digest "
        f"FROM {schema}.{table} t"
    )
