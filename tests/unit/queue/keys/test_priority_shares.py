"""Minimum shares, by count: simulated over many hand-outs, with peeks in between, against a model of the topic."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.queue.keys.key_cache import Heads
from services.queue.keys.priority_shares import Bands, Shares
from services.queue.model import Key
from tests.support.clocks import ManualClock

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
LIMIT = 100


class Topic:
    """What is ready on two shards, and one process that serves it."""

    def __init__(self, shares: Shares) -> None:
        self.made = 0
        self.ready: dict[int, list[Key]] = {0: [], 1: []}
        clock = ManualClock()
        self.bands = Bands(shares, lambda: Heads([0, 1], lambda _: True, clock, keys_max=400, late_s=1.0))

    def add(self, priority: int, count: int) -> None:
        for _ in range(count):
            self.made += 1
            shard = self.made % 2
            at = BEGIN + timedelta(seconds=self.made)
            key = Key(priority, at, f"00000000-0000-7000-8000-{self.made:09x}{shard:03x}")
            self.ready[shard] = sorted([*self.ready[shard], key])
            self.bands.push(shard, [key])

    def serve(self, count: int) -> list[Key]:
        """One dequeue: peek as `Dispatch` does, take, and claim."""
        peeks = self.bands.behind(count)
        for shard, after in peeks:
            self.bands.peeking(shard, after)
        for shard, after in peeks:
            found = [key for key in self.ready[shard] if key > after][:LIMIT]
            self.bands.peeked(shard, found, limit=LIMIT, after=after)
        keys = self.bands.take(count)
        for key in keys:
            self.ready[int(key.id[-3:], 16)].remove(key)
        self.bands.settled(keys)
        return keys


@pytest.mark.parametrize("batch", [1, 7, 50])
def test_a_worse_priority_gets_its_share_of_every_stretch(batch: int) -> None:
    topic = Topic(((5, 0.1),))
    topic.add(5, 200)
    topic.add(0, 2_000)
    served = [key.priority for _ in range(1_000 // batch) for key in topic.serve(batch)]

    assert len(served) == 1_000 // batch * batch
    for stretch in (50, 100, 400):
        for start in range(0, len(served) - stretch, 13):
            got = served[start : start + stretch].count(5)
            assert abs(got - stretch * 0.1) <= 1, (start, stretch, got)


def test_without_shares_a_worse_priority_waits() -> None:
    """The control: what the shares do is the shares' doing."""
    topic = Topic(())
    topic.add(5, 50)
    topic.add(0, 500)

    assert {key.priority for _ in range(10) for key in topic.serve(50)} == {0}


def test_several_bands_each_get_theirs_and_the_best_the_rest() -> None:
    topic = Topic(((1, 0.3), (10, 0.2)))
    for priority in (0, 1, 9, 10, 99):
        topic.add(priority, 1_000)
    served = [key.priority for _ in range(100) for key in topic.serve(10)]

    assert abs(served.count(0) - 500) <= 2
    assert abs(served.count(1) - 300) <= 2
    assert served.count(9) == 0, "within a band the better priority goes first"
    assert abs(served.count(10) - 200) <= 2


@pytest.mark.parametrize("worst", [(), ((5, 0.2),)])
def test_the_best_priority_there_is_may_have_a_share(worst: Shares) -> None:
    """No priority is better than it, so its band is the first."""
    topic = Topic(((-(2**31), 0.3), *worst))
    for priority in (-(2**31), -(2**31) + 1, 5):
        topic.add(priority, 300)
    served = [key.priority for _ in range(30) for key in topic.serve(10)]

    assert len(served) == 300
    assert abs(served.count(5) - (60 if worst else 0)) <= 1
    assert served.count(-(2**31)) + served.count(5) == 300, "within a band the better priority goes first"


def test_what_waits_for_nothing_is_owed_nothing() -> None:
    topic = Topic(((5, 0.5),))
    topic.add(0, 300)
    assert len(topic.serve(100)) == 100
    topic.add(5, 100)
    served = [key.priority for _ in range(10) for key in topic.serve(10)]

    assert abs(served.count(5) - 50) <= 1, "it was away: it gets its share from now on, and no more"


