"""Acks that go on with their DAG in the queue's own transaction, on a real queue and DAG shard of one database."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from migrations.shard import upgrade
from shared.ids import DAG_TAG
from shared.postgres.batcher import LIGHT_ENTRIES_MAX
from tests.integration.queue.test_hung_up_consumer import spy_on_claims, until_waiting
from tests.support.databases import Database, Databases
from tests.support.folding import Folding, folding_on


def acked(item: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": item["id"], "lease_token": item["lease_token"], **more}


async def test_a_chain_goes_on_by_acks_alone(folding: Folding) -> None:
    dag = await folding.dags.create({"a": [], "b": ["a"], "c": ["b"]})

    for key in ("a", "b"):
        item = (await folding.take())[key]
        assert await folding.queue.ack(item) == ["acked"]

    assert folding.told.taken == 0
    assert await folding.completions() == 0
    assert await folding.states(dag) == {"a": "succeeded", "b": "succeeded", "c": "released"}
    await folding.queue.ack((await folding.take())["c"])
    assert await folding.completions() == 1  # the end of the DAG is the DAG service's
    await folding.settle()
    assert (await folding.dags.dag(dag))["state"] == "succeeded"


async def test_an_end_that_cannot_be_folded_fails_no_ack(folding: Folding) -> None:
    """A fault in the DAG's function, after it has written: nothing of that stays, and the end is told."""
    dag = await folding.dags.create({"a": [], "b": ["a"]})
    await folding.execute(
        "ALTER FUNCTION complete_here RENAME TO complete_well; CREATE FUNCTION complete_here("
        "uuid[], text[], int[], uuid[], int[], text[], timestamptz[], text[], text[], int, int) "
        "RETURNS TABLE (o_taken uuid[], o_released uuid[], o_ended uuid[], o_wide uuid[], o_inputs text[]) "
        "LANGUAGE plpgsql AS $$ BEGIN "
        "RETURN QUERY SELECT * FROM complete_well($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11); "
        "PERFORM 1 / 0; END $$"
    )
    try:
        assert await folding.queue.ack((await folding.take())["a"]) == ["acked"]
    finally:
        await folding.execute("DROP FUNCTION complete_here; ALTER FUNCTION complete_well RENAME TO complete_here")

    assert await folding.states(dag) == {"a": "released", "b": "blocked"}
    assert await folding.completions() == 1
    await folding.finish(dag)
    assert folding.told.taken == 2


@pytest.mark.parametrize("ended", ["a", "ax"])
async def test_a_child_whose_item_is_not_there_is_released_the_ordinary_way(folding: Folding, ended: str) -> None:
    """And with it the others of the same ack."""
    dag = await folding.dags.create({"a": [], "b": ["a"], "c": ["b"]})
    other = await folding.dags.create({"x": [], "y": ["x"], "z": ["y"]})
    parked = await folding.host.rows(
        "DELETE FROM parked WHERE id = $1 RETURNING *", await folding.item_of(dag, "b")
    )
    taken = await folding.take()

    assert set(await folding.queue.ack(*(taken.pop(key) for key in ended))) == {"acked"}

    assert await folding.completions() == len(ended)
    assert await folding.states(dag) == {"a": "released", "b": "blocked", "c": "blocked"}
    await folding.host.rows(
        "INSERT INTO parked SELECT $1::uuid, 1, $2::int, 'disabled', true, shard_now()",
        parked[0]["id"],
        parked[0]["topic_id"],
    )
    for item in taken.values():
        assert await folding.queue.ack(item) == ["acked"]
    await folding.finish(dag)
    await folding.finish(other)


