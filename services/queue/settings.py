"""The queue service's settings, read from `HEADGATE_QUEUE_*`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from shared.postgres.batcher import BatcherLimits
from shared.settings import EdgeSettings
from shared.shards.map_file import Plan, load


class QueueSettings(EdgeSettings):
    """Every limit of the service, with its unit in its name."""

    model_config = SettingsConfigDict(env_prefix="HEADGATE_QUEUE_", extra="ignore", frozen=True)

    port: int = 8080
    # Where the pages find the DAG service.
    dag_url: Annotated[str | None, Field(validation_alias="HEADGATE_DAG_URL")] = None

    payload_bytes_max: int = 64 * 1024
    output_bytes_max: int = 64 * 1024
    metadata_bytes_max: int = 1024
    ack_context_bytes_max: int = 1024
    # That of a DAG's item, which names its node: twice as long as the key, if all of it is written as escapes.
    managed_context_bytes_max: int = 3 * 1024
    headers_bytes_max: int = 1024
    inputs_bytes_max: int = 256 * 1024 + 1024
    # Items of one dequeue's answer; one item at least.
    answer_bytes_max: Annotated[int, Field(ge=1)] = 16 * 1024 * 1024

    id_window_s: float = 15 * 60
    id_ahead_s_max: float = 60.0
    unseen_cancels_max: Annotated[int, Field(description="per namespace and shard, per id window")] = 100_000
    dead_retention_s: float = 14 * 24 * 3600.0
    topic_retention_s: Annotated[float, Field(ge=0, description="what is empty for so long is deleted")] = 86_400.0
    logged_attempts_max: int = 20
    attempts_shown_max: Annotated[int, Field(ge=1, description="of many items, in one answer")] = 5_000
    attempt_retention_s: float = 14 * 24 * 3600.0

    # What jobs log: of one call about one item, of an item, and of a namespace; 128 bytes more a call.
    log_batch_bytes_max: Annotated[int, Field(ge=1)] = 64 * 1024
    log_item_bytes_max: Annotated[int, Field(ge=1)] = 1024 * 1024
    log_namespace_bytes_max: Annotated[int, Field(ge=1, description="per shard")] = 256 * 1024 * 1024
    log_retention_s: Annotated[float, Field(ge=0, description="what is older is dropped")] = 3 * 86_400.0

    # Workers by name: how many rows, how often one is written, how long one that went is kept; seen by a process.
    workers_max: Annotated[int, Field(ge=1, description="per namespace and shard")] = 1_000
    worker_write_s: Annotated[float, Field(gt=0)] = 5.0
    worker_retention_s: Annotated[float, Field(ge=0)] = 3_600.0
    workers_seen_max: Annotated[int, Field(ge=1)] = 10_000
    # What was cancelled under leases lately: read at once, and remembered of a namespace.
    cancel_news_max: Annotated[int, Field(ge=1)] = 10_000

    # An ack of a DAG's item goes on with its DAG in its own transaction where both are in one database.
    fold_completions: bool = True

    topic_shards_max: Annotated[int, Field(ge=1, description="shards that one topic's new items go to")] = 16
    topic_shard_rate_max: Annotated[float, Field(gt=0, description="items a second, per host")] = 80_000.0
    flush_items_max: int = 2_000
    # Of payloads, inputs and outputs in a flush; one call's at least. Where items are large, fewer wait, too.
    flush_bytes_max: Annotated[int, Field(ge=1)] = 16 * 1024 * 1024
    waiting_items_max: int = 50_000
    names_max: Annotated[int, Field(ge=4_000, description="topics remembered, per shard")] = 20_000
    peek_keys_max: int = 1_000
    buffer_keys_max: int = 8_000
    kept_keys_max: int = 100_000
    buffer_idle_s: float = 30.0
    poll_s: float = 0.8
    # A key of another owner's shard goes first here once it has waited for so long beside worse ones.
    late_s: float = 1.0
    quota_refresh_s: float = 0.7
    given_rows_max: int = 1_000
    reap_interval_s: float = 0.25
    # Of a sweep: leases among which namespaces take turns; leases, ids and living items that it takes back.
    reap_look_max: int = 1_000
    reap_groups_max: int = 200
    reap_ids_max: int = 10_000
    reap_items_max: int = 2_000
    promote_items_max: int = 2_000
    page_scan_max: int = 20_000
    topics_scan_max: Annotated[int, Field(ge=1, description="topics that a page of active ones looks at")] = 5_000
    chunk_items_max: int = 500
    metrics_interval_s: float = 5.0
    metrics_topics_max: int = 100
    operation_rows_max: int = 2_000
    operation_patience_s: float = 5.0
    operation_poll_s: float = 1.0
    operation_retention_s: float = 7 * 24 * 3600.0
    operations_running_max: Annotated[int, Field(description="per namespace")] = 100
    dead_scan_items_max: int = 10_000

    @property
    def flush_limits(self) -> BatcherLimits:
        """What one flush takes, and who may join the line for it."""
        return BatcherLimits(
            self.flush_items_max, self.waiting_items_max, self.standing_wait_s_max, self.flush_bytes_max
        )

    def plan(self) -> Plan:
        """The shard map; a ValueError says what is wrong with it."""
        return load(self.shards, self.shards_file, "queue")
