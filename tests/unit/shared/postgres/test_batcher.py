"""Shared flushes: the next starts when the last one ends, and carries what gathered meanwhile."""

import asyncio
import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.admission.connection_priority import Urgency
from shared.errors import Invalid, Overloaded, ShardUnavailable
from shared.postgres.batcher import FEW_CALLS_MAX, LET_IN_S, TURNS_MAX, Batcher, BatcherLimits
from shared.postgres.connections import Pool
from shared.postgres.history import HistoryChanged
from shared.settings import EdgeSettings, parse_shards


class Flushes:
    """A flush function that waits to be let go on; it answers its entries doubled."""

    def __init__(self) -> None:
        self.seen: list[list[Any]] = []
        self.go_on = asyncio.Event()
        self.running = 0

    async def __call__(self, entries: list[Any]) -> list[Any]:
        assert self.running == 0, "two flushes at once"
        self.running += 1
        self.seen.append(list(entries))
        await self.go_on.wait()
        self.running -= 1
        if "poison" in entries:
            raise Invalid("poison")
        if "away" in entries:
            raise ShardUnavailable("away", outcome="unknown")
        if "bug" in entries:
            raise KeyError("bug")
        return [entry * 2 for entry in entries]


async def gathered(flushes: Flushes, *calls: list[Any], items_max: int = 100) -> list[Any]:
    """Calls that come while a first flush (of 0) is running; their answers."""
    batcher: Batcher[Any, Any] = Batcher(flushes, BatcherLimits(items_max))
    first = asyncio.create_task(batcher.submit([0]))
    while not flushes.seen:
        await asyncio.sleep(0)
    assert flushes.seen == [[0]]
    tasks = [asyncio.create_task(batcher.submit(call)) for call in calls]
    await asyncio.sleep(0)
    flushes.go_on.set()
    assert list(await first) == [0]
    return await asyncio.gather(*tasks, return_exceptions=True)


async def test_an_idle_batcher_flushes_the_first_call_alone_and_at_once() -> None:
    flushes = Flushes()
    flushes.go_on.set()
    batcher: Batcher[Any, Any] = Batcher(flushes, BatcherLimits(10))

    assert list(await batcher.submit([1, 2])) == [2, 4]
    assert list(await batcher.submit([3])) == [6]
    assert flushes.seen == [[1, 2], [3]]


async def test_what_comes_in_the_turn_before_a_flush_joins_it() -> None:
    flushes = Flushes()
    flushes.go_on.set()
    batcher: Batcher[Any, Any] = Batcher(flushes, BatcherLimits(10))
    first = asyncio.create_task(batcher.submit([1]))
    await asyncio.sleep(0)
    second = asyncio.create_task(batcher.submit([2]))
    assert [list(answer) for answer in await asyncio.gather(first, second)] == [[2], [4]]
    assert flushes.seen == [[1, 2]]


async def test_a_flush_waits_while_each_turn_brings_more_but_not_for_ever() -> None:
    flushes = Flushes()
    flushes.go_on.set()
    batcher: Batcher[Any, Any] = Batcher(flushes, BatcherLimits(100))
    calls = []
    for n in range(3 * TURNS_MAX):
        calls.append(asyncio.create_task(batcher.submit([n])))
        await asyncio.sleep(0)
    assert [list(answer) for answer in await asyncio.gather(*calls)] == [[2 * n] for n in range(3 * TURNS_MAX)]
    assert TURNS_MAX <= len(flushes.seen[0]) <= TURNS_MAX + 1


async def test_a_full_flush_waits_for_nobody() -> None:
    flushes = Flushes()
    flushes.go_on.set()
    batcher: Batcher[Any, Any] = Batcher(flushes, BatcherLimits(2))
    calls = []
    for n in range(TURNS_MAX):
        calls.append(asyncio.create_task(batcher.submit([n])))
        await asyncio.sleep(0)
    await asyncio.gather(*calls)
    assert flushes.seen[0] == [0, 1]
    assert max(map(len, flushes.seen)) == 2


async def test_a_shard_found_away_in_the_turn_before_a_flush_is_asked_nothing() -> None:
    flushes = Flushes()
    flushes.go_on.set()
    pool = Pool(parse_shards("postgresql://x@127.0.0.1:1/n#1", "queue")[0], EdgeSettings())
    batcher: Batcher[Any, Any] = Batcher(flushes, BatcherLimits(10), pool=pool)
    call = asyncio.create_task(batcher.submit([1]))
    while batcher._light.task is None:
        await asyncio.sleep(0)
    running = batcher._light.task
    await asyncio.sleep(0)
    pool.breaker._open()
    with pytest.raises(ShardUnavailable):
        await call
    await running
    assert flushes.seen == []


