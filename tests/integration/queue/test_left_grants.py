"""What a gate has granted comes back to it, once, where its home is away for a moment or an answer is lost."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Any

import pytest

from services.queue.dispatch import claiming
from services.queue.gates.key_gates import Through
from services.queue.gates.limits import Grant
from services.queue.leases import doubts
from services.queue.model import Key
from services.queue.store import gates as rows
from shared import again
from shared.errors import ShardUnavailable
from tests.integration.queue.test_doubts import Lost
from tests.integration.queue.test_slow_claims import END_S
from tests.integration.queue.test_slow_gates import home_of, until_items
from tests.integration.queue.test_topic_limits import limit, spread
from tests.support.queue_host import Api, QueueHost, queue_host

TOKEN = "00000000-0000-4000-8000-000000000001"
OF_TOPIC = {"concurrency": 3}
OF_KEY = {"key_concurrency": 3}
TOPIC_AND_KEY = pytest.mark.parametrize("limits", [OF_TOPIC, OF_KEY], ids=["topic", "key"])


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is refused is tried again soon."""
    monkeypatch.setattr(again, "PAUSE_S", 0.01)
    monkeypatch.setattr(again, "PAUSE_S_MAX", 0.02)
    return None


@pytest.fixture
async def other(own_host: QueueHost) -> AsyncIterator[QueueHost]:
    """A second process on the shards of `own_host`."""
    async with queue_host(own_host.database, own_host.clock, poll_s=0.02) as made:
        yield made


