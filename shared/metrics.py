"""Metrics, each declared once. Labels are bounded: shards, verbs, states; never ids, never tenants' strings."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

_LATENCY_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)

ENQUEUED = Counter("headgate_enqueued_total", "Items taken in.", ["shard"])
DEQUEUED = Counter("headgate_dequeued_total", "Items handed out.", ["shard"])
ACKED = Counter("headgate_acked_total", "Items acknowledged.", ["shard"])
NACKED = Counter("headgate_nacked_total", "Items given back.", ["shard"])
DEAD = Counter("headgate_dead_total", "Items that used up their attempts or were failed for good.", ["shard"])
LEASE_EXPIRED = Counter("headgate_lease_expired_total", "Leases taken back after they ran out.", ["shard"])
OWNED = Gauge("headgate_shard_owned", "1 while this process owns the shard.", ["shard"])
SHARD_QUERY_SECONDS = Histogram(
    "headgate_shard_query_seconds", "Time of one statement or transaction.", ["shard"], buckets=_LATENCY_S
)
SHARD_ERRORS = Counter("headgate_shard_errors_total", "Times that a shard did not answer.", ["shard"])
SHARD_REFUSED = Counter(
    "headgate_shard_refused_total", "Calls refused at once while a shard did not answer.", ["shard"]
)
SHARD_BREAKER = Gauge("headgate_shard_breaker_state", "0: closed, 1: half-open, 2: open.", ["shard"])
SHARD_POOL_IN_USE = Gauge("headgate_shard_pool_in_use", "Connections in use.", ["shard", "pool"])
SHARD_POOL_WAITING = Gauge("headgate_shard_pool_waiting", "Calls that wait for a connection.", ["shard", "pool"])
SHED = Counter("headgate_shed_total", "Calls turned away because too much waited.", ["urgency"])
LOOP_LAG_SECONDS = Gauge("headgate_loop_lag_seconds", "How long a round of the event loop took last.")
RATE_LIMITED = Counter("headgate_rate_limited_total", "Elements or calls refused over a quota.", ["quota"])
RELEASED = Counter("headgate_dependency_released_total", "Nodes released.", ["shard"])
RELEASE_LAG_SECONDS = Histogram(
    "headgate_release_lag_seconds",
    "Last upstream's end to the node's release.",
    ["shard"],
    buckets=_LATENCY_S,
)
OUTBOX_ROWS = Gauge("headgate_outbox_rows", "Outbox rows that wait to be sent.", ["shard"])
COMPLETIONS = Counter(
    "headgate_completions_total", "Completion items applied, by what they did.", ["shard", "result"]
)
