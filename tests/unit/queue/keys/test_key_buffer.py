"""A process' keys: what a look on its way may and may not change, and what a topic's line costs."""

import tracemalloc
from datetime import UTC, datetime, timedelta

from services.queue.dispatch.direct_handoff import LOOK_KEYS_MIN, LOOKS_A_POLL, Line, Place
from services.queue.keys.key_buffer import END, START, Buffer
from services.queue.keys.key_cache import Heads
from services.queue.model import Key
from tests.support.owners import HandClock

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
LIMIT = 10
LINE_BYTES_MAX = 3_500


def keys_of(count: int, *, shard: int = 0, since: int = 0) -> list[Key]:
    return [
        Key(0, BEGIN + timedelta(seconds=since + n), f"00000000-0000-7000-8000-{since + n:09x}{shard:03x}")
        for n in range(count)
    ]


def looked(buffer: Buffer, shard: int, keys: list[Key]) -> None:
    buffer.peeking(shard, START)
    buffer.peeked(shard, keys, limit=LIMIT)


def test_what_is_put_back_after_it_was_found_anew_is_there_once() -> None:
    """Else one call would be given it twice."""
    keys = keys_of(3)
    buffer = Buffer([0], keys_max=100)
    looked(buffer, 0, keys)
    taken = buffer.take(2)
    buffer.clear()
    looked(buffer, 0, keys)
    buffer.put_back(0, taken)

    assert buffer.take(9) == keys


def test_what_was_claimed_while_a_look_was_on_its_way_does_not_come_back() -> None:
    """The look's snapshot may be older than the claim; each such key would be a claim in vain."""
    keys = keys_of(5)
    buffer = Buffer([0], keys_max=100)
    looked(buffer, 0, keys)
    for shard, after in buffer.again():
        buffer.peeking(shard, after)
    taken = buffer.take(2)
    buffer.settled(taken)
    buffer.peeked(0, keys, limit=LIMIT)

    assert taken == keys[:2]
    assert buffer.take(9) == keys[2:]


def test_what_was_told_and_claimed_while_a_look_was_on_its_way_does_not_come_back() -> None:
    keys = keys_of(2)
    buffer = Buffer([0], keys_max=100)
    looked(buffer, 0, [])
    buffer.peeking(0, START)
    buffer.push(0, keys)
    assert buffer.take(1) == keys[:1]
    buffer.settled(keys[:1])
    buffer.peeked(0, keys[:1], limit=LIMIT)

    assert buffer.take(9) == keys[1:]


def test_what_was_claimed_in_vain_is_found_by_the_next_look() -> None:
    keys = keys_of(2)
    buffer = Buffer([0], keys_max=100)
    looked(buffer, 0, keys)
    buffer.peeking(0, START)
    buffer.settled(buffer.take(1))
    buffer.peeked(0, keys, limit=LIMIT)
    assert buffer.take(9) == keys[1:]

    looked(buffer, 0, keys[:1])
    assert buffer.take(9) == keys[:1]


def test_what_is_known_is_served_while_every_shard_is_looked_at_again() -> None:
    keys, better = keys_of(5), Key(-1, BEGIN, "00000000-0000-7000-8000-00000000f001")
    buffer = Buffer([0, 1], keys_max=100)
    looked(buffer, 0, keys)
    looked(buffer, 1, [])
    for shard, after in buffer.again():
        assert after == START
        buffer.peeking(shard, after)

    assert buffer.behind(5) == []
    assert buffer.take(1) == keys[:1]
    buffer.peeked(0, keys[:3], limit=3)
    buffer.peeked(1, [better], limit=3)
    assert buffer.take(9) == [better, *keys[1:3]], "and no further than the new look is known to be whole"


def test_what_is_told_while_a_look_is_on_its_way_is_not_lost() -> None:
    """Its snapshot may be older than the key, and its bound lies behind it all the same."""
    [key] = keys_of(1)
    buffer = Buffer([0], keys_max=100)
    buffer.peeking(0, START)
    buffer.push(0, [key])
    buffer.peeked(0, [], limit=LIMIT)
    assert buffer.take(1) == [key]


def test_keys_told_far_behind_a_look_on_its_way_are_not_kept() -> None:
    """They are the end of a backlog, and would be read again when it is their turn."""
    backlog, fresh = keys_of(LIMIT), keys_of(50, since=1_000)
    buffer = Buffer([0], keys_max=1_000)
    buffer.peeking(0, START)
    buffer.push(0, fresh)
    buffer.peeked(0, backlog, limit=LIMIT)
    assert len(buffer) == LIMIT


def test_a_look_reads_what_a_part_of_a_poll_takes() -> None:
    line = Line("n", "t", Heads([0], lambda _: True, HandClock(), keys_max=100, late_s=1.0))
    assert line.depth(1, 1_000) == LOOK_KEYS_MIN
    assert line.depth(100, 1_000) == 200
    assert line.depth(900, 1_000) == 1_000

    line.taken = 400 * LOOKS_A_POLL
    assert line.depth(1, 1_000) == 400
    line.refreshed(1.0)
    assert line.depth(1, 1_000) == 400
    line.refreshed(2.0)
    assert line.depth(1, 1_000) == LOOK_KEYS_MIN


def test_ten_thousand_topics_fit() -> None:
    """A line of four shards, as one dequeue leaves it: what it takes beside its keys."""
    shards, lines = range(4), []
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(500):
            heads = Heads(list(shards), lambda _: True, HandClock(), keys_max=100, late_s=1.0)
            line = Line("n", f"t{number}", heads)
            for shard in shards:
                line.topic_ids[shard] = number
                line.start(shard, START, 1.0)
                heads.peeking(shard, START)
                heads.peeked(shard, [], limit=LIMIT)
            lines.append(line)
        each = (tracemalloc.get_traced_memory()[0] - before) / len(lines)
    finally:
        tracemalloc.stop()
    assert each < LINE_BYTES_MAX


def test_a_rewind_takes_back_what_a_look_on_its_way_says_of_the_head() -> None:
    buffer = Buffer([0], keys_max=100)
    buffer.peeking(0, START)
    buffer.rewind()
    buffer.peeked(0, keys_of(1), limit=LIMIT)
    assert buffer.behind(1) == [(0, START)]
    assert buffer.take(1, END) == []


async def test_who_has_been_woken_and_has_not_looked_yet_keeps_its_share() -> None:
    line = Line("n", "t", Heads([0], lambda _: True, HandClock(), keys_max=100, late_s=1.0))
    places = [Place(None) for _ in range(5)]
    line.waiting += places
    while line.wake_one():
        pass
    taken: list[int] = []
    for place in places:
        line.leave(place)
        left = 5 - sum(taken)
        taken.append(min(left, line.share(5, left)))
    assert taken == [1] * 5
