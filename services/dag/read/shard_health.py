"""Health of the DAG shards: what they hold, who owns them, how quick they are."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from services.dag import store
from services.dag.run.context import Context
from shared.errors import ShardUnavailable
from shared.ids import ShardNo
from shared.metrics import DAGS, NODES
from shared.shards.shard_map import Shard

_OUTBOX_COUNTED_MAX: Final = 100_000


class ShardHealth:
    """Counts of all shards, each as old as `health_refresh_s` at most."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._settings = context.settings
        self._health: dict[ShardNo, tuple[float, dict[str, Any]]] = {}

    async def step(self) -> int:
        """Sample the health of every shard, for `/metrics`."""
        await self.shards()
        return 0

    async def shards(self) -> list[dict[str, Any]]:
        """Health of the DAG shards; a shard's counts are at most `health_refresh_s` old."""
        return list(await asyncio.gather(*(self._shard(shard) for shard in self._context.shards)))

    def seen(self) -> dict[ShardNo, dict[str, Any]]:
        """What was counted last, by shard."""
        return {number: known for number, (_, known) in self._health.items()}

    async def _shard(self, shard: Shard) -> dict[str, Any]:
        now_s = self._context.clock.monotonic_s()
        until_s, known = self._health.get(shard.number, (0.0, {}))
        if now_s >= until_s:
            known = await self._count(shard)
            self._health[shard.number] = (now_s + self._settings.health_refresh_s, known)
        gauges = self._context.gauges[shard.number]
        return known | {
            "ack_lag_s": gauges.ack_lag_s.percentile(0.5),
            "release_lag_s": gauges.release_lag_s.percentile(0.5),
            "release_lag_s_p50": gauges.release_lag_s.percentile(0.5),
            "release_lag_s_p99": gauges.release_lag_s.percentile(0.99),
            "db_latency_ms_p50": _ms(gauges.db_latency_s.percentile(0.5)),
            "db_latency_ms_p99": _ms(gauges.db_latency_s.percentile(0.99)),
        }

    async def _count(self, shard: Shard) -> dict[str, Any]:
        ownership = self._context.ownership
        known: dict[str, Any] = {"shard": shard.number}
        dags = dict.fromkeys(("running", "cancelling", "succeeded", "failed", "cancelled"), 0)
        nodes = dict.fromkeys(("blocked", "released", "succeeded", "failed", "skipped", "cancelled"), 0)
        try:
            owner = await ownership.look(shard)
            known["state"] = "healthy" if owner.name else "unowned"
            for row in await store.reads.health(shard):
                dags[row.state] = row.dags
                DAGS.labels(shard.number, row.state).set(row.dags)
                for name in nodes:
                    nodes[name] += getattr(row, name)
            for name, count in nodes.items():
                NODES.labels(shard.number, name).set(count)
            known["outbox"] = await store.duties.count_outbox(shard, _OUTBOX_COUNTED_MAX)
            if not shard.breaker.takes_items:
                known["state"] = "degraded"
        except ShardUnavailable:
            owner = ownership.seen(shard.number)
            known |= {"state": "open", "outbox": 0}
        return known | {"owner": owner.name, "epoch": owner.epoch, "dags": dags, "nodes": nodes}


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)
