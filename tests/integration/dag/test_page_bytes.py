"""Bounds in bytes of what is read: pages of nodes, outputs and exports, and what a process reads for itself."""

import asyncio
import itertools
from typing import Any

import pytest

from services.dag import store
from tests.integration.dag.test_queries import pages
from tests.support.dag_world import BASE, DagWorld

OUTPUT = "x" * 98  # 100 bytes as JSON
PAYLOAD = "y" * 98


async def ended(world: DagWorld, count: int, **more: Any) -> str:
    """A DAG of nodes without edges that have all given an output."""
    dag = await world.create([{"key": f"n{i}", **more} for i in range(count)])
    await world.settle()
    for i in range(count):
        world.queue.ack(f"n{i}", output=OUTPUT)
    await world.settle()
    return dag


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("what", ["nodes", "nodes?state=succeeded", "outputs", "export"])
async def test_a_page_ends_with_the_node_that_reaches_its_bytes(world: DagWorld, what: str, kept: bool) -> None:
    dag = await ended(world, 7)
    if kept:
        world.settings.__dict__.update(ended_dag_grace_s=0.0)
        while await world.loops.retention.step(world.shard):
            pass
    path, _, state = what.partition("?state=")
    for bytes_max, sizes in ((250, [3, 3, 1]), (1, [1] * 7), (10_000, [7])):
        world.settings.__dict__.update(page_bytes_max=bytes_max)
        found = await pages(world, f"/{dag}/{path}", limit=100, **({"state": state} if state else {}))
        assert [len(page) for page in found if page] == sizes
        assert [node["key"] for page in found for node in page] == [f"n{i}" for i in range(7)]
        assert all(node["output"] == OUTPUT for page in found for node in page)


async def test_payloads_of_an_exported_page_count_by_themselves(world: DagWorld) -> None:
    dag = await world.create([{"key": f"n{i}", "payload": PAYLOAD} for i in range(5)])
    spec = len(str((await world.rows("SELECT item FROM node_spec LIMIT 1"))[0]["item"]))
    world.settings.__dict__.update(page_bytes_max=2 * spec)
    found = await pages(world, f"/{dag}/export", limit=100)
    assert [len(page) for page in found] == [2, 2, 1]
    assert all(node["item"]["payload"] == PAYLOAD for page in found for node in page)


async def test_a_page_tells_nodes_whole_and_one_alone_as_far_as_there_is_room(world: DagWorld) -> None:
    ups = [f"up{i}" for i in range(20)]
    nodes: list[dict[str, Any]] = [{"key": key} for key in ups]
    nodes += [{"key": "wide", "upstream": ups}, {"key": "named", "external": [f"e{i}" for i in range(20)]}]
    nodes += [{"key": f"low{i}", "upstream": ups[:3]} for i in range(6)]
    dag = await world.create(nodes, hold=True)
    whole = {key: await world.node(dag, key) for key in [node["key"] for node in nodes]}
    assert not any(node["partial"] for node in whole.values())
    world.settings.__dict__.update(page_bytes_max=600)
    found = await pages(world, f"/{dag}/nodes", limit=100)
    told = {node["key"]: node for page in found for node in page}
    assert list(told) == list(whole)
    assert max(map(len, found)) > 1
    partial = {key for key, node in told.items() if node["partial"]}
    assert partial == {"wide", "named"}
    for key in whole.keys() - partial:
        assert told[key] == whole[key]
    for key, field in (("wide", "upstream"), ("named", "external")):
        alone = await world.node(dag, key)
        assert alone["partial"]
        assert alone[field] == told[key][field] == whole[key][field][: len(alone[field])]
        assert 4 <= len(alone[field]) <= 10


async def test_what_a_stopped_add_left_is_given_in_parts(world: DagWorld) -> None:
    world.queue.down.add("enqueue")
    await world.call("POST", "", {"nodes": chained(6)}, expect=503)
    world.queue.down.clear()
    world.settings.__dict__.update(send_bytes_max=400)
    await world.sweep()
    given = [len(bodies) for verb, _, bodies in world.queue.calls if verb == "enqueue"]
    assert sorted(given) == [1, 2, 3]  # one was released, and five waited
    assert await world.rows("SELECT FROM adding") == []
    assert len(world.queue.items) == 6


def chained(count: int) -> list[dict[str, Any]]:
    return [
        {"key": f"n{i}", "topic": "work", "payload": PAYLOAD} | ({"upstream": [f"n{i - 1}"]} if i else {})
        for i in range(count)
    ]


