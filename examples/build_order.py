"""Build a real package and everything below it, each only when what it depends on is built.

    python -m examples.build_order            # against the services of `make run`

The graph is that of Debian's `digikam`: 589 packages, 2,527 dependencies, up to 29 deep (examples/data/derive.py
derived it). "Building" is a short pause and a digest over the digests of all dependencies, so the last digest is
right only if every package saw all of its dependencies finished.
"""

import asyncio
import graphlib
import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from headgate import AsyncClient, Dag, Job, Worker

TOPIC = "build"
GRAPH = Path(__file__).with_name("data") / "digikam.json"
SLOTS = 16


def load(path: Path = GRAPH) -> Any:
    """`{note, nodes: [{key, installed_kib}], edges: [[dependency, dependent]]}`."""
    return json.loads(path.read_text())


def build_dag(graph: Any, *, topic: str = TOPIC) -> Dag:
    """The graph as a DAG that is held until it is released."""
    dag = Dag("build order", hold=True)
    for node in graph["nodes"]:
        payload = {"package": node["key"], "build_ms": build_ms(node["installed_kib"])}
        dag.node(node["key"], topic, payload=payload, pass_outputs=True, max_attempts=1)
    for dependency, dependent in graph["edges"]:
        dag.depend(dependency, dependent)
    return dag


def build_ms(installed_kib: int) -> float:
    """How long a package of that size is "built": 2 to 20 ms."""
    return round(2 + 18 * min(1.0, installed_kib / 20_000), 1)


def digest(package: str, dependencies: Mapping[str, str]) -> str:
    """What building a package yields, given what its dependencies yielded."""
    below = "".join(f"{name}={dependencies[name]}\n" for name in sorted(dependencies))
    return sha256(f"{package}\n{below}".encode()).hexdigest()[:16]


def expected_digests(graph: Any) -> dict[str, str]:
    """The digest of every package, worked out here, one after another."""
    below: dict[str, list[str]] = {node["key"]: [] for node in graph["nodes"]}
    for dependency, dependent in graph["edges"]:
        below[dependent].append(dependency)
    found: dict[str, str] = {}
    for name in graphlib.TopologicalSorter(below).static_order():
        found[name] = digest(name, {dependency: found[dependency] for dependency in below[name]})
    return found


def add_tasks(worker: Worker, *, topic: str = TOPIC, slots: int = SLOTS) -> None:
    """Let a worker build packages."""

    @worker.task(topic, slots=slots)
    async def build(job: Job) -> str:
        await asyncio.sleep(job.payload["build_ms"] / 1_000)
        return digest(job.payload["package"], job.inputs or {})


async def main() -> None:
    """Submit the graph, build it in this process, and compare the digests."""
    graph = load()
    async with AsyncClient() as client:
        worker = Worker(client)
        add_tasks(worker)
        handle = await client.submit(build_dag(graph))
        working = asyncio.create_task(worker.run(signals=False))
        await handle.release()
        dag = await handle.wait()
        worker.stop()
        await working
        built = {node.key: node.output for node in await handle.nodes()}
    print(f"{dag.state}: {dag.nodes.succeeded} of {dag.nodes.total} packages built")
    assert built == expected_digests(graph), "a package was built before its dependencies"


if __name__ == "__main__":
    asyncio.run(main())
