"""Threads in which workflow code runs, apart from the worker's loop; one that never comes back is replaced."""

import asyncio
import contextlib
import ctypes
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

from headgate._threads import leaving_no_trace, settle
from headgate.workflow.errors import NeverYields

T = TypeVar("T")

THREADS_MAX: Final = 4
# So many that do not come back are replaced; then what is left must do.
HUNG_MAX: Final = 8
# What waits for a lock, in C, or for its turn on a busy machine may take so many times the limit.
IDLE_FACTOR: Final = 5
LOOK_S_MIN: Final = 0.01
# Until Python 3.12 every thread that is traced (by a debugger, by coverage) spins until the thread to which an
# exception was sent takes it; one that waits in C may never do.
_TRACED_WAIT: Final = sys.version_info < (3, 12)


class _Work:
    __slots__ = (
        "began_at",
        "began_used_s",
        "call",
        "clock",
        "ended",
        "finished",
        "given_up",
        "loop",
        "thread",
    )

    def __init__(self, call: Callable[[Callable[[], None]], Any], loop: asyncio.AbstractEventLoop) -> None:
        self.call = call
        self.loop = loop
        self.finished: asyncio.Future[Any] = loop.create_future()
        # Set when it has begun.
        self.thread: _Thread | None = None
        self.began_at = 0.0
        self.began_used_s = 0.0
        self.clock: int | None = None
        # Exactly one of them comes about, under the pool's lock.
        self.ended = False
        self.given_up = False

    def begin(self) -> None:
        """What counts against the limit begins now, in this thread."""
        self.began_used_s = time.thread_time()
        self.began_at = time.monotonic()

    def left_s(self, limit_s: float) -> float:
        """How long it may still take: of its thread's processor time, where that can be asked, else of any."""
        took_s = time.monotonic() - self.began_at
        used_s = self.used_s()
        return limit_s - took_s if used_s is None else min(limit_s - used_s, limit_s * IDLE_FACTOR - took_s)

    def used_s(self) -> float | None:
        """Its thread's processor time, where that can be asked."""
        return None if self.clock is None else time.clock_gettime(self.clock) - self.began_used_s

    async def over(self, limit_s: float) -> None:
        """Wait until it has ended, or has taken too long since it began."""
        while not self.finished.done():
            left_s = limit_s if self.thread is None else self.left_s(limit_s)
            if left_s <= 0:
                return
            await asyncio.wait([self.finished], timeout=max(left_s, LOOK_S_MIN))


class _Thread(threading.Thread):
    """Does work until it is given none, or has been given up."""

    def __init__(self, pool: "CoreThreads") -> None:
        super().__init__(name="headgate-workflow", daemon=True)
        self.pool = pool

    def run(self) -> None:
        try:
            while (work := self.pool.next_work()) is not None:
                if not self._do(work):
                    # What it is given up with comes now at the latest: with the end of a call.
                    time.sleep(0)
                    break
            else:
                return
        except NeverYields:
            # What a thread is given up with arrived where its work had just ended.
            pass
        self.pool.came_back()

    def _do(self, work: _Work) -> bool:
        """Whether the thread is still the pool's after this work."""
        found, failure = None, None
        try:
            work.clock = _processor_clock()
            work.begin()
            work.thread = self
            found = leaving_no_trace(partial(work.call, work.begin))
        except BaseException as error:
            failure = error
        try:
            return self._tell(work, found, failure)
        except NeverYields:
            raise
        except BaseException as error:  # sent to this thread by the code's own doing
            return self._tell(work, None, error)

    def _tell(self, work: _Work, found: Any, failure: BaseException | None) -> bool:
        if not self.pool.ended(work):
            return False
        if not work.loop.is_closed():
            work.loop.call_soon_threadsafe(settle, work.finished, found, failure)
        return True


