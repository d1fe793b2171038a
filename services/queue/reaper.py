"""What time does to items: leases run out, delays end, TTLs pass. Each duty is a bounded step over one shard."""

from __future__ import annotations

from datetime import datetime

from services.queue.fronts import Front
from services.queue.model import EARLIEST
from services.queue.names import SQL
from services.queue.operations import PLACE_AFTER_S
from services.queue.prefetch import START
from services.queue.settings import QueueSettings
from services.queue.settle import Settlement
from services.queue.store import Store
from shared.clock import SystemClock
from shared.metrics import SWEEPER_LAST_RUN

# Leases, most of them empty by then, end all the time: those of such a while are looked at together.
LEASES_PAUSE_S = 0.1
# What the last look saw counts for so long; who does not own the shard looks less often than that.
SEEN_S = 2.0

_BEGIN = (EARLIEST, START[2])
_clock = SystemClock()


class Reaper:
    """The duties of one shard. Any number of processes may run them at once."""

    def __init__(self, store: Store, settlement: Settlement, settings: QueueSettings) -> None:
        self._store = store
        self._settlement = settlement
        self._settings = settings
        self._ttl_after = _BEGIN
        self._delays, self._leases, self._ttls, self._looked_at = Front(), Front(), Front(), EARLIEST
        self._seen_s = float("-inf")
        self._ttl_is_over = self._has_operations = True
        self._last_run = SWEEPER_LAST_RUN.labels(store.number)
        self._pause_s = settings.reap_interval_s

    def pause_s(self) -> float:
        """How long nothing will be due, as far as the last step saw."""
        return self._pause_s

    def sees_past_ttl(self) -> bool:
        """Whether there may be items whose TTL has passed, by the last look."""
        return self._ttl_is_over or self._is_old()

    def sees_operations(self) -> bool:
        """Whether there may be operations to carry on, by the last look."""
        return self._has_operations or self._is_old()

    async def step(self) -> int:
        """Promote what is due and take back leases that ran out; else note how long nothing will be due."""
        delays_from, leases_from, delay_s, lease_s = await self._next_due()
        self._last_run.set_to_current_time()
        if delay_s > 0 and lease_s > 0:
            self._pause_s = min(self._settings.reap_interval_s, delay_s, max(lease_s, LEASES_PAUSE_S))
            return 0
        promoted = await self._settlement.dispatch.promote(self._store.number, delays_from)
        return promoted + await self._settlement.sweep(self._store, self._settings.reap_groups_max, leases_from)

    async def _next_due(self) -> tuple[datetime, datetime, float, float]:
        """From when delays and leases were looked at, and in how many seconds the next of each ends."""
        now_s = _clock.monotonic_s()
        since = self._delays.start(now_s), self._leases.start(now_s)
        row = await self._store.pool.row(
            SQL.next_due,
            delays_from=since[0],
            leases_from=since[1],
            ttls_from=self._ttls.start(now_s),
            unplaced_s=PLACE_AFTER_S,
        )
        at = row["at"]
        if at < self._looked_at:  # the shard's clock was set back: so are the times of what is new
            self._delays, self._leases, self._ttls, self._looked_at = Front(), Front(), Front(), at
            return await self._next_due()
        self._looked_at, self._seen_s = at, now_s
        *ends, ttl_at = row["due_at"], row["expires_at"], row["ttl_at"]
        for front, end in zip((self._delays, self._leases, self._ttls), (*ends, ttl_at), strict=True):
            front.found(None if end is None else min(end, at))  # what is new may end before what is there
        self._ttl_is_over = ttl_at is not None and ttl_at <= at
        self._has_operations = row["operations"]
        delay_s, lease_s = (
            self._settings.reap_interval_s if end is None else (end - at).total_seconds() for end in ends
        )
        return *since, delay_s, lease_s

    def _is_old(self) -> bool:
        return _clock.monotonic_s() - self._seen_s >= SEEN_S

    async def expire_step(self) -> int:
        """End a page of items whose TTL has passed; leased ones are passed over and met again."""
        after_at, after_id = self._ttl_after
        limit = self._settings.chunk_items_max
        page = await self._store.pool.fetch(SQL.past_ttl, after_at=after_at, after_id=after_id, limit=limit)
        if page:
            await self._settlement.expire(self._store, [row["id"] for row in page])
        self._ttl_after = (page[-1]["expires_at"], page[-1]["id"]) if len(page) == limit else _BEGIN
        return len(page) if len(page) == limit else 0
