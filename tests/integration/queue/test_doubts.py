"""What may be leased to nobody, as the answer to its statement was lost: it is asked for, and goes back."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from services.queue.dispatch import claiming
from services.queue.leases import doubts
from services.queue.leases.doubts import Doubts
from services.queue.store.dequeue_encoding import Unused
from services.queue.store.leases import LeasedGroup
from shared.errors import ShardUnavailable
from tests.integration.queue.test_slow_claims import END_S, all_at_no_attempt, fill, shards_of
from tests.support.clocks import ManualClock
from tests.support.queue_host import Api

# What a call may ask for at least.
SHORTEST_LEASE_S = 1.0
ONCE = [{"max_attempts": 1}, {"delivery": "at_most_once"}]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A claim is given up soon, and its shard is asked again soon."""
    monkeypatch.setattr(claiming, "CLAIM_S_MAX", 0.3)
    monkeypatch.setattr(claiming, "REST_S", 0.05)
    monkeypatch.setattr("services.queue.dispatch.dequeue.MISSES_S_MAX", 0.2)
    yield


class Lost:
    """The next statement of a store is done, or not, and nobody hears of it."""

    def __init__(self, api: Api, verb: str, monkeypatch: pytest.MonkeyPatch, *, is_done: bool) -> None:
        self._store, self._verb, self._monkeypatch = api.host.stores[1], verb, monkeypatch
        self._original = getattr(self._store, verb)
        self._is_done = is_done
        self.asked: tuple[Any, Any] = ((), {})
        monkeypatch.setattr(self._store, verb, self._lost)

    async def _lost(self, *args: Any, **kwargs: Any) -> Any:
        self._monkeypatch.setattr(self._store, self._verb, self._original)
        self.asked = args, kwargs
        if self._is_done:
            await self.comes()
        raise ShardUnavailable("the connection was cut", outcome="unknown")

    async def comes(self) -> None:
        """The server does it."""
        args, kwargs = self.asked
        await self._original(*args, **kwargs)


class Looks:
    """How many looks for what is in doubt have ended, and how many groups each found."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found: list[int] = []
        self._look = doubts.leased_under
        monkeypatch.setattr(doubts, "leased_under", self._counted)

    async def _counted(self, asked: Any, tokens: Sequence[str]) -> list[LeasedGroup]:
        groups = await self._look(asked, tokens)
        self.found.append(len(groups))
        return groups

    async def more(self, count: int) -> None:
        until = len(self.found) + count
        async with asyncio.timeout(END_S):
            while len(self.found) < until:
                await asyncio.sleep(0.005)


@pytest.mark.parametrize("delivery", ONCE)
async def test_what_a_claim_leased_whose_answer_was_lost_is_handed_back(
    own_api: Api, monkeypatch: pytest.MonkeyPatch, delivery: dict[str, Any]
) -> None:
    await fill(own_api, 1, 5, **delivery)
    Lost(own_api, "claim", monkeypatch, is_done=True)
    assert await shards_of(own_api.dequeue("t", 5)) == {}
    await all_at_no_attempt(own_api, 5)


async def test_what_a_claim_leases_after_its_answer_was_lost_and_asked_for_is_handed_back(
    own_api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its server stood still: the connection was cut, and the claim was done when it went on."""
    looks = Looks(monkeypatch)
    await fill(own_api, 1, 5, max_attempts=1)
    lost = Lost(own_api, "claim", monkeypatch, is_done=False)
    assert await shards_of(own_api.dequeue("t", 5)) == {}
    await looks.more(2)
    await lost.comes()
    await all_at_no_attempt(own_api, 5)
    assert looks.found[:2] == [0, 0]


