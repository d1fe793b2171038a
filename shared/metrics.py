"""Metrics, each declared once. Labels are bounded: shards, routes, states, and of tenants' strings the names of
the topics that hold most, or of which most moves (`metrics_topics_max`); never ids."""

from __future__ import annotations

from prometheus_client import Counter, Gauge

from shared.histogram import Histogram

_LATENCY_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)

BUILD = Gauge("headgate_build_info", "1; the version is in the label.", ["version"])
HTTP_SECONDS = Histogram(
    "headgate_http_request_seconds",
    "Time of a request, waiting for items or ends included.",
    ["route", "method", "status"],
    buckets=(*_LATENCY_S, 30),
)
ITEMS = Gauge("headgate_items", "Items by state, sampled.", ["namespace", "topic", "shard", "state"])
TOPIC_WORK = Gauge(
    "headgate_topic_work",
    "What workers of the topic can be busy with now: ready items, unless it is paused, and leased ones; sampled.",
    ["namespace", "topic", "shard"],
)
OLDEST_READY_AGE_SECONDS = Gauge(
    "headgate_oldest_ready_age_seconds",
    "For how long the oldest ready item has been so.",
    ["namespace", "topic", "shard"],
)
SCHEDULE_TO_START_SECONDS = Histogram(
    "headgate_schedule_to_start_seconds",
    "From becoming deliverable to being handed out: of the first item of each answer, by this process's clock.",
    ["shard"],
    buckets=(*_LATENCY_S, 30, 60, 300, 1_800, 7_200),
)
ENQUEUED = Counter("headgate_enqueued_total", "Items taken in.", ["shard"])
TOPIC_ENQUEUED = Counter(
    "headgate_topic_enqueued_total",
    "Items taken in, of the topics of which most moves.",
    ["namespace", "topic", "shard"],
)
TOPIC_DEQUEUED = Counter(
    "headgate_topic_dequeued_total",
    "Items handed out, of the topics of which most moves.",
    ["namespace", "topic", "shard"],
)
TOPIC_ACKED = Counter(
    "headgate_topic_acked_total",
    "Items acknowledged, of the topics of which most moves.",
    ["namespace", "topic", "shard"],
)
DEQUEUED = Counter("headgate_dequeued_total", "Items handed out.", ["shard"])
ACKED = Counter("headgate_acked_total", "Items acknowledged.", ["shard"])
NACKED = Counter("headgate_nacked_total", "Items given back.", ["shard"])
DEAD = Counter("headgate_dead_total", "Items that used up their attempts or were failed for good.", ["shard"])
LOG_LINES = Counter("headgate_log_lines_total", "Lines that jobs logged, as they were answered.", ["status"])
REDELIVERED = Counter("headgate_redelivered_total", "Items handed out not for the first time.", ["shard"])
FOLDED = Counter(
    "headgate_folded_total", "Ends of DAGs' nodes that were applied in the transaction of their ack.", ["shard"]
)
FOLDED_RELEASES = Counter(
    "headgate_folded_releases_total",
    "Nodes that were released in the transaction of an upstream's ack.",
    ["shard"],
)
LEASE_EXPIRED = Counter("headgate_lease_expired_total", "Leases taken back after they ran out.", ["shard"])
SWEEPER_LAST_RUN = Gauge(
    "headgate_sweeper_last_run_timestamp_seconds", "When leases that ran out were last looked for.", ["shard"]
)
OWNED = Gauge("headgate_shard_owned", "1 while this process owns the shard.", ["shard"])
SHARD_QUERY_SECONDS = Histogram(
    "headgate_shard_query_seconds", "Time of one statement or transaction.", ["shard"], buckets=_LATENCY_S
)
SHARD_ERRORS = Counter("headgate_shard_errors_total", "Times that a shard did not answer.", ["shard"])
SHARD_REFUSED = Counter(
    "headgate_shard_refused_total", "Calls refused at once while a shard did not answer.", ["shard"]
)
SHARD_UP = Gauge("headgate_shard_up", "1 while the shard takes items.", ["shard"])
SHARD_BYTES = Gauge("headgate_shard_db_bytes", "Size of the shard's tables and indexes.", ["shard"])
SHARD_DEAD_TUPLES = Gauge("headgate_shard_dead_tuples", "Dead rows that vacuum has not removed.", ["shard"])
SHARD_OLDEST_TRANSACTION_SECONDS = Gauge(
    "headgate_shard_oldest_xact_age_seconds", "Age of the oldest transaction of the shard's database.", ["shard"]
)
SHARD_BREAKER = Gauge("headgate_shard_breaker_state", "0: closed, 1: half-open, 2: open.", ["shard"])
SHARD_POOL_IN_USE = Gauge("headgate_shard_pool_in_use", "Connections in use.", ["shard", "pool"])
SHARD_POOL_WAITING = Gauge("headgate_shard_pool_waiting", "Calls that wait for a connection.", ["shard", "pool"])
SHED = Counter("headgate_shed_total", "Calls turned away because too much waited.", ["urgency"])
CALLS_STANDING = Gauge(
    "headgate_calls_standing", "Calls that stand before they are begun: the processor is short."
)
LOOP_LAG_SECONDS = Gauge("headgate_loop_lag_seconds", "How long a round of the event loop took last.")
LOOP_STALL_SECONDS = Histogram(
    "headgate_loop_stall_seconds",
    "How long the event loop stood still, each time that it did for 50 ms or longer.",
    buckets=(0.1, 0.25, 0.5, 1.0, 2.5, 5.0),
)
DUTY_FAILED_ROUNDS = Gauge(
    "headgate_duty_failed_rounds", "Rounds of a background duty since its last good one.", ["duty", "shard"]
)
TOKENS = Gauge("headgate_tokens", "Tokens in force; 0 also where there is no tokens file.")
TOKENS_LINES_REFUSED = Gauge(
    "headgate_tokens_lines_refused", "Lines of the tokens file that are no tokens; the log names them."
)
TOKENS_FILE_UNREAD_SECONDS = Gauge(
    "headgate_tokens_file_unread_seconds", "For how long the tokens file could not be read."
)
FALLBACKS = Counter(
    "headgate_fallback_total",
    "Calls for which there is a short way and that took the long one, by the way and the reason.",
    ["path", "reason"],
)
RATE_LIMITED = Counter("headgate_rate_limited_total", "Elements or calls refused over a quota.", ["quota"])
RELEASED = Counter("headgate_dependency_released_total", "Nodes released.", ["shard"])
RELEASE_LAG_SECONDS = Histogram(
    "headgate_release_lag_seconds",
    "Last upstream's end to the node's release.",
    ["shard"],
    buckets=_LATENCY_S,
)
TIMER_LATE_SECONDS = Histogram(
    "headgate_timer_late_seconds",
    "From the time of a timer to when its end was begun to be written.",
    ["shard"],
    buckets=_LATENCY_S,
)
SCHEDULE_TICKS = Counter(
    "headgate_schedule_slots_total", "Slots of schedules, by what became of them.", ["decision", "reason"]
)
DAG_SECONDS = Histogram(
    "headgate_dag_duration_seconds",
    "From a DAG's making to its end.",
    buckets=(0.01, 0.1, 1, 10, 60, 300, 1_800, 3_600, 21_600, 86_400),
)
DAGS = Gauge("headgate_dags", "DAGs by state, sampled.", ["shard", "state"])
NODES = Gauge("headgate_nodes", "Nodes of DAGs by state, sampled.", ["shard", "state"])
OUTBOX_ROWS = Gauge("headgate_outbox_rows", "Outbox rows that wait to be sent.", ["shard"])
COMPLETIONS = Counter(
    "headgate_completions_total", "Completion items applied, by what they did.", ["shard", "result"]
)


def forget_shard(number: int, schema: str) -> None:
    """Drop every series of a shard that left the map; some metrics name shards by number, some by schema."""
    for metric in list(globals().values()):
        if isinstance(metric, Counter | Gauge | Histogram) and "shard" in metric._labelnames:
            metric.remove_by_labels({"shard": str(number)})
            metric.remove_by_labels({"shard": schema})
