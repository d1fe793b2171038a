"""The examples of functions, run as a reader would run them, with a worker process killed half-way."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headgate import AsyncClient
from services.local.stack import ROOT, Stack
from tests.support.forked import NAME

PRINTS = {
    "contact_import": "imported 480, refused 20; 480 contacts are there",
    "post_processing": "told 40 followers of the post, 0 of the spam",
    "test_automation": "42 tests, failed: test_broken; flaky at least: True",
    "ml_pipeline": "published a weight of 3.0",
    "backfill": "asked twice, run once: True",
    "scraper": "succeeded: read 200 pages; the first has 3 links",
    "bank": "paid 6000 cents in 60 payments; at most 10 calls a second: True",
}
FOLDER = ROOT / "examples" / "functions"


def test_every_example_is_run_and_short() -> None:
    files = {path.stem: path for path in FOLDER.glob("*.py") if path.stem != "__init__"}
    assert set(files) == set(PRINTS)
    assert {name for name, path in files.items() if path.read_text().count("\n") >= 60} == set()


@pytest.fixture
def begun(name: str, request: pytest.FixtureRequest) -> None:
    """One of them begins as a reader's does."""
    if name == "bank":
        request.getfixturevalue("new_interpreters")


@pytest.mark.drawn(2)
@pytest.mark.usefixtures("begun")
@pytest.mark.parametrize("name", PRINTS)
async def test_example_survives_a_kill_half_way(name: str, stack: Stack, tmp_path: Path) -> None:
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("HEADGATE_")}
    urls = {"HEADGATE_QUEUE_URL": stack.queue_url, "HEADGATE_DAG_URL": stack.dag_url}
    environment = {**inherited, **urls, "TMPDIR": str(tmp_path)}
    module = f"examples.functions.{name}"
    worker = [sys.executable, "-m", "headgate", "worker", f"{module}:app", "--processes", "2", "--lease", "2"]
    workers = subprocess.Popen(worker, cwd=ROOT, env=environment)
    caller = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module), cwd=ROOT, env=environment, stdout=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(150):
            await _half_way(stack, f"example-{name.replace('_', '-')}")
            killed = _children(workers.pid)
            for pid in killed:
                os.kill(pid, signal.SIGKILL)
            output, _ = await caller.communicate()
    finally:
        for process in (workers, caller):
            if process.returncode is None:
                process.terminate()
        workers.wait(40)
    assert killed
    assert caller.returncode == 0
    assert PRINTS[name] in output.decode()


async def _half_way(stack: Stack, namespace: str) -> None:
    """Until something of it has been done, and more is at work."""
    async with AsyncClient(queue_url=stack.queue_url, dag_url=stack.dag_url, namespace=namespace) as client:
        while True:
            for dag in await client.dags(state="running"):
                if dag.nodes.succeeded and dag.nodes.released:
                    return
            await asyncio.sleep(0.05)


def _children(pid: int) -> list[int]:
    """The workers: not what they are forked from."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children if Path(f"/proc/{child}/comm").read_bytes().strip() != NAME]
