"""How many rows a background step takes: more while it is quick, fewer when it is slow, or fails."""

from collections.abc import Awaitable, Callable

import pytest

from services.queue.operations.pace import ROWS_MIN, STEP_S, Pace
from shared.errors import Invalid, ShardUnavailable
from tests.support.clocks import ManualClock

MAX = 1_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def taking(clock: ManualClock, row_s: float, there: int = 10**6) -> Callable[[int], Awaitable[int]]:
    """Work that takes so long a row."""

    async def work(rows: int) -> int:
        taken = min(rows, there)
        clock.advance(taken * row_s)
        return taken

    return work


async def test_quick_full_steps_double_up_to_the_limit(clock: ManualClock) -> None:
    pace = Pace(MAX, clock)
    taken = [await pace.step(taking(clock, 0.0)) for _ in range(6)]
    assert taken == [ROWS_MIN, 2 * ROWS_MIN, 4 * ROWS_MIN, 8 * ROWS_MIN, MAX, MAX]
    assert pace.was_full


async def test_a_step_that_found_little_says_nothing_of_what_a_full_one_would_cost(clock: ManualClock) -> None:
    pace = Pace(MAX, clock)
    for _ in range(5):
        assert await pace.step(taking(clock, 0.0, there=3)) == 3
    assert (pace.rows, pace.was_full) == (ROWS_MIN, False)


async def test_a_step_comes_to_take_about_as_long_as_it_may(clock: ManualClock) -> None:
    pace = Pace(MAX, clock)
    row_s = STEP_S / 300
    for _ in range(10):
        since_s = clock.now_s
        await pace.step(taking(clock, row_s))
    assert STEP_S / 4 < clock.now_s - since_s <= STEP_S


async def test_slowness_alone_leaves_some_rows(clock: ManualClock) -> None:
    pace = Pace(MAX, clock)
    for _ in range(10):
        await pace.step(taking(clock, 1.0))
    assert pace.rows == ROWS_MIN


async def test_a_step_that_runs_into_a_timeout_is_not_repeated_unchanged(clock: ManualClock) -> None:
    pace = Pace(MAX, clock)
    tried: list[int] = []

    async def work(rows: int) -> int:
        tried.append(rows)
        if rows > 5:
            raise ShardUnavailable("too slow")
        return rows

    while len(tried) < 6:
        try:
            await pace.step(work)
        except ShardUnavailable:
            continue
    assert tried == [64, 32, 16, 8, 4, 8]


async def test_what_the_database_refuses_is_found_by_halves(clock: ManualClock) -> None:
    pace = Pace(MAX, clock)
    left = list(range(40))

    async def work(rows: int) -> int:
        part = left[:rows]
        if 7 in part:
            if rows > 1:
                raise Invalid("one of them is bad")
            left.remove(7)
            return 1
        del left[:rows]
        return len(part)

    while left:
        await pace.step(work)

    async def bad(rows: int) -> int:
        raise Invalid("the only one")

    with pytest.raises(Invalid):
        await pace.step(bad)
    assert pace.rows == 1
