"""Dequeue: order over shards, counts, several topics, and waiting."""

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest

from headgate._ids import shard_of
from tests.support.queue_host import AT_ONCE, Api


async def payloads(api: Api, topic: str, count: int) -> list[object]:
    return [item["payload"] for item in await api.dequeue(topic, count)]


async def test_lower_priority_is_served_first_over_all_shards(api: Api) -> None:
    for priority in (5, -1, 3, 2**31 - 1, 0, -(2**31), 4):
        await api.enqueue_one("t", priority=priority, payload=priority)

    assert await payloads(api, "t", 10) == [-(2**31), -1, 0, 3, 4, 5, 2**31 - 1]


async def test_within_a_priority_the_time_of_becoming_deliverable_decides(api: Api) -> None:
    for number in range(9):
        await api.enqueue_one("t", payload=number)

    assert await payloads(api, "t", 4) == [0, 1, 2, 3]
    assert await payloads(api, "t", 9) == [4, 5, 6, 7, 8]


async def test_a_promoted_item_queues_behind_what_was_ready_before(api: Api) -> None:
    await api.enqueue({"topic": "t", "payload": "late", "delay_s": 10})
    await api.clock.advance(9)
    await api.enqueue({"topic": "t", "payload": "ready"})
    await api.host.pass_time(2)
    await api.enqueue({"topic": "t", "payload": "last"})

    assert await payloads(api, "t", 9) == ["ready", "late", "last"]


async def test_at_one_moment_the_id_decides(api: Api) -> None:
    await api.clock.freeze()
    ids = [api.new_id(shard) for shard in (2, 0, 1, 0, 2, 1)]
    for item_id in reversed(ids):
        await api.enqueue_one("t", id=item_id)

    assert [item["id"] for item in await api.dequeue("t", 9)] == ids


async def test_elements_of_one_call_keep_their_order(api: Api) -> None:
    await api.enqueue(*({"topic": "t", "payload": number} for number in range(300)))

    assert await payloads(api, "t", 300) == list(range(300))


async def test_caller_made_ids_of_one_call_are_served_in_the_order_of_the_ids(api: Api) -> None:
    ids = [api.new_id(1) for _ in range(5)]
    await api.enqueue(*({"topic": "t", "id": item_id} for item_id in reversed(ids)))

    assert [item["id"] for item in await api.dequeue("t", 9)] == ids


async def test_count_is_a_limit_for_each_topic(api: Api) -> None:
    await api.enqueue(*({"topic": topic, "payload": topic} for topic in ("a", "b") for _ in range(3)))

    answer = await api.post("dequeue", {"topics": [{"topic": "b", "count": 2}, {"topic": "a", "count": 1}]})

    leased = answer.json()["items"]
    assert sorted(item["topic"] for item in leased) == ["a", "b", "b"]
    assert all(item["payload"] == item["topic"] for item in leased)
    assert (await api.topic("a"))["ready"] == 2
    assert (await api.topic("b"))["ready"] == 1


async def test_a_dequeue_takes_all_that_is_ready_at_once(api: Api) -> None:
    for shard in (0, 1):
        await api.enqueue(*({"topic": "t", "id": api.new_id(shard)} for _ in range(700)))

    started = time.monotonic()
    leased = await api.dequeue("t", 1000, wait_s=20)

    assert len(leased) == 1000
    assert time.monotonic() - started < 5
    assert len({shard_of(item["id"]) for item in leased}) == 2
    assert len(await api.dequeue("t", 1000, wait_s=20)) == 400


async def test_what_was_cancelled_takes_nobodys_place(api: Api) -> None:
    """The host still remembers the cancelled item's key: the call must not come back short of what is ready."""
    first = await api.enqueue_one("t", payload="first")
    assert [item["payload"] for item in await api.dequeue("t", 1)] == ["first"]
    gone = [await api.enqueue_one("t") for _ in range(3)]
    await api.enqueue_one("t", payload="second")
    await api.enqueue_one("t", payload="third")
    await api.cancel(*gone, first)

    assert [item["payload"] for item in await api.dequeue("t", 2, wait_s=5)] == ["second", "third"]


async def test_a_topic_may_be_named_twice(api: Api) -> None:
    await api.enqueue(*({"topic": "t", "payload": number} for number in range(5)))

    answer = await api.post("dequeue", {"topics": [{"topic": "t", "count": 2}, {"topic": "t", "count": 1}]})

    assert [item["payload"] for item in answer.json()["items"]] == [0, 1, 2]


async def test_items_of_one_call_have_one_token_per_call(api: Api) -> None:
    await api.enqueue(*({"topic": "t"} for _ in range(4)))
    first, second = await api.dequeue("t", 2), await api.dequeue("t", 2)

    assert not {item["lease_token"] for item in first} & {item["lease_token"] for item in second}
    assert not {item["id"] for item in first} & {item["id"] for item in second}


async def test_nothing_ready_without_a_wait_is_an_empty_answer(api: Api) -> None:
    assert await api.dequeue("never-seen", 10) == []
    assert await api.dequeue("never-seen", 10, wait_s=0) == []


async def test_a_wait_that_is_over_is_an_empty_answer(api: Api) -> None:
    started = time.monotonic()

    assert await api.dequeue("never-seen", 10, wait_s=0.05) == []
    assert 0.04 < time.monotonic() - started < 0.6


async def waiting(api: Api, topic: str, **fields: object) -> "asyncio.Task[list[dict[str, object]]]":
    """A dequeue call that has come to its wait."""
    before = waiters(api, topic)
    task = asyncio.create_task(api.dequeue(topic, wait_s=20, **fields))
    while waiters(api, topic) == before:
        await asyncio.sleep(0.001)
    return task


