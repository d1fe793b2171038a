"""`headgate worker`: processes that are killed, files that change, targets that are wrong."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from headgate._app.processes import loaded, sources
from headgate._cli.program import main
from headgate._client.blocking.client import Client
from headgate._worker import supervisor
from headgate._worker.supervisor import Supervisor
from headgate._worker.worker import Worker
from services.local.stack import ROOT, Stack

CODE = """\
import os, time
from headgate import App

app = App("{namespace}")


@app.job(slots=2)
def who(seconds: float = 0) -> tuple[int, str]:
    time.sleep(seconds)
    return os.getpid(), "{text}"
"""


@pytest.fixture
def folder(tmp_path: Path, media: ModuleType) -> Path:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "mine.py").write_text(CODE.format(namespace=media.app.namespace, text="one"))
    return tmp_path / "code"


@pytest.fixture
def start(folder: Path, stack: Stack) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts `headgate worker` in the folder, until the test's end."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str, program: bool = False) -> subprocess.Popen[bytes]:
        urls = {"HEADGATE_QUEUE_URL": stack.queue_url, "HEADGATE_DAG_URL": stack.dag_url}
        command = [sys.executable, *([] if program else ["-m", "headgate", "worker"]), *arguments]
        environment = {**os.environ, **urls, "PYTHONPATH": str(ROOT)}
        started.append(subprocess.Popen(command, cwd=folder, env=environment))
        return started[-1]

    yield start
    for process in started:
        process.terminate()
        process.wait(30)


@pytest.fixture
def who(media: ModuleType) -> Iterator[Any]:
    """The function that the processes run, as a caller has it."""

    def who(seconds: float = 0) -> tuple[int, str]:
        raise AssertionError("it runs elsewhere")

    yield media.app.job(name="who")(who)
    del media.app.functions["who"], media.app.versions["who", 1]


def test_a_killed_process_is_replaced_and_its_job_runs_again(
    start: Callable[..., subprocess.Popen[bytes]], who: Any
) -> None:
    start("mine:app", "--processes", "2", "--lease", "2", "--drain", "1")
    first, _ = who.enqueue().result(timeout_s=60)
    job = who.enqueue(1.5)
    pids = {who.enqueue().result(timeout_s=60)[0] for _ in range(10)}
    for pid in pids | {first}:
        os.kill(pid, signal.SIGKILL)
    _, text = job.result(timeout_s=60)
    assert (job.status(), text) == ("succeeded", "one")
    assert who.enqueue().result(timeout_s=60)[0] not in pids | {first}


def test_workers_end_with_the_process_that_looks_after_them(
    start: Callable[..., subprocess.Popen[bytes]], who: Any
) -> None:
    process = start("mine:app", "--processes", "2", "--drain", "1")
    pid, _ = who.enqueue().result(timeout_s=60)
    process.kill()
    ends_at = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < ends_at
        time.sleep(0.05)


def test_code_that_changes_is_loaded_anew(
    start: Callable[..., subprocess.Popen[bytes]], who: Any, folder: Path, media: ModuleType
) -> None:
    # What was on its way to a process that is stopped comes again when its lease has run out.
    start("mine:app", "--reload", "--drain", "1", "--lease", "5")
    assert who.enqueue().result(timeout_s=60)[1] == "one"
    second, rest = divmod((folder / "mine.py").stat().st_mtime_ns, 10**9)
    changed = folder / "changed"
    changed.write_text(CODE.format(namespace=media.app.namespace, text="two"))
    # In the same second, and of the same size: that is what Python's bytecode is known by.
    os.utime(changed, ns=(0, second * 10**9 + (rest + 1) % 10**9))
    changed.replace(folder / "mine.py")
    ends_at = time.monotonic() + 60
    while who.enqueue().result(timeout_s=60)[1] != "two":
        assert time.monotonic() < ends_at


def test_sigterm_lets_the_job_end(start: Callable[..., subprocess.Popen[bytes]], who: Any) -> None:
    process = start("mine:app", "--processes", "2")
    who.enqueue().result(timeout_s=60)
    job = who.enqueue(1.0)
    while job.status() != "running":
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    assert job.result(timeout_s=5)[1] == "one"


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("nowhere:app", "there is no module 'nowhere'"),
        ("tests.support.media:pages", "neither an App nor a Worker; tests.support.media has app"),
        (":app", "names no module"),
    ],
)
def test_wrong_targets_say_what_is_there(
    target: str, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert main(["worker", target, "--processes", "2"]) == 2
    assert said in capsys.readouterr().err
    with pytest.raises(ValueError, match="has no function 'nothing'"):
        loaded("tests.support.media:app").worker(only=["nothing"])  # type: ignore[union-attr]


@pytest.mark.parametrize("processes", ["1", "2"])
@pytest.mark.parametrize(
    ("target", "options", "said"),
    [
        ("options_of:app", ["--only", "nothing"], "has no function 'nothing'"),
        ("options_of:app", ["-n", "elsewhere"], "options_of:app is of namespace 'here', by its code"),
        ("options_of:raw", ["--lease", "3"], "options_of:raw is a Worker, which has its own options"),
    ],
)
def test_options_that_would_be_ignored_are_refused(
    target: str,
    options: list[str],
    said: str,
    processes: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code = "from headgate import App, Worker\napp = App('here')\nraw = Worker(namespace='here')\n"
    (tmp_path / "options_of.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setenv("HEADGATE_NAMESPACE", "")

    assert main(["worker", target, "--processes", processes, *options]) == 2

    assert said in capsys.readouterr().err


class _Process:
    """A process that ends when the test says so."""

    def __init__(self) -> None:
        self.code: int | None = None

    def poll(self) -> int | None:
        return self.code

    def wait(self) -> int | None:
        return self.code

    def send_signal(self, number: int) -> None:
        self.code = -number


def test_a_process_that_ends_at_once_is_started_later_each_time(tmp_path: Path) -> None:
    now, started = [0.0], []
    files: dict[Path, int] = {}

    def begin(_: Sequence[str]) -> Any:
        started.append(_Process())
        return started[-1]

    def watched() -> Mapping[Path, int]:
        return dict(files)

    supervisor = Supervisor(["x"], 1, watched=watched, start=begin, clock=lambda: now[0])
    supervisor.step()
    for pause_s in (0.5, 1.0, 2.0):
        started[-1].code = 1
        count = len(started)
        supervisor.step()
        now[0] += pause_s - 0.01
        supervisor.step()
        assert len(started) == count
        now[0] += 0.02
        supervisor.step()
        assert len(started) == count + 1
    files[tmp_path / "new.py"] = 1
    supervisor.step()
    assert (started[-2].code, started[-1].code) == (-signal.SIGTERM, None)


@pytest.mark.parametrize("when", ["while one starts", "while they drain"])
def test_a_signal_at_any_moment_reaches_every_process_once(tmp_path: Path, when: str) -> None:
    started: list[_Process] = []
    told: list[tuple[int, int]] = []
    files: dict[Path, int] = {}

    class Process(_Process):
        def send_signal(self, number: int) -> None:
            told.append((started.index(self), number))
            super().send_signal(number)

        def wait(self) -> int | None:
            if when == "while they drain":
                supervisor._signalled(signal.SIGTERM, None)
            return super().wait()

    def begin(_: Sequence[str]) -> Any:
        started.append(Process())
        if when == "while one starts":
            supervisor._signalled(signal.SIGTERM, None)
        return started[-1]

    supervisor = Supervisor(["x"], 1, watched=lambda: dict(files), start=begin)
    supervisor.step()
    files[tmp_path / "new.py"] = 1
    if when == "while they drain":
        supervisor.step()
    assert len(started) == 1
    assert told == [(0, signal.SIGTERM)]


PROGRAM = """\
import os, time
from headgate import Worker

