"""Dequeues of limited topics while a shard does not say in time what is leased there, or a gate is slow."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from headgate._ids import shard_of
from services.queue.dispatch import claiming
from services.queue.gates import in_time
from services.queue.model import Key
from services.queue.store import gates as rows
from services.queue.store.shard_store import Store
from shared.errors import ShardUnavailable
from tests.integration.queue.test_slow_claims import END_S, claims_that_stand, fill, shards_of, sick
from tests.integration.queue.test_topic_limits import limit, spread
from tests.support.in_flight import most_in_flight
from tests.support.queue_host import Api, queue_host

LOCK_COUNTS = "LOCK TABLE topic_stat IN ACCESS EXCLUSIVE MODE"
LOCK_ITEMS = "LOCK TABLE item IN ACCESS EXCLUSIVE MODE"
LOCK_GATES = "SELECT FROM topic_gate FOR UPDATE"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A shard, and a gate, are too slow soon."""
    monkeypatch.setattr(claiming, "CLAIM_S_MAX", 0.4)
    monkeypatch.setattr(in_time, "IN_TIME_S", 0.1)
    monkeypatch.setattr("services.queue.dispatch.dequeue.MISSES_S_MAX", 0.2)
    return None


def home_of(api: Api, topic: str = "t") -> Store:
    return api.host.process.gates._home((api.namespace, topic))


def away_from(home: Store, api: Api) -> Store:
    return next(store for store in api.host.stores.values() if store is not home)


def topics_of(api: Api, home: Store, count: int) -> list[str]:
    """Names of topics that have their gates there."""
    names = (f"t{n}" for n in range(1_000))
    return [name for name in names if home_of(api, name) is home][:count]


async def limit_each(api: Api, *topics: str) -> None:
    for topic in topics:
        path = f"/v1/namespaces/{api.namespace}/topics/limits"
        answer = await api.host.client.put(path, json={"topic": topic, "concurrency": 4}, headers=api.headers)
        assert answer.status_code == 200, answer.text
    await api.host.process.gates.read()


