"""What befalls processes and shards, and what processes do by themselves."""

import asyncio
from random import Random
from typing import Any

from tests.worlds.registry import verb

_BACKENDS = """
SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'headgate%'
ORDER BY pid
"""
_END_BACKENDS = "SELECT pg_terminate_backend(pid) FROM unnest($1::int[]) AS pid"


def is_inside(world: Any) -> bool:
    """Whether the processes live in this loop; others are hurt by a nemesis, and do their duties by themselves."""
    return bool(world.stage.is_inside)


@verb(14, is_inside)
async def duty(world: Any, rng: Random) -> None:
    """Some duties of some process, and those that are woken by them."""
    process = rng.choice(world.stage.processes)
    names = sorted(process.duties())
    names = rng.sample(names, rng.choice((2, 8, len(names))))
    for _ in range(3):
        for name in names:
            _, said = await world.stage.step(process, name)
            if said:
                world.note(f"{process.name} {name}: {said}")
        names = process.woken()


@verb(6)
async def time_passes(world: Any, rng: Random) -> None:
    """Leases run out, delays end, and what was left undone is due."""
    seconds = rng.choice((0.6, 1.5, 1.5, 4.0, 11.0, 11.0, 35.0, 70.0))
    if rng.random() < 0.03:
        seconds = 1_100.0  # longer than ids are remembered
    if world.leapt_s + seconds <= world.stage.leaps_s_max:
        world.leaps.append(seconds)


@verb(1.2, is_inside)
async def kill(world: Any, rng: Random) -> None:
    """A process dies in the middle of what it does, and another takes its place."""
    process = rng.choice(world.stage.processes)
    await asyncio.sleep(rng.random() * 0.03)
    world.note(f"{process.name} is killed")
    await world.stage.replace(process)


@verb(0.6, is_inside)
async def end_backends(world: Any, rng: Random) -> None:
    """The server ends connections, whatever is being done over them."""
    clock = rng.choice(world.stage.clock.clocks)
    await asyncio.sleep(rng.random() * 0.02)
    async with world.stage.watching:
        pids = [row["pid"] for row in await clock.connection.fetch(_BACKENDS)]
        world.history.cuts.add(world.now_s)
        await clock.connection.execute(_END_BACKENDS, rng.sample(pids, min(len(pids), rng.randint(1, 3))))
    world.note("backends are ended")


@verb(0.5, lambda world: world.stage.unused_shards)
async def add_shard(world: Any, rng: Random) -> None:
    if world.stage.unused_shards:
        number = world.stage.unused_shards.pop(0)
        await change(world, "add", str(number), "--dsn", world.stage.database.dsn, "--yes")


@verb(0.5, is_inside)
async def change_map(world: Any, rng: Random) -> None:
    """Shards are drained, opened again and removed, and slots go elsewhere."""
    number = str(rng.randint(0, 3))
    commands = [("drain", number), ("undrain", number), ("remove", number), ("slots", "--rebalance")]
    await change(world, *rng.choice(commands), "--yes")


@verb(0.8, is_inside, since=2)
async def move_shard(world: Any, rng: Random) -> None:
    """A whole shard goes to another server, or back, under whatever is done to it."""
    places = (world.stage.database.dsn, world.stage.other.dsn)
    shard = rng.choice(world.stage.addresses()["queue"])
    await change(world, "move", str(shard.number), "--to", places[shard.dsn == places[0]], "--yes")


async def change(world: Any, *argv: str) -> None:
    world.history.moves += 1
    await _do(world, *argv)
    world.history.moved += 1


async def _do(world: Any, *argv: str) -> None:
    if argv[0] == "move":
        world.history.cuts.add(world.now_s)
    code, said = await world.stage.shards(*argv)
    world.note(f"shards {' '.join(argv[:2])}: {code} {said.strip().splitlines()[-1:]}")
    # Every process hears of it before anything lives on a new shard, as `shard_join_s` of the services sees to.
    for process in world.stage.queues:
        await world.stage.step(process, "shard map")
        await world.stage.step(process, "agreement")
