"""For the tests of those who use Headgate: the real services, for a session of pytest.

    def test_thumbnails(headgate_stack):
        with headgate_stack.worker("media:app"):
            assert resize.enqueue("a.png").result(timeout_s=30) == "a@640"

They are processes of their own, on a temporary directory and on free ports, and end with the session.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

_STOP_TIMEOUT_S: Final = 30.0
_COMMAND: Final = (
    "up",
    "--volatile",
    "--free-ports",
    "--queue-shards",
    "1",
    "--dag-shards",
    "1",
    "--output",
    "json",
)


@dataclass(frozen=True)
class HeadgateStack:
    """Services that run. Clients and apps made from now on find them by the environment."""

    queue_url: str
    dag_url: str
    data_dir: Path

    @contextmanager
    def worker(self, target: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        """A process of `headgate worker TARGET ...`, in the working directory; asked to end at the end."""
        process = _start("worker", target, *arguments)
        try:
            yield process
        finally:
            _stop(process)


@pytest.fixture(scope="session")
def headgate_skip_time() -> bool:
    """Whether timers and sleeps of workflows and DAGs end at once where nothing else runs. For tests that want it,
    define a fixture of this name and scope in their `conftest.py`, which returns True."""
    return False


@pytest.fixture(scope="session")
def headgate_stack(
    tmp_path_factory: pytest.TempPathFactory,
    headgate_skip_time: bool,
) -> Iterator[HeadgateStack]:
    """Postgres, Valkey and both services, empty; with pytest-xdist, one stack for each worker."""
    place = tmp_path_factory.mktemp("headgate")
    log = place / "launcher.log"
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("HEADGATE_")]:
            patch.delenv(name)
        patch.setenv("HEADGATE_DATA_DIR", str(place / "data"))
        with log.open("wb") as errors:
            more = ["--skip-time"] if headgate_skip_time else []
            launcher = _start(*_COMMAND, *more, stdout=subprocess.PIPE, stderr=errors.fileno())
        try:
            assert launcher.stdout is not None
            line = launcher.stdout.readline()
            if not line:
                raise RuntimeError(f"Headgate does not start: {log.read_text().strip()}")
            said = json.loads(line)
            patch.setenv("HEADGATE_QUEUE_URL", said["queue_url"])
            patch.setenv("HEADGATE_DAG_URL", said["dag_url"])
            yield HeadgateStack(said["queue_url"], said["dag_url"], Path(said["data_dir"]))
        finally:
            _stop(launcher)


def _start(*arguments: str, stdout: int | None = None, stderr: int | None = None) -> subprocess.Popen[bytes]:
    """A command of Headgate's, as a process that is asked to end when this one is killed (on Linux)."""
    setpriv = shutil.which("setpriv")
    tied: Sequence[str] = (setpriv, "--pdeathsig", "TERM", "--") if setpriv else ()
    command = [*tied, sys.executable, "-m", "headgate", *arguments]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr)


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
