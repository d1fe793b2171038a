"""Retries and cleanup where edges abound: every statement has its bound in edges, and each comes to its end."""

import json
from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest

from services.dag import store
from services.dag.model import Node, within
from services.dag.store.dags import SQL
from shared.postgres.connections import Transaction
from shared.postgres.session import PINNED
from tests.integration.dag.test_reopening import ended, is_reopening, run_out
from tests.support.dag_world import DagWorld, specs

EDGES_MAX = 8


def layers(count: int, width: int) -> dict[str, list[str]]:
    """A graph in which each node waits for all of the layer above."""
    return {
        f"{layer}.{n}": [f"{layer - 1}.{up}" for up in range(width)] if layer else []
        for layer in range(count)
        for n in range(width)
    }


@pytest.fixture
def counted(world: DagWorld, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """What each statement that counts edges anew was given: how many nodes, and how many edges into them."""
    calls: list[tuple[int, int]] = []
    recount = store.edges.recount_edges

    async def counting(tx: Transaction, nos: Any) -> None:
        calls.append((len(nos), sum(node.upstreams for node in await store_nodes(tx, nos))))
        await recount(tx, nos)

    async def store_nodes(tx: Transaction, nos: Any) -> list[Node]:
        return [Node(*row) for row in await tx.fetch(SQL.nodes_by_no, nos=nos)]

    monkeypatch.setattr(store.edges, "recount_edges", counting)
    world.settings.__dict__.update(retry_step_edges=EDGES_MAX, scan_edges_max=EDGES_MAX)
    return calls


def assert_bounded(calls: list[tuple[int, int]], *, at_least: int) -> None:
    assert len(calls) >= at_least
    assert all(edges <= EDGES_MAX or nodes == 1 for nodes, edges in calls), calls


@pytest.mark.parametrize("body", [{}, {"all": True}, {"from": ["0.0", "0.1", "0.2", "0.3"]}])
async def test_a_retry_of_few_nodes_and_many_edges_goes_in_steps(
    world: DagWorld, counted: list[tuple[int, int]], body: Any
) -> None:
    graph = layers(5, 4)
    world.settings.__dict__.update(retry_at_once_edges_max=30)
    dag = await ended(world, graph, dying={"0.0"})
    await world.verb(dag, "retry", body)
    assert await is_reopening(world)
    ran = await run_out(world)
    assert set(graph) - set(ran) == (set() if body else {"0.1", "0.2", "0.3"})
    assert len(ran) == len(set(ran))
    assert (await world.dag(dag))["state"] == "succeeded"
    assert_bounded(counted, at_least=8)


async def test_a_retry_at_once_counts_edges_in_pieces(world: DagWorld, counted: list[tuple[int, int]]) -> None:
    dag = await ended(world, layers(5, 4), dying={"0.0"})
    await world.verb(dag, "retry", {"all": True})
    assert not await is_reopening(world)
    assert_bounded(counted, at_least=8)
    assert len(await run_out(world)) == 20


async def test_edges_into_what_waits_below_count_too(world: DagWorld, counted: list[tuple[int, int]]) -> None:
    """The nodes that run again have one edge; the node that they keep waiting has many."""
    graph = {f"up{n}": [] for n in range(40)} | {"bad": []}
    dag = await world.create([*specs(graph), {"key": "join", "upstream": list(graph), "trigger": "all_done"}])
    await world.settle()
    world.queue.die("bad")
    await world.settle()
    for edges_max, steps in ((41, False), (40, True)):
        world.settings.__dict__.update(retry_at_once_edges_max=edges_max)
        await world.verb(dag, "retry")
        assert await is_reopening(world) == steps
        await world.settle()
        world.queue.die("bad")
        await world.settle()
    await world.verb(dag, "retry")
    assert len(await run_out(world)) == 42


async def test_cleanup_counts_edges_in_pieces(world: DagWorld, counted: list[tuple[int, int]]) -> None:
    ups = [f"up{n}" for n in range(6)]
    nodes = [
        *specs({key: [] for key in ups}),
        *({"key": f"clean{n}", "run_on": "always", "upstream": ups, "trigger": "all_done"} for n in range(5)),
    ]
    dag = await world.create(nodes)
    assert len(await run_out(world)) == 11
    assert (await world.dag(dag))["state"] == "succeeded"
    assert_bounded(counted, at_least=5)


@pytest.mark.parametrize("body", [{}, {"nodes": ["clean1"]}, {"from": ["clean1"]}])
@pytest.mark.parametrize("edges_max", [0, 1_000])
async def test_cleanup_alone_is_retried_in_bounded_steps_whatever_edges_it_has(
    world: DagWorld, counted: list[tuple[int, int]], edges_max: int, body: Any
) -> None:
    """The ordinary nodes, and with them the DAG's end, are not touched."""
    ups = [f"up{n}" for n in range(6)]
    cleanups = [{"key": f"clean{n}", "run_on": "always", "upstream": ups} for n in range(3)]
    below = {"key": "below", "run_on": "always", "upstream": ["clean1"]}
    dag = await ended(world, [*specs({key: [] for key in ups}), *cleanups, below], dying={"clean1"})
    world.settings.__dict__.update(retry_at_once_edges_max=edges_max, retry_step_nodes=1)
    found = await world.verb(dag, "retry", body)
    assert await is_reopening(world) == (edges_max == 0)
    assert (await world.add(dag, {"more": []}, expect=409))["code"] == "dag_finished"
    assert found["state"] == (await world.verb(dag, "cancel", expect=202))["state"] == "running"
    assert await run_out(world) == ["clean1", "below"]
    assert (await world.dag(dag))["state"] == "succeeded"
    assert_bounded(counted, at_least=1)


@pytest.mark.parametrize("at_once", [True, False])
async def test_compensation_alone_that_is_retried_undoes_again_and_the_dag_keeps_its_end(
    world: DagWorld, at_once: bool
) -> None:
    undone = [f"n{n}" for n in range(4)]
    undo = [undoing(key) for key in undone]
    clean = {"key": "clean", "run_on": "always"}
    dag = await ended(world, [*specs({key: [] for key in [*undone, "bad"]}), *undo, clean], dying={"bad"})
    assert (await world.dag(dag))["state"] == "failed"
    world.settings.__dict__.update(retry_step_nodes=1)
    if not at_once:
        world.settings.__dict__.update(retry_at_once_nodes_max=1)
    await world.verb(dag, "retry", {"from": ["undo n1", "undo n2"]})
    assert await is_reopening(world) == (not at_once)
    assert sorted(await run_out(world)) == ["undo n1", "undo n2"]
    assert (await world.dag(dag))["state"] == "failed"


async def test_what_is_retried_with_an_ordinary_node_takes_all_cleanup_along_in_steps(world: DagWorld) -> None:
    undone = [f"n{n}" for n in range(4)]
    undo = [undoing(key) for key in undone]
    clean = [{"key": f"clean{n}", "run_on": "always"} for n in range(3)]
    dag = await ended(world, [*specs({key: [] for key in [*undone, "bad"]}), *undo, *clean], dying={"bad"})
    world.settings.__dict__.update(retry_step_nodes=1, retry_at_once_nodes_max=6)
    await world.verb(dag, "retry")
    assert await is_reopening(world)
    ran = await run_out(world, dying={"bad"})
    assert sorted(ran) == sorted(["bad", *undone, *(each["key"] for each in [*undo, *clean])])
    await world.verb(dag, "retry")
    ran = await run_out(world)
    assert sorted(ran) == sorted(["bad", *undone, *(each["key"] for each in clean)])
    assert (await world.dag(dag))["state"] == "succeeded"


async def test_cleanup_that_comes_again_counts_towards_the_bound(world: DagWorld) -> None:
    ups = [f"up{n}" for n in range(6)]
    cleanups = [{"key": f"clean{n}", "run_on": "always", "upstream": ups, "trigger": "all_done"} for n in range(5)]
    dag = await ended(world, [*specs({key: [] for key in ups}), *cleanups], dying={"up0"})
    world.settings.__dict__.update(retry_at_once_edges_max=20)
    await world.verb(dag, "retry")
    assert await is_reopening(world)
    assert sorted(await run_out(world)) == sorted(["up0", *(f"clean{n}" for n in range(5))])


def undoing(key: str) -> dict[str, Any]:
    return {"key": f"undo {key}", "compensates": key}


@pytest.mark.parametrize("nodes_max", [1, 3])
async def test_a_turn_of_more_compensations_than_a_step_takes_ends_before_the_next_begins(
    world: DagWorld, nodes_max: int
) -> None:
    world.settings.__dict__.update(scan_nodes_max=nodes_max)
    first, then = [f"a{n}" for n in range(5)], [f"b{n}" for n in range(5)]
    nodes = [*({"key": key} for key in first), *({"key": key, "upstream": first} for key in then)]
    dag = await world.create([*nodes, {"key": "bad", "upstream": then}, *map(undoing, [*first, *then])])
    await world.settle()
    order = await run_out(world, dying={"bad"})
    undone = order[order.index("bad") + 1 :]
    assert {*undone[:5]} == {f"undo {key}" for key in then}
    assert {*undone[5:]} == {f"undo {key}" for key in first}
    assert (await world.dag(dag))["state"] == "failed"


async def test_steps_of_a_turn_go_on_while_what_they_released_is_out(world: DagWorld) -> None:
    world.settings.__dict__.update(scan_nodes_max=2)
    done = [f"a{n}" for n in range(5)]
    dag = await world.create([*({"key": key} for key in [*done, "bad"]), *map(undoing, done)])
    await world.settle()
    for key in done:
        world.queue.ack(key)
    world.queue.die("bad")
    await world.settle()
    assert sorted(world.queue.deliverable()) == sorted(f"undo {key}" for key in done)
    await run_out(world)
    assert (await world.dag(dag))["state"] == "failed"


async def test_more_compensations_with_nothing_to_undo_than_a_step_takes_are_skipped_in_several(
    world: DagWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.settings.__dict__.update(scan_nodes_max=2)
    moved, settle = [], store.dags.settle

    async def counting(tx: Any, nodes: Any, *more: Any, **named: Any) -> Any:
        moved.append(len(nodes))
        return await settle(tx, nodes, *more, **named)

    done = [f"a{n}" for n in range(5)]
    clean = {"key": "clean", "run_on": "always"}
    dag = await world.create([*({"key": key} for key in done), *map(undoing, done), clean])
    await world.settle()
    for key in done:
        world.queue.ack(key)
    monkeypatch.setattr(store.dags, "settle", counting)
    await world.settle()
    assert moved.count(2) == 2
    assert max(moved) <= 2
    assert await run_out(world) == ["clean"]
    assert (await world.dag(dag))["nodes"]["skipped"] == 5


def scans(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if plan.get("Relation Name") == "edge":
        yield plan
    for inner in plan.get("Plans", ()):
        yield from scans(inner)


@pytest.mark.parametrize("name", ["retry_reach", "reach_below"])
async def test_no_more_edges_are_looked_at_than_were_asked_for(world: DagWorld, name: str) -> None:
    dag = await ended(world, layers(6, 20), dying={"0.0"})
    [[no]] = await world.rows("SELECT node.no FROM node JOIN dag ON dag.no = dag_no WHERE node.key = '0.0'")
    connection = await asyncpg.connect(
        world.shard.address.dsn, server_settings={**PINNED, "search_path": world.shard.address.schema}
    )
    given = {"nos": [no], "ups": [no], "after_downs": [-1], "states": ["skipped"], "rows_max": 21}
    statement = getattr(SQL, name)
    args = statement.args(**{known: given[known] for known in statement.parameters})
    [[found]] = await connection.fetch(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement.text}", *args)
    await connection.close()
    looked_at = sum(scan["Actual Rows"] * scan["Actual Loops"] for scan in scans(json.loads(found)[0]["Plan"]))
    assert 10 <= looked_at <= 22
    await world.verb(dag, "retry")
    assert len(await run_out(world)) == 101


def test_the_first_nodes_within_a_bound_are_one_at_least() -> None:
    def node(upstreams: int) -> Node:
        return Node(1, 1, "k", "i", "blocked", 1, "all_done", False, True, upstreams, 0, 0, 0, 0, 0, False)

    nodes = [node(5), node(3), node(1)]
    assert [len(within(nodes, edges_max)) for edges_max in (0, 5, 7, 8, 9)] == [1, 1, 1, 2, 3]
    assert within([], 5) == []
