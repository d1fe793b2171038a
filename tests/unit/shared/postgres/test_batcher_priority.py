"""Light and heavy calls: neither waits for the other's flush, but where they had better not run side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.admission.breaker import Breaker
from shared.errors import Overloaded, ShardUnavailable
from shared.postgres.batcher import LIGHT_ENTRIES_MAX, Batcher, BatcherLimits
from shared.postgres.history import History

LIGHT, HEAVY = 1, LIGHT_ENTRIES_MAX + 1

# Entries are (tag, number of the call).
Entry = tuple[str, int]


class Flushes:
    """A flush function whose flushes end when they are told to; it answers its entries."""

    def __init__(self) -> None:
        self.begun: list[list[Entry]] = []
        self.running: dict[int, asyncio.Event] = {}

    async def __call__(self, entries: list[Entry]) -> Sequence[Entry]:
        number = len(self.begun)
        self.begun.append(entries)
        self.running[number] = asyncio.Event()
        await self.running[number].wait()
        del self.running[number]
        return entries

    async def end(self, number: int) -> None:
        """Let a flush end, and what follows begin."""
        self.running[number].set()
        await settle()

    def tags(self) -> list[set[str]]:
        """Of each running flush."""
        return [{tag for tag, _ in self.begun[number]} for number in self.running]

    def calls(self, number: int) -> list[int]:
        """The calls that a flush carries."""
        return list(dict.fromkeys(call for _, call in self.begun[number]))


async def settle() -> None:
    for _ in range(6):
        await asyncio.sleep(0)


class Bench:
    """A batcher, and calls on their way."""

    def __init__(self, limits: BatcherLimits | None = None, pool: Any = None, *, tagged: bool = True) -> None:
        self.flushes = Flushes()
        tags = (lambda entries: {tag for tag, _ in entries}) if tagged else None
        self.batcher: Batcher[Entry, Entry] = Batcher(
            self.flushes, limits or BatcherLimits(1_000), pool=pool, tags=tags
        )
        self.tasks: list[asyncio.Task[Sequence[Entry]]] = []

    async def call(self, size: int, tag: str = "") -> asyncio.Task[Sequence[Entry]]:
        """A call of so many entries of one tag."""
        entries = [(tag, len(self.tasks))] * size
        self.tasks.append(asyncio.create_task(self.batcher.submit(entries)))
        await settle()
        return self.tasks[-1]

    async def end_all(self) -> None:
        """Let everything end."""
        while self.flushes.running:
            await self.flushes.end(min(self.flushes.running))
        assert all(task.done() for task in self.tasks)


async def test_a_light_call_is_answered_while_a_heavy_flush_runs() -> None:
    bench = Bench()
    heavy = await bench.call(HEAVY, "large")
    light = await bench.call(LIGHT, "small")
    await bench.flushes.end(1)
    assert light.done()
    assert not heavy.done()
    await bench.end_all()


async def test_a_light_call_is_no_part_of_a_heavy_flush() -> None:
    bench = Bench(tagged=False)
    for size in (HEAVY, LIGHT, HEAVY, LIGHT, LIGHT):
        await bench.call(size)
    assert [bench.flushes.calls(n) for n in range(2)] == [[0], [1]]
    await bench.flushes.end(0)
    await bench.flushes.end(1)
    assert [bench.flushes.calls(n) for n in range(2, 4)] == [[2], [3, 4]]
    await bench.end_all()


@pytest.mark.parametrize(("size", "together"), [(LIGHT_ENTRIES_MAX, True), (LIGHT_ENTRIES_MAX + 1, False)])
async def test_calls_up_to_the_limit_share_flushes(size: int, together: bool) -> None:
    bench = Bench(tagged=False)
    await bench.call(LIGHT)
    await bench.call(size)
    await bench.call(LIGHT)
    await bench.flushes.end(0)
    assert ([1, 2] in [bench.flushes.calls(n) for n in range(1, len(bench.flushes.begun))]) is together
    await bench.end_all()


async def test_heavy_calls_wait_for_heavy_flushes() -> None:
    bench = Bench(tagged=False)
    for _ in range(3):
        await bench.call(HEAVY)
    assert [bench.flushes.calls(n) for n in bench.flushes.running] == [[0]]
    await bench.flushes.end(0)
    assert bench.flushes.calls(1) == [1, 2]
    await bench.end_all()


async def test_a_light_call_waits_for_heavy_ones_of_its_tag() -> None:
    bench = Bench()
    await bench.call(HEAVY, "large")
    light = await bench.call(LIGHT, "large")
    assert len(bench.flushes.begun) == 1
    await bench.call(HEAVY, "large")
    await bench.flushes.end(0)
    assert bench.flushes.calls(1) == [1, 2], "they share the next flush, as calls of one size do"
    assert not light.done()
    await bench.end_all()


async def test_a_heavy_call_waits_for_light_ones_of_its_tag_that_came_before_and_for_no_later_ones() -> None:
    bench = Bench()
    await bench.call(LIGHT, "other")
    await bench.call(LIGHT, "large")  # waits for the flush of the first
    await bench.call(HEAVY, "large")
    assert [bench.flushes.calls(n) for n in bench.flushes.running] == [[0]]
    await bench.flushes.end(0)
    assert [bench.flushes.calls(n) for n in bench.flushes.running] == [[1]]
    await bench.call(LIGHT, "large")
    await bench.call(LIGHT, "small")
    await bench.flushes.end(1)
    assert sorted(bench.flushes.calls(n) for n in bench.flushes.running) == [[2, 3], [4]]
    await bench.end_all()


async def test_what_waits_in_both_lines_counts() -> None:
    bench = Bench(BatcherLimits(1_000, waiting_max=HEAVY + 2), tagged=False)
    for size in (HEAVY, LIGHT, HEAVY, LIGHT, LIGHT):
        await bench.call(size)
    refused = await bench.call(LIGHT)
    assert isinstance(refused.exception() if refused.done() else None, Overloaded)
    await bench.end_all()


async def test_both_lines_are_told_that_the_shard_is_away() -> None:
    class Away:
        breaker = Breaker()
        history = History(0)
        is_standing = False

        def check(self) -> None:
            """It answers until it is found away."""

        def away(self) -> ShardUnavailable:
            return ShardUnavailable("away")

    bench = Bench(pool=Away())
    for size, tag in ((HEAVY, "first"), (LIGHT, "small"), (HEAVY, "next"), (LIGHT, "small")):
        await bench.call(size, tag)
    for tell in Away.breaker.listeners:
        tell("open")
    await settle()
    assert [task.done() for task in bench.tasks] == [False, False, True, True]
    await bench.call(LIGHT, "next")
    await bench.flushes.end(1)
    assert bench.flushes.calls(2) == [4], "it waits for none of those who were turned away"
    await asyncio.gather(*bench.tasks[2:4], return_exceptions=True)
    await bench.end_all()


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("call"), st.sampled_from([LIGHT, HEAVY, 2 * HEAVY]), st.sampled_from("abc")),
        st.tuples(st.just("end"), st.integers(0, 1), st.just("")),
    ),
    max_size=60,
)


@given(steps=STEPS, items_max=st.sampled_from([1, HEAVY, 1_000]))
def test_no_two_flushes_share_a_tag_and_everybody_is_answered(
    steps: list[tuple[str, int, str]], items_max: int
) -> None:
    async def run() -> None:
        bench = Bench(BatcherLimits(items_max))
        for kind, number, tag in steps:
            if kind == "call":
                await bench.call(number, tag)
            elif bench.flushes.running:
                running = sorted(bench.flushes.running)
                await bench.flushes.end(running[number % len(running)])
            tags = bench.flushes.tags()
            assert len(tags) <= 2
            assert len(tags) < 2 or tags[0].isdisjoint(tags[1])
            assert tags or all(task.done() for task in bench.tasks), "nobody is left waiting for nothing"
        await bench.end_all()
        for n, task in enumerate(bench.tasks):
            assert {call for _, call in task.result()} == {n}
        for tag in "abc":
            served = [call for flush in bench.flushes.begun for of, call in flush if of == tag]
            assert list(dict.fromkeys(served)) == sorted(set(served)), "of one tag: first come, first served"

    asyncio.run(run())


async def test_a_heavy_call_that_joins_in_the_turn_before_a_flush_holds_it_up() -> None:
    bench = Bench()
    await bench.call(LIGHT, "b")
    for number, tag in ((1, "a"), (2, "b")):
        bench.tasks.append(asyncio.create_task(bench.batcher.submit([(tag, number)] * HEAVY)))
        await asyncio.sleep(0)
    await settle()
    assert bench.flushes.tags() == [{"b"}]
    await bench.flushes.end(0)
    assert bench.flushes.tags() == [{"a", "b"}]
    await bench.end_all()
