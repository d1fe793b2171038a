"""Keeps the leases of running jobs, in batches, and tells jobs whose lease is lost."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from headgate._elements import Extend
from headgate._job import Job
from headgate.async_client import AsyncClient
from headgate.errors import HeadgateError

log = logging.getLogger("headgate.worker")

IDLE_S: Final = 3_600.0
_LOST: Final = ("lease_lost", "cancelled", "not_found")


class Leases:
    """The leases held. Each is extended when half of it is over; one that ends without an answer is lost."""

    def __init__(self, client: AsyncClient, namespace: str, clock: Callable[[], float]) -> None:
        self._client = client
        self._namespace = namespace
        self._clock = clock
        self._due_at: dict[Job, float] = {}
        self._wakes_at = 0.0
        self._changed = asyncio.Event()

    def hold(self, job: Job) -> None:
        self._due_at[job] = job.lease_ends_at - job.lease_s / 2
        if self._due_at[job] < self._wakes_at:
            self._changed.set()

    def drop(self, job: Job) -> None:
        self._due_at.pop(job, None)

    def held(self) -> list[Job]:
        return list(self._due_at)

    def due_in_s(self) -> float:
        """How long until `step` has something to do."""
        return max(0.0, min(self._due_at.values(), default=self._clock() + IDLE_S) - self._clock())

    async def run(self) -> None:
        while True:
            self._changed.clear()
            due_in_s = self.due_in_s()
            self._wakes_at = self._clock() + due_in_s
            try:
                async with asyncio.timeout(due_in_s):
                    await self._changed.wait()
            except TimeoutError:
                await self.step()

    async def step(self) -> int:
        """Extend what is due, and what is nearly due with it; how many."""
        now = self._clock()
        due = [job for job, due_at in self._due_at.items() if due_at - job.lease_s / 10 <= now]
        lost = [job for job in due if job.lease_ends_at <= now]
        for job in lost:
            self._lose(job, "lease_lost")
        kept = [job for job in due if job.lease_ends_at > now]
        if kept:
            await self._extend(kept, now)
        return len(kept)

    async def _extend(self, jobs: Sequence[Job], now: float) -> None:
        patience_s = max(0.1, min(job.lease_ends_at - now for job in jobs) / 2)
        elements: list[Extend] = [
            {"id": job.id, "lease_token": job.leased.lease_token, "lease_s": job.lease_s} for job in jobs
        ]
        try:
            async with asyncio.timeout(patience_s):
                results = await self._client.extend(elements, namespace=self._namespace)
        except (TimeoutError, HeadgateError) as error:
            log.warning("could not extend %d leases, trying again: %s", len(jobs), error or "no answer in time")
            self._postpone(jobs)
            return
        for job, result in zip(jobs, results, strict=True):
            if result.status in _LOST:
                self._lose(job, result.status)
            elif result.status == "extended":
                job.lease_ends_at = now + job.lease_s
                self._put_off(job, job.lease_ends_at - job.lease_s / 2)
            else:
                self._postpone([job])

    def _postpone(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            again_at = self._clock() + job.lease_s / 5
            self._put_off(job, min(again_at, max(job.lease_ends_at, self._clock())))

    def _put_off(self, job: Job, due_at: float) -> None:
        if job in self._due_at:
            self._due_at[job] = due_at

    def _lose(self, job: Job, why: str) -> None:
        log.warning("%r is no longer ours: %s", job, why)
        self.drop(job)
        job.lose(why)
