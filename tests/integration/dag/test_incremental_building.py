"""Graphs that many builders make at once, in any order, on two hosts, while their nodes run already."""

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

from tests.support.dag_world import BASE, DagWorld

BUILDERS = 6


def layered(rng: random.Random, layers: int, width: int) -> dict[str, list[str]]:
    """A graph whose edges span up to all of its layers."""
    keys = [[f"{layer}.{i}" for i in range(width)] for layer in range(layers)]
    above: list[str] = []
    graph: dict[str, list[str]] = {}
    for layer in keys:
        for key in layer:
            graph[key] = rng.sample(above, min(len(above), rng.randint(0, 4)))
        above += layer
    return graph


async def build(host: DagWorld, dag: str, calls: list[tuple[str, Any]]) -> None:
    """One builder: its calls in its order; one that names what is not there yet is sent again later."""
    waiting = list(calls)
    while waiting:
        verb, body = waiting.pop(0)
        answer = await host.http.post(f"{BASE}/{dag}/{verb}", json=body)
        if answer.status_code == 422 and answer.json()["code"] == "unknown_node":
            waiting.append((verb, body))
            await asyncio.sleep(0)
        elif answer.status_code == 503:
            waiting.insert(0, (verb, body))
            await asyncio.sleep(0)  # else nothing else would run: what asks the shard again neither
        else:
            assert answer.status_code < 300, answer.text


async def run(hosts: list[DagWorld], until: asyncio.Event) -> None:
    """Whatever can run, runs, on either host."""
    queue = hosts[0].queue
    while not until.is_set():
        for host in hosts:
            for key in queue.deliverable()[:3]:
                queue.ack(key)
            await host.loops.results[0].drain()
            await host.loops.relay.idle()
        await asyncio.sleep(0)


@pytest.mark.parametrize("seed", range(4))
async def test_many_builders_in_any_order_on_two_hosts_make_one_graph_that_runs_in_order(
    world: DagWorld, seed: int
) -> None:
    """Nodes of many builders, those that wait for others' by an external `go` until their edges are there."""
    rng = random.Random(seed)
    other = DagWorld(world.database, world.queue)
    graph = layered(rng, 5, 8)
    dag = await world.create(open=True)
    nodes = [("nodes", {"nodes": [{"key": key, "topic": "work", "external": ["go"]}]}) for key in graph]
    edges = [
        ("dependencies", {"dependencies": [{"upstream": up, "downstream": key}]})
        for key, ups in graph.items()
        for up in ups
    ]
    # Some externals are resolved before the node is there; never before its edges are, so that it runs in order.
    rootless = [key for key, ups in graph.items() if not ups]
    early = [("resolve", {"external": [{"node": key, "name": "go"}]}) for key in rootless]
    calls: list[list[tuple[str, Any]]] = [[] for _ in range(BUILDERS)]
    everything = nodes + edges + early + rng.sample(nodes, 10) + rng.sample(edges, 10)
    rng.shuffle(everything)
    for call in everything:
        rng.choice(calls).append(call)
    done = asyncio.Event()
    running = asyncio.create_task(run([world, other], done))
    await asyncio.gather(*(build(rng.choice([world, other]), dag, part) for part in calls))
    late = [{"node": key, "name": "go"} for key, ups in graph.items() if ups]
    rng.shuffle(late)
    for i in range(0, len(late), 7):
        await rng.choice([world, other]).verb(dag, "resolve", {"external": late[i : i + 7]})
    await world.verb(dag, "close")
    async with asyncio.timeout(60):
        while (await world.dag(dag))["state"] == "running":
            await world.loops.walker.step(world.shard)
            await asyncio.sleep(0.01)
    done.set()
    await running
    order = [node for node, _ in world.queue.delivered]
    assert Counter(order) == Counter(list(graph))
    assert all(order.index(up) < order.index(key) for key, ups in graph.items() for up in ups)
    assert (await world.dag(dag))["state"] == "succeeded"
    await other.close()


