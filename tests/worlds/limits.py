"""The processes' settings: in most worlds so small that everything takes several steps."""

from random import Random
from typing import Any

from tests.worlds.stage import Limits

_QUEUE: dict[str, tuple[Any, ...]] = {
    "flush_items_max": (2, 50),
    "peek_keys_max": (2, 10),
    "buffer_keys_max": (4, 100),
    "kept_keys_max": (3, 100),
    "reap_look_max": (2, 100),
    "reap_groups_max": (1, 50),
    "reap_ids_max": (2, 100),
    "reap_items_max": (1, 50),
    "promote_items_max": (1, 50),
    "page_scan_max": (3, 1_000),
    "chunk_items_max": (2, 50),
    "operation_rows_max": (3, 1_000),
    "dead_scan_items_max": (3, 1_000),
    "topic_shards_max": (1, 2, 16),
    "operation_patience_s": (0.0, 5.0),
    "fold_completions": (True, True, False),
}
_DAG: dict[str, tuple[Any, ...]] = {
    "edges_per_step_max": (1, 3, 1_000),
    "walk_edges_max": (1, 2, 250),
    "skip_levels_per_step_max": (1, 2, 16),
    "scan_nodes_max": (1, 2, 2_000),
    "scan_edges_max": (2, 10_000),
    "page_edges_max": (2, 50_000),
    "retry_at_once_nodes_max": (0, 3, 20_000),
    "retry_at_once_edges_max": (0, 3, 50_000),
    "retry_chunk_nodes": (1, 5_000),
    "retry_step_nodes": (1, 2, 2_000),
    "retry_step_edges": (1, 3, 10_000),
    "completions_per_step_max": (1, 3, 1_000),
    "bulk_endings_min": (2, 50),
    "creates_per_flush_max": (1, 2, 32),
    "create_batch_nodes_max": (2, 100),
    "send_items_max": (1, 3, 1_000),
    "bulk_sends_min": (2, 100),
    "bulk_send_items_max": (1, 250),
    "sub_dags_per_send_max": (1, 16),
    "inputs_step_edges_max": (2, 50_000),
    "overdue_rows_max": (2, 1_000),
    "keep_dags_max": (1, 3, 100),
    "keep_rows_max": (2, 5_000),
    "chain_nodes_max": (3, 50_000),
    "list_scan_nodes_max": (3, 50_000),
}


# Of the machines' clocks: as far as operators let them differ, and a little.
_AHEAD_S = (0.0, 0.0, -20.0, -2.0, 0.05, 2.0, 20.0)


def limits_of(rng: Random, edition: int) -> Limits:
    """The settings of one world."""
    queue = {name: rng.choice(values) for name, values in _QUEUE.items()}
    dag = {name: rng.choice(values) for name, values in _DAG.items()}
    short = {"command_timeout_s": 20.0, "acquire_timeout_s": 20.0, "log_level": "critical"}
    limits = Limits(
        queue=queue | short,
        dag=dag | short | {"ended_dag_grace_s": 30.0, "stopped_add_s": 1.0, "overdue_s": 0.5, "drive_wait_s": 1.0},
    )
    if edition >= 2:
        more = Random(str(queue | dag))
        limits.ahead_s = {name: more.choice(_AHEAD_S) for name in ("q1", "q2", "d1", "d2")}
        limits.tokens = more.choice(("none", "all", "own"))
    if edition >= 9:
        limits.hears_ends = more.random() < 0.7
    return limits