def test_an_empty_better_band_leaves_everything_to_the_worse() -> None:
    topic = Topic(((5, 0.1),))
    topic.add(7, 100)

    assert len(topic.serve(60)) == 60
    topic.add(0, 100)
    served = [key.priority for key in topic.serve(50)]
    assert abs(served.count(7) - 5) <= 1, "what it had by itself is no debt"


SHARES = st.sampled_from([((5, 0.1),), ((5, 0.9),), ((0, 0.25), (5, 0.25)), ((1, 0.3), (5, 0.3), (9, 0.3))])
ADDED = st.lists(st.tuples(st.sampled_from([-1, 0, 1, 5, 6, 9, 50]), st.integers(1, 40)), max_size=6)


@settings(deadline=None)
@given(shares=SHARES, steps=st.lists(st.tuples(ADDED, st.integers(1, 30)), min_size=1, max_size=12))
def test_everything_is_handed_out_once_and_each_band_in_order(
    shares: Shares, steps: list[tuple[list[tuple[int, int]], int]]
) -> None:
    topic = Topic(shares)
    served: list[Key] = []
    for added, count in steps:
        for priority, number in added:
            topic.add(priority, number)
        keys = topic.serve(count)
        # What is ready is handed out, up to the count, whoever it belongs to.
        waiting = sum(map(len, topic.ready.values()))
        assert len(keys) == min(count, len(keys) + waiting)
        starts = [-(2**31), *(priority for priority, _ in shares)]
        for number in range(len(starts)):
            end = starts[number + 1] if number + 1 < len(starts) else 2**31
            mine = [key for key in keys if starts[number] <= key.priority < end]
            assert mine == sorted(mine)
        served += keys
        topic.bands.rewind()
    assert len({key.id for key in served}) == len(served)


def test_bands_are_served_while_they_are_looked_at_again() -> None:
    topic = Topic(((5, 0.5),))
    topic.add(0, 4)
    topic.add(5, 4)
    topic.serve(2)
    for shard, after in topic.bands.again():
        topic.bands.peeking(shard, after)
    assert topic.bands.behind(4) == []
    assert {key.priority for key in topic.bands.take(4)} == {0, 5}


class Told:
    """Stands for a band's `Heads`, and writes down what it is told."""

    def __init__(self, log: list[tuple[int, str, tuple[Any, ...]]], number: int) -> None:
        self._log, self._number = log, number
        self.takes_turns = self.is_pushed = False

    def __getattr__(self, name: str) -> Any:
        def told(*given: Any) -> bool:
            self._log.append((self._number, name, given))
            return not self.is_pushed

        return told


@pytest.fixture
def told() -> tuple[Any, list[Told], list[tuple[int, str, tuple[Any, ...]]]]:
    log: list[tuple[int, str, tuple[Any, ...]]] = []
    made: list[Told] = []

    def make() -> Any:
        made.append(Told(log, len(made)))
        return made[-1]

    return Bands(((1, 0.3), (10, 0.2)), make), made, log


@pytest.mark.parametrize(
    ("name", "given"),
    [("join", (7,)), ("note", (7,)), ("heed", (3,)), ("pass_over", (7,)), ("reread", (7,)), ("skip", (7,))]
    + [(name, ()) for name in ("rewind", "clear")],
)
def test_what_is_said_of_a_shard_is_said_to_every_band(told: Any, name: str, given: tuple[Any, ...]) -> None:
    bands, _, log = told
    getattr(bands, name)(*given)
    assert log == [(number, name, given) for number in range(3)]


def test_keys_are_put_back_into_the_bands_that_they_are_of(told: Any) -> None:
    bands, _, log = told
    keys = [Key(priority, BEGIN, f"{priority}") for priority in (-5, 0, 1, 9, 10, 99)]
    bands.put_back(7, keys)
    assert log == [(number, "put_back", (7, keys[2 * number : 2 * number + 2])) for number in range(3)]


def test_lanes_are_those_of_all_bands_and_one_band_that_wants_keys_is_enough(told: Any) -> None:
    bands, made, _ = told
    assert bands.takes_turns is False
    bands.takes_turns = True
    assert bands.takes_turns is True and all(band.takes_turns for band in made)
    assert bands.note(7) is True
    made[1].is_pushed = True
    assert bands.note(7) is False
