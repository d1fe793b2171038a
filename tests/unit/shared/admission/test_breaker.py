"""The breaker's states, by a clock that the test moves."""

import pytest

from shared.admission.breaker import (
    FAILURES_MAX,
    FULL_S,
    LATE_MAX,
    LATE_S,
    PAUSE_S,
    PAUSE_S_MAX,
    PROBE_S_MAX,
    SILENCE_S,
    Breaker,
)
from tests.support.clocks import ManualClock


def made() -> tuple[Breaker, ManualClock, list[str]]:
    clock, states = ManualClock(), list[str]()
    breaker = Breaker(clock, jitter=lambda _low, high: high)
    breaker.listeners.append(states.append)
    return breaker, clock, states


def fail(breaker: Breaker, times: int) -> None:
    for _ in range(times):
        breaker.begin()
        breaker.failed()
        breaker.end()


def look(breaker: Breaker) -> None:
    """A probe that is due fails at once."""
    assert breaker.take_probe()
    breaker.probe_ended()


def opened() -> tuple[Breaker, ManualClock, list[str]]:
    breaker, clock, states = made()
    fail(breaker, FAILURES_MAX)
    look(breaker)
    assert breaker.refuses
    return breaker, clock, states


def test_failures_in_a_row_are_looked_into_and_one_success_forgives_them() -> None:
    breaker, _, states = made()
    fail(breaker, FAILURES_MAX - 1)
    assert not breaker.take_probe()
    breaker.succeeded()
    fail(breaker, FAILURES_MAX - 1)
    assert not breaker.take_probe()
    fail(breaker, 1)
    assert not breaker.refuses
    look(breaker)
    assert breaker.refuses
    assert states == ["open"]


def test_silence_is_looked_into_before_any_call_has_failed() -> None:
    breaker, clock, states = made()
    breaker.begin()
    clock.advance(SILENCE_S - 0.01)
    assert not breaker.take_probe()
    clock.advance(0.01)
    assert breaker.take_probe()
    assert not breaker.take_probe(), "one look is enough"
    clock.advance(PROBE_S_MAX)
    assert not breaker.refuses
    breaker.probe_ended()
    assert breaker.refuses
    assert states == ["open"]


def test_whoever_answers_the_look_or_meanwhile_was_not_away() -> None:
    breaker, clock, states = made()
    breaker.begin()
    clock.advance(SILENCE_S)
    assert breaker.take_probe()
    breaker.succeeded()
    breaker.probe_ended()
    assert not breaker.take_probe()
    assert states == []


@pytest.mark.parametrize("fails_first", [False, True])
def test_a_process_that_stood_still_blames_nobody(fails_first: bool) -> None:
    """Its timers have run out; the answers are there, but were not read yet."""
    breaker, clock, states = made()
    breaker.begin()
    clock.advance(3600)
    if fails_first:
        breaker.failed()
        breaker.end()
    assert breaker.take_probe()
    assert not breaker.refuses
    clock.advance(0.01)
    breaker.succeeded()
    breaker.probe_ended()
    assert states == []


def test_a_probe_in_which_the_process_stood_still_counts_for_nothing() -> None:
    breaker, clock, states = made()
    breaker.begin()
    clock.advance(SILENCE_S)
    assert breaker.take_probe()
    clock.advance(PROBE_S_MAX + LATE_S)
    breaker.probe_ended()
    assert not breaker.refuses
    assert breaker.take_probe(), "it looks again at once"
    breaker.succeeded()
    breaker.probe_ended()
    assert states == []


def test_a_probe_of_an_open_breaker_in_which_the_process_stood_still_is_made_again_at_once() -> None:
    breaker, clock, _ = opened()
    clock.advance(PAUSE_S)
    assert breaker.take_probe()
    clock.advance(PROBE_S_MAX + LATE_S)
    breaker.probe_ended()
    assert breaker.refuses
    assert breaker.take_probe()
    breaker.succeeded()
    assert not breaker.refuses


