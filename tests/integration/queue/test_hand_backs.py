"""What was leased to a call that is not there to get it goes back, also where its shard refuses it for a while."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from services.queue.dispatch import claiming
from services.queue.leases import hand_backs
from services.queue.leases.doubts import Doubts
from services.queue.store.dequeue_encoding import Unused
from shared import again
from shared.errors import ShardUnavailable
from tests.integration.queue.test_slow_claims import (
    END_S,
    all_at_no_attempt,
    claims_that_stand,
    fill,
    shards_of,
    sick,
)
from tests.support.queue_host import Api, QueueHost


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A claim is given up soon; nothing else asks for what it has leased."""
    monkeypatch.setattr(Doubts, "note", lambda *_: None)
    monkeypatch.setattr(claiming, "CLAIM_S_MAX", 0.3)
    monkeypatch.setattr("services.queue.dispatch.dequeue.MISSES_S_MAX", 0.2)
    return None


class Refusing:
    """A shard that takes nothing back while it is not well."""

    def __init__(self, api: Api, shard: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.refused = 0
        self.is_well = True
        self._pool = api.host.stores[shard].pool
        monkeypatch.setattr(self._pool, "admit", self._admit)

    def _admit(self) -> None:
        if not self.is_well:
            self.refused += 1
            raise ShardUnavailable("away for a moment", retry_after_s=1.0)

    async def has_refused(self, times: int) -> None:
        async with asyncio.timeout(END_S):
            while self.refused < times:
                await asyncio.sleep(0.005)


def hear(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of how many items it is said that they are not handed back."""
    said: list[int] = []

    def warning(_: str, items: int) -> None:
        said.append(items)

    monkeypatch.setattr(hand_backs, "log", SimpleNamespace(info=lambda *_, **__: None, warning=warning))
    return said


async def given_up(api: Api, items: int, refusing: Refusing | None = None, **fields: Any) -> None:
    """A claim of so many that a call did not wait for; from then on its shard may be unwell."""
    await fill(api, 1, items, **fields)
    async with sick(api, 1):
        assert await shards_of(api.dequeue("t", items)) == {}
        assert await claims_that_stand(api) == 1
        if refusing is not None:
            refusing.is_well = False


async def test_what_is_to_be_handed_back_when_a_process_goes_has_a_moment(
    own_api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = QueueHost(own_api.host.database, own_api.host.clock)
    goes = asyncio.Event()
    await fill(own_api, 1, 5, max_attempts=1)
    held = await own_api.dequeue("t", 5)
    until = datetime.now(UTC) + timedelta(seconds=60)
    unused = [Unused(item["id"], item["lease_token"], until) for item in held]

    async def behind() -> None:
        await goes.wait()
        await host.process.hand_backs.hand_back(own_api.namespace, unused)

    ended = host.dispatch.ended

    async def waits() -> None:
        goes.set()
        await ended()

    monkeypatch.setattr(host.dispatch, "ended", waits)
    app = host.app.app
    async with app.router.lifespan_context(app):
        host.dispatch.keep(behind())
    assert not host.dispatch._late
    await all_at_no_attempt(own_api, 5)


@pytest.mark.parametrize("max_attempts", [0, 1])
async def test_a_hand_back_that_is_refused_is_tried_again(
    own_api: Api, monkeypatch: pytest.MonkeyPatch, max_attempts: int
) -> None:
    refusing = Refusing(own_api, 1, monkeypatch)
    await given_up(own_api, 5, refusing, max_attempts=max_attempts, lease_s=5)
    await refusing.has_refused(2)
    refusing.is_well = True
    await all_at_no_attempt(own_api, 5)


async def test_it_is_tried_until_the_leases_have_ended_and_that_is_said(
    own_api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = hear(monkeypatch)
    monkeypatch.setattr(again, "PAUSE_S_MAX", 0.3)
    refusing = Refusing(own_api, 1, monkeypatch)
    await given_up(own_api, 5, refusing, lease_s=1, backoff={"base_s": 0})
    async with asyncio.timeout(END_S):
        while not said:
            await asyncio.sleep(0.005)
    assert said == [5]
    tried = refusing.refused
    assert tried >= 2
    assert own_api.host.process.hand_backs.again.kept == 0
    refusing.is_well = True
    await own_api.host.pass_time(5)
    found = await own_api.dequeue("t", 5, wait_s=20)
    assert {item["attempt"] for item in found} == {2}


async def test_no_more_are_kept_for_another_try_than_a_bound(
    own_api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_api.host.process.hand_backs.again, "kept_max", 3)
    said = hear(monkeypatch)
    await fill(own_api, 1, 5)
    held = await own_api.dequeue("t", 5)
    until = datetime.now(UTC) + timedelta(seconds=60)
    unused = [Unused(item["id"], item["lease_token"], until) for item in held]
    refusing = Refusing(own_api, 1, monkeypatch)
    refusing.is_well = False
    await own_api.host.process.hand_backs.hand_back(own_api.namespace, unused)
    await own_api.host.process.hand_backs.hand_back(own_api.namespace, unused[:1])
    assert said == [2, 1]
    refusing.is_well = True
    await all_at_no_attempt(own_api, 3)
    assert await own_api.dequeue("t", 5) == []


@pytest.mark.parametrize("items", [10, 60])  # a flush of light claims, and one of heavy ones
async def test_what_is_delivered_at_most_once_was_not_where_its_claim_was_given_up(
    own_api: Api, items: int
) -> None:
    await given_up(own_api, items, delivery="at_most_once")
    await all_at_no_attempt(own_api, items)


async def test_what_is_delivered_at_most_once_was_not_where_it_was_handed_to_a_call_that_had_left(
    own_api: Api,
) -> None:
    await fill(own_api, 1, 1)
    assert len(await own_api.dequeue("t")) == 1  # from now on the topic is known there
    async with sick(own_api, 1, lock="LOCK TABLE ready IN EXCLUSIVE MODE"):
        call = asyncio.create_task(own_api.dequeue("t", wait_s=0.2))
        line = own_api.host.dispatch.line(own_api.namespace, "t")
        async with asyncio.timeout(END_S):
            while not line.waiting:
                await asyncio.sleep(0.001)
        enqueuing = asyncio.create_task(fill(own_api, 1, 1, delivery="at_most_once"))
        assert await call == []
        assert not enqueuing.done()
    await enqueuing
    await all_at_no_attempt(own_api, 1)


async def test_what_is_delivered_at_most_once_and_was_told_of_is_gone_when_it_is_given_back(own_api: Api) -> None:
    await fill(own_api, 1, 1, delivery="at_most_once")
    [held] = await own_api.dequeue("t")
    assert await own_api.nack(held, delay_s=0, costs_attempt=False) == ["dead"]
