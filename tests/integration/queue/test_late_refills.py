"""Looks at a shard that take long: who waits is told what they find, and they are not begun again meanwhile."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from services.queue.dispatch import key_refill
from tests.support.queue_host import Api


class Looks:
    """The looks at the shards of a process, which end when they are let go."""

    def __init__(self, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = asyncio.Event()
        self.begun = asyncio.Event()
        for store in api.host.stores.values():
            monkeypatch.setattr(store, "peek", self._held(store.peek))

    def _held(self, real: Any) -> Any:
        async def peek(*args: Any) -> Any:
            self.begun.set()
            await self.open.wait()
            return await real(*args)

        return peek


async def waits(api: Api, topic: str) -> None:
    """Until a call waits for the topic."""
    line = api.host.dispatch.line(api.namespace, topic)
    async with asyncio.timeout(20):
        while not any(not place.done() for place in line.waiting):
            await asyncio.sleep(0.005)


async def test_a_look_that_was_passed_over_is_told_to_who_waits(
    own_api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    await own_api.enqueue({"topic": "t"}, {"topic": "t"})
    looks = Looks(own_api, monkeypatch)
    monkeypatch.setattr(key_refill, "PEEK_S_MAX", 0.01)

    assert await own_api.dequeue("t", 2) == []
    waiting = asyncio.create_task(own_api.dequeue("t", 2, wait_s=20))
    await waits(own_api, "t")
    looks.open.set()

    assert len(await waiting) == 2


async def test_what_a_call_that_was_cut_off_looked_for_is_told_to_the_next(
    own_api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    await own_api.enqueue({"topic": "t"}, {"topic": "t"})
    looks = Looks(own_api, monkeypatch)
    first = asyncio.create_task(own_api.dequeue("t", 2, wait_s=20))
    await looks.begun.wait()
    first.cancel()
    with suppress(asyncio.CancelledError):
        await first

    second = asyncio.create_task(own_api.dequeue("t", 2, wait_s=20))
    await waits(own_api, "t")
    looks.open.set()

    assert len(await second) == 2
    assert not own_api.host.dispatch.line(own_api.namespace, "t").late
