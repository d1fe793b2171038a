"""Limits of topics over several processes, none of which has a Redis; and what a crash leaves of a grant."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from services.queue.duties.idle_gates import IdleGates
from services.queue.gates.limits import GRANT_S
from services.queue.store import gates as rows
from services.queue.store import topics
from shared.errors import ShardUnavailable
from tests.support.in_flight import most_in_flight
from tests.support.queue_host import Api, QueueHost, queue_host


@pytest.fixture
async def other(own_host: QueueHost) -> AsyncIterator[QueueHost]:
    """A second process on the shards of `own_host`."""
    async with queue_host(own_host.database, own_host.clock, poll_s=0.02) as made:
        yield made


async def limit(apis: list[Api], **limits: Any) -> None:
    path = f"/v1/namespaces/{apis[0].namespace}/topics/limits"
    answer = await apis[0].host.client.put(path, json={"topic": "t", **limits}, headers=apis[0].headers)
    assert answer.status_code == 200, answer.text
    for api in apis:
        await api.host.process.gates.read()


async def spread(api: Api, count: int) -> None:
    """Items on every shard of the topic."""
    shards = list(api.host.stores)
    await api.enqueue(*({"topic": "t", "id": api.new_id(shards[n % len(shards)])} for n in range(count)))


async def test_no_more_are_in_flight_than_the_limit_whoever_takes_them(own_api: Api, other: QueueHost) -> None:
    apis = [own_api, own_api.on(other)]
    await limit(apis, concurrency=3)
    await spread(own_api, 40)
    assert await most_in_flight(apis, 40) <= 3
    assert await own_api.host.count("item") == 0


async def test_calls_that_come_at_once_are_given_the_limit_and_no_more(own_api: Api, other: QueueHost) -> None:
    apis = [own_api, own_api.on(other)]
    await limit(apis, concurrency=5)
    await spread(own_api, 30)

    found = await asyncio.gather(*(api.dequeue("t", 2) for api in apis * 8))
    for api in apis:  # what two had in sight was got by one: the other's grant is back
        found += [await api.dequeue("t", 10, wait_s=2)]

    assert sum(map(len, found)) == 5


async def test_a_rate_is_one_for_all_processes(own_api: Api, other: QueueHost) -> None:
    apis = [own_api, own_api.on(other)]
    await limit(apis, rate=10, burst=4)
    await spread(own_api, 60)
    await own_api.clock.freeze()
    got = 0
    for step in range(4):
        if step:
            await own_api.clock.advance(0.2)  # two more
            for api in apis:
                api.host.process.gates.opened(api.namespace)
        for _ in range(3):
            parts = await asyncio.gather(*(api.dequeue("t", 3) for api in apis * 3))
            got += sum(map(len, parts))
        assert got <= 4 + 2 * step

    for api in apis:
        api.host.process.gates.opened(api.namespace)
        got += len(await api.dequeue("t", 10))
    assert got == 10


async def test_what_was_granted_and_not_claimed_gives_its_tokens_back(own_api: Api) -> None:
    """Another process has taken the items that were in sight."""
    await limit([own_api], rate=0.001, burst=3)
    await spread(own_api, 6)
    await own_api.clock.freeze()
    gates, token = own_api.host.process.gates, "00000000-0000-4000-8000-000000000001"
    assert (await gates.enter(own_api.namespace, "t", token, 3)).items == 3
    await gates.leave(own_api.namespace, "t", token, 2)
    assert len(await own_api.dequeue("t", 6)) == 2


@pytest.mark.parametrize("claims", [False, True], ids=["before the claim", "after the claim"])
async def test_a_crash_behind_the_grant_keeps_its_room_until_it_is_over(own_api: Api, claims: bool) -> None:
    await limit([own_api], concurrency=2)
    await spread(own_api, 6)
    gates = own_api.host.process.gates
    leave = gates.leave
    gates.leave = lost  # type: ignore[method-assign]
    if claims:
        assert len(await own_api.dequeue("t", 1, lease_s=500)) == 1
    else:
        assert (await gates.enter(own_api.namespace, "t", "00000000-0000-4000-8000-000000000001", 1)).items == 1
    gates.leave = leave  # type: ignore[method-assign]

    # A claim that was not told of is counted twice, and no room is given away.
    assert len(await own_api.dequeue("t", 10, lease_s=500)) == (0 if claims else 1)
    await own_api.clock.advance(GRANT_S + 1)
    gates.opened(own_api.namespace)
    assert len(await own_api.dequeue("t", 10, lease_s=500)) == 1
    assert await own_api.dequeue("t", 10) == []


async def lost(*_: Any, **__: Any) -> None:
    """What was to be told is told to nobody."""


async def test_a_shard_that_is_silent_counts_as_it_was_counted_last(
    own_api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    await limit([own_api], concurrency=3)
    gates = own_api.host.process.gates
    home = gates._home((own_api.namespace, "t"))
    away = next(store for store in own_api.host.stores.values() if store is not home)
    await own_api.enqueue(*({"topic": "t", "id": own_api.new_id(away.number)} for _ in range(2)))
    assert len(await own_api.dequeue("t", 10)) == 2
    await own_api.enqueue(*({"topic": "t", "id": own_api.new_id(home.number)} for _ in range(5)))
    counted = rows.leased

    async def leased(asked: Any, namespace: str, topic: str) -> int:
        if asked is away.pool:
            raise ShardUnavailable("silent", retry_after_s=1.0)
        return await counted(asked, namespace, topic)

    monkeypatch.setattr(rows, "leased", leased)
    assert len(await own_api.dequeue("t", 10)) == 1
    assert await own_api.dequeue("t", 10) == []


async def test_while_a_shard_that_was_never_counted_refuses_nothing_is_granted(
    own_api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was leased there before the topic had a limit may be all that is allowed."""
    home = own_api.host.process.gates._home((own_api.namespace, "t"))
    away = next(store for store in own_api.host.stores.values() if store is not home)
    await own_api.enqueue(*({"topic": "t", "id": own_api.new_id(away.number)} for _ in range(3)))
    assert len(await own_api.dequeue("t", 3)) == 3
    await own_api.enqueue(*({"topic": "t", "id": own_api.new_id(home.number)} for _ in range(5)))
    await limit([own_api], concurrency=4)
    counted = rows.leased

    async def leased(asked: Any, namespace: str, topic: str) -> int:
        if asked is away.pool:
            raise ShardUnavailable("refused", retry_after_s=1.0)
        return await counted(asked, namespace, topic)

    with monkeypatch.context() as patched:
        patched.setattr(rows, "leased", leased)
        assert await own_api.dequeue("t", 10) == []
    own_api.host.process.gates._closed.clear()
    assert len(await own_api.dequeue("t", 10, wait_s=5)) == 1


