"""The DAG service's settings, read from `HEADGATE_DAG_*`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from shared.settings import EdgeSettings
from shared.shards.map_file import Plan, load


class DagSettings(EdgeSettings):
    """Every limit of the service, with its unit in its name."""

    model_config = SettingsConfigDict(env_prefix="HEADGATE_DAG_", extra="ignore", frozen=True)

    port: int = 8081
    queue_url: Annotated[str, Field(validation_alias="HEADGATE_QUEUE_URL")] = "http://127.0.0.1:8080"

    # A call that makes a thousand nodes is large, and mostly waits: for its shard, and for the queue.
    working_kib_max: Annotated[int, Field(ge=1)] = 8192

    payload_bytes_max: int = 64 * 1024
    data_bytes_max: int = 64 * 1024
    metadata_bytes_max: int = 1024
    # What a child is given of its upstreams' outputs; above either, a reference to fetch it by. The depth
    # leaves room for what an enqueue call wraps around it.
    inputs_bytes_max: int = 256 * 1024
    inputs_depth_max: int = 28
    # The same of all that one transaction releases: edges to look for outputs along, and bytes of them.
    inputs_step_edges_max: int = 50_000
    inputs_step_bytes_max: int = 8 * 1024 * 1024
    inputs_fetched_bytes_max: int = 64 * 1024 * 1024

    # Unfinished ones of each namespace; None: no limit.
    namespace_dags_max: int | None = None
    namespace_nodes_max: int | None = None
    namespace_edges_max: int | None = None

    nodes_per_dag_max: int = 2_000_000
    edges_per_dag_max: int = 10_000_000
    externals_per_dag_max: int = 2_000_000
    degree_max: int = 100_000
    cleanups_per_dag_max: int = 10_000
    # Values that the jobs of a DAG share: bytes of one as JSON, how many, and bytes of all.
    value_bytes_max: int = 64 * 1024
    values_per_dag_max: int = 1_000
    dag_values_bytes_max: int = 4 * 1024 * 1024
    # A call with more edges is read and judged beside the event loop, and no statement writes more.
    edges_at_once_max: Annotated[int, Field(ge=1)] = 10_000
    # Edges from the children of one expand call to what waits for them.
    expand_edges_max: int = 100_000
    graph_json_nodes_max: int = 100_000
    graph_text_nodes_max: int = 2_000
    graph_bytes_max: int = 32 * 1024 * 1024
    chain_nodes_max: int = 50_000
    chain_edges_max: int = 200_000

    # A DAG in a node's place: how deep they nest, what one may take as JSON, and how many bytes of its
    # outputs become the node's (above that, a reference to fetch them by).
    subdag_depth_max: int = 8
    subdag_bytes_max: int = 1024 * 1024
    subdag_output_bytes_max: int = 64 * 1024

    # Of DAGs with a `priority`: levels behind a node that count, edges above which none does, and how often
    # a DAG that changes is looked at.
    priority_levels_max: int = 1_000
    priority_edges_max: int = 200_000
    priority_ranks_max: int = 500_000
    priority_refresh_s: float = 1.0

    # One transaction flips at most so many edges, walks so many levels of skips, and scans so many nodes.
    edges_per_step_max: int = 1_000
    # What follows in later steps goes in smaller ones, so that other DAGs come in between.
    walk_edges_max: int = 250
    skip_levels_per_step_max: int = 16
    scan_nodes_max: int = 2_000
    scan_edges_max: int = 10_000
    list_scan_nodes_max: int = 50_000
    page_edges_max: int = 50_000
    # Outputs and errors of a page of nodes; beside them what surrounds these nodes; payloads of an exported page.
    page_bytes_max: int = 4 * 1024 * 1024

    # Of a run of a workflow: nodes that have not ended, signals that it has not received, for how long the ids of
    # those are known where it goes on as a new one, events of a page, and how long its code may clean up before it
    # is ended.
    run_unfinished_max: int = 100_000
    unread_signals_max: int = 10_000
    signal_ids_kept_s: float = 86_400.0
    history_events_max: int = 1_000
    # Turns of a process whose answers wait for events; the runs of others are parked at once.
    turns_waiting_max: int = 1_000
    cancel_grace_s: float = 3_600.0
    # Events that nothing waits for, of one DAG, in an answer.
    undeclared_shown_max: int = 100
    # A retry of so many nodes, with so many edges to look at and as many to count anew, is one transaction; a
    # larger one goes on in steps of so many nodes and edges.
    retry_at_once_nodes_max: int = 2_000
    retry_at_once_edges_max: int = 10_000
    retry_step_nodes: int = 2_000
    retry_step_edges: int = 10_000

    # Topological orders kept in memory for cycle checks; a DAG whose own would be larger takes no edges that need
    # it.
    order_bytes_max: int = 128 * 1024 * 1024

    # Timers that one transaction ends.
    timers_per_step_max: int = 500
    # For tests: timers do not wait where nothing else runs.
    skip_time: bool = False
    # Schedules of a namespace, ticks that are kept of each, and slots of its backfills that wait.
    namespace_schedules_max: int = 10_000
    schedule_ticks_max: int = 1_000
    backfill_slots_max: int = 1_000
    completions_per_step_max: int = 1_000
    completion_bytes_max: int = 8 * 1024 * 1024
    completion_wait_s: float = 20.0
    completion_lease_s: float = 5.0
    completion_attempts_max: int = 20
    completion_delay_s: float = 2.0
    completion_pollers: int = 2
    # A batch's completions of one DAG, if so many, are applied beside those of others.
    bulk_endings_min: int = 50

    # New DAGs that one statement makes, and how many nodes one may have to share it.
    creates_per_flush_max: int = 32
    create_batch_nodes_max: int = 100
    create_batch_bytes_max: int = 256 * 1024

    send_items_max: int = 1_000
    # What a transaction decided of so many nodes at once is told in calls of its own, of so many.
    bulk_sends_min: int = 100
    bulk_send_items_max: int = 250
    sub_dags_per_send_max: int = 16
    send_bytes_max: int = 8 * 1024 * 1024
    sends_in_flight_max: int = 16
    # What is held of what waits to be sent; the rest is on the outbox.
    sends_waiting_bytes_max: int = 64 * 1024 * 1024
    overdue_s: float = 1.0
    overdue_rows_max: int = 1_000
    retry_s_max: float = 5.0
    # The queue takes ids for so long after they were made; an item that is made late gets a fresh one.
    id_window_s: float = 15 * 60

    sweep_s: float = 0.5
    stopped_add_s: float = 5.0
    drive_wait_s: float = 5.0
    # How soon waits and event streams hear of what another process has committed.
    watch_s: float = 1.0
    event_streams_max: int = 1_000
    event_stream_s_max: float = 3_600.0
    event_keepalive_s: float = 15.0

    # Ended DAGs leave the hot tables after the grace, which no transaction may outlast, and are dropped later.
    ended_dag_grace_s: Annotated[float, Field(ge=30)] = 300.0
    ended_dag_retention_s: float = 14 * 24 * 3600.0
    export_before_drop: bool = False
    export_scan_dags_max: int = 1_000
    keep_dags_max: int = 100
    keep_rows_max: int = 5_000
    keep_bytes_max: int = 8 * 1024 * 1024
    keep_interval_s: float = 5.0
    shards_refresh_s: float = 10.0
    health_refresh_s: float = 2.0

    def plan(self) -> Plan:
        """The shard map; a ValueError says what is wrong with it."""
        return load(self.shards, self.shards_file, "dag")
