"""Own keys first, other owners' keys when there are no own ones or when they have waited too long."""

from datetime import UTC, datetime, timedelta

import pytest

from services.queue.keys.key_buffer import START
from services.queue.keys.key_cache import Heads
from services.queue.model import Key

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
LATE_S = 1.0
LIMIT = 10


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_s(self) -> float:
        return self.now_s


class Process:
    """What one process knows of shards 0 (its own) and 1 (another's); `look` is what its poll does."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.owned = {0}
        self.shards: dict[int, list[Key]] = {0: [], 1: []}
        self.heads = Heads([0, 1], self.owned.__contains__, self.clock, keys_max=100, late_s=LATE_S)

    def add(self, shard: int, second: float, priority: int = 0) -> Key:
        number = sum(map(len, self.shards.values()))
        key = Key(priority, BEGIN + timedelta(seconds=second), f"00000000-0000-7000-8000-{number:09x}{shard:03x}")
        self.shards[shard] = sorted([*self.shards[shard], key])
        return key

    def look(self) -> None:
        self.heads.rewind()
        for shard, after in self.heads.behind(LIMIT):
            self.heads.peeking(shard, after)
            keys = [key for key in self.shards[shard] if key > after][:LIMIT]
            self.heads.peeked(shard, keys, limit=LIMIT)

    def wait(self, seconds: float) -> None:
        self.clock.now_s += seconds
        self.look()


@pytest.fixture
def process() -> Process:
    return Process()


def test_own_shards_are_in_strict_order_and_empty_ones_let_others_in(process: Process) -> None:
    own = [process.add(0, 2), process.add(0, 3, priority=5)]
    other = [process.add(1, 1), process.add(1, 1, priority=-9)]
    process.look()

    assert process.heads.take(9) == [*own, *sorted(other)]


def test_an_older_head_elsewhere_goes_first_once_it_is_late(process: Process) -> None:
    own = [process.add(0, second) for second in (10.0, 10.5, 11.5)]
    other = process.add(1, 10.0)
    process.look()
    assert process.heads.take(1) == own[:1]
    process.shards[0].remove(own[0])
    process.wait(LATE_S)

    # Within the same priority it is before those that became ready more than LATE_S later.
    assert process.heads.take(3) == [own[1], other, own[2]]


def test_a_better_priority_elsewhere_waits_no_longer_than_the_bound(process: Process) -> None:
    for second in range(5):
        process.add(0, second)
    urgent = process.add(1, 50, priority=-1)
    process.look()
    assert urgent not in process.heads.take(1)
    process.wait(LATE_S - 0.001)
    assert urgent not in process.heads.take(1)
    process.wait(0.001)

    assert process.heads.take(1) == [urgent]


def test_a_worse_head_elsewhere_never_goes_before_own_keys(process: Process) -> None:
    own = [process.add(0, 100 + second) for second in range(3)]
    other = process.add(1, 0, priority=1)
    process.look()
    process.wait(60)

    assert process.heads.take(9) == [*own, other]


def test_two_busy_processes_do_not_starve_a_shard_that_nobody_serves(process: Process) -> None:
    """Own keys never end; the other shard's keys come out within the bound all the same."""
    other = [process.add(1, second / 10) for second in range(20)]
    taken: list[Key] = []
    for second in range(40):
        own = [process.add(0, second + n / 10) for n in range(10)]
        process.wait(1.0)
        keys = process.heads.take(5)
        taken += keys
        process.heads.settled(keys)
        for key in keys:
            process.shards[int(key.id[-3:], 16)].remove(key)
        assert own  # more than five a second: the backlog grows

    assert set(other) <= set(taken)
    places = [taken.index(key) for key in other]
    younger = [key for key in taken[: max(places)] if key.deliver_at > other[-1].deliver_at + timedelta(seconds=2)]
    assert younger == []


def test_keys_told_by_other_owners_count_from_when_they_were_told(process: Process) -> None:
    process.look()
    process.add(0, 10)
    key = process.add(1, 1)
    process.heads.push(1, [key])
    process.wait(LATE_S)

    assert process.heads.take(1) == [key]


def test_what_others_claimed_meanwhile_is_forgotten_at_the_next_look(process: Process) -> None:
    gone = process.add(1, 1)
    process.look()
    process.shards[1].remove(gone)
    process.wait(0.8)

    assert process.heads.take(9) == []


def test_shards_change_their_owner_between_looks(process: Process) -> None:
    first, second = process.add(1, 1), process.add(0, 2)
    process.look()
    process.owned.add(1)
    process.look()
    assert process.heads.take(9) == [first, second]
    process.heads.settled([first, second])
    process.owned.clear()
    process.look()

    assert process.heads.take(9) == [first, second]


def test_a_shard_changes_its_owner_while_a_peek_of_it_is_late(process: Process) -> None:
    key = process.add(1, 1)
    process.heads.peeking(1, process.heads.behind(1)[1][1])
    process.heads.pass_over(1)
    process.owned.add(1)
    process.heads.rewind()
    process.heads.peeked(1, [key], limit=LIMIT)
    assert process.heads.take(1) == []
    process.look()

    assert process.heads.take(1) == [key]


def test_a_process_that_owns_nothing_serves_everything_in_order(process: Process) -> None:
    process.owned.clear()
    keys = [process.add(shard, second) for shard, second in ((1, 3), (0, 2), (1, 1))]
    process.look()

    assert process.heads.take(9) == sorted(keys)


def test_memory_of_keys_elsewhere_is_bounded(process: Process) -> None:
    process.look()
    for n in range(2000):
        process.heads.push(1, [process.add(1, n)])
        process.shards[1].clear()

    assert len(process.heads) <= 100
    assert len(process.heads._known_since_s) <= 201


