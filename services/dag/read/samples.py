"""What is kept for the last hour of the DAG shards, of what was counted for `/metrics` anyway."""

from __future__ import annotations

from collections.abc import Iterator

from services.dag.read.shard_health import ShardHealth
from services.dag.run.context import Context
from shared.console.history import SeriesName


class ShardSamples:
    """Of the shards that this process owns and that answer."""

    def __init__(self, context: Context, health: ShardHealth) -> None:
        self._context = context
        self._health = health

    def latest(self) -> Iterator[tuple[SeriesName, float]]:
        """What the last counts have found."""
        for number, known in self._health.seen().items():
            if known["state"] == "open" or not self._context.ownership.owns(number):
                continue
            yield SeriesName("running_dags", number), float(known["dags"]["running"])
            for state in ("blocked", "released"):
                yield SeriesName(f"{state}_nodes", number), float(known["nodes"][state])
            yield SeriesName("outbox", number), float(known["outbox"])
            lag_s = self._context.gauges[number].release_lag_s.percentile(0.99)
            if lag_s is not None:
                yield SeriesName("release_lag_s_p99", number), lag_s