async def test_overdue_rows_are_read_by_their_bytes(world: DagWorld) -> None:
    nodes = [{"key": "root"}, *({"key": f"n{i}", "upstream": ["root"], "pass_outputs": True} for i in range(6))]
    await world.create(nodes)
    await world.settle()
    world.queue.down.update({"revive", "enqueue"})
    world.queue.ack("root", output=OUTPUT)
    await world.settle()
    await world.rows("UPDATE outbox SET due_at = shard_now() - interval '1 s' RETURNING 1")
    found = []
    while claimed := await store.duties.claim_overdue(
        world.shard, rows_max=100, bytes_max=250, retry_s=60.0, retry_s_max=60.0
    ):
        found.append(len(claimed))
    assert found == [3, 3]
    world.queue.down.clear()
    await world.sweep()
    assert len(world.queue.deliverable()) == 6


async def test_what_waits_to_be_sent_and_has_no_room_stays_on_the_outbox(world: DagWorld) -> None:
    world.settings.__dict__.update(sends_waiting_bytes_max=1_000)
    await world.create([{"key": "root"}, *({"key": f"n{i}", "upstream": ["root"]} for i in range(20))])
    await world.settle()
    world.queue.ack("root")
    await world.settle()
    assert len(world.queue.deliverable()) == 4
    for _ in range(4):
        await world.sweep()
    assert len(world.queue.deliverable()) == 20
    assert await world.rows("SELECT FROM outbox") == []


@pytest.mark.parametrize("externals", [False, True])
async def test_ended_dags_move_by_their_bytes(world: DagWorld, externals: bool) -> None:
    if externals:
        nodes = [{"key": f"n{i}", "external": ["e"]} for i in range(6)]
        dag = await world.create(nodes)
        await world.settle()
        facts = [{"node": f"n{i}", "name": "e", "data": OUTPUT} for i in range(6)]
        await world.verb(dag, "resolve", {"external": facts})
        await world.settle()
        for i in range(6):
            world.queue.ack(f"n{i}")
        await world.settle()
    else:
        dag = await ended(world, 6)
    table = "external" if externals else "node"
    world.settings.__dict__.update(ended_dag_grace_s=0.0, keep_bytes_max=250)
    left = [6]
    while await world.loops.retention.step(world.shard):
        left.append(len(await world.rows(f"SELECT FROM {table}")))
    moved = [before - after for before, after in itertools.pairwise(left) if before > after]
    assert len(moved) > 1 and max(moved) <= 3
    assert len(await world.rows(f"SELECT FROM kept_{table}")) == 6
    await world.verb(dag, "retry", {"all": True})
    await world.settle()
    assert (len(await world.rows(f"SELECT FROM {table}")), len(await world.rows("SELECT FROM node_spec"))) == (
        6,
        6,
    )


async def test_new_dags_with_large_payloads_share_no_statement(
    world: DagWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    submit = store.create.insert_dags

    async def counting(shard: Any, batches: Any, *, delay_s: float) -> Any:
        asked.append(delay_s)
        return await submit(shard, batches, delay_s=delay_s)

    monkeypatch.setattr(store.create, "insert_dags", counting)
    world.settings.__dict__.update(create_batch_bytes_max=400)
    await world.create(chained(1))
    await world.create(chained(4))
    await world.settle()
    assert asked == [world.settings.overdue_s, world.settings.stopped_add_s]


async def test_items_of_new_nodes_fill_a_call_by_their_bytes(world: DagWorld) -> None:
    registrar = world.duties.registrar
    world.settings.__dict__.update(send_items_max=100, send_bytes_max=10_000)
    assert registrar._size(["x"] * 5) == 5
    assert registrar._size(["x" * 1_000] * 5) == 50


async def test_events_that_nothing_waits_for_are_fewer_of_each_dag_where_many_are_listed(
    world: DagWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.dag.read.queries._UNDECLARED_PER_PAGE", 4)
    dags = [await world.create({"a": []}, hold=True) for _ in range(2)]
    for dag in dags:
        await world.verb(dag, "resolve", {"external": [{"node": "z", "name": f"e{i}"} for i in range(5)]})
    assert len((await world.dag(dags[0]))["undeclared"]) == 4
    listed = (await world.http.get(BASE)).json()["items"]
    assert [len(each["undeclared"]) for each in listed] == [2, 2]


async def test_chains_are_walked_one_after_another(world: DagWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    dag = await world.create({"a": [], "b": ["a"], "c": ["b"], "d": ["a"]})
    walking, most = 0, 0
    columns = store.edges.edge_columns

    async def counting(*given: Any) -> Any:
        nonlocal walking, most
        walking += 1
        most = max(most, walking)
        try:
            return await columns(*given)
        finally:
            walking -= 1

    monkeypatch.setattr(store.edges, "edge_columns", counting)
    asked = [world.call("GET", f"/{dag}/frontier", expect=200) for _ in range(5)]
    answers = await asyncio.gather(*asked)
    assert all(answer["longest_chain"]["keys"] == ["a", "b", "c"] for answer in answers)
    assert most == 1