async def test_nobody_is_waited_for(folding: Folding) -> None:
    """Neither for a DAG whose row is locked, nor for its tables, nor for an item of the queue."""
    for lock in (
        "SELECT FROM dag_000.dag WHERE id = $1 FOR UPDATE",
        "LOCK TABLE dag_000.change IN ACCESS EXCLUSIVE MODE",
        "SELECT FROM queue_000.parked FOR UPDATE",
    ):
        dag = await folding.dags.create({"a": [], "b": ["a"]})
        item = (await folding.take())["a"]
        connection = await folding.dags.connect()
        async with connection.transaction():
            await connection.fetch(lock, *([dag] if "$1" in lock else []))
            assert await folding.queue.ack(item) == ["acked"]
            assert await folding.completions() == 1
        await connection.close()
        await folding.finish(dag)


async def test_a_fenced_shard_is_not_folded_into(folding: Folding) -> None:
    """Until it is opened again, nothing of that name is there."""
    dag = await folding.dags.create({"a": [], "b": ["a"], "c": ["b"]})
    item = (await folding.take())["a"]
    await folding.execute("ALTER SCHEMA dag_000 RENAME TO fenced_dag_000")
    assert await folding.queue.ack(item) == ["acked"]
    assert await folding.completions() == 1
    await folding.execute("ALTER SCHEMA fenced_dag_000 RENAME TO dag_000")
    await folding.settle()

    assert await folding.queue.ack((await folding.take())["b"]) == ["acked"]

    assert await folding.completions() == 0
    assert await folding.states(dag) == {"a": "succeeded", "b": "succeeded", "c": "released"}
    await folding.finish(dag)


async def test_a_shard_that_is_made_under_another_name_is_folded_into(databases: Databases) -> None:
    """As one that was moved here: its schema gets its name when it is whole."""
    made = await databases.create_empty(queue_shards=1, dag_shards=1)
    [queue, dag] = made.addresses
    await upgrade(queue)
    await upgrade(replace(dag, schema="incoming_dag_000"))
    connection = await made.connect("public")
    await connection.execute("ALTER SCHEMA incoming_dag_000 RENAME TO dag_000")
    await connection.close()
    async with folding_on(made) as folding:
        found = await folding.dags.create({"a": [], "b": ["a"]})
        await folding.queue.ack((await folding.take())["a"])
        assert await folding.states(found) == {"a": "succeeded", "b": "released"}
    await databases.drop(made)


async def test_folding_can_be_switched_off(folding_database: Database) -> None:
    async with folding_on(folding_database, fold_completions=False) as folding:
        dag = await folding.dags.create({"a": [], "b": ["a"]})
        await folding.queue.ack((await folding.take())["a"])
        assert await folding.completions() == 1
        await folding.finish(dag)


KEPT: dict[str, list[dict[str, Any]]] = {
    "the last node": [{"key": "a"}],
    "outputs of too many to pass": [
        {"key": "a"},
        *({"key": f"x{n}"} for n in range(32)),
        {
            "key": "b",
            "upstream": ["a", *(f"x{n}" for n in range(32))],
            "trigger": "any_succeeded",
            "pass_outputs": True,
        },
    ],
    "a sub-DAG to begin": [
        {"key": "a"},
        {"key": "b", "upstream": ["a"], "dag": {"nodes": [{"key": "s", "topic": "work"}]}},
    ],
    "one below to be skipped": [
        {"key": "a"},
        {"key": "b", "upstream": ["a"], "trigger": "any_failed"},
        {"key": "z"},
    ],
}
FOLDED: dict[str, list[dict[str, Any]]] = {
    "outputs to pass": [{"key": "a"}, {"key": "b", "upstream": ["a"], "pass_outputs": True}],
    "many below": [{"key": "a"}, *({"key": f"b{n}", "upstream": ["a"]} for n in range(32))],
    "another above": [{"key": "a"}, {"key": "x"}, {"key": "b", "upstream": ["a", "x"]}],
    "an external": [{"key": "a"}, {"key": "b", "upstream": ["a"], "external": ["go"]}],
    "an external of one of two": [
        {"key": "a"},
        {"key": "b", "upstream": ["a"], "external": ["go"]},
        {"key": "c", "upstream": ["a"]},
    ],
    "nothing below": [{"key": "a"}, {"key": "b"}],
    "outputs that wait for an external": [
        {"key": "a"},
        {"key": "b", "upstream": ["a"], "external": ["go"], "pass_outputs": True},
    ],
    "a cleanup": [{"key": "a"}, {"key": "b", "upstream": ["a"]}, {"key": "c", "run_on": "always"}],
    "a delay": [{"key": "a"}, {"key": "b", "upstream": ["a"], "delay_s": 3600}],
    "any of two": [{"key": "a"}, {"key": "x"}, {"key": "b", "upstream": ["a", "x"], "trigger": "any_succeeded"}],
}


