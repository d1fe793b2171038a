"""Keeps the leases of running jobs, in batches, and tells jobs whose lease is lost.

One call is about the leases of one shard that last equally long. What a shard that does not answer costs is its
own: calls for others are neither waited with nor given up because of it.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from typing import Final

from headgate._calls.elements import Extend
from headgate._client.aio.client import AsyncClient
from headgate._ids import place_of
from headgate._worker.job import Job
from headgate._worker.program_log import log
from headgate.errors import HeadgateError, Invalid
from headgate.wire import BATCH_MAX

IDLE_S: Final = 3_600.0
# What jobs tell of how far they have come goes so often, of all of them together.
TELL_S: Final = 0.5
# What was cancelled is of interest for so long, of so many; a job of it that could not be asked for is soon again.
NEWS_S: Final = 15.0
NEWS_MAX: Final = 10_000
DOUBT_S: Final = 1.0
_NAMED_MAX: Final = 5
_LOST: Final = ("lease_lost", "cancelled", "not_found")


class Leases:
    """The leases held. Each is extended when half of it is over; one that ends without an answer is lost."""

    def __init__(
        self,
        client: AsyncClient,
        namespace: str,
        clock: Callable[[], float],
        in_loop: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self._client = client
        self._in_loop = in_loop  # the handlers that are at work in the event loop
        self._namespace = namespace
        self._clock = clock
        # When to look at a job again; while it is asked for, that is when its lease ends.
        self._due_at: dict[Job, float] = {}
        self._asked: set[Job] = set()
        self._calls: set[asyncio.Task[None]] = set()
        self._wakes_at = 0.0
        self._tells_at = float("-inf")  # not before then
        self._doubted: set[Job] = set()
        self._news: dict[str, float] = {}  # when it was heard that these may have been cancelled
        self._changed = asyncio.Event()

    def hold(self, job: Job) -> None:
        job.tells = self.tell
        # It may have been cancelled while it was on its way here.
        is_doubted = self._news.get(job.id, float("-inf")) > self._clock() - NEWS_S
        self._set_due(job, self._clock() if is_doubted else job.lease_ends_at - job.lease_s / 2)

    def tell(self, job: Job) -> None:
        """A job has come further, which goes with an extension of its lease."""
        if job in self._due_at and job not in self._asked:
            self._set_due(job, min(self._due_at[job], max(self._clock(), self._tells_at)))

    def drop(self, job: Job) -> None:
        self._due_at.pop(job, None)
        self._doubted.discard(job)

    def check(self, ids: Collection[str]) -> None:
        """These items may have been cancelled: of jobs that are held here the service is asked at once."""
        now, doubted = self._clock(), set(ids)
        self._news = {item_id: at for item_id, at in self._news.items() if at > now - NEWS_S}
        if len(self._news) < NEWS_MAX:
            self._news |= dict.fromkeys(doubted, now)
        for job in [job for job in self._due_at if job.id in doubted] if doubted else ():
            if job in self._asked:
                self._doubted.add(job)  # what is asked may have been answered before
            else:
                self._set_due(job, self._clock())

    def held(self) -> list[Job]:
        return list(self._due_at)

    def due_in_s(self) -> float:
        """How long until there is something to do."""
        return max(0.0, min(self._due_at.values(), default=self._clock() + IDLE_S) - self._clock())

    async def run(self) -> None:
        try:
            while True:
                self._changed.clear()
                due_in_s = self.due_in_s()
                self._wakes_at = self._clock() + due_in_s
                try:
                    async with asyncio.timeout(due_in_s):
                        await self._changed.wait()
                except TimeoutError:
                    self.begin()
        finally:
            for call in self._calls:
                call.cancel()

    async def step(self) -> int:
        """As `begin`, and wait until what was asked for is answered."""
        count = self.begin()
        while self._calls:
            await asyncio.wait(self._calls)
        return count

    def begin(self) -> int:
        """Ask for what is due, and what is nearly due with it; how many. What has ended is lost."""
        now = self._clock()
        over = [job for job in self._due_at if job.lease_ends_at <= now]
        if over:
            self._blame(over, now - self._wakes_at)
        for job in over:
            self._lose(job, "lease_lost")
        groups: dict[tuple[int, float], list[Job]] = defaultdict(list)
        for job, due_at in self._due_at.items():
            if due_at - job.lease_s / 10 <= now and job not in self._asked:
                groups[place_of(job.id), job.lease_s].append(job)
        for jobs in groups.values():
            for start in range(0, len(jobs), BATCH_MAX):
                self._ask(jobs[start : start + BATCH_MAX], now)
        return sum(map(len, groups.values()))

    def _blame(self, over: Sequence[Job], late_s: float) -> None:
        """Say so where leases ran out because the event loop stood still: their jobs run again, for nothing."""
        if late_s < min(job.lease_s for job in over) / 4:
            return
        log.error(
            "the event loop stood still for %.1f s, so the leases of %d jobs ran out, and they run again: %s. "
            "A coroutine that does not await blocks it: theirs, or another at work (%s). Make it a plain function "
            "(def), which gets a thread, move what takes long into `await asyncio.to_thread(...)`, or give it a "
            "longer lease_s",
            late_s,
            len(over),
            ", ".join(repr(job) for job in over[:_NAMED_MAX]) + (", ..." if len(over) > _NAMED_MAX else ""),
            ", ".join(self._in_loop()[:_NAMED_MAX]) or "none now",
        )

    def _ask(self, jobs: Sequence[Job], now: float) -> None:
        if any(job.is_untold for job in jobs):
            self._tells_at = now + TELL_S
        for job in jobs:
            self._asked.add(job)
            self._due_at[job] = job.lease_ends_at
        call = asyncio.create_task(self._extend(jobs, now))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    async def _extend(self, jobs: Sequence[Job], now: float) -> None:
        patience_s = max(0.1, min(job.lease_ends_at - now for job in jobs) / 2)
        telling = [job for job in jobs if job.is_untold]
        elements = [_element(job) for job in jobs]
        try:
            async with asyncio.timeout(patience_s):
                # What is refused is asked for again in a call of its own time.
                results = await self._client.extend(elements, namespace=self._namespace, again=False)
            for job, result in zip(jobs, results, strict=True):
                self._answered(job, result.status, now)
            telling = []
        except Invalid as error:
            telling = []  # what it refuses is not to cost the leases
            log.warning("could not extend %d leases, trying again without their progress: %s", len(jobs), error)
        except (TimeoutError, HeadgateError) as error:
            log.warning("could not extend %d leases, trying again: %s", len(jobs), error or "no answer in time")
        except Exception:
            log.exception("could not extend %d leases, trying again", len(jobs))
        finally:
            for job in telling:
                job.is_untold = True
            for job in self._asked.intersection(jobs):
                self._postpone(job)
            self._asked.difference_update(jobs)

    def _answered(self, job: Job, status: str, now: float) -> None:
        if status in _LOST:
            self._lose(job, status)
        elif status == "extended":
            job.lease_ends_at = now + job.lease_s
            self._put_off(job, job.lease_ends_at - job.lease_s / 2)
        else:
            return
        self._asked.discard(job)
        if job in self._doubted:
            self._doubted.discard(job)
            self._put_off(job, now)
        elif job.is_untold:
            self.tell(job)

    def _postpone(self, job: Job) -> None:
        now = self._clock()
        pause_s = min(job.lease_s / 5, DOUBT_S) if job in self._doubted else job.lease_s / 5
        self._put_off(job, min(now + pause_s, max(job.lease_ends_at, now)))

    def _put_off(self, job: Job, due_at: float) -> None:
        if job in self._due_at:
            self._set_due(job, due_at)

    def _set_due(self, job: Job, due_at: float) -> None:
        self._due_at[job] = due_at
        if due_at < self._wakes_at:
            self._changed.set()

    def _lose(self, job: Job, why: str) -> None:
        if job not in self._due_at:
            return  # it has ended meanwhile
        log.warning("%r is no longer ours: %s", job, why)
        self.drop(job)
        job.lose(why)


def _element(job: Job) -> Extend:
    element: Extend = {"id": job.id, "lease_token": job.leased.lease_token, "lease_s": job.lease_s}
    if job.is_untold:
        job.is_untold = False  # before it is read: what comes meanwhile goes next time
        if job.told is not None:
            element["progress"] = job.told
    return element
