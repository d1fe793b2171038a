"""Nodes of the common shape added by two statements: as the long way adds them, or left to it."""

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

from services.dag import store
from shared.fallback import Fallback
from tests.integration.dag.test_create_batch import stands
from tests.support.dag_world import DagWorld, specs
from tests.support.examples import examples

# How each of these has ended, or stands, when nodes are added.
OLD = {"waits": [], "works": [], "done": [], "failed": [], "skipped": ["failed"], "later": ["works"]}


_EDGES = """
SELECT up.key, down.key, satisfied
FROM edge JOIN node AS up ON up.no = edge.up JOIN node AS down ON down.no = edge.down
WHERE up.dag_no = (SELECT no FROM dag WHERE id = $1) ORDER BY 1, 2"""


@pytest.fixture
def ways(world: DagWorld, monkeypatch: pytest.MonkeyPatch) -> Counter[bool]:
    """How many adds went the short way, and how many were left to the long one."""
    found: Counter[bool] = Counter()
    add_plain = world.duties.builder.add_plain

    async def counted(*args: Any) -> Any:
        added = await add_plain(*args)
        found[not isinstance(added, Fallback)] += 1
        return added

    monkeypatch.setattr(world.duties.builder, "add_plain", counted)
    return found


async def grown(world: DagWorld, **more: Any) -> str:
    """A DAG whose nodes stand as differently as can be."""
    nodes: Any = specs(OLD)
    nodes[0]["external"] = ["x"]
    dag = await world.create(nodes, open=True, **more)
    await world.settle()
    if not more.get("hold"):
        world.queue.ack("done", output={"n": 1})
        world.queue.die("failed")
        await world.settle()
    return dag


def some_nodes(seed: int) -> list[dict[str, Any]]:
    """Nodes that wait for each other and for old ones, of the shape that goes the short way or nearly so."""
    choose = random.Random(seed)
    olds = [*(key for key in OLD if choose.random() < 0.4)]
    if choose.random() < 0.7:
        olds = [key for key in olds if key not in ("failed", "skipped")]
    nodes: list[dict[str, Any]] = []
    for i in range(choose.randrange(1, 8)):
        ups = [key for key in [*olds, *(node["key"] for node in nodes)] if choose.random() < 0.4]
        node: dict[str, Any] = {"key": f"n{i}", "topic": choose.choice("st"), "payload": {"i": i}}
        if ups:
            node["upstream"] = ups
        node["trigger"] = choose.choice(["all_succeeded", "all_done", "none_failed"])
        node |= choose.choice([{}, {"priority": 7}, {"pass_outputs": True}, {"lease_s": 9, "max_attempts": 2}])
        nodes.append(node)
    return nodes


async def stands_by_key(world: DagWorld, dag: str) -> dict[str, Any]:
    """All that is kept of a DAG, but for what is its own and how its nodes are numbered."""
    found = await stands(world, dag)
    [row], nodes, _ = found["rows"]
    edges = [tuple(edge) for edge in await world.rows(_EDGES, dag)]
    return {"items": found["items"], "dag": row, "nodes": sorted(node[:-1] for node in nodes), "edges": edges}


@pytest.mark.parametrize("more", [{}, {"hold": True}], ids=str)
async def test_nodes_added_the_short_way_stand_as_the_long_way_adds_them(
    world: DagWorld, ways: Counter[bool], more: dict[str, Any]
) -> None:
    short = world.http
    seeds = examples(24)
    for seed in range(seeds):
        found, told = [], []
        for by_routes in (False, True):
            world.http = short
            dag = await grown(world, **more)
            if by_routes:
                world.go_by_routes()
            answer = await world.add(dag, some_nodes(seed))
            told.append([(node["key"], node["state"]) for node in answer["nodes"]])
            await world.settle()
            found.append(await stands_by_key(world, dag))
            # The next one begins with nothing in the queue that is named alike.
            await world.verb(dag, "cancel", expect=202)
            await world.settle()
        assert found[0] == found[1], f"seed {seed}"
        assert told[0] == told[1], f"seed {seed}"
    assert ways[True] > seeds // 3 and (more or ways[False] > seeds // 12)
    assert not await world.rows("SELECT * FROM adding")
    assert not await world.rows("SELECT * FROM outbox")
    await world.audit()


