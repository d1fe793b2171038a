"""New DAGs made whole by one statement: as the long way makes them, in company, and whatever stops in between."""

import asyncio
import json
import random
from collections import Counter
from typing import Any

import msgspec
import pytest

from services.dag import store
from services.dag.api import simple_intake
from services.dag.api.views import dag_view
from services.dag.build import create_batch
from services.dag.build.queue_registration import QueueRegistrar
from services.dag.model import Addition
from services.dag.queue_client import Answer
from shared.fallback import Fallback
from tests.support.dag_world import BASE, DagWorld, specs

DIAMOND = {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"]}
TRIGGERS = ("all_succeeded", "all_done", "none_failed", "any_succeeded", "any_failed")

_NODES = """
SELECT n.key, n.state, n.generation, n.trigger, n.topic, n.pass_outputs, n.enqueued, n.by_call, n.fingerprint,
    n.up_left, n.up_ok, n.up_failed, n.up_skipped, n.up_cancelled, n.ext_left, n.ext_failed, n.sub, n.run_on,
    s.item, n.released_at IS NULL AS unreleased, n.finished_at IS NULL AS unfinished, n.no & 4194303 AS n
FROM node n JOIN node_spec s ON s.node_no = n.no WHERE n.dag_no = $1 ORDER BY n.no"""
_EDGES = "SELECT up & 4194303, down & 4194303, satisfied FROM edge WHERE up >> 22 = $1 ORDER BY up, down"
_DAG = """
SELECT namespace, name, state, open, held, paused, closed, on_failure, deadline_s, deadline_at IS NULL, metadata,
    next_n, structure_version, edges, externals, blocked, released, succeeded, failed, skipped, cancelled,
    depth, endings, expanded, cleanups, started_lift, path_lift FROM dag WHERE no = $1"""


def some_dag(seed: int) -> dict[str, Any]:
    """A DAG of all that the short way takes."""
    choose = random.Random(seed)
    nodes: list[dict[str, Any]] = []
    edges = []
    for i in range(choose.randrange(1, 9)):
        ups = [f"n{up}" for up in range(i) if choose.random() < 0.4]
        node: dict[str, Any] = {"key": f"n{i}", "topic": choose.choice(["s", "t"]), "payload": {"i": i}}
        if ups and choose.random() < 0.5:
            node["upstream"] = ups
        else:
            edges += [{"upstream": up, "downstream": f"n{i}"} for up in ups]
        node["trigger"] = choose.choice(TRIGGERS if ups else TRIGGERS[:3])
        node |= choose.choice(
            [{}, {"priority": 7}, {"delay_s": 3}, {"pass_outputs": True}, {"metadata": {"m": 1}}]
        )
        nodes.append(node)
    choose.shuffle(nodes)
    body: dict[str, Any] = choose.choice([{}, {"hold": True}, {"open": True}, {"deadline_s": 900}])
    body |= choose.choice([{}, {"name": "x", "metadata": {"a": 1}}, {"on_failure": "cancel"}])
    body |= choose.choice([{}, {}, {"priority": {"inherit": 2}}])
    if nodes:
        body["nodes"] = nodes
    if edges:
        body["dependencies"] = edges
    return body


async def stands(world: DagWorld, dag: str) -> dict[str, Any]:
    """All that is kept of a DAG, without what is its own: numbers, ids, times."""
    [[no]] = await world.rows("SELECT no FROM dag WHERE id = $1", dag)
    items = [item for item in world.queue.items.values() if item.body["ack_context"]["dag"] == dag]
    bodies = {item.node: (item.state, {k: v for k, v in item.body.items() if k != "id"}) for item in items}
    for _, body in bodies.values():
        body["ack_context"] = body["ack_context"] | {"dag": "it"}
    rows = [[tuple(row) for row in await world.rows(sql, no)] for sql in (_DAG, _NODES, _EDGES)]
    return {"rows": rows, "items": bodies}


async def test_a_dag_made_whole_stands_as_the_long_way_makes_it(
    world: DagWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.go_by_routes()
    short = create_batch.plan
    ways: Counter[bool] = Counter()
    for seed in range(60):
        body = some_dag(seed)

        def plan(*args: Any) -> Any:
            found = short(*args)
            ways[not isinstance(found, Fallback)] += 1
            return found

        monkeypatch.setattr(create_batch, "plan", plan)
        one = await world.call("POST", "", body, expect=201)
        monkeypatch.setattr(create_batch, "plan", lambda *_: Fallback("shape"))
        other = await world.call("POST", "", body, expect=201)
        await world.settle()
        assert await stands(world, one["id"]) == await stands(world, other["id"]), f"seed {seed}"
        own = ("id", "created_at", "deadline_at", "last_event_id")  # one step is fewer changes than two
        assert {k: v for k, v in one.items() if k not in own} == {k: v for k, v in other.items() if k not in own}
    assert ways[True] == 60
    assert not await world.rows("SELECT * FROM adding")
    assert not await world.rows("SELECT * FROM outbox")


async def create_plainly(world: DagWorld, body: Any) -> Any:
    """What the short way answers to a create call; a fallback where it leaves it to the long way."""
    made = simple_intake.read(body, world.settings)
    assert not isinstance(made, Fallback)
    dag = await world.duties.builder.create_plain("default", *made)
    if isinstance(dag, Fallback):
        return dag
    return json.loads(msgspec.json.encode(dag_view(dag))) | {"existing": False, "same": True}


@pytest.mark.parametrize("more", [{}, {"hold": True}, {"open": True, "on_failure": "cancel"}], ids=str)
async def test_a_plain_dag_stands_as_the_long_way_makes_it(
    world: DagWorld, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
) -> None:
    world.go_by_routes()
    monkeypatch.setattr(create_batch, "plan", lambda *_: Fallback("shape"))
    nodes = [{"key": f"n{n}", "topic": "t", "upstream": ["first"], "priority": n} for n in range(150)]
    nodes[7] |= {"trigger": "all_done", "payload": {"b": 'a "b"\n', "a": 2}, "pass_outputs": True, "lease_s": 5}
    first = {"key": "first", "topic": "s", "pass_outputs": True, "payload": "ü"}
    last = {"key": "last", "topic": "t", "upstream": [f"n{n}" for n in range(150)]}
    body = {"nodes": [first, *nodes, last], "name": "some name", **more}
    one = await create_plainly(world, body)
    other = await world.call("POST", "", body, expect=201)
    await world.settle()
    assert await stands(world, one["id"]) == await stands(world, other["id"])
    own = ("id", "created_at", "last_event_id")
    assert {k: v for k, v in one.items() if k not in own} == {k: v for k, v in other.items() if k not in own}
    assert not await world.rows("SELECT * FROM adding")
    assert not await world.rows("SELECT * FROM outbox")


async def test_a_plain_dag_whose_key_is_taken_or_whose_namespace_is_limited_goes_the_long_way(
    world: DagWorld,
) -> None:
    body = {"nodes": specs(DIAMOND), "key": "k"}
    first = await create_plainly(world, body)
    assert await create_plainly(world, body) == Fallback("key_taken")
    assert (await world.call("POST", "", body, expect=200))["id"] == first["id"]
    answer = await world.http.put("/v1/namespaces/default", json={"dags_max": 5})
    assert answer.status_code == 200
    assert await create_plainly(world, body | {"key": "other"}) == Fallback("quota")
    assert len(await world.rows("SELECT * FROM dag")) == 1


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"nodes": specs({"a": ["b"], "b": ["a"]})}, "cycle"),
        ({"nodes": specs({"a": ["nobody"]})}, "unknown_node"),
        ({"nodes": specs([{"key": "a"}, {"key": "a", "payload": 1}])}, "node_exists"),
    ],
)
async def test_what_is_wrong_with_a_new_dag_is_told_unless_its_key_is_taken(
    world: DagWorld, body: dict[str, Any], code: str
) -> None:
    assert (await world.call("POST", "", {**body, "key": "k"}))["code"] == code
    assert not await world.rows("SELECT * FROM dag")
    first = await world.create(DIAMOND, key="k")
    assert (await world.call("POST", "", {**body, "key": "k"}, expect=200))["id"] == first


