"""An event loop whose time stands still, and leaps to the next timer when somebody waits for that and nothing
runs."""

import asyncio
import contextlib
import heapq
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple, Unpack

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class VirtualLoop(asyncio.SelectorEventLoop):
    """`asyncio.sleep` and timeouts take no time in it.

    It leaps only as far as it is allowed to, and never while a thread that it started is at work.
    """

    def __init__(self) -> None:
        super().__init__()
        self._virtual_s = 0.0
        self._allowed: list[float] = []
        self._threads: set[threading.Thread] = set()
        self._outside = 0
        self._quiet: asyncio.Future[None] | None = None

    def time(self) -> float:
        return self._virtual_s

    @contextlib.contextmanager
    def leaping(self, until_s: float) -> Iterator[None]:
        """Meanwhile time may go on, up to then."""
        self._allowed.append(until_s)
        try:
            yield
        finally:
            self._allowed.remove(until_s)

    async def quiet(self) -> None:
        """Return when nothing is left to be done at this moment."""
        self._quiet = self._quiet or self.create_future()
        await asyncio.shield(self._quiet)

    def thread_begins(self, thread: threading.Thread, future: asyncio.Future[Any]) -> None:
        """A thread works for this loop, until `future` is done."""
        self._threads.add(thread)
        self._outside += 1

        def ended(_: asyncio.Future[Any]) -> None:
            self._threads.discard(thread)
            self._outside -= 1

        future.add_done_callback(ended)

    def is_of(self, thread: threading.Thread) -> bool:
        """Whether a thread works for this loop."""
        return thread in self._threads

    @contextlib.contextmanager
    def thread_waits(self) -> Iterator[None]:
        """A thread of this loop waits for the loop: time may go on."""
        self._outside -= 1
        try:
            yield
        finally:
            self._outside += 1

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """As ever, but time stands still until it is done."""
        future = super().run_in_executor(executor, func, *args)
        self._outside += 1

        def ended(_: asyncio.Future[Any]) -> None:
            self._outside -= 1

        future.add_done_callback(ended)
        return future

    def _run_once(self) -> None:
        base: Any = super()
        inner: Any = self
        if not self._outside:
            due_s = self._next_s()
            if self._quiet is not None and not inner._ready and (due_s is None or due_s > self._virtual_s):
                self._quiet.set_result(None)
                self._quiet = None
            elif due_s is not None and due_s <= max(self._allowed, default=-1.0):
                self._virtual_s = max(self._virtual_s, due_s)
        base._run_once()

    def _next_s(self) -> float | None:
        """When the next timer is due; nothing while there is something to do now."""
        inner: Any = self
        scheduled = inner._scheduled
        while scheduled and scheduled[0]._cancelled:
            inner._timer_cancelled_count -= 1
            heapq.heappop(scheduled)._scheduled = False
        if inner._ready or not scheduled:
            return None
        found: float = scheduled[0]._when
        return found
