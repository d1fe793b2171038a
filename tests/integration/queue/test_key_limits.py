"""Limits of keys over several processes without a Redis; what a crash leaves, and a shard that is silent."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from services.queue.duties.idle_gates import IdleGates
from services.queue.gates.limits import GRANT_S
from services.queue.model import Key
from services.queue.store import gates as rows
from shared.errors import ShardUnavailable
from tests.integration.queue.test_lock_order import until_waiting
from tests.integration.queue.test_topic_limits import limit, lost
from tests.support.queue_host import Api, QueueHost, queue_host


@pytest.fixture
async def other(own_host: QueueHost) -> AsyncIterator[QueueHost]:
    """A second process on the shards of `own_host`."""
    async with queue_host(own_host.database, own_host.clock, poll_s=0.02) as made:
        yield made


async def spread(api: Api, count: int, *keys: str) -> None:
    """So many items of each key, on every shard."""
    shards = list(api.host.stores)
    items = [(key, shards[n % len(shards)]) for n in range(count) for key in keys]
    await api.enqueue(
        *({"topic": "t", "id": api.new_id(shard), "fairness_key": key, "payload": key} for key, shard in items)
    )


def gate_of(api: Api) -> Any:
    return api.host.process.gates._home((api.namespace, "t"))


async def idle_steps(api: Api) -> None:
    process = api.host.process
    for store in api.host.stores.values():
        await IdleGates(store, process.gates.of_keys, process.settings).step()


async def gates(api: Api) -> list[str]:
    return sorted(row["key"] for row in await api.host.rows("SELECT key FROM topic_gate WHERE key <> ''"))


async def test_no_more_of_a_key_are_in_flight_than_its_limit_whoever_takes_them(
    own_api: Api, other: QueueHost
) -> None:
    apis = [own_api, own_api.on(other)]
    await limit(apis, key_concurrency=2)
    await spread(own_api, 12, "a", "b", "c")
    held: Counter[str] = Counter()
    most, done = 0, 0

    async def consume(api: Api) -> None:
        nonlocal most, done
        while done < 36:
            for item in await api.dequeue("t", 3, wait_s=1):
                held[item["payload"]] += 1
                most = max(most, *held.values())
                await asyncio.sleep(0)
                held[item["payload"]] -= 1  # from before the ack on another may take its place
                assert await api.ack(item) == ["acked"]
                done += 1

    async with asyncio.timeout(60):
        await asyncio.gather(*(consume(api) for api in apis for _ in range(2)))
    assert most <= 2
    assert await own_api.host.count("item") == 0


@pytest.mark.parametrize("is_leased", [False, True], ids=["about to be claimed", "leased"])
async def test_an_item_that_two_processes_have_in_sight_keeps_its_room(
    own_api: Api, other: QueueHost, is_leased: bool
) -> None:
    """Who does not get it must not give back the room of who has it."""
    await limit([own_api, own_api.on(other)], key_concurrency=2)
    await spread(own_api, 6, "a")
    sorted_rows = await own_api.host.rows("SELECT priority, deliver_at, id::text FROM item")
    sight = sorted(Key(*row) for row in sorted_rows)
    pair = own_api.namespace, "t"
    ours, theirs = own_api.host.process.gates, other.process.gates
    limits = ours.limits[pair]
    if is_leased:
        [held] = await own_api.dequeue("t", 1)
        first = [key for key in sight if key.id == held["id"]]
    else:
        first = (await ours.of_keys.enter(pair, limits, sight[:1], 1)).keys
    sight = [*first, *(key for key in sight if key not in first)]

    through = await theirs.of_keys.enter(pair, limits, sight[:3], 3)
    assert [key.id for key in through.keys] == [sight[1].id]
    assert first[0] in through.aside
    await theirs.of_keys.leave(pair, through.granted, set())
    theirs.of_keys.forget(pair)
    again = await theirs.of_keys.enter(pair, limits, sight[1:], 3)
    assert len(again.keys) == 1, "the first one still takes its room"


async def test_what_was_let_through_and_not_claimed_gives_its_tokens_back(own_api: Api) -> None:
    await limit([own_api], key_rate=0.001, key_burst=3)
    await spread(own_api, 6, "a")
    await own_api.clock.freeze()
    sight = sorted(Key(*row) for row in await own_api.host.rows("SELECT priority, deliver_at, id::text FROM item"))
    pair, gates_ = (own_api.namespace, "t"), own_api.host.process.gates
    through = await gates_.of_keys.enter(pair, gates_.limits[pair], sight, 3)
    assert len(through.keys) == 3
    await gates_.of_keys.leave(pair, through.granted, {sight[0].id})
    assert len(await own_api.dequeue("t", 6)) == 2


async def test_an_item_that_came_back_is_let_through_again(own_api: Api) -> None:
    await limit([own_api], key_concurrency=2)
    await spread(own_api, 1, "a")
    for _ in range(3):
        [held] = await own_api.dequeue("t", 5, wait_s=5)
        assert await own_api.nack(held, delay_s=0) == ["requeued"]


@pytest.mark.parametrize("claims", [False, True], ids=["before the claim", "after the claim"])
async def test_a_crash_behind_the_grant_keeps_the_room_of_its_key_until_it_is_over(
    own_api: Api, claims: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    await limit([own_api], key_concurrency=1)
    await spread(own_api, 3, "a")
    gates_ = own_api.host.process.gates
    with monkeypatch.context() as patch:
        patch.setattr(gates_.of_keys, "leave", lost)
        if claims:
            [held] = await own_api.dequeue("t", 5)
            assert await own_api.ack(held) == ["acked"]
        else:
            patch.setattr(own_api.host.process.dequeues._gated, "_claim", crash)
            assert (await own_api.post("dequeue", {"topics": [{"topic": "t", "count": 5}]})).status_code == 503

    assert await own_api.dequeue("t", 5) == []
    await own_api.clock.advance(GRANT_S + 1)
    gates_.opened(own_api.namespace)
    assert len(await own_api.dequeue("t", 5)) == 1
    assert await own_api.dequeue("t", 5) == []


async def crash(*_: Any) -> set[str]:
    raise ShardUnavailable("gone", retry_after_s=1.0)


async def test_items_on_a_silent_shard_count(own_api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    await limit([own_api], key_concurrency=2)
    home = gate_of(own_api)
    away = next(store for store in own_api.host.stores.values() if store is not home)
    ids = [own_api.new_id(away.number), own_api.new_id(away.number)]
    await own_api.enqueue(*({"topic": "t", "id": item_id, "fairness_key": "a"} for item_id in ids))
    held = await own_api.dequeue("t", 5)
    assert len(held) == 2
    assert await own_api.ack(*held) == ["acked", "acked"]
    await own_api.enqueue(*({"topic": "t", "id": own_api.new_id(home.number), "fairness_key": "a"} for _ in "ab"))
    ask = rows.leased_among

    async def leased_among(asked: Any, ids: Any) -> set[str]:
        if asked is away.pool:
            raise ShardUnavailable("silent", retry_after_s=1.0)
        return await ask(asked, ids)

    with monkeypatch.context() as patch:
        patch.setattr(rows, "leased_among", leased_among)
        assert await own_api.dequeue("t", 5) == []
    own_api.host.process.gates.opened(own_api.namespace)
    assert len(await own_api.dequeue("t", 5)) == 2


async def test_items_whose_keys_cannot_be_asked_for_are_not_handed_out(
    own_api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    await limit([own_api], key_concurrency=1)
    await spread(own_api, 4, "a")

    async def silent(*_: Any) -> dict[str, str]:
        raise ShardUnavailable("silent", retry_after_s=1.0)

    with monkeypatch.context() as patch:
        patch.setattr(rows, "fairness_keys", silent)
        assert await own_api.dequeue("t", 5) == []
    own_api.host.process.gates.of_keys.forget((own_api.namespace, "t"))
    assert len(await own_api.dequeue("t", 5)) == 1


async def test_a_process_with_an_old_map_is_granted_nothing_of_a_key(own_api: Api) -> None:
    await limit([own_api], key_concurrency=1)
    await spread(own_api, 2, "a")
    await own_api.host.rows("UPDATE shard SET slots = '{}'")

    assert await own_api.dequeue("t", 5) == []
    await own_api.host.rows("UPDATE shard SET slots = NULL")
    own_api.host.process.gates.opened(own_api.namespace)
    assert len(await own_api.dequeue("t", 5)) == 1


async def test_a_throttled_key_is_so_for_every_process(own_api: Api, other: QueueHost) -> None:
    apis = [own_api, own_api.on(other)]
    await spread(own_api, 2, "a")
    [held] = await own_api.dequeue("t", 1)
    assert await own_api.nack(held, delay_s=0, throttle_s=60, throttle_key="a") == ["requeued"]
    await other.process.gates.read()
    for api in apis:
        assert await api.dequeue("t", 5) == []
    await own_api.post("topics/unthrottle", {"topic": "t"})
    await other.process.gates.read()
    assert len(await apis[1].dequeue("t", 5)) == 2


async def test_gates_that_hold_nothing_back_go_and_others_stay(own_api: Api) -> None:
    await limit([own_api], key_concurrency=2)
    await spread(own_api, 1, "a", "b")
    a, b = sorted(await own_api.dequeue("t", 5, lease_s=5_000), key=lambda item: str(item["payload"]))
    assert await own_api.ack(a) == ["acked"]
    await idle_steps(own_api)
    assert await gates(own_api) == ["a", "b"]

    await own_api.clock.advance(GRANT_S + 1)
    await idle_steps(own_api)
    assert await gates(own_api) == ["b"]
    await spread(own_api, 3, "b")
    assert len(await own_api.dequeue("t", 5)) == 1
    assert await own_api.ack(b) == ["acked"]


async def test_a_gate_stays_until_its_bucket_is_full_again(own_api: Api) -> None:
    await limit([own_api], key_rate=0.01, key_burst=5)
    await spread(own_api, 5, "a")
    assert len(await own_api.dequeue("t", 5)) == 5
    await own_api.clock.advance(400)
    await idle_steps(own_api)
    assert await gates(own_api) == ["a"]
    await own_api.clock.advance(200)
    await idle_steps(own_api)
    assert await gates(own_api) == []


async def test_the_wait_for_another_keys_gate_fills_no_bucket_twice(own_api: Api) -> None:
    await limit([own_api], key_rate=0.001, key_burst=1)
    await spread(own_api, 4, "a", "b")
    await own_api.clock.freeze()
    assert len(await own_api.dequeue("t", 8)) == 2
    pair, gates_ = (own_api.namespace, "t"), own_api.host.process.gates
    gates_.of_keys.forget(pair)
    schema = gate_of(own_api).shard.address.schema
    holder, watcher = [await own_api.host.database.connect(schema) for _ in range(2)]
    async with holder.transaction():
        await holder.execute("SELECT FROM topic_gate WHERE key = 'b' FOR UPDATE")
        call = asyncio.create_task(own_api.dequeue("t", 8))
        await until_waiting(watcher, 1)
        await own_api.clock.advance(1_000)
    assert [item["payload"] for item in await call] == ["b"]
    gates_.of_keys.forget(pair)
    assert [item["payload"] for item in await own_api.dequeue("t", 8)] == ["a"]
    await holder.close()
    await watcher.close()
