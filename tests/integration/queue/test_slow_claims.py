"""Dequeues while a shard shows its items and says nothing to a claim: somebody holds a lock on its tables."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from headgate._ids import shard_of
from services.queue.dispatch import claiming
from tests.support.databases import Databases
from tests.support.queue_host import Api, queue_host

END_S = 60
LOCK = "LOCK TABLE lease IN ACCESS EXCLUSIVE MODE"
# Whoever counts what is leased is not held up by these.
LOCK_ITEMS = "SELECT FROM ready FOR UPDATE"
WAITING = """
SELECT count(*) AS n FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock' AND query NOT LIKE '%FROM lease WHERE token = ANY%'
"""


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard is too slow soon; and what a call may look for in vain after its deadline is less than that."""
    monkeypatch.setattr(claiming, "CLAIM_S_MAX", 0.3)
    monkeypatch.setattr("services.queue.dispatch.dequeue.MISSES_S_MAX", 0.2)


@pytest.fixture
async def three(databases: Databases) -> AsyncIterator[Api]:
    database = await databases.create(queue_shards=3, dag_shards=1)
    async with queue_host(database) as made:
        yield Api(made)
    await databases.drop(database)


@asynccontextmanager
async def sick(api: Api, *shards: int, lock: str = LOCK) -> AsyncIterator[None]:
    """Claims of these shards stand as long as this is open, but for the end of their statements' time."""
    async with AsyncExitStack() as stack:
        for shard in shards:
            connection = await api.host.database.connect(f"queue_{shard:03}")
            stack.push_async_callback(connection.close)
            await stack.enter_async_context(connection.transaction())
            await connection.execute(lock)
        yield


async def claims_that_stand(api: Api) -> int:
    """How many claims wait for a lock; not who asks for what they may have leased."""
    rows = await api.host.rows(WAITING)  # of one server, whichever shard is asked
    return int(rows[0]["n"])


async def fill(api: Api, shard: int, items: int, **fields: Any) -> None:
    await api.enqueue(*({"topic": "t", "id": api.new_id(shard), **fields} for _ in range(items)))


async def shards_of(call: Any) -> Counter[int]:
    async with asyncio.timeout(END_S):
        return Counter(shard_of(item["id"]) for item in await call)


async def all_at_no_attempt(api: Api, count: int) -> None:
    """What is ready again, in the end, is as if it had never been leased."""
    found: list[dict[str, Any]] = []
    async with asyncio.timeout(END_S):
        while len(found) < count:
            found += await api.dequeue("t", count - len(found), wait_s=1)
    assert {item["attempt"] for item in found} == {1}


@pytest.mark.parametrize("items", [10, 60])  # a flush of light claims, and one of heavy ones
async def test_a_call_is_given_what_another_shard_has(own_api: Api, items: int) -> None:
    await fill(own_api, 1, items, priority=-1)
    await fill(own_api, 0, items)
    async with sick(own_api, 1):
        assert await shards_of(own_api.dequeue("t", items)) == {0: items}
        assert await claims_that_stand(own_api) == 1
    await all_at_no_attempt(own_api, items)


async def test_calls_that_stand_behind_a_claim_go_on_too(own_api: Api) -> None:
    await fill(own_api, 1, 30, priority=-1)
    await fill(own_api, 0, 30)
    async with sick(own_api, 1):
        calls = [asyncio.create_task(shards_of(own_api.dequeue("t", 5)))]
        async with asyncio.timeout(END_S):
            while not await claims_that_stand(own_api):
                await asyncio.sleep(0.005)
        calls += [asyncio.create_task(shards_of(own_api.dequeue("t", 5))) for _ in range(5)]
        assert await asyncio.gather(*calls) == [{0: 5}] * 6
        assert await claims_that_stand(own_api) == 1
    await all_at_no_attempt(own_api, 30)


async def test_a_shard_rests_as_long_as_its_claim_stands(own_api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claiming, "REST_S", 0.4)
    await fill(own_api, 1, 30, priority=-1)
    await fill(own_api, 0, 30)
    async with sick(own_api, 1):
        assert await shards_of(own_api.dequeue("t", 5)) == {0: 5}
        rests = []
        for _ in range(20):
            await asyncio.sleep(0.05)
            rests.append(own_api.host.dispatch.rests(1))
        assert await claims_that_stand(own_api) == 1
        assert all(rests)
        assert await shards_of(own_api.dequeue("t", 5)) == {0: 5}


async def test_of_two_such_shards_neither_keeps_back_a_third(three: Api) -> None:
    await fill(three, 1, 10, priority=-2)
    await fill(three, 2, 10, priority=-1)
    await fill(three, 0, 10)
    async with sick(three, 1, 2):
        assert await shards_of(three.dequeue("t", 10)) == {0: 10}
        assert await claims_that_stand(three) == 2
    await all_at_no_attempt(three, 20)


async def test_two_such_shards_at_once_cost_what_one_does(three: Api) -> None:
    """The call's keys are of both."""
    await fill(three, 1, 5, priority=-1)
    await fill(three, 2, 5, priority=-1)
    await fill(three, 0, 10)
    async with sick(three, 1, 2):
        assert await shards_of(three.dequeue("t", 10)) == {0: 10}
        assert await claims_that_stand(three) == 2
    await all_at_no_attempt(three, 10)


