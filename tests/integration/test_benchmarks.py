"""Every scenario runs to its end and checks what it counts; how fast is not looked at."""

import os

import pytest

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
SERVED = [name for name, scenario in SCENARIOS.items() if scenario.with_services]


@pytest.mark.parametrize("name", SERVED)
async def test_a_scenario_runs_on_a_stack(stack: Stack, name: str) -> None:
    outcome = await SCENARIOS[name].run(Bench(await describe_stack(stack), TINY, Progress()))
    assert outcome.rows and (outcome.requirements or name in FREE)
    assert all(row.measured.low > 0 for row in outcome.rows)


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
