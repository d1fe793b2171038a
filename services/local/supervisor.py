"""Starts a child again when it dies, a bounded number of times."""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable

from services.local.errors import LocalError
from services.local.process import Child

RESTARTS_MAX = 6
RESTARTS_WINDOW_S = 60.0
_PAUSE_S = 0.1
_PAUSE_S_MAX = 5.0


class Supervisor:
    """Watches children until `close`. A child that dies too often ends the watch: `failure` then says why."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._tasks: list[asyncio.Task[None]] = []
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def watch(self, child: Child, start: Callable[[], Awaitable[None]]) -> None:
        """Call `start` each time the child has ended."""
        self._tasks.append(asyncio.create_task(self._keep(child, start), name=f"keep {child.command.name}"))

    async def close(self) -> None:
        """Stop watching; the children are left as they are."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        self.failure.cancel()

    async def _keep(self, child: Child, start: Callable[[], Awaitable[None]]) -> None:
        deaths: deque[float] = deque(maxlen=RESTARTS_MAX)
        message = ""
        while True:
            if not message:
                await child.wait()
                message = child.obituary()
            if len(deaths) == RESTARTS_MAX and time.monotonic() - deaths[0] < RESTARTS_WINDOW_S:
                self._give_up(f"{message}; it ended {RESTARTS_MAX + 1} times in {RESTARTS_WINDOW_S:g} s")
                return
            deaths.append(time.monotonic())
            self._report(f"{message}; starting it again")
            await asyncio.sleep(_pause_s(deaths))
            try:
                await start()
                message = ""
            except (LocalError, OSError) as error:
                message = f"{child.command.name} cannot be started: {error}"

    def _give_up(self, message: str) -> None:
        if not self.failure.done():
            self.failure.set_exception(LocalError(message))


def _pause_s(deaths: deque[float]) -> float:
    recent = sum(1 for died in deaths if deaths[-1] - died < RESTARTS_WINDOW_S)
    return float(min(_PAUSE_S * 2 ** (recent - 1), _PAUSE_S_MAX))
