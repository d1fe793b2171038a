"""Background loops: hurried by memory, paced by their interval, stopped between two steps, never dead."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace

import pytest
import uvloop
from structlog.testing import capture_logs

from shared import loop as module
from shared import vital
from shared.errors import ShardUnavailable, Unavailable
from shared.loop import Loop, Waker, part_failed
from shared.metrics import DUTY_FAILED_ROUNDS
from shared.vital import Vitals

FOREVER_S = 3600.0


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0)


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Vitals:
    """What this process must not outlive, by itself: a test that ends one leaves nothing for the next."""
    monkeypatch.setattr(vital, "PROCESS", vitals := Vitals())
    return vitals


class Duty:
    """Counts its steps and answers what it was told to."""

    def __init__(self, *answers: int | BaseException) -> None:
        self.steps = 0
        self._answers = list(answers)

    async def __call__(self) -> int:
        self.steps += 1
        answer = self._answers.pop(0) if self._answers else 0
        if isinstance(answer, BaseException):
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


async def test_the_pauses_of_many_processes_fall_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[float, float]] = []

    def draw(low: float, high: float) -> float:
        drawn.append((low, high))
        return 0.0

    monkeypatch.setattr(module, "random", SimpleNamespace(uniform=draw))
    duty = Duty()
    loop = Loop("duty", duty, interval_s=FOREVER_S)
    loop.start()
    await until(lambda: duty.steps >= 3)
    await loop.stop()
    assert set(drawn) == {(0.75, 1.25)}


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


@pytest.mark.parametrize(
    ("error", "told"), [(ShardUnavailable("away"), "warning"), (ValueError("broken"), "error")]
)
def test_what_is_away_is_a_line_of_the_log_and_a_mistake_of_ours_a_traceback(error: Exception, told: str) -> None:
    with capture_logs() as lines:
        try:
            raise error
        except Exception as caught:
            part_failed("a walk failed", caught, dag_no=5)
    [line] = lines
    assert (line["log_level"], line["dag_no"], line.get("exc_info", False)) == (told, 5, told == "error")


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
    await asyncio.wait_for(loop.stop(), 60)


async def test_stop_before_start_is_nothing() -> None:
    await Loop("duty", Duty(), interval_s=FOREVER_S).stop()


async def test_a_loop_is_started_once() -> None:
    step: Callable[[], Awaitable[int]] = Duty()
    loop = Loop("duty", step, interval_s=FOREVER_S)
    loop.start()
    with pytest.raises(AssertionError):
        loop.start()
    await loop.stop()


async def test_a_duty_outlives_more_failed_rounds_than_a_float_has_doublings() -> None:
    """A database may be away for hours: 2**1024 is no float, and a duty that ended there ended unseen."""
    rounds = 1_100

    async def step() -> int:
        nonlocal rounds
        rounds -= 1
        if rounds > 0:
            loop.kick()
            raise ShardUnavailable("away")
        return 0

    loop = Loop("outliving", step, interval_s=0.001, shard=7)
    loop.start()
    await until(lambda: rounds < 1)
    assert loop.is_running
    await loop.stop()


async def test_rounds_since_the_last_good_one_are_told() -> None:
    duty = Duty(ValueError("broken"), ShardUnavailable("away"), 1)
    loop = Loop("counted", duty, interval_s=0.001, shard=7)
    gauge = DUTY_FAILED_ROUNDS.labels("counted", "7")
    told: list[float] = []

    async def step() -> int:
        told.append(gauge._value.get())
        return await duty()

    loop._step = step
    loop.start()
    await until(lambda: duty.steps >= 4)
    await loop.stop()
    assert told[:4] == [0, 1, 2, 0]


async def test_a_step_that_is_cancelled_from_within_is_a_failed_round() -> None:
    duty = Duty(asyncio.CancelledError(), 1)
    loop = Loop("duty", duty, interval_s=0.001)
    loop.start()
    await until(lambda: duty.steps >= 3)
    await loop.stop()


class Stop(BaseException):
    """What no duty is written to outlive."""


async def test_a_duty_that_ends_takes_the_process_with_it(process: Vitals) -> None:
    gone: list[str] = []
    process.on_end(lambda: gone.append("told"))
    process.check()
    loop = Loop("duty", Duty(Stop()), interval_s=0.001)
    loop.start()
    await until(lambda: bool(gone))

    assert not loop.is_running
    with pytest.raises(Unavailable, match="duty"):
        process.check()
    await loop.stop()  # what follows is the usual way out


async def test_a_duty_that_is_stopped_or_cancelled_with_its_process_is_no_loss(process: Vitals) -> None:
    stopped, cancelled = (Loop(name, Duty(), interval_s=FOREVER_S) for name in ("stopped", "cancelled"))
    stopped.start()
    cancelled.start()
    await asyncio.sleep(0)
    await stopped.stop()
    assert cancelled._task is not None
    cancelled._task.cancel()
    await asyncio.wait([cancelled._task])
    process.check()


async def test_the_earliest_time_that_was_asked_for_ends_a_pause() -> None:
    duty = Duty()
    loop = Loop("duty", duty, interval_s=FOREVER_S)
    loop.start()
    await until(lambda: duty.steps == 1)
    loop.waker.kick_in(FOREVER_S)
    await asyncio.sleep(0.01)
    assert duty.steps == 1
    loop.waker.kick_in(0.001)
    loop.waker.kick_in(FOREVER_S)
    await until(lambda: duty.steps == 2)
    loop.waker.kick_in(-1)
    await until(lambda: duty.steps == 3)
    loop.waker.kick_in(FOREVER_S)
    await loop.stop()

    assert loop.waker._alarm is not None and loop.waker._alarm.cancelled()


def test_a_step_that_is_due_at_once_may_be_asked_for_again() -> None:
    """On the event loop of the services, whose handle of what is due at once does not say when that is."""

    async def ask() -> None:
        waker = Waker()
        for delay_s in (0.0, 0.0, FOREVER_S):
            waker.kick_in(delay_s)
        async with asyncio.timeout(5):
            await waker.wait(FOREVER_S)
        assert waker.take()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(ask())


async def test_a_kick_ends_every_pause_and_an_alarm_a_later_one() -> None:
    """A loop that is ending may pause once more beside the one that follows it."""
    waker = Waker()
    both = [asyncio.create_task(waker.wait(FOREVER_S)) for _ in range(2)]
    await asyncio.sleep(0)
    waker.kick()
    async with asyncio.timeout(5):
        await asyncio.gather(*both)
        await waker.wait(FOREVER_S)  # nobody has taken the kick
        assert waker.take()
        await waker.wait(0.001)
        assert not waker.take()
        waker.kick_in(0.001)
        await waker.wait(FOREVER_S)
    assert waker.take()


async def test_a_pause_that_is_cut_off_leaves_nothing_to_a_later_one() -> None:
    waker = Waker()
    cut = asyncio.create_task(waker.wait(FOREVER_S))
    await asyncio.sleep(0)
    cut.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cut
    waker.kick()
    assert waker._pauses == []
    async with asyncio.timeout(5):
        await waker.wait(FOREVER_S)