async def test_what_a_claim_has_leased_that_does_not_answer_is_handed_back_before_it_does(
    own_api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was done, and its connection fell silent."""
    store, speaks = own_api.host.stores[1], asyncio.Event()
    claim = store.claim

    async def silent(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(store, "claim", claim)
        await claim(*args, **kwargs)
        await speaks.wait()
        raise ShardUnavailable("the connection was cut", outcome="unknown")

    await fill(own_api, 1, 5, max_attempts=1)
    monkeypatch.setattr(store, "claim", silent)
    assert await shards_of(own_api.dequeue("t", 5)) == {}
    async with asyncio.timeout(END_S):
        while [await own_api.state(item_id) for item_id in await _ids(own_api)] != ["ready"] * 5:
            await asyncio.sleep(0.005)
    speaks.set()
    await all_at_no_attempt(own_api, 5)


async def _ids(api: Api) -> list[str]:
    return [str(row["id"]) for row in await api.host.rows("SELECT id FROM item")]


async def test_what_a_call_gets_by_its_next_claim_is_not_handed_back_with_what_the_last_one_may_have_leased(
    own_api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection was cut before the claim came; the call waits, and claims the same item again."""
    looks = Looks(monkeypatch)
    await fill(own_api, 1, 1, delivery="at_most_once")
    Lost(own_api, "claim", monkeypatch, is_done=False)
    [held] = await own_api.dequeue("t", 1, wait_s=20)
    await looks.more(2)
    assert set(looks.found) == {0}
    assert await own_api.ack(held) == ["acked"]


@pytest.mark.parametrize("delivery", ONCE)
@pytest.mark.parametrize("verb", ["enqueue", "revive", "ack"])
async def test_what_a_flush_has_leased_to_a_call_that_waits_and_whose_answer_was_lost_is_handed_back(
    own_api: Api, monkeypatch: pytest.MonkeyPatch, verb: str, delivery: dict[str, Any]
) -> None:
    """The call is woken, and gets the item by a claim of its own."""
    waiting, call = await flush_to_one_that_waits(own_api, verb, delivery)
    Lost(own_api, verb, monkeypatch, is_done=True)
    answer = await call()
    assert "unknown" in answer.text, "nobody knows what was done"
    async with asyncio.timeout(END_S):
        [got] = await waiting
    assert got["attempt"] == 1
    assert await own_api.ack(got) == ["acked"]


async def flush_to_one_that_waits(
    api: Api, verb: str, delivery: dict[str, Any]
) -> tuple[asyncio.Task[list[dict[str, Any]]], Callable[[], Awaitable[httpx.Response]]]:
    """A call that waits, and another, not made yet, whose flush would lease it an item."""
    item = {"topic": "t", "id": api.new_id(1), **delivery}
    if verb == "revive":
        await api.enqueue({**item, "disabled": True})
    await api.enqueue_one("w", id=api.new_id(1), ack_topic="t", ack_context={"c": 1})
    working = await api.dequeue_one("w")
    for wait_s in (0, 0):  # the topic is known, and dry
        await api.dequeue("t", 1, wait_s=wait_s)
    waiting = asyncio.create_task(api.dequeue("t", 1, wait_s=20, lease_s=600))
    async with asyncio.timeout(END_S):
        while not api.host.dispatch.line(api.namespace, "t").waiting:
            await asyncio.sleep(0.005)
    calls = {"enqueue": {"items": [item]}, "revive": {"items": [{"id": item["id"]}]}}
    calls["ack"] = {"items": [{"id": working["id"], "lease_token": working["lease_token"]}]}
    return waiting, partial(api.post, verb, calls[verb])


@pytest.mark.parametrize("delivery", ONCE)
@pytest.mark.parametrize("verb", ["enqueue", "revive", "ack"])
async def test_what_a_flush_that_does_not_answer_has_leased_to_a_call_is_handed_back_before_it_does(
    own_api: Api, monkeypatch: pytest.MonkeyPatch, verb: str, delivery: dict[str, Any]
) -> None:
    """It was done, and its connection fell silent. The call gets the item once, also when the answer comes."""
    waiting, call = await flush_to_one_that_waits(own_api, verb, delivery)
    store, speaks = own_api.host.stores[1], asyncio.Event()
    original = getattr(store, verb)

    async def slow(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(store, verb, original)
        found = await original(*args, **kwargs)
        await speaks.wait()
        return found

    monkeypatch.setattr(store, verb, slow)
    calling = asyncio.create_task(call())
    async with asyncio.timeout(END_S):
        [got] = await waiting
    assert got["attempt"] == 1 and not calling.done()
    speaks.set()
    assert (await calling).status_code in (200, 201)
    assert await own_api.dequeue("t", 1) == []
    assert await own_api.ack(got) == ["acked"], "it is the call's, and was not given back behind it"


class Asked:
    """Doubts of a shard that is away until it is `well`, whose pauses only move a clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = ManualClock()
        self.pauses_s: list[float] = []
        self.groups: list[LeasedGroup] = []
        self.well_after_s = 0.0
        self.handed_back: list[Unused] = []
        self.calls: list[tuple[str, list[str]]] = []
        self.work: list[asyncio.Future[None]] = []
        stores = {1: SimpleNamespace(pool=SimpleNamespace(is_retired=False))}
        monkeypatch.setattr(doubts, "Waker", lambda: SimpleNamespace(wait=self._pause))
        monkeypatch.setattr(doubts, "leased_under", self._look)
        self.doubts = Doubts(
            cast(Any, stores),
            self._hand_back,
            lambda work: self.work.append(asyncio.ensure_future(work)),
            self.clock,
        )

    async def _pause(self, pause_s: float) -> None:
        self.pauses_s.append(pause_s)
        self.clock.advance(pause_s)

    async def _look(self, _asked: Any, _tokens: Sequence[str]) -> list[LeasedGroup]:
        if sum(self.pauses_s) < self.well_after_s:
            raise ShardUnavailable("away")
        return self.groups

    async def _hand_back(self, namespace: str, unused: Sequence[Unused]) -> None:
        self.calls.append((namespace, [item.token for item in unused]))
        self.handed_back.extend(unused)
        if namespace == "slow":
            await asyncio.Event().wait()


async def test_while_a_claim_is_in_doubt_it_is_asked_for_before_the_shortest_lease_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = Asked(monkeypatch)
    asked.doubts.note(1, "n", "token")
    await asyncio.gather(*asked.work)
    assert max(asked.pauses_s) < SHORTEST_LEASE_S
    assert sum(asked.pauses_s) >= doubts.DOUBT_S


async def test_a_shard_that_was_away_for_longer_than_a_doubt_lasts_is_asked_when_it_is_there_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = Asked(monkeypatch)
    asked.well_after_s = 5 * doubts.DOUBT_S
    asked.groups = [LeasedGroup("token", datetime.now(UTC), ["id"])]
    asked.doubts.note(1, "n", "token")
    await asyncio.gather(*asked.work)
    assert [(item.id, item.token) for item in asked.handed_back] == [("id", "token")]
    assert asked.well_after_s <= sum(asked.pauses_s) < asked.well_after_s + doubts.PAUSE_S_MAX


async def test_no_more_is_asked_for_at_once_than_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch)
    monkeypatch.setattr(doubts, "TOKENS_MAX", 2)
    for token in ("a", "b", "c", "a"):
        asked.doubts.note(1, "n", token)
    assert list(asked.doubts._tokens[1]) == ["a", "b"]
    await asyncio.gather(*asked.work)
    assert not asked.doubts._tokens


async def test_what_is_found_is_handed_back_together_and_nobody_waits_for_another_namespaces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Handed back one by one, leases would end before it is their turn."""
    asked = Asked(monkeypatch)
    of = {"a": "slow", "b": "n", "c": "slow", "d": "n"}
    asked.groups = [LeasedGroup(token, datetime.now(UTC), [f"of {token}"]) for token in of]
    for token, namespace in of.items():
        asked.doubts.note(1, namespace, token)
    async with asyncio.timeout(END_S):
        await asked.work[0]
    assert asked.calls == [("slow", ["a", "c"]), ("n", ["b", "d"])]
    for work in asked.work:
        work.cancel()
