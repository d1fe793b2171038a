"""Taking a drained shard out of the map, once nothing lives there and nothing is remembered there.

The shard is fenced, as for a move, and looked at under the fence's lock: what came between a look and the fence is
seen. Its schema stays, closed, until somebody drops it: its number is in ids, and is never used again.
"""

from __future__ import annotations

from typing import Any

import asyncpg

from shards.door import Refused, connect, identity, lock, server, tables
from shards.held import Held
from shards.moving import FENCE_TRIES, LOCK_TIMEOUT, who_holds
from shared.crash import crash_point
from shared.ids import ShardNo
from shared.settings import ShardAddress, fenced

# What must be empty, and what it is called.
_CONTENTS = {
    "item": "items",
    "lease": "leases",
    "dedup": "idempotency keys",
    "acked": "ids that ended within the id window",
    "ended": "ids that ended within the id window",
    "ended_old": "ids that ended within the id window",
    "operation": "running operations",
}
_RUNNING = {"operation": "WHERE state = 'running' OR unplaced <> '{}'"}


async def remove(held: Held, number: ShardNo, *, only_look: bool = False) -> None:
    """Take a shard out of the map, or finish doing so.

    Raises:
        Refused: it is not draining, slots call it home, something lives there, or it is being moved.
    """
    address = held.address(number)
    if held.plan.service == "dag":
        raise Refused(
            "the keys of DAGs call their shard home for good: a DAG shard stays in the map; to give up its server"
            f" `move {number}` to one that stays, beside other shards"
        )
    if not address.draining:
        raise Refused(f"shard {number} takes new items: `drain {number}` first")
    if slots := held.plan.slots_of(number):
        raise Refused(f"{len(slots)} slots call shard {number} home: `slots --rebalance` first")
    connection = await connect(address.dsn)
    try:
        await lock(connection, address)
        known = await identity(connection, fenced(address.schema))
        if known is None or known.state != "removed":
            await _close(connection, address, only_look=only_look)
        crash_point("shard_closed")
        if not only_look:
            held.drop(number)
    finally:
        await connection.close()


async def _close(connection: Any, address: ShardAddress, *, only_look: bool) -> None:
    schema = address.schema
    known = await identity(connection, schema)
    if known is None or not address.is_met_by(known.number, known.epoch, known.incarnation):
        raise Refused(f"{schema} is not open at {server(address.dsn)}: is it being moved?")
    if "slots" in known.move:  # another note is of the move that brought the shard here
        raise Refused(f"slots of shard {address.number} are on their way: finish that with `slots --rebalance`")
    await _check_empty(connection, schema)
    if only_look:
        return
    for attempt in range(FENCE_TRIES):
        try:
            async with connection.transaction():
                await connection.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
                names = [f"{schema}.{name}" for name in await tables(connection, schema)]
                await connection.execute(f"LOCK TABLE {', '.join(names)} IN ACCESS EXCLUSIVE MODE")
                await _check_empty(connection, schema)
                await connection.execute(f"UPDATE {schema}.shard SET state = 'removed', epoch = epoch + 1")
                await connection.execute(f"ALTER SCHEMA {schema} RENAME TO {fenced(schema)}")
            return
        except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError) as error:
            if attempt == FENCE_TRIES - 1:
                raise Refused(await who_holds(connection, schema)) from error


async def _check_empty(connection: Any, schema: str) -> None:
    for table, what in _CONTENTS.items():
        if await connection.fetchval(f"SELECT EXISTS (SELECT FROM {schema}.{table} {_RUNNING.get(table, '')})"):
            raise Refused(f"{schema} still holds {what}: wait until they are gone")
