"""An event loop that is a function of what it is given: no clock, no socket, no thread, no addresses.

It runs until nothing is runnable, and then stands still until it is given something else. Tasks and futures hash
by the number of their creation, so sets of them (`asyncio.wait`, `TaskGroup`) iterate alike in every process.
Its time is the run's, and a delay is asked of whoever made the loop, who tells it when that has passed.
"""

import asyncio
import contextvars
import sys
from asyncio import events as asyncio_events
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Generator
from types import FrameType
from typing import Any, Final, NoReturn, TypeVar

from headgate._threads import leaving_no_trace
from headgate.workflow.errors import NeverYields, Refused

T = TypeVar("T")

SWEEP_AT: Final = 64
CLOSE_TRIES_MAX: Final = 10

_REFUSED: Final = {
    "a thread": ("call_soon_threadsafe", "run_in_executor", "set_default_executor"),
    "a socket": (
        "getaddrinfo",
        "getnameinfo",
        "create_connection",
        "create_server",
        "create_unix_connection",
        "create_unix_server",
        "create_datagram_endpoint",
        "connect_accepted_socket",
        "start_tls",
        "sendfile",
        "sock_recv",
        "sock_recv_into",
        "sock_recvfrom",
        "sock_recvfrom_into",
        "sock_sendall",
        "sock_sendto",
        "sock_connect",
        "sock_accept",
        "sock_sendfile",
        "add_reader",
        "remove_reader",
        "add_writer",
        "remove_writer",
    ),
    "a process": ("subprocess_shell", "subprocess_exec", "connect_read_pipe", "connect_write_pipe"),
    "a signal of the system": ("add_signal_handler", "remove_signal_handler"),
    "a loop of its own": ("run_forever", "run_until_complete", "stop", "close"),
    "another kind of task": ("set_task_factory",),
}
# What asyncio calls on the way to a task; others that make tasks do so from sets, or otherwise in each version.
_MAKES_TASKS: Final = frozenset(
    {"gather", "shield", "create_task", "ensure_future", "_ensure_future", "wrap_awaitable"}
)
_AS_COMPLETED: Final = (
    "asyncio.as_completed of coroutines takes them in the order of their addresses: write wf.as_completed([...]), "
    "or make tasks of them first, [asyncio.create_task(...) for ...]"
)
_WAIT_FOR: Final = (
    "asyncio.wait_for works otherwise in each version of Python: write `async with asyncio.timeout(seconds): ...`"
)


class _Numbered:
    """Hashes by the number of its creation."""

    _number: int

    def __hash__(self) -> int:
        return self._number


class NumberedFuture(_Numbered, asyncio.Future[Any]):
    """A future of the loop."""

    def __init__(self, number: int, loop: "WorkflowLoop") -> None:
        self._number = number
        super().__init__(loop=loop)


class NumberedTask(_Numbered, asyncio.Task[Any]):
    """A task of the loop. Its name is of this run: asyncio's own count runs through the process."""

    def __init__(
        self,
        number: int,
        coroutine: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
        loop: "WorkflowLoop",
        name: str | None,
        context: contextvars.Context | None,
    ) -> None:
        self._number = number  # first: asyncio puts the task into a set as it is made
        super().__init__(coroutine, loop=loop, name=name or f"Task-{number}", context=context)
        # Asyncio's one set of all tasks would look through all with this number, of each run that a worker keeps.
        asyncio._unregister_task(self)


class Handle:
    """A callback that is to run."""

    __slots__ = ("arguments", "callback", "context", "is_cancelled", "when")

    def __init__(
        self,
        callback: Callable[..., Any] | None,
        arguments: tuple[Any, ...],
        context: contextvars.Context | None,
        when: float | None = None,
    ) -> None:
        self.callback = callback
        self.arguments = arguments
        self.context = context
        self.is_cancelled = False
        self.when = when

    def cancel(self) -> None:
        self.is_cancelled = True
        self.callback, self.arguments = None, ()

    def cancelled(self) -> bool:
        return self.is_cancelled


