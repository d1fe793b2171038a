"""Ids sort in the order of their making, whatever the clock and the threads do."""

import itertools
import os
import threading
import uuid

import pytest

from headgate._ids import IdMaker, new_id, new_ids, shard_of, time_ms_of


def test_an_id_is_a_uuid7_that_carries_time_and_shard() -> None:
    item_id = IdMaker(now_ms=lambda: 1_700_000_000_123).make(4_095)[0]
    parsed = uuid.UUID(item_id)
    assert (str(parsed), parsed.version, parsed.variant) == (item_id, 7, uuid.RFC_4122)
    assert (shard_of(item_id), time_ms_of(item_id)) == (4_095, 1_700_000_000_123)


def test_ids_of_one_millisecond_keep_their_order_across_shards() -> None:
    maker = IdMaker(now_ms=lambda: 1)
    made = [maker.make(shard)[0] for shard in (4_095, 0, 7) * 1_000]
    assert made == sorted(set(made))


def test_a_clock_that_steps_back_does_not_take_the_order_with_it() -> None:
    times = itertools.chain([1_000, 900, 1], itertools.repeat(999))
    maker = IdMaker(now_ms=lambda: next(times))
    made = [maker.make(1)[0] for _ in range(50)]
    assert made == sorted(set(made))
    assert {time_ms_of(item_id) for item_id in made} == {1_000}


def test_a_counter_at_its_end_borrows_from_the_next_millisecond() -> None:
    maker = IdMaker(now_ms=lambda: 5, entropy=lambda count: b"\xff" * count)
    first = maker.make(0)[0]
    maker._counter = 2**26 - 2
    later = maker.make(0, 5)
    assert [first, *later] == sorted({first, *later})
    assert [time_ms_of(item_id) for item_id in later] == [5, 5, 6, 6, 6]


def test_a_batch_keeps_its_order_where_the_low_half_of_the_counter_wraps() -> None:
    maker = IdMaker(now_ms=lambda: 1)
    maker.make(0)
    maker._counter = 0x1_3FFD
    made = maker.make(7, 1_000)
    assert made == sorted(set(made))
    assert {shard_of(item_id) for item_id in made} == {7}


def test_an_id_made_alone_looks_as_it_would_in_a_batch() -> None:
    def maker() -> IdMaker:
        return IdMaker(now_ms=lambda: 1, entropy=lambda count: bytes(place % 256 for place in range(7, 7 + count)))

    assert maker().make(7) == maker().make(7, 2)[:1]


def test_threads_never_make_the_same_id_and_each_sees_its_own_in_order() -> None:
    made: list[list[str]] = []

    def make() -> None:
        made.append([item_id for _ in range(20) for item_id in new_ids(3, 50)])

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(ids == sorted(ids) for ids in made)
    assert len({item_id for ids in made for item_id in ids}) == 4_000


def test_each_of_many_ids_made_alone_has_noise_of_its_own_and_a_fork_takes_none_of_its_parents() -> None:
    asked: list[int] = []

    def entropy(count: int) -> bytes:
        asked.append(count)
        return os.urandom(count)

    maker = IdMaker(now_ms=lambda: 1, entropy=entropy)
    made = [maker.make(0)[0][24:] for _ in range(1_000)]
    assert len(set(made)) == 1_000 and len(asked) < 100
    left = set(maker._drawn)
    maker.unlock()
    maker.make(0)
    assert left and not left & set(maker._drawn)


def test_two_processes_in_one_millisecond_differ_by_their_random_part() -> None:
    one = IdMaker(now_ms=lambda: 1, entropy=lambda count: b"\x00" * count)
    two = IdMaker(now_ms=lambda: 1, entropy=lambda count: b"\x00" * 7 + b"\x01" * (count - 7))
    assert one.make(0) != two.make(0)


@pytest.mark.parametrize("shard", [-1, 4_096])
def test_a_shard_that_does_not_fit_is_refused(shard: int) -> None:
    with pytest.raises(ValueError, match="shard"):
        new_id(shard)
