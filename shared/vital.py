"""What a process does not outlive: the tasks that are to run for as long as it serves.

Each of them is written to go on after any error. One that ends all the same (a defect, or a `BaseException`) would
leave a process that answers and no longer does its work, with nothing to show it. The first such end therefore
makes the process not ready, and the process goes, for its supervisor to start another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from shared.errors import ShuttingDown
from shared.log import log

CANCELLED_AGAIN_S = 0.5


class Vitals:
    """The tasks of one process that must not end by themselves."""

    def __init__(self) -> None:
        self.ended: str | None = None
        self._on_end: list[Callable[[], None]] = []

    def keep(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """A task that ends only when it returns (it was told to stop) or is cancelled."""
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._look)
        return task

    def on_end(self, listener: Callable[[], None]) -> None:
        """Call `listener` once one has ended by itself."""
        self._on_end.append(listener)

    def check(self) -> None:
        """Raises ShuttingDown once one has ended by itself."""
        if self.ended is not None:
            raise ShuttingDown(
                f"the duty {self.ended!r} of this process has ended, and the process goes; others serve",
                retry_after_s=1.0,
            )

    def _look(self, task: asyncio.Task[None]) -> None:
        if task.cancelling():
            return
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is None:
            return
        log.critical("a background duty has ended; this process goes", duty=task.get_name(), exc_info=error)
        if self.ended is None:
            self.ended = task.get_name()
            for listener in self._on_end:
                listener()


async def end(tasks: Iterable[asyncio.Task[Any] | None]) -> None:
    """Cancel tasks, again until each has ended, whatever by.

    One cancel is not enough: one that meets the very answer that a task waits for is lost in `asyncio.wait_for` of
    Python 3.11, by which the client of Redis waits, and the task goes on as if nothing had been said.
    """
    ending = [task for task in tasks if task is not None]
    left = {task for task in ending if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=CANCELLED_AGAIN_S)
    await asyncio.gather(*ending, return_exceptions=True)


PROCESS = Vitals()
