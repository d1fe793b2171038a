"""The shards of one process: the connections to each, as the map has them now.

A shard is one schema in some database. A map in a file may change while the process runs: shards join, drain, and
move to other servers. An older map cannot do harm, only fail: a shard that was moved has left a closed door where
it was, and slots that were moved are refused where they lived.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from shared.admission.breaker import Breaker
from shared.clock import Clock, SystemClock
from shared.errors import ShardUnavailable, Unavailable
from shared.ids import ShardNo
from shared.log import log
from shared.metrics import SHARD_BREAKER, SHARD_POOL_IN_USE, SHARD_POOL_WAITING, forget_shard
from shared.postgres.connections import Pool
from shared.postgres.history import History
from shared.postgres.schema import head
from shared.postgres.sql import Statement
from shared.settings import EdgeSettings, ShardAddress, fenced
from shared.shards.map_file import Plan, read

PING = Statement("ping", (), "SELECT 1")
READY_S = 2.0

_BREAKER_STATES = ("closed", "half_open", "open")

_REVISION = Statement("revision", (), "SELECT version_num FROM alembic_version")
_MIGRATED = Statement(
    "migrated",
    ("fenced",),
    "SELECT to_regclass('alembic_version') IS NOT NULL AS migrated, to_regnamespace($1) IS NOT NULL AS fenced",
)

# Without these a crash of the server's machine may lose or tear what was answered for.
_DURABILITY = Statement(
    "durability",
    (),
    "SELECT name FROM unnest(ARRAY['fsync', 'full_page_writes']) AS name WHERE current_setting(name) <> 'on'",
)
_RELEASE = Statement("release", (), "SELECT current_setting('server_version_num')::int AS release")
# The first of each major that look again at a row found by its place and changed while they waited for it.
RELEASES_MIN = {15: 15, 16: 11, 17: 7, 18: 1}


class StaleSchema(Exception):
    """A shard is not at the revision this code was written for: run `python -m migrations up`."""


class Shard:
    """One shard: its number and two pools, durable and relaxed."""

    def __init__(self, address: ShardAddress, settings: EdgeSettings) -> None:
        self.number = address.number
        self.address = address
        state = SHARD_BREAKER.labels(address.schema)
        state.set(0)
        self.breaker = Breaker()
        self.breaker.listeners.append(lambda to: state.set(_BREAKER_STATES.index(to)))
        self.history = History(address.number)
        self.pool = Pool(address, settings, breaker=self.breaker, history=self.history)
        self.relaxed = Pool(address, settings, relaxed=True, breaker=self.breaker, history=self.history)
        for name, line in (("durable", self.pool.line), ("relaxed", self.relaxed.line)):
            SHARD_POOL_IN_USE.labels(address.schema, name).set_function(partial(getattr, line, "taken"))
            SHARD_POOL_WAITING.labels(address.schema, name).set_function(partial(getattr, line, "waiting"))

    def relocate(self, address: ShardAddress) -> bool:
        """Take up what a newer map says of this shard; whether it is on another server now."""
        moved = (address.dsn, address.epoch) != (self.address.dsn, self.address.epoch)
        self.address = address
        if moved:
            self.pool.relocate(address)
            self.relaxed.relocate(address)
            self.breaker.succeeded()  # nothing is known against the other server
        return moved

    @property
    def is_retired(self) -> bool:
        """Whether it was taken out of the map."""
        return self.pool.is_retired

    def retire(self) -> None:
        """It was taken out of the map: it is away for good."""
        for pool in (self.pool, self.relaxed):
            pool.is_retired = True

    async def close(self) -> None:
        """Close both pools."""
        await asyncio.gather(self.pool.close(), self.relaxed.close())

    def __repr__(self) -> str:
        return f"Shard({self.address.schema})"


def _nothing(_shard: Shard) -> None:
    pass


class MapListener(NamedTuple):
    """Told of shards as the map changes: of one that is new before anything can be sent there, of one that left
    once nothing is."""

    joined: Callable[[Shard], None] = _nothing
    moved: Callable[[Shard], None] = _nothing
    left: Callable[[Shard], None] = _nothing


NOBODY = MapListener()


class ShardMap:
    """All shards of one service, by number. Where the map is a file, it may change (`reload`).

    `writable` are the numbers of those that take what may live anywhere; one that is new takes it `shard_join_s`
    after this process has heard of it, when others have too: until then they would not know what lives there.
    """

    def __init__(self, plan: Plan, settings: EdgeSettings, clock: Clock | None = None) -> None:
        assert plan.shards, "a service needs at least one shard"
        self._settings = settings
        self._plan = plan
        self._shards = {address.number: Shard(address, settings) for address in plan.shards}
        self._turn = 0
        self._seen: tuple[int, ...] | None = None
        self.writable: Sequence[ShardNo] = _writable(plan)
        self._clock = clock or SystemClock()
        self._joining: dict[ShardNo, float] = {}
        self._told_of: list[Shard] = []  # left at the last look: what was on its way then may still be counted

    def __iter__(self) -> Iterator[Shard]:
        return iter(list(self._shards.values()))

    def __len__(self) -> int:
        return len(self._shards)

    @property
    def living(self) -> list[Shard]:
        """Those that the map names; the others are known so that ids of theirs are."""
        return [shard for shard in self if not shard.is_retired]

    @property
    def version(self) -> int:
        """The version of the map that is followed now; grows."""
        return self._plan.version

    def get(self, number: ShardNo) -> Shard | None:
        """The shard of that number, or None: the number in an id is the caller's word until looked up."""
        return self._shards.get(number)

    def of_slot(self, slot: int) -> Shard:
        """The home of a hash slot (0 to 4,095)."""
        return self._shards[self._plan.homes[slot]]

    def next(self) -> Shard:
        """The next shard in turn, for what may live anywhere: one that takes items, while any does."""
        for _ in self.writable:
            self._turn = (self._turn + 1) % len(self.writable)
            shard = self._shards[self.writable[self._turn]]
            if shard.breaker.takes_items:
                break
        return shard

    def is_draining(self, number: ShardNo) -> bool:
        """Whether a shard takes nothing new without an id: it is to run empty, or has only just joined."""
        return self._shards[number].address.draining or number in self._joining

    def avoids(self, number: ShardNo) -> bool:
        """Whether what may live anywhere had better live elsewhere: on a shard that is well, and stays."""
        return number not in self.writable or not self._shards[number].breaker.takes_items

    # -- a map that changes ---------------------------------------------------------------------------------

    async def reload(self, listener: MapListener = NOBODY) -> int:
        """Look whether the map's file was replaced, and follow it; a file that is no good changes nothing."""
        self._open_joined()
        while self._told_of:
            gone = self._told_of.pop()
            forget_shard(gone.number, gone.address.schema)
        path = self._settings.shards_file
        stamp = None if path is None else _stamp(path)
        if path is None or stamp is None or stamp == self._seen:
            return 0
        try:
            plan = read(path, self._plan.service)
        except ValueError as error:
            log.error("the shard map is not followed", error=str(error))
        else:
            if not await self._is_migrated(plan):
                return 0  # and look again at the next step
            self.follow(plan, listener)
        self._seen = stamp
        return 0

    def follow(self, plan: Plan, listener: MapListener = NOBODY) -> None:
        """Take up a newer version of the map; an older one is passed over."""
        if plan.version <= self._plan.version:
            if plan.version < self._plan.version:
                log.error("an older shard map is not followed", version=plan.version, ours=self._plan.version)
            return
        named = {address.number for address in plan.shards}
        left = [shard for shard in self.living if shard.number not in named]
        for gone in left:
            gone.retire()
        joined: list[Shard] = []
        moved: list[Shard] = []
        for address in plan.shards:
            shard = self._shards.get(address.number)
            if shard is not None:
                if shard.relocate(address):
                    moved.append(shard)
            else:
                joined.append(self._shards.setdefault(address.number, Shard(address, self._settings)))
                self._joining[address.number] = self._clock.monotonic_s() + self._settings.shard_join_s
                listener.joined(joined[-1])
        self._plan = plan
        self._open_joined()
        for shard in moved:
            listener.moved(shard)
        for gone in left:
            listener.left(gone)
        self._told_of += left
        log.info(
            "the shard map changed",
            version=plan.version,
            joined=[shard.number for shard in joined],
            moved=[shard.number for shard in moved],
            left=[shard.number for shard in left],
        )

    def _open_joined(self) -> None:
        """Let shards take what may live anywhere that joined long enough ago."""
        now_s = self._clock.monotonic_s()
        self._joining = {number: at_s for number, at_s in self._joining.items() if at_s > now_s}
        wanted = _writable(self._plan)
        self.writable = [number for number in wanted if number not in self._joining] or wanted

    async def _is_migrated(self, plan: Plan) -> bool:
        """Whether this code may serve the shards that are new in a map; one that is away is given the benefit."""
        wanted = head(plan.service)
        for address in plan.shards:
            if address.number not in self._shards:
                shard = Shard(address, self._settings)
                try:
                    revision, *_ = await self._look(shard)
                except ShardUnavailable:
                    continue
                finally:
                    await shard.close()
                if revision != wanted:
                    log.error("a new shard is not at this code's revision", shard=address.schema, wanted=wanted)
                    return False
        return True

    # -- start and health -----------------------------------------------------------------------------------

    async def check_schema(self) -> None:
        """Compare every reachable shard's revision with the code's.

        Raises:
            StaleSchema: a shard is behind or ahead, or was never migrated.
            ShardUnavailable: no shard can be reached.
        """
        wanted = head(self._plan.service)
        found = await asyncio.gather(*(self._look(shard) for shard in self), return_exceptions=True)
        for shard, answer in zip(self, found, strict=True):
            if isinstance(answer, ShardUnavailable):
                continue
            if isinstance(answer, BaseException):
                raise answer
            revision, volatile, release = answer
            if revision != wanted:
                raise StaleSchema(
                    f"{shard.address.schema} is at revision {revision or 'none'}, this code needs {wanted}: "
                    "run `python -m migrations up`"
                )
            if volatile:
                log.error(
                    "this shard's server may lose answered calls when its machine crashes",
                    shard=shard.address.schema,
                    off=volatile,
                )
            if is_old(release):
                log.error(
                    "this shard's server may write over what others wrote meanwhile: bring it to a newer release",
                    shard=shard.address.schema,
                    release=release,
                    fit=RELEASES_MIN,
                )
        if all(isinstance(answer, ShardUnavailable) for answer in found):
            raise ShardUnavailable("no shard can be reached")

    async def ready(self) -> dict[str, Any]:
        """What `/readyz` shows: a service is ready while it reaches any shard.

        Raises:
            Unavailable: no shard can be reached.
        """

        async def ask(shard: Shard) -> str:
            try:
                async with asyncio.timeout(READY_S):
                    await shard.pool.fetch(PING)
            except (ShardUnavailable, TimeoutError):
                return "down"
            return "up"

        named = self.living
        answers = await asyncio.gather(*map(ask, named))
        found = {shard.address.schema: answer for shard, answer in zip(named, answers, strict=True)}
        if "up" not in found.values():
            raise Unavailable("no shard can be reached", retry_after_s=1.0)
        return {"status": "ready", "shards": found}

    async def close(self) -> None:
        """Close all pools."""
        await asyncio.gather(*(shard.close() for shard in self))

    @staticmethod
    async def _look(shard: Shard) -> tuple[str | None, list[str], int]:
        """A shard's revision, what its server has switched off that durability needs, and the server's release."""
        known = await shard.pool.row(_MIGRATED, fenced=fenced(shard.address.schema))
        if known["fenced"] and not known["migrated"]:
            raise ShardUnavailable(f"{shard.address.schema} is being moved, or was moved away from this server")
        release = (await shard.pool.row(_RELEASE))["release"]
        if not known["migrated"]:
            return None, [], release
        row = await shard.pool.row(_REVISION)
        volatile = [found["name"] for found in await shard.pool.fetch(_DURABILITY)]
        return None if row is None else str(row["version_num"]), volatile, release


def is_old(release: int) -> bool:
    """Whether a server of this release, as `server_version_num` has it, is older than what is asked for."""
    major, minor = divmod(release, 10_000)
    return major < min(RELEASES_MIN) or minor < RELEASES_MIN.get(major, 0)


def require_schema(plan: Plan, settings: EdgeSettings) -> None:
    """Look at the shards before anything is served; on a stale or absent one say so in a line and exit."""

    async def check() -> None:
        shards = ShardMap(plan, settings)
        try:
            await shards.check_schema()
        finally:
            await shards.close()

    try:
        asyncio.run(check())
    except (StaleSchema, ShardUnavailable) as error:
        sys.exit(f"headgate {plan.service}: {error}")


def _writable(plan: Plan) -> list[ShardNo]:
    active = [address.number for address in plan.shards if not address.draining]
    return active or [address.number for address in plan.shards]


def _stamp(path: Path) -> tuple[int, ...] | None:
    try:
        found = path.stat()
    except OSError:
        return None  # being replaced by other means than ours; there will be a next look
    return found.st_ino, found.st_mtime_ns, found.st_size
