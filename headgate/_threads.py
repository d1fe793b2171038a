"""Daemon threads that run one plain function after another, handlers and steps: starting one for each would cost
more than a short function.

There are as many as functions run at once, and those that have been idle for a moment. They take from one queue:
one that has ended a function goes on with the next without waking another, which costs more than a short function
does. They are daemons, so that a function that never returns cannot keep the process from ending; the child of a
fork begins with none.
"""

import asyncio
import contextlib
import contextvars
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

T = TypeVar("T")

IDLE_S_MAX: Final = 10.0

Work = Callable[[], None]
# Is given what to call when nothing is left to do but to tell of the end.
Serving = Callable[[Work], None]
# Is given what a thread met while it held work that can tell of it no more.
Failing = Callable[[BaseException], None]


def leaving_no_trace(call: Callable[[], T]) -> T:
    """What it returns. A trace or profile function that it leaves in its thread is removed before anything else is
    called there, which may be code of another job, or what tells of ends. One that the thread had before stays."""
    trace, profile = sys.gettrace(), sys.getprofile()
    try:
        try:
            try:
                return call()
            finally:
                if sys.getprofile() is not profile:
                    sys.setprofile(profile)
        finally:
            if sys.gettrace() is not trace:
                sys.settrace(trace)
    finally:
        # Either may raise in these lines, and Python has removed it then: what the line was to do is done here.
        if sys.getprofile() is not profile:
            sys.setprofile(profile)
        if sys.gettrace() is not trace:
            sys.settrace(trace)


class Threads:
    """Those of a process."""

    def __init__(self, idle_s_max: float = IDLE_S_MAX) -> None:
        self.idle_s_max = idle_s_max
        self.forget()

    def forget(self) -> None:
        """None of them is in this process."""
        self._lock = threading.Lock()
        self._work: deque[tuple[str, Serving, Failing | None]] = deque()
        self._words: SimpleQueue[None] = SimpleQueue()  # one for each work
        # Threads that wait for work, without those that what is in the queue will take.
        self._idle = 0

    def run(self, name: str, work: Serving, fail: Failing | None = None) -> None:
        """Run `work` in a thread of this name. It is given what to call when nothing of it is left to do but to
        tell of its end: then the thread may be given to another. `fail` is called where it raises."""
        with self._lock:
            is_new = not self._idle
            self._idle -= not is_new
        if is_new:
            thread = threading.Thread(target=self._serve, name="headgate-idle", daemon=True)
            thread.start()
        self._work.append((name, work, fail))
        self._words.put(None)

    def _serve(self) -> None:
        thread, words, works = threading.current_thread(), self._words, self._work
        is_counted = False

        def is_done() -> None:
            nonlocal is_counted
            with self._lock:
                self._idle += not is_counted
                is_counted = True

        while True:
            try:
                try:
                    words.get(timeout=self.idle_s_max)
                except Empty:
                    with self._lock:
                        if self._idle:
                            self._idle -= 1
                            return
                    continue  # there is something in the queue that nobody else will take
            except BaseException:  # noqa: S110 (sent to this thread, for a function that had ended before)
                pass  # the word may have been taken, so there may be work
            try:
                name, work, fail = works.popleft()
            except IndexError:
                continue
            is_counted = False
            try:
                thread.name = name
                work(is_done)
            except BaseException as error:  # sent to this thread, where the work did not catch it
                if fail is not None:
                    with contextlib.suppress(BaseException):  # the thread is to go on
                        fail(error)
            if not is_counted:
                is_done()
            del work, fail  # what they held is not to be kept for as long as nothing else comes


class Ends:
    """Tells an event loop what has ended in threads: all that ends in one of its turns by one call."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._ended: deque[Work] = deque()
        self._is_woken = False

    def tell(self, end: Work) -> None:
        """Call `end` in the loop, in its next turn. From any thread; nothing comes of it once that is closed."""
        self._ended.append(end)
        # Who finds it true has added its end before the loop looks.
        if not self._is_woken:
            self._is_woken = True
            loop = self._loop()
            if loop is not None:
                try:
                    loop.call_soon_threadsafe(self._look)
                except BaseException:
                    self._is_woken = False  # or no later end would wake it
                    if not loop.is_closed():  # maybe just now; then the thread is to go on
                        raise

    def _look(self) -> None:
        self._is_woken = False
        for _ in range(len(self._ended)):
            self._ended.popleft()()


# Of each event loop, how it hears of functions that have ended in threads.
_ends: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Ends] = weakref.WeakKeyDictionary()


def _ends_of(loop: asyncio.AbstractEventLoop) -> Ends:
    if (found := _ends.get(loop)) is None:
        found = _ends[loop] = Ends(loop)
    return found


def settle(future: "asyncio.Future[Any]", found: Any, failure: BaseException | None) -> None:
    """End a future as a function has ended."""
    if future.done():
        return
    if failure is None:
        future.set_result(found)
    elif issubclass(type(failure), StopIteration):  # no future takes one, and what it holds may have no repr
        error = RuntimeError("the function raised StopIteration")
        error.__cause__ = failure
        future.set_exception(error)
    else:
        future.set_exception(failure)


def called(call: Callable[[], T]) -> "tuple[asyncio.Future[T], Serving, Failing]":
    """What a call in a thread comes to, in this loop; what the thread is to do, in this context; and what it is to
    call where that raises."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    ends, context = _ends_of(loop), contextvars.copy_context()

    def serve(is_done: Work) -> None:
        found, failure = None, None
        try:
            try:
                found = context.run(leaving_no_trace, call)
            except BaseException as error:
                failure = error
            is_done()
            ends.tell(lambda: settle(future, found, failure))
        except BaseException as error:  # sent to this thread
            fail(error)

    def fail(error: BaseException) -> None:
        ends.tell(lambda: settle(future, None, error))

    return future, serve, fail


def in_thread(name: str, call: Callable[[], T]) -> "asyncio.Future[T]":
    """What a plain function returns, from a thread of this name. However many do, none waits for another."""
    future, serve, fail = called(call)
    threads.run(name, serve, fail)
    return future


threads = Threads()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=threads.forget)