class TimerHandle(Handle):
    """One that runs when the run's time has come to it. `key` is that of its command."""

    __slots__ = ("key", "loop")

    def __init__(
        self,
        loop: "WorkflowLoop",
        when: float,
        callback: Callable[..., Any],
        arguments: tuple[Any, ...],
        context: contextvars.Context | None,
    ) -> None:
        super().__init__(callback, arguments, context, when)
        self.loop = loop
        self.key = ""

    def cancel(self) -> None:
        if not self.is_cancelled:
            super().cancel()
            self.loop.drop_timer(self)


class WorkflowLoop(asyncio.AbstractEventLoop):
    """`start_timer(handle)` is asked for a delay and sets the handle's key; `drop_timer` when it is not needed
    more."""

    def __init__(
        self, start_timer: Callable[[TimerHandle], None], drop_timer: Callable[[TimerHandle], None]
    ) -> None:
        self.now_s = 0.0
        self.drop_timer = drop_timer
        self.stopped = False
        self.handles_max = sys.maxsize
        # Of a debugger that is called by the code of a simulation; a worker's threads go on with other runs.
        self.keeps_traces = True
        self._start_timer = start_timer
        self._ready: deque[Handle] = deque()
        self._numbers = 0
        # Held until they end: what the collector finds runs user code at a time of its own.
        self._tasks: dict[int, NumberedTask] = {}
        self._sweep_at = SWEEP_AT

    def run(self) -> None:
        """Run until nothing is runnable.

        Raises:
            NeverYields: `stopped` was set by somebody who waits, or this is beyond `handles_max` callbacks.
        """
        if self.keeps_traces:
            self._run()
        else:
            leaving_no_trace(self._run)

    def _run(self) -> None:
        ready = self._ready
        outer_loop = asyncio_events._get_running_loop()
        outer_hooks = sys.get_asyncgen_hooks()
        asyncio_events._set_running_loop(self)
        # What the collector finds of asynchronous generators is dropped as it stands.
        sys.set_asyncgen_hooks(firstiter=None, finalizer=_drop)
        left = self.handles_max
        try:
            while ready:
                if self.stopped or left <= 0:
                    raise NeverYields("the code of one event ran on and on without waiting for anything")
                left -= 1
                handle = ready.popleft()
                callback = handle.callback
                if callback is not None:
                    context = handle.context
                    if context is None:
                        callback(*handle.arguments)
                    else:
                        context.run(callback, *handle.arguments)
        finally:
            sys.set_asyncgen_hooks(*outer_hooks)
            asyncio_events._set_running_loop(outer_loop)

    def stop_running(self) -> None:
        """From any thread: `run` raises before its next callback, for good."""
        self.stopped = True

    def fire(self, handle: TimerHandle) -> None:
        """A timer's time has come."""
        if not handle.is_cancelled:
            self._ready.append(handle)

    # What asyncio calls

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:
        pass

    def is_running(self) -> bool:
        return asyncio_events._get_running_loop() is self

    def is_closed(self) -> bool:
        return self.stopped

    def time(self) -> float:
        return self.now_s

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> Handle:
        handle = Handle(callback, args, context if context is not None else contextvars.copy_context())
        self._ready.append(handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> Handle:
        _check_timer(sys._getframe(1))
        return self._at(self.now_s + delay, callback, args, context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> Handle:
        _check_timer(sys._getframe(1))
        return self._at(when, callback, args, context)

    def _at(
        self, when: float, callback: Callable[..., Any], args: tuple[Any, ...], context: contextvars.Context | None
    ) -> Handle:
        context = context if context is not None else contextvars.copy_context()
        handle = TimerHandle(self, when, callback, args, context)
        if when <= self.now_s:
            self._ready.append(handle)
            return handle
        self._start_timer(handle)
        return handle

    def create_future(self) -> NumberedFuture:
        frame = sys._getframe(1)
        if frame.f_code is _WAIT_CODE:
            _check_waited(frame)
        self._numbers += 1
        return NumberedFuture(self._numbers, self)

    def create_task(
        self,
        coro: Coroutine[Any, Any, T] | Generator[Any, None, T],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
        **_options: Any,
    ) -> asyncio.Task[T]:
        _check_maker(sys._getframe(1), coro)
        self._numbers += 1
        task = NumberedTask(self._numbers, coro, self, name, context)
        if len(self._tasks) >= self._sweep_at:
            self._tasks = {number: held for number, held in self._tasks.items() if not held.done()}
            self._sweep_at = 2 * len(self._tasks) + SWEEP_AT
        self._tasks[task._number] = task
        return task

    def get_task_factory(self) -> None:
        return None

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """What nobody waits for is nobody's concern here: it would be said again with every replay."""

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    def close_tasks(self) -> None:
        """The loop will not run again; the cleanup that its tasks still hold is ended where it awaits anything."""
        self.stopped = True
        self._ready.clear()
        tasks, self._tasks = self._tasks, {}
        for task in tasks.values():
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            coroutine = task.get_coro()
            for _ in range(CLOSE_TRIES_MAX):
                try:
                    if not task.done() and coroutine is not None:
                        coroutine.close()
                    break
                except BaseException:  # noqa: S112 (what it says is about a run that goes on elsewhere)
                    continue


def _drop(_generator: Any) -> None:
    pass


def _refuse(what: str, name: str) -> Callable[..., NoReturn]:
    def refuse(_self: WorkflowLoop, *_args: Any, **_options: Any) -> NoReturn:
        raise Refused(
            f"a workflow may not use {what} ({name}): do that in a task, or in a step by `await wf.run(...)`"
        )

    return refuse


for _what, _names in _REFUSED.items():
    for _name in _names:
        setattr(WorkflowLoop, _name, _refuse(_what, _name))
WorkflowLoop.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]


def new_loop(
    start_timer: Callable[[TimerHandle], None], drop_timer: Callable[[TimerHandle], None]
) -> WorkflowLoop:
    return WorkflowLoop(start_timer, drop_timer)  # type: ignore[abstract]


_WAIT_CODE: Final = asyncio.tasks._wait.__code__  # type: ignore[attr-defined]


def _check_timer(frame: FrameType | None) -> None:
    """Raises Refused for a delay that `asyncio.wait_for` asks for, by itself or by `asyncio.timeout`."""
    for _ in range(3):
        if frame is None or not frame.f_globals["__name__"].startswith("asyncio."):
            return
        if frame.f_code.co_name == "wait_for":
            _close_given(frame)
            raise Refused(_WAIT_FOR)
        frame = frame.f_back


def _check_maker(frame: FrameType | None, coroutine: Any) -> None:
    """Raises Refused for a task that asyncio makes in another order each time."""
    while frame is not None and frame.f_globals["__name__"] == "asyncio.tasks":
        name = frame.f_code.co_name
        if name not in _MAKES_TASKS:
            coroutine.close()
            _close_given(frame)
            raise Refused(_WAIT_FOR if name == "wait_for" else _AS_COMPLETED)
        frame = frame.f_back


def _close_given(frame: FrameType | None) -> None:
    """Close the coroutines that a refused call was given: nobody awaits them now, of which Python would warn
    whenever it collects them."""
    while frame is not None and frame.f_globals["__name__"] == "asyncio.tasks":
        for given in frame.f_locals.values():
            for each in given if isinstance(given, Collection) else (given,):
                if asyncio.iscoroutine(each):
                    each.close()
        frame = frame.f_back


def _check_waited(frame: FrameType) -> None:
    """Raises Refused for a set of futures among which some hash by address: those of `asyncio.gather`."""
    waited = frame.f_locals["fs"]
    if len(waited) > 1 and not all(isinstance(future, _Numbered) for future in waited):
        raise Refused(
            "asyncio.wait of what asyncio.gather returned takes it in the order of addresses: wait for its tasks"
        )
