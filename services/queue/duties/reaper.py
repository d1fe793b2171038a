"""What time does to items: leases run out, delays end, TTLs pass. Each duty is a bounded step over one shard.

One look tells what is due and wakes the duty that it is for. Each duty runs in a loop of its own, at its own
`Pace`: one that fails, or has a lot to do, keeps back no other.
"""

from __future__ import annotations

from datetime import datetime

from services.queue.dispatch.dispatcher import Dispatch
from services.queue.keys.key_buffer import START
from services.queue.keys.scan_floor import WHOLE_S, ScanFloor
from services.queue.leases.expiry import Expiry
from services.queue.model import EARLIEST
from services.queue.operations.bulk import PLACE_AFTER_S
from services.queue.operations.pace import Pace
from services.queue.settings import QueueSettings
from services.queue.store import items, retention
from services.queue.store.leases import SweepBounds
from services.queue.store.shard_store import Store
from shared.clock import SystemClock
from shared.loop import Waker
from shared.metrics import SWEEPER_LAST_RUN

# What the last look saw counts for so long; who does not own the shard looks less often than that.
SEEN_S = 2.0
# After a walk over all items past their TTL, the next one comes no sooner than so many times as long as that took.
TTL_REST = 20

_BEGIN = (EARLIEST, START[2])
_clock = SystemClock()


class Due:
    """Whether a duty has something to do, as far as the last look saw; its loop is woken when that begins."""

    def __init__(self, again_s: float) -> None:
        self._again_s = again_s
        self.since = EARLIEST  # from when to look for it
        self.is_due = False
        self.waker = Waker()

    def pause_s(self) -> float:
        """For how long its loop may sleep: what is left, as where a step failed, is tried again soon."""
        return self._again_s if self.is_due else SEEN_S

    def see(self, is_due: bool, since: datetime) -> None:
        """A look saw this. A duty that is at work already, or waits after an error, is not woken again."""
        self.since = since
        if is_due and not self.is_due:
            self.waker.kick()
        self.is_due = is_due or self.is_due


