"""A process that has imported what tests run, and forks: what begins there begins without its half second of that.

It forks for who holds the other end of a socket (`tests/support/forked.py`) and adopts what was forked: a child as
any other is, with a pid, files, a directory, an environment, signals and an end of its own.
"""

import array
import contextlib
import ctypes
import gc
import importlib
import io
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
from pathlib import Path
from typing import Any, NoReturn

from tests.support import forked

ROOT = Path(__file__).resolve().parents[2]
# What is imported before anything is forked. No examples or programs of benchmarks: they hold what they have made.
_IMPORTED = (
    "migrations.__main__",
    "shards.__main__",
    "audit.__main__",
    "services.queue.app",
    "services.queue.settings",
    "services.dag.app",
    "services.dag.settings",
    "services.local.stack",
    "shared.http.serve",
    "shared.log",
    "headgate",
    "headgate.testing",
    "headgate._app.processes",
    "headgate._cli.program",
    "headgate._http.transport",
    "html.parser",
    "urllib.robotparser",
    "uvloop",
)
# What may start processes: it has one to fork them from, as programs have, which must be there before its threads.
_STARTING = ("headgate", "services.local", "examples.demo")
_MESSAGE_BYTES_MAX = 1 << 20
_PDEATHSIG, _NAME = 1, 15
_PATH_OF_OURS = [entry for entry in sys.path if Path(entry or ".").resolve() != ROOT]


def main(number: int) -> None:
    """Be there to be forked, until the socket of this number is closed at its other end."""
    gc.disable()
    subprocess.Popen = forked.Popen  # type: ignore[misc]  # for whom it forks, if that has a zygote
    for module in _IMPORTED:
        importlib.import_module(module)
    gc.freeze()
    interrupted = signal.signal(signal.SIGINT, signal.SIG_IGN)
    asked = _serve(socket.socket(fileno=number))
    signal.signal(signal.SIGINT, interrupted)
    _become(asked)


def _serve(asking: socket.socket) -> dict[str, Any]:
    """Fork as often as is asked. Returns in what was forked, with what it is to be."""
    while True:
        data, ancillary, _, _ = asking.recvmsg(_MESSAGE_BYTES_MAX, socket.CMSG_LEN(3 * 4))
        if not data:
            os._exit(0)
        files = array.array("i")
        files.frombytes(ancillary[0][2])
        between = os.fork()
        if between:
            os.waitpid(between, 0)
            for file in files:
                os.close(file)
            continue
        between = os.getpid()
        if os.fork():
            os._exit(0)
        while os.getppid() == between:
            os.sched_yield()  # until who asked has adopted it
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        asking.send(str(os.getpid()).encode())
        asking.close()
        found: dict[str, Any] = json.loads(data)
        return found


def _become(asked: dict[str, Any]) -> NoReturn:
    """Be the process that was asked for, to its end."""
    code = 1
    try:
        _stand(asked)
        _run(asked["words"])
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if code and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    finally:
        _end(code)


def _stand(asked: dict[str, Any]) -> None:
    """Stand where the process is to stand, and know what it is to know."""
    if asked["session"]:
        os.setsid()
    elif asked["group"] >= 0:
        os.setpgid(0, asked["group"])
    libc = ctypes.CDLL(None)
    libc.prctl(_PDEATHSIG, asked["orphan_signal"])
    libc.prctl(_NAME, b"python")
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    sys.argv = list(asked["words"])
    sys.orig_argv = [sys.executable, *asked["words"]]
    first = {"-m": str(Path.cwd()), "-c": ""}.get(sys.argv[0], str(Path(sys.argv[0]).resolve().parent))
    named = os.environ.get("PYTHONPATH", "")
    sys.path[:] = [first, *filter(None, named.split(os.pathsep)), *_PATH_OF_OURS]
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    sys.stdout.reconfigure(line_buffering=os.isatty(1))  # type: ignore[union-attr]
    if os.environ.get("PYTHONUNBUFFERED"):  # whatever the one that it is forked from was started with
        out = sys.stdout
        sys.stdout = io.TextIOWrapper(
            io.FileIO(1, "wb", closefd=False), out.encoding, out.errors, write_through=True
        )
    tempfile.tempdir = None
    time.tzset()
    importlib.reload(importlib.import_module("shared.crash"))  # it looks at the environment as it is imported
    if sys.argv[0].endswith(".py") or (sys.argv[:1] == ["-m"] and sys.argv[1] in _STARTING):
        zygote = _another()
        forked.Popen.zygote = staticmethod(lambda: zygote)
    gc.enable()


def _another() -> "forked.Zygote":
    """A zygote of this process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork():
        theirs.close()
        return forked.Zygote(ours)
    ours.close()
    ctypes.CDLL(None).prctl(_NAME, forked.NAME)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    os.close(nothing)
    interrupted = signal.signal(signal.SIGINT, signal.SIG_IGN)
    asked = _serve(theirs)
    signal.signal(signal.SIGINT, interrupted)
    _become(asked)


def _run(words: list[str]) -> None:
    """As the interpreter does with these words."""
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    if words[0] == "-m":
        sys.argv = sys.argv[1:]
        for name in (words[1], f"{words[1]}.__main__"):
            if not hasattr(sys.modules.get(name), "__path__"):
                sys.modules.pop(name, None)  # it is to run
        runpy._run_module_as_main(words[1])  # type: ignore[attr-defined]
        return
    name, text = ("<string>", words[1]) if words[0] == "-c" else (words[0], Path(words[0]).read_text())
    if words[0] == "-c":
        sys.argv = ["-c", *sys.argv[2:]]
    else:
        module.__file__ = name
    exec(compile(text, name, "exec"), module.__dict__)


def _end(code: int) -> NoReturn:
    """As the interpreter ends: threads first, then what is to be done at exit, then what is to be written."""
    with contextlib.suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]
        import atexit

        atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except Exception:
        code = code or 120
    with contextlib.suppress(Exception):
        sys.stderr.flush()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    from tests.support import zygote

    zygote.main(int(sys.argv[1]))
