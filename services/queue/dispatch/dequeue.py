"""Dequeue: a call takes what is ready, best first, and waits where nothing is.

It asks the lines of its topics (`dispatcher`) for keys, has them claimed (`claiming`), and where nothing was got,
takes a place in each line until a key, or an item that a flush has leased to it, comes.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from prometheus_client import Counter

from services.queue.dispatch.claiming import Holder
from services.queue.dispatch.direct_handoff import Line, Place, Terms
from services.queue.dispatch.dispatcher import Dispatch
from services.queue.dispatch.gated_claims import GatedClaims
from services.queue.gates.topic_gates import Gates
from services.queue.model import Demand, Key
from services.queue.quotas import Tenant, Use
from services.queue.settings import QueueSettings
from services.queue.store.dequeue_encoding import Group, Leased, unused
from services.queue.store.shard_store import Store
from shared.clock import Clock
from shared.histogram import Series
from shared.ids import ShardNo, new_token
from shared.metrics import DEQUEUED, REDELIVERED, SCHEDULE_TO_START_SECONDS

# Where what a call would take is gone each time it comes for it, it tries for so long after its deadline.
MISSES_S_MAX = 1.0
# So often the time begins anew where a shard was too slow, and others may have something for the call. Each such
# shard rests then; where many are sick, a call is answered with nothing after a few.
LATE_MAX = 2


class Dequeues:
    """Calls of the verb."""

    def __init__(
        self,
        stores: Mapping[ShardNo, Store],
        dispatch: Dispatch,
        gates: Gates,
        settings: QueueSettings,
        clock: Clock,
    ) -> None:
        self._stores = stores
        self._dispatch = dispatch
        self._settings = settings
        self._clock = clock
        self._dequeued: dict[ShardNo, Counter] = {}
        self._started: dict[ShardNo, Series] = {}
        self._gates = gates
        self._gated = GatedClaims(dispatch, gates, clock, take=self._take, topic=self._topic)

    def join(self, store: Store) -> None:
        """Count what is taken from one more shard."""
        self._dequeued[store.number] = DEQUEUED.labels(store.number)
        self._started[store.number] = SCHEDULE_TO_START_SECONDS.labels(store.number)

    async def dequeue(
        self,
        namespace: str,
        demands: Sequence[Demand],
        *,
        lease_s: float | None = None,
        worker: str | None = None,
        wait_s: float = 0.0,
        gone: asyncio.Future[None] | None = None,
        tenant: Tenant | None = None,
        waits: Callable[[], None] = lambda: None,
        settles: Callable[[], Awaitable[float]] | None = None,
    ) -> Leased:
        """Lease all that is ready up to each demand's count, best first; wait only when there is nothing.

        The answer goes topic by topic, each in its order of service. Nothing is claimed for a call after its
        `gone` is done. `waits` is told before each wait. `settles` is awaited first, and says how long to wait:
        what it makes ready may be leased to this call at once.

        Raises:
            Overloaded: claims wait too long on every shard.
        """
        holder = lease_s, worker
        leased = Leased(len(demands))
        if settles is not None and self._is_limited(namespace, demands):
            wait_s = await settles()
        elif settles is not None:
            wait_s = await self._settle(namespace, demands, holder, gone, tenant, leased, settles)
        if not leased and demands:
            self._dispatch.claims.check(namespace)
            await self._lease(namespace, demands, holder, wait_s, gone, tenant, waits, leased)
        if leased.first is not None:
            late_s = self._clock.wall_s() - leased.first.deliver_at.timestamp()
            self._started[leased.groups[0].shard].observe(max(late_s, 0.0))
        for group in leased.groups:
            self._dequeued[group.shard].inc(group.items)
            self._stores[group.shard].flow.gave(group.topic_id, group.items)
            if group.again:
                REDELIVERED.labels(group.shard).inc(group.again)
        return leased

    def _is_limited(self, namespace: str, demands: Sequence[Demand]) -> bool:
        return self._gates.limited(namespace, [demand.topic for demand in demands])

    async def _settle(
        self,
        namespace: str,
        demands: Sequence[Demand],
        holder: Holder,
        gone: asyncio.Future[None] | None,
        tenant: Tenant | None,
        leased: Leased,
        settles: Callable[[], Awaitable[float]],
    ) -> float:
        """Settle, while the call stands in line for what that makes ready; how long it is to wait."""
        terms = _terms(holder, [demand.count for demand in demands], gone, tenant)
        if terms is None:
            return await settles()
        line = self._dispatch.line(namespace, demands[0].topic)
        place = line.wait(terms)
        try:
            wait_s = await settles()
            await _await_offers([place])
        except BaseException:
            place.is_left = True
            if place.done() and not place.cancelled() and place.result():
                self._dispatch.give_back(namespace, unused(place.result()))
            elif place.done():
                line.wake_one()  # the wake-up that this call has swallowed is passed on
            raise
        finally:
            line.leave(place)
        if place.done() and not place.cancelled():
            leased.add_handed(place.result(), line.topic)
        return wait_s

    async def _lease(
        self,
        namespace: str,
        demands: Sequence[Demand],
        holder: Holder,
        wait_s: float,
        gone: asyncio.Future[None] | None,
        tenant: Tenant | None,
        waits: Callable[[], None],
        leased: Leased,
    ) -> None:
        lines = [self._dispatch.line(namespace, demand.topic) for demand in demands]
        counts = [demand.count for demand in demands]
        was_leaving = self._dispatch.is_leaving
        deadline_s = self._clock.monotonic_s() + (min(wait_s, self._settings.poll_s) if was_leaving else wait_s)
        for line in lines:
            line.calls += 1  # they keep what they have meanwhile
        try:
            while gone is None or not gone.done():
                is_limited = bool(self._gates.limits) and self._is_limited(namespace, demands)
                if tenant is not None and not any(counts := list(map(tenant.room, counts))):
                    left_s = deadline_s - self._clock.monotonic_s()
                    if leased or left_s <= 0:
                        break
                    waits()
                    await tenant.wait_for_room(left_s, gone)
                    counts = [demand.count for demand in demands]
                    continue
                sights = list(map(self._gated.sight, lines, counts)) if is_limited else counts
                if fillings := self._supply(lines, sights, deadline_s):
                    await (fillings[0] if len(fillings) == 1 else asyncio.gather(*fillings))
                if tenant is not None:
                    counts = list(map(tenant.room, counts))  # others may have taken room while this call looked
                serve = self._gated.serve if is_limited else self._serve
                missed, again_s = await serve(lines, counts, holder, leased, tenant)
                if leased and not missed:
                    break
                counts = [demand.count - leased.counts[i] for i, demand in enumerate(demands)]
                left_s = deadline_s - self._clock.monotonic_s()
                if missed and any(counts) and self._tries_again(leased, left_s, is_limited):
                    continue  # others may be ready in the place of what is gone
                is_over = bool(leased) or left_s <= 0 or self._dispatch.is_leaving != was_leaving
                terms = None if is_over or is_limited else _terms(holder, counts, gone, tenant)
                if is_over or await self._wait(lines, min(left_s, again_s), gone, terms, leased, waits):
                    break
        finally:
            is_gone = gone is not None and gone.done()
            for line in lines:
                line.calls -= 1
                if is_gone:
                    line.wake_one()  # the wake-up that this call may have swallowed is passed on

    def _supply(self, lines: Sequence[Line], sights: Sequence[int], deadline_s: float) -> list[Awaitable[None]]:
        """What is to be awaited until so many keys of each topic are in sight."""
        fillings: list[Awaitable[None]] = []
        for line, sight in zip(lines, sights, strict=True):
            if (filling := self._dispatch.looking.supply(line, sight, deadline_s)) is not None:
                fillings.append(filling)
        return fillings

    def _take(self, line: Line, count: int) -> list[Key]:
        """The keys to claim next: none of shards that rest. A look will meet those again."""
        for shard in self._dispatch.rests.now():
            line.buffer.skip(shard)
        return line.take(count)

    @staticmethod
    def _tries_again(leased: Leased, left_s: float, is_limited: bool) -> bool:
        """Whether a call goes on at once whose keys were gone. Gates may pass over a lot: with limits it does only
        until its deadline, and while it has nothing. What slow shards took is not its time."""
        if len(leased.late) > leased.lates_seen:
            leased.lates_seen, leased.left_s = len(leased.late), min(left_s, 0.0)
            if not leased and leased.lates_seen <= LATE_MAX:
                return True
        if is_limited:
            return left_s > 0 and not leased
        if leased or leased.lates_seen > LATE_MAX:
            return left_s > -MISSES_S_MAX and not leased.is_cut
        return left_s > leased.left_s - MISSES_S_MAX

    async def _serve(
        self,
        lines: Sequence[Line],
        counts: Sequence[int],
        holder: Holder,
        leased: Leased,
        tenant: Tenant | None,
    ) -> tuple[bool, float]:
        """Claim keys and add what was got to `leased`; true when some were gone. It may wait for ever for more."""
        room = sum(counts) if tenant is None else tenant.room(sum(counts))
        taken: list[list[Key]] = []
        wanted = 0
        for i, line in enumerate(lines):  # a topic that has nothing leaves its room to the next
            keys = self._take(line, min(line.share(counts[i]), room - wanted))
            wanted += len(keys)
            taken.append(keys)
            if (line.waiting or line.offered) and len(line.buffer):
                line.wake_one()
            if keys:
                self._dispatch.looking.look_ahead(line, len(keys))
        if not wanted:
            return False, math.inf
        if tenant is None:
            groups = await self._dispatch.claims.claim(lines, taken, holder, leased)
        else:
            groups = await self._claim_of(tenant, wanted, lines, taken, holder, leased)
        if len(groups) == 1 and len(lines) == 1:
            [group] = groups
            leased.add(0, taken[0], group, lines[0].topic)
            return group.items < wanted, math.inf
        leased.add_mixed(taken, [(group, self._topic(group)) for group in groups])
        return sum([group.items for group in groups]) < wanted, math.inf

    async def _claim_of(
        self,
        tenant: Tenant,
        wanted: int,
        lines: Sequence[Line],
        taken: Sequence[list[Key]],
        holder: Holder,
        leased: Leased,
    ) -> list[Group]:
        """As `claims.claim`, of a namespace with quotas: what is on its way is counted as had."""
        tenant.gain(Use(leased=wanted))
        got = 0
        try:
            groups = await self._dispatch.claims.claim(lines, taken, holder, leased)
            got = sum([group.items for group in groups])
        finally:
            tenant.gained(Use(leased=wanted), Use(leased=wanted - got))
        return groups

    def _topic(self, group: Group) -> str:
        return (self._stores[group.shard].names.pair(group.topic_id) or ("", ""))[1]

    async def _wait(
        self,
        lines: Sequence[Line],
        left_s: float,
        gone: asyncio.Future[None] | None,
        terms: Terms | None,
        leased: Leased,
        waits: Callable[[], None],
    ) -> bool:
        """Until there is something to look for; true when items were handed to this call: they are in `leased`."""
        waits()
        self._dispatch.asked.note(lines)
        for line in lines:
            self._dispatch.announcer.want(line.namespace, line.topic)
        places = [line.wait(terms) for line in lines]
        wanted: list[asyncio.Future[Any]] = [*places] if gone is None else [*places, gone]
        poll_s = self._settings.poll_s * random.uniform(1.0, 1.5)  # noqa: S311 - jitter
        try:
            await asyncio.wait(wanted, timeout=min(left_s, poll_s), return_when=asyncio.FIRST_COMPLETED)
            await _await_offers(places)
        except asyncio.CancelledError:
            for line, place in zip(lines, places, strict=True):
                place.is_left = True
                if place.done() and not place.cancelled() and place.result():
                    self._dispatch.give_back(line.namespace, unused(place.result()))
            raise
        finally:
            for line, place in zip(lines, places, strict=True):
                line.leave(place)
        for line, place in zip(lines, places, strict=True):
            if place.done() and not place.cancelled():
                leased.add_handed(place.result(), line.topic)
        return bool(leased)


async def _await_offers(places: Sequence[Place]) -> None:
    """A flush is about to say what it has leased to these calls; one that takes too long lets them go on."""
    offered = [place for place in places if place.is_offered and not place.done()]
    for place in offered:
        place.is_awaited = True
    if offered:
        await asyncio.wait(offered)


def _terms(
    holder: Holder, counts: Sequence[int], gone: asyncio.Future[None] | None, tenant: Tenant | None
) -> Terms | None:
    """Under which a flush may lease items to a call at once; None where a claim must."""
    lease_s, worker = holder
    return Terms(new_token(), lease_s, counts[0], gone, worker, tenant) if len(counts) == 1 else None