async def test_limits_that_are_lifted_while_a_shard_is_silent_are_lifted(
    own_api: Api, other: QueueHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever remembers what that shard had knows by the others that it is over."""
    await limit([own_api, own_api.on(other)], concurrency=1)
    pair, gates = (own_api.namespace, "t"), other.process.gates
    home = gates._home(pair)
    away = next(store for store in other.stores.values() if store is not home)
    read = rows.limits

    async def limits(asked: Any) -> Any:
        if asked is away.pool:
            raise ShardUnavailable("silent", retry_after_s=1.0)
        return await read(asked)

    monkeypatch.setattr(rows, "limits", limits)
    await gates.read()
    assert gates.limits[pair].concurrency == 1
    await limit([own_api])
    await gates.read()
    assert pair not in gates.limits
    await limit([own_api], concurrency=2)
    await gates.read()
    assert gates.limits[pair].concurrency == 2


async def test_a_process_with_an_old_map_is_granted_nothing(own_api: Api) -> None:
    await limit([own_api], concurrency=3)
    await spread(own_api, 4)
    await own_api.host.rows("UPDATE shard SET slots = '{}'")

    assert await own_api.dequeue("t", 10) == []
    await own_api.host.rows("UPDATE shard SET slots = NULL")
    own_api.host.process.gates.opened(own_api.namespace)
    assert len(await own_api.dequeue("t", 10)) == 3


async def test_calls_of_many_limited_topics_do_not_wait_for_one_another_for_ever(own_api: Api) -> None:
    topics = [f"t{n}" for n in range(20)]
    for topic in topics:
        path = f"/v1/namespaces/{own_api.namespace}/topics/limits"
        await own_api.host.client.put(path, json={"topic": topic, "concurrency": 1}, headers=own_api.headers)
    await own_api.enqueue(*({"topic": topic} for topic in topics for _ in range(2)))

    async with asyncio.timeout(30):
        found = await asyncio.gather(*(own_api.dequeue(topic, 2) for topic in topics for _ in range(3)))

    assert sum(map(len, found)) == len(topics)


async def test_a_throttled_topic_is_so_for_every_process_and_its_gate_goes(own_api: Api, other: QueueHost) -> None:
    apis = [own_api, own_api.on(other)]
    await spread(own_api, 4)
    [held] = await own_api.dequeue("t", 1)
    assert await own_api.nack(held, delay_s=0, throttle_s=60) == ["requeued"]
    assert any([(await topics.notices(store.pool))[-1] for store in other.stores.values()])
    await other.process.gates.read()
    for api in apis:
        assert await api.dequeue("t", 5) == []

    await own_api.clock.advance(61)
    for api in apis:
        await api.host.process.gates.read()
    assert (own_api.namespace, "t") not in other.process.gates.limits
    assert len(await apis[1].dequeue("t", 5)) == 4
    await own_api.clock.advance(3_600)
    for store in own_api.host.stores.values():
        process = own_api.host.process
        await IdleGates(store, process.gates.of_keys, process.settings).step()
    assert await own_api.host.rows("SELECT FROM topic_gate WHERE topic = 't'") == []


async def test_a_topic_that_was_throttled_keeps_its_limits_where_its_home_alone_answers(
    own_api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    await limit([own_api], concurrency=1)
    await spread(own_api, 5)
    [held] = await own_api.dequeue("t", 10)
    assert await own_api.nack(held, delay_s=0, throttle_s=60) == ["requeued"]
    gates = own_api.host.process.gates
    home, limits = gates._home((own_api.namespace, "t")), rows.limits

    async def of_home(asked: Any) -> list[rows.LimitsRow]:
        if asked is not home.pool:
            raise ShardUnavailable("silent", retry_after_s=1.0)
        return await limits(asked)

    monkeypatch.setattr(rows, "limits", of_home)
    await gates.read()
    await own_api.clock.advance(61)
    gates.opened(own_api.namespace)
    assert len(await own_api.dequeue("t", 10)) == 1


async def test_a_settle_looks_at_limits_of_its_own_namespace_alone(own_api: Api) -> None:
    await limit([own_api], concurrency=1)
    assert own_api.host.process.gates.opened("another") == []
    assert own_api.host.process.gates.opened(own_api.namespace) == ["t"]
    await limit([own_api])
    assert own_api.host.process.gates.opened(own_api.namespace) == []


async def test_an_item_is_given_back_where_its_topic_cannot_be_throttled(
    own_api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(*_: Any) -> bool:
        raise ShardUnavailable("silent", retry_after_s=1.0)

    await spread(own_api, 1)
    [held] = await own_api.dequeue("t", 1)
    monkeypatch.setattr(rows, "slow", silent)

    assert await own_api.nack(held, delay_s=0, throttle_s=60) == ["requeued"]
    assert len(await own_api.dequeue("t", 5)) == 1