def waiters(api: Api, topic: str) -> int:
    line = api.host.dispatch._lines.get((api.namespace, topic))
    return 0 if line is None else len(line.waiting)


async def test_an_enqueue_wakes_a_waiting_consumer_at_once(api: Api) -> None:
    task = await waiting(api, "t")
    started = time.monotonic()
    item_id = await api.enqueue_one("t")
    [leased] = await task

    assert leased["id"] == item_id
    assert time.monotonic() - started < 0.4  # the poll comes after 0.8 s at the earliest


async def test_every_way_of_becoming_ready_wakes_a_waiting_consumer(api: Api) -> None:
    disabled = await api.enqueue_one("t", disabled=True)
    delayed = await api.enqueue_one("t", delay_s=10)
    expiring = await api.enqueue_one("t", lease_s=5, id=api.new_id(0), backoff=AT_ONCE)
    held = await api.dequeue_one("t")
    assert held["id"] == expiring

    async def revive() -> None:
        assert await api.revive(disabled) == ["revived"]

    async def nack() -> None:
        assert await api.nack(held) == ["requeued"]

    async def promote() -> None:
        await api.host.pass_time(11)

    async def redrive() -> None:
        assert (await api.post("topics/redrive", {"topic": "t"})).json()["items"] == 1

    async def resume() -> None:
        await api.post("topics/resume", {"topic": "t"})

    for act, expected in ((revive, disabled), (nack, expiring), (promote, delayed)):
        task = await waiting(api, "t", lease_s=100)
        started = time.monotonic()
        await act()
        [leased] = await task
        assert leased["id"] == expected, act
        assert time.monotonic() - started < 0.5, act
        last = leased
    await api.nack(last, final=True)
    task = await waiting(api, "t")
    await redrive()
    [leased] = await task
    assert leased["id"] == delayed
    await api.post("topics/pause", {"topic": "t"})
    await api.enqueue_one("t", payload="while paused")
    task = await waiting(api, "t")
    await resume()
    assert [item["payload"] for item in await task] == ["while paused"]


async def test_a_lease_that_ran_out_wakes_a_waiting_consumer(api: Api) -> None:
    item_id = await api.enqueue_one("t", lease_s=5, backoff=AT_ONCE)
    await api.dequeue_one("t")
    task = await waiting(api, "t")
    await api.host.pass_time(6)

    [leased] = await task
    assert (leased["id"], leased["attempt"]) == (item_id, 2)


async def test_a_completion_wakes_a_consumer_of_the_ack_topic(api: Api) -> None:
    await api.enqueue_one("t", ack_topic="done")
    task = await waiting(api, "done")
    await api.ack(await api.dequeue_one("t"))

    assert [item["payload"]["outcome"] for item in await task] == ["acked"]


@pytest.mark.parametrize("end", ["final", "cancel", "purge", "ttl", "expired", "attempts"])
async def test_every_end_wakes_a_consumer_of_the_ack_topic(api: Api, end: str) -> None:
    fields = {"ttl": {"ttl_s": 5}, "expired": {"delivery": "at_most_once"}, "attempts": {"max_attempts": 1}}
    if end == "purge":
        await api.post("topics/purge", {"topic": "t"})  # its statements are prepared at their first use
    item_id = await api.enqueue_one("t", ack_topic="done", lease_s=5, **fields.get(end, {}))
    held = [] if end == "ttl" else await api.dequeue("t")
    task = await waiting(api, "done")
    started = time.monotonic()
    if end == "final":
        await api.nack(*held, final=True)
    elif end == "cancel":
        await api.cancel(item_id)
    elif end == "purge":
        await api.post("topics/purge", {"topic": "t"})
    else:
        await api.host.pass_time(6)

    assert [item["payload"]["id"] for item in await task] == [item_id]
    assert time.monotonic() - started < 0.5  # the poll comes after 0.8 s at the earliest


async def test_a_burst_wakes_as_many_consumers_as_it_feeds(api: Api) -> None:
    tasks = [await waiting(api, "t") for _ in range(5)]
    started = time.monotonic()
    await api.enqueue(*({"topic": "t"} for _ in range(5)))
    found = await asyncio.gather(*tasks)

    assert sorted(len(items) for items in found) == [1] * 5
    assert time.monotonic() - started < 0.6


async def test_one_call_waits_for_several_topics(api: Api) -> None:
    body = {"topics": [{"topic": "a", "count": 1}, {"topic": "b", "count": 1}], "wait_s": 20}
    task = asyncio.create_task(api.post("dequeue", body))
    while not waiters(api, "b"):
        await asyncio.sleep(0.001)
    await api.enqueue_one("b")

    assert [item["topic"] for item in (await task).json()["items"]] == ["b"]
    assert waiters(api, "a") == 0


async def test_the_calls_lease_overrides_the_items(api: Api) -> None:
    await api.enqueue_one("t", lease_s=1000, backoff=AT_ONCE)
    leased = await api.dequeue_one("t", lease_s=2)
    left = datetime.fromisoformat(leased["lease_expires_at"]) - datetime.now(UTC)

    assert timedelta(seconds=1) < left < timedelta(seconds=2.1)
    await api.host.pass_time(3)
    again = await api.dequeue_one("t")
    left = datetime.fromisoformat(again["lease_expires_at"]) - datetime.now(UTC)
    assert timedelta(seconds=990) < left < timedelta(seconds=1010)


async def test_namespaces_do_not_meet(api: Api) -> None:
    other = Api(api.host)
    item_id = await api.enqueue_one("t", payload="secret")
    await other.enqueue_one("t", payload="other")

    assert [item["payload"] for item in await other.dequeue("t", 10)] == ["other"]
    assert (await other.get(f"items/{item_id}")).status_code == 404
    assert [item["payload"] for item in await api.dequeue("t", 10)] == ["secret"]
