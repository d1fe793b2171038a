"""Fairness keys: lanes of a topic take turns, by count; and what that leaves alone."""

from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from services.queue.duties.fairness_keys import FairnessKeys
from tests.support.databases import Databases
from tests.support.queue_host import AT_ONCE, Api, QueueHost, queue_host


@pytest.fixture(scope="module")
async def one_shard(databases: Databases) -> AsyncIterator[QueueHost]:
    database = await databases.create(queue_shards=1, dag_shards=1)
    async with queue_host(database) as made:
        yield made
    await databases.drop(database)


@pytest.fixture
async def lone(one_shard: QueueHost) -> AsyncIterator[Api]:
    """A namespace on one shard."""
    yield Api(one_shard)
    await one_shard.clock.reset()


def lanes_of(host: QueueHost) -> FairnessKeys:
    return FairnessKeys(host.stores, host.dispatch, host.settings)


async def put(api: Api, lane: str | None, count: int, topic: str = "t", **fields: Any) -> None:
    item = {"topic": topic, "payload": lane, **fields} | ({"fairness_key": lane} if lane else {})
    results = await api.enqueue(*([item] * count))
    assert {result["status"] for result in results} == {"enqueued"}


async def served(api: Api, count: int, topic: str = "t") -> list[Any]:
    """Keys in the order in which their items are handed out, one call at a time."""
    found = []
    for _ in range(count):
        [item] = await api.dequeue(topic)
        await api.ack(item)
        found.append(item["payload"])
    return found


async def test_a_newcomer_does_not_wait_for_anothers_backlog(lone: Api) -> None:
    await put(lone, "big", 300)
    await served(lone, 20)
    await put(lone, "small", 3)

    order = await served(lone, 8)
    assert order[:3].count("small") >= 1, order
    assert order.count("small") == 3, order


async def test_lanes_share_equally_whatever_they_brought(lone: Api) -> None:
    for lane, count in (("a", 200), ("b", 40), ("c", 40), ("a", 100)):
        await put(lone, lane, count)
    shares = Counter(await served(lone, 90))

    assert shares.keys() == {"a", "b", "c"}
    assert max(shares.values()) - min(shares.values()) <= 2, shares
    assert Counter(await served(lone, 290)) + shares == {"a": 300, "b": 40, "c": 40}, "nothing is lost"
    assert await lone.dequeue("t") == []


async def test_a_lane_keeps_its_own_order(lone: Api) -> None:
    for n in range(12):
        await lone.enqueue_one("t", payload=n, fairness_key="ab"[n % 2])
    batch = [{"topic": "t", "payload": n, "fairness_key": "ab"[n % 2]} for n in range(12, 40)]
    await lone.enqueue(*batch)
    order = [item["payload"] for item in await lone.dequeue("t", 100)]

    assert len(order) == 40
    for lane in (0, 1):
        mine = [n for n in order if n % 2 == lane]
        assert mine == sorted(mine)


async def test_what_a_lane_was_served_before_does_not_count_against_it(lone: Api) -> None:
    """No credit for being idle, no debt for having been busy."""
    await put(lone, "old", 50)
    await served(lone, 45)
    await put(lone, "new", 50)
    await put(lone, "old", 50)

    shares = Counter(await served(lone, 60))
    assert abs(shares["old"] - shares["new"]) <= 5, shares


async def test_a_lane_that_was_away_is_owed_nothing(lone: Api) -> None:
    await put(lone, "idle", 1)
    await put(lone, "busy", 200)
    await served(lone, 101)
    await put(lone, "idle", 50)

    shares = Counter(await served(lone, 40))
    assert abs(shares["idle"] - shares["busy"]) <= 2, shares


async def test_lanes_that_keep_coming_starve_no_item_that_waits(lone: Api) -> None:
    """Every new lane begins behind the round that waits: the second item of the first lane has its turn."""
    await put(lone, "first", 5)
    seen = 0
    for n in range(60):
        await put(lone, f"new {n}", 2)
        seen += (await served(lone, 1)).count("first")
        if seen == 5:
            break
    assert seen >= 3, "it waits for ever behind those who come"


async def test_an_item_without_a_key_has_its_turn_beside_busy_lanes(lone: Api) -> None:
    """Items without a key are a lane of their own as soon as the loop has seen them: waiting counts."""
    await put(lone, "a", 400)
    await lone.clock.advance(100)
    await put(lone, None, 5)
    order = []
    for _ in range(5):
        await lanes_of(lone.host).step()
        await put(lone, "a", 5)
        order += await served(lone, 10)

    assert order.count(None) == 5, order
    [row] = [await lone.topic("t")]
    assert (row["ready"], row["leased"], row["delayed"]) == (400 + 25 + 5 - 50, 0, 0)


async def test_without_the_loop_an_item_without_a_key_would_wait(lone: Api) -> None:
    """The control for the test above: what it shows is the loop's doing."""
    await put(lone, "a", 100)
    await lone.clock.advance(100)
    await put(lone, None, 5)

    assert None not in await served(lone, 50)


async def test_what_was_there_an_hour_before_the_first_key_goes_first(lone: Api) -> None:
    await put(lone, None, 10)
    await lone.clock.advance(3601)
    await put(lone, "a", 10)
    await put(lone, None, 10)
    await lanes_of(lone.host).step()

    order = await served(lone, 30)
    assert order[:10] == [None] * 10
    assert 8 <= order[10:26].count("a") <= 10
    assert order[10:14].count(None) >= 1


