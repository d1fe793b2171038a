"""A worker says every few seconds that it is there, and what it does.

While the service keeps that call, the worker is told of items that were cancelled under somebody's lease. Those
that are its own are extended at once, which says what is true. Nothing else depends on it: a service that does not
answer, or refuses, costs a worker only this.
"""

import asyncio
import os
import random
import socket
from collections.abc import Callable, Mapping
from typing import Final

from headgate._client.aio.client import AsyncClient
from headgate._worker.leases import Leases
from headgate._worker.program_log import log
from headgate._worker.task import Task
from headgate.errors import HeadgateError
from headgate.wire.workers import WORKER_TOPICS_MAX

REPORT_S: Final = 5.0
# After a call that failed, and after one that was refused, the next one is made later.
RETRY_S: Final = 2.0
# From one report to the next at least, however often something is cancelled.
PAUSE_S: Final = 0.2
REFUSED_S: Final = 60.0
LEAVE_S_MAX: Final = 1.0


class Presence:
    """The reports of one worker. `version` is that of its code."""

    def __init__(
        self,
        client: AsyncClient,
        namespace: str,
        name: str,
        version: str | None,
        tasks: Mapping[str, Task],
        leases: Leases,
        clock: Callable[[], float],
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self._version = version or os.environ.get("HEADGATE_CODE_VERSION") or None
        self._tasks = tasks
        self._leases = leases
        self._clock = clock
        self._begun_s = clock()
        self._is_known = False

    async def run(self) -> None:
        self._begun_s = self._clock()
        try:
            while True:
                pause_s = await self.step()
                await asyncio.sleep(pause_s)
        finally:
            if self._is_known:
                await self._leave()

    async def step(self) -> float:
        """One report; when to make the next one."""
        lease_s = min((task.lease_s for task in self._tasks.values()), default=60.0)
        # The first one is not kept: the worker is to be known at once.
        wait_s = min(REPORT_S, lease_s / 3) if self._is_known else 0.0
        asked_s = self._clock()
        try:
            cancelled = await self._report(wait_s, lease_s)
        except HeadgateError as error:
            log.debug("%s could not report itself: %s", self._name, error)
            return (RETRY_S if error.retryable else REFUSED_S) * random.uniform(0.5, 1.0)  # noqa: S311 - jitter
        except Exception:
            log.exception("%s could not report itself", self._name)
            return REFUSED_S
        self._is_known = True
        self._leases.check(cancelled)
        taken_s = self._clock() - asked_s
        if not cancelled and taken_s < wait_s / 2:
            return RETRY_S  # a process that leaves keeps no call
        return max(0.0, PAUSE_S - taken_s)

    async def _report(self, wait_s: float, lease_s: float, *, leaving: bool = False) -> list[str]:
        topics = [
            {"topic": task.topic, "slots": task.slots, "running": min(task.running, task.slots)}
            for task in list(self._tasks.values())[:WORKER_TOPICS_MAX]
        ]
        return await self._client.workers.report(
            self._name,
            wait_s=wait_s,
            namespace=self._namespace,
            host=socket.gethostname() or None,
            version=self._version,
            topics=topics,
            lease_s=max(1.0, lease_s),
            age_s=max(0.0, self._clock() - self._begun_s),
            leaving=leaving,
        )

    async def _leave(self) -> None:
        try:
            async with asyncio.timeout(LEAVE_S_MAX):
                await self._report(0.0, 1.0, leaving=True)
        except (HeadgateError, TimeoutError) as error:
            log.debug("%s could not say that it goes: %s", self._name, error)
