"""Dequeues while a shard shows its items and refuses to lease them: read-only, or its disk is full."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from headgate._ids import shard_of
from services.queue.dispatch import dequeue
from services.queue.dispatch.claiming import REST_S
from tests.support.clocks import ManualClock
from tests.support.queue_host import Api

END_S = 60
BACKLOG = 150
REFUSING = """
CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
$$BEGIN RAISE EXCEPTION 'refused' USING ERRCODE = '{code}'; END$$;
CREATE TRIGGER refuse BEFORE INSERT ON lease EXECUTE FUNCTION refuse();
"""


class Sick:
    """Shard 1, which refuses to lease anything until it is healed; and how often it was asked to."""

    def __init__(self, api: Api, connection: Any) -> None:
        self.api = api
        self._connection = connection
        self.claims = 0
        store = api.host.stores[1]
        original: Callable[..., Awaitable[Any]] = store.claim

        async def claim(*args: Any, **options: Any) -> Any:
            self.claims += 1
            return await original(*args, **options)

        store.claim = claim  # type: ignore[method-assign]

    async def refuse(self, code: str) -> None:
        await self._connection.execute(REFUSING.format(code=code))

    async def heal(self) -> None:
        await self._connection.execute("DROP TRIGGER refuse ON lease")


@pytest.fixture
async def sick(own_api: Api) -> AsyncIterator[Sick]:
    connection = await own_api.host.database.connect("queue_001")
    yield Sick(own_api, connection)
    await connection.close()


async def fill(api: Api, shard: int, items: int, **fields: Any) -> None:
    await api.enqueue(*({"topic": "t", "id": api.new_id(shard), **fields} for _ in range(items)))


@pytest.mark.parametrize("code", ["53100", "25006", "55P03"])
async def test_a_call_that_does_not_wait_is_answered(own_api: Api, sick: Sick, code: str) -> None:
    """It is not led through the whole backlog, a refusal for each key."""
    await fill(own_api, 1, BACKLOG)
    await sick.refuse(code)
    async with asyncio.timeout(END_S):
        assert await own_api.dequeue("t", 1) == []
        assert await own_api.dequeue("t", 1, wait_s=0.2) == []

    assert sick.claims <= 2


async def test_a_shard_that_refuses_does_not_keep_back_others(own_api: Api, sick: Sick) -> None:
    """Its items would go first."""
    await fill(own_api, 1, BACKLOG, priority=-1)
    await fill(own_api, 0, 5)
    await sick.refuse("25006")
    async with asyncio.timeout(END_S):
        for _ in range(5):
            [item] = await own_api.dequeue("t", 1)
            assert shard_of(item["id"]) == 0

    assert sick.claims == 1


async def test_what_becomes_ready_on_a_shard_that_rests_is_served_when_it_takes_claims_again(
    own_api: Api, sick: Sick, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock(wall=True)
    monkeypatch.setattr(own_api.host.dispatch, "_clock", clock)
    monkeypatch.setattr(own_api.host.process.dequeues, "_clock", clock)
    monkeypatch.setattr(own_api.host.dispatch.rests, "_clock", clock)
    monkeypatch.setattr(own_api.host.dispatch.looking, "_clock", clock)
    await fill(own_api, 1, 3)
    await sick.refuse("53100")
    assert await own_api.dequeue("t", 2) == []
    await fill(own_api, 1, 3)
    assert await own_api.dequeue("t", 2) == []
    assert sick.claims == 1

    await sick.heal()
    clock.advance(REST_S)
    assert {item["attempt"] for item in await own_api.dequeue("t", 9)} == {1}
    assert await own_api.host.count("ready") == 0


async def test_calls_that_wait_ask_a_shard_that_refuses_once_a_while(own_api: Api, sick: Sick) -> None:
    """However many they are, and whatever becomes ready meanwhile."""
    await fill(own_api, 1, 20)
    await sick.refuse("25006")
    waiting = [asyncio.create_task(own_api.dequeue("t", 1, wait_s=20)) for _ in range(20)]
    async with asyncio.timeout(END_S):
        while len(own_api.host.dispatch.line(own_api.namespace, "t").waiting) < 20:
            await asyncio.sleep(0.005)
    before = sick.claims
    for _ in range(10):
        await fill(own_api, 1, 1)
    assert sick.claims - before <= 2

    await sick.heal()
    async with asyncio.timeout(END_S):
        found = [item for part in await asyncio.gather(*waiting) for item in part]
    assert len({item["id"] for item in found}) == 20
    assert {item["attempt"] for item in found} == {1}


async def test_a_call_whose_items_are_always_gone_ends_after_its_deadline(
    own_api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process takes them each time between the look and the claim."""
    monkeypatch.setattr(dequeue, "MISSES_S_MAX", 0.05)
    await fill(own_api, 0, BACKLOG)

    async def claim(*_args: Any, **_options: Any) -> tuple[list[Any], set[str]]:
        return [], set()

    for store in own_api.host.stores.values():
        store.claim = claim  # type: ignore[method-assign]
    async with asyncio.timeout(END_S):
        assert await own_api.dequeue("t", 1) == []
