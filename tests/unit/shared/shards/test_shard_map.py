"""Where items that may live anywhere go."""

import pytest

from services.queue.settings import QueueSettings
from shared.shards.shard_map import ShardMap, is_old


def made(shards: int) -> ShardMap:
    settings = QueueSettings(shards=f"postgresql://nobody@127.0.0.1:1/none#{shards}")
    return ShardMap(settings.plan(), settings)


def turns(shards: ShardMap, count: int) -> list[int]:
    return sorted(shards.next().number for _ in range(count))


def test_every_shard_has_its_turn() -> None:
    assert turns(made(3), 6) == [0, 0, 1, 1, 2, 2]


def test_a_shard_that_takes_nothing_is_left_out() -> None:
    shards = made(3)
    for shard in shards:
        if shard.number == 1:
            shard.breaker.had_no_room()
    assert turns(shards, 4) == [0, 0, 2, 2]


def test_when_none_takes_items_one_is_named_all_the_same() -> None:
    shards = made(2)
    for shard in shards:
        shard.breaker.had_no_room()
    assert len(turns(shards, 2)) == 2


@pytest.mark.parametrize("release", [140_020, 150_014, 160_010, 170_006, 180_000])
def test_a_server_that_does_not_look_again_at_a_row_is_old(release: int) -> None:
    assert is_old(release)


@pytest.mark.parametrize("release", [150_015, 160_011, 170_007, 180_001, 190_000])
def test_one_that_does_is_not(release: int) -> None:
    assert not is_old(release)
