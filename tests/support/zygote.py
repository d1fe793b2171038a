"""Processes that begin without a second of imports: forked from one that has done these already.

Such a process is one like any other: with a pid, a session, an environment, a log and an end of its own. What it
runs is the module that it was to run. `popen` stands in place of `subprocess.Popen` for those of the launcher;
`run_module` runs a command to its end.
"""

import array
import asyncio
import contextlib
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# What the launcher starts of ours.
_FORKED = ("services.queue", "services.dag", "migrations")
# What is imported before anything is forked.
_IMPORTED = (
    "migrations.__main__",
    "shards.__main__",
    "audit.__main__",
    "services.queue.app",
    "services.queue.settings",
    "services.dag.app",
    "services.dag.settings",
    "shared.http.serve",
    "shared.log",
    "uvloop",
)
_POLL_S = 0.01
_PDEATHSIG = 1


def words_of(argv: Sequence[str]) -> list[str]:
    """The module that a command runs, and its arguments; empty where it is none of those that are forked."""
    words = list(argv)
    found = words[words.index(sys.executable) + 1 :] if sys.executable in words else []
    return found[1:] if found[:1] == ["-m"] and found[1] in _FORKED else []


class Forked:
    """A process of a zygote, as `subprocess.Popen` shows one, so far as the launcher needs it."""

    def __init__(self, zygote: "Zygote", pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._zygote = zygote

    def poll(self) -> int | None:
        """The exit code, once it has ended."""
        if self.returncode is None:
            self.returncode = self._zygote.ended(self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, when it has ended."""
        until_s = time.monotonic() + timeout if timeout is not None else None
        while (code := self.poll()) is None:
            if until_s is not None and time.monotonic() > until_s:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            time.sleep(_POLL_S)
        return code

    def send_signal(self, number: int) -> None:
        """A signal, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Zygote:
    """The process that forks, as its parent sees it. It ends with its parent."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.zygote", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._turn = threading.Lock()
        self._ended: dict[int, int] = {}

    def fork(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None,
        cwd: Path | str | None,
        files: tuple[int, int],
        orphan_signal: int = signal.SIGKILL,
    ) -> Forked:
        """Run a module, with arguments, in a new process, whose output and errors go to these files."""
        asked = {
            "argv": list(argv),
            "env": dict(os.environ if env is None else env),
            "cwd": str(cwd or Path.cwd()),
            "orphan_signal": int(orphan_signal),
        }
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))]
        with self._turn:
            self._socket.setblocking(True)
            self._socket.sendmsg([json.dumps(asked).encode()], rights)
            while "pid" not in (told := self._next()):
                pass
        return Forked(self, told["pid"])

    def ended(self, pid: int) -> int | None:
        """The exit code of a process, if it has ended."""
        with self._turn:
            self._socket.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while pid not in self._ended:
                    self._next()
            return self._ended.get(pid)

    def close(self) -> None:
        """End it, and what it has forked."""
        self._socket.close()
        self._process.wait()

    def _next(self) -> dict[str, Any]:
        data = self._socket.recv(1 << 16)
        if not data:
            raise AssertionError("the process that services are forked from has ended")
        told: dict[str, Any] = json.loads(data)
        if "ended" in told:
            self._ended[told["ended"]] = told["code"]
        return told


class Zygotes:
    """One zygote, as soon as it is needed."""

    def __init__(self) -> None:
        self._zygote: Zygote | None = None

    def fork(self, argv: Sequence[str], **options: Any) -> Forked:
        """As `Zygote.fork`."""
        self._zygote = self._zygote or Zygote()
        return self._zygote.fork(argv, **options)

    def close(self) -> None:
        """End what was forked from."""
        if self._zygote is not None:
            self._zygote.close()
            self._zygote = None


zygotes = Zygotes()


def popen(argv: Sequence[str], **options: Any) -> Any:
    """In place of `subprocess.Popen` of the launcher: our modules are forked, everything else is started."""
    words = (
        words_of(argv) if Path(options.get("cwd") or ".").resolve() == ROOT else []
    )  # another tree has other code
    log = options.get("stdout")
    if not words or log is None or options.get("user") or _is_measured():
        return subprocess.Popen(argv, **options)
    return zygotes.fork(
        words,
        env=options.get("env"),
        cwd=options.get("cwd"),
        files=(log.fileno(), log.fileno()),
        orphan_signal=_orphan_signal(argv),
    )


async def run_module(*argv: str, env: Mapping[str, str], timeout_s: float) -> tuple[int, str, str]:
    """Run `python -m` with these words to its end, in a process: its exit code, output and errors."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        if _is_measured():
            process: Any = subprocess.Popen(
                [sys.executable, "-m", *argv], env=env, cwd=ROOT, stdout=out, stderr=err
            )
        else:
            process = zygotes.fork(argv, env=env, cwd=ROOT, files=(out.fileno(), err.fileno()))
        try:
            async with asyncio.timeout(timeout_s):
                while process.poll() is None:
                    await asyncio.sleep(_POLL_S)
        finally:
            process.kill()
        for file in (out, err):
            file.seek(0)
        return process.returncode, out.read().decode(), err.read().decode()


def _is_measured() -> bool:
    """Lines of processes are counted: who is forked would not tell of them."""
    return any(name.startswith("COVERAGE_PROCESS") for name in os.environ)


def _orphan_signal(argv: Sequence[str]) -> int:
    words = list(argv)
    if "--pdeathsig" not in words:
        return signal.SIGKILL
    return signal.Signals[f"SIG{words[words.index('--pdeathsig') + 1]}"]


def main(number: int) -> None:
    """Fork for who holds the other end of this socket, and tell of each end, until that is closed."""
    import gc

    gc.disable()  # as the services do: what is imported stays
    for module in _IMPORTED:
        importlib.import_module(module)
    gc.freeze()
    running: set[int] = set()
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(write)
    asked = socket.socket(fileno=number)
    chooser = selectors.DefaultSelector()
    chooser.register(asked, selectors.EVENT_READ)
    chooser.register(read, selectors.EVENT_READ)
    while True:
        for key, _ in chooser.select():
            if key.fileobj == read:
                os.read(read, 4096)
                continue
            data, ancillary, _, _ = asked.recvmsg(1 << 20, socket.CMSG_LEN(8))
            if not data:
                for pid in running:
                    os.kill(pid, signal.SIGKILL)
                return
            files = array.array("i")
            files.frombytes(ancillary[0][2])
            pid = os.fork()
            if pid == 0:
                chooser.close()
                os.close(read)
                signal.set_wakeup_fd(-1)
                os.close(write)
                asked.close()
                _become(json.loads(data), *files)
            running.add(pid)
            for file in files:
                os.close(file)
            asked.send(json.dumps({"pid": pid}).encode())
        _reap(running, asked)


def _reap(running: set[int], asked: socket.socket) -> None:
    for pid in list(running):
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            running.discard(pid)
            asked.send(json.dumps({"ended": pid, "code": os.waitstatus_to_exitcode(status)}).encode())


def _become(asked: dict[str, Any], out: int, err: int) -> None:
    """Be the process that was asked for."""
    import ctypes

    code = 1
    try:
        os.setsid()
        ctypes.CDLL(None).prctl(_PDEATHSIG, asked["orphan_signal"])
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(out, 1)
        os.dup2(err, 2)
        for file in (out, err):
            os.close(file)
        os.chdir(asked["cwd"])
        os.environ.clear()
        os.environ.update(asked["env"])
        import shared.crash

        importlib.reload(shared.crash)  # it looks at the environment as it is imported
        sys.argv = asked["argv"]
        sys.modules.pop(f"{sys.argv[0]}.__main__", None)  # it is to run
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if code and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main(int(sys.argv[1]))
