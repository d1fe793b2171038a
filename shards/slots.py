"""Slots and their homes: who should have which, and taking them there with their idempotency keys, and with the
gates of topics that have limits.

A slot's keys are refused (503, outcome `none`) from the moment its old home gives it up until the map names the
new one; other slots, and items without keys, notice nothing. Living items stay where they are.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from shards.door import Identity, Refused, connect, identity, lock, server
from shards.held import Held
from shared.crash import crash_point
from shared.ids import ShardNo, shard_of
from shared.settings import ShardAddress
from shared.shards.map_file import SLOTS, Plan, ranges, slot_of

BATCH_ROWS = 5_000
LOCK_TIMEOUT = "15s"

Moves = dict[tuple[ShardNo, ShardNo], list[int]]


def rebalanced(plan: Plan) -> Moves:
    """The fewest slots to take from one shard to another so that active shards have even shares, others none."""
    active = [address.number for address in plan.shards if not address.draining]
    if not active:
        raise Refused("every shard is draining: nobody is left to take slots")
    had = {address.number: plan.slots_of(address.number) for address in plan.shards}
    share, more = divmod(SLOTS, len(active))
    # Who has most keeps the odd ones, so that fewer move.
    order = sorted(active, key=lambda number: -len(had[number]))
    wanted = {number: share + (place < more) for place, number in enumerate(order)}
    free = [(number, slot) for number, slots in had.items() for slot in slots[wanted.get(number, 0) :]]
    moves: Moves = {}
    for number in active:
        for _ in range(wanted[number] - len(had[number])):
            source, slot = free.pop()
            moves.setdefault((source, number), []).append(slot)
    return moves


def multirange(slots: Sequence[int]) -> str:
    """Slots as Postgres writes an int4multirange."""
    homes = [0] * SLOTS
    for slot in slots:
        homes[slot] = 1
    return "{" + ",".join(f"[{first},{last + 1})" for first, last, home in ranges(homes) if home) + "}"


async def take(held: Held, source: ShardNo, target: ShardNo, slots: Sequence[int]) -> int:
    """Take slots from one shard to another, or carry on with what was begun; how many keys went along.

    Raises:
        Refused: a shard is away or being changed by somebody else.
    """
    here, there = held.address(source), held.address(target)
    connections = []
    try:
        for address in sorted((here, there), key=lambda address: address.number):
            connections.append(await connect(address.dsn))
            await lock(connections[-1], address)
        first, second = connections if source < target else reversed(connections)
        keys = 0
        if any(held.plan.homes[slot] != target for slot in slots):
            await _give_up(held.plan, first, here, target, slots)
            crash_point("slots_given_up")
            keys = await _bring(held.plan, first, here, second, there, set(slots))
            crash_point("slots_brought")
            homes = list(held.plan.homes)
            for slot in slots:
                homes[slot] = target
            held.put(homes=tuple(homes))
        # From here on the new home's rows are the truth: nothing may be brought again.
        crash_point("slots_flipped")
        await _forget(first, here)
        return keys
    finally:
        for connection in connections:
            await connection.close()


async def unfinished(held: Held) -> list[tuple[ShardNo, ShardNo, list[int]]]:
    """Slots that were given up and have not arrived: (from, to, slots)."""
    found = []
    for address in held.plan.shards:
        connection = await connect(address.dsn)
        try:
            known = await _identity(connection, address)
        finally:
            await connection.close()
        if "slots" in known.move:
            target = ShardNo(int(known.move["target"]))
            found.append((address.number, target, [int(slot) for slot in known.move["slots"]]))
    return found


async def write_homes(held: Held, address: ShardAddress, slots: Sequence[int]) -> None:
    """Tell a shard which slots it answers for, without moving any."""
    connection = await connect(address.dsn)
    try:
        await connection.execute(
            f"UPDATE {address.schema}.shard SET slots = $1::text::int4multirange", multirange(slots)
        )
    finally:
        await connection.close()


async def _identity(connection: Any, address: ShardAddress) -> Identity:
    known = await identity(connection, address.schema)
    if known is None:
        raise Refused(f"{address.schema} is not open at {server(address.dsn)}: is it being moved?")
    return known


async def _give_up(plan: Plan, here: Any, address: ShardAddress, target: int, slots: Sequence[int]) -> None:
    """From this commit on no key of these slots is taken here, and no gate gone through. The locks wait for those
    that do so now."""
    note = json.dumps({"slots": list(slots), "target": target})
    async with here.transaction():
        await here.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
        for table in ("dedup", "topic_gate"):
            await here.execute(f"LOCK TABLE {address.schema}.{table} IN SHARE ROW EXCLUSIVE MODE")
        await here.execute(
            f"UPDATE {address.schema}.shard SET move = $1, "
            "slots = coalesce(slots, $2::text::int4multirange) - $3::text::int4multirange",
            note,
            multirange(plan.slots_of(address.number)),
            multirange(slots),
        )


async def _bring(
    plan: Plan, here: Any, source: ShardAddress, there: Any, target: ShardAddress, slots: set[int]
) -> int:
    """Copy the keys of slots to their new home, which answers for them from this commit on."""
    keys = 0
    async with here.transaction(isolation="repeatable_read", readonly=True), there.transaction():
        rows = here.cursor(
            "SELECT n.name, d.key, d.id::text, d.fingerprint, nullif(d.until, 'infinity') AS until "
            f"FROM {source.schema}.dedup d "
            f"JOIN {source.schema}.namespace n USING (namespace_id)",
            prefetch=BATCH_ROWS,
        )
        batch = []
        async for row in rows:
            if slot_of(row["name"], row["key"]) in slots:
                batch.append(row)
            if len(batch) == BATCH_ROWS:
                keys += await _insert(there, target, batch)
                batch = []
        keys += await _insert(there, target, batch)
        await _bring_gates(here, source, there, target, slots)
        await there.execute(
            f"UPDATE {target.schema}.shard SET "
            "slots = coalesce(slots, $1::text::int4multirange) + $2::text::int4multirange",
            multirange(plan.slots_of(target.number)),
            multirange(sorted(slots)),
        )
    return keys


async def _bring_gates(here: Any, source: ShardAddress, there: Any, target: ShardAddress, slots: set[int]) -> None:
    """Copy the gates of topics of these slots, and of their keys: what was granted and who is throttled stands."""
    columns = "namespace, topic, key, tokens, filled_at, slow_until, granted, leased, held, idle_at"
    casts = "text[], text[], text[], float8[], timestamptz[], timestamptz[], text[], text[], text[], timestamptz[]"
    values = ", ".join(f"${n}::{cast}" for n, cast in enumerate(casts.split(", "), 1))
    changes = ", ".join(f"{name} = excluded.{name}" for name in columns.split(", ")[3:])
    batch: list[Any] = []

    async def write() -> None:
        await there.execute(
            f"INSERT INTO {target.schema}.topic_gate ({columns}) SELECT * FROM unnest({values}) "
            f"ON CONFLICT (namespace, topic, key) DO UPDATE SET {changes}",
            *map(list, zip(*batch, strict=True)),
        )
        batch.clear()

    async for row in here.cursor(f"SELECT {columns} FROM {source.schema}.topic_gate", prefetch=BATCH_ROWS):
        if slot_of(row["namespace"], row["topic"]) in slots:
            batch.append(tuple(row))
        if len(batch) == BATCH_ROWS:
            await write()
    if batch:
        await write()


async def _insert(there: Any, target: ShardAddress, rows: list[Any]) -> int:
    names = sorted({row["name"] for row in rows})
    await there.execute(
        f"INSERT INTO {target.schema}.namespace (name) SELECT unnest($1::text[]) ON CONFLICT (name) DO NOTHING",
        names,
    )
    await there.execute(
        f"INSERT INTO {target.schema}.dedup (namespace_id, key, id, fingerprint, until, lives_at) "
        "SELECT n.namespace_id, u.key, u.id, u.fingerprint, u.until, u.lives_at "
        "FROM unnest($1::text[], $2::text[], $3::uuid[], $4::bytea[], $5::timestamptz[], $6::int[]) "
        "AS u(name, key, id, fingerprint, until, lives_at) "
        f"JOIN {target.schema}.namespace n USING (name) "
        "ON CONFLICT (namespace_id, key) DO UPDATE SET id = excluded.id, fingerprint = excluded.fingerprint, "
        "until = excluded.until, lives_at = excluded.lives_at",
        [row["name"] for row in rows],
        [row["key"] for row in rows],
        [row["id"] for row in rows],
        [row["fingerprint"] for row in rows],
        [row["until"] for row in rows],
        # While it has no end its item lives, where the id says.
        [shard_of(row["id"]) if row["until"] is None else None for row in rows],
    )
    return len(rows)


async def _forget(here: Any, address: ShardAddress) -> None:
    """Delete the keys and gates of slots that have gone, and the note of their going."""
    known = await _identity(here, address)
    gone = {int(slot) for slot in known.move.get("slots", ())}
    async with here.transaction():
        batch: list[Any] = []
        async for row in here.cursor(
            f"SELECT d.namespace_id, n.name, d.key FROM {address.schema}.dedup d "
            f"JOIN {address.schema}.namespace n USING (namespace_id)",
            prefetch=BATCH_ROWS,
        ):
            if slot_of(row["name"], row["key"]) in gone:
                batch.append(row)
        for start in range(0, len(batch), BATCH_ROWS):
            part = batch[start : start + BATCH_ROWS]
            await here.execute(
                f"DELETE FROM {address.schema}.dedup d "
                "USING unnest($1::int[], $2::text[]) AS u(namespace_id, key) "
                "WHERE d.namespace_id = u.namespace_id AND d.key = u.key",
                [row["namespace_id"] for row in part],
                [row["key"] for row in part],
            )
        gates = await here.fetch(f"SELECT DISTINCT namespace, topic FROM {address.schema}.topic_gate")
        left = [tuple(row) for row in gates if slot_of(*row) in gone]
        await here.execute(
            f"DELETE FROM {address.schema}.topic_gate g "
            "USING unnest($1::text[], $2::text[]) AS u(namespace, topic) "
            "WHERE g.namespace = u.namespace AND g.topic = u.topic",
            [namespace for namespace, _ in left],
            [topic for _, topic in left],
        )
        await here.execute(f"UPDATE {address.schema}.shard SET move = NULL")