async def test_edges_between_old_nodes_with_long_paths_never_close_a_cycle(
    world: DagWorld,
) -> None:
    """Two long chains, joined and joined back by two hosts that each know only their own edges."""
    other = DagWorld(world.database, world.queue)
    length = 300
    dag = await world.create(open=True, hold=True)
    for name in "pq":
        await world.add(dag, {f"{name}{i}": [f"{name}{i - 1}"] if i else [] for i in range(length)})
    await world.link(dag, ("p299", "q0"))
    cycle = await other.link(dag, ("q299", "p0"), expect=422)
    assert (cycle["code"], cycle["outcome"]) == ("cycle", "none")
    await other.link(dag, ("p0", "q299"), ("p150", "q150"))
    for up, down in (("q150", "p150"), ("q0", "p299"), ("q299", "p150")):
        assert (await world.link(dag, (up, down), expect=422))["code"] == "cycle"
    await world.verb(dag, "release")
    await world.settle()
    order = []
    while ready := world.queue.deliverable():
        for key in ready:
            order.append(key)
            world.queue.ack(key)
        await world.settle()
    assert order == [f"{name}{i}" for name in "pq" for i in range(length)]
    await other.close()


@pytest.mark.parametrize("ended", [False, True])
async def test_an_edge_into_what_has_ended_closes_no_cycle_either(world: DagWorld, ended: bool) -> None:
    """It changes nothing, and was taken wherever it led: who had it the wrong way round was not told."""
    dag = await world.create({"a": [], "b": ["a"], "c": ["b"], "x": [], "y": []}, open=not ended)
    await world.settle()
    for key in ("a", "b", "c", "x", "y"):
        world.queue.ack(key)
        await world.settle()
    assert (await world.dag(dag))["state"] == ("succeeded" if ended else "running")
    before = await world.rows("SELECT * FROM edge")
    for edges, cycle in (
        ([("b", "a")], "b -> a -> b"),
        ([("c", "a")], "c -> a -> b -> c"),
        ([("x", "c"), ("c", "a")], "c -> a -> b -> c"),
        ([("x", "y"), ("y", "x")], "x -> y -> x"),
        ([("x", "x")], "x -> x"),
    ):
        refused = await world.link(dag, *edges, expect=422)
        assert (refused["code"], refused["outcome"]) == ("cycle", "none")
        assert is_same_cycle(refused["detail"], cycle), refused["detail"]
    await world.link(dag, ("a", "b"), ("b", "c"))
    await world.link(dag, ("a", "c"), ("x", "y"))
    await world.link(dag, ("y", "x"))
    assert await world.rows("SELECT * FROM edge") == before, "none of them is kept"


async def test_a_long_way_back_is_seen_too(world: DagWorld) -> None:
    keys = [f"n{i}" for i in range(30)]
    dag = await world.create({key: keys[max(i - 1, 0) : i] for i, key in enumerate(keys)}, open=True)
    for key in keys:
        await world.settle()
        world.queue.ack(key)
    await world.settle()
    assert (await world.link(dag, (keys[-1], keys[0]), expect=422))["code"] == "cycle"


def is_same_cycle(said: str, cycle: str) -> bool:
    """Whether a cycle is named, from whichever of its nodes on."""
    *keys, _ = said.rpartition(": ")[2].split(" -> ")
    *wanted, _ = cycle.split(" -> ")
    return any(keys[i:] + keys[:i] == wanted for i in range(len(keys)))


async def test_an_edge_from_what_runs_to_itself_is_a_cycle_and_not_late(world: DagWorld) -> None:
    dag = await world.create({"a": []})
    await world.settle()
    assert (await world.link(dag, ("a", "a"), expect=422))["code"] == "cycle"


async def test_a_running_node_adds_nodes_and_edges_into_what_waits_for_it(world: DagWorld) -> None:
    """Without `open`: the running node keeps the DAG alive, and what it adds is waited for."""
    dag = await world.create({"split": [], "join": ["split"]})
    await world.settle()
    parts = {f"part{i}": ["split"] for i in range(20)}
    await world.add(dag, parts, dependencies=[{"upstream": key, "downstream": "join"} for key in parts])
    world.queue.ack("split")
    await world.settle()
    assert sorted(world.queue.deliverable()) == sorted(parts)
    for i, key in enumerate(parts):
        assert (await world.states(dag))["join"] == "blocked", f"released after {i} of {len(parts)}"
        world.queue.ack(key)
        await world.settle()
    assert world.queue.deliverable() == ["join"]
    late = await world.link(dag, ("part0", "join"))
    assert late["dependencies"]
    world.queue.ack("join")
    await world.settle()
    assert (await world.dag(dag))["state"] == "succeeded"