@pytest.mark.parametrize("case", KEPT)
async def test_what_is_not_simple_goes_the_ordinary_way(folding: Folding, case: str) -> None:
    nodes = [node if "dag" in node else {"topic": "work", **node} for node in KEPT[case]]
    dag = (await folding.dags.call("POST", "", {"nodes": nodes}, expect=201))["id"]
    await folding.queue.ack((await folding.take())["a"])
    assert await folding.completions() == 1
    await folding.cancel(dag)


# What may have come to be so since the item was delivered, and how it was.
CHANGED = {
    "held": ("UPDATE dag SET held = true", "UPDATE dag SET held = false"),
    "paused": ("UPDATE dag SET paused = true", "UPDATE dag SET paused = false"),
    "being cancelled": ("UPDATE dag SET state = 'cancelling'", "UPDATE dag SET state = 'running'"),
    "being reopened": ("UPDATE dag SET cleanup_phase = -1", "UPDATE dag SET cleanup_phase = 0"),
    "a younger generation": (
        "UPDATE node SET generation = 2 WHERE key = 'a'",
        "UPDATE node SET generation = 1 WHERE key = 'a'",
    ),
    "not released": (
        "UPDATE node SET state = 'blocked' WHERE key = 'a'",
        "UPDATE node SET state = 'released' WHERE key = 'a'",
    ),
    "a child that the queue does not have": (
        "UPDATE node SET enqueued = false WHERE key = 'b'",
        "UPDATE node SET enqueued = true WHERE key = 'b'",
    ),
    "a child whose external has failed": (
        "UPDATE node SET ext_failed = true WHERE key = 'b'",
        "UPDATE node SET ext_failed = false WHERE key = 'b'",
    ),
}


@pytest.mark.parametrize("case", CHANGED)
async def test_an_end_that_meets_something_else_is_told(folding: Folding, case: str) -> None:
    await folding.execute("DELETE FROM node; DELETE FROM dag; DELETE FROM edge; DELETE FROM change")
    dag = await folding.dags.create({"a": [], "b": ["a"], "c": ["b"]})
    item = (await folding.take())["a"]
    await folding.execute(CHANGED[case][0])

    assert await folding.queue.ack(item) == ["acked"]

    assert await folding.completions() == 1
    await folding.execute(CHANGED[case][1])
    assert await folding.states(dag) == {"a": "released", "b": "blocked", "c": "blocked"}
    await folding.finish(dag)


@pytest.mark.parametrize("case", FOLDED)
async def test_what_is_simple_is_folded(folding: Folding, case: str) -> None:
    dag = await folding.dags.create(FOLDED[case])
    await folding.queue.ack((await folding.take())["a"])
    assert await folding.completions() == 0
    assert (await folding.states(dag))["a"] == "succeeded"
    await folding.cancel(dag)


@pytest.mark.parametrize("case", ["an external", "an external of one of two"])
async def test_a_child_that_waits_for_an_external_is_not_released(folding: Folding, case: str) -> None:
    """Although the queue has its item."""
    dag = await folding.dags.create(FOLDED[case])

    assert await folding.queue.ack((await folding.take())["a"]) == ["acked"]

    assert await folding.completions() == 0
    states = await folding.states(dag)
    assert (states["a"], states["b"]) == ("succeeded", "blocked")
    await folding.cancel(dag)