async def test_priority_goes_before_fairness(lone: Api) -> None:
    await put(lone, "a", 10, priority=5)
    await put(lone, "b", 5, priority=1)
    await put(lone, "a", 5, priority=1)

    order = await served(lone, 20)
    assert order[10:] == ["a"] * 10
    assert Counter(order[:10]) == {"a": 5, "b": 5}


async def test_every_way_into_a_topic_leads_into_the_lane(lone: Api) -> None:
    """Delayed, revived, given back, redriven, taken back: each gets a place at once, behind nobody's backlog."""
    held = {}
    for payload, lane in (("nacked", "d"), ("redriven", "e"), ("swept", "f")):
        await lone.enqueue_one("t", payload=payload, fairness_key=lane, backoff=AT_ONCE)
        held[payload] = await lone.dequeue_one("t")
    await put(lone, "a", 300)
    await lone.clock.advance(50)
    await lone.enqueue_one("t", payload="delayed", fairness_key="b", delay_s=5)
    disabled = await lone.enqueue_one("t", payload="revived", fairness_key="c", disabled=True)
    await lone.nack(held["nacked"])
    await lone.nack(held["redriven"], final=True)
    await lone.revive(disabled)
    await lone.post("topics/redrive", {"topic": "t"})
    assert await lone.state(held["redriven"]["id"]) == "ready"
    await lone.host.pass_time(20)

    order = await served(lone, 10)
    assert {"delayed", "revived", "nacked", "redriven", "swept"} <= set(order), order
    assert (await lone.topic("t"))["delayed"] == 0


async def test_lanes_are_forgotten_when_nothing_waits(own_api: Api) -> None:
    lone, host = own_api, own_api.host
    for n in range(30):
        await put(lone, f"tenant {n}", 2)
    await served(lone, 31)
    await lanes_of(host).step()
    assert 0 < await host.count("lane") <= 30
    await served(lone, 29)
    for _ in range(2):
        await lanes_of(host).step()

    assert await host.counts("lane", "lane_clock") == {"lane": 0, "lane_clock": 0}
    await put(lone, "tenant 1", 1)
    assert await served(lone, 1) == ["tenant 1"]


async def test_who_uses_no_keys_pays_nothing(own_api: Api) -> None:
    lone = own_api
    await lanes_of(lone.host).step()
    await put(lone, None, 20)
    [item] = await lone.dequeue("t")
    await lone.nack(item)
    await lanes_of(lone.host).step()

    assert await lone.host.counts("lane", "lane_clock") == {"lane": 0, "lane_clock": 0}
    assert await lone.host.count("item", "fairness_key IS NOT NULL") == 0


async def test_a_newcomer_on_another_shard_waits_for_a_round_too(own_host: QueueHost) -> None:
    """The backlog lies on one shard, the newcomer comes to the other, where its clock would begin late."""
    api = Api(own_host)
    await api.enqueue(
        *({"topic": "t", "payload": "a", "fairness_key": "a", "id": api.new_id(0)} for _ in range(200))
    )
    await lanes_of(own_host).step()
    await served(api, 10)
    await own_host.clock.advance(60)
    await lanes_of(own_host).step()
    await api.enqueue(
        *({"topic": "t", "payload": "b", "fairness_key": "b", "id": api.new_id(1)} for _ in range(5))
    )

    assert (await served(api, 12)).count("b") == 5


async def test_shares_over_shards_are_equal_when_calls_spread(own_host: QueueHost) -> None:
    api = Api(own_host)
    for n in range(60):
        await api.enqueue_one("t", payload="a", fairness_key="a", id=api.new_id(n % 2))
    for n in range(30):
        await api.enqueue_one("t", payload="b", fairness_key="b", id=api.new_id(n % 2))
    await lanes_of(own_host).step()
    shares = Counter(await served(api, 40))

    assert abs(shares["a"] - shares["b"]) <= 4, shares


async def test_an_item_shows_its_key(api: Api) -> None:
    item_id = await api.enqueue_one("t", fairness_key="tenant: é/1", id=api.new_id(0))
    again = await api.enqueue({"topic": "t", "fairness_key": "tenant: é/1", "id": item_id})

    assert (await api.item(item_id))["fairness_key"] == "tenant: é/1"
    assert again[0]["status"] == "duplicate"
    assert (await api.item(await api.enqueue_one("t")))["fairness_key"] is None
    keyed = await api.enqueue_one("t", fairness_key="x", idempotency_key="k")
    assert await api.state(keyed) == "ready"
    assert await api.cancel(keyed) == ["cancelled"]
    assert (await api.topic("t"))["ready"] == 2


@pytest.mark.parametrize("key", ["", "x" * 201, "é" * 101, "a\nb", "a\u0000", 7, None, ["a"]])
async def test_a_key_at_and_past_its_limits(api: Api, key: Any) -> None:
    answer = await api.post("enqueue", {"items": [{"topic": "t", "fairness_key": key}]})
    if key is None:
        assert answer.status_code == 201
        return
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid")
    assert answer.json()["errors"][0]["pointer"] == "/items/0/fairness_key"
    longest = "x" * 200
    assert (await api.post("enqueue", {"items": [{"topic": "t", "fairness_key": longest}]})).status_code == 201
