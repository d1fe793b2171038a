"""Topics begin on one shard, spread with their rate, and go round shards that are to be avoided."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.queue.enqueue import placement as placement_module
from services.queue.enqueue.placement import Placement
from services.queue.settings import QueueSettings
from tests.support.clocks import ManualClock

SETTINGS = QueueSettings(topic_shards_max=3, topic_shard_rate_max=100.0)


def placement(shards: int = 4, settings: QueueSettings = SETTINGS) -> tuple[Placement, ManualClock]:
    clock = ManualClock()
    place = Placement(range(shards), settings, clock, avoids=lambda _: False, owns=lambda _: True)
    return place, clock


def used(place: Placement, calls: int = 60, *, topic: str = "t", items: int = 0) -> Counter[int]:
    return Counter(place.choose("ns", topic, items) for _ in range(calls))


def test_a_quiet_topic_stays_on_one_shard() -> None:
    place, clock = placement()
    found: Counter[int] = Counter()
    for _ in range(10):
        found += used(place, items=1)
        clock.advance(1.0)

    assert len(found) == 1


def test_topics_and_namespaces_begin_on_different_shards() -> None:
    place, _ = placement()

    assert {place.choose("ns", f"t{n}", 1) for n in range(64)} == {0, 1, 2, 3}
    assert {place.choose(f"ns{n}", "t", 1) for n in range(64)} == {0, 1, 2, 3}


@pytest.mark.parametrize(("rate", "width"), [(99, 1), (100, 2), (199, 2), (200, 3), (10_000, 3)])
def test_a_topic_takes_a_shard_more_for_every_rate_up_to_the_limit(rate: int, width: int) -> None:
    place, clock = placement()
    place.choose("ns", "t", rate)
    clock.advance(1.0)

    assert len(used(place)) == width == place.width("ns", "t")


def test_a_spread_topic_uses_its_shards_evenly() -> None:
    place, clock = placement()
    place.choose("ns", "t", 10_000)
    clock.advance(1.0)

    assert set(used(place, calls=60).values()) == {20}


def test_a_calm_topic_gives_its_shards_back_one_a_second() -> None:
    place, clock = placement()
    place.choose("ns", "t", 10_000)
    widths = []
    for _ in range(4):
        clock.advance(1.0)
        used(place, calls=1, items=1)
        widths.append(place.width("ns", "t"))

    assert widths == [3, 2, 1, 1]


def test_a_topic_never_takes_more_shards_than_there_are() -> None:
    place, clock = placement(shards=2)
    place.choose("ns", "t", 10_000)
    clock.advance(1.0)

    assert set(used(place)) == {0, 1}


def test_a_shard_to_be_avoided_is_passed_over() -> None:
    place, _ = placement()
    home = place.choose("ns", "t", 1)
    place.avoids = lambda shard: shard == home

    assert home not in used(place)


def test_a_process_places_on_its_own_shards_while_one_of_them_takes_items() -> None:
    place, clock = placement()
    place.owns = lambda shard: shard in (1, 3)
    topics = {place.choose("ns", f"t{n}", 1) for n in range(64)}
    assert topics == {1, 3}

    place.avoids = lambda shard: shard in (1, 3)
    assert {place.choose("ns", f"t{n}", 1) for n in range(64)} <= {0, 2}

    place.owns, place.avoids = (lambda _shard: False), (lambda _shard: False)
    clock.advance(1.0)
    assert {place.choose("ns", f"t{n}", 1) for n in range(64)} == {0, 1, 2, 3}


def test_with_every_shard_to_be_avoided_the_call_still_gets_one() -> None:
    place, _ = placement()
    place.avoids = lambda _shard: True

    assert len(used(place)) == 1


@given(st.lists(st.integers(0, 3_000), min_size=1, max_size=40))
def test_the_width_stays_within_its_bounds(loads: list[int]) -> None:
    place, clock = placement()
    for items in loads:
        place.choose("ns", "t", items)
        clock.advance(1.0)
        assert 1 <= place.width("ns", "t") <= SETTINGS.topic_shards_max


def test_topics_that_were_busy_once_are_forgotten_like_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one topic per job, each wide for a moment, nothing is kept of what is over; what is busy stays wide."""
    monkeypatch.setattr(placement_module, "_TOPICS_MAX", 8)
    place, clock = placement()
    for n in range(40):
        place.choose("ns", "busy", 10_000)
        place.choose("ns", f"job {n}", 10_000)
        clock.advance(10.0)
        place.choose("ns", f"job {n}", 1)
        assert len(place._spreads) <= 8
    assert place.width("ns", "busy") == 3


def test_no_more_topics_are_remembered_than_there_is_room_for_however_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(placement_module, "_TOPICS_MAX", 8)
    place, clock = placement()
    for n in range(40):
        place.choose("ns", f"job {n}", 10_000)
        clock.advance(1.0)
        place.choose("ns", f"job {n}", 1)
        assert len(place._spreads) <= 8
