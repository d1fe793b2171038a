"""Every scenario runs to its end and checks what it counts; how fast is not looked at."""

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks import stack as bench_stack
from benchmarks.against import HERE
from benchmarks.bench import Bench, Plan
from benchmarks.machine import Meter
from benchmarks.progress import Progress
from benchmarks.scenarios import SCENARIOS
from benchmarks.schema.variants import SHARDS
from benchmarks.stack import BenchStack, describe_stack
from services.local.stack import Stack
from tests.support.databases import Databases

TINY = Plan(rounds=1, slice_s=0.1, warmup_s=0.05, small=True, backlogs=(0, 300), snapshot_s=0.0)
# These show a price that nothing is promised about.
FREE = {"spread", "peers", "latency", "shapes", "worker", "worker_beside", "graphs"}
OPEN_SITE = bench_stack.open_site
SERVED = [name for name, scenario in SCENARIOS.items() if scenario.with_services]
# Of these, who opens more sites.
SITED = [name for name in SERVED if hasattr(sys.modules[SCENARIOS[name].run.__module__], "open_site")]


Sites = Callable[..., AbstractAsyncContextManager[BenchStack]]


@pytest.fixture(scope="module")
async def sites() -> AsyncIterator[Sites]:
    """One site of each shape for all scenarios: to start one takes longer than what is measured on it here."""
    running: dict[str, BenchStack] = {}
    async with AsyncExitStack() as opened:

        @asynccontextmanager
        async def shared(beside: BenchStack, name: str, **shape: Any) -> AsyncIterator[BenchStack]:
            usual = {"dag_shards": 2, "queue_processes": 1, "is_apart": False}
            key = repr(sorted({**usual, **shape}.items()))
            if key not in running:
                running[key] = await opened.enter_async_context(OPEN_SITE(beside, name, **shape))
            yield running[key]

        yield shared


@pytest.mark.drawn(3)
@pytest.mark.parametrize("name", SITED)
async def test_a_scenario_runs_on_several_sites(
    stack: Stack, sites: Sites, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[SCENARIOS[name].run.__module__], "open_site", sites)
    await runs(stack, name)


@pytest.mark.drawn(6)
@pytest.mark.parametrize("name", [name for name in SERVED if name not in SITED])
async def test_a_scenario_runs_on_a_stack(stack: Stack, name: str) -> None:
    await runs(stack, name)


async def runs(stack: Stack, name: str) -> None:
    outcome = await SCENARIOS[name].run(Bench(await describe_stack(stack), TINY, Progress()))
    assert outcome.rows and (outcome.requirements or name in FREE)
    # A sample takes less than what a moment's idling differs by.
    measured = [row for row in outcome.rows if not row.name.startswith("processor time of a sample")]
    assert all(row.measured.low > 0 for row in measured)


def test_two_checkouts_are_driven_in_turns(tmp_path: Path) -> None:
    """Here both are this one; the clients' work is looked at, not who is faster."""
    found = tmp_path / "found.json"
    kinds = ("cycle-10-4", "chain", "fan", "layered")
    few = ["--starts", "1", "--pairs", "2", "--slice-s", "0.1", "--warm-s", "0.1", "--json", str(found)]
    few += ["--kinds", *kinds]
    subprocess.run([sys.executable, "-m", "benchmarks.against", str(HERE), *few], cwd=HERE, check=True)
    rows = json.loads(found.read_text())["kinds"]
    assert tuple(rows) == kinds
    assert all(len(row["pairs"][0]) == 2 and min(row["rates"]) > 0 for row in rows.values())


async def test_every_table_design_does_the_same_work(databases: Databases) -> None:
    database = await databases.create(queue_shards=SHARDS, dag_shards=1)
    try:
        stack = BenchStack(
            "", "", database.queue_shards, database.dag_shards, Meter({"postgres": os.getpid()}), {}
        )
        outcome = await SCENARIOS["schema"].run(Bench(stack, TINY, Progress()))
    finally:
        await databases.drop(database)
    assert set(outcome.details) == {"backlog 0", "backlog 300", "backlog 300, snapshot held"}
    measured = outcome.details["backlog 300"]
    assert len(measured) == 10 and all(min(found["items_per_s"]) > 0 for found in measured.values())
