"""Graphs of real programs run to their end through both services: each node once, none before its upstreams.

They lie beside the project, in `../shared/dags`; where that folder is absent its graphs are skipped. Large
graphs of ours take their place in every checkout.
"""

import asyncio
import gzip
import json
import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from headgate import AsyncClient, Dag
from tests.support.apps import dag_service, queue_service
from tests.support.databases import Databases

FOLDER = Path(__file__).resolve().parents[4] / "shared" / "dags"
NAMES = [
    "bazel-gvisor",
    "dax-Sipht_100",
    "debian12-texlive-full",
    "estee-pegasus",
    "npm-pypi-warehouse",
    "wf-1000genome-chameleon-22ch-250k-001",
    "wf-blast-chameleon-large-005",
    "wf-bwa-chameleon-large-005",
    "wf-helloworld-chain-5-chameleon",
    "wf-helloworld-forkjoin-10-chameleon",
    "wf-montage-chameleon-dss-15d-001",
    "wf-rnaseq-dirt02-001",
    "wf-sarek-dirt02-001",
    "wf-seismology-chameleon-1100p-001",
    "wfgen-montage-5000",
]
CONSUMERS = 3
NODES_AT_ONCE = 200


@dataclass
class Graph:
    """Nodes and edges by key."""

    name: str
    nodes: list[str]
    edges: list[tuple[str, str]]


@dataclass
class History:
    """Deliveries and acks of one graph, in the order in which the consumers saw them."""

    graph: Graph
    started: Counter[str] = field(default_factory=Counter)
    acked: set[str] = field(default_factory=set)
    early: list[str] = field(default_factory=list)
    ups: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for up, down in self.graph.edges:
            self.ups.setdefault(down, []).append(up)

    def start(self, key: str) -> None:
        """A node was delivered: all its upstreams must have been acked before."""
        self.started[key] += 1
        self.early += [f"{key} before {up}" for up in self.ups.get(key, ()) if up not in self.acked]


def read(name: str) -> list[Graph]:
    """The graphs of one file."""
    [path] = FOLDER.glob(f"{name}.*.json.gz")
    with gzip.open(path) as file:
        found = json.load(file)
    if isinstance(found, dict):
        edges = [(up, down) for up, down in found["edges"]]
        return [Graph(name, [node["id"] for node in found["nodes"]], edges)]
    return [
        Graph(one["name"], [str(n) for n in range(one["n"])], [(str(up), str(down)) for up, down in one["edges"]])
        for one in found
    ]


@pytest.fixture(scope="module")
async def client(databases: Databases, redis_url: str) -> AsyncIterator[AsyncClient]:
    """Both services on real shards, and a client of both."""
    database = await databases.create(queue_shards=2, dag_shards=2)
    async with (
        queue_service(database, redis_url) as queue,
        dag_service(database, redis_url, queue.url) as dag,
        AsyncClient(queue_url=queue.url, dag_url=dag.url, timeout_s=40) as made,
    ):
        yield made
    await databases.drop(database)


async def consume(client: AsyncClient, topic: str, history: History) -> None:
    """Take, check and ack until the graph is done."""
    while len(history.acked) < len(history.graph.nodes):
        items = await client.dequeue({topic: NODES_AT_ONCE}, wait_s=1)
        for item in items:
            assert item.dag is not None
            history.start(item.dag.node)
            # Whoever runs behind this node may start as soon as the ack is sent.
            history.acked.add(item.dag.node)
        if items:
            results = await client.ack([item.ack() for item in items])
            assert {result.status for result in results} == {"acked"}


async def run(client: AsyncClient, graph: Graph, dag_id: str, topic: str) -> None:
    """Consume a graph that was submitted, and check its history."""
    history = History(graph)
    async with asyncio.timeout(60):
        await asyncio.gather(*(consume(client, topic, history) for _ in range(CONSUMERS)))
        found = await client.dag(dag_id).wait(timeout_s=10)
    assert found.state == "succeeded", found
    assert found.nodes.succeeded == len(graph.nodes)
    assert history.early == []
    assert history.started == Counter(graph.nodes)


async def submit(client: AsyncClient, graph: Graph, topic: str) -> str:
    """The graph, through the SDK's builder."""
    dag = Dag(graph.name)
    for key in graph.nodes:
        dag.node(key, topic=topic)
    for up, down in graph.edges:
        dag.depend(up, down)
    handle = await client.submit(dag)
    return handle.id


async def build_edges_last(client: AsyncClient, graph: Graph, topic: str) -> str:
    """The graph by four builders at once: nodes first, then edges in random order."""
    made = await client.create_dag({"name": graph.name, "hold": True})
    handle = client.dag(made.id)
    shuffled = list(graph.edges)
    random.Random(3).shuffle(shuffled)

    async def add(path: str, field_name: str, elements: list[Any]) -> None:
        for start in range(0, len(elements), 500):
            answer = await http.post(path, json={field_name: elements[start : start + 500]})
            assert answer.status_code == 201, answer.text

    async with httpx.AsyncClient(base_url=client.endpoints.dag_url, timeout=60) as http:
        base = f"/v1/namespaces/default/dags/{made.id}"
        nodes = [{"key": key, "topic": topic} for key in graph.nodes]
        edges = [{"upstream": up, "downstream": down} for up, down in shuffled]
        await asyncio.gather(*(add(f"{base}/nodes", "nodes", nodes[i::4]) for i in range(4)))
        await asyncio.gather(*(add(f"{base}/dependencies", "dependencies", edges[i::4]) for i in range(4)))
    await handle.release()
    return made.id


@pytest.mark.drawn(5)
@pytest.mark.skipif(not FOLDER.is_dir(), reason=f"{FOLDER} with its graphs of real programs is absent")
@pytest.mark.parametrize("name", NAMES)
async def test_a_real_graph_runs_in_order_and_once(client: AsyncClient, name: str) -> None:
    for i, graph in enumerate(read(name)):
        topic = f"{name[:60]}/{i}"
        await run(client, graph, await submit(client, graph, topic), topic)


@pytest.mark.skipif(not FOLDER.is_dir(), reason=f"{FOLDER} with its graphs of real programs is absent")
async def test_a_real_graph_built_nodes_first_by_four_builders_runs_in_order(client: AsyncClient) -> None:
    [graph] = read("bazel-gvisor")
    topic = "edges-last"
    await run(client, graph, await build_edges_last(client, graph, topic), topic)


async def test_one_to_998_to_one(client: AsyncClient) -> None:
    middle = [f"m{i}" for i in range(998)]
    edges = [("first", key) for key in middle] + [(key, "last") for key in middle]
    graph = Graph("wide", ["first", *middle, "last"], edges)
    await run(client, graph, await submit(client, graph, "wide"), "wide")


async def test_many_layers(client: AsyncClient) -> None:
    rng = random.Random(11)
    layers = [[f"{layer}.{i}" for i in range(20)] for layer in range(40)]
    edges = [(up, down) for above, below in pairwise(layers) for down in below for up in rng.sample(above, 3)]
    graph = Graph("layers", [key for layer in layers for key in layer], edges)
    await run(client, graph, await submit(client, graph, "layers"), "layers")
