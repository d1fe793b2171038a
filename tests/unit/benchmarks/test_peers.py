"""The loop that counts the jobs of every Python peer: what it gets wrong would flatter or wrong a peer."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchmarks.bench import QUICK, Bench
from benchmarks.outcome import Outcome
from benchmarks.peers import environment, process
from benchmarks.peers.environment import PeerFailed
from benchmarks.peers.process import ALWAYS, DAGS, DURABLE_QUEUES, PROGRAMS, QUEUES, RESTATE, WORKFLOWS, Running
from benchmarks.peers.programs.lines import Load
from benchmarks.progress import Progress
from benchmarks.scenarios import workflows


class InMemory:
    """A queue whose jobs are gone as soon as they run."""

    def __init__(self, window: int) -> None:
        self.jobs: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.most = self.workers = 0
        self.load = Load(send=self.send, working=self.working, window=window)

    async def send(self, jobs: list[dict[str, Any]]) -> None:
        for job in jobs:
            self.jobs.put_nowait(job)
        self.most = max(self.most, self.jobs.qsize())
        await asyncio.sleep(0)

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        async def work() -> None:
            while True:
                self.load.ran((await self.jobs.get()).get("at"))

        self.workers += 1
        task = asyncio.create_task(work())
        yield
        task.cancel()
        self.workers -= 1


def answers(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line[1:]) for line in capsys.readouterr().out.splitlines() if line.startswith("@")]


async def test_only_jobs_that_ran_are_counted_and_few_are_unfinished(capsys: pytest.CaptureFixture[str]) -> None:
    queue = InMemory(window=50)
    await queue.load.cycle({"batch": 10, "clients": 2, "warm_s": 0.01, "seconds": 0.05})
    begun, counted = answers(capsys)
    assert begun == {"begun": True}
    assert 0 < counted["items"] <= queue.load.done == queue.load.sent
    assert queue.most <= 50 + 2 * 10 and queue.workers == 0


async def test_every_scheduled_job_has_a_latency(capsys: pytest.CaptureFixture[str]) -> None:
    queue = InMemory(window=50)
    await queue.load.latency({"rate": 500.0, "seconds": 0.1, "warm_s": 0.0, "seed": 1})
    _, measured = answers(capsys)
    assert measured["lost"] == 0 and len(measured["latencies_ms"]) == queue.load.sent > 10


def test_every_peer_has_a_program_and_the_durable_ones_wait_for_the_disk() -> None:
    assert all((PROGRAMS / peer.program).exists() for peer in (*QUEUES, *DAGS, *WORKFLOWS))
    assert {peer.name for peer in QUEUES} - {peer.name for peer in DURABLE_QUEUES} == {
        peer.name for peer in QUEUES if peer.redis is not None and peer.redis != ALWAYS
    }


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, ...]]:
    """The commands that install peers, none of which is run."""
    commands: list[tuple[str, ...]] = []

    async def succeed(*argv: str, cwd: Path | None = None) -> None:
        commands.append(argv)
        (tmp_path / "restate").mkdir(exist_ok=True)

    monkeypatch.setattr(environment, "PLACE", tmp_path)
    monkeypatch.setattr(environment, "_succeed", succeed)
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    return commands


async def test_a_server_from_npm_and_its_sdk_are_installed_once_and_without_scripts(
    installed: list[tuple[str, ...]], tmp_path: Path
) -> None:
    _, settings = await process._install(RESTATE)
    assert settings["modules"] == str(tmp_path / "restate-server" / "node_modules")
    npm, _, pip = installed
    assert npm[0] == "/bin/npm" and "--ignore-scripts" in npm and npm[-1] == RESTATE.server
    assert pip[-len(RESTATE.requirements) :] == RESTATE.requirements
    assert all("==" in requirement for requirement in RESTATE.requirements) and "@1." in npm[-1]

    await process._install(RESTATE)
    assert len(installed) == 3, "what is there is not installed again"


async def test_a_peer_whose_server_cannot_be_installed_fails(
    installed: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda _name: None)
    with pytest.raises(PeerFailed, match="npm is not installed"):
        await process._install(RESTATE)


def test_the_ports_of_a_server_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "free_port", lambda *, but: next(p for p in range(7, 99) if p not in but))
    assert process._free_ports(4) == [7, 8, 9, 10]


def answering(answer: Callable[[dict[str, Any]], dict[str, Any] | None]) -> Running:
    async def asked(_bench: Bench, _outcome: Outcome, **request: Any) -> dict[str, Any] | None:
        return answer(request)

    return cast(Running, SimpleNamespace(answer=cast(Callable[..., Awaitable[Any]], asked)))


async def test_restate_is_measured_beside_workflows_without_a_bound_and_a_failing_peer_is_left_out() -> None:
    asked: list[dict[str, Any]] = []

    def restate(request: dict[str, Any]) -> dict[str, Any]:
        asked.append(request)
        return {"steps_ms": [4.0 if request["queued"] else 2.0]}

    def dbos(request: dict[str, Any]) -> dict[str, Any] | None:
        return None if request["queued"] else {"steps_ms": [1.0]}

    peers = {process.DBOS.name: answering(dbos), RESTATE.name: answering(restate)}
    bench, outcome = Bench(cast(Any, None), QUICK, Progress()), Outcome("workflows", "")
    found: workflows.Steps = {}
    for _ in range(2):
        await workflows._measure(bench, outcome, peers, 10, found)
    assert peers.keys() == found.keys() == {RESTATE.name}
    assert [(request["queued"], request["nodes"]) for request in asked] == [(False, 10), (True, 10)] * 2

    workflows._compare(outcome, {"run_ms": [[1.0], [1.0]], "call_ms": [[2.0], [2.0]]}, found)
    rows = {row.name: (row.measured.median, row.unit) for row in outcome.rows}
    assert rows == {
        "Restate, fsync always, step: p50": (2.0, "ms"),
        "wf.run / Restate's step, p50": (0.5, "ratio"),
        "Restate, fsync always, call: p50": (4.0, "ms"),
        "wf.call / Restate's call, p50": (0.5, "ratio"),
    }
    assert not outcome.requirements and "on the disk" in outcome.rows[0].note


def test_the_bounds_beside_dbos_are_kept() -> None:
    outcome = Outcome("workflows", "")
    steps = {process.DBOS.name: {"run": ("step", [[4.0]]), "call": ("child through its queue", [[50.0]])}}
    workflows._compare(outcome, {"run_ms": [[2.0]], "call_ms": [[5.0]]}, steps)
    assert [(need.name, need.measured.median) for need in outcome.requirements] == [
        ("wf.run / DBOS's step, p50", 0.5),
        ("wf.call / DBOS's child through its queue, p50", 0.1),
    ]
