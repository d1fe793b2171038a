"""Guards of unique keys: of one key one item, and one DAG, at a time."""

from tests.mutations.model import Mutation

_RACES = "integration/queue/test_operation_races.py"

MUTATIONS = (
    Mutation(
        "unique-live",
        "a unique key is held while its item is queued or running",
        "services/queue/store/sql/items.sql",
        "AND (dedup.until IS NOT NULL\n",
        "AND (true\n",
        ("contract/test_queue_unique.py::test_a_unique_key_is_free_once_its_item_is_neither_queued_nor_running",),
    ),
    Mutation(
        "unique-dead",
        "a unique key is free when its item is dead",
        "services/queue/store/sql/items.sql",
        "OR (SELECT parked.reason = 'dead' FROM parked WHERE parked.id = dedup.id)",
        "OR false",
        ("contract/test_queue_unique.py::test_a_unique_key_is_free_once_its_item_is_neither_queued_nor_running",),
    ),
    Mutation(
        "unique-others-ack",
        "an item that is acked frees no key that another has by now",
        "migrations/queue/functions/leave_behind.sql",
        "\n                    AND dedup.id = item.id OFFSET 0",
        " OFFSET 0",
        ("contract/test_queue_unique.py::test_the_end_of_an_item_frees_no_key_that_another_has_by_now",),
    ),
    Mutation(
        "unique-others-end",
        "an item that is purged frees no key that another has by now",
        "services/queue/store/sql/items.sql",
        "\n            AND dedup.id = deleted.id OFFSET 0",
        " OFFSET 0",
        ("contract/test_queue_unique.py::test_the_purge_of_a_dead_item_frees_no_key_that_another_has_by_now",),
    ),
    Mutation(
        "unique-redriven",
        "a dead item whose key another has by now is not put back",
        "services/queue/store/operations.py",
        "if item_id not in without",
        "if True",
        ("contract/test_queue_unique.py::test_a_dead_item_whose_key_another_has_by_now_is_not_put_back",),
    ),
    Mutation(
        "unique-redrive-race",
        "of a redrive and an enqueue of one unique key at once, one has the key",
        "services/queue/store/enqueue.py",
        "                if unique_keys:\n",
        "                if False:\n",
        (f"{_RACES}::test_a_redrive_against_an_enqueue_of_the_same_unique_key",),
    ),
    Mutation(
        "unique-far-dead",
        "a unique key whose dead item is on another shard is free, and held again where that is put back",
        "services/queue/duties/far_keys.py",
        '(state == "dead") != key.is_free',
        "False",
        (
            "integration/test_moving_slots.py"
            "::test_a_unique_key_of_a_dead_item_is_free_also_where_its_slot_has_moved",
        ),
    ),
    Mutation(
        "unique-dag-retried",
        "a DAG whose unique key another has by now is not retried",
        "services/dag/run/retry.py",
        "if dag.over and dag.key is None",
        "if False",
        ("integration/dag/test_keys.py::test_a_dag_whose_unique_key_another_has_by_now_is_not_retried",),
    ),
    Mutation(
        "unique-dag",
        "a DAG that is at work keeps its unique key",
        "services/dag/store/sql/dags.sql",
        "key IS NOT NULL AND state IN ('succeeded', 'failed', 'cancelled');",
        "key IS NOT NULL;",
        ("integration/dag/test_keys.py::test_a_unique_key_is_free_once_its_dag_has_ended",),
    ),
)
