"""Maps and their entries: a file from the environment, new shards, shards that are drained."""

from __future__ import annotations

from dataclasses import replace

import asyncpg

from migrations.shard import MigrationFailed, upgrade
from shards.door import Identity, Refused, connect, identity, lock, server
from shards.held import Held
from shards.slots import write_homes
from shared.ids import ShardNo
from shared.settings import ShardAddress

# What tells whether a shard holds anything, by service.
CONTENTS = {"queue": "item", "dag": "dag"}


async def write_first(held: Held) -> None:
    """Write a map's first version, with what each shard says of itself; each learns its slots.

    Raises:
        Refused: a shard cannot be reached, or is not there.
    """
    addresses = []
    for address in held.plan.shards:
        known = await known_at(address)
        addresses.append(replace(address, epoch=known.epoch, incarnation=known.incarnation))
        if held.plan.service == "queue":
            await write_homes(held, address, held.plan.slots_of(address.number))
    held.put(*addresses)


async def add(held: Held, number: ShardNo, dsn: str) -> None:
    """Make a shard and put it into the map. It has no slots yet.

    Raises:
        Refused: the number is taken, or a shard is there that holds something.
    """
    service = held.plan.service
    address = ShardAddress(number, f"{service}_{number:03d}", dsn)
    if any(known.number == number for known in held.plan.shards):
        raise Refused(f"the map has a shard {number} already")
    try:
        await upgrade(address)
    except (MigrationFailed, OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise Refused(f"{address.schema} cannot be made at {server(dsn)}: {error}") from error
    connection = await connect(dsn)
    try:
        await lock(connection, address)
        if await connection.fetchval(f"SELECT EXISTS (SELECT FROM {address.schema}.{CONTENTS[service]})"):
            raise Refused(f"{address.schema} at {server(dsn)} is not empty: it is no new shard")
    finally:
        await connection.close()
    if service == "queue":
        await write_homes(held, address, ())
    known = await known_at(address)
    held.put(replace(address, epoch=known.epoch, incarnation=known.incarnation))


def set_draining(held: Held, number: ShardNo, draining: bool) -> None:
    """Say that a shard is to take nothing new, or may again.

    Raises:
        Refused: it is the last one that takes something.
    """
    address = held.address(number)
    others = [known for known in held.plan.shards if known.number != number and not known.draining]
    if draining and not others:
        raise Refused("no other shard would be left to take what is new")
    if address.draining != draining:
        held.put(replace(address, draining=draining))


async def known_at(address: ShardAddress) -> Identity:
    """Who the shard at an address says it is.

    Raises:
        Refused: it cannot be reached, or is not open there.
    """
    connection = await connect(address.dsn)
    try:
        known = await identity(connection, address.schema)
    finally:
        await connection.close()
    if known is None:
        raise Refused(f"{address.schema} is not open at {server(address.dsn)}: run `python -m migrations up`?")
    return known
