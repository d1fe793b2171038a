"""Watches what workflow code calls while it runs, and stops it at the clock, chance, files, sockets, threads.

Best effort, for tests and checks: it sees calls of C functions (`sys.setprofile`), not `partial(time.time)()`,
default factories or attributes like `os.environ`. That a run replays is what proves its code.
"""

import builtins
import contextlib
import datetime
import gc
import io
import os
import random
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

from headgate.workflow.commands import line_of
from headgate.workflow.errors import Nondeterministic

_CLOCK: Final = "the clock: take wf.now()"
_CHANCE: Final = "chance: take wf.random or wf.uuid()"
_FILES: Final = "a file: do that in a step, await wf.run(...)"
_PAUSE: Final = "a pause that holds the worker: await wf.sleep(...)"
_NET: Final = "the network: do that in a step, await wf.run(...)"
_PROCESS: Final = "a thread or process: do that in a step, await wf.run(...)"

_CLOCKS: Final = (
    "time",
    "time_ns",
    "monotonic",
    "monotonic_ns",
    "perf_counter",
    "perf_counter_ns",
    "process_time",
    "process_time_ns",
)
_FORBIDDEN: Final[dict[Any, str]] = {
    **{getattr(time, name): _CLOCK for name in _CLOCKS},
    datetime.datetime.now: _CLOCK,
    datetime.datetime.utcnow: _CLOCK,
    datetime.datetime.today: _CLOCK,
    datetime.date.today: _CLOCK,
    time.localtime: _CLOCK,
    time.gmtime: _CLOCK,
    time.sleep: _PAUSE,
    os.urandom: _CHANCE,
    os.getpid: _CHANCE,
    io.open: _FILES,
    os.open: _FILES,
    os.listdir: _FILES,
    os.scandir: _FILES,
    os.stat: _FILES,
    socket.gethostbyname: _NET,
    socket.gethostbyname_ex: _NET,
    socket.gethostbyaddr: _NET,
    socket.gethostname: _NET,
    os.system: _PROCESS,
    **{getattr(os, name): _PROCESS for name in ("fork", "posix_spawn") if hasattr(os, name)},
}
_SHARED: Final = random._inst
# Methods of every `random.Random`, but for the run's own.
_DRAWS: Final = frozenset({"random", "getrandbits", "seed"})
# Of Python's own functions, by their code.
_FORBIDDEN_CODE: Final[dict[CodeType, str]] = {
    socket.socket.__init__.__code__: _NET,
    socket.getaddrinfo.__code__: _NET,
    subprocess.Popen.__init__.__code__: _PROCESS,
    threading.Thread.start.__code__: _PROCESS,
    uuid.uuid1.__code__: "the clock, and this machine's address: take wf.uuid()",
}
_ADDRESSES: Final = {builtins.id: "addresses", builtins.hash: "hashes, which differ by process"}
# They look at clocks and files for themselves, and code sees nothing of it.
_TRUSTED: Final = (
    "logging",
    "importlib",
    "_frozen_importlib",
    "linecache",
    "tokenize",
    "traceback",
    "warnings",
    "asyncio",
    "zoneinfo",
)
_LIBRARY: Final = str(Path(os.__file__).parent)
_NAMES: Final = frozenset(getattr(each, "__name__", "") for each in (*_FORBIDDEN, *_ADDRESSES)) | _DRAWS


class _Watch:
    def __init__(self, function: Callable[..., Any] | None) -> None:
        self._file = function.__code__.co_filename if function is not None else None
        self.found: str | None = None

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_call":
            if argument.__name__ in _NAMES and (why := self._why(frame, argument)):
                self._stop(frame, why)
        elif event == "call" and frame.f_code in _FORBIDDEN_CODE and not _is_trusted(frame.f_back):
            self._stop(frame.f_back or frame, _FORBIDDEN_CODE[frame.f_code])

    def _why(self, frame: FrameType, called: Any) -> str | None:
        if _is_trusted(frame):
            return None
        if called.__name__ in _DRAWS:
            owner = getattr(called, "__self__", None)
            # A generator with a seed is nobody's chance; the module's own has none.
            drawn_anew = called.__name__ == "seed" and frame.f_locals.get("a", 0) is None
            return _CHANCE if owner is _SHARED or drawn_anew else None
        if called in _ADDRESSES:
            return _ADDRESSES[called] if frame.f_code.co_filename == self._file else None
        return _FORBIDDEN.get(called)

    def _stop(self, frame: FrameType, why: str) -> None:
        while frame.f_back is not None and frame.f_code.co_filename != self._file and self._file is not None:
            frame = frame.f_back
        self.found = f"workflow code uses {why} ({line_of((frame.f_code, frame.f_lineno))})"
        raise Nondeterministic(self.found)


def _is_trusted(frame: FrameType | None) -> bool:
    """Whether the call is made by Python's machinery, or by this package, for the code's sake; also by who is told
    of each collection of garbage, which comes at any time."""
    collecting = {getattr(told, "__code__", None) for told in gc.callbacks}
    while frame is not None:
        if frame.f_code in collecting:
            return True
        name = frame.f_globals.get("__name__", "").partition(".")[0]
        if name in _TRUSTED:
            return True
        path = frame.f_code.co_filename
        if not path.startswith((_LIBRARY, "<frozen")) or "site-packages" in path:
            return bool(name == "headgate")
        frame = frame.f_back
    return True


@contextlib.contextmanager
def guard(function: Callable[..., Any] | None = None) -> Iterator[None]:
    """While it is entered, this thread's code is watched; `function` tells whose lines to name.

    Raises:
        Nondeterministic: something was called, also where the code caught what it was told.
    """
    watch = _Watch(function)
    outer = sys.getprofile()
    sys.setprofile(watch)
    try:
        yield
    finally:
        sys.setprofile(outer)
    if watch.found is not None:
        raise Nondeterministic(watch.found)


@contextlib.contextmanager
def lifted() -> Iterator[None]:
    """While it is entered, this thread's code is not watched; nothing happens where it is not."""
    watch = sys.getprofile()
    if not isinstance(watch, _Watch):
        yield
        return
    sys.setprofile(None)
    try:
        yield
    finally:
        if sys.getprofile() is None:  # else it was entered again meanwhile, by another event
            sys.setprofile(watch)
