"""Background duties. A duty is a coroutine `step()` that does one bounded batch and returns how much it did.

`Loop` owns start, jitter, back-off after errors, early wake-ups and drain. A step that did something is
followed by the next at once; an idle one by a pause of `interval_s` (a number, or what a function says after
each step), jittered by a quarter so that hosts do not run in step. A `Waker` ends a pause, at once or
at a time. It only saves time: what it misses is found after the interval. A failed step is a pause that grows; a
duty whose task ends by itself takes the process with it (`shared.vital`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

from shared import vital
from shared.errors import Unavailable
from shared.ids import ShardNo
from shared.log import log
from shared.metrics import DUTY_FAILED_ROUNDS

ERROR_PAUSE_S_MIN = 0.05
ERROR_PAUSE_S_MAX = 5.0
# Of the pause after failed rounds; without an end a float would overflow after some hours of an outage.
_DOUBLINGS_MAX = 10


class Waker:
    """Ends the pauses of a loop. It is made before the loop, so that whoever finds work for it can be given it."""

    def __init__(self) -> None:
        self._is_kicked = False
        # What its loop waits for, and one before it that is ending. Dozens of duties wait in an idle process, so a
        # pause is a future and a timer: `asyncio.timeout` would end each by a cancel.
        self._pauses: list[asyncio.Future[None]] = []
        self._alarm: asyncio.Handle | None = None
        self._alarm_at_s = 0.0  # kept here, as uvloop's handles of what is due at once do not tell

    def kick(self) -> None:
        """Do the next step now instead of at the end of the pause."""
        self._is_kicked = True
        for pause in self._pauses:
            _end(pause)

    def kick_in(self, delay_s: float) -> None:
        """Do the next step in `delay_s`, unless it is to be done before."""
        loop = asyncio.get_running_loop()
        at_s = loop.time() + max(0.0, delay_s)
        if self._alarm is not None:
            if self._alarm_at_s <= at_s:
                return
            self._alarm.cancel()
        self._alarm, self._alarm_at_s = loop.call_at(at_s, self._ring), at_s

    def take(self) -> bool:
        """Whether somebody has kicked since this was last asked."""
        was_kicked, self._is_kicked = self._is_kicked, False
        return was_kicked

    async def wait(self, pause_s: float) -> None:
        """Until somebody kicks, so long at most."""
        if self._is_kicked:
            return
        loop = asyncio.get_running_loop()
        pause = loop.create_future()
        self._pauses.append(pause)
        over = loop.call_later(pause_s, _end, pause)
        try:
            await pause
        finally:
            over.cancel()
            self._pauses.remove(pause)

    def stop(self) -> None:
        """End the pause, and let no alarm end a later one."""
        if self._alarm is not None:
            self._alarm.cancel()
        self.kick()

    def _ring(self) -> None:
        self._alarm = None
        self.kick()


def _end(pause: asyncio.Future[None]) -> None:
    if not pause.done():
        pause.set_result(None)


class Loop:
    """Runs one duty, of one shard or of the process, until stopped."""

    def __init__(
        self,
        name: str,
        step: Callable[[], Awaitable[int]],
        *,
        interval_s: float | Callable[[], float],
        shard: ShardNo | None = None,
        waker: Waker | None = None,
    ) -> None:
        self.name = name if shard is None else f"{name} {shard}"
        self.shard = shard
        self._step = step
        self._interval_s = interval_s if callable(interval_s) else lambda: interval_s
        self.waker = waker or Waker()
        self._stopping = False
        self._task: asyncio.Task[None] | None = None
        self._failed_rounds = 0
        self._told = DUTY_FAILED_ROUNDS.labels(name, "" if shard is None else shard)

    def start(self) -> None:
        """Begin; a loop is started once."""
        assert self._task is None, f"{self.name} was started twice"
        self._task = vital.PROCESS.keep(self._run(), self.name)

    @property
    def is_running(self) -> bool:
        """Whether it was started, has not been stopped, and has not ended."""
        return self._task is not None and not self._task.done() and not self._stopping

    def kick(self) -> None:
        """Do the next step now instead of at the end of the pause."""
        self.waker.kick()

    def end(self) -> None:
        """Begin no further step; nobody waits for a running one."""
        self._stopping = True
        self.waker.stop()

    async def stop(self) -> None:
        """Let a running step end, then stop."""
        self.end()
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while not self._stopping:
            self.waker.take()
            if await self._round() == 0:
                await self._pause()

    async def _round(self) -> int:
        """One step; 0 where it failed. A duty never dies of a bad round: the next one starts from the database."""
        try:
            done = await self._step()
        except Unavailable as error:
            self._count_rounds(self._failed_rounds + 1)
            log.warning(
                "background step must wait", loop=self.name, errors=self._failed_rounds, error=error.detail
            )
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            self._count_rounds(self._failed_rounds + 1)
            log.exception("background step was cancelled", loop=self.name, errors=self._failed_rounds)
        except Exception:
            self._count_rounds(self._failed_rounds + 1)
            log.exception("background step failed", loop=self.name, errors=self._failed_rounds)
        else:
            self._count_rounds(0)
            return done
        return 0

    def _count_rounds(self, failed: int) -> None:
        if failed or self._failed_rounds:
            self._failed_rounds = failed
            self._told.set(failed)

    async def _pause(self) -> None:
        pause_s = self._interval_s()
        if self._failed_rounds:
            doubled_s = pause_s * 2 ** min(self._failed_rounds, _DOUBLINGS_MAX)
            pause_s = min(max(doubled_s, ERROR_PAUSE_S_MIN), ERROR_PAUSE_S_MAX)
        await self.waker.wait(pause_s * random.uniform(0.75, 1.25))  # noqa: S311 - jitter


def part_failed(event: str, error: Exception, **known: Any) -> None:
    """Log that one part of a step failed, and comes again: what is away is a line, a mistake of ours a traceback.

    To be called where `error` is handled.
    """
    if isinstance(error, Unavailable):
        log.warning(event, error=error.detail, **known)
    else:
        log.exception(event, **known)