async def test_an_output_that_is_escaped_goes_the_ordinary_way(folding: Folding) -> None:
    """It is stored as the DAG service writes it; of others the text is the same."""
    dag = await folding.dags.create({"a": [], "b": [], "c": ["a", "b"]})
    taken = await folding.take()
    await folding.queue.results("ack", {"items": [acked(taken["a"], output={"k": ["x y", 1.5, None]})]})
    assert await folding.completions() == 0
    body = acked(taken["b"]) | {"output": "\N{SNOWMAN}"}
    await folding.queue.results("ack", {"items": [body]})
    await folding.settle()
    assert (await folding.dags.node(dag, "a"))["output"] == {"k": ["x y", 1.5, None]}
    assert (await folding.dags.node(dag, "b"))["output"] == "\N{SNOWMAN}"
    await folding.finish(dag)


async def test_what_is_released_is_handed_to_who_waits(folding: Folding) -> None:
    """With all that a claim would have said of it, and counted as one."""
    spec = {"topic": "t", "payload": {"n": 1}, "metadata": {"m": 1}, "priority": 7, "lease_s": 30}
    nodes = [{"key": f"n{i}", **spec} | ({"upstream": [f"n{i - 1}"]} if i else {}) for i in range(5)]
    dag = await folding.dags.create(nodes)
    await folding.dags.loops.relay.idle()
    [item] = await folding.queue.dequeue("t")
    named = ("id", "lease_token", "dag", "lease_expires_at")
    before = {name: value for name, value in item.items() if name not in named}
    context, claims = item["dag"], spy_on_claims(folding.queue)
    for n in range(1, 5):
        waiting = asyncio.create_task(folding.queue.dequeue("t", 1, wait_s=20))
        await until_waiting(folding.queue, 1)
        await folding.queue.ack(item)
        [item] = await waiting
        assert item["dag"] == {**context, "node": f"n{n}"}
        assert {name: value for name, value in item.items() if name not in named} == before
    assert len(claims) == 1, "only the first was claimed: by it the process met the topic"
    await folding.queue.ack(item)
    await folding.settle()
    assert (await folding.dags.dag(dag))["state"] == "succeeded"
    assert folding.told.taken == 1


async def test_a_small_dags_step_does_not_wait_for_the_ack_of_many_nodes_of_another(folding: Folding) -> None:
    """And no second ack of the other is begun meanwhile, which would find its DAG's lock taken."""
    wide = {f"w{i}": [] for i in range(LIGHT_ENTRIES_MAX + 2)}
    large = await folding.dags.create({**wide, "end": list(wide)})
    small = await folding.dags.create({"a": [], "b": ["a"]})
    taken = await folding.take()
    *many, last = (taken[key] for key in wide)
    store = folding.host.stores[0]
    ack, begun, go_on = store.ack, [], asyncio.Event()

    async def held(ids: Any, *rest: Any, **more: Any) -> Any:
        begun.append(len(ids))
        if len(ids) > 1:
            await go_on.wait()
        return await ack(ids, *rest, **more)

    store.ack = held  # type: ignore[method-assign]
    try:
        heavy = asyncio.create_task(folding.queue.ack(*many))
        while not begun:
            await asyncio.sleep(0)
        light = asyncio.create_task(folding.queue.ack(last))
        assert await folding.queue.ack(taken["a"]) == ["acked"]
        assert (await folding.states(small))["b"] == "released"
        assert begun == [len(many), 1]
        go_on.set()
        await heavy
        await light
    finally:
        store.ack = ack  # type: ignore[method-assign]
    assert begun == [len(many), 1, 1]
    assert await folding.completions() == 0
    assert (await folding.states(large))["end"] == "released"
    for dag in (large, small):
        await folding.cancel(dag)


