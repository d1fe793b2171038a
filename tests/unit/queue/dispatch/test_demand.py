"""When topics were last asked for: never said to be longer ago than is known, whatever was forgotten."""

from services.queue.dispatch import demand
from services.queue.dispatch.announcements import Announcer
from services.queue.dispatch.demand import Asked
from tests.support.clocks import ManualClock


def test_nothing_is_known_of_the_time_before_the_process() -> None:
    clock = ManualClock()
    asked = Asked(clock, Announcer())
    clock.advance(7)
    assert asked.unasked_s("ns", "t") == 7
    asked.heard("ns", "t")
    clock.advance(2)
    assert (asked.unasked_s("ns", "t"), asked.unasked_s("other", "t")) == (2, 9)


def test_what_was_forgotten_is_no_longer_ago_than_what_was_forgotten_last() -> None:
    clock = ManualClock()
    asked = Asked(clock, Announcer())
    for n in range(demand.TOPICS_MAX + 1):
        clock.advance(1)
        asked.heard("ns", f"t{n}")
    assert asked.unasked_s("ns", f"t{demand.TOPICS_MAX}") == 0
    forgotten_s = asked.unasked_s("ns", "t0")
    assert forgotten_s < demand.TOPICS_MAX and forgotten_s == asked.unasked_s("ns", "never")
    kept = demand.TOPICS_MAX // 2
    assert asked.unasked_s("ns", f"t{kept}") == demand.TOPICS_MAX - kept
