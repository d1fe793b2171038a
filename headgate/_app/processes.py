"""`headgate worker module:app`: the worker here, or in processes of their own that are looked after.

A process that ends by itself is started again, later each time; with `--reload` all are, as soon as a source file
changes. SIGTERM and SIGINT are passed on, so that workers drain; a second one hurries them.
"""

import importlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final

from headgate._app.app import App
from headgate._backoff import ceiling_s
from headgate._output import stderr_line
from headgate._signals import NUMBERS
from headgate.worker import Worker

LOOK_S: Final = 0.2
# A process that has lived so long was well: its end is not taken for one of a row.
WELL_S: Final = 30.0
RESTART_S_MAX: Final = 30.0
_SKIPPED: Final = {".git", ".venv", "venv", "node_modules", "__pycache__", ".mypy_cache", ".pytest_cache"}


def loaded(target: str) -> App | Worker:
    """What `module:name` names; the module is looked for in the working directory first.

    Raises:
        ValueError: there is no such module or name, or it is neither an app nor a worker.
    """
    module_name, _, name = target.partition(":")
    if not module_name:
        raise ValueError(f"{target!r} names no module; say module:app, as in `headgate worker media:app`")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise ValueError(f"there is no module {module_name!r} in {here}, nor is one installed") from None
    found: Any = module
    for part in (name or "app").split("."):
        found = getattr(found, part, None)
    if not isinstance(found, App | Worker):
        apps = [key for key, value in vars(module).items() if isinstance(value, App | Worker)]
        hint = f"; {module_name} has {', '.join(apps)}" if apps else ""
        raise ValueError(f"{target!r} is neither an App nor a Worker{hint}")
    return found


def run_here(target: str, options: Mapping[str, Any]) -> None:
    """Work in this process until a signal."""
    found = loaded(target)
    worker = found.worker(**options) if isinstance(found, App) else found
    worker.main()


def end_with(parent: int) -> None:
    """Drain this worker when the process that looks after it is gone, however it ended."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK_S)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="headgate-parent", daemon=True).start()


class Supervisor:
    """Keeps worker processes running."""

    def __init__(
        self,
        command: Sequence[str],
        count: int,
        *,
        watched: Callable[[], Mapping[Path, int]] | None = None,
        start: Callable[[Sequence[str]], subprocess.Popen[bytes]] = subprocess.Popen,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._command = command
        self._watched = watched
        self._start = start
        self._clock = clock
        self._places = [_Place() for _ in range(count)]
        self._signals: list[int] = []
        self._wake = threading.Event()
        self._seen = watched() if watched is not None else {}

    def run(self) -> int:
        """Until a signal, and the workers have ended; the exit code."""
        before = {number: signal.signal(number, self._signalled) for number in NUMBERS}
        try:
            while not self._signals:
                self.step()
                self._wake.wait(LOOK_S)
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
        if place.process is None and place.due_at <= now and not self._signals:
            process = self._start(self._command)
            missed = self._signals[:]  # they came while it was started, and reached the others
            place.process = process
            for number in missed:
                process.send_signal(number)
            place.started_at = now

    def _signalled(self, number: int, _frame: FrameType | None) -> None:
        self._signals.append(number)
        self._stop(number)
        self._wake.set()

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
        return max((abs(code) for code in codes if -code not in self._signals), default=0)


class _Place:
    """A process, or the room for the next one."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.started_at = 0.0
        self.due_at = 0.0
        self.failures = 0


def sources(folder: Path) -> dict[Path, int]:
    """The Python files below a folder, and when each was changed."""
    found: dict[Path, int] = {}
    for root, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in _SKIPPED and not name.startswith(".")]
        for path in _python(root, files):
            try:
                found[path] = path.stat().st_mtime_ns
            except OSError:
                continue  # it has just gone
    return found


def _python(root: str, files: Iterable[str]) -> list[Path]:
    return [Path(root) / name for name in files if name.endswith(".py")]


def _said(code: int) -> str:
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name
