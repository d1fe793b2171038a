"""What every peer's program does: lines of JSON in, lines of JSON out, and load in a closed or an open loop.

Runs in the peer's own environment, so it imports nothing of ours. `cycle` keeps a bounded number of jobs on
their way: producers add batches while fewer than a window are unfinished, workers run, and finished jobs are
counted. It says `begun` when counting begins and answers when counting ends; only then are the workers stopped,
gently. `drain` works off what `fill` has put there, so many jobs at once (`concurrency`) instead of as many as is
best. `latency` enqueues one job at a time on a schedule fixed in advance, and counts from the scheduled time to
the job's start.
"""

import asyncio
import json
import random
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

_SENDERS = 64
_AFTER_S_MAX, _QUIET_S, _DRAINED_S = 10.0, 0.4, 1.0


class Load:
    """Counts jobs; a handler calls `ran` with the job's `at`, its scheduled wall time, or None.

    `window` is how many unfinished jobs keep the workers busy: more would only delay them.
    """

    def __init__(
        self,
        *,
        send: Callable[[list[dict[str, Any]]], Awaitable[Any]],
        working: Callable[[], AbstractAsyncContextManager[Any]],
        window: int,
    ) -> None:
        self._send = send
        self._window = window
        self._working = working
        self.sent = 0
        self.done = 0
        # How many jobs at once the workers are to take; None: as many as is best.
        self.concurrency: int | None = None
        self.first_s = self.last_s = 0.0
        self.latencies_ms: list[float] = []
        self._counting = threading.Lock()

    def ran(self, at: float | None) -> None:
        """A job has started."""
        with self._counting:
            self.done += 1
            self.last_s = time.time()
            self.first_s = self.first_s or self.last_s
        if at:
            self.latencies_ms.append((time.time() - at) * 1000)

    async def fill(self, request: dict[str, Any]) -> dict[str, Any]:
        """Put jobs into the queue that nobody works on yet."""
        for first in range(0, request["count"], 1_000):
            await self._send([job(128)] * min(1_000, request["count"] - first))
        return {"filled": request["count"]}

    async def drain(self, request: dict[str, Any]) -> dict[str, Any]:
        """Work off what is there; how many jobs ran, and when the first and the last one did."""
        self.done, self.first_s, self.concurrency = 0, 0.0, request["concurrency"]
        try:
            async with self._working():
                say({"begun": True})
                latest = time.perf_counter() + _AFTER_S_MAX
                while not self.done and time.perf_counter() < latest:
                    await asyncio.sleep(0.01)
                before = -1
                while before != self.done:
                    before = self.done
                    await asyncio.sleep(_DRAINED_S)
                say({"jobs": self.done, "ended_s": [self.first_s, self.last_s] if self.done else []})
        finally:
            self.concurrency = None
        return {"stopped": True}

    async def cycle(self, request: dict[str, Any]) -> dict[str, Any]:
        """Add and work at once for so many seconds; how many jobs ran."""
        batch = request["batch"]
        jobs = [job(request.get("bytes", 128))] * batch
        self.sent = self.done = 0
        over = False

        async def produce() -> None:
            while not over:
                if self.sent - self.done >= self._window:
                    await asyncio.sleep(0.002)
                    continue
                self.sent += batch
                await self._send(jobs)

        async with self._working():
            producers = [asyncio.create_task(produce()) for _ in range(request["clients"])]
            # Warm is a worker whose first job has run.
            latest = time.perf_counter() + _AFTER_S_MAX
            while not self.done and time.perf_counter() < latest:
                await asyncio.sleep(0.01)
            await asyncio.sleep(request["warm_s"])
            say({"begun": True})
            done, begun = self.done, time.perf_counter()
            await asyncio.sleep(request["seconds"])
            answer = {"items": self.done - done, "seconds": time.perf_counter() - begun}
            say(answer)
            over = True
            await asyncio.gather(*producers)
            if not request.get("backlog"):
                await _quiet(lambda: self.done)
        return {"stopped": True}

    async def latency(self, request: dict[str, Any]) -> dict[str, Any]:
        """One job at a time at a rate; percentiles of the time from its schedule to its start."""
        choose, rate = random.Random(request["seed"]), request["rate"]
        self.latencies_ms.clear()
        self.sent = self.done = 0
        async with self._working():
            await asyncio.sleep(request["warm_s"])
            begun, at = time.time(), 0.0
            schedule = []
            while at < request["seconds"]:
                schedule.append(begun + at)
                at += choose.expovariate(rate)
            due = iter(schedule)

            async def sender() -> None:
                for moment in due:
                    await asyncio.sleep(max(0.0, moment - time.time()))
                    self.sent += 1
                    await self._send([{**job(128), "at": moment}])

            say({"begun": True})
            await asyncio.gather(*(sender() for _ in range(_SENDERS)))
            await _quiet(lambda: len(self.latencies_ms))
        say(
            {
                "latencies_ms": [round(value, 2) for value in self.latencies_ms],
                "lost": len(schedule) - len(self.latencies_ms),
            }
        )
        return {"stopped": True}


def job(size: int) -> dict[str, Any]:
    """A job's payload: JSON of about so many bytes."""
    return {"p": "x" * (size - 8)}


async def _quiet(progress: Callable[[], int]) -> None:
    """Wait until nothing has happened for a while: what one process adds may run in another."""
    deadline, seen = time.perf_counter() + _AFTER_S_MAX, -1
    while progress() != seen and time.perf_counter() < deadline:
        seen = progress()
        await asyncio.sleep(_QUIET_S)


def say(answer: dict[str, Any]) -> None:
    """One line for the benchmark; others on the same stream are passed over."""
    print("@" + json.dumps(answer), flush=True)


async def serve(
    versions: dict[str, str], verbs: dict[str, Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]]
) -> None:
    """Answer requests until the input ends."""
    loop = asyncio.get_running_loop()
    say({"ready": versions})
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        request = json.loads(line)
        say(await verbs[request["do"]](request))
