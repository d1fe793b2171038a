"""Scans begin where the living rows do, and lose nothing over it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from services.queue.keys import scan_floor
from services.queue.model import KeyLook
from tests.support.queue_host import AT_ONCE, Api


@pytest.fixture
def looks(own_api: Api, monkeypatch: pytest.MonkeyPatch) -> list[KeyLook]:
    """What was asked of the shards."""
    asked: list[KeyLook] = []
    for store in own_api.host.stores.values():
        real = store.peek

        async def peek(look: KeyLook, limit: int, real: Any = real) -> Any:
            asked.append(look)
            return await real(look, limit)

        monkeypatch.setattr(store, "peek", peek)
    return asked


@asynccontextmanager
async def first_shard(api: Api) -> AsyncIterator[Any]:
    connection = await api.host.database.connect("queue_000")
    try:
        yield connection
    finally:
        await connection.close()


def look_again(api: Api, topic: str = "t") -> None:
    """The next dequeue looks at every shard from its head."""
    api.host.dispatch.line(api.namespace, topic).refreshed_s = float("-inf")


async def ids_of(api: Api, count: int, **fields: Any) -> list[str]:
    look_again(api)
    return [item["id"] for item in await api.dequeue("t", count, **fields)]


async def test_a_second_look_passes_over_what_was_served(own_api: Api, looks: list[KeyLook]) -> None:
    await own_api.clock.advance(60)
    ids = [await own_api.enqueue_one("t", id=own_api.new_id(0)) for _ in range(4)]
    assert await ids_of(own_api, 1) == ids[:1]
    looks.clear()
    assert await ids_of(own_api, 1) == ids[1:2]

    begun = [start for *_, after, start in looks if start != after]
    assert begun, "a look began behind the beginning"
    assert all(start[0] == 0 for start in begun)


async def test_what_comes_before_the_front_is_found(own_api: Api) -> None:
    """Better priorities are looked for from their beginning; an open transaction may bring what is a bit older."""
    old = [await own_api.enqueue_one("t", id=own_api.new_id(0), priority=5) for _ in range(2)]
    assert await ids_of(own_api, 1) == old[:1]
    better = await own_api.enqueue_one("t", id=own_api.new_id(0), priority=-3)
    own_api.host.dispatch.line(own_api.namespace, "t").buffer.clear()
    assert await ids_of(own_api, 1) == [better]

    late = await own_api.enqueue_one("t", id=own_api.new_id(0), priority=5)
    async with first_shard(own_api) as connection:
        for table in ("item", "ready"):
            await connection.execute(
                f"UPDATE {table} SET deliver_at = deliver_at - interval '9 s' WHERE id = $1", late
            )
    own_api.host.dispatch.line(own_api.namespace, "t").buffer.clear()
    assert await ids_of(own_api, 2) == [late, old[1]]


async def test_a_pause_does_not_move_the_front(own_api: Api) -> None:
    """While a topic is paused a look finds nothing, though much is there."""
    ids = [await own_api.enqueue_one("t", id=own_api.new_id(0)) for _ in range(3)]
    assert await ids_of(own_api, 1) == ids[:1]
    async with first_shard(own_api) as connection:
        await connection.execute("UPDATE topic SET paused = true")
        own_api.host.dispatch.line(own_api.namespace, "t").buffer.clear()
        await own_api.clock.advance(600)
        assert await ids_of(own_api, 3) == []
        await connection.execute("UPDATE topic SET paused = false")
    assert await ids_of(own_api, 3) == ids[1:]


async def test_places_of_lanes_are_looked_for_from_the_beginning(own_api: Api, looks: list[KeyLook]) -> None:
    for _ in range(3):
        await own_api.enqueue_one("t", id=own_api.new_id(0))
    own_api.host.dispatch.line(own_api.namespace, "t").buffer.takes_turns = True
    for _ in range(2):
        await ids_of(own_api, 1)
    assert looks
    assert all(start == after for *_, after, start in looks)


async def test_every_while_a_look_begins_at_the_beginning(own_api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    await own_api.clock.advance(3600)
    ids = [await own_api.enqueue_one("t", id=own_api.new_id(0)) for _ in range(2)]
    assert await ids_of(own_api, 1) == ids[:1]
    async with first_shard(own_api) as connection:
        for table in ("item", "ready"):
            await connection.execute(f"UPDATE {table} SET deliver_at = deliver_at - interval '1 h'")
    own_api.host.dispatch.line(own_api.namespace, "t").buffer.clear()
    assert await ids_of(own_api, 1) == []
    monkeypatch.setattr(scan_floor, "WHOLE_S", 0.0)
    assert await ids_of(own_api, 1) == ids[1:]


async def test_a_short_lease_ends_before_long_ones_that_were_there(own_api: Api) -> None:
    await own_api.enqueue({"topic": "t", "backoff": AT_ONCE}, {"topic": "u"})
    await own_api.dequeue_one("u", lease_s=600)
    await own_api.host.reap()
    first = await own_api.dequeue_one("t", lease_s=1)
    await own_api.host.pass_time(2)
    look_again(own_api)
    assert (await own_api.dequeue_one("t", wait_s=5))["id"] == first["id"]


async def test_leases_end_after_the_shards_clock_was_set_back(own_api: Api) -> None:
    await own_api.clock.advance(3600)
    await own_api.enqueue_one("u")
    await own_api.dequeue_one("u", lease_s=60)
    await own_api.host.reap()
    await own_api.clock.advance(-3600)
    await own_api.enqueue_one("t", backoff=AT_ONCE)
    first = await own_api.dequeue_one("t", lease_s=1)
    await own_api.host.pass_time(2)
    look_again(own_api)
    assert (await own_api.dequeue_one("t", wait_s=5))["id"] == first["id"]
