"""Verbs of values that the jobs of a DAG share."""

import asyncio
from random import Random
from typing import Any
from uuid import UUID

from tests.worlds.dag_facts import Dag
from tests.worlds.dag_verbs import has_dags, pick
from tests.worlds.faults import is_inside
from tests.worlds.registry import verb
from tests.worlds.scenes import play_of_its_own
from tests.worlds.value_facts import Read, Write
from tests.worlds.wire import Answer

_KEYS = ("count", "seen")


@verb(3, has_dags, since=2)
async def write_values(world: Any, rng: Random) -> None:
    """Several at once read a value and write what follows; some write over anything."""
    dag, key = pick(world, rng), rng.choice(_KEYS)
    version = await read_value(world, rng, dag, key)
    writers = []
    for _ in range(rng.randint(1, 3)):
        expected = rng.choice((version, version, version, None))
        if expected and rng.random() < 0.1:
            expected -= 1
        write_id = str(UUID(int=rng.getrandbits(128), version=4)) if rng.random() < 0.6 else None
        written = Write({"by": world.serial()}, expected, world.now_s, write_id)
        dag.values[key].writes.append(written)
        writers.append(_write(world, Random(rng.random()), dag, key, written))
    await asyncio.gather(*writers)


@verb(1, has_dags, since=2)
async def write_again(world: Any, rng: Random) -> None:
    """Whoever got no answer, or got one and does not know, sends the write again under its id."""
    dag, key = pick(world, rng), rng.choice(_KEYS)
    sent = [written for written in dag.values[key].writes if written.write_id]
    if sent:
        await _write(world, rng, dag, key, rng.choice(sent[-5:]))


@verb(1.7, is_inside, since=9)
async def write_at_once(world: Any, rng: Random) -> None:
    """Many at all processes read a value and write what follows; each then sends its write again under its id."""
    async with play_of_its_own(world, rng) as play:
        await play.create(play.spec())
        key = rng.choice(_KEYS)
        for _ in range(3):
            version = await read_value(world, rng, play.dag, key)
            writes = []
            for expected in (*[version] * 6, None):
                write_id = str(UUID(int=rng.getrandbits(128), version=4))
                writes.append(Write({"by": world.serial()}, expected, world.now_s, write_id))
            play.dag.values[key].writes += writes
            for _ in range(2):
                await asyncio.gather(*(_write(world, Random(rng.random()), play.dag, key, one) for one in writes))


@verb(1, has_dags, since=2)
async def look_at_values(world: Any, rng: Random) -> None:
    await read_value(world, rng, pick(world, rng), rng.choice(_KEYS))


async def read_value(world: Any, rng: Random, dag: Dag, key: str) -> int:
    """The version that a value has; 0 where there is none, or nobody says so."""
    answer = await world.dag(rng, dag.namespace, f"/dags/{dag.id}/values/{key}", method="GET")
    if answer.known == "ok":
        shown = answer.body
        dag.values[key].reads.append(Read(shown["value"], shown["version"], answer.sent, answer.done))
        return int(shown["version"])
    if answer.status == 404:
        dag.values[key].reads.append(Read(None, 0, answer.sent, answer.done))
    return 0


async def _write(world: Any, rng: Random, dag: Dag, key: str, written: Write) -> None:
    body: dict[str, Any] = {"value": written.value}
    if written.expected is not None:
        body["version"] = written.expected
    if written.write_id is not None:
        body["write_id"] = written.write_id
    answer: Answer = await world.dag(rng, dag.namespace, f"/dags/{dag.id}/values/{key}", body, method="PUT")
    version = answer.body["version"] if answer.known == "ok" else None
    written.answered(answer.known, version, answer.done)
    if answer.known == "fail" and answer.status not in (0, 404, 409, 429, 503):
        world.fault(f"a write of {key} of {dag.name} ({dag.id}) was answered {answer}")
