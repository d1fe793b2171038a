"""An upgrade under load, as deploy/README.md has it: from the release before the newest revisions of both schemas,
by the migration, to processes of this code, one by one.

The previous release is its own code, out of the repository's history, on its own schema. It runs as processes:
images would need an engine of containers.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from headgate import AsyncClient
from migrations.shard import revision
from services.local.stack import ROOT
from shared.postgres.schema import head
from tests.integration.failover.judge import judge, missing
from tests.integration.failover.load import Load
from tests.integration.failover.stage import TENANTS, Stage
from tests.support.databases import Database, Databases
from tests.support.fleet import Fleet, fleet_on

SERVICES = ("queue", "dag")
STEPS = 3


def git(*words: str) -> bytes:
    return subprocess.run(("git", *words), cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout


def previous_release() -> str:
    """The last commit that had neither service's newest revision."""
    added = []
    try:
        for service in SERVICES:
            [file] = (ROOT / "migrations" / service / "versions").glob(f"{head(service)}_*.py")
            lines = git("log", "--format=%H", "--diff-filter=A", "--", str(file)).decode().split()
            added.append(lines[-1])
        first = min(added, key=lambda commit: int(git("rev-list", "--count", commit)))
        return git("rev-parse", f"{first}^").decode().strip()
    except (OSError, subprocess.CalledProcessError, IndexError):
        pytest.skip("the history of the repository is not here: the previous release is in it")


@pytest.fixture
def previous(tmp_path: Path) -> Path:
    """Its code."""
    root = tmp_path / "previous"
    root.mkdir()
    packed = git("archive", "--format=tar", previous_release())
    subprocess.run(["tar", "--extract", "--directory", str(root)], input=packed, check=True)
    return root


@pytest.fixture
async def empty(databases: Databases) -> AsyncIterator[Database]:
    """A database with room for two shards of each service."""
    made = await databases.create_empty(queue_shards=2, dag_shards=2)
    yield made
    await databases.drop(made)


async def migrate(database: Database, root: Path) -> list[str | None]:
    """Bring all shards to what the code below `root` was written for; their revisions then."""
    shards = {"HEADGATE_QUEUE_SHARDS": database.queue_shards, "HEADGATE_DAG_SHARDS": database.dag_shards}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "migrations", "up"),
        cwd=root,
        env={**os.environ, **shards},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(240):
        said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()
    return [await revision(address) for address in database.addresses]


async def roll(fleet: Fleet, load: Load, names: dict[str, list[str]]) -> None:
    """A process of this code beside each, then that one is told to stop; work goes on after each."""
    for service, balancer in zip(SERVICES, fleet.balancers, strict=True):
        for name in names[service]:
            [new] = await fleet.add(service, f"new-{name}", HEADGATE_QUEUE_URL=fleet.balancers[0].url)
            old = fleet.by_name[name]
            balancer.replace(old, new)
            old.signal(signal.SIGTERM)
            async with asyncio.timeout(60):
                await old.child.wait()
            await load.until_more(1)


async def test_an_upgrade_under_load_loses_nothing_and_doubles_nothing(
    empty: Database, redis_url: str, previous: Path, tmp_path: Path
) -> None:
    heads = [head("queue")] * 2 + [head("dag")] * 2
    before = await migrate(empty, previous)
    assert all(one is not None and one < newest for one, newest in zip(before, heads, strict=True)), before
    async with AsyncExitStack() as stack:
        fleet = await stack.enter_async_context(fleet_on(empty, redis_url, tmp_path, drain_s=1.0))
        names = {service: [f"{service}-{n}" for n in (1, 2)] for service in SERVICES}
        urls = {}
        for service in SERVICES:
            url = {"HEADGATE_QUEUE_URL": urls["queue"]} if urls else {}
            processes = await fleet.add(service, *names[service], root=previous, **url)
            urls[service] = await fleet.balance(processes)
        clients = {
            tenant: await stack.enter_async_context(
                AsyncClient(queue_url=urls["queue"], dag_url=urls["dag"], namespace=tenant, timeout_s=60.0)
            )
            for tenant in TENANTS
        }
        stage = Stage({}, Load(clients, ()))
        async with stage.load.running() as load:
            await load.until_more(STEPS)
            assert await migrate(empty, ROOT) == heads
            await load.until_more(STEPS)
            await refuses_to_start(fleet, previous)
            await roll(fleet, load, names)
            await load.until_more(STEPS)
        await stage.drain()
    assert judge(stage.load.log, cut_s=None) == []
    assert missing(stage.load.log) == 0
    refused = {call.what for call in stage.load.log.calls if not call.is_done}
    assert not refused, "calls that the SDK sends again were refused all the same"
    assert faults(tmp_path) == [], "clients of their own do not send again what was answered 500"


def faults(run_dir: Path) -> list[str]:
    """The last line of each fault that a process of either release has logged."""
    lines = (line for log in sorted(run_dir.glob("*.log")) for line in log.read_text().splitlines())
    said = (json.loads(line) for line in lines if line.startswith("{"))
    return [one["exception"].splitlines()[-1] for one in said if one["event"] == "request failed"]


async def refuses_to_start(fleet: Fleet, previous: Path) -> None:
    """A process of the previous release that starts on the newer schema says so, and ends."""
    with pytest.raises(AssertionError, match="migrations"):
        await fleet.add("queue", "late", root=previous)
