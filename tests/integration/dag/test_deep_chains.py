"""Chains of any depth: skips and retries go down many levels at a time, and decide what single levels would."""

import random
from typing import Any

import pytest

from services.dag import store
from services.dag.graph import decide
from services.dag.model import Counts
from tests.integration.dag.test_reopening import ended, is_reopening, run_out, step, steps_of
from tests.support.clocks import ManualClock
from tests.support.dag_world import DagWorld, specs

TRIGGERS = ["all_succeeded"] * 6 + ["all_done", "any_succeeded", "any_failed", "none_failed"]


def chain(length: int) -> dict[str, list[str]]:
    return {f"n{i}": [f"n{i - 1}"] if i else [] for i in range(length)}


def drawn(seed: int) -> tuple[list[dict[str, Any]], set[str]]:
    """A deep graph, mostly of nodes that need all their upstreams, and what dies in it."""
    dice = random.Random(seed)
    keys = [f"n{i}" for i in range(30)]
    nodes: list[dict[str, Any]] = []
    for i, key in enumerate(keys):
        ups = dice.sample(keys[max(0, i - 5) : i], min(i, dice.choice([0, 1, 1, 1, 2, 3])))
        nodes.append({"key": key} | ({"upstream": ups, "trigger": dice.choice(TRIGGERS)} if ups else {}))
    return nodes, set(dice.sample(keys, 4)) | {"n0"}


def expected(nodes: list[dict[str, Any]], dying: set[str]) -> dict[str, str]:
    """How each node ends, one after another."""
    states: dict[str, str] = {}
    for node in nodes:
        counts = Counts()
        for up in node.get("upstream", ()):
            counts.add(states[up])
        runs = decide(node.get("trigger", "all_succeeded"), counts) == "fire"
        states[node["key"]] = ("failed" if node["key"] in dying else "succeeded") if runs else "skipped"
    return states


@pytest.mark.parametrize("edges_max", [1, 2, 5, 1_000])
async def test_skips_many_levels_down_are_those_of_single_levels(world: DagWorld, edges_max: int) -> None:
    world.settings.__dict__.update(edges_per_step_max=edges_max, walk_edges_max=edges_max)
    for seed in range(8):
        nodes, dying = drawn(seed)
        dag = await ended(world, nodes, dying)
        assert await world.states(dag) == expected(nodes, dying)
        await world.audit(dag)


async def test_a_chain_of_skips_is_not_a_statement_for_each_level(
    world: DagWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    flips, flip = 0, store.edges.flip_edges
    world.duties.context.clock = ManualClock(wall=True)  # no step is slow

    async def counting(*given: Any) -> Any:
        nonlocal flips
        flips += 1
        return await flip(*given)

    dag = await world.create(chain(900))
    await world.settle()
    world.queue.die("n0")
    monkeypatch.setattr(store.edges, "flip_edges", counting)
    await world.settle()
    assert (await world.dag(dag))["nodes"]["skipped"] == 899
    assert flips < 30


async def test_skips_many_levels_down_look_at_so_many_edges(
    world: DagWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.settings.__dict__.update(edges_per_step_max=40, walk_edges_max=40)
    found, below = [], store.edges.skipped_below

    async def counting(tx: Any, skipped: Any, edges_max: int) -> Any:
        nodes = await below(tx, skipped, edges_max)
        found.append((len(nodes), edges_max))
        return nodes

    monkeypatch.setattr(store.edges, "skipped_below", counting)
    dag = await ended(world, chain(200), dying={"n0"})
    assert (await world.dag(dag))["nodes"]["skipped"] == 199
    assert all(nodes <= edges_max <= 20 for nodes, edges_max in found)


async def test_what_a_call_skips_stands_beside_what_is_skipped_because_of_it(world: DagWorld) -> None:
    dag = await world.create(chain(8))
    await world.settle()
    await world.verb(dag, "skip", {"nodes": ["n2", "n5"]})
    await world.settle()
    assert set((await world.states(dag)).values()) == {"released", "blocked", "skipped"}
    world.queue.die("n0")
    await world.settle()
    await world.verb(dag, "retry")
    assert await run_out(world) == ["n0", "n1"]
    states = await world.states(dag)
    assert [states[f"n{i}"] for i in range(2, 8)] == ["skipped"] * 6


async def test_a_retry_goes_down_a_chain_many_levels_in_a_step(
    world: DagWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, below = 0, store.reopening.reach_below
    world.duties.context.clock = ManualClock(wall=True)  # no step is slow

    async def counting(*given: Any, **more: Any) -> Any:
        nonlocal looks
        looks += 1
        return await below(*given, **more)

    monkeypatch.setattr(store.reopening, "reach_below", counting)
    steps_of(world, 100)
    dag = await ended(world, specs(chain(500)), dying={"n0"})
    await world.verb(dag, "retry")
    while await is_reopening(world):
        await step(world)
    assert looks <= 8
    assert (await world.dag(dag))["nodes"]["blocked"] >= 499
    world.queue.forget()
    await world.verb(dag, "cancel", expect=202)
    await world.settle()
