"""What a namespace may use, and what it uses: quotas of enqueues, leased items, stored items and bytes.

A namespace without quotas costs one look into a dictionary. Quotas are read from the shards about every
`quota_refresh_s`, and with them the use of the namespaces that have any. Between two looks a process corrects
what it read by what it did itself, so a single process is exact; several may exceed a limit together by what the
others did since the last look. Enqueues per minute are tokens of a bucket that all processes share
(`shared.admission.token_buckets`).
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple

from services.queue.model import Even, NamespaceId, NewItem, PlainItem, Result, refused
from services.queue.store import topics
from services.queue.store.shard_store import Store, living
from services.queue.store.topics import Limited
from shared.admission.token_buckets import Buckets, Rate
from shared.clock import Clock
from shared.errors import ShardUnavailable
from shared.ids import ShardNo
from shared.metrics import RATE_LIMITED

ROOM_S_MAX = 0.5
FULL_RETRY_S = 5.0
_MINUTE_S = 60.0


class Quota(NamedTuple):
    """The limits of a namespace; None: no limit."""

    enqueues_per_minute: int | None = None
    in_flight_max: int | None = None
    items_max: int | None = None
    stored_bytes_max: int | None = None


def quota_of(settings: str) -> Quota:
    """What a namespace's settings, as JSON, say of its quota."""
    found = json.loads(settings)
    return Quota(**{field: found.get(field) for field in Quota._fields})


class Use(NamedTuple):
    """What a namespace holds."""

    leased: int = 0
    items: int = 0
    bytes: int = 0

    def plus(self, other: Use) -> Use:
        return Use(self.leased + other.leased, self.items + other.items, self.bytes + other.bytes)

    def minus(self, other: Use) -> Use:
        return Use(self.leased - other.leased, self.items - other.items, self.bytes - other.bytes)


class Tenant:
    """A namespace with quotas, as this process sees it."""

    def __init__(self, namespace: str, clock: Clock) -> None:
        self.namespace = namespace
        self.quota = Quota()
        self._clock = clock
        self._known = Use()
        self._gained = self._gained_before = self._on_its_way = Use()
        self._lost = self._lost_before = Use()
        self.looks = 0  # at the shards, that were taken in
        self._room = asyncio.Event()
        self._accepted: deque[tuple[float, int]] = deque()

    def use(self) -> Use:
        """What the namespace holds, as last read and corrected by what this process did since."""
        since = self._gained.minus(self._gained_before).minus(self._lost.minus(self._lost_before))
        return self._known.plus(since)

    def gain(self, use: Use) -> None:
        """This process is about to add to the use; `gained` follows."""
        self._gained = self._gained.plus(use)
        self._on_its_way = self._on_its_way.plus(use)

    def gained(self, use: Use, unused: Use) -> None:
        """What was to be gained is committed, or not used."""
        self._on_its_way = self._on_its_way.minus(use)
        self.lose(unused)

    def lose(self, use: Use) -> None:
        """This process has given back; who waits for room looks again."""
        self._lost = self._lost.plus(use)
        self._room.set()

    def gave_back(self, use: Use, looks: int) -> None:
        """A call that began after so many looks has given back. Where one was taken in since, which may have seen
        that already, it counts as use until the next."""
        if looks == self.looks:
            self.lose(use)

    def marked(self) -> Use:
        """To be passed to `read`: the gains that a look which begins now will surely see."""
        return self._gained.minus(self._on_its_way)

    def read(self, known: Use, gained_before: Use) -> None:
        """The shards were looked at. Where it is not known whether a change was seen, it counts as use."""
        self._known = known
        self._gained_before = gained_before
        self._lost_before = self._lost
        self.looks += 1
        self._room.set()

    # -- enqueue ------------------------------------------------------------------------------------------

    def storable(self, items: Sequence[NewItem | PlainItem]) -> int:
        """How many of these items, from the first, there is room for."""
        use, count = self.use(), len(items)
        if self.quota.items_max is not None:
            count = min(count, max(self.quota.items_max - use.items, 0))
        if self.quota.stored_bytes_max is not None:
            left = self.quota.stored_bytes_max - use.bytes
            for i in range(count):
                left -= len(bytes(items[i].payload))
                if left < 0:
                    return i
        return count

    def accepted(self, count: int) -> None:
        """So many items were taken in."""
        self._accepted.append((self._clock.monotonic_s(), count))
        self.accepted_last_minute()

    def accepted_last_minute(self) -> int:
        """Items that this process took in within a minute."""
        horizon_s = self._clock.monotonic_s() - _MINUTE_S
        while self._accepted and self._accepted[0][0] <= horizon_s:
            self._accepted.popleft()
        return sum(count for _, count in self._accepted)

    # -- dequeue ------------------------------------------------------------------------------------------

    def room(self, wanted: int) -> int:
        """How many of so many items may be leased now."""
        if self.quota.in_flight_max is None:
            return wanted
        return min(wanted, max(self.quota.in_flight_max - self.use().leased, 0))

    async def wait_for_room(self, timeout_s: float, gone: asyncio.Future[None] | None) -> None:
        """Until something was given back, the shards were read again, or `timeout_s` passed."""
        self._room.clear()
        room: asyncio.Future[Any] = asyncio.ensure_future(self._room.wait())
        wanted: list[asyncio.Future[Any]] = [room] if gone is None else [room, gone]
        try:
            await asyncio.wait(wanted, timeout=min(timeout_s, ROOM_S_MAX), return_when=asyncio.FIRST_COMPLETED)
        finally:
            room.cancel()