async def test_items_of_a_dag_are_of_one_kin(folding: Folding) -> None:
    dag = await folding.dags.create({"a": [], "b": ["a"], "c": []})
    await folding.dags.call("POST", f"/{dag}/nodes", {"nodes": [{"key": "d", "topic": "work"}]})
    await folding.settle()
    taken = await folding.take()
    before = {await folding.item_of(dag, key) for key in "abcd"}
    assert await folding.queue.nack(taken["c"], final=True) == ["dead"]
    await folding.settle()
    await folding.dags.call("POST", f"/{dag}/retry", {})
    await folding.settle()
    ids = before | {await folding.item_of(dag, key) for key in "abcd"}
    assert len(ids) > len(before)
    assert {item_id[DAG_TAG] for item_id in ids} == {dag[DAG_TAG]}
    await folding.cancel(dag)


@pytest.mark.parametrize("ends", [False, True])
async def test_an_upstream_acked_before_the_queue_has_its_new_children_opens_them_once(
    folding: Folding, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    """Written and decided, but not given yet: the ack is told, and what cannot be revived is enqueued."""
    enqueue = folding.told.enqueue
    written, given = asyncio.Event(), asyncio.Event()

    async def late(*args: Any) -> Any:
        if not written.is_set():
            written.set()
            await given.wait()
        return await enqueue(*args)

    dag = await folding.dags.create({"a": []}, open=True)
    taken = await folding.take()
    monkeypatch.setattr(folding.told, "enqueue", late)
    adding = asyncio.create_task(folding.dags.add(dag, {"b": ["a"], "c": ["a", "b"]}))
    await written.wait()
    assert await folding.queue.ack(*taken.values()) == ["acked"]
    await folding.settle()
    taken = await folding.take()
    assert set(taken) == {"b"}
    if ends:
        await folding.queue.ack(*taken.values())
        await folding.settle()
    given.set()
    assert [node["state"] for node in (await adding)["nodes"]] == ["blocked", "blocked"]
    await folding.settle()
    again = await folding.take()
    assert set(again) == ({"c"} if ends else set())
    await folding.queue.ack(*(again or taken).values())
    await folding.settle()
    await folding.dags.verb(dag, "close")
    await folding.finish(dag)


async def test_what_is_handed_to_a_call_has_no_more_bytes_than_its_answer(folding: Folding) -> None:
    """Of eight children the call gets those that there is room for; the others are ready, and nobody's."""
    children = [{"key": f"c{n}", "topic": "t", "payload": "x" * 2_000, "upstream": ["b"]} for n in range(8)]
    nodes = [{"key": "a", "topic": "t"}, {"key": "b", "topic": "t", "upstream": ["a"]}, *children]
    await folding.dags.create(nodes)
    await folding.dags.loops.relay.idle()
    [item] = await folding.queue.dequeue("t")
    found: list[Any] = [item]
    for store in folding.host.stores.values():
        store._answer_bytes_max = 8_000
    for expected in (1, 3):
        [item] = found
        waiting = asyncio.create_task(folding.queue.dequeue("t", 100, wait_s=20))
        await until_waiting(folding.queue, 1)
        await folding.queue.ack(item)
        found = await waiting
        assert len(found) == expected
    assert await folding.host.count("ready") == 5
    for store in folding.host.stores.values():
        store._answer_bytes_max = folding.host.settings.answer_bytes_max
    await folding.queue.ack(*found)
    await folding.queue.ack(*await folding.queue.dequeue("t", 100))
    await folding.settle()


@pytest.mark.parametrize("key", ['"' * 1_024, "\\" * 1_024, "\N{GRINNING FACE}" * 256, "k" * 1_024])
async def test_a_key_of_1024_bytes_is_delivered_and_comes_back(folding: Folding, key: str) -> None:
    """Escaped in the context of its item it is twice as long."""
    below = "b" + key[:-1]
    dag = await folding.dags.create({key: [], below: [key]}, key=key)
    for expected in (key, below):
        taken = await folding.take()
        assert list(taken) == [expected]
        assert await folding.queue.ack(taken[expected]) == ["acked"]
        await folding.settle()
    assert (await folding.dags.node(dag, below))["upstream"] == [key]
    assert (await folding.dags.dag(dag))["state"] == "succeeded"