@pytest.mark.parametrize("wait_s", [0, 0.2])
async def test_a_call_of_the_only_shard_is_answered_with_nothing(own_api: Api, wait_s: float) -> None:
    await fill(own_api, 1, 10)
    async with sick(own_api, 1):
        assert await shards_of(own_api.dequeue("t", 10, wait_s=wait_s)) == {}
        assert await claims_that_stand(own_api) == 1
    await all_at_no_attempt(own_api, 10)


async def test_a_call_that_settles_is_given_what_another_shard_has(own_api: Api) -> None:
    await fill(own_api, 0, 11)
    [held] = await own_api.dequeue("t")
    await fill(own_api, 1, 10, priority=-1)
    async with sick(own_api, 1):
        acks = [{"id": held["id"], "lease_token": held["lease_token"]}]
        async with asyncio.timeout(END_S):
            answer = await own_api.post(
                "dequeue", {"topics": [{"topic": "t", "count": 10}], "settle": {"acks": acks}}
            )
        assert [result["status"] for result in answer.json()["results"]["acks"]] == ["acked"]
        assert Counter(shard_of(item["id"]) for item in answer.json()["items"]) == {0: 10}
        assert await claims_that_stand(own_api) == 1
    await all_at_no_attempt(own_api, 10)


async def test_what_a_slow_shard_leases_in_the_end_has_its_room_in_a_limit_until_then(own_api: Api) -> None:
    """The call is answered; what its grant stands for is leased later, and nobody is given more meanwhile."""
    path = f"/v1/namespaces/{own_api.namespace}/topics/limits"
    answer = await own_api.host.client.put(path, json={"topic": "t", "concurrency": 6})
    assert answer.status_code == 200
    await own_api.host.process.gates.read()
    await fill(own_api, 1, 4, priority=-1)
    await fill(own_api, 0, 8)
    async with sick(own_api, 1, lock=LOCK_ITEMS):
        first = await shards_of(own_api.dequeue("t", 4))
        assert first == {0: 2}
        assert await shards_of(own_api.dequeue("t", 4)) == {}
        assert await claims_that_stand(own_api) == 1
    await all_at_no_attempt(own_api, 4)


@pytest.mark.parametrize("settles", [False, True])
async def test_who_is_offered_to_a_slow_flush_is_answered_without_it(own_api: Api, settles: bool) -> None:
    """An enqueue that stands may lease to the call that waits: it gives back what it has leased, in the end."""
    topic = {"topics": [{"topic": "t", "count": 1}], "wait_s": 0 if settles else 0.2}
    await fill(own_api, 1, 1)
    assert len(await own_api.dequeue("t")) == 1  # from now on the topic is known there
    await fill(own_api, 0, 1)
    [held] = await own_api.dequeue("t")
    async with sick(own_api, 1, lock="LOCK TABLE ready IN EXCLUSIVE MODE"):
        if settles:
            acks = [{"id": held["id"], "lease_token": held["lease_token"]}]
            async with sick(own_api, 0):
                call = asyncio.create_task(own_api.post("dequeue", {**topic, "settle": {"acks": acks}}))
                await _stands(own_api, 1)
                enqueuing = asyncio.create_task(fill(own_api, 1, 1))
                await _stands(own_api, 2)
        else:
            call = asyncio.create_task(own_api.post("dequeue", topic))
            await asyncio.sleep(0.05)
            enqueuing = asyncio.create_task(fill(own_api, 1, 1))
            await _stands(own_api, 1)
        async with asyncio.timeout(END_S):
            answer = await call
        assert answer.json()["items"] == []
        assert not enqueuing.done()
    await enqueuing
    await all_at_no_attempt(own_api, 1)


async def _stands(api: Api, statements: int) -> None:
    async with asyncio.timeout(END_S):
        while await claims_that_stand(api) < statements:
            await asyncio.sleep(0.005)


async def test_who_could_be_offered_nothing_by_a_slow_flush_is_answered_without_it_too(own_api: Api) -> None:
    """Its namespace has no room for more: there is no offer, and all the same its place in the line is taken."""
    await fill(own_api, 1, 1)
    assert len(await own_api.dequeue("t")) == 1  # from now on the topic is known there
    answer = await own_api.host.client.put(f"/v1/namespaces/{own_api.namespace}", json={"in_flight_max": 2})
    assert answer.status_code == 200
    call = asyncio.create_task(own_api.post("dequeue", {"topics": [{"topic": "t", "count": 1}], "wait_s": 0.3}))
    await asyncio.sleep(0.05)
    await own_api.enqueue({"topic": "other", "id": own_api.new_id(0)})
    assert len(await own_api.dequeue("other")) == 1
    async with sick(own_api, 1, lock="LOCK TABLE ready IN EXCLUSIVE MODE"):
        enqueuing = asyncio.create_task(fill(own_api, 1, 1))
        await _stands(own_api, 1)
        async with asyncio.timeout(END_S):
            answer = await call
        assert answer.json()["items"] == []
        assert not enqueuing.done()
    await enqueuing