class CoreThreads:
    """Up to `threads_max` threads, made as they are needed."""

    def __init__(self, threads_max: int = THREADS_MAX, hung_max: int = HUNG_MAX) -> None:
        self._works: deque[_Work | None] = deque()
        self._words: queue.SimpleQueue[None] = queue.SimpleQueue()  # one for each work
        self.hung = 0
        # Places that hung threads beyond `hung_max` keep until they come back.
        self._lost = 0
        self._threads = 0
        self._threads_max = threads_max
        self._hung_max = hung_max
        self._lock = threading.Lock()
        self._watching: set[asyncio.Future[None]] = set()

    async def run(self, call: Callable[[Callable[[], None]], T], *, limit_s: float, stop: Callable[[], None]) -> T:
        """What `call` returns, from a thread. It is given what it calls before each of its parts, none of which
        may take longer than `limit_s` of processor time, or `IDLE_FACTOR` times that in all.

        Raises:
            NeverYields: one does; `stop` is called, and the thread is given up.
            RuntimeError: all threads hang; another worker may have the run.
        """
        loop = asyncio.get_running_loop()
        work = _Work(call, loop)
        with self._lock:
            if self._lost >= self._threads_max:
                raise RuntimeError(
                    f"all {self._threads_max} threads for workflows hang in code that does not return"
                )
            if self._threads < self._threads_max:
                self._threads += 1
                _Thread(self).start()
        self._add(work)
        try:
            await work.over(limit_s)
        except asyncio.CancelledError:
            stop()
            self._leave(work, limit_s)
            raise
        if work.finished.done():
            found: T = work.finished.result()
            return found
        stop()
        took_s = time.monotonic() - work.began_at
        self._give_up(work, limit_s)
        raise NeverYields(
            f"the code of one event ran for more than {limit_s:g} s without waiting for anything "
            f"({took_s:.1f} s by the clock)"
        )

    def _leave(self, work: _Work, limit_s: float) -> None:
        """Nobody waits for this work any more; a thread that does not come back from it is given up as ever."""
        if work.thread is None:
            work.call = _nothing

        async def outlast() -> None:
            await work.over(limit_s)
            if not work.finished.done():
                self._give_up(work, limit_s)
            elif not work.finished.cancelled():
                work.finished.exception()  # or it would be logged as one that nobody looked at

        watching = asyncio.ensure_future(outlast())
        self._watching.add(watching)
        watching.add_done_callback(self._watching.discard)

    def close(self) -> None:
        """Let threads end that have nothing to do."""
        for _ in range(self._threads):
            self._add(None)

    def next_work(self) -> _Work | None:
        """What a thread is to do next; None where it is to end."""
        while True:
            # What is sent to this thread for code that had ended before arrives here; the word may have been taken
            # by then, so there may be work.
            with contextlib.suppress(BaseException):
                self._words.get()
            try:
                return self._works.popleft()
            except IndexError:
                continue

    def _add(self, work: _Work | None) -> None:
        self._works.append(work)
        self._words.put(None)

    def ended(self, work: _Work) -> bool:
        """Whether the work ended in time, as its thread says; else `NeverYields` was sent to it before this."""
        with self._lock:
            work.ended = not work.given_up
        return work.ended

    def came_back(self) -> None:
        """A thread that was given up is at its end."""
        with self._lock:
            self.hung -= 1
            if self._lost:
                self._lost -= 1
                _Thread(self).start()

    def _give_up(self, work: _Work, limit_s: float) -> None:
        thread = work.thread
        assert thread is not None
        with self._lock:
            if work.ended:
                return
            work.given_up = True
            self.hung += 1
            if self.hung <= self._hung_max:
                _Thread(self).start()
            else:
                self._lost += 1
            # A loop of Python's own code ends by this; a call that does not come back is not reached.
            if not _TRACED_WAIT or sys.gettrace() is None or (work.used_s() or 0.0) >= limit_s:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(thread.ident or 0), ctypes.py_object(NeverYields)
                )


def _nothing(_begin: Callable[[], None]) -> None:
    """What is done in the place of work that nobody waits for."""


def _processor_clock() -> int | None:
    """The clock of this thread's processor time, for others to read; None where the system has none."""
    ask = getattr(time, "pthread_getcpuclockid", None)
    return None if ask is None else ask(threading.get_ident())
