"""Two processes on the same shards: the rows decide, memory only hurries."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
import pytest

from services.queue.duties.hints import Hearer, Messenger
from services.queue.model import EARLIEST, Key
from shared.clock import SystemClock
from tests.support.queue_host import AT_ONCE, Api, QueueHost, queue_host


@pytest.fixture
async def other(own_host: QueueHost) -> AsyncIterator[QueueHost]:
    """A second process on the shards of `own_host`."""
    async with queue_host(own_host.database, own_host.clock, poll_s=0.02) as made:
        yield made


async def test_no_item_is_handed_out_twice_or_forgotten(own_api: Api, other: QueueHost) -> None:
    hosts = [own_api, own_api.on(other)]
    sent = [r["id"] for n in range(8) for r in await hosts[n % 2].enqueue(*({"topic": "t"} for _ in range(50)))]
    # Both know all keys before either claims one.
    for api in hosts:
        line = api.host.dispatch.line(api.namespace, "t")
        await api.host.dispatch.looking.fill(line, 400)
        assert len(line.buffer) == 400
    got: Counter[str] = Counter()

    async def consume(api: Api) -> None:
        while leased := await api.dequeue("t", 7):
            got.update(item["id"] for item in leased)
            assert set(await api.ack(*leased)) == {"acked"}

    await asyncio.gather(*(consume(api) for api in hosts for _ in range(3)))
    for api in hosts:
        await consume(api)
    assert got == Counter(sent)
    assert await own_api.host.count("item") == 0


async def test_both_reapers_take_a_lease_back_once(own_api: Api, other: QueueHost) -> None:
    await own_api.enqueue(
        *({"topic": "t", "lease_s": 1, "max_attempts": 9, "backoff": AT_ONCE} for _ in range(60))
    )
    for _ in range(20):
        await own_api.dequeue("t", 3)
    await own_api.clock.advance(2)
    await asyncio.gather(*(h.reap() for h in (own_api.host, other, own_api.host, other)))

    again = []
    async with asyncio.timeout(60):
        while len(again) < 60:  # what the other host took back is known here with the next poll
            again += await own_api.dequeue("t", 100, wait_s=1)
    assert len({item["id"] for item in again}) == len(again) == 60
    assert {item["attempt"] for item in again} == {2}
    assert (await own_api.topic("t"))["leased"] == 60


async def test_both_promote_an_item_once(own_api: Api, other: QueueHost) -> None:
    await own_api.enqueue(*({"topic": "t", "delay_s": 1} for _ in range(100)))
    await own_api.clock.advance(2)
    await asyncio.gather(*(h.reap() for h in (own_api.host, other, own_api.host, other)))

    assert await own_api.host.count("ready") == 100
    assert await own_api.host.count("deferred") == 0
    assert (await own_api.topic("t"))["ready"] == 100
    assert len(await own_api.on(other).dequeue("t", 200)) == 100


async def test_what_one_host_claimed_the_other_settles(own_api: Api, other: QueueHost) -> None:
    there = own_api.on(other)
    await own_api.enqueue(*({"topic": "t"} for _ in range(4)))
    first, second, third, fourth = await own_api.dequeue("t", 4)

    assert await there.ack(first) == ["acked"]
    assert await there.extend(second) == ["extended"]
    assert await there.cancel(third["id"]) == ["cancelled"]
    assert await there.nack(fourth) == ["requeued"]
    assert await own_api.ack(first, second, third, fourth) == ["already_acked", "acked", "cancelled", "lease_lost"]


async def test_a_consumer_hears_of_the_other_hosts_items_by_the_poll(own_api: Api, other: QueueHost) -> None:
    there = own_api.on(other)
    task = asyncio.create_task(there.dequeue("t", wait_s=20))
    while not other.dispatch._lines or not other.dispatch._lines[own_api.namespace, "t"].waiting:
        await asyncio.sleep(0.001)
    item_id = await own_api.enqueue_one("t")

    assert [item["id"] for item in await asyncio.wait_for(task, 2)] == [item_id]


async def test_a_pause_holds_at_every_host(own_api: Api, other: QueueHost) -> None:
    there = own_api.on(other)
    await own_api.enqueue(*({"topic": "t"} for _ in range(3)))
    assert len(await there.dequeue("t")) == 1
    await own_api.post("topics/pause", {"topic": "t"})

    assert await there.dequeue("t", 5) == []
    assert await own_api.dequeue("t", 5) == []
    await there.post("topics/resume", {"topic": "t"})
    assert len(await there.dequeue("t", 5)) == 2


async def test_one_key_at_two_hosts_is_one_item(own_api: Api, other: QueueHost) -> None:
    hosts = [own_api, own_api.on(other)]
    calls = [
        hosts[n % 2].enqueue({"topic": "t", "idempotency_key": f"k{n // 4}", "payload": n // 4}) for n in range(40)
    ]
    results = [result for [result] in await asyncio.gather(*calls)]

    assert Counter(result["status"] for result in results) == {"enqueued": 10, "duplicate": 30}
    assert len({result["id"] for result in results}) == 10


async def test_stale_keys_of_one_host_do_no_harm(own_api: Api, other: QueueHost) -> None:
    """The other host still holds the keys of items that were acked, delayed and cancelled."""
    there = own_api.on(other)
    other.dispatch._settings.__dict__["poll_s"] = 3600.0
    ids = [await own_api.enqueue_one("t", payload=n) for n in range(6)]
    assert [item["payload"] for item in await there.dequeue("t", 1)] == [0]
    held = await own_api.dequeue("t", 2)
    await own_api.ack(held[0])
    await own_api.nack(held[1], delay_s=100)
    await own_api.cancel(ids[3])

    assert [item["payload"] for item in await there.dequeue("t", 2)] == [4, 5]
    assert (await own_api.topic("t"))["delayed"] == 1


async def test_a_foreign_revive_in_the_same_flush_takes_nobodys_place(own_api: Api) -> None:
    stranger = Api(own_api.host)
    await stranger.enqueue_one("t", id=own_api.new_id(0))
    item_id = await own_api.enqueue_one("t", disabled=True, id=own_api.new_id(0))
    batcher = own_api.host.process.revives.flushes[0, False]
    original = batcher._run

    async def held(lane: Any) -> None:
        await asyncio.sleep(0.02)
        await original(lane)

    batcher._run = held
    theirs, ours = await asyncio.gather(stranger.revive(item_id), own_api.revive(item_id))

    assert (theirs, ours) == (["not_found"], ["revived"])
    assert await own_api.state(item_id) == "ready"


async def test_two_owners_do_not_claim_the_same_rows_while_each_has_its_own(
    own_api: Api, other: QueueHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = own_api.on(other)
    missed = 0
    for number, host in enumerate((own_api.host, other)):
        monkeypatch.setattr(host.dispatch, "_owns", number.__eq__)
        for store in host.stores.values():

            async def claim(claims: Any, *, relaxed: bool, real: Any = store.claim) -> Any:
                nonlocal missed
                groups, cut = await real(claims, relaxed=relaxed)
                missed += sum(len(claim.keys) for claim in claims) - sum(group.items for group in groups)
                return groups, cut

            monkeypatch.setattr(store, "claim", claim)
    await own_api.enqueue(*({"topic": "t", "id": own_api.new_id(n % 2)} for n in range(200)))
    for _ in range(9):
        mine, theirs = await asyncio.gather(own_api.dequeue("t", 10), there.dequeue("t", 10))
        assert {int(item["id"][-3:], 16) for item in mine} == {0}
        assert {int(item["id"][-3:], 16) for item in theirs} == {1}
    assert missed == 0

    # What an owner leaves lying is handed out by the other, too.
    assert len(await there.dequeue("t", 100)) == 20


async def test_items_told_of_while_nobody_asked_are_found_by_the_next_call(own_api: Api, other: QueueHost) -> None:
    """The topic has just been seen empty, and its items lie on shards that another process owns."""
    asker, dispatch = own_api.on(other), other.dispatch
    dispatch._owns = lambda _shard: False
    dispatch._settings.__dict__["poll_s"] = 3600.0
    assert await asker.dequeue("t", 2) == []
    told: list[tuple[str, str, int, Sequence[Key]]] = []
    own_api.host.dispatch.announcer.tell = lambda *hint: told.append(hint)
    sent = await own_api.enqueue({"topic": "t"}, {"topic": "t"})
    for namespace, topic, shard, _ in told:
        dispatch.hinted(namespace, topic, shard, lambda: pytest.fail("nobody asks: keys need not be read"))

    assert [item["id"] for item in await asker.dequeue("t", 2)] == [result["id"] for result in sent]


async def test_keys_told_to_a_call_that_is_about_to_wait_are_not_lost(own_api: Api, other: QueueHost) -> None:
    """It has looked, and does not look again: what is told then has to be at hand."""
    line = other.dispatch.line(own_api.namespace, "t")
    other.dispatch._settings.__dict__["poll_s"] = 3600.0
    key = Key(0, EARLIEST, own_api.new_id(0))
    line.calls += 1
    line.buffer._owns = lambda _shard: False  # type: ignore[union-attr]
    for shard, after in line.buffer.again():
        line.buffer.peeking(shard, after)
        line.buffer.peeked(shard, [], limit=9)
    other.dispatch.hinted(own_api.namespace, "t", 0, lambda: [key])
    assert line.take(1) == [key]


async def test_what_a_waiting_call_takes_is_not_told_to_other_hosts(own_api: Api) -> None:
    told: list[Key] = []
    own_api.host.dispatch.announcer.tell = lambda _namespace, _topic, _shard, keys: told.extend(keys)
    assert await own_api.dequeue("t", 2) == []
    call = asyncio.create_task(own_api.dequeue("t", 2, wait_s=20))
    line = own_api.host.dispatch.line(own_api.namespace, "t")
    while not line.waiting:
        await asyncio.sleep(0.005)
    sent = await own_api.enqueue(*({"topic": "t"} for _ in range(3)))
    assert len(await call) == 2
    assert [key.id for key in told] == [sent[2]["id"]]


async def test_a_call_that_waits_says_so_and_one_that_does_not_wait_does_not(own_api: Api) -> None:
    wanted: list[tuple[str, str]] = []
    own_api.host.dispatch.announcer.want = lambda namespace, topic: wanted.append((namespace, topic))
    assert await own_api.dequeue("t") == []
    assert wanted == []
    assert await own_api.dequeue("t", wait_s=0.01) == []
    assert set(wanted) == {(own_api.namespace, "t")}


@pytest.mark.parametrize("keys", ["junk", [["junk"]], [[0, "junk", "junk"]], [[0, 2**62, "late"]], None])
async def test_nonsense_from_another_host_is_dropped(own_api: Api, redis_url: str, keys: Any) -> None:
    hearer = Hearer(own_api.host.dispatch, Messenger(redis_url, "nonsense", SystemClock(), poll_s=1.0))
    assert await own_api.dequeue("t") == []
    hearer.heard(msgspec.msgpack.encode(["another", [[own_api.namespace, "t", 0, keys]]]))
    for wants in ("junk", [["one"]], [["one", 2]], None):
        hearer.heard(msgspec.msgpack.encode(["another", [], wants]))
    hearer.heard(b"junk")
    assert await own_api.dequeue("t") == []
    await hearer.stop()


async def knows(api: Api, keys: int) -> None:
    """The process has read so many keys of the topic ahead, and no poll comes soon."""
    api.host.dispatch._settings.__dict__["poll_s"] = 3600.0
    line = api.host.dispatch.line(api.namespace, "t")
    await api.host.dispatch.looking.fill(line, keys)
    assert len(line.buffer) == keys


async def test_what_was_paused_elsewhere_is_claimed_in_vain_once_a_shard(own_api: Api, other: QueueHost) -> None:
    """Also where nobody tells of it: what is known of a shard is void once a claim got nothing there."""
    await own_api.enqueue(*({"topic": "t", "id": own_api.new_id(n % 2)} for n in range(200)))
    await knows(own_api, 200)
    claims = spy_on_claims(own_api.host)
    await own_api.on(other).post("topics/pause", {"topic": "t"})

    assert await own_api.dequeue("t", 1) == []
    assert await own_api.dequeue("t", 1) == []
    assert len(claims) <= 2


async def test_a_new_item_is_found_behind_keys_that_another_process_has_drained(
    own_api: Api, other: QueueHost
) -> None:
    await own_api.enqueue(*({"topic": "t", "id": own_api.new_id(n % 2)} for n in range(200)))
    await knows(own_api, 200)
    there = own_api.on(other)
    while await there.dequeue("t", 100):
        pass
    item_id = await there.enqueue_one("t", id=own_api.new_id(0), priority=5)
    claims = spy_on_claims(own_api.host)

    assert (await own_api.dequeue_one("t"))["id"] == item_id
    assert len(claims) <= 4


def spy_on_claims(host: QueueHost) -> list[int]:
    """How many keys each claim from here on names."""
    claims: list[int] = []
    for store in host.stores.values():
        original = store.claim

        async def claim(wanted: Any, _original: Any = original, **options: Any) -> Any:
            claims.append(sum(len(one.keys) for one in wanted))
            return await _original(wanted, **options)

        store.claim = claim  # type: ignore[method-assign]
    return claims


@pytest.mark.parametrize("verb", ["pause", "purge"])
async def test_other_processes_are_told_of_a_pause(own_api: Api, other: QueueHost, verb: str) -> None:
    """What they keep of the topic is void at once."""
    await own_api.enqueue(*({"topic": "t"} for _ in range(20)))
    await knows(own_api, 20)
    speaker, listener = (Messenger("redis://127.0.0.1:1/0", "test", SystemClock(), poll_s=1.0) for _ in range(2))
    hearer = Hearer(own_api.host.dispatch, listener)
    other.dispatch.announcer.tell_change = speaker.tell_change
    await own_api.on(other).post(f"topics/{verb}", {"topic": "t"})
    hearer.heard(speaker.message())
    claims = spy_on_claims(own_api.host)

    assert await own_api.dequeue("t", 10) == []
    assert claims == []


async def test_who_waits_hears_of_a_resume(own_api: Api, other: QueueHost) -> None:
    own_api.host.dispatch._settings.__dict__["poll_s"] = 3600.0
    there = own_api.on(other)
    await there.post("topics/pause", {"topic": "t"})
    item_id = await there.enqueue_one("t")
    waiting = asyncio.create_task(own_api.dequeue("t", 1, wait_s=30))
    line = own_api.host.dispatch.line(own_api.namespace, "t")
    async with asyncio.timeout(60):
        while not line.waiting:
            await asyncio.sleep(0.005)
    speaker, listener = (Messenger("redis://127.0.0.1:1/0", "test", SystemClock(), poll_s=1.0) for _ in range(2))
    hearer = Hearer(own_api.host.dispatch, listener)
    other.dispatch.announcer.tell_change = speaker.tell_change
    await there.post("topics/resume", {"topic": "t"})
    hearer.heard(speaker.message())
    async with asyncio.timeout(60):
        assert [item["id"] for item in await waiting] == [item_id]