async def test_what_is_added_to_an_empty_dag_runs_to_its_end(world: DagWorld, ways: Counter[bool]) -> None:
    dag = await world.create(open=True)
    await world.add(dag, {"a": [], "b": ["a"]})
    await world.add(dag, {"c": ["b", "a"]})
    for key in "abc":
        await world.settle()
        world.queue.ack(key)
    await world.settle()
    await world.audit()
    assert ways == {True: 2}
    assert world.queue.delivered == [(key, 1) for key in "abc"]


async def test_a_node_that_may_run_at_once_is_given_the_outputs_it_asks_for(
    world: DagWorld, ways: Counter[bool]
) -> None:
    dag = await grown(world)
    nodes = [{"key": "root", "pass_outputs": True}, {"key": "below", "pass_outputs": True, "upstream": ["done"]}]
    await world.add(dag, nodes[:1])
    await world.add(dag, nodes[1:])
    await world.settle()
    assert ways == {True: 1, False: 1}, "outputs are read by the long way"
    assert world.queue.item_of("root").inputs == {}
    assert world.queue.item_of("below").inputs == {"done": {"n": 1}}


async def test_the_same_nodes_again_are_recognised_and_others_of_their_keys_refused(
    world: DagWorld, ways: Counter[bool]
) -> None:
    dag = await grown(world)
    nodes = {"a": ["works"], "b": ["a"]}
    first = await world.add(dag, nodes)
    assert await world.add(dag, nodes) == first
    refused = await world.add(dag, {"a": ["waits"]}, expect=409)
    assert refused["code"] == "node_exists"
    refused = await world.add(dag, {"c": ["nobody"]}, expect=422)
    assert (refused["code"], refused["errors"][0]["pointer"]) == ("unknown_node", "/nodes/0/upstream/0")
    assert ways == {True: 1, False: 3}
    assert len(await world.rows("SELECT * FROM node WHERE key IN ('a', 'b', 'c')")) == 2


async def test_two_adds_of_the_same_nodes_at_once_make_them_once(world: DagWorld) -> None:
    dag = await grown(world)
    other = DagWorld(world.database, world.queue)
    try:
        nodes = {f"n{i}": ["works"] for i in range(20)}
        answers = await asyncio.gather(*(at.add(dag, nodes) for at in (world, other) for _ in range(4)))
    finally:
        await other.close()
    assert all(answer == answers[0] for answer in answers)
    assert len(await world.rows("SELECT * FROM node WHERE key LIKE 'n%'")) == 20
    await world.settle()
    await world.audit()


@pytest.mark.parametrize(
    ("limit", "most"),
    [("nodes_per_dag_max", 8), ("edges_per_dag_max", 6), ("degree_max", 4)],
    ids=str,
)
async def test_limits_hold_for_nodes_added_the_short_way(
    world: DagWorld, ways: Counter[bool], limit: str, most: int
) -> None:
    """Six nodes with two edges are there."""
    dag = await world.create(OLD, hold=True)
    world.settings.__dict__[limit] = most - 1
    nodes = {"a": ["waits", "works", "later", "done"], "b": []}
    refused = await world.add(dag, nodes, expect=422)
    assert refused["code"] == "limit_exceeded"
    world.settings.__dict__[limit] = most
    await world.add(dag, nodes)
    assert ways[True] == 1


async def test_an_old_node_has_no_more_downstreams_than_a_node_may_have(
    world: DagWorld, ways: Counter[bool]
) -> None:
    dag = await world.create({"a": [], "b": ["a"], "c": ["a"], "d": ["b"]}, hold=True)
    world.settings.__dict__["degree_max"] = 3
    await world.add(dag, {"e": ["a"]})
    assert (await world.add(dag, {"f": ["a"]}, expect=422))["code"] == "limit_exceeded"
    await world.add(dag, {"f": ["b"]})
    assert ways == {True: 2, False: 1}


async def test_an_order_that_is_known_learns_of_added_nodes(world: DagWorld, ways: Counter[bool]) -> None:
    dag = await world.create({"a": [], "b": [], "c": ["b"]}, hold=True)
    await world.add(dag, {"x": ["c"]})
    await world.link(dag, ("a", "b"))
    await world.add(dag, {"d": ["x"]})
    refused = await world.link(dag, ("d", "a"), expect=422)
    assert refused["detail"].endswith("d -> a -> b -> c -> x -> d")
    await world.add(dag, {"e": ["d"]})
    assert (await world.link(dag, ("e", "b"), expect=422))["code"] == "cycle"
    assert ways == {True: 1, False: 2}, "the second and third are added where the order is"