async def test_what_comes_during_a_flush_shares_the_next() -> None:
    flushes = Flushes()
    answers = await gathered(flushes, [1], [2, 3], [4])

    assert [list(answer) for answer in answers] == [[2], [4, 6], [8]]
    assert flushes.seen == [[0], [1, 2, 3, 4]]


async def test_a_flush_is_bounded_and_calls_stay_whole() -> None:
    flushes = Flushes()
    answers = await gathered(flushes, [1, 2], [3, 4], [5], [6, 7, 8, 9], items_max=3)

    assert [list(answer) for answer in answers] == [[2, 4], [6, 8], [10], [12, 14, 16, 18]]
    assert flushes.seen[1:] == [[1, 2], [3, 4, 5], [6, 7, 8, 9]]


@pytest.mark.parametrize("position", range(5))
async def test_a_poisoned_call_fails_alone(position: int) -> None:
    calls: list[list[Any]] = [[number] for number in range(1, 6)]
    calls[position] = ["poison"]
    answers = await gathered(Flushes(), *calls)

    assert isinstance(answers.pop(position), Invalid)
    calls.pop(position)
    assert [list(answer) for answer in answers] == [[number * 2] for [number] in calls]


@given(st.lists(st.booleans(), min_size=1, max_size=12))
def test_any_pattern_of_poison_fails_the_poisoned_only(pattern: list[bool]) -> None:
    async def run() -> None:
        calls: list[list[Any]] = [["poison"] if bad else [n, n + 1] for n, bad in enumerate(pattern)]
        for bad, call, answer in zip(pattern, calls, await gathered(Flushes(), *calls), strict=True):
            assert isinstance(answer, Invalid) if bad else list(answer) == [entry * 2 for entry in call]

    asyncio.run(run())


@pytest.mark.parametrize(("entry", "error"), [("away", ShardUnavailable), ("bug", KeyError)])
async def test_any_other_error_is_everybodys(entry: str, error: type[Exception]) -> None:
    flushes = Flushes()
    answers = await gathered(flushes, [1], [entry], [3])

    assert [type(answer) for answer in answers] == [error] * 3
    assert len(flushes.seen) == 2  # nothing was tried again: it may have taken effect


async def test_after_an_error_the_next_flush_works() -> None:
    flushes = Flushes()
    flushes.go_on.set()
    batcher: Batcher[Any, Any] = Batcher(flushes, BatcherLimits(10))
    with pytest.raises(KeyError):
        await batcher.submit(["bug"])

    assert list(await batcher.submit([1])) == [2]


async def test_a_caller_that_left_does_not_stop_the_flush() -> None:
    flushes = Flushes()
    batcher: Batcher[Any, Any] = Batcher(flushes, BatcherLimits(10))
    leaving = asyncio.create_task(batcher.submit([1]))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    staying = asyncio.create_task(batcher.submit([2]))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    flushes.go_on.set()

    assert list(await staying) == [4]
    assert flushes.seen == [[1], [2]]


async def test_what_does_not_fit_is_shared_between_tenants() -> None:
    flushes = Flushes()
    batcher: Batcher[Any, Any] = Batcher(flushes, BatcherLimits(4))
    calls = [asyncio.create_task(batcher.submit([0], "hot"))]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    calls += [asyncio.create_task(batcher.submit([1, 1], "hot")) for _ in range(9)]
    calls.append(asyncio.create_task(batcher.submit([2], "calm")))
    await asyncio.sleep(0)
    flushes.go_on.set()
    await asyncio.gather(*calls)
    assert 2 in flushes.seen[1]


async def test_no_more_than_so_many_wait() -> None:
    flushes = Flushes()
    batcher: Batcher[Any, Any] = Batcher(flushes, BatcherLimits(4, waiting_max=3))
    calls = [asyncio.create_task(batcher.submit([0]))]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    calls += [asyncio.create_task(batcher.submit([n])) for n in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded) as caught:
        async with asyncio.timeout(10):
            await batcher.submit([9])
    assert caught.value.outcome == "none"
    flushes.go_on.set()
    assert list(map(list, await asyncio.gather(*calls))) == [[0], [0], [2], [4]]
    assert list(await batcher.submit([4])) == [8]