worker = Worker(namespace="{namespace}", processes=2, drain_s=1)


@worker.task("pids")
def pid(job):
    time.sleep(0.05)
    return os.getpid()


if __name__ == "__main__":
    worker.main()
"""


def test_a_worker_runs_in_as_many_processes_as_it_asks_for(
    folder: Path, stack: Stack, start: Callable[..., subprocess.Popen[bytes]], media: ModuleType
) -> None:
    """A program of one's own; its processes share the jobs, and end with the one that was started."""
    namespace = media.app.namespace
    (folder / "program.py").write_text(PROGRAM.format(namespace=namespace))
    program = start("program.py", program=True)
    with Client(queue_url=stack.queue_url, dag_url=stack.dag_url, namespace=namespace) as client:
        nodes = [{"key": str(n), "topic": "pids"} for n in range(40)]
        dag = client.dag(client.create_dag({"nodes": nodes}).id)
        dag.wait(timeout_s=60)
        pids = {one.output for one in dag.outputs()}
        assert len(pids) == 2
        assert program.pid not in pids
        program.terminate()
        assert program.wait(30) == 0
        for pid in pids:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)


@pytest.fixture
def marked(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Marks this process as one that another looks after."""

    def mark(parent: int) -> None:
        monkeypatch.setenv(supervisor.PARENT, str(parent))
        supervisor.parent.cache_clear()

    yield mark
    supervisor.parent.cache_clear()


def test_what_a_worker_starts_is_not_told_who_looks_after_the_worker(marked: Callable[[int], None]) -> None:
    """It would take itself for a worker of that parent, or for one whose parent has gone."""
    assert Worker(name="w").name == "w"
    marked(os.getppid())
    assert Worker(name="w").name == f"w-{os.getpid()}"
    assert supervisor.PARENT not in os.environ
    assert supervisor.parent() == os.getppid()


def test_a_worker_whose_parent_was_gone_before_it_looked_ends(
    marked: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = threading.Event()
    monkeypatch.setattr(os, "kill", lambda pid, number: told.set())
    marked(1 << 30)
    parent = supervisor.parent()
    assert parent is not None
    supervisor.end_with(parent)
    assert told.wait(5)


def test_sources_are_python_files_but_those_of_tools(tmp_path: Path) -> None:
    for name in ("a.py", "b.txt", "inner/c.py", ".venv/d.py", "__pycache__/e.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("")
    assert {path.relative_to(tmp_path).as_posix() for path in sources(tmp_path)} == {"a.py", "inner/c.py"}