class Reaper:
    """The duties of one shard. Any number of processes may run them at once."""

    def __init__(self, store: Store, dispatch: Dispatch, expiry: Expiry, settings: QueueSettings) -> None:
        self._store = store
        self._dispatch = dispatch
        self._expiry = expiry
        self._settings = settings
        self.delays, self.leases = Due(settings.reap_interval_s), Due(settings.reap_interval_s)
        self.look_waker = Waker()
        self._promotes = Pace(settings.promote_items_max)
        self._sweeps = Pace(settings.reap_items_max)
        self._expires = Pace(settings.chunk_items_max)
        self._swept_namespace_id = 0
        self._ttl_after, self._ttl_whole_s = _BEGIN, float("-inf")
        self._walk_since_s: float | None = None  # of a walk over all that is under way
        self._delay_floor, self._lease_floor, self._looked_at = ScanFloor(), ScanFloor(), EARLIEST
        self._seen_s = float("-inf")
        self._ttl_is_over = self._has_operations = True
        self._last_run = SWEEPER_LAST_RUN.labels(store.number)
        self._pause_s = settings.reap_interval_s

    def pause_s(self) -> float:
        """How long nothing will be due, as far as the last look saw."""
        return self._pause_s

    def sees_past_ttl(self) -> bool:
        """Whether there may be items whose TTL has passed, by the last look."""
        return self._ttl_is_over or self._is_old()

    def sees_operations(self) -> bool:
        """Whether there may be operations to carry on, by the last look."""
        return self._has_operations or self._is_old()

    async def look(self) -> int:
        """See what is due, wake its duties, and note how long nothing else will be; 0, as the rest is theirs."""
        interval_s = self._settings.reap_interval_s
        delays_from, leases_from, delay_s, lease_s = await self._next_due()
        self._last_run.set_to_current_time()
        self.delays.see(delay_s <= 0, delays_from)
        self.leases.see(lease_s <= 0, leases_from)
        # Leases, most of them empty by then, end all the time: those of an interval are looked at together.
        self._pause_s = min(interval_s, delay_s) if delay_s > 0 else interval_s
        return 0

    async def promote_step(self) -> int:
        """Make ready what is due, a bounded number of items; how many, or 0 if that was all."""
        if not self.delays.is_due:
            return 0
        number, since = self._store.number, self.delays.since
        promoted = await self._promotes.step(lambda limit: self._dispatch.promote(number, limit, since))
        if self._promotes.was_full:
            return promoted
        self.delays.is_due = False
        if promoted:
            self.look_waker.kick()  # the next one may be due before the next look
        return 0

    async def sweep_step(self) -> int:
        """Take back leases that ran out, a bounded number of items; how many ids that met."""
        if not self.leases.is_due:
            return 0
        met, was_full = 0, False

        async def sweep(items_max: int) -> int:
            nonlocal met, was_full
            settings = self._settings
            swept = await self._expiry.sweep(
                self._store,
                SweepBounds(
                    items_max,
                    settings.reap_ids_max,
                    settings.reap_groups_max,
                    settings.reap_look_max,
                    self.leases.since,
                    self._swept_namespace_id,
                    int(settings.id_window_s * 1000),
                ),
            )
            met, was_full, self._swept_namespace_id = swept.ids, swept.was_full, swept.last_namespace_id
            return swept.expired

        await self._sweeps.step(sweep)
        self.leases.is_due = was_full
        return met

    async def expire_step(self) -> int:
        """End a page of items whose TTL has passed; how many it met, or 0 if that was all.

        Those that are leased are passed over. The next step goes on behind them, and only a whole walk now and
        then meets them again: an item that is given back past its TTL ends there and then.
        """

        async def expire(limit: int) -> int:
            page = await items.past_ttl(self._store.pool, self._ttl_after, limit)
            if page:
                await self._expiry.expire(self._store, [item.id for item in page])
                self._ttl_after = (page[-1].expires_at, page[-1].id)
            return len(page)

        met = await self._expires.step(expire)
        if self._expires.was_full:
            return met
        if self._walk_since_s is not None:
            now_s = _clock.monotonic_s()
            self._ttl_whole_s = max(self._ttl_whole_s, now_s + TTL_REST * (now_s - self._walk_since_s))
            self._walk_since_s = None
        return 0

    async def _next_due(self) -> tuple[datetime, datetime, float, float]:
        """From when delays and leases were looked at, and in how many seconds the next of each ends."""
        now_s = _clock.monotonic_s()
        since = self._delay_floor.start(now_s), self._lease_floor.start(now_s)
        is_whole = now_s >= self._ttl_whole_s
        ttls_from = EARLIEST if is_whole else self._ttl_after[0]
        due = await retention.next_due(self._store.pool, *since, ttls_from, PLACE_AFTER_S)
        at = due.at
        if at < self._looked_at:  # the shard's clock was set back: so are the times of what is new
            self._delay_floor, self._lease_floor, self._looked_at = ScanFloor(), ScanFloor(), at
            self._ttl_after, self._ttl_whole_s = _BEGIN, float("-inf")
            return await self._next_due()
        self._looked_at, self._seen_s = at, now_s
        ends = due.due_at, due.expires_at
        for floor, end in zip((self._delay_floor, self._lease_floor), ends, strict=True):
            floor.found(None if end is None else min(end, at))  # what is new may end before what is there
        self._ttl_is_over = due.ttl_at is not None and due.ttl_at <= at
        if is_whole:
            self._ttl_whole_s = now_s + WHOLE_S
            if self._ttl_is_over:
                self._ttl_after, self._walk_since_s = _BEGIN, now_s
        self._has_operations = due.operations
        delay_s, lease_s = (
            self._settings.reap_interval_s if end is None else (end - at).total_seconds() for end in ends
        )
        return *since, delay_s, lease_s

    def _is_old(self) -> bool:
        return _clock.monotonic_s() - self._seen_s >= SEEN_S
