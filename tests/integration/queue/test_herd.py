"""A thousand consumers wait, at two processes: one item costs a few looks, not a thousand."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from services.queue.dispatch import dequeue
from services.queue.duties.hints import Hearer, Messenger
from shared.clock import SystemClock
from tests.support.queue_host import Api, QueueHost, queue_host

WAITING = 500


@pytest.fixture
async def other(own_host: QueueHost) -> AsyncIterator[QueueHost]:
    """A second process on the shards of `own_host`."""
    async with queue_host(own_host.database, own_host.clock) as made:
        yield made


@pytest.fixture
async def looks(own_host: QueueHost, other: QueueHost, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each process asked a shard for keys, or claimed."""
    counted: Counter[str] = Counter()
    for name, host in (("own", own_host), ("other", other)):
        for store in host.stores.values():
            for verb in ("peek", "claim"):
                real = getattr(store, verb)

                async def asked(*args: Any, real: Any = real, label: str = f"{name} {verb}", **values: Any) -> Any:
                    counted[label] += 1
                    return await real(*args, **values)

                monkeypatch.setattr(store, verb, asked)
    return counted


class Crowd:
    """Waiting calls over some processes."""

    def __init__(self, apis: list[Api], redis_url: str) -> None:
        self.apis = apis
        self.calls: list[asyncio.Task[Any]] = []
        self._messengers = [Messenger(redis_url, "herd", SystemClock(), poll_s=1.0) for _ in apis]
        self._hearers = [
            Hearer(api.host.dispatch, messenger) for api, messenger in zip(apis, self._messengers, strict=True)
        ]

    async def gather(self) -> None:
        for api, messenger in zip(self.apis, self._messengers, strict=True):
            api.host.dispatch.announcer.tell = messenger.tell
            api.host.dispatch._settings.__dict__["poll_s"] = 3600.0
            messenger.start()
        for hearer in self._hearers:
            hearer.start()
        self.calls = [
            asyncio.create_task(api.dequeue("t", wait_s=30)) for api in self.apis for _ in range(WAITING)
        ]
        await self.until_waiting(WAITING)

    async def until_waiting(self, count: int) -> None:
        while any(len(line.waiting) < count for line in self.lines()):
            await asyncio.sleep(0.01)
            assert not [call.result() for call in self.calls if call.done()]

    def lines(self) -> list[Any]:
        return [api.host.dispatch.line(api.namespace, "t") for api in self.apis]

    async def served(self, count: int) -> list[dict[str, Any]]:
        """So many items that the calls were answered with."""
        items: list[dict[str, Any]] = []
        async with asyncio.timeout(60):
            while len(items) < count:
                for call in [call for call in self.calls if call.done()]:
                    self.calls.remove(call)
                    items += call.result()
                await asyncio.sleep(0.01)
        return items

    async def disperse(self) -> None:
        for call in self.calls:
            call.cancel()
        await asyncio.gather(*self.calls, return_exceptions=True)
        for talking in (*self._hearers, *self._messengers):
            await talking.stop()


@pytest.fixture
async def crowd(own_api: Api, other: QueueHost, redis_url: str) -> AsyncIterator[Crowd]:
    """Consumers that wait at both processes, woken by what they are told and by no poll."""
    made = Crowd([own_api, own_api.on(other)], redis_url)
    await made.gather()
    yield made
    await made.disperse()


async def test_one_item_wakes_one_consumer_of_a_thousand(
    own_api: Api, other: QueueHost, crowd: Crowd, looks: Counter[str]
) -> None:
    item_id = await own_api.enqueue_one("t")
    [leased] = await crowd.served(1)
    assert leased["id"] == item_id
    # At worst a call at each process claims, misses and looks at every shard again.
    assert sum(looks.values()) <= 2 * (1 + len(own_api.host.stores))

    more = await own_api.enqueue(*({"topic": "t"} for _ in range(20)))
    assert sorted(item["id"] for item in await crowd.served(20)) == sorted(result["id"] for result in more)
    assert len(crowd.calls) == 2 * WAITING - 21


async def test_a_poll_of_a_thousand_consumers_is_one_look_at_each_shard(
    own_api: Api, crowd: Crowd, looks: Counter[str]
) -> None:
    shards = list(own_api.host.stores)
    await own_api.enqueue(*({"topic": "t", "id": own_api.new_id(shard)} for shard in shards))
    await crowd.served(len(shards))
    looks.clear()
    for line in crowd.lines():
        line.refreshed_s = float("-inf")
        while line.wake_one():
            pass
    await asyncio.sleep(0)
    await crowd.until_waiting(WAITING - len(shards))
    for api in crowd.apis:
        await asyncio.gather(*api.host.dispatch._late)  # looks go on beside calls that wait

    assert set(looks.values()) == {len(shards)}
    assert set(looks) == {"own peek", "other peek"}


async def test_topics_whose_looks_are_near_share_one_statement(
    own_api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = {"a", "b", "c"}
    for topic in topics:
        await own_api.enqueue_one(topic)
        await own_api.dequeue_one(topic)
    dispatch = own_api.host.dispatch
    [store] = [store for store in own_api.host.stores.values() if store.names.known(own_api.namespace, "a")]
    await store.names.make((own_api.namespace, topic) for topic in topics)
    joined: list[int] = []
    peek_many = store.peek_many

    async def asked(looks: Any) -> Any:
        joined.append(len(looks))
        return await peek_many(looks)

    monkeypatch.setattr(store, "peek_many", asked)
    dispatch.looking._joined_s = float("-inf")
    for topic in topics:
        dispatch.line(own_api.namespace, topic).refreshed_s = float("-inf")
    await own_api.dequeue("a")
    assert joined == [3]


@pytest.mark.parametrize(
    ("polls", "topics", "shared"),
    [(4, 3, True), (5, 3, False), (4, 33, False)],
    ids=["now and then", "hardly any more", "many topics"],
)
async def test_a_topic_asked_for_now_and_then_is_looked_at_with_others(
    own_api: Api, polls: float, topics: int, shared: bool
) -> None:
    """Else each of its calls would stand before looks of its own, at every shard."""
    dispatch = own_api.host.dispatch
    poll_s, now_s = dispatch._settings.poll_s, dispatch._clock.monotonic_s()
    lines = [dispatch.line(own_api.namespace, f"t{n}") for n in range(topics)]
    for line in lines:
        await dispatch.looking.fill(line, 1)
        line.refreshed_s = line.used_s = now_s - polls * poll_s
    dispatch.looking._joined_s = float("-inf")
    await own_api.dequeue("t0")
    assert (lines[1].refreshed_s >= now_s) == shared


async def test_calls_that_wait_do_not_all_look_again_at_once(
    own_host: QueueHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[tuple[float, float]] = []

    def draw(low: float, high: float) -> float:
        drawn.append((low, high))
        return high

    monkeypatch.setattr(dequeue, "random", SimpleNamespace(uniform=draw))
    api = Api(own_host)
    waiting = asyncio.ensure_future(api.dequeue("t", wait_s=20))
    async with asyncio.timeout(20):
        while not drawn:
            await asyncio.sleep(0.01)
    await api.enqueue_one("t")
    assert len(await waiting) == 1
    assert set(drawn) == {(1.0, 1.5)}
