"""A shard's server is replaced by a standby that lost the last transactions: nothing is answered from memory.

The numbers of namespaces and topics that the lost transactions gave out are given again, to others. A standby
begins 32 numbers further on, so far more than that are lost here. One failover serves all tests: each looks at
what became of names of its own.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest

from services.queue.store.names import Names
from shared.postgres.connections import Pool
from tests.support.queue_host import Api, QueueHost, ShardClock, queue_host
from tests.support.replicas import replicated

MANY = 60
WAIT_S = 25.0


class Aftermath(NamedTuple):
    """Two processes behind which the shard's server was replaced, and calls that have waited since before."""

    hosts: tuple[QueueHost, QueueHost]
    waiting: list[asyncio.Future[list[dict[str, Any]]]]

    def apis(self, namespace: str) -> tuple[Api, Api]:
        """A namespace at each process."""
        first, second = self.hosts
        return Api(first, namespace), Api(second, namespace)


async def know_and_lose(first: Api, second: Api) -> None:
    """Topics of a namespace that both processes have met, with an item each."""
    for i in range(MANY):
        await first.enqueue_one(f"lost{i}", payload=i)
    assert len(await dequeued(first, "lost", lease_s=1)) == MANY
    assert await dequeued(second, "lost") == {}


async def dequeued(api: Api, prefix: str, **fields: object) -> dict[str, object]:
    """All items of the topics of a prefix: payloads by topic."""
    found: dict[str, object] = {}
    for i in range(MANY):
        found |= {item["topic"]: item["payload"] for item in await api.dequeue(f"{prefix}{i}", 9, **fields)}
    return found


async def reached(api: Api) -> None:
    """The first calls after a failover may be refused, with nothing done."""
    async with asyncio.timeout(WAIT_S):
        while True:
            [result] = await api.enqueue({"topic": "probe"})
            if result["status"] == "enqueued":
                return
            assert (result["code"], result["outcome"]) == ("shard_unavailable", "none")


@pytest.fixture(scope="module")
async def after(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Aftermath]:
    """A failover that lost names and items of every test's namespaces."""
    clock = ShardClock(None)  # time does not move here
    async with (
        replicated(tmp_path_factory.mktemp("failover")) as pair,
        queue_host(pair.database, clock) as first,
        queue_host(pair.database, clock) as second,
    ):
        made = Aftermath((first, second), [])
        await Api(first, "mine").enqueue_one("kept", payload="kept")
        await pair.cut_off()
        for namespace in ("mine", "loser"):
            await know_and_lose(*made.apis(namespace))
        for i in range(MANY):
            await Api(first, f"loser{i}").enqueue_one("t", idempotency_key="order/1")
        here, there = made.apis("waiter")
        for i in range(MANY):
            await here.enqueue_one(f"lost{i}")
            await there.dequeue_one(f"lost{i}")
            made.waiting.append(asyncio.ensure_future(there.dequeue(f"lost{i}", wait_s=WAIT_S)))
        while sum(line.calls for line in second.dispatch._lines.values()) < MANY:
            await asyncio.sleep(0.01)
        await pair.fail_over()
        for api in made.apis("probe"):
            await reached(api)
        yield made


async def test_a_consumer_that_waits_meanwhile_is_given_its_own_topics_items(after: Aftermath) -> None:
    here, _ = after.apis("waiter")
    taker = Api(after.hosts[0], "first-taker")
    for i in range(MANY):
        await taker.enqueue_one(f"taken{i}", payload="the taker's")
    for i in range(MANY):
        await here.enqueue_one(f"lost{i}", payload=f"new{i}")
    assert [[item["payload"] for item in await call] for call in after.waiting] == [
        [f"new{i}"] for i in range(MANY)
    ]


async def test_what_is_enqueued_under_names_that_were_lost_is_found_and_delivered(after: Aftermath) -> None:
    mine, other = after.apis("mine")
    ids = [await (mine, other)[i % 2].enqueue_one(f"lost{i}", payload=f"new{i}") for i in range(MANY)]
    assert {await mine.state(item_id) for item_id in ids} == {"ready"}
    assert await dequeued(other, "lost") == {f"lost{i}": f"new{i}" for i in range(MANY)}
    assert [item["payload"] for item in await other.dequeue("kept")] == ["kept"]


async def test_a_number_that_is_given_again_leads_no_tenant_to_anothers_items(after: Aftermath) -> None:
    taker = Api(after.hosts[1], "taker")
    for i in range(MANY):
        await taker.enqueue_one(f"taken{i}", payload="the taker's")
    for loser in after.apis("loser"):
        assert await dequeued(loser, "lost") == {}
    assert set((await dequeued(taker, "taken")).values()) == {"the taker's"}


async def test_a_key_of_a_lost_namespace_is_not_answered_with_anothers_item(after: Aftermath) -> None:
    takers = [Api(after.hosts[1], f"taker{i}") for i in range(MANY)]
    theirs = {await api.enqueue_one("t", idempotency_key="order/1") for api in takers}
    for i in range(MANY):
        loser = Api(after.hosts[0], f"loser{i}")
        item_id = await loser.enqueue_one("t", idempotency_key="order/1")
        assert item_id not in theirs
        assert await loser.cancel(item_id) == ["cancelled"]


async def test_what_began_before_the_failover_is_refused_with_nothing_done(after: Aftermath) -> None:
    """The number of a topic was read, and the statement that uses it gets a connection of another history."""
    [store] = after.hosts[0].stores.values()
    pool: Pool = store.pool
    names: Names = store.names
    api = Api(after.hosts[0], "began-before")
    await api.enqueue_one("t", payload="first")
    try_enter = pool.line.try_enter

    def replaced_meanwhile() -> bool:
        """All places are taken, and while it waits for one another server takes over."""
        pool.line.try_enter = try_enter  # type: ignore[method-assign]
        pool.history._known = "another"  # as if this process had met another server before
        for lent in pool._idle:
            lent.connection.terminate()
        return False

    pool.line.try_enter = replaced_meanwhile  # type: ignore[method-assign]
    [result] = await api.enqueue({"topic": "t", "payload": "second"})
    assert (result["status"], result["code"], result["outcome"]) == ("refused", "shard_unavailable", "none")
    assert names.known(api.namespace, "t") is None
    assert [item["payload"] for item in await api.dequeue("t", 9)] == ["first"]
