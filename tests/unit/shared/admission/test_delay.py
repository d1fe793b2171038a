"""When calls are turned away: a queue that stands, not one that is long; the least urgent first."""

import pytest

from shared.admission.connection_priority import Urgency
from shared.admission.delay import SAMPLE_S, LoopLag, Standing
from shared.errors import Overloaded
from shared.metrics import LOOP_STALL_SECONDS, SHED
from tests.support.clocks import ManualClock

TARGET_S = 1.0


def made() -> tuple[Standing, ManualClock]:
    clock = ManualClock()
    return Standing(TARGET_S, clock), clock


def first_refused_s(level: Urgency) -> float:
    """How old the oldest is when a line that does not move begins to refuse; asked every 0.1 s."""
    standing, clock = made()
    for tenths in range(1, 1000):
        clock.advance(0.1)
        if standing.sheds(1000.0, level):
            return tenths / 10
    raise AssertionError("never")


def test_a_line_that_stands_refuses_the_least_urgent_first() -> None:
    ages = [first_refused_s(level) for level in (Urgency.LIST, Urgency.ENQUEUE, Urgency.DEQUEUE, Urgency.SETTLE)]
    assert ages == sorted(ages)
    assert ages[1] == pytest.approx(2.0, abs=0.2)
    assert ages[1] < ages[2] < ages[3]


def test_one_look_at_an_old_line_refuses_nobody() -> None:
    standing, clock = made()
    clock.advance(60)
    assert not standing.sheds(1000.0, Urgency.ENQUEUE), "it may be a single slow flush"


def test_a_line_that_is_emptied_again_and_again_refuses_nobody() -> None:
    standing, clock = made()
    for _ in range(100):
        since_s = clock.now_s
        clock.advance(1.5 * TARGET_S)
        assert not standing.sheds(since_s, Urgency.ENQUEUE)
        standing.served(None)


def test_a_line_whose_rest_is_young_begins_anew() -> None:
    standing, clock = made()
    since_s = clock.now_s
    clock.advance(1.5)
    assert not standing.sheds(since_s, Urgency.ENQUEUE)
    standing.served(clock.now_s - 0.5)
    clock.advance(0.9)
    assert not standing.sheds(clock.now_s - 1.4, Urgency.ENQUEUE)


def test_a_line_whose_rest_is_old_goes_on_refusing() -> None:
    standing, clock = made()
    clock.advance(1.5)
    assert not standing.sheds(1000.0, Urgency.ENQUEUE)
    standing.served(1000.2)
    clock.advance(1.0)
    assert standing.sheds(1000.2, Urgency.ENQUEUE)
    assert not standing.sheds(clock.now_s - 0.5, Urgency.ENQUEUE), "it moves again"


def test_a_loop_that_is_late_all_the_time_refuses_by_urgency() -> None:
    lag = LoopLag(TARGET_S)
    before = SHED.labels("enqueue")._value.get()
    for _ in range(9):
        lag.sample(1.5)
        lag.check(Urgency.ENQUEUE)
    lag.sample(1.5)
    with pytest.raises(Overloaded) as caught:
        lag.check(Urgency.ENQUEUE)
    assert (caught.value.outcome, caught.value.status) == ("none", 503)
    assert caught.value.retry_after_s
    assert SHED.labels("enqueue")._value.get() == before + 1
    lag.check(Urgency.DEQUEUE)
    lag.check(Urgency.SETTLE)
    for _ in range(10):
        lag.sample(3.0)
    with pytest.raises(Overloaded):
        lag.check(Urgency.DEQUEUE)
    lag.check(Urgency.SETTLE)


def test_one_timer_in_time_ends_it() -> None:
    lag = LoopLag(TARGET_S)
    for _ in range(20):
        lag.sample(5.0)
    lag.sample(0.01)
    lag.check(Urgency.LIST)


async def test_a_loop_that_stood_still_between_two_looks_is_counted() -> None:
    """Also where it goes on at once by the time that somebody looks."""
    clock = ManualClock()
    lag = LoopLag(TARGET_S, clock)
    before = LOOP_STALL_SECONDS.labels().told()[1]
    for pause_s in (3.0, SAMPLE_S * 1.25, SAMPLE_S + 0.75, SAMPLE_S):
        clock.advance(pause_s)
        await lag.step()
    stood_s = LOOP_STALL_SECONDS.labels().told()[1] - before
    assert stood_s == pytest.approx(0.75), "before the first look nobody knows"
