"""Child processes that are stopped for certain.

A child ends with its launcher in three ways: the launcher stops it; the kernel signals it when the launcher is
killed (Linux); or, where that did not happen, the next launcher on the same directory finds it by its pid file.
"""

import asyncio
import contextlib
import math
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from services.local.errors import LocalError

_POLL_S = 0.01
_POLL_S_MAX = 0.1
_LOG_TAIL_BYTES = 4_000
_LOG_BYTES_MAX = 16 * 1024 * 1024
_TELLING = re.compile(r"\b(FATAL|PANIC|ERROR|[A-Z]\w*Error)\b")


@dataclass(frozen=True)
class Command:
    """What to run, and how it wants to be stopped.

    `stop_signal` asks for a graceful end and `orphan_signal` is what the kernel sends when the launcher dies.
    After `stop_timeout_s` a child is killed.
    """

    name: str
    argv: Sequence[str]
    env: Mapping[str, str] | None = None
    cwd: Path | None = None
    user: str | None = None
    stop_signal: signal.Signals = signal.SIGTERM
    orphan_signal: signal.Signals = signal.SIGKILL
    stop_timeout_s: float = 20.0


class Child:
    """One running child process, with its log and its pid file."""

    # Tests start services otherwise.
    popen: type[subprocess.Popen[bytes]] = subprocess.Popen

    def __init__(self, command: Command, *, log_path: Path, pid_path: Path) -> None:
        self.command = command
        self.log_path = log_path
        self.pid_path = pid_path
        self._process: subprocess.Popen[bytes] | None = None
        self._log_offset_bytes = 0

    @property
    def pid(self) -> int:
        """The pid of the child that was started last."""
        if self._process is None:
            raise LocalError(f"{self.command.name} has not been started")
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return None if self._process is None else self._process.poll()

    @property
    def running(self) -> bool:
        """Whether the process is there."""
        return self._process is not None and self._process.poll() is None

    def spawn(self) -> None:
        """Start the process. Call it from the main thread: the kernel ties the child to the calling thread."""
        command = self.command
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        self.pid_path.parent.mkdir(parents=True, exist_ok=True)
        _rotate(self.log_path)
        with self.log_path.open("ab") as log:
            self._log_offset_bytes = log.tell()
            self._process = self.popen(
                [*tied_to_parent(command.orphan_signal), *command.argv],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=command.cwd,
                env=command.env,
                user=command.user,
                extra_groups=[] if command.user else None,
                # Ctrl-C reaches the launcher alone; it then stops its children in order.
                start_new_session=True,
            )
        _write_pid_file(self.pid_path, self._process.pid)

    async def stop(self) -> None:
        """Ask the process to end, wait, and kill it if it does not. Does nothing when it is gone already."""
        process = self._process
        if process is not None and process.poll() is None:
            process.send_signal(self.command.stop_signal)
            # A stopped process (SIGSTOP) would never see the request.
            process.send_signal(signal.SIGCONT)
            if not await _ended_within(process, self.command.stop_timeout_s):
                process.kill()
                await asyncio.to_thread(process.wait)
        self.pid_path.unlink(missing_ok=True)

    async def wait(self) -> int:
        """Wait until the process ends; answer its exit code."""
        assert self._process is not None
        await _ended_within(self._process, math.inf)
        return self._process.returncode

    def obituary(self) -> str:
        """How the process ended and, if it says why, the most telling line of its log: a message in one line."""
        if self.returncode is not None and self.returncode < 0:
            return f"{self.command.name} {_ending(self.returncode)}"
        last = telling_log_line(self.log_path, offset_bytes=self._log_offset_bytes)
        return f"{self.command.name} {_ending(self.returncode)}" + (f": {last}" if last else "")


