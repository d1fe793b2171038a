"""What time does to items: leases run out, delays end, TTLs pass. Each duty is a bounded step over one shard."""

from __future__ import annotations

from datetime import datetime

from services.queue.fronts import Front
from services.queue.model import EARLIEST
from services.queue.names import SQL
from services.queue.prefetch import START
from services.queue.settings import QueueSettings
from services.queue.settle import Settlement
from services.queue.store import Store
from shared.clock import SystemClock
from shared.metrics import SWEEPER_LAST_RUN

# Leases, most of them empty by then, end all the time: those of such a while are looked at together.
LEASES_PAUSE_S = 0.1

_BEGIN = (EARLIEST, START[2])
_clock = SystemClock()


class Reaper:
    """The duties of one shard. Any number of processes may run them at once."""

    def __init__(self, store: Store, settlement: Settlement, settings: QueueSettings) -> None:
        self._store = store
        self._settlement = settlement
        self._settings = settings
        self._ttl_after = _BEGIN
        self._delays, self._leases, self._looked_at = Front(), Front(), EARLIEST
        self._last_run = SWEEPER_LAST_RUN.labels(store.number)
        self._pause_s = settings.reap_interval_s

    def pause_s(self) -> float:
        """How long nothing will be due, as far as the last step saw."""
        return self._pause_s

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
        row = await self._store.pool.row(SQL.next_due, delays_from=since[0], leases_from=since[1])
        at = row["at"]
        if at < self._looked_at:  # the shard's clock was set back: so are the times of what is new
            self._delays, self._leases, self._looked_at = Front(), Front(), at
            return await self._next_due()
        self._looked_at = at
        ends = row["due_at"], row["expires_at"]
        for front, end in zip((self._delays, self._leases), ends, strict=True):
            front.found(None if end is None else min(end, at))  # what is new may end before what is there
        delay_s, lease_s = (
            self._settings.reap_interval_s if end is None else (end - at).total_seconds() for end in ends
        )
        return *since, delay_s, lease_s

    async def expire_step(self) -> int:
        """End a page of items whose TTL has passed; leased ones are passed over and met again."""
        after_at, after_id = self._ttl_after
        limit = self._settings.chunk_items_max
        page = await self._store.pool.fetch(SQL.past_ttl, after_at=after_at, after_id=after_id, limit=limit)
        if page:
            await self._settlement.expire(self._store, [row["id"] for row in page])
        self._ttl_after = (page[-1]["expires_at"], page[-1]["id"]) if len(page) == limit else _BEGIN
        return len(page) if len(page) == limit else 0
