"""Jobs of functions that no worker has: they end with an error that says so, in place of waiting for ever.

A topic of the app's namespace is unserved when this worker has no function for it, an item of it has been ready
for `after_s`, and nobody has asked for the topic as long. So jobs for newer code wait for its workers to come,
and jobs of workers with other functions are left to them.
"""

import asyncio
from collections.abc import Callable, Collection
from typing import Final

from headgate._app.function import TOPIC_PREFIX
from headgate._backoff import pause_s
from headgate._client.aio.client import AsyncClient
from headgate._worker.program_log import log
from headgate.errors import HeadgateError

LOOK_S: Final = 5.0
ENDED_AT_ONCE: Final = 100


class Unserved:
    """Looks for such jobs, now and then."""

    def __init__(
        self, client: AsyncClient, namespace: str, topics: Callable[[], Collection[str]], *, after_s: float
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._topics = topics
        self._after_s = after_s

    async def run(self) -> None:
        failures = 0
        while True:
            await asyncio.sleep(min(LOOK_S, self._after_s) + pause_s(1))
            try:
                await self.look()
                failures = 0
            except HeadgateError as error:
                failures += 1
                log.info("cannot look for jobs of unknown functions, trying again: %s", error)
                await asyncio.sleep(pause_s(failures))

    async def look(self) -> int:
        """Look once; how many jobs have been ended."""
        count = 0
        for stats in await self._client.topics(namespace=self._namespace):
            known = stats.topic in self._topics() or not stats.topic.startswith(TOPIC_PREFIX)
            idle = not stats.paused and not stats.leased
            if not known and idle and (stats.oldest_ready_age_s or 0.0) >= self._after_s:
                count += await self._end(stats.topic)
        return count

    async def _end(self, topic: str) -> int:
        ready = await self._client.items(topic, "ready", limit=1, namespace=self._namespace)
        if not ready:
            return 0
        (standing,) = await self._client.item_states([ready[0].id], namespace=self._namespace)
        if standing.unasked_s is not None and standing.unasked_s < self._after_s:
            return 0
        name = topic.removeprefix(TOPIC_PREFIX)
        error = (
            f"no worker has a function {name!r}, and none has come for {self._after_s:g} s: start one "
            "with code that "
            "has it and retry the job, or cancel it"
        )
        leased = await self._client.dequeue({topic: ENDED_AT_ONCE}, namespace=self._namespace)
        log.error("%d jobs of %s end: %s", len(leased), name, error)
        nacks = [{"id": one.id, "lease_token": one.lease_token, "error": error, "final": True} for one in leased]
        await self._client.nack(nacks, namespace=self._namespace)  # type: ignore[arg-type]
        return len(nacks)
