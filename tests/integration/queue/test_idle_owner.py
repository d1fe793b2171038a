"""What an idle shard costs its owner: one look, which tells whether other duties have anything to do."""

from collections.abc import Sequence

import pytest

from services.queue.duties import reaper as module
from services.queue.duties.reaper import SEEN_S, Reaper
from services.queue.keys.scan_floor import WHOLE_S
from services.queue.store.shard_store import Store
from shared.clock import SystemClock
from shared.errors import ShardUnavailable
from tests.support.clocks import ManualClock
from tests.support.queue_host import Api


def first(api: Api) -> tuple[Store, Reaper]:
    [store, *_] = api.host.stores.values()
    return store, api.host.reapers[0]


async def test_an_idle_shard_has_nothing_for_other_duties(own_api: Api) -> None:
    _, reaper = first(own_api)
    assert reaper.sees_past_ttl() and reaper.sees_operations(), "nobody has looked"
    await reaper.look()
    assert not reaper.sees_past_ttl()
    assert not reaper.sees_operations()


async def test_a_ttl_that_has_passed_is_seen_until_its_item_has_ended(own_api: Api) -> None:
    _, reaper = first(own_api)
    await own_api.enqueue({"topic": "t", "id": own_api.new_id(0), "ttl_s": 5})
    await reaper.look()
    assert not reaper.sees_past_ttl()
    await own_api.clock.advance(6)
    await reaper.look()
    assert reaper.sees_past_ttl()
    await reaper.expire_step()
    await reaper.look()
    assert not reaper.sees_past_ttl()
    assert await own_api.host.count("item") == 0


async def test_a_leased_item_past_its_ttl_does_not_hide_the_next(own_api: Api) -> None:
    """It is passed over, and stays at the head of what the look sees."""
    _, reaper = first(own_api)
    for n in range(2):
        await own_api.enqueue({"topic": f"t{n}", "id": own_api.new_id(0), "ttl_s": 5 + 20 * n})
    await own_api.dequeue("t0", lease_s=600)
    for _ in range(3):
        await own_api.clock.advance(10)
        await reaper.look()
        assert reaper.sees_past_ttl()
        await reaper.expire_step()
    assert await own_api.host.count("item") == 1


async def test_leased_items_past_their_ttl_are_not_looked_at_by_every_step(
    own_api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only by a whole walk now and then, which finds what was given back unnoticed."""
    _, reaper = first(own_api)
    clock = ManualClock()
    monkeypatch.setattr(module, "_clock", clock)
    await own_api.enqueue(*({"topic": "t", "id": own_api.new_id(0), "ttl_s": 5} for _ in range(3)))
    await own_api.dequeue("t", 3, lease_s=600)
    await own_api.clock.advance(6)
    looked: list[int] = []
    original = reaper._expiry.expire

    async def expire(store: Store, ids: Sequence[str]) -> int:
        looked.append(len(ids))
        return await original(store, ids)

    monkeypatch.setattr(reaper._expiry, "expire", expire)
    for _ in range(4):
        await reaper.look()
        await reaper.expire_step()
    assert looked == [3]

    await own_api.host.rows("INSERT INTO ready SELECT topic_id, priority, deliver_at, id FROM item LIMIT 1")
    clock.advance(WHOLE_S)
    await reaper.look()
    await reaper.expire_step()
    assert looked == [3, 3]
    assert await own_api.host.count("item") == 2


async def test_what_is_given_back_past_its_ttl_ends_there_and_then(own_api: Api) -> None:
    _, reaper = first(own_api)
    await own_api.enqueue_one("t", id=own_api.new_id(0), ttl_s=5, ack_topic="done")
    held = await own_api.dequeue_one("t", lease_s=600)
    await own_api.clock.advance(6)
    await reaper.look()
    await reaper.expire_step()

    assert await own_api.nack(held, delay_s=60) == ["requeued"]
    assert [end["outcome"] for end in await own_api.completions("done")] == ["expired"]


async def test_an_operation_is_seen_until_it_is_done(own_api: Api) -> None:
    store, reaper = first(own_api)
    operations = own_api.host.process.operations
    await operations.start(own_api.namespace, "purge", {"topic": "t"})
    await own_api.host.rows("UPDATE operation SET state = 'running', finished_at = NULL")
    await reaper.look()
    assert reaper.sees_operations()
    while await operations.step(store):
        pass
    await reaper.look()
    assert not reaper.sees_operations()


async def test_what_was_seen_long_ago_does_not_count(own_api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who does not own the shard looks seldom, and the owner may have died meanwhile."""
    _, reaper = first(own_api)
    await reaper.look()
    clock = ManualClock()
    clock.now_s = SystemClock().monotonic_s() + SEEN_S
    monkeypatch.setattr(module, "_clock", clock)
    assert reaper.sees_past_ttl()
    assert reaper.sees_operations()


async def test_the_next_look_comes_when_a_delay_ends_and_for_leases_not_at_each_end(own_api: Api) -> None:
    _, reaper = first(own_api)
    interval_s = reaper._settings.reap_interval_s
    await own_api.clock.freeze()
    try:
        await own_api.enqueue({"topic": "t", "id": own_api.new_id(0)})
        await own_api.dequeue("t", lease_s=60)
        await reaper.look()
        assert reaper.pause_s() == interval_s
        await own_api.clock.advance(60 - 0.03125)
        await reaper.look()
        assert reaper.pause_s() == interval_s
        await own_api.enqueue({"topic": "t", "id": own_api.new_id(0), "delay_s": 0.015625})
        await reaper.look()
        assert reaper.pause_s() == pytest.approx(0.015625)
    finally:
        await own_api.clock.reset()


async def test_a_duty_sleeps_until_a_look_wakes_it_and_what_it_left_is_tried_again_soon(
    own_api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, reaper = first(own_api)
    await own_api.enqueue({"topic": "t", "id": own_api.new_id(0), "delay_s": 5})
    await reaper.look()
    assert (reaper.delays.pause_s(), reaper.delays.waker.take()) == (SEEN_S, False)
    await own_api.clock.advance(6)
    await reaper.look()
    assert reaper.delays.waker.take()

    async def fails(*_: object) -> int:
        raise ShardUnavailable("away")

    with monkeypatch.context() as away:
        away.setattr(reaper._dispatch, "promote", fails)
        with pytest.raises(ShardUnavailable):
            await reaper.promote_step()
    assert reaper.delays.pause_s() == reaper._settings.reap_interval_s
    assert await reaper.promote_step() == 0
    assert reaper.delays.pause_s() == SEEN_S
    assert len(await own_api.dequeue("t")) == 1


async def test_the_dead_are_not_looked_at_for_their_ttl(own_api: Api) -> None:
    _, reaper = first(own_api)
    await own_api.enqueue({"topic": "t", "id": own_api.new_id(0), "ttl_s": 5})
    assert await own_api.nack(await own_api.dequeue_one("t"), final=True) == ["dead"]
    await own_api.clock.advance(6)
    await reaper.look()
    assert not reaper.sees_past_ttl()
