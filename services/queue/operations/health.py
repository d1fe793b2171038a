"""Shard health as this process sees it: counts from the shard, rates and latencies from its own flushes."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from services.queue.model import TopicId
from services.queue.store import topics
from services.queue.store.shard_store import Store, living
from shared.clock import Clock
from shared.errors import NotFound, Overloaded, ShardUnavailable, Unavailable
from shared.ids import ShardNo
from shared.metrics import ACKED, DEQUEUED, ENQUEUED
from shared.postgres.connections import Pool
from shared.shards.ownership import Ownership
from shared.shards.shard_map import ShardMap

_COUNTS = ("ready", "delayed", "leased", "disabled", "dead")
# What only the shard could tell, while it does not.
_UNTOLD: dict[str, Any] = dict.fromkeys((*_COUNTS, "dead_tuples", "bytes"), 0)
_UNTOLD |= dict.fromkeys(("oldest_ready_age_s", "oldest_transaction_age_s"))
_WINDOW_S = 10.0
# So many topics are looked at by one statement.
READY_TOPICS_MAX = 1_000
_RATES = {"enqueued_per_s": ENQUEUED, "dequeued_per_s": DEQUEUED, "acked_per_s": ACKED}


class Health:
    """Samples rates once a second; answers from the shards on request."""

    def __init__(
        self, stores: Mapping[ShardNo, Store], shards: ShardMap, clock: Clock, ownership: Ownership
    ) -> None:
        self._stores = stores
        self._map = shards
        self._clock = clock
        self._ownership = ownership
        self._samples: defaultdict[ShardNo, deque[tuple[float, dict[str, float]]]] = defaultdict(
            lambda: deque(maxlen=int(_WINDOW_S) + 1)
        )

    async def step(self) -> int:
        """Take one sample of every shard's counters, and notice those that fell silent."""
        now_s = self._clock.monotonic_s()
        for store in living(self._stores):
            self._notice(store)
            self._samples[store.number].append((now_s, self._totals(store.number)))
        return 0

    async def shards(self) -> list[dict[str, Any]]:
        """The health of all shards of the map, by number."""
        stores = sorted(living(self._stores), key=lambda store: store.number)
        return list(await asyncio.gather(*map(self._shard, stores)))

    async def shard(self, number: ShardNo) -> dict[str, Any]:
        """The health of one shard; NotFound for a number that is not in the map."""
        store = self._stores.get(number)
        if store is None or store.pool.is_retired:
            raise NotFound("no shard has this number; see GET /v1/shards")
        return await self._shard(store)

    async def _shard(self, store: Store) -> dict[str, Any]:
        found: dict[str, Any] = {"shard": store.number, **self._rates(store.number), **_latency(store.pool)}
        is_hurt = found["errors_per_s"] or not store.shard.breaker.takes_items
        try:
            store.pool.admit()
            owner = await self._ownership.look(store.shard)
            found["state"] = "degraded" if is_hurt else "healthy" if owner.name else "unowned"
            if self._map.is_draining(store.number):
                found["state"] = "draining"
            found |= await self._ask(store)
        except Unavailable as error:
            owner = self._ownership.seen(store.number)
            found |= _UNTOLD | {"state": "degraded" if isinstance(error, Overloaded) else "open"}
        return found | {"owner": owner.name, "epoch": owner.epoch}

    async def _ask(self, store: Store) -> dict[str, Any]:
        counts = await topics.shard_counts(store.pool)
        oldest_s = await _oldest_ready_age_s(store)
        server = await topics.server_health(store.pool)
        return {
            **counts._asdict(),
            "oldest_ready_age_s": oldest_s,
            **server._asdict(),
            "bytes": await topics.shard_bytes(store.pool),
        }

    def _notice(self, store: Store) -> None:
        with suppress(ShardUnavailable):
            store.pool.check()

    def _totals(self, number: ShardNo) -> dict[str, float]:
        totals = {name: metric.labels(number)._value.get() for name, metric in _RATES.items()}
        return totals | {"errors_per_s": self._stores[number].pool.errors._value.get()}

    def _rates(self, number: ShardNo) -> dict[str, float]:
        samples = self._samples[number]
        if len(samples) < 2:
            return dict.fromkeys([*_RATES, "errors_per_s"], 0.0)
        (first_s, first), (last_s, last) = samples[0], samples[-1]
        span_s = max(last_s - first_s, 1e-9)
        return {name: round((last[name] - first[name]) / span_s, 3) for name in last}


async def _oldest_ready_age_s(store: Store) -> float | None:
    """Of all topics, a page at a time: a shard may have tens of thousands with something ready."""
    ages: list[float] = []
    after = TopicId(0)
    while page := await topics.ready_topics(store.pool, after, READY_TOPICS_MAX):
        ages += (await store.ready_ages.read(page)).values()
        ages[:] = [max(ages)] if ages else []
        after = page[-1]
    return max(ages, default=None)


def _latency(pool: Pool) -> dict[str, float | None]:
    taken = sorted(pool.latencies_s)
    if not taken:
        return {"db_latency_ms_p50": None, "db_latency_ms_p99": None}
    return {
        "db_latency_ms_p50": round(taken[len(taken) // 2] * 1000, 3),
        "db_latency_ms_p99": round(taken[min(len(taken) - 1, len(taken) * 99 // 100)] * 1000, 3),
    }