class Quotas:
    """All namespaces with quotas."""

    def __init__(self, stores: Mapping[ShardNo, Store], buckets: Buckets, clock: Clock) -> None:
        self._stores = stores
        self._buckets = buckets
        self._clock = clock
        self._tenants: dict[str, Tenant] = {}
        self._settings: dict[ShardNo, list[Limited]] = {}
        self._silent: set[ShardNo] = set()
        self._uses: dict[tuple[int, str], Use] = {}
        # One after another: what was asked first must not come last, and stand.
        self._reading = asyncio.Lock()

    def of(self, namespace: str) -> Tenant | None:
        """The namespace, if it has quotas."""
        return self._tenants.get(namespace)

    @property
    def knows_any(self) -> bool:
        """Whether any were there at the last look."""
        return any(self._settings.values())

    async def step(self) -> int:
        """Read quotas, and the use of those who have any; a shard that is away counts as it was last seen."""
        async with self._reading:
            await self._read()
        return 0

    async def _read(self) -> None:
        stores = {store.number: store for store in living(self._stores)}
        self._settings = {number: rows for number, rows in self._settings.items() if number in stores}
        self._silent &= stores.keys()
        await asyncio.gather(*map(self._read_settings, stores.values()))
        await self._forget_lifted([store for number, store in stores.items() if number not in self._silent])
        self._tenants = self._merged()
        if self._tenants:
            marks = {name: tenant.marked() for name, tenant in self._tenants.items()}
            await asyncio.gather(*map(self._read_use, stores.values()))
            for name, tenant in self._tenants.items():
                total = Use()
                for number in stores:
                    total = total.plus(self._uses.get((number, name), Use()))
                tenant.read(total, marks[name])

    async def enqueue(
        self,
        tenant: Tenant,
        items: Sequence[NewItem | PlainItem],
        take: Callable[[Any], Awaitable[Even | list[Result]]],
    ) -> tuple[list[Result], float | None]:
        """Enqueue as many items, from the first, as the quotas allow; when the refused may come again."""
        count, retry_after_s = len(items), None
        storable = tenant.storable(items)
        if storable < count:
            RATE_LIMITED.labels("stored").inc(count - storable)
            count, retry_after_s = storable, FULL_RETRY_S
        sizes = [len(bytes(item.payload)) for item in items[:count]]
        statuses: list[str] = []
        # Room is taken before anything is waited for: calls at once must not all find the same room.
        tenant.gain(Use(0, count, sum(sizes)))
        try:
            if count and tenant.quota.enqueues_per_minute is not None:
                rate = Rate.per_minute(tenant.quota.enqueues_per_minute)
                taken = await self._buckets.take(tenant.namespace, rate, count)
                if taken.tokens < count:
                    RATE_LIMITED.labels("enqueues_per_minute").inc(count - taken.tokens)
                    count, retry_after_s = taken.tokens, taken.retry_after_s
            results = await _each(take(items[:count])) if count else []
            statuses = [result.status for result in results]
        finally:
            stored = [size for size, status in zip(sizes, statuses, strict=False) if status == "enqueued"]
            unused = Use(0, len(sizes) - len(stored), sum(sizes) - sum(stored))
            tenant.gained(Use(0, len(sizes), sum(sizes)), unused)
            tenant.accepted(len(stored))
        rest = [refused(item.id, "over_quota") for item in items[count:]]
        return results + rest, retry_after_s

    async def _read_settings(self, store: Store) -> None:
        self._silent.add(store.number)
        with suppress(ShardUnavailable):
            self._settings[store.number] = await topics.limited(store.pool)
            self._silent.discard(store.number)

    async def _forget_lifted(self, answering: Sequence[Store]) -> None:
        """What a silent shard had said of a namespace is void where another was told later that it has none."""
        names = sorted({row.name for number in self._silent for row in self._settings.get(number, ())})
        if not names:
            return
        lifted: dict[str, datetime] = {}
        for store in answering:
            with suppress(ShardUnavailable):
                for row in await topics.namespaces(store.pool, names):
                    if row.settings == "{}" and row.set_at is not None:
                        lifted[row.name] = max(row.set_at, lifted.get(row.name, row.set_at))
        for number in self._silent & self._settings.keys():
            self._settings[number] = [
                row for row in self._settings[number] if row.name not in lifted or row.set_at > lifted[row.name]
            ]

    def _merged(self) -> dict[str, Tenant]:
        newest: dict[str, Limited] = {}
        for rows in self._settings.values():
            for row in rows:
                if row.name not in newest or row.set_at > newest[row.name].set_at:
                    newest[row.name] = row
        tenants = {}
        for name, row in newest.items():
            tenant = self._tenants.get(name) or Tenant(name, self._clock)
            tenant.quota = quota_of(row.settings)
            tenants[name] = tenant
        return tenants

    async def _read_use(self, store: Store) -> None:
        try:
            numbers = await store.names.namespace_ids(self._tenants)
            found = await uses(store, list(numbers.values())) if numbers else {}
        except ShardUnavailable:
            return
        for name in self._tenants:
            self._uses[store.number, name] = found.get(numbers.get(name, 0), Use())


async def _each(take: Awaitable[Even | list[Result]]) -> list[Result]:
    results = await take
    return results.each() if isinstance(results, Even) else results


async def uses(store: Store, namespace_ids: Sequence[NamespaceId]) -> dict[int, Use]:
    """What namespaces hold on one shard, by number; those that hold nothing may be missing."""
    found = await topics.usage(store.pool, namespace_ids)
    return {use.namespace_id: Use(use.leased, use.items, use.bytes) for use in found}
