"""Which shards this process looks after.

Ownership only reduces latency: rows decide, so two owners at once are harmless.

Each shard's schema has a row with an owner, an epoch and the end of a lease. A process takes it by
compare-and-set when it is free or lapsed, renews it about three times a lease, and believes in it no longer than
its own monotonic clock allows. What the owner does is what somebody should do at once: take back leases, promote
what is due, poll for completions, send what is overdue. Everybody else does the same `SELDOM_S` apart, so that
nothing depends on an owner that holds a shard and does not serve it.

Who should own what is a pure function (`balance`) of the owners that the rows name and the members that Redis
names. A process that should have a shard asks for it in the shard's row; the owner gives it up once its own
balance agrees. Without Redis owners keep what they have and take what has lapsed.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from shared.clock import Clock
from shared.errors import ShardUnavailable, ShuttingDown
from shared.ids import ShardNo
from shared.log import log
from shared.loop import Loop, Waker
from shared.metrics import OWNED
from shared.postgres.sql import load
from shared.settings import EdgeSettings
from shared.shards.balance import assign
from shared.shards.membership import Membership
from shared.shards.shard_map import Shard, ShardMap

SQL = load(Path(__file__).parent)

SELDOM_S = 10.0
# What this program understands of what a shard may hold; 1: timers, 2: runs of workflows, 3: that these are reset.
# A shard whose owner understands less refuses them, so that none comes into being while an older process looks
# after the shard.
LEVEL = 3
# Of a lease: what an owner does not use of it, and for how long a member is one without a sign of life.
_MARGIN = 0.1
_MEMBER_SHARE = 0.9
_LAPSED_AFTER_S = 0.02


class Owner(NamedTuple):
    """What a shard's row says: whose it is (None: nobody's), since which epoch, for how long, who waits for it."""

    name: str | None
    epoch: int
    left_s: float = 0.0
    wanted_by: str | None = None


@dataclass(slots=True)
class _Hold:
    epoch: int
    deadline_s: float


class Ownership:
    """This process as an owner. `step` is the background loop; `duty` makes loops that follow it."""

    def __init__(self, service: str, shards: ShardMap, settings: EdgeSettings, clock: Clock) -> None:
        self.name = settings.owner_name or f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(2)}"
        self._shards = shards
        self._ttl_s = settings.owner_ttl_s
        self._everyone = settings.ownership == "everyone"
        self._clock = clock
        self._membership = Membership(settings.redis_url, settings.redis_prefix, service, self.name)
        self._loop = Loop("ownership", self.step, interval_s=lambda: self._pause_s)
        self._pause_s = self._ttl_s / 3
        self._held: dict[ShardNo, _Hold] = {}
        self._seen: dict[ShardNo, Owner] = {}
        self._free_since_s: dict[ShardNo, float] = {}
        self._duties: dict[ShardNo, list[Loop]] = {}
        self._is_member = False
        self._has_left = False

    # -- what others ask ----------------------------------------------------------------------------------

    def owns(self, number: ShardNo) -> bool:
        """Whether this process may take itself for the shard's owner now."""
        if self._everyone:
            return not self._has_left
        hold = self._held.get(number)
        return hold is not None and self._clock.monotonic_s() < hold.deadline_s

    def seen(self, number: ShardNo) -> Owner:
        """Who owns a shard, by the last look at it."""
        seen = self._seen.get(number, Owner(None, 0))
        return seen._replace(name=self.name) if seen.name is None and self.owns(number) else seen

    async def ready(self) -> dict[str, Any]:
        """What `/readyz` shows: which process answers, and which shards it reaches.

        Raises:
            Unavailable: it reaches none, or is on its way out.
        """
        if self._has_left:
            raise ShuttingDown("this process shuts down; others serve", retry_after_s=1.0)
        return {"process": self.name, **await self._shards.ready()}

    async def look(self, shard: Shard) -> Owner:
        """Who owns a shard, by its row.

        Raises:
            ShardUnavailable: it does not answer.
        """
        row = await shard.pool.row(SQL.look_at_owner)
        is_free = row["owner"] is None or self._is_over(row["left_s"])
        name = None if is_free else row["owner"]
        self._seen[shard.number] = Owner(name, row["epoch"], row["left_s"], row["wanted_by"])
        return self.seen(shard.number)

    def duty(
        self,
        name: str,
        number: ShardNo,
        step: Callable[[], Awaitable[int]],
        *,
        interval_s: float | Callable[[], float],
        waker: Waker | None = None,
    ) -> Loop:
        """A loop over one shard: at `interval_s` while this process owns it, else now and then."""

        def pause_s() -> float:
            wanted_s = interval_s() if callable(interval_s) else interval_s
            return wanted_s if self.owns(number) else max(wanted_s, SELDOM_S)

        loop = Loop(name, step, interval_s=pause_s, shard=number, waker=waker)
        self._duties.setdefault(number, []).append(loop)
        return loop

    def drop(self, number: ShardNo) -> None:
        """A shard left the map: its duties end, and it is nobody's."""
        for loop in self._duties.pop(number, ()):
            loop.end()
        if number in self._held:
            self._lose(number)
        self._forget_left()

    # -- life ---------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Take what is free, then go on in the background."""
        await self.step()
        self._membership.start(self._loop.kick)
        self._loop.start()

    async def leave(self) -> None:
        """Give everything up for others to take at once; this process takes nothing any more."""
        if self._has_left:
            return
        self._has_left = True
        await self._loop.stop()
        held, self._held = self._held, {}
        await self._membership.leave()
        await asyncio.gather(*(self._give_up(shard, held[shard.number]) for shard in self._held_of(held)))
        await self._membership.tell()

    async def stop(self) -> None:
        """Leave, and close the connections."""
        await self.leave()
        await self._membership.close()

    async def step(self) -> int:
        """Renew, look, and change what the balance wants changed."""
        if self._has_left:
            return 0
        members, *_ = await asyncio.gather(
            self._membership.beat(self._ttl_s * _MEMBER_SHARE),
            *(self._see(shard) for shard in self._shards.living),
        )
        self._forget_left()
        plan = self._plan(members)
        changed = await asyncio.gather(
            *(self._act(shard, plan.get(shard.number)) for shard in self._shards.living)
        )
        if any(changed) or (members is not None and not self._is_member):
            await self._membership.tell()
        self._is_member = members is not None
        lapsing_s = [
            seen.left_s + _LAPSED_AFTER_S
            for number, seen in self._seen.items()
            if number not in self._held and seen.name is not None
        ]
        self._pause_s = min(self._ttl_s / 3, *lapsing_s) if lapsing_s else self._ttl_s / 3
        return 0

    def _forget_left(self) -> None:
        """A shard that left the map while it was looked at is nobody's either."""
        for number in self._seen.keys() - {shard.number for shard in self._shards.living}:
            del self._seen[number]
            self._free_since_s.pop(number, None)

    # -- one step -----------------------------------------------------------------------------------------

    async def _see(self, shard: Shard) -> None:
        """Renew what is held; read what is not. A shard that does not answer is seen as it was."""
        number = shard.number
        hold = self._held.get(number)
        try:
            async with asyncio.timeout(self._ttl_s / 2):
                if hold is not None and await self._keep(shard, hold):
                    return
                await self.look(shard)
        except (ShardUnavailable, TimeoutError) as error:
            log.warning("a shard's owner is unknown", shard=number, error=str(error))
            return
        if number in self._held:
            self._lose(number)
        if self._seen[number].name is None or self._seen[number].name == self.name:
            self._free_since_s.setdefault(number, self._clock.monotonic_s())
        else:
            self._free_since_s.pop(number, None)

    async def _keep(self, shard: Shard, hold: _Hold) -> bool:
        begun_s = self._clock.monotonic_s()
        row = await shard.pool.row(SQL.keep_shard, owner=self.name, epoch=hold.epoch, ttl_s=self._ttl_s)
        if row is None:
            return False
        was_late = begun_s >= hold.deadline_s
        hold.deadline_s = begun_s + self._ttl_s * (1 - _MARGIN)
        self._seen[shard.number] = Owner(self.name, hold.epoch, self._ttl_s, row["wanted_by"])
        if was_late:
            self._kick(shard.number)
        return True

    def _plan(self, members: set[str] | None) -> dict[ShardNo, str]:
        """Who should have which shard, as far as this process knows."""
        now_s = self._clock.monotonic_s()
        owners = {number: seen.name for number, seen in self._seen.items()}
        overdue = {n for n, since_s in self._free_since_s.items() if now_s - since_s > self._ttl_s}
        if members is None:
            return {number: owner or self.name for number, owner in owners.items()}
        # Whoever should have taken a free shard by now does not: better anyone than nobody.
        return assign(owners, members) | dict.fromkeys(overdue, self.name)

    async def _act(self, shard: Shard, planned: str | None) -> bool:
        """Take, give up or ask for one shard; whether others should look."""
        number = shard.number
        seen = self._seen.get(number)
        if seen is None or planned is None:
            return False
        hold = self._held.get(number)
        try:
            async with asyncio.timeout(self._ttl_s / 2):
                if hold is not None:
                    if planned == self.name or planned != seen.wanted_by:
                        return False
                    self._lose(number)
                    return await self._give_up(shard, hold)
                if planned != self.name:
                    return False
                if seen.name is None or seen.name == self.name:
                    await self._take(shard)
                elif seen.wanted_by != self.name:
                    row = await shard.pool.row(SQL.ask_for_shard, owner=self.name, epoch=seen.epoch)
                    return row is not None
        except (ShardUnavailable, TimeoutError) as error:
            log.warning("a shard's owner stays as it is", shard=number, error=str(error))
        return False

    async def _take(self, shard: Shard) -> None:
        begun_s = self._clock.monotonic_s()
        row = await shard.pool.row(SQL.take_shard, owner=self.name, ttl_s=self._ttl_s, level=LEVEL)
        if row is None:
            return
        number, epoch = shard.number, row["epoch"]
        self._held[number] = _Hold(epoch, begun_s + self._ttl_s * (1 - _MARGIN))
        self._seen[number] = Owner(self.name, epoch, self._ttl_s)
        self._free_since_s.pop(number, None)
        OWNED.labels(number).set(1)
        log.info("owns a shard", shard=number, epoch=epoch)
        self._kick(number)

    async def _give_up(self, shard: Shard, hold: _Hold) -> bool:
        try:
            async with asyncio.timeout(self._ttl_s / 2):
                row = await shard.pool.row(SQL.give_up_shard, owner=self.name, epoch=hold.epoch)
        except (ShardUnavailable, TimeoutError):
            return False
        self._seen[shard.number] = Owner(None, hold.epoch)
        return row is not None

    def _lose(self, number: ShardNo) -> None:
        hold = self._held.pop(number)
        OWNED.labels(number).set(0)
        log.info("owns a shard no more", shard=number, epoch=hold.epoch)

    def _kick(self, number: ShardNo) -> None:
        for loop in self._duties.get(number, ()):
            loop.kick()

    def _held_of(self, held: dict[ShardNo, _Hold]) -> list[Shard]:
        return [shard for shard in self._shards if shard.number in held]

    def _is_over(self, left_s: float) -> bool:
        return left_s <= 0 or left_s > 2 * self._ttl_s
