"""A process remembers the numbers of so many topics; those that it has forgotten are served as before."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.support.databases import Databases
from tests.support.queue_host import Api, QueueHost, queue_host

NAMES_MAX = 4_000


@pytest.fixture
async def small_host(databases: Databases) -> AsyncIterator[QueueHost]:
    database = await databases.create(queue_shards=1, dag_shards=1)
    async with queue_host(database, names_max=NAMES_MAX) as host:
        yield host
    await databases.drop(database)


async def use_one_more_than_fit(api: Api) -> None:
    names = api.host.stores[0].names
    for first in range(0, NAMES_MAX + 1, 500):
        numbers = range(first, min(first + 500, NAMES_MAX + 1))
        made = await names.make([(api.namespace, f"t{number}") for number in numbers])
        assert len(made) == len(numbers)


async def test_more_topics_than_are_remembered_are_all_served(small_host: QueueHost) -> None:
    api, names = Api(small_host), small_host.stores[0].names
    item = await api.enqueue_one("t0", payload="old")
    before = names.known(api.namespace, "t0")
    await use_one_more_than_fit(api)
    assert names.known(api.namespace, "t0") is None, "an old one goes"
    assert names.known(api.namespace, f"t{NAMES_MAX}") is not None
    assert len(names._topics) <= NAMES_MAX
    assert len(names._names) <= NAMES_MAX
    assert len(names._namespaces) <= NAMES_MAX

    await api.enqueue_one("t0", payload="new", ack_topic="t1")
    assert names.known(api.namespace, "t0") == before, "its number is found again"
    held = await api.dequeue("t0", 2)
    assert [each["payload"] for each in held] == ["old", "new"]
    assert held[0]["id"] == item
    assert await api.ack(*held) == ["acked", "acked"]
    assert len(await api.completions("t1")) == 1
    assert len(await api.host.rows("SELECT FROM topic WHERE name = 't0'")) == 1


async def test_a_waiting_call_gets_what_comes_into_a_topic_that_is_forgotten(small_host: QueueHost) -> None:
    api = Api(small_host)
    await api.enqueue_one("t0", disabled=True, id=(item := api.new_id(0)))
    waiting = asyncio.ensure_future(api.dequeue("t0", wait_s=20))
    while not any(line.waiting for line in small_host.dispatch._lines.values()):
        await asyncio.sleep(0)
    await use_one_more_than_fit(api)
    assert await api.revive(item) == ["revived"]
    assert [each["id"] for each in await waiting] == [item]
