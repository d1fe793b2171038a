"""Graphs at the limits, on real processes: `HEADGATE_TEST_LARGE=1` runs them, in minutes.

What a process took is asked of the system and of its metrics: its memory at most, and how its loop stood still.
"""

import os
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from headgate.wire import BATCH_MAX
from services.local.valkey import Valkey, ValkeySettings
from tests.support.bounded import steps
from tests.support.databases import Database
from tests.support.fleet import Fleet, Process, fleet_on
from tests.support.ports import lasting_port

pytestmark = pytest.mark.skipif("HEADGATE_TEST_LARGE" not in os.environ, reason="takes minutes")

IN_DEGREE = 100_000
# Layers in which each node waits for all of the layer above: two million edges.
WIDTH, LAYERS = 1_000, 3
MEMORY_MIB_MAX = 1_024
STALL_S_MAX = 5.0
NAMESPACE = "/v1/namespaces/default"
_BUCKET = re.compile(r'headgate_loop_stall_seconds_bucket\{le="([^"]+)"\} ([0-9.]+)')


class Large:
    """One process of each service, and a client of each."""

    def __init__(self, queue: Process, dag: Process) -> None:
        self.processes = [queue, dag]
        self.queue = httpx.AsyncClient(base_url=queue.url + NAMESPACE, timeout=120.0)
        self.dag = httpx.AsyncClient(base_url=dag.url + NAMESPACE, timeout=120.0)

    async def made(self) -> str:
        answer = await self.dag.post("/dags", json={"hold": True, "open": True})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    async def add(self, dag: str, nodes: list[dict[str, Any]]) -> None:
        answer = await self.dag.post(f"/dags/{dag}/nodes", json={"nodes": [{"topic": "t", **n} for n in nodes]})
        assert answer.status_code == 201, answer.text[:500]

    async def run(self, dag: str) -> list[str]:
        """Work until the DAG has ended; the keys of its nodes, in the order in which they came."""
        for verb in ("close", "release"):
            assert (await self.dag.post(f"/dags/{dag}/{verb}", json={})).status_code == 200
        came: list[str] = []
        for _ in steps():
            if (await self.dag.get(f"/dags/{dag}")).json()["state"] != "running":
                break
            body = {"topics": [{"topic": "t", "count": BATCH_MAX}], "wait_s": 1.0, "lease_s": 600}
            taken = (await self.queue.post("/dequeue", json=body)).json()["items"]
            came += [item["dag"]["node"] for item in taken]
            if taken:
                said = [{"id": item["id"], "lease_token": item["lease_token"]} for item in taken]
                results = (await self.queue.post("/ack", json={"items": said})).json()["results"]
                assert {result["status"] for result in results} == {"acked"}
        assert (await self.dag.get(f"/dags/{dag}")).json()["state"] == "succeeded"
        return came

    async def keeps_its_bounds(self) -> None:
        for process in self.processes:
            peak_mib = _peak_mib(process)
            async with httpx.AsyncClient(base_url=process.url) as client:
                stalls = {
                    le: int(float(count)) for le, count in _BUCKET.findall((await client.get("/metrics")).text)
                }
            print(f"{process.name}: {peak_mib} MiB at most; stalls of its loop by length: {stalls}")
            assert peak_mib <= MEMORY_MIB_MAX
            assert stalls[f"{STALL_S_MAX}"] == stalls["+Inf"], "something held the loop that goes in no steps"


def _peak_mib(process: Process) -> int:
    status = Path(f"/proc/{process.child.pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) // 1024


@pytest.fixture
async def fleet(database: Database, tmp_path: Path) -> AsyncIterator[Fleet]:
    valkey = Valkey(ValkeySettings(port=lasting_port(), run_dir=tmp_path))
    await valkey.start()
    async with fleet_on(database, valkey.url, tmp_path) as made:
        yield made
    await valkey.stop()


@pytest.fixture
async def large(fleet: Fleet) -> AsyncIterator[Large]:
    [queue] = await fleet.add("queue", "q1")
    [dag] = await fleet.add("dag", "d1", HEADGATE_QUEUE_URL=queue.url)
    made = Large(queue, dag)
    yield made
    await made.queue.aclose()
    await made.dag.aclose()


async def test_a_node_that_waits_for_a_hundred_thousand_comes_last(large: Large) -> None:
    dag = await large.made()
    await large.add(dag, [{"key": "joint"}])
    for begin in range(0, IN_DEGREE, BATCH_MAX):
        roots = [f"r{n}" for n in range(begin, begin + BATCH_MAX)]
        await large.add(dag, [{"key": key} for key in roots])
        edges = [{"upstream": key, "downstream": "joint"} for key in roots]
        answer = await large.dag.post(f"/dags/{dag}/dependencies", json={"dependencies": edges})
        assert answer.status_code in (200, 201), answer.text[:500]
    came = await large.run(dag)
    assert (len(came), came[-1]) == (IN_DEGREE + 1, "joint")
    await large.keeps_its_bounds()


async def test_two_million_edges_are_gone_through_in_order(large: Large) -> None:
    dag = await large.made()
    above: list[str] = []
    for layer in range(LAYERS):
        keys = [f"{layer}.{n}" for n in range(WIDTH)]
        await large.add(dag, [{"key": key, "upstream": above} for key in keys])
        above = keys
    came = await large.run(dag)
    assert len(came) == WIDTH * LAYERS
    assert [key.partition(".")[0] for key in came] == sorted(key.partition(".")[0] for key in came)
    await large.keeps_its_bounds()