async def until_items(api: Api, topic: str, count: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    async with asyncio.timeout(END_S):
        while len(found) < count:
            found += await api.dequeue(topic, count - len(found), wait_s=0.1)
    return found


async def test_a_shard_that_does_not_say_its_count_in_time_counts_as_it_did_last(own_api: Api) -> None:
    await limit([own_api], concurrency=6)
    away = away_from(home_of(own_api), own_api).number
    await fill(own_api, away, 2, priority=-1)
    await fill(own_api, home_of(own_api).number, 8)
    assert await shards_of(own_api.dequeue("t", 2)) == {away: 2}
    async with sick(own_api, away, lock=LOCK_COUNTS):
        assert await shards_of(own_api.dequeue("t", 2)) == {home_of(own_api).number: 2}
        assert await claims_that_stand(own_api) == 1  # the count
        found = await asyncio.gather(*(shards_of(own_api.dequeue("t", 1)) for _ in range(6)))
        assert sum(found, Counter()).total() <= 2
        assert await claims_that_stand(own_api) <= in_time.LATE_ASKED_MAX


async def test_others_items_are_handed_out_one_after_another_while_a_shard_says_nothing(own_api: Api) -> None:
    """Those of it are better, and hide them. What went to others is known not to be leased there."""
    await limit([own_api], concurrency=3)
    home, away = home_of(own_api).number, away_from(home_of(own_api), own_api).number
    await fill(own_api, away, 90, priority=-1)
    await fill(own_api, home, 9)
    [held] = await own_api.dequeue("t")
    async with sick(own_api, away, lock=LOCK_COUNTS):
        for _ in range(4):
            async with asyncio.timeout(END_S):
                while not (found := await own_api.dequeue("t", 3)):
                    await asyncio.sleep(0.005)
            assert Counter(shard_of(item["id"]) for item in found) == {home: 2}
            assert await claims_that_stand(own_api) >= 1
            assert await own_api.ack(*found) == ["acked", "acked"]
    assert await own_api.ack(held) == ["acked"]


async def test_where_the_home_cannot_count_the_others_items_are_handed_out_yet(own_api: Api) -> None:
    await limit([own_api], concurrency=6)
    home = home_of(own_api).number
    await fill(own_api, away_from(home_of(own_api), own_api).number, 6)
    assert len(await own_api.dequeue("t", 2)) == 2
    async with sick(own_api, home, lock=LOCK_COUNTS):
        await until_items(own_api, "t", 2)


async def test_what_a_shard_says_late_is_taken_with_what_was_granted_since(
    own_api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    await limit([own_api], concurrency=3)
    home, away = home_of(own_api), away_from(home_of(own_api), own_api)
    await fill(own_api, away.number, 2)
    held = await own_api.dequeue("t", 2)
    await fill(own_api, home.number, 5)
    counted, counts, tells = rows.leased, list[int](), asyncio.Event()

    async def leased(asked: Any, namespace: str, topic: str) -> int:
        count = await counted(asked, namespace, topic)
        if asked is away.pool:
            counts.append(count)
            await tells.wait()
        return count

    monkeypatch.setattr(rows, "leased", leased)
    assert len(await own_api.dequeue("t", 3)) == 1
    assert await own_api.ack(*held) == ["acked", "acked"]
    assert await own_api.dequeue("t", 3) == []  # for all that is known two are leased there yet
    gates = own_api.host.process.gates
    async with asyncio.timeout(END_S):
        while counts != [2, 0]:
            await asyncio.sleep(0.005)
        tells.set()
        while (own_api.namespace, "t") not in gates._late_counts:
            await asyncio.sleep(0.005)
    tells.clear()  # it goes on being late
    gates.opened(own_api.namespace)
    assert len(await own_api.dequeue("t", 3)) == 2
    gates.opened(own_api.namespace)
    assert await own_api.dequeue("t", 3) == []
    tells.set()


async def test_no_more_are_in_flight_where_every_shard_is_late(
    own_api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_time, "IN_TIME_S", 0.0)
    async with queue_host(own_api.host.database, own_api.clock, poll_s=0.02) as other:
        apis = [own_api, own_api.on(other)]
        await limit(apis, concurrency=3)
        await spread(own_api, 30)
        assert 0 < await most_in_flight(apis, 30) <= 3


async def test_a_shard_that_was_never_counted_is_waited_for(own_api: Api) -> None:
    """What was leased before the topic had a limit is not known yet."""
    away = away_from(home_of(own_api), own_api).number
    await fill(own_api, away, 3)
    assert len(await own_api.dequeue("t", 3)) == 3
    await fill(own_api, home_of(own_api).number, 5)
    await limit([own_api], concurrency=4)
    async with sick(own_api, away, lock=LOCK_COUNTS):
        assert await own_api.dequeue("t", 5) == []
        assert await claims_that_stand(own_api) == 1
    assert len(await until_items(own_api, "t", 1)) == 1
    assert await own_api.dequeue("t", 5) == []


async def test_gates_that_stand_keep_nobody_from_those_of_another_home(own_api: Api) -> None:
    home = home_of(own_api)
    slow = topics_of(own_api, home, 3)
    [topic] = topics_of(own_api, away_from(home, own_api), 1)
    await limit_each(own_api, *slow, topic)
    await own_api.enqueue(*({"topic": name} for name in (*slow, topic) for _ in range(2)))
    for name in slow:
        assert len(await own_api.dequeue(name)) == 1  # from now on they have gates
    async with sick(own_api, home.number, lock=LOCK_GATES):
        calls = [asyncio.create_task(own_api.dequeue(name)) for name in slow for _ in range(3)]
        async with asyncio.timeout(END_S):
            while await claims_that_stand(own_api) < 2:
                await asyncio.sleep(0.005)
            assert len(await own_api.dequeue(topic)) == 1
            assert await asyncio.gather(*calls) == [[]] * len(calls)
            assert await claims_that_stand(own_api) == 2
            names = [{"topic": name, "count": 1} for name in (*slow, topic)]
            answer = await own_api.post("dequeue", {"topics": names})
            assert [item["topic"] for item in answer.json()["items"]] == [topic]
    for name in slow:
        assert len(await until_items(own_api, name, 1)) == 1


async def test_what_a_gate_grants_late_is_left(own_api: Api) -> None:
    await limit([own_api], concurrency=3)
    await spread(own_api, 4)
    [held] = await own_api.dequeue("t")
    async with sick(own_api, home_of(own_api).number, lock=LOCK_GATES):
        assert await own_api.dequeue("t", 4) == []
        assert await claims_that_stand(own_api) == 1
    await until_items(own_api, "t", 2)
    assert await own_api.dequeue("t", 4) == []
    assert await own_api.ack(held) == ["acked"]
    await until_items(own_api, "t", 1)


async def test_leaves_that_stand_keep_no_items_back(own_api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    await limit([own_api], concurrency=3)
    await spread(own_api, 4)
    gates = own_api.host.process.gates
    enter = gates.enter
    async with AsyncExitStack() as stack:

        async def then_slow(*args: Any, **options: Any) -> Any:
            granted = await enter(*args, **options)
            await stack.enter_async_context(sick(own_api, home_of(own_api).number, lock=LOCK_GATES))
            return granted

        monkeypatch.setattr(gates, "enter", then_slow)
        async with asyncio.timeout(END_S):
            assert len(await own_api.dequeue("t", 2)) == 2
        assert await claims_that_stand(own_api) == 1


async def test_items_whose_shard_does_not_say_their_keys_in_time_are_passed_over(own_api: Api) -> None:
    await limit([own_api], key_concurrency=2)
    home, away = home_of(own_api).number, away_from(home_of(own_api), own_api).number
    await fill(own_api, away, 3, fairness_key="a", priority=-1)
    await fill(own_api, home, 3, fairness_key="b")
    async with sick(own_api, away, lock=LOCK_ITEMS):
        assert await shards_of(own_api.dequeue("t", 3)) == {home: 2}
        assert await claims_that_stand(own_api) == 1
    assert {shard_of(item["id"]) for item in await until_items(own_api, "t", 2)} == {away}
    assert await own_api.dequeue("t", 3) == []


async def test_items_whose_shard_does_not_say_in_time_what_has_ended_count(
    own_api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    await limit([own_api], key_concurrency=1)
    home, away = home_of(own_api), away_from(home_of(own_api), own_api)
    await fill(own_api, away.number, 1, fairness_key="a", priority=-1)
    [held] = await own_api.dequeue("t")
    await fill(own_api, home.number, 1, fairness_key="a", priority=-1)
    await fill(own_api, home.number, 1, fairness_key="b")
    asked, tells, among = list[int](), asyncio.Event(), rows.leased_among

    async def leased_among(asks: Any, ids: Any) -> set[str]:
        if asks is away.pool:
            asked.append(len(ids))
            await tells.wait()
        return await among(asks, ids)

    monkeypatch.setattr(rows, "leased_among", leased_among)
    assert await own_api.ack(held) == ["acked"]
    found = await until_items(own_api, "t", 1)
    assert [item["id"] for item in found] != [held["id"]]
    assert asked == [1]
    tells.set()
    await until_items(own_api, "t", 1)


async def test_who_asks_for_fairness_keys_waits_no_longer_than_the_call(
    own_api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_time, "IN_TIME_S", 10 * END_S)
    await limit([own_api], key_concurrency=2)
    await fill(own_api, 1, 2, fairness_key="a")
    tells = asyncio.Event()

    async def stands(*_: Any) -> dict[str, str | None]:
        await tells.wait()
        return {}

    monkeypatch.setattr(rows, "fairness_keys", stands)
    keys = [Key(*row) for row in await own_api.host.rows("SELECT priority, deliver_at, id::text FROM item")]
    pair, gates = (own_api.namespace, "t"), own_api.host.process.gates
    async with asyncio.timeout(END_S / 3):
        found = await gates.of_keys.enter(pair, gates.limits[pair], keys, 1, within_s=0.1)
    tells.set()
    assert found.keys == []


@pytest.mark.parametrize("limits", [{"concurrency": 3}, {"key_concurrency": 3}])
async def test_a_gate_that_does_not_answer_is_told_of_once(
    own_api: Api, monkeypatch: pytest.MonkeyPatch, limits: dict[str, int]
) -> None:
    await limit([own_api], **limits)
    await fill(own_api, 1, 2, fairness_key="a")
    said = list[str]()
    monkeypatch.setattr(in_time, "log", SimpleNamespace(warning=lambda what, **_: said.append(what)))

    async def away(*_: Any) -> None:
        raise ShardUnavailable("away for a moment")

    gates = own_api.host.process.gates
    homes = gates._homes if "concurrency" in limits else gates.of_keys._homes
    for times in (1, 2):
        with monkeypatch.context() as patch:
            patch.setattr(homes, "run", away)
            for _ in range(3):
                assert await own_api.dequeue("t", 1) == []
        assert len(said) == times
        assert len(await own_api.dequeue("t", 1, wait_s=20)) == 1
