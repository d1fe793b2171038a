"""The verbs of schedules: put, read, delete, pause, backfill."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from datetime import datetime

from services.dag import store
from services.dag.errors import LimitExceeded
from services.dag.run.context import Context
from services.dag.schedules import policy, spec
from services.dag.schedules.ticking import Ticker
from services.dag.store.schedules import Schedule, ScheduleSettings, Tick
from shared.errors import NotFound, invalid
from shared.http import cursors
from shared.postgres.connections import Transaction
from shared.shards.asking import Listed, ask_all
from shared.shards.map_file import SLOTS
from shared.shards.shard_map import Shard


class Schedules:
    """Keeps schedules. Each lives on the shard that its id has its home on."""

    def __init__(self, context: Context, ticker: Ticker) -> None:
        self._context = context
        self._settings = context.settings
        self._ticker = ticker

    async def put(
        self, namespace: str, schedule_id: str, said: ScheduleSettings, *, paused: bool | None
    ) -> tuple[Schedule, bool]:
        """Make a schedule, or replace it; whether it is new. One whose times stay the same goes on with them.

        Raises:
            LimitExceeded: the namespace has as many schedules as it may have.
        """
        shard = self._home(namespace, schedule_id)
        if await store.schedules.get(shard, namespace, schedule_id) is None:
            await self._check_count(namespace)

        async def work(tx: Transaction) -> tuple[Schedule, bool]:
            schedule = None
            while schedule is None:  # one that was there may have been deleted before it is locked
                made = await store.schedules.insert(tx, namespace, schedule_id, said, paused=bool(paused))
                schedule = await store.schedules.lock(tx, namespace, schedule_id)
            # Another jitter changes when a slot is decided, and not which slots there are.
            begins = made is not None or schedule.spec != said.spec
            for name, value in said._asdict().items():
                setattr(schedule, name, value)
            if paused is not None:
                schedule.paused = paused
                schedule.reason = schedule.reason if paused else None
            if begins:
                schedule.next_at = spec.load(said.spec).after(await store.schedules.now(tx))
            await store.schedules.replace(tx, schedule, self._look_at(schedule))
            return schedule, made is not None

        found = await shard.pool.transaction(work)
        self._context.wakers[shard.number].slots.kick()
        return found

    async def get(self, namespace: str, schedule_id: str) -> Schedule:
        """A schedule.

        Raises:
            NotFound
        """
        found = await store.schedules.get(self._home(namespace, schedule_id), namespace, schedule_id)
        if found is None:
            raise _unknown()
        return found

    async def page(self, namespace: str, *, limit: int, cursor: str | None) -> Listed[Schedule, str]:
        """A page of schedules by id; shorter than `limit` where they are large."""
        query = f"schedules|{namespace}"
        after = "" if cursor is None else cursors.decode(query, cursor)
        bytes_max = self._settings.page_bytes_max

        async def part(shard: Shard) -> list[Schedule]:
            return await store.schedules.page(shard, namespace, after, rows_max=limit + 1, bytes_max=bytes_max)

        pages, away = await ask_all(list(self._context.shards), part)
        # Behind the end of a page that was cut, others' schedules are not told yet.
        cut = [page[-1].id for page in pages if len(page) > limit or _bytes(page) >= bytes_max]
        told = sorted((each for page in pages for each in page), key=lambda schedule: schedule.id)
        found: list[Schedule] = []
        left = bytes_max
        for schedule in told:
            if len(found) == limit or left <= 0 or (cut and schedule.id > min(cut)):
                break
            found.append(schedule)
            left -= _bytes([schedule])
        more = len(found) < len(told) or bool(cut)
        return Listed(found, cursors.encode(query, found[-1].id) if more and found else None, away)

    async def delete(self, namespace: str, schedule_id: str) -> bool:
        """Delete a schedule and its ticks; whether there was one. Runs go on."""
        shard = self._home(namespace, schedule_id)

        async def work(tx: Transaction) -> bool:
            schedule = await store.schedules.lock(tx, namespace, schedule_id)
            if schedule is not None:
                await store.schedules.delete(tx, schedule.no)
            return schedule is not None

        return await shard.pool.transaction(work)

    async def pause(
        self, namespace: str, schedule_id: str, *, paused: bool, reason: str | None = None
    ) -> Schedule:
        """Let slots pass, or go on.

        Raises:
            NotFound
        """

        def change(schedule: Schedule) -> None:
            schedule.paused, schedule.reason = paused, reason

        return await self._change(namespace, schedule_id, change)

    async def trigger(self, namespace: str, schedule_id: str, at: datetime | None, request: str | None) -> Tick:
        """A run now, or what the overlap policy makes of it.

        Raises:
            NotFound
        """
        return await self._ticker.trigger(self._home(namespace, schedule_id), namespace, schedule_id, at, request)

    async def backfill(
        self,
        namespace: str,
        schedule_id: str,
        start: datetime,
        end: datetime,
        overlap: str | None,
        request: str | None,
    ) -> int:
        """Have the slots after `start` up to `end` run once more; how many these are.

        Raises:
            NotFound
            LimitExceeded: they are too many, with those that wait from calls before.
            Invalid: `end` is not past.
        """
        shard = self._home(namespace, schedule_id)
        slots_max = self._settings.backfill_slots_max

        async def work(tx: Transaction) -> int:
            schedule = await store.schedules.lock(tx, namespace, schedule_id)
            if schedule is None:
                raise _unknown()
            if request is not None:
                known = await store.schedules.slots_of_request(tx, schedule.no, request)
                if known:
                    return known
            if end > await store.schedules.now(tx):
                raise invalid("/end", "must be past: later slots come by themselves")
            times = spec.load(schedule.spec)
            waiting = await store.schedules.count_waiting(tx, schedule.no, slots_max)
            slots: list[datetime] = []
            slot = times.after(start)
            while slot is not None and slot <= end:
                if waiting + len(slots) == slots_max:
                    raise LimitExceeded(
                        f"these and {waiting} that still wait are over {slots_max} slots; fill them in parts"
                    )
                slots.append(slot)
                slot = times.after(slot)
            kind, policy_said = "backfill", overlap or schedule.overlap
            if slots:
                await store.schedules.insert_waiting(tx, schedule.no, kind, slots, policy_said, request=request)
            return len(slots)

        count = await shard.pool.transaction(work)
        self._context.wakers[shard.number].slots.kick()
        return count

    async def ticks(
        self, namespace: str, schedule_id: str, *, limit: int, cursor: str | None
    ) -> tuple[list[Tick], str | None]:
        """A page of what became of slots, newest first.

        Raises:
            NotFound
        """
        schedule = await self.get(namespace, schedule_id)
        query = f"ticks|{schedule.no}"
        before_no = schedule.ticks + 1
        if cursor is not None:
            position = cursors.decode(query, cursor)
            if not position.isdecimal() or len(position) > 18:
                raise invalid("/cursor", "this is not a cursor of this list")
            before_no = int(position)
        shard = self._home(namespace, schedule_id)
        found = await store.schedules.ticks(shard, schedule.no, before_no, limit + 1)
        more = len(found) > limit
        found = found[:limit]
        return found, cursors.encode(query, str(found[-1].no)) if more else None

    async def _change(self, namespace: str, schedule_id: str, change: Callable[[Schedule], None]) -> Schedule:
        shard = self._home(namespace, schedule_id)

        async def work(tx: Transaction) -> Schedule:
            schedule = await store.schedules.lock(tx, namespace, schedule_id)
            if schedule is None:
                raise _unknown()
            change(schedule)
            await store.schedules.replace(tx, schedule, self._look_at(schedule))
            return schedule

        found = await shard.pool.transaction(work)
        self._context.wakers[shard.number].slots.kick()
        return found

    async def _check_count(self, namespace: str) -> None:
        limit = self._settings.namespace_schedules_max
        counts = await asyncio.gather(
            *(store.schedules.count(shard, namespace, limit) for shard in self._context.shards)
        )
        if sum(counts) >= limit:
            raise LimitExceeded(f"the namespace would have over {limit} schedules")

    @staticmethod
    def _look_at(schedule: Schedule) -> datetime | None:
        if schedule.next_at is None:
            return None
        return policy.due_at(schedule.no, schedule.next_at, schedule.jitter_s)

    def _home(self, namespace: str, schedule_id: str) -> Shard:
        slot = zlib.crc32(f"{namespace}/{schedule_id}".encode()) % SLOTS
        return self._context.shards.of_slot(slot)


def _bytes(page: list[Schedule]) -> int:
    return sum(len(schedule.action.encode()) + len(schedule.spec.encode()) for schedule in page)


def _unknown() -> NotFound:
    return NotFound("there is no such schedule in this namespace")