def test_a_process_that_is_always_late_finds_a_shard_away_all_the_same() -> None:
    breaker, clock, _ = made()
    breaker.begin()
    clock.advance(SILENCE_S)
    looks = 0
    while not breaker.refuses:
        assert breaker.take_probe()
        clock.advance(PROBE_S_MAX + LATE_S)
        breaker.probe_ended()
        looks += 1
    assert looks == LATE_MAX + 1


def test_one_slow_call_among_quick_ones_is_no_silence() -> None:
    breaker, clock, _ = made()
    breaker.begin()
    for _ in range(10):
        clock.advance(SILENCE_S - 0.01)
        breaker.begin()
        breaker.succeeded()
        breaker.end()
        assert not breaker.take_probe()


def test_an_idle_shard_is_not_silent() -> None:
    breaker, clock, _ = made()
    breaker.begin()
    breaker.succeeded()
    breaker.end()
    clock.advance(3600)
    assert not breaker.take_probe()
    breaker.begin()
    assert not breaker.take_probe()


def test_a_timeout_of_the_only_call_under_way_is_looked_into() -> None:
    breaker, clock, _ = made()
    breaker.begin()
    clock.advance(SILENCE_S)
    breaker.failed()
    breaker.end()
    clock.advance(3600)
    look(breaker)
    assert breaker.state == "open"


def test_one_probe_at_a_time_after_the_pause() -> None:
    breaker, clock, _ = opened()
    assert not breaker.take_probe()
    clock.advance(PAUSE_S)
    assert breaker.take_probe()
    assert breaker.state == "half_open"
    assert breaker.refuses, "callers are no probes"
    clock.advance(3600)
    assert not breaker.take_probe()


def test_the_probe_closes_it_or_lengthens_the_pause() -> None:
    breaker, clock, states = opened()
    pauses = []
    for _ in range(6):
        waited = 0.0
        while not breaker.take_probe():
            clock.advance(0.25)
            waited += 0.25
        pauses.append(waited)
        breaker.probe_ended()
        assert breaker.state == "open"
    assert pauses == [0.5, 1.0, 2.0, 4.0, 5.0, 5.0]
    assert pauses[-1] == PAUSE_S_MAX
    clock.advance(PAUSE_S_MAX)
    assert breaker.take_probe()
    breaker.succeeded()
    breaker.probe_ended()
    assert states[-1] == "closed"
    fail(breaker, FAILURES_MAX)
    look(breaker)
    clock.advance(PAUSE_S)
    assert breaker.take_probe(), "pauses begin anew"


def test_old_calls_that_fail_late_do_not_start_a_second_probe() -> None:
    breaker, clock, _ = opened()
    clock.advance(PAUSE_S)
    assert breaker.take_probe()
    breaker.failed()
    assert breaker.state == "half_open"
    clock.advance(PAUSE_S_MAX)
    assert not breaker.take_probe()


def test_an_old_call_that_succeeds_late_closes_it() -> None:
    breaker, _, _ = opened()
    breaker.succeeded()
    assert not breaker.refuses


def test_a_full_disk_turns_away_new_items_only_and_for_a_while() -> None:
    breaker, clock, _ = made()
    assert breaker.takes_items
    breaker.had_no_room()
    assert (breaker.takes_items, breaker.refuses) == (False, False)
    clock.advance(FULL_S)
    assert breaker.takes_items


def test_retry_after_is_never_at_once() -> None:
    breaker, clock, _ = opened()
    clock.advance(3600)
    assert breaker.retry_after_s >= PAUSE_S


def test_processes_do_not_all_ask_again_at_the_same_moment() -> None:
    asked: list[tuple[float, float]] = []

    def half_way(low: float, high: float) -> float:
        asked.append((low, high))
        return (low + high) / 2

    breaker = Breaker(ManualClock(), jitter=half_way)
    fail(breaker, FAILURES_MAX)
    look(breaker)
    [(low, high)] = asked
    assert (low, high) == (PAUSE_S / 2, PAUSE_S)
