"""Moving a whole shard to another server.

Where a move stands is written in the two schemas, so the same command goes on from wherever it was stopped::

    open ──fence──> moving ──copy, compare, open there: one transaction──> the map is flipped ──> moved
         <──abort──

While it is `moving` the shard answers nobody: calls get 503 with outcome `none`, or `unknown` where they were
under way. Nothing else waits for it.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, replace
from typing import Any

import asyncpg

from migrations.shard import upgrade
from shards.copying import Report, copy_schema
from shards.door import Identity, Refused, connect, identity, lock, server, tables
from shards.held import Held
from shared.crash import crash_point
from shared.ids import ShardNo
from shared.postgres.schema import head
from shared.settings import ShardAddress, fenced

# Longer than a service's statements and idle transactions may take, so that waiting for them is enough.
LOCK_TIMEOUT = "15s"
FENCE_TRIES = 5

_SAME_DATABASE = "SELECT pg_postmaster_start_time()::text || current_setting('port') || current_database()"


@dataclass(slots=True)
class Places:
    """Both ends of a move, locked against other commands, and what is found there."""

    address: ShardAddress
    to: ShardAddress
    source: Any
    target: Any
    here: Identity
    there: Identity | None
    left: Identity | None

    @property
    def stage(self) -> str:
        """What comes next: `fence`, `copy` or `flip`."""
        if self.here.state == "open":
            return "fence"
        return "flip" if self.there is not None else "copy"


def incoming(schema: str) -> str:
    """What the schema of a shard is called where it arrives, until it is whole."""
    return f"incoming_{schema}"


async def look(held: Held, number: ShardNo, dsn: str) -> Places:
    """Both ends of a move, ready to go on.

    Raises:
        Refused: there is nothing to move, or something is in the way.
    """
    address = held.address(number)
    to = replace(address, dsn=dsn)
    source = await connect(address.dsn)
    try:
        target = await connect(dsn)
    except Refused:
        await source.close()
        raise
    try:
        if await source.fetchval(_SAME_DATABASE) == await target.fetchval(_SAME_DATABASE):
            raise Refused(f"shard {number} is in {server(dsn)} already")
        await lock(source, address)
        await lock(target, to)
        here = await identity(source, address.schema) or await identity(source, fenced(address.schema))
        if here is None or here.state not in ("open", "moving"):
            raise Refused(f"{address.schema} is not at {server(address.dsn)}, where the map has it")
        there = await identity(target, address.schema)
        if there is not None and (here.state == "open" or there.move.get("id") != here.move.get("id")):
            raise Refused(f"{server(dsn)} has a schema {address.schema} that no move of this shard made")
        if here.state == "moving" and here.move["to"] != server(dsn):
            raise Refused(f"its move to {here.move['to']} is not finished: go on with that, or --abort it")
        left = await identity(target, fenced(address.schema))
        if left is not None and left.epoch >= here.epoch:
            raise Refused(f"{server(dsn)} has a schema {left.schema} that is younger than the shard itself")
        if "slots" in here.move:
            raise Refused(f"slots of shard {number} are on their way: finish that with `slots --rebalance`")
        return Places(address, to, source, target, here, there, left)
    except BaseException:
        await source.close()
        await target.close()
        raise


async def move(held: Held, places: Places, report: Report) -> dict[str, int]:
    """Carry a move on to its end; rows copied by table, if that was still to be done."""
    counts: dict[str, int] = {}
    if places.stage == "fence":
        await _prepare(places)
        crash_point("move_prepared")
        await _fence(places)
    crash_point("move_fenced")
    if places.stage == "copy":
        counts = await _copy(places, report)
    crash_point("move_opened")
    assert places.there is not None
    held.put(replace(places.to, epoch=places.there.epoch, incarnation=places.there.incarnation))
    crash_point("move_flipped")
    await places.source.execute(f"UPDATE {fenced(places.address.schema)}.shard SET state = 'moved'")
    return counts


async def abort(held: Held, places: Places) -> None:
    """Open the shard again where it was. Only the map's flip is the end of a move, so this loses nothing.

    Raises:
        Refused: it is not being moved.
    """
    address, source, target = places.address, places.source, places.target
    if places.here.state != "moving":
        raise Refused(f"shard {address.number} is not being moved")
    for schema in (address.schema, incoming(address.schema)):
        # By the lock on both ends nobody is at work there, and no map ever named it.
        await target.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
    async with source.transaction():
        await source.execute(
            f"UPDATE {fenced(address.schema)}.shard SET state = 'open', move = NULL, epoch = epoch + 1, "
            "incarnation = gen_random_uuid()"
        )
        await source.execute(f"ALTER SCHEMA {fenced(address.schema)} RENAME TO {address.schema}")
    again = await identity(source, address.schema)
    assert again is not None
    held.put(replace(address, epoch=again.epoch, incarnation=again.incarnation))


async def drop_old(held: Held, number: ShardNo, dsn: str) -> int:
    """Drop what a move left at its source, but for the row that says so; how many tables went.

    Raises:
        Refused: there is nothing that a finished move left.
    """
    address = held.address(number)
    connection = await connect(dsn)
    try:
        left = await identity(connection, fenced(address.schema))
        if left is None or left.epoch >= address.epoch:
            raise Refused(f"{server(dsn)} has nothing that a finished move of shard {number} left")
        names = [name for name in await tables(connection, left.schema) if name != "shard"]
        if names:
            await connection.execute(f"DROP TABLE {', '.join(f'{left.schema}.{name}' for name in names)} CASCADE")
        return len(names)
    finally:
        await connection.close()


async def _prepare(places: Places) -> None:
    """Empty tables at the target, under a name that no service looks for."""
    schema = incoming(places.address.schema)
    service = places.address.schema.split("_")[0]
    revision = await places.source.fetchval(f"SELECT version_num FROM {places.here.schema}.alembic_version")
    if revision != head(service):
        raise Refused(f"{places.address.schema} is at revision {revision}: run `python -m migrations up` first")
    if places.left is not None:
        await places.target.execute(f"DROP SCHEMA {places.left.schema} CASCADE")
    await places.target.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
    await upgrade(replace(places.to, schema=schema))
    await places.target.execute(f"UPDATE {schema}.shard SET state = 'incoming'")


async def _fence(places: Places) -> None:
    """Take the shard away from everybody, whatever map and connections they have.

    The lock on every table waits for the transactions that have written, or read, and keeps others from
    beginning. With the schema's new name committed, statements that waited for the lock find no table.
    """
    source, schema = places.source, places.address.schema
    note = json.dumps({"id": str(uuid.uuid4()), "to": server(places.to.dsn)})
    for attempt in range(FENCE_TRIES):
        try:
            async with source.transaction():
                await source.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
                names = [f"{schema}.{name}" for name in await tables(source, schema)]
                await source.execute(f"LOCK TABLE {', '.join(names)} IN ACCESS EXCLUSIVE MODE")
                await source.execute(
                    f"UPDATE {schema}.shard SET state = 'moving', move = $1, epoch = epoch + 1", note
                )
                await source.execute(f"ALTER SCHEMA {schema} RENAME TO {fenced(schema)}")
            break
        except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError) as error:
            if attempt == FENCE_TRIES - 1:
                raise Refused(await who_holds(source, schema)) from error
    found = await identity(source, fenced(schema))
    assert found is not None
    places.here = found


async def who_holds(source: Any, schema: str) -> str:
    """Why a schema could not be locked: the transactions that hold its tables, in words."""
    rows = await source.fetch(
        "SELECT DISTINCT a.pid, a.application_name, coalesce(a.xact_start::text, '') AS since FROM pg_locks l "
        "JOIN pg_class c ON c.oid = l.relation JOIN pg_namespace n ON n.oid = c.relnamespace "
        "JOIN pg_stat_activity a ON a.pid = l.pid WHERE n.nspname = $1 AND l.pid <> pg_backend_pid()",
        schema,
    )
    who = ", ".join(f"{row['pid']} ({row['application_name']}, since {row['since']})" for row in rows)
    return f"{schema} is held by long transactions: end them and try again. They are: {who or 'gone by now'}"


async def _copy(places: Places, report: Report) -> dict[str, int]:
    schema, target = places.address.schema, places.target
    arriving = incoming(schema)
    async with target.transaction():
        if await identity(target, arriving) is None:
            raise Refused(f"{server(places.to.dsn)} has no {arriving}: --abort the move and begin again")
        counts = await copy_schema(places.source, places.here.schema, target, arriving, report)
        await target.execute(
            f"UPDATE {arriving}.shard SET state = 'open', epoch = epoch + 1, incarnation = gen_random_uuid()"
        )
        await target.execute(f"ALTER SCHEMA {arriving} RENAME TO {schema}")
        crash_point("move_copied")
    places.there = await identity(target, schema)
    for name in await tables(target, schema):
        await target.execute(f"ANALYZE {schema}.{name}")
    return counts
