"""What was refused is tried again: until its time is over, and no more of it than a bound."""

import asyncio
from collections.abc import Awaitable, Sequence

import pytest

from shared import again
from shared.again import Again
from tests.support.clocks import ManualClock


class Trying:
    """Things are the times at which theirs is over; a home that `refuses` some."""

    def __init__(self, kept_max: int = 10) -> None:
        self.clock = ManualClock(wall=True)
        self.refuses: set[float] = set()
        self.tried: list[list[float]] = []
        self.given_up: list[float] = []
        self.tasks: list[asyncio.Future[None]] = []
        self.again = Again[str, float](
            self._attempt,
            self._keep,
            self.clock,
            until_s=lambda thing: thing,
            give_up=self.given_up.extend,
            kept_max=kept_max,
        )

    def _keep(self, work: Awaitable[None]) -> None:
        self.tasks.append(asyncio.ensure_future(work))

    async def _attempt(self, _key: str, things: Sequence[float]) -> Sequence[float]:
        self.tried.append(list(things))
        return [thing for thing in things if thing in self.refuses]

    async def has_tried(self, times: int) -> None:
        async with asyncio.timeout(60):
            while len(self.tried) < times:
                await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(again, "PAUSE_S", 0.0)


async def test_what_is_refused_is_tried_until_it_is_done() -> None:
    trying = Trying()
    trying.refuses = {2_000.0}
    await trying.again.do("a", [2_000.0, 3_000.0])
    assert trying.again.kept == 1
    await trying.has_tried(3)
    trying.refuses.clear()
    await asyncio.gather(*trying.tasks)
    assert trying.tried[:2] == [[2_000.0, 3_000.0], [2_000.0]]
    assert (trying.again.kept, trying.given_up) == (0, [])


async def test_of_what_is_refused_each_is_given_up_when_its_time_is_over() -> None:
    trying = Trying()
    trying.refuses = {2_000.0, 3_000.0}
    await trying.again.do("a", [2_000.0, 3_000.0])
    await trying.has_tried(2)
    trying.clock.advance(1_000.0)
    tried = len(trying.tried)
    await trying.has_tried(tried + 2)
    assert trying.given_up == [2_000.0]
    assert trying.tried[-1] == [3_000.0]
    trying.clock.advance(1_000.0)
    await asyncio.gather(*trying.tasks)
    assert (trying.again.kept, trying.given_up) == (0, [2_000.0, 3_000.0])


async def test_what_is_over_the_bound_is_given_up_at_once() -> None:
    trying = Trying(kept_max=2)
    trying.refuses = {2_000.0, 3_000.0, 4_000.0}
    await trying.again.do("a", [2_000.0, 3_000.0, 4_000.0])
    assert (trying.again.kept, trying.given_up) == (2, [4_000.0])
    await trying.again.do("a", [3_000.0])
    assert trying.given_up == [4_000.0, 3_000.0]
    trying.refuses.clear()
    await asyncio.gather(*trying.tasks)
    await trying.again.do("a", [3_000.0])
    assert trying.again.kept == 0


async def test_what_is_left_of_a_key_is_tried_together() -> None:
    trying = Trying()
    trying.refuses = {2_000.0, 3_000.0, 4_000.0}
    for key, thing in (("a", 2_000.0), ("a", 3_000.0), ("b", 4_000.0)):
        await trying.again.do(key, [thing])
    assert (trying.again.kept, len(trying.tasks)) == (3, 2)
    await trying.has_tried(7)
    assert [2_000.0, 3_000.0] in trying.tried
    trying.refuses.clear()
    await asyncio.gather(*trying.tasks)
    assert (trying.again.kept, trying.given_up) == (0, [])


async def test_what_is_refused_while_others_of_its_key_are_tried_is_tried_with_them_next() -> None:
    trying = Trying()
    trying.refuses = {2_000.0, 3_000.0}
    await trying.again.do("a", [2_000.0])
    at_it, go = asyncio.Event(), asyncio.Event()

    async def slow(_key: str, things: Sequence[float]) -> Sequence[float]:
        at_it.set()
        await go.wait()
        return things

    trying.again._attempt, attempt = slow, trying.again._attempt
    await at_it.wait()
    trying.again._attempt = attempt
    await trying.again.do("a", [3_000.0])
    go.set()
    trying.tried.clear()
    await trying.has_tried(1)
    assert (sorted(trying.tried[0]), trying.again.kept, len(trying.tasks)) == ([2_000.0, 3_000.0], 2, 1)
    trying.refuses.clear()
    await asyncio.gather(*trying.tasks)
    assert trying.again.kept == 0


async def test_a_pause_is_never_long() -> None:
    """So that what a home refused for a while is done soon after it is well."""
    assert again.PAUSE_S_MAX <= 1.0
