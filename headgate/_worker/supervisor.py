"""Workers in processes of their own, which are looked after.

A process that ends by itself is started again, later each time; with `watched` all are, as soon as a source file
changes. SIGTERM and SIGINT are passed on, so that workers drain; a second one hurries them. What a handler of
these signals does takes no lock: it may run at any moment, also while this very thread holds one.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Final

from headgate._backoff import ceiling_s
from headgate._stderr import stderr_line
from headgate._worker.signals import HURRY, NUMBERS

LOOK_S: Final = 0.2
# A process that has lived so long was well: its end is not taken for one of a row.
WELL_S: Final = 30.0
RESTART_S_MAX: Final = 30.0
# In the environment of a process that is looked after: by whom.
PARENT: Final = "HEADGATE_WORKER_PARENT"


def this_program(count: int) -> int:
    """Run the program that this process is in so many processes, until a signal; the exit code."""
    return Supervisor([sys.executable, *sys.orig_argv[1:]], count).run()


@cache
def parent() -> int | None:
    """The process that looks after this one, if one does; it may be gone. What this process starts is not told."""
    found = os.environ.pop(PARENT, None)
    return int(found) if found else None


def end_with(parent: int) -> None:
    """Drain this worker when the process that looks after it is gone, however it ended."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK_S)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="headgate-parent", daemon=True).start()


def begin(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a process that this one looks after."""
    env = {**os.environ, PARENT: str(os.getpid())}
    return subprocess.Popen(command, env=env)  # noqa: S603 (this very program)


class Supervisor:
    """Keeps worker processes running."""

    def __init__(
        self,
        command: Sequence[str],
        count: int,
        *,
        watched: Callable[[], Mapping[Path, int]] | None = None,
        start: Callable[[Sequence[str]], subprocess.Popen[bytes]] = begin,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._command = command
        self._watched = watched
        self._start = start
        self._clock = clock
        self._places = [_Place() for _ in range(count)]
        # What the workers were told: the first signal, and then that they should hurry.
        self._told: list[int] = []
        self._seen = watched() if watched is not None else {}

    def run(self) -> int:
        """Until a signal, and the workers have ended; the exit code."""
        before = {number: signal.signal(number, self._signalled) for number in NUMBERS}
        try:
            while not self._told:
                self.step()
                time.sleep(LOOK_S)
            return self._end()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def step(self) -> None:
        """Look once: start what is to be started, and all anew where a file has changed."""
        if self._watched is not None and (found := self._watched()) != self._seen:
            changed = sorted(path.name for path in found.keys() ^ self._seen.keys()) or sorted(
                path.name for path in found if found[path] != self._seen[path]
            )
            stderr_line(f"headgate: {', '.join(changed[:3])} changed, starting the workers anew")
            self._seen = found
            self._stop(signal.SIGTERM)
            self._wait()
            for place in self._places:
                place.failures, place.due_at = 0, 0.0
        for place in self._places:
            self._look_at(place)

    def _look_at(self, place: "_Place") -> None:
        now = self._clock()
        if place.process is not None and (code := place.process.poll()) is not None:
            place.failures = 0 if now - place.started_at > WELL_S else place.failures + 1
            pause_s = ceiling_s(0.5, place.failures - 1, RESTART_S_MAX) if place.failures else 0.0
            place.due_at = now + pause_s
            stderr_line(f"headgate: a worker has ended ({_said(code)}); the next one starts in {pause_s:g} s")
            place.process = None
        if place.process is None and place.due_at <= now and not self._told:
            process = self._start(self._command)
            missed = self._told[:]  # they came while it was started, and reached the others
            place.process = process
            for number in missed:
                process.send_signal(number)
            place.started_at = now

    def _signalled(self, number: int, _frame: FrameType | None) -> None:
        self._told.append(HURRY if self._told else number)
        self._stop(self._told[-1])

    def _stop(self, number: int) -> None:
        for place in self._places:
            if place.process is not None and place.process.poll() is None:
                place.process.send_signal(number)

    def _wait(self) -> None:
        for place in self._places:
            if place.process is not None:
                place.process.wait()
                place.process = None

    def _end(self) -> int:
        """The exit code: one that was told to end before it could drain has done as it was told."""
        codes = [place.process.wait() for place in self._places if place.process is not None]
        return max((abs(code) for code in codes if -code not in self._told), default=0)


class _Place:
    """A process, or the room for the next one."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.started_at = 0.0
        self.due_at = 0.0
        self.failures = 0


def _said(code: int) -> str:
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name