async def test_who_comes_soon_after_another_was_let_in_is_let_in_unless_the_shard_went_away_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 1000.0
    monkeypatch.setattr("shared.postgres.batcher._clock.monotonic_s", lambda: now_s)
    pool = Pool(parse_shards("postgresql://x@127.0.0.1:1/n#1", "queue")[0], EdgeSettings())
    looks = 0

    def look() -> None:
        nonlocal looks
        looks += 1

    monkeypatch.setattr(pool, "check", look)
    flushes = Flushes()
    flushes.go_on.set()
    batcher: Batcher[Any, Any] = Batcher(flushes, BatcherLimits(4), pool=pool)
    for _ in range(3):
        assert list(await batcher.submit([1])) == [2]
    assert looks == 1
    pool.breaker._open()
    await batcher.submit([1])
    assert looks == 2, "the breaker's word ends it"
    pool.history.meet("one")
    with pytest.raises(HistoryChanged):
        pool.history.meet("another")
    await batcher.submit([1])
    assert looks == 3, "so does another history"
    now_s += 2 * LET_IN_S
    await batcher.submit([1])
    assert looks == 4


async def test_a_line_behind_a_flush_that_hangs_refuses_enqueues_and_not_acks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flushes = {level: Flushes() for level in (Urgency.ENQUEUE, Urgency.SETTLE)}
    batchers = {level: Batcher[Any, Any](flush, BatcherLimits(4), level) for level, flush in flushes.items()}
    now_s = 1000.0
    monkeypatch.setattr("shared.postgres.batcher._clock.monotonic_s", lambda: now_s)
    calls = []
    refused: list[Urgency] = []
    for _ in range(3):
        for level, batcher in batchers.items():
            try:
                calls.append(asyncio.create_task(batcher.submit([1])))
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                if calls[-1].done():
                    calls.pop().result()
            except Overloaded:
                refused.append(level)
        now_s += 1.1
    assert refused == []
    for level, batcher in batchers.items():
        with pytest.raises(Overloaded) if level is Urgency.ENQUEUE else contextlib.nullcontext():
            calls.append(asyncio.create_task(batcher.submit([1])))
            await asyncio.wait([calls[-1]], timeout=0.01)
            if calls[-1].done():
                calls.pop().result()
    for flush in flushes.values():
        flush.go_on.set()
    await asyncio.gather(*calls)
    assert list(await batchers[Urgency.ENQUEUE].submit([1])) == [2], "what waited is served, and the line is open"


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([], 2),
        (["a"] * 2, 2),
        ([None, "a" * 20], 2),
        ([None, "a" * 21], 3),
        (["ä" * 10], 2),
        (["ä" * 10, "b"], 3),
        (["\U0001f600" * 25], 10),
        (["a" * 1_000], 100),
    ],
)
def test_long_texts_count_for_several_entries(texts: list[str | None], expected: int) -> None:
    """Of ten entries and a hundred bytes, an entry's part are ten."""
    assert BatcherLimits(10, bytes_max=100).size_of(2, texts) == expected


async def test_a_flush_takes_so_many_bytes_of_texts_and_one_call_at_least() -> None:
    flushes = Flushes()
    flushes.go_on.set()
    batcher: Batcher[Any, Any] = Batcher(flushes, BatcherLimits(10, bytes_max=100))
    calls = [batcher.submit([n], texts=["x" * size]) for n, size in enumerate((60, 30, 10, 10, 500, 10))]
    await asyncio.gather(*calls)

    # The large one stands in the line of heavy calls.
    assert sorted(flushes.seen) == [[0, 1, 2], [3, 5], [4]]


@pytest.mark.parametrize(("waiting", "joins"), [(1, True), (FEW_CALLS_MAX, True), (FEW_CALLS_MAX + 1, False)])
async def test_what_the_end_of_a_flush_lets_in_joins_the_next_of_few_calls(waiting: int, joins: bool) -> None:
    """It begins a turn after that, as the calls do that stood at the entrance, and asks another turn later."""
    flushes = Flushes()
    batcher: Batcher[Any, Any] = Batcher(flushes, BatcherLimits(100))
    first = asyncio.create_task(batcher.submit([0]))
    while not flushes.seen:
        await asyncio.sleep(0)
    stand = [asyncio.create_task(batcher.submit([n])) for n in range(1, waiting + 1)]
    let_in: list[asyncio.Task[Any]] = []
    first.add_done_callback(lambda _: let_in.append(asyncio.create_task(batcher.submit([99]))))
    await asyncio.sleep(0)
    flushes.go_on.set()
    await asyncio.gather(first, *stand)
    await asyncio.gather(*let_in)
    behind = list(range(1, waiting + 1))
    assert flushes.seen == ([[0], [*behind, 99]] if joins else [[0], behind, [99]])