@pytest.mark.parametrize(
    "more",
    [{"priority": {"critical_path": 2}}, {"nodes": [{"key": "last", "topic": "t", "run_on": "always"}]}],
    ids=str,
)
async def test_dags_that_need_more_than_two_statements_take_the_long_way(
    world: DagWorld, ways: Counter[bool], more: dict[str, Any]
) -> None:
    body = {"nodes": [*specs({"a": []}), *more.pop("nodes", [])], **more}
    dag = (await world.call("POST", "", body, expect=201))["id"]
    await world.add(dag, {"b": ["a"]})
    for key in "ab":
        await world.settle()
        world.queue.ack(key)
    await world.settle()
    await world.audit()
    assert await world.states(dag) == {"a": "succeeded", "b": "succeeded"} | (
        {"last": "released"} if len(body["nodes"]) > 1 else {}
    )
    assert ways[False] == ("priority" in body)


async def test_an_ordinary_node_does_not_wait_for_a_cleanup_node(world: DagWorld, ways: Counter[bool]) -> None:
    nodes = [*specs({"a": []}), {"key": "last", "topic": "t", "run_on": "always"}]
    dag = (await world.call("POST", "", {"nodes": nodes}, expect=201))["id"]
    refused = await world.add(dag, {"b": ["last"]}, expect=422)
    assert refused["errors"][0]["pointer"] == "/nodes/0/upstream/0"
    assert ways == {False: 1}


async def test_who_watches_a_dag_hears_at_once_of_nodes_added(world: DagWorld, ways: Counter[bool]) -> None:
    dag = await world.create({"a": []}, hold=True)
    with world.duties.context.watches.watching(world.shard, dag, 2) as watch:
        await world.add(dag, {"b": ["a"]})
        assert watch.event.is_set()
    assert ways == {True: 1}


async def test_an_ended_or_cancelled_dag_takes_nothing(world: DagWorld, ways: Counter[bool]) -> None:
    for verb in ("cancel", "close"):
        dag = await world.create(open=True)
        await world.verb(dag, verb)
        assert (await world.add(dag, {"a": []}, expect=409))["code"] == "dag_finished"
    assert ways == {False: 2}


async def test_nodes_of_a_child_are_added_where_others_wait_for_it(world: DagWorld, ways: Counter[bool]) -> None:
    dag = await world.create({"map": [], "join": ["map"]})
    await world.settle()
    await world.call("POST", f"/{dag}/expand", {"node": "map", "nodes": specs({"c": []})}, expect=201)
    await world.add(dag, {"late": ["map"]})
    await world.settle()
    world.queue.ack("map")
    await world.settle()
    assert (await world.states(dag))["late"] == "blocked", "it waits for the child of what it waits for"
    assert ways == {False: 1}


async def test_a_namespace_with_a_quota_takes_the_long_way(world: DagWorld, ways: Counter[bool]) -> None:
    answer = await world.http.put("/v1/namespaces/default", json={"nodes_max": 4})
    assert answer.status_code == 200
    dag = await world.create({"a": []}, open=True)
    await world.add(dag, {"b": [], "c": ["a"]})
    assert (await world.add(dag, {"d": [], "e": []}, expect=429))["code"] == "over_quota"
    assert ways == {False: 2}


@pytest.mark.parametrize("more", [0, 1])
async def test_what_many_nodes_release_is_nobody_elses_while_the_queue_is_given_all(
    world: DagWorld, monkeypatch: pytest.MonkeyPatch, more: int
) -> None:
    delays: list[float] = []
    bear = store.create.insert_node_batch

    async def watched(*args: Any, delay_s: float) -> None:
        delays.append(delay_s)
        await bear(*args, delay_s=delay_s)

    monkeypatch.setattr(store.create, "insert_node_batch", watched)
    dag = await world.create(open=True)
    await world.add(dag, {f"n{i}": [] for i in range(world.settings.create_batch_nodes_max + more)})
    assert delays == [world.settings.stopped_add_s if more else world.settings.overdue_s]