def test_what_was_dry_is_while_it_is_looked_at_again_and_nothing_is_met(process: Process) -> None:
    heads = process.heads
    process.owned.add(1)
    assert not heads.hands_over, "nobody has looked"
    process.look()
    assert heads.hands_over
    heads.rewind()
    assert heads.hands_over
    assert heads.take(1) == []
    heads.peeking(0, START)
    heads.peeked(0, [], limit=LIMIT)
    assert heads.hands_over, "one shard is known, the other is as it was"
    key = process.add(1, 0)
    heads.peeking(1, START)
    heads.peeked(1, [key], limit=LIMIT)
    assert not heads.hands_over
    heads.settled(heads.take(1))


@pytest.mark.parametrize("meets", ["push", "clear", "peek"])
def test_a_look_that_has_met_something_is_waited_for(process: Process, meets: str) -> None:
    heads = process.heads
    process.owned.add(1)
    process.look()
    heads.rewind()
    key = process.add(0, 0)
    if meets == "push":
        heads.push(0, [key])
    elif meets == "clear":
        heads.clear()
    else:
        heads.peeking(0, START)
        heads.peeked(0, [key], limit=1)
        heads.take(1)
    assert not heads.hands_over
    heads.rewind()
    assert not heads.hands_over, "nor after the next one has begun"


def found(process: Process, shard: int) -> None:
    """A look at one shard from its head comes back."""
    process.heads.peeked(shard, process.shards[shard][:LIMIT], limit=LIMIT)


def test_known_keys_elsewhere_are_served_while_they_are_looked_at_again(process: Process) -> None:
    key = process.add(1, 1)
    process.look()
    for shard, after in process.heads.again():
        process.heads.peeking(shard, after)

    assert process.heads.behind(1) == []
    assert process.heads.take(1) == [key]


def test_a_look_elsewhere_takes_the_place_of_what_was_known(process: Process) -> None:
    gone, stays = process.add(1, 1), process.add(1, 2)
    process.look()
    process.heads.peeking(1, dict(process.heads.again())[1])
    process.shards[1].remove(gone)
    found(process, 1)
    assert process.heads.take(9) == [stays]


def test_what_is_told_during_a_look_elsewhere_outlives_it(process: Process) -> None:
    process.look()
    process.heads.peeking(1, dict(process.heads.again())[1])
    key = Key(0, BEGIN, "00000000-0000-7000-8000-000000100001")
    process.heads.push(1, [key])
    found(process, 1)
    assert process.heads.take(9) == [key]


def test_a_key_that_is_met_again_elsewhere_is_as_late_as_before(process: Process) -> None:
    other = process.add(1, 1)
    process.look()
    process.clock.now_s += LATE_S
    process.add(0, 10)
    process.heads.peeking(1, dict(process.heads.again())[1])
    found(process, 1)
    process.look()
    assert process.heads.take(1) == [other]


def test_what_is_noted_is_looked_for_once_own_keys_are_too_few(process: Process) -> None:
    own = process.add(0, 10)
    process.look()
    other = process.add(1, 1)
    assert process.heads.note(1)
    process.heads.heed(1)
    assert process.heads.behind(1) == [], "its owner is at it"

    process.heads.heed(2)
    assert process.heads.behind(2) == [(1, START)]
    process.heads.peeking(1, START)
    found(process, 1)
    assert process.heads.take(2) == [own, other]
    process.heads.heed(9)
    assert process.heads.behind(9) == [], "once"


def test_a_look_that_had_begun_does_not_hide_what_is_noted(process: Process) -> None:
    """Its snapshot may be older than the keys; a call that comes meanwhile looks again after it."""
    process.look()
    process.heads.peeking(1, START)
    assert process.heads.note(1)
    process.heads.heed(1)
    process.heads.peeked(1, [], limit=LIMIT)
    assert process.heads.behind(1) == [(1, START)]


def test_a_look_that_began_later_covers_what_is_noted(process: Process) -> None:
    process.look()
    assert process.heads.note(1)
    process.heads.peeking(1, dict(process.heads.again())[1])
    found(process, 1)
    process.heads.heed(1)
    assert process.heads.behind(1) == []


def test_nothing_is_handed_over_past_what_is_noted(process: Process) -> None:
    process.look()
    assert process.heads.hands_over
    assert process.heads.note(1)
    assert not process.heads.hands_over


def test_keys_of_an_own_shard_are_not_merely_noted(process: Process) -> None:
    assert not process.heads.note(0)


def test_what_is_put_back_elsewhere_after_it_was_forgotten_is_known_from_then_on(process: Process) -> None:
    """A call holds a key while a look finds that another process has it: when it was first met is forgotten."""
    key = process.add(1, 10.0)
    process.look()
    taken = process.heads.take(1)
    process.shards[1].clear()
    process.look()
    process.heads.put_back(1, taken)

    process.shards[1].append(key)
    process.wait(LATE_S)
    assert process.heads.take(9) == [key]


def test_what_was_told_elsewhere_during_a_look_and_forgotten_is_known_from_its_end_on(process: Process) -> None:
    told = process.add(1, 10.0)
    process.heads.peeking(1, START)
    process.heads.push(1, [told])
    # So many others are met meanwhile that those which are in no buffer are forgotten.
    for _ in range(3):
        process.heads.push(1, [process.add(1, 20.0) for _ in range(80)])
    process.heads.peeked(1, [], limit=LIMIT)

    process.look()
    assert process.heads.take(1) == [told]