class Home:
    """The home of the topic's gate, as one process reaches it. Time does not pass for grants meanwhile."""

    def __init__(self, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_away = self.loses = False
        self.refused = 0
        self.open = asyncio.Event()
        self.open.set()
        self._run = home_of(api).pool.transaction
        monkeypatch.setattr(home_of(api).pool, "transaction", self._transaction)

    async def _transaction(self, work: Callable[[Any], Awaitable[Any]]) -> Any:
        await self.open.wait()
        if self.is_away:
            self.refused += 1
            raise ShardUnavailable("away for a moment", retry_after_s=1.0)
        loses = self.loses
        found = await self._run(work)
        if loses:
            raise ShardUnavailable("did not answer", outcome="unknown", retry_after_s=1.0)
        return found

    async def has_refused(self, times: int) -> None:
        async with asyncio.timeout(END_S):
            while self.refused < times:
                await asyncio.sleep(0.005)


@pytest.fixture
async def home(own_api: Api, monkeypatch: pytest.MonkeyPatch) -> Home:
    await own_api.clock.freeze()
    return Home(own_api, monkeypatch)


async def keys_of(api: Api) -> list[Key]:
    return sorted(Key(*row) for row in await api.host.rows("SELECT priority, deliver_at, id::text FROM item"))


async def enter(api: Api, wanted: int) -> Grant | Through:
    """What the gate of the topic, or those of its keys, let through."""
    gates, pair = api.host.process.gates, (api.namespace, "t")
    if not gates.limits[pair].are_by_key:
        return await gates.enter(*pair, TOKEN, wanted)
    return await gates.of_keys.enter(pair, gates.limits[pair], await keys_of(api), wanted)


async def leave(api: Api, granted: Grant | Through) -> None:
    """Nothing of it was claimed."""
    gates, pair = api.host.process.gates, (api.namespace, "t")
    if isinstance(granted, Grant):
        await gates.leave(*pair, TOKEN, granted.items, at=())
    else:
        await gates.of_keys.leave(pair, granted.granted, set())


def items_of(granted: Grant | Through) -> int:
    return granted.items if isinstance(granted, Grant) else len(granted.keys)


async def fill(api: Api, count: int) -> None:
    shards = list(api.host.stores)
    ids = [api.new_id(shards[n % len(shards)]) for n in range(count)]
    await api.enqueue(*({"topic": "t", "id": item_id, "fairness_key": "a"} for item_id in ids))


async def none_is_kept(api: Api) -> None:
    async with asyncio.timeout(END_S):
        while api.host.process.gates.leaves.again.kept:
            await asyncio.sleep(0.005)


@TOPIC_AND_KEY
async def test_what_could_not_be_given_back_is_given_back_later(
    own_api: Api, home: Home, limits: dict[str, int]
) -> None:
    await limit([own_api], **limits)
    await fill(own_api, 4)
    granted = await enter(own_api, 3)
    assert items_of(granted) == 3
    home.is_away = True
    await leave(own_api, granted)
    await home.has_refused(2)
    home.is_away = False
    assert len(await until_items(own_api, "t", 3)) == 3
    assert await own_api.dequeue("t", 1) == []


async def test_calls_whose_home_is_cut_off_behind_their_grants_take_no_room(own_api: Api, home: Home) -> None:
    """As above, by the calls themselves: what they have leased is all that counts in the end."""
    await limit([own_api], **OF_TOPIC)
    await fill(own_api, 6)
    gates = own_api.host.process.gates
    entered = gates.enter

    async def then_away(*args: Any, **options: Any) -> Grant:
        found = await entered(*args, **options)
        home.is_away = True
        return found

    gates.enter = then_away  # type: ignore[method-assign]
    held = await own_api.dequeue("t", 2)
    gates.enter = entered  # type: ignore[method-assign]
    assert len(held) == 2
    await home.has_refused(2)
    home.is_away = False
    assert len(await until_items(own_api, "t", 1)) == 1
    assert await own_api.dequeue("t", 1) == []


@TOPIC_AND_KEY
async def test_a_grant_whose_answer_was_lost_is_given_back(
    own_api: Api, home: Home, limits: dict[str, int]
) -> None:
    await limit([own_api], **limits)
    await fill(own_api, 4)
    home.loses = True
    assert items_of(await enter(own_api, 3)) == 0
    home.loses = False
    assert len(await until_items(own_api, "t", 3)) == 3


async def test_what_was_given_back_is_not_given_back_again_as_anothers(
    own_api: Api, other: QueueHost, home: Home
) -> None:
    """The item has been let through for another process meanwhile."""
    others = own_api.on(other)
    await limit([own_api, others], key_concurrency=1)
    await fill(own_api, 2)
    granted = await enter(own_api, 1)
    home.loses = True
    await leave(own_api, granted)
    home.open.clear()
    await own_api.clock.advance(0.001)
    assert items_of(await enter(others, 1)) == 1
    home.loses = False
    home.open.set()
    await none_is_kept(own_api)
    others.host.process.gates.of_keys.forget((own_api.namespace, "t"))
    assert items_of(await enter(others, 2)) == 0


async def test_tokens_that_are_known_by_nothing_are_not_given_back_twice(own_api: Api, home: Home) -> None:
    await limit([own_api], key_rate=0.001, key_burst=3)
    await fill(own_api, 6)
    first, _ = await enter(own_api, 1), await enter(own_api, 1)
    home.loses = True
    await leave(own_api, first)
    home.loses = False
    await none_is_kept(own_api)
    assert items_of(await enter(own_api, 6)) == 2


async def test_tokens_that_may_not_have_been_taken_are_not_given_back(own_api: Api, home: Home) -> None:
    await limit([own_api], key_rate=0.001, key_burst=3)
    await fill(own_api, 6)
    assert items_of(await enter(own_api, 2)) == 2
    home.loses = True
    assert items_of(await enter(own_api, 1)) == 0
    home.loses = False
    own_api.host.process.gates.of_keys.forget((own_api.namespace, "t"))
    assert items_of(await enter(own_api, 6)) == 0


async def test_no_more_grants_are_kept_for_another_try_than_a_bound(
    own_api: Api, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaves = own_api.host.process.gates.leaves.again
    monkeypatch.setattr(leaves, "kept_max", 1)
    await limit([own_api], **OF_TOPIC)
    await spread(own_api, 4)
    grants = [await own_api.host.process.gates.enter(own_api.namespace, "t", f"{TOKEN}{n}", 1) for n in range(3)]
    assert [granted.items for granted in grants] == [1, 1, 1]
    home.is_away = True
    for n in range(3):
        await own_api.host.process.gates.leave(own_api.namespace, "t", f"{TOKEN}{n}", 1, at=())
        assert leaves.kept == 1
    home.is_away = False
    await none_is_kept(own_api)
    assert len(await own_api.dequeue("t", 3)) == 1


@TOPIC_AND_KEY
async def test_what_is_given_back_to_a_home_that_has_moved_is_given_back_to_the_new_one(
    own_api: Api, home: Home, limits: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """This process hears of the move a moment later."""
    await limit([own_api], **limits)
    await fill(own_api, 4)
    granted = await enter(own_api, 3)
    asked = list[int]()

    async def elsewhere(*_: Any) -> list[Any] | None:
        asked.append(1)
        return [] if "key_concurrency" in limits else None

    with monkeypatch.context() as patch:
        patch.setattr(rows, "lock_keys" if "key_concurrency" in limits else "lock", elsewhere)
        await leave(own_api, granted)
        async with asyncio.timeout(END_S):
            while len(asked) < 2:
                await asyncio.sleep(0.005)
    assert len(await until_items(own_api, "t", 3)) == 3


async def test_what_may_be_leased_to_nobody_has_the_room_of_its_key_until_it_is_handed_back(
    own_api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claiming, "REST_S", 0.0)
    await limit([own_api], key_concurrency=1)
    await own_api.enqueue(*({"topic": "t", "id": own_api.new_id(1), "fairness_key": "a"} for _ in "ab"))
    look, may_look = doubts.leased_under, asyncio.Event()

    async def held(asked: Any, tokens: Sequence[str]) -> Any:
        await may_look.wait()
        return await look(asked, tokens)

    monkeypatch.setattr(doubts, "leased_under", held)
    Lost(own_api, "claim", monkeypatch, is_done=True)
    assert await own_api.dequeue("t", 1) == []
    assert await own_api.dequeue("t", 1) == [], "one is leased, and nobody has it"
    may_look.set()
    assert len(await own_api.dequeue("t", 2, wait_s=20)) == 1