async def test_many_dags_at_once_share_statements_and_calls_and_one_key_is_one_dag(
    world: DagWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushes: list[int] = []
    bear = store.create.insert_dags

    async def counted(shard: Any, made: Any, **more: Any) -> Any:
        flushes.append(len(made))
        return await bear(shard, made, **more)

    monkeypatch.setattr(store.create, "insert_dags", counted)
    most = world.settings.creates_per_flush_max
    bodies = [{"key": f"k{i % 60}", "nodes": specs(DIAMOND)} for i in range(70)]
    answers = await asyncio.gather(*(world.http.post(BASE, json=body) for body in bodies))
    assert Counter(answer.status_code for answer in answers) == {201: 60, 200: 10}
    assert len({answer.json()["id"] for answer in answers}) == 60
    assert max(flushes) == most, "a flush is full and no fuller"
    assert len([call for call in world.queue.calls if call[0] == "enqueue"]) < 20
    await world.settle()
    assert Counter(world.queue.deliverable()) == {"a": 60}
    assert len(world.queue.items) == 240
    assert not await world.rows("SELECT * FROM outbox")


@pytest.mark.parametrize("more", [0, 1])
async def test_a_dag_over_the_limit_of_nodes_has_a_statement_of_its_own(
    world: DagWorld, monkeypatch: pytest.MonkeyPatch, more: int
) -> None:
    shared: list[int] = []
    bearer = create_batch.CreateBatches._batcher_of

    def watched(self: Any, shard: Any) -> Any:
        shared.append(shard.number)
        return bearer(self, shard)

    monkeypatch.setattr(create_batch.CreateBatches, "_batcher_of", watched)
    nodes = specs({f"n{i}": [] for i in range(world.settings.create_batch_nodes_max + more)})
    await world.create(nodes)
    assert bool(shared) == (more == 0)


async def test_a_new_dag_whose_items_the_queue_could_not_take_is_driven_forward(world: DagWorld) -> None:
    world.queue.down = {"enqueue"}
    stopped = await world.call("POST", "", {"nodes": specs(DIAMOND)}, expect=503)
    assert (stopped["code"], stopped["outcome"]) == ("add_unfinished", "unknown")
    world.queue.down = set()
    await world.sweep()
    assert len(world.queue.items) == 4, "those that wait are given too"
    assert world.queue.deliverable() == ["a"]
    assert not await world.rows("SELECT * FROM adding")


async def test_a_new_dag_whose_give_lost_its_answer_is_given_again(world: DagWorld) -> None:
    world.queue.lose_answers = {"enqueue"}
    await world.call("POST", "", {"key": "k", "nodes": specs(DIAMOND)}, expect=503)
    world.queue.lose_answers = set()
    await world.call("POST", "", {"key": "k", "nodes": specs(DIAMOND)}, expect=200)
    await world.sweep()
    for key in DIAMOND:
        world.queue.ack(key)
        await world.settle()
    [[state]] = await world.rows("SELECT state FROM dag")
    assert state == "succeeded"
    assert world.queue.delivered == [(key, 1) for key in DIAMOND]


async def test_a_node_released_before_its_item_was_given_is_delivered_once(world: DagWorld) -> None:
    async with world.queue.hold("enqueue") as give:
        creating = asyncio.create_task(world.create(DIAMOND, key="k", hold=True))
        await give.reached()
        [[dag]] = await world.rows("SELECT id::text FROM dag")
        await world.verb(dag, "release")
    await creating
    await world.sweep()
    await world.sweep()
    assert world.queue.deliverable() == ["a"]
    assert len(world.queue.items) == 4
    for key in DIAMOND:
        world.queue.ack(key)
        await world.settle()
    assert (await world.dag(dag))["state"] == "succeeded"
    assert world.queue.delivered == [(key, 1) for key in DIAMOND]


async def test_a_dag_cancelled_before_its_items_were_given_leaves_none_of_them(world: DagWorld) -> None:
    async with world.queue.hold("enqueue") as give:
        creating = asyncio.create_task(world.create(DIAMOND, key="k"))
        await give.reached()
        [[dag]] = await world.rows("SELECT id::text FROM dag")
        await world.verb(dag, "cancel", expect=202)
        await world.loops.walker.step(world.shard)
        await world.loops.relay.idle()
    await creating
    await world.sweep()
    assert (await world.dag(dag))["state"] == "cancelled"
    assert world.queue.items == {}
    assert not await world.rows("SELECT * FROM adding")


async def test_ids_that_grew_too_old_before_the_queue_had_them_are_replaced(world: DagWorld) -> None:
    world.queue.down = {"enqueue"}
    body = {"key": "k", "hold": True, "nodes": specs(DIAMOND)}
    await world.call("POST", "", body, expect=503)
    world.queue.down = set()
    old = {str(row[0]) for row in await world.rows("SELECT item_id FROM node")}
    world.queue.too_old |= old
    dag = (await world.call("POST", "", body, expect=200))["id"]
    assert not old & world.queue.items.keys()
    assert len(world.queue.items) == 4
    await world.verb(dag, "release")
    await world.settle()
    for key in DIAMOND:
        world.queue.ack(key)
        await world.settle()
    assert (await world.dag(dag))["state"] == "succeeded"


async def test_an_item_that_the_queue_will_never_take_fails_its_node(world: DagWorld) -> None:
    world.queue.refuse["d"] = Answer("refused", "too_large", final=True)
    dag = await world.create(DIAMOND)
    assert (await world.states(dag))["d"] == "failed"
    await world.settle()
    for key in ("a", "b", "c"):
        world.queue.ack(key)
        await world.settle()
    assert (await world.dag(dag))["state"] == "failed"


async def test_two_who_drive_an_add_whose_ids_grew_too_old_give_what_the_nodes_have(world: DagWorld) -> None:
    """Each has seen the old ids; one of them comes later, and knows no better than the other."""
    world.queue.down.add("enqueue")
    await world.call("POST", "", {"key": "k", "nodes": specs({"a": [], "b": ["a"], "c": ["a"]})})
    old = {row["key"]: row["item_id"] for row in await world.rows("SELECT key, item_id::text FROM node")}
    world.queue.down.clear()
    world.queue.too_old = set(old.values())
    async with world.queue.hold("enqueue", 2) as hold:
        works = [
            asyncio.create_task(registrar(world).drive(world.shard, await unfinished(world))) for _ in range(2)
        ]
        async with asyncio.timeout(60):
            while hold.calls:
                await asyncio.sleep(0)
    await asyncio.gather(*works)
    now = {row["key"]: row["item_id"] for row in await world.rows("SELECT key, item_id::text FROM node")}
    given = {item.node: item_id for item_id, item in world.queue.items.items()}
    assert {key: given[key] for key in ("b", "c")} == {key: now[key] for key in ("b", "c")}
    assert set(world.queue.items) <= set(now.values()), "no item that no node knows"
    assert not {now["b"], now["c"]} & set(old.values())


async def test_a_node_that_was_cancelled_before_its_id_was_renewed_is_not_given(world: DagWorld) -> None:
    world.queue.down.add("enqueue")
    await world.call("POST", "", {"key": "k", "nodes": specs({"a": [], "b": ["a"], "c": ["a"]})})
    [dag] = await world.rows("SELECT id::text FROM dag")
    old = {row["key"]: row["item_id"] for row in await world.rows("SELECT key, item_id::text FROM node")}
    world.queue.down.clear()
    world.queue.too_old = {old["b"], old["c"]}
    async with world.queue.hold("enqueue", 1) as hold:
        work = asyncio.create_task(registrar(world).drive(world.shard, await unfinished(world)))
        await hold.reached()
        await world.verb(dag["id"], "nodes/cancel", {"nodes": ["b"]})
    await work
    assert "b" not in {item.node for item in world.queue.items.values()}
    assert (await world.node(dag["id"], "b"))["item_id"] == old["b"], "what has ended keeps its id"
    assert "c" in {item.node for item in world.queue.items.values()}


async def test_a_node_whose_item_the_queue_was_told_to_cancel_before_is_cancelled(world: DagWorld) -> None:
    world.queue.down.add("enqueue")
    await world.call("POST", "", {"key": "k", "nodes": specs({"a": [], "b": ["a"]})})
    [dag] = await world.rows("SELECT id::text FROM dag")
    [old] = await world.rows("SELECT item_id::text AS b FROM node WHERE key = 'b'")
    world.queue.down.clear()
    world.queue.ended[old["b"]] = "cancelled"
    await registrar(world).drive(world.shard, await unfinished(world))
    assert (await world.states(dag["id"]))["b"] == "cancelled"


async def test_a_node_that_runs_again_does_not_end_by_what_the_queue_said_of_its_former_item(
    world: DagWorld,
) -> None:
    world.queue.down.add("enqueue")
    await world.call("POST", "", {"key": "k", "nodes": specs({"a": [], "b": ["a"]})})
    [dag] = await world.rows("SELECT id::text FROM dag")
    [old] = await world.rows("SELECT item_id::text AS b FROM node WHERE key = 'b'")
    world.queue.down.clear()
    world.queue.ended[old["b"]] = "cancelled"
    async with world.queue.hold("enqueue", 1) as hold:
        work = asyncio.create_task(registrar(world).drive(world.shard, await unfinished(world)))
        await hold.reached()
        await world.verb(dag["id"], "nodes/cancel", {"nodes": ["b"]})
        await world.verb(dag["id"], "retry", {"nodes": ["b"]})
    await work
    node = await world.node(dag["id"], "b")
    assert (node["state"], node["generation"]) == ("blocked", 2)


def registrar(world: DagWorld) -> QueueRegistrar:
    """One of another process, which drives what somebody else drives too."""
    return QueueRegistrar(world.duties.context)


async def unfinished(world: DagWorld) -> Addition:
    [row] = await world.rows("SELECT first_no, last_no FROM adding")
    return Addition(row["first_no"], row["last_no"])
