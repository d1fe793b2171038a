"""Looks beside the calls hold up nobody who has keys at hand; nothing is served by what was known long ago."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from services.queue.dispatch.direct_handoff import LOOK_KEYS_MIN, Line
from services.queue.dispatch.key_refill import STALE_POLLS
from tests.support.queue_host import Api


class Looks:
    """The looks at the shards of a process: how many keys each may read; they begin when `open`."""

    def __init__(self, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.limits: list[int] = []
        for store in api.host.stores.values():
            monkeypatch.setattr(store, "peek", self._held(store.peek))

    def _held(self, real: Callable[..., Awaitable[Any]]) -> Any:
        async def peek(look: Any, limit: int) -> Any:
            self.limits.append(limit)
            await self.open.wait()
            return await real(look, limit)

        return peek


@pytest.fixture
def looks(own_api: Api, monkeypatch: pytest.MonkeyPatch) -> Looks:
    own_api.host.dispatch._settings.__dict__["poll_s"] = 3600.0  # only the tests let polls become due
    return Looks(own_api, monkeypatch)


def line_of(api: Api) -> Line:
    return api.host.dispatch.line(api.namespace, "t")


def looked_at(api: Api, *, polls: float) -> None:
    """Let the last poll have been so long ago."""
    dispatch = api.host.dispatch
    line_of(api).refreshed_s = dispatch._clock.monotonic_s() - polls * dispatch._settings.poll_s


async def looked(api: Api) -> None:
    """Until no look is on its way."""
    while api.host.dispatch._late:
        await asyncio.gather(*api.host.dispatch._late)


async def fill(api: Api, items: int) -> None:
    """Items of one shard, of which the process knows nothing yet."""
    await api.enqueue(*({"topic": "t", "payload": n, "id": api.new_id(0)} for n in range(items)))
    line_of(api).forget()
    line_of(api).refreshed_s = float("-inf")


async def payloads(api: Api, count: int) -> list[Any]:
    return [item["payload"] for item in await api.dequeue("t", count)]


async def test_a_poll_does_not_hold_up_a_call_that_has_keys_at_hand(own_api: Api, looks: Looks) -> None:
    await fill(own_api, 5)
    assert await payloads(own_api, 1) == [0]
    better = await own_api.enqueue_one("t", payload="better", priority=-1, id=own_api.new_id(1))
    for key in [key for key in line_of(own_api).buffer._own if key.id == better]:  # type: ignore[union-attr]
        line_of(own_api).buffer._own._keys.remove(key)  # type: ignore[union-attr]
        line_of(own_api).buffer._own._known.remove(key.id)  # type: ignore[union-attr]
    looked_at(own_api, polls=1.1)
    looks.open.clear()
    looks.limits.clear()

    assert await payloads(own_api, 1) == [1], "served by what is known"
    await asyncio.sleep(0)
    assert await payloads(own_api, 1) == [2], "and no second poll is begun"
    looks.open.set()
    await looked(own_api)
    assert len(looks.limits) == len(own_api.host.stores)
    assert await payloads(own_api, 1) == ["better"], "that nobody had told of"


async def test_nothing_is_served_by_a_look_of_long_ago(own_api: Api, looks: Looks) -> None:
    await fill(own_api, 5)
    assert await payloads(own_api, 1) == [0]
    looked_at(own_api, polls=STALE_POLLS + 0.1)
    looks.open.clear()

    call = asyncio.create_task(own_api.dequeue("t", 1))
    done, _ = await asyncio.wait([call], timeout=0.2)
    assert not done
    looks.open.set()
    assert [item["payload"] for item in await call] == [1]


async def test_a_call_for_more_than_is_at_hand_looks_first(own_api: Api, looks: Looks) -> None:
    """A poll is due, and an item that nobody told of is there: it may not be answered with nothing."""
    await fill(own_api, 2)
    assert await payloads(own_api, 1) == [0]
    looked_at(own_api, polls=1.1)
    line_of(own_api).buffer._own._keys.clear()  # type: ignore[union-attr]
    line_of(own_api).buffer._own._known.clear()  # type: ignore[union-attr]
    looks.limits.clear()
    assert await payloads(own_api, 1) == [1]
    assert looks.limits


async def test_more_is_read_before_a_call_has_to_wait_for_it(own_api: Api, looks: Looks) -> None:
    await fill(own_api, 3 * LOOK_KEYS_MIN)
    served = await payloads(own_api, LOOK_KEYS_MIN // 2 + 1)
    assert set(looks.limits) == {2 * len(served)}
    await looked(own_api)
    looks.limits.clear()
    while len(served) < LOOK_KEYS_MIN:
        served += await payloads(own_api, 1)
    await looked(own_api)
    assert looks.limits, "few were left"

    looks.open.clear()
    for _ in range(LOOK_KEYS_MIN):
        served += await payloads(own_api, 1)
    assert served == list(range(len(served))), "all in order"
    looks.open.set()
    await looked(own_api)


async def test_a_drained_topic_is_not_looked_at_ahead(own_api: Api, looks: Looks) -> None:
    await fill(own_api, 3)
    assert await payloads(own_api, 3) == [0, 1, 2]
    looks.limits.clear()
    for n in range(5):
        await own_api.enqueue_one("t", payload=n)
        assert await payloads(own_api, 1) == [n]
    await looked(own_api)
    assert looks.limits == []
