"""Graphs of real programs, from create to end."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.cost import Cost
from benchmarks.graphs import Graph, chain, fan, layered, tail_heavy
from benchmarks.machine import Meter
from benchmarks.outcome import Outcome
from benchmarks.runs import Builder, Consumers
from benchmarks.scenarios.layered import run_held

TOPIC = "shapes"
FOLDER = Path(__file__).resolve().parents[3] / "shared" / "dags"
# A short graph is run several times a slice, so that there is something to measure.
NODES_A_SLICE = 2_000

METHOD = """\
Graphs of real programs, where they lie beside the project (`../shared/dags`), and shapes made here: a chain, a
fan, layers, a package archive. Each is created held, in calls of 1,000 nodes with their edges, then released; 4
connections dequeue up to 100 items by long poll and ack them at once. Counted from the first create call to the
end. Small graphs are run one after another until about 2,000 nodes have run."""


async def run(bench: Bench) -> Outcome:
    """Measure every graph in turns."""
    outcome = Outcome("shapes", METHOD)
    plan = bench.plan
    graphs = _made(plan.sized(1_000, 60)) | ({} if plan.small else _found())
    bench.progress.begin("shapes", plan.rounds * len(graphs))
    rates: dict[str, list[float]] = {name: [] for name in graphs}
    costs = {name: Cost() for name in graphs}
    builder = Builder(bench.stack.dag_url, TOPIC)
    async with Consumers(bench.stack.queue_url, TOPIC):
        for _ in range(plan.rounds):
            for name, graph in graphs.items():
                nodes = len(graph.keys)
                repeats = max(1, plan.sized(NODES_A_SLICE, 1) // nodes)
                wal_from, before = await bench.stack.wal_bytes(), bench.stack.meter.read()
                elapsed_s = sum([(await run_held(builder, graph))[0] for _ in range(repeats)])
                busy = Meter.between(before, bench.stack.meter.read())
                bench.watch(outcome, busy)
                costs[name].add(busy, nodes * repeats, await bench.stack.wal_bytes() - wal_from)
                rates[name].append(nodes * repeats / elapsed_s)
                bench.progress.step(f"{name}: {rates[name][-1]:,.0f} nodes/s")
    builder.close()
    for name, graph in graphs.items():
        what = f"{name}: {len(graph.keys):,} nodes, {len(graph.edges):,} edges"
        outcome.add(what, "nodes/s", rates[name], costs[name])
    return outcome


def _made(nodes: int) -> dict[str, Graph]:
    return {
        "chain": chain(nodes // 10),
        "fan": fan(nodes - 2),
        "layers of 50": layered(nodes, layer=min(50, nodes // 2), edges_per_node=3, seed=1),
        "package archive": tail_heavy(nodes, edges=nodes * 4, seed=1),
    }


def _found() -> dict[str, Graph]:
    graphs: dict[str, Graph] = {}
    for path in sorted(FOLDER.glob("*.dag.json.gz")):
        with gzip.open(path) as file:
            found = json.load(file)
        keys = [node["id"] for node in found["nodes"]]
        edges = tuple((up, down) for up, down in found["edges"])
        graphs[path.name.partition(".")[0]] = in_order(keys, edges)
    return graphs


def in_order(keys: list[str], edges: tuple[tuple[str, str], ...]) -> Graph:
    """The graph with its nodes in a topological order, so that a call names only nodes that exist."""
    waiting = dict.fromkeys(keys, 0)
    below: dict[str, list[str]] = {key: [] for key in keys}
    for up, down in edges:
        waiting[down] += 1
        below[up].append(down)
    ready = [key for key in keys if not waiting[key]]
    for key in ready:  # grows while it is walked
        for down in below[key]:
            waiting[down] -= 1
            if not waiting[down]:
                ready.append(down)
    return Graph(tuple(ready), edges)
