"""Dequeues that name a topic with limits: each time keys are there to claim, its gate says how many.

As `dequeue` otherwise, with two differences. What was granted is claimed shard by shard, each claim to its end:
what a grant stands for is leased, or not, when the grant is taken back. And a call that finds no room waits for a
settle of its namespace here, or until there may be room.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence

from services.queue.dispatch.claim_flushes import by_shard
from services.queue.dispatch.claiming import Holder
from services.queue.dispatch.direct_handoff import Line, Terms
from services.queue.dispatch.dispatcher import Dispatch
from services.queue.dispatch.key_budget import KeysUse
from services.queue.dispatch.topic_gates import Gates, Grant
from services.queue.model import Demand, Key
from services.queue.quotas import Tenant, Use
from services.queue.settings import QueueSettings
from services.queue.store.dequeue_encoding import Group, Leased
from shared.clock import Clock
from shared.ids import new_token

Waits = Callable[
    [
        Sequence[Line],
        float,
        asyncio.Future[None] | None,
        Terms | None,
        Leased,
        Callable[[], None],
    ],
    Awaitable[bool],
]


class LimitedDequeues:
    """Such calls; `wait`, `take` and `topic` are those of all calls."""

    def __init__(
        self,
        dispatch: Dispatch,
        gates: Gates,
        settings: QueueSettings,
        clock: Clock,
        *,
        wait: Waits,
        take: Callable[[Line, int], list[Key]],
        topic: Callable[[Group], str],
    ) -> None:
        self._dispatch = dispatch
        self._gates = gates
        self._settings = settings
        self._clock = clock
        self._wait = wait
        self._take = take
        self._topic = topic

    async def lease(
        self,
        namespace: str,
        demands: Sequence[Demand],
        holder: Holder,
        wait_s: float,
        gone: asyncio.Future[None] | None,
        tenant: Tenant | None,
        waits: Callable[[], None],
    ) -> Leased:
        """Lease what is ready and has room, best first; wait only when there is nothing."""
        lines = [self._dispatch.line(namespace, demand.topic) for demand in demands]
        self._dispatch.asked.note(lines)
        leased = Leased(len(demands))
        was_leaving = self._dispatch.is_leaving
        deadline_s = self._clock.monotonic_s() + (min(wait_s, self._settings.poll_s) if was_leaving else wait_s)
        with KeysUse(lines):
            while gone is None or not gone.done():
                counts = [demand.count - leased.counts[i] for i, demand in enumerate(demands)]
                for i, line in enumerate(lines):
                    filling = self._dispatch.looking.supply(line, counts[i], deadline_s)
                    if filling is not None:
                        await filling
                if tenant is not None:
                    counts = tenant.cut(counts)
                missed, again_s = await self._serve(lines, counts, holder, leased, tenant)
                left_s = deadline_s - self._clock.monotonic_s()
                if leased or left_s <= 0 or self._dispatch.is_leaving != was_leaving:
                    break
                if not missed and await self._wait(lines, min(left_s, again_s), gone, None, leased, waits):
                    break
        if gone is not None and gone.done():
            for line in lines:
                line.wake_one()  # the wake-up that this call may have swallowed is passed on
        return leased

    async def _serve(
        self,
        lines: Sequence[Line],
        counts: Sequence[int],
        holder: Holder,
        leased: Leased,
        tenant: Tenant | None,
    ) -> tuple[bool, float]:
        """Claim what the gates let through; whether keys were gone, and how long to wait for room."""
        missed, again_s = False, math.inf
        for i, line in enumerate(lines):
            wanted = min(line.share(counts[i]), len(line.buffer))
            if not wanted:
                continue
            grant_token = new_token()
            granted = await self._gates.enter(line.namespace, line.topic, grant_token, wanted, 1 + line.others)
            if not granted.items:
                again_s = min(again_s, granted.again_s)
                continue
            got = 0
            try:
                keys = self._take(line, granted.items)
                taken = [keys if j == i else [] for j in range(len(lines))]
                got = await self._claim(lines, taken, holder, leased, tenant)
                missed = missed or got < len(keys)
            finally:
                await self._left(line, grant_token, granted, got)
        return missed, again_s

    async def _left(self, line: Line, grant_token: str, granted: Grant, got: int) -> None:
        """Also for a call that is cut short: nobody else knows of its grant."""
        leaving = self._gates.leave(line.namespace, line.topic, grant_token, granted.items - got)
        await asyncio.shield(asyncio.ensure_future(leaving))
        if len(line.buffer):
            line.wake_one()

    async def _claim(
        self,
        lines: Sequence[Line],
        taken: Sequence[list[Key]],
        holder: Holder,
        leased: Leased,
        tenant: Tenant | None,
    ) -> int:
        """Claim keys of one topic; how many items were got."""
        keys = [key for part in taken for key in part]
        if not keys:
            return 0
        if tenant is not None:
            tenant.gain(Use(leased=len(keys)))
        groups: list[Group] = []
        bytes_before = leased.bytes
        try:
            for part in by_shard(keys).values():
                here = [part if whole else [] for whole in taken]
                found = await self._dispatch.claims.claim(lines, here, holder, leased)
                groups += found
                leased.bytes += sum(len(group.pieces) for group in found)
        finally:
            leased.bytes = bytes_before
            got = sum(group.items for group in groups)
            if tenant is not None:
                tenant.gained(Use(leased=len(keys)), Use(leased=len(keys) - got))
            leased.add_mixed(taken, [(group, self._topic(group)) for group in groups])
        return got
