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


async def test_cleanup_alone_is_retried_at_once_whatever_edges_it_has(
    world: DagWorld, counted: list[tuple[int, int]]
) -> None:
    """The ordinary nodes, and with them the DAG's end, are not touched."""
    ups = [f"up{n}" for n in range(6)]
    cleanups = [{"key": f"clean{n}", "run_on": "always", "upstream": ups} for n in range(3)]
    dag = await ended(world, [*specs({key: [] for key in ups}), *cleanups], dying={"clean1"})
    world.settings.__dict__.update(retry_at_once_edges_max=0)
    await world.verb(dag, "retry")
    assert not await is_reopening(world)
    assert await run_out(world) == ["clean1"]
    assert_bounded(counted, at_least=1)


async def test_cleanup_that_comes_again_counts_towards_the_bound(world: DagWorld) -> None:
    ups = [f"up{n}" for n in range(6)]
    cleanups = [{"key": f"clean{n}", "run_on": "always", "upstream": ups, "trigger": "all_done"} for n in range(5)]
    dag = await ended(world, [*specs({key: [] for key in ups}), *cleanups], dying={"up0"})
    world.settings.__dict__.update(retry_at_once_edges_max=20)
    await world.verb(dag, "retry")
    assert await is_reopening(world)
    assert sorted(await run_out(world)) == sorted(["up0", *(f"clean{n}" for n in range(5))])


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
