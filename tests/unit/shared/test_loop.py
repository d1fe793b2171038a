"""Background loops: hurried by memory, paced by their interval, stopped between two steps, never dead."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from shared.errors import ShardUnavailable
from shared.loop import Loop

FOREVER_S = 3600.0


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0)


class Duty:
    """Counts its steps and answers what it was told to."""

    def __init__(self, *answers: int | Exception) -> None:
        self.steps = 0
        self._answers = list(answers)

    async def __call__(self) -> int:
        self.steps += 1
        answer = self._answers.pop(0) if self._answers else 0
        if isinstance(answer, Exception):
            raise answer
        return answer


async def test_a_step_that_did_something_is_followed_at_once() -> None:
    duty = Duty(5, 1, 3, 0)
    loop = Loop("duty", duty, interval_s=FOREVER_S)
    loop.start()
    await until(lambda: duty.steps == 4)
    await asyncio.sleep(0.01)

    assert duty.steps == 4
    await loop.stop()


async def test_an_idle_step_is_followed_after_the_interval() -> None:
    duty = Duty()
    loop = Loop("duty", duty, interval_s=0.004)
    loop.start()
    await until(lambda: duty.steps >= 3)
    await loop.stop()


async def test_the_interval_may_change_with_every_step() -> None:
    pauses = [0.001, 0.001, FOREVER_S]
    duty = Duty()
    loop = Loop("duty", duty, interval_s=lambda: pauses[min(duty.steps, len(pauses)) - 1])
    loop.start()
    await until(lambda: duty.steps == 3)
    await asyncio.sleep(0.01)

    assert duty.steps == 3
    await loop.stop()


async def test_a_kick_ends_a_pause() -> None:
    duty = Duty()
    loop = Loop("duty", duty, interval_s=FOREVER_S)
    loop.start()
    for expected in (1, 2, 3):
        await until(lambda expected=expected: duty.steps == expected)  # type: ignore[misc]
        loop.kick()
    await until(lambda: duty.steps == 4)
    await loop.stop()


async def test_a_kick_during_a_step_is_not_lost() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()
    steps = 0

    async def step() -> int:
        nonlocal steps
        steps += 1
        begun.set()
        await go_on.wait()
        return 0

    loop = Loop("duty", step, interval_s=FOREVER_S)
    loop.start()
    await begun.wait()
    loop.kick()
    go_on.set()
    await until(lambda: steps == 2)
    await loop.stop()


@pytest.mark.parametrize("error", [ValueError("broken"), ShardUnavailable("away")])
async def test_a_failed_step_is_tried_again(error: Exception) -> None:
    duty = Duty(error, error, 1)
    loop = Loop("duty", duty, interval_s=0.001)
    loop.start()
    await until(lambda: duty.steps >= 4)
    await loop.stop()


async def test_stop_lets_a_running_step_end() -> None:
    begun, ended = asyncio.Event(), []

    async def step() -> int:
        begun.set()
        await asyncio.sleep(0.01)
        ended.append(True)
        return 1

    loop = Loop("duty", step, interval_s=FOREVER_S)
    loop.start()
    await begun.wait()
    await loop.stop()

    assert ended == [True]


async def test_stop_ends_a_pause() -> None:
    duty = Duty()
    loop = Loop("duty", duty, interval_s=FOREVER_S)
    loop.start()
    await until(lambda: duty.steps == 1)
    await asyncio.wait_for(loop.stop(), 1)


async def test_stop_before_start_is_nothing() -> None:
    await Loop("duty", Duty(), interval_s=FOREVER_S).stop()


async def test_a_loop_is_started_once() -> None:
    step: Callable[[], Awaitable[int]] = Duty()
    loop = Loop("duty", step, interval_s=FOREVER_S)
    loop.start()
    with pytest.raises(AssertionError):
        loop.start()
    await loop.stop()