async def stop_leftover(pid_path: Path, *, stop_signal: signal.Signals, timeout_s: float = 10.0) -> None:
    """Stop the process that an earlier launcher named in `pid_path`, if it still runs; remove the file."""
    for attempt in (stop_signal, signal.SIGKILL):
        pid = _leftover_pid(pid_path)
        if pid is None:
            break
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, attempt)
            os.kill(pid, signal.SIGCONT)
        if not await _gone_within(pid_path, timeout_s) and attempt == signal.SIGKILL:
            raise LocalError(f"process {pid} of an earlier run does not end: stop it by hand")
    await asyncio.to_thread(pid_path.unlink, missing_ok=True)


def telling_log_line(path: Path, *, offset_bytes: int = 0) -> str:
    """The last line after the offset that reports an error, else the last that is not blank, else nothing."""
    try:
        with path.open("rb") as log:
            log.seek(max(offset_bytes, path.stat().st_size - _LOG_TAIL_BYTES))
            text = log.read().decode(errors="replace")
    except OSError:
        return ""
    return _telling(text)


async def run_to_end(argv: Sequence[str], *, user: str | None = None, input_text: str = "") -> None:
    """Run a short command; raise LocalError with the most telling line of its output when it fails."""
    process = _piped(argv, user)
    try:
        output, _ = await asyncio.to_thread(process.communicate, input_text)
    finally:
        if process.poll() is None:
            process.kill()
    if process.returncode != 0:
        name = Path(next((word for word in argv if word.startswith("/")), argv[0])).name
        raise LocalError(f"{name} {_ending(process.returncode)}: {_telling(output) or 'no output'}")


def tied_to_parent(orphan_signal: signal.Signals) -> list[str]:
    """A command prefix by which the kernel signals a child when its parent dies; empty where there is none."""
    setpriv = shutil.which("setpriv")  # util-linux; elsewhere the pid file alone has to do
    return [setpriv, "--pdeathsig", orphan_signal.name.removeprefix("SIG"), "--"] if setpriv else []


def _piped(argv: Sequence[str], user: str | None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*tied_to_parent(signal.SIGKILL), *argv],
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        user=user,
        extra_groups=[] if user else None,
        cwd="/",
        start_new_session=True,
    )


def _telling(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if _TELLING.search(line)]
    return (telling or lines or [""])[-1]


def _ending(returncode: int | None) -> str:
    if returncode is None:
        return "is running"
    if returncode < 0:
        return f"was killed by {signal.Signals(-returncode).name}"
    return f"ended with exit code {returncode}"


def _rotate(log_path: Path) -> None:
    if log_path.exists() and log_path.stat().st_size > _LOG_BYTES_MAX:
        log_path.replace(log_path.with_suffix(".log.1"))


def _write_pid_file(path: Path, pid: int) -> None:
    path.write_text(f"{pid} {_started_at(pid)}\n")


def _leftover_pid(path: Path) -> int | None:
    """The pid in the file, if that very process (not a later one with its number) still runs."""
    try:
        pid_text, _, started_at = path.read_text().strip().partition(" ")
        pid = int(pid_text)
    except (OSError, ValueError):
        return None
    return pid if started_at and _started_at(pid) == started_at else None


def _started_at(pid: int) -> str:
    """When the process started, in whatever form the system has; empty when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        if Path("/proc/self/stat").exists():
            return ""
        ps = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], text=True, check=False, capture_output=True)
        return ps.stdout.strip()
    return "" if fields[0] == "Z" else fields[19]


async def _ended_within(process: subprocess.Popen[bytes], timeout_s: float) -> bool:
    began_at = time.monotonic()
    while process.poll() is None:
        waited_s = time.monotonic() - began_at
        if waited_s > timeout_s:
            return False
        # What ends soon is seen soon; what runs for hours is asked a few times a second.
        await asyncio.sleep(min(max(_POLL_S, waited_s / 20), _POLL_S_MAX))
    return True


async def _gone_within(pid_path: Path, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while _leftover_pid(pid_path) is not None:
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(_POLL_S)
    return True
