"""Which of the queue's shards holds the items of a DAG shard."""

import pytest

from services.dag.errors import QueueUnavailable
from services.dag.queue_client import pick_shard


def test_the_items_of_one_dag_shard_live_on_one_queue_shard_and_dag_shards_take_turns() -> None:
    assert [pick_shard([3, 5, 9], dag_shard) for dag_shard in (0, 1, 2, 3, 0)] == [3, 5, 9, 3, 3]


def test_a_shard_in_the_same_database_comes_first() -> None:
    assert [pick_shard([3, 5, 9], dag_shard, {5, 9, 11}) for dag_shard in (0, 1, 2)] == [5, 9, 5]
    assert pick_shard([3, 5, 9], 1, {11}) == 5


def test_no_shard_to_take_items_is_said_not_guessed() -> None:
    with pytest.raises(QueueUnavailable):
        pick_shard([], 0)
