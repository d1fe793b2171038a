"""Background duties. A duty is a coroutine `step()` that does one bounded batch and returns how much it did.

`Loop` owns start, jitter, back-off after errors, early wake-ups and drain. A step that did something is
followed by the next at once; an idle one by a pause of `interval_s` (a number, or what a function says after
each step), jittered by a quarter so that hosts do not march in step. `kick()` ends a pause: memory hurries, the
interval is the truth.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from shared.errors import Unavailable
from shared.log import log

ERROR_PAUSE_S_MAX = 5.0


class Loop:
    """Runs one duty until stopped."""

    def __init__(
        self, name: str, step: Callable[[], Awaitable[int]], *, interval_s: float | Callable[[], float]
    ) -> None:
        self.name = name
        self._step = step
        self._interval_s = interval_s if callable(interval_s) else lambda: interval_s
        self._kicked = asyncio.Event()
        self._stopping = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin; a loop is started once."""
        assert self._task is None, f"{self.name} was started twice"
        self._task = asyncio.create_task(self._run(), name=self.name)

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not been stopped."""
        return self._task is not None and not self._stopping

    def kick(self) -> None:
        """Do the next step now instead of at the end of the pause."""
        self._kicked.set()

    async def stop(self) -> None:
        """Let a running step end, then stop."""
        self._stopping = True
        self._kicked.set()
        if self._task is not None:
            await self._task

    async def _run(self) -> None:
        errors = 0
        while not self._stopping:
            self._kicked.clear()
            try:
                done = await self._step()
                errors = 0
            except Unavailable as error:
                errors += 1
                done = 0
                log.warning("background step must wait", loop=self.name, errors=errors, error=error.detail)
            except Exception:
                # A duty never dies of one bad round: the next one starts from the database again.
                errors += 1
                done = 0
                log.exception("background step failed", loop=self.name, errors=errors)
            if done == 0:
                await self._pause(min(self._interval_s() * 2**errors, ERROR_PAUSE_S_MAX) if errors else None)

    async def _pause(self, pause_s: float | None) -> None:
        base_s = self._interval_s() if pause_s is None else pause_s
        try:
            async with asyncio.timeout(base_s * random.uniform(0.75, 1.25)):  # noqa: S311 - jitter
                await self._kicked.wait()
        except TimeoutError:
            pass
