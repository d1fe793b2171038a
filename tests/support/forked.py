"""In place of `subprocess.Popen`: what would start an interpreter with code of ours is forked from one instead.

It is a child of this process like any other: `subprocess`, `asyncio` and `os` wait for it, read it and end it.
Started as ever is what a fork cannot be: another interpreter or another tree of code, other switches of
Python, other users, and everything while lines of processes are measured.
"""

import array
import asyncio
import contextlib
import ctypes
import inspect
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from services.local.process import Child

ROOT = Path(__file__).resolve().parents[2]
# The name, as the system shows it, of what a process of ours forks from.
NAME = b"zygote"
_PACKAGES = ("audit", "benchmarks", "examples", "headgate", "migrations", "services", "shards", "tests")
# What may differ from the environment of who forks: a fork does what these say.
_MENDED = ("PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE")
_SUBREAPER = 36
_Started = subprocess.Popen


class Zygote:
    """Who forks for this process, at the other end of a socket; it ends with this process."""

    def __init__(self, asking: socket.socket, process: "subprocess.Popen[bytes] | None" = None) -> None:
        self._asking = asking
        self._process = process
        self._turn = threading.Lock()
        self._libc = ctypes.CDLL(None)

    def fork(self, asked: Mapping[str, Any], files: Sequence[int]) -> int:
        """The pid of a new child of this process, which has these files as its first.

        Raises:
            OSError: nobody is there to fork.
        """
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))]
        with self._turn, self._adopting():
            self._asking.sendmsg([json.dumps(asked).encode()], rights)
            told = self._asking.recv(64)
        if not told:
            raise ConnectionResetError
        return int(told)

    def close(self) -> None:
        """End it."""
        self._asking.close()
        if self._process is not None:
            self._process.wait()

    @contextlib.contextmanager
    def _adopting(self) -> Iterator[None]:
        """Whoever is left without a parent below this process becomes its child meanwhile."""
        self._libc.prctl(_SUBREAPER, 1)
        try:
            yield
        finally:
            self._libc.prctl(_SUBREAPER, 0)


class Popen(_Started):  # type: ignore[type-arg]
    """A process that is forked, where that can be."""

    # Who forks, as soon as it is needed. Without one every process is started.
    zygote: ClassVar[Callable[[], Zygote] | None] = None

    def _execute_child(self, *given: Any) -> None:
        names = list(inspect.signature(_Started._execute_child).parameters)[1:]  # type: ignore[attr-defined]
        how = dict(zip(names, given, strict=True))
        zygote = type(self).zygote
        asked = _asked(how) if zygote is not None else None
        if zygote is not None and asked is not None:
            files = [
                number if end == -1 else end
                for number, end in enumerate((how["p2cread"], how["c2pwrite"], how["errwrite"]))
            ]
            with contextlib.suppress(OSError):
                self.pid = zygote().fork(asked, files)
                self._child_created = True
                ends = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
                self._close_pipe_fds(*(how[end] for end in ends))  # type: ignore[attr-defined]
                return
        super()._execute_child(*given)  # type: ignore[misc]


def start_zygote() -> Zygote:
    """Who forks for the tests."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.zygote", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
        )
    return Zygote(ours, process)


async def run_module(
    *argv: str, env: Mapping[str, str], timeout_s: float, cwd: Path = ROOT
) -> tuple[int, str, str]:
    """Run `python -m` with these words to its end: its exit code, output and errors."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", *argv), env=env, cwd=cwd, stdout=pipe, stderr=pipe
    )
    try:
        async with asyncio.timeout(timeout_s):
            output, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode is not None
    return process.returncode, output.decode(), errors.decode()


@contextlib.contextmanager
def forking() -> Iterator[None]:
    """Meanwhile `subprocess` forks, unless lines are measured: who is forked would not tell of those it ran."""
    if any(name.startswith("COVERAGE_PROCESS") for name in os.environ):
        yield
        return
    zygote = cache(start_zygote)
    before = subprocess.Popen, Child.popen, Popen.zygote
    subprocess.Popen, Child.popen, Popen.zygote = Popen, Popen, zygote  # type: ignore[misc]
    try:
        yield
    finally:
        subprocess.Popen, Child.popen, Popen.zygote = before  # type: ignore[misc]
        if zygote.cache_info().currsize:
            zygote().close()


def _asked(how: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a fork is to be, or None where it cannot be that."""
    if any(how[name] for name in ("preexec_fn", "shell", "pass_fds", "executable", "gids")):
        return None
    if not how["close_fds"] or how["gid"] is not None or how["uid"] is not None or how["umask"] >= 0:
        return None
    if isinstance(how["args"], str | bytes | os.PathLike):
        return None
    words, orphan_signal = _words([os.fsdecode(word) for word in how["args"]])
    env = dict(os.environ if how["env"] is None else how["env"])
    cwd = Path(how["cwd"] or ".").resolve()
    if not words or not cwd.is_dir() or not _is_alike(env) or not _is_our_tree(cwd, env):
        return None
    return {
        "words": words,
        "env": {os.fsdecode(name): os.fsdecode(value) for name, value in env.items()},
        "cwd": str(cwd),
        "session": how["start_new_session"],
        "group": how.get("process_group", -1),
        "orphan_signal": orphan_signal,
    }


def _words(argv: list[str]) -> tuple[list[str], int]:
    """What an interpreter with code of ours is told, and the signal that it gets when its parent ends."""
    orphan_signal = 0
    if Path(argv[0]).name == "setpriv" and argv[1] == "--pdeathsig" and argv[3] == "--":
        orphan_signal = signal.Signals[f"SIG{argv[2]}"]
        argv = argv[4:]
    if argv[0] != sys.executable or len(argv) < 2:
        return [], 0
    first, second = argv[1], argv[2] if len(argv) > 2 else ""
    ours = (
        first == "-c"
        or (first == "-m" and second.partition(".")[0] in _PACKAGES)
        or (not first.startswith("-") and first.endswith(".py"))
    )
    return (argv[1:] if ours else []), orphan_signal


def _is_alike(env: Mapping[str, str]) -> bool:
    """Whether the interpreter would be as this one is."""
    theirs = {name: value for name, value in env.items() if name.startswith("PYTHON") and name not in _MENDED}
    return all(os.environ.get(name) == value for name, value in theirs.items())


def _is_our_tree(cwd: Path, env: Mapping[str, str]) -> bool:
    """Whether it would import our packages from here."""
    places = [cwd, *(Path(place).resolve() for place in env.get("PYTHONPATH", "").split(os.pathsep) if place)]
    return all(place == ROOT or not any((place / name).is_dir() for name in _PACKAGES) for place in places)
