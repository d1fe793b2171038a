"""What a compensation undoes: whatever was done and is not undone yet, once; and what it is told of that."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.dag_world import DagWorld

CHARGE = {"key": "charge", "payload": {"amount": 10}}
REFUND = {"key": "refund", "compensates": "charge", "pass_outputs": True}


@pytest.fixture
async def other(world: DagWorld, settings: dict[str, int]) -> AsyncIterator[DagWorld]:
    """A service with other settings on the same shard and queue."""
    made = DagWorld(world.database, world.queue, **settings)
    yield made
    await made.close()


async def past_deadline(world: DagWorld, dag: str) -> None:
    connection = await world.looking_at(world.shard)
    await connection.execute("UPDATE dag SET deadline_at = shard_now() - interval '1 s' WHERE id = $1", dag)
    await world.loops.sweeper.step(world.shard)
    await world.settle()


async def charged(world: DagWorld, **more: Any) -> str:
    """A DAG whose charge succeeded with receipt 1, and what comes after it failed."""
    dag = await world.create([CHARGE, {"key": "ship", "upstream": ["charge"]}, {**REFUND, **more}])
    await world.settle()
    world.queue.ack("charge", output={"receipt": 1})
    await world.settle()
    return dag


def given(world: DagWorld, key: str = "refund") -> Any:
    return world.queue.item_of(key).inputs or world.queue.item_of(key).body.get("inputs")


async def test_a_compensation_is_given_output_payload_and_inputs_of_what_it_undoes(world: DagWorld) -> None:
    dag = await world.create(
        [
            {"key": "quote"},
            {**CHARGE, "upstream": ["quote"], "external": ["go"], "pass_outputs": True},
            {"key": "ship", "upstream": ["charge"]},
            REFUND,
            {"key": "note", "compensates": "charge"},
        ]
    )
    await world.settle()
    world.queue.ack("quote", output=[3])
    await world.verb(dag, "resolve", {"external": [{"node": "charge", "name": "go", "data": "ok"}]})
    await world.settle()
    world.queue.ack("charge", output={"receipt": 1})
    await world.settle()
    world.queue.die("ship")
    await world.settle()
    told = {
        "charge": {"receipt": 1},
        "payload:charge": {"amount": 10},
        "inputs:charge": {"quote": [3], "external:go": "ok"},
    }
    assert given(world) == told
    assert given(world, "note") is None, "it has not asked for any"
    for _ in range(2):
        assert await world.call("GET", f"/{dag}/node/inputs?key=refund", expect=200) == told
        world.queue.ack("refund") if "refund" in world.queue.deliverable() else None
        world.queue.ack("note") if "note" in world.queue.deliverable() else None
        await world.settle()
    assert (await world.dag(dag))["state"] == "failed"


@pytest.mark.parametrize("settings", [{"inputs_bytes_max": 20}])
async def test_what_is_too_large_to_be_given_is_a_reference(other: DagWorld) -> None:
    world = other
    dag = await charged(world)
    world.queue.die("ship")
    await world.settle()
    reference = given(world)
    assert list(reference) == ["$ref"]
    answer = await world.http.get(reference["$ref"])
    assert answer.json() == {"charge": {"receipt": 1}, "payload:charge": {"amount": 10}}
    world.queue.ack("refund")
    await world.settle()
    assert (await world.dag(dag))["state"] == "failed"


@pytest.mark.parametrize("settings", [{"inputs_fetched_bytes_max": 20, "inputs_bytes_max": 20}])
async def test_what_is_too_large_to_be_fetched_is_refused(other: DagWorld) -> None:
    dag = await charged(other)
    answer = await other.call("GET", f"/{dag}/node/inputs?key=refund", expect=422)
    assert answer["code"] == "limit_exceeded"


@pytest.mark.parametrize("output", [{"receipt": 2}, None])
async def test_a_success_that_a_retry_has_replaced_is_undone_if_no_other_followed(
    world: DagWorld, output: Any
) -> None:
    """Charged, retried, cancelled before the second charge has ended: the first one stands and is given back."""
    dag = await charged(world)
    await world.verb(dag, "retry", {"from": ["charge"], "payloads": {"charge": {"amount": 99}}})
    await world.settle()
    if output is not None:
        world.queue.ack("charge", output=output)
        await world.settle()
    await world.verb(dag, "cancel", expect=202)
    await world.settle()
    first = {"charge": {"receipt": 1}, "payload:charge": {"amount": 10}}
    second = {"charge": output, "payload:charge": {"amount": 99}}
    assert world.queue.deliverable() == ["refund"]
    assert given(world) == (first if output is None else second)
    assert await world.call("GET", f"/{dag}/node/inputs?key=refund", expect=200) == given(world)
    world.queue.ack("refund")
    await world.settle()
    assert (await world.dag(dag))["state"] == "cancelled"


# What Postgres reads in no JSON, and what is told from it by a backslash alone.
NULS = {"\0\0": "\\\0", "\x01": ["\x010", "\\u0000", "\0001", "\\\\\0"]}


@pytest.mark.parametrize("retried", [False, True])
async def test_a_payload_may_hold_what_postgres_reads_in_no_json(world: DagWorld, retried: bool) -> None:
    dag = await world.create(
        [{**CHARGE, "payload": NULS}, {"key": "ship", "upstream": ["charge"], "payload": NULS}, REFUND]
    )
    await world.settle()
    world.queue.ack("charge", output=NULS)
    await world.settle()
    if retried:
        await world.verb(dag, "retry", {"from": ["charge"], "payloads": {"charge": 1}})
        await world.settle()
        await world.verb(dag, "cancel", expect=202)
    else:
        world.queue.die("ship")
    await world.settle()
    assert given(world) == {"charge": NULS, "payload:charge": NULS}
    world.queue.ack("refund")
    await world.settle()
    assert (await world.dag(dag))["state"] == ("cancelled" if retried else "failed")


async def test_nothing_is_undone_twice(world: DagWorld) -> None:
    """Charged, shipping failed, given back; retried, and the second charge fails: nothing is left to give back."""
    dag = await charged(world)
    world.queue.die("ship")
    await world.settle()
    world.queue.ack("refund")
    await world.settle()
    assert (await world.dag(dag))["state"] == "failed"
    await world.verb(dag, "retry")
    await world.settle()
    assert world.queue.deliverable() == ["charge"]
    world.queue.die("charge")
    await world.settle()
    assert world.queue.deliverable() == []
    assert (await world.states(dag))["refund"] == "skipped"
    assert (await world.dag(dag))["state"] == "failed"


async def test_what_a_failed_compensation_left_is_undone_after_a_retry_too(world: DagWorld) -> None:
    dag = await charged(world)
    world.queue.die("ship")
    await world.settle()
    world.queue.die("refund")
    await world.settle()
    await world.verb(dag, "retry", {"nodes": ["ship"]})
    await world.settle()
    assert world.queue.deliverable() == ["charge"], "its undoing was begun, so it is done again"
    world.queue.die("charge")
    await world.settle()
    assert world.queue.deliverable() == ["refund"]
    assert given(world) == {"charge": {"receipt": 1}, "payload:charge": {"amount": 10}}
    world.queue.ack("refund")
    await world.settle()
    assert (await world.dag(dag))["state"] == "failed"


async def test_a_compensation_that_a_caller_has_run_again_runs_again(world: DagWorld) -> None:
    dag = await charged(world)
    world.queue.die("ship")
    await world.settle()
    world.queue.ack("refund")
    await world.settle()
    await world.verb(dag, "retry", {"from": ["refund"]})
    await world.settle()
    assert given(world) == {"charge": {"receipt": 1}, "payload:charge": {"amount": 10}}
    world.queue.ack("refund")
    await world.settle()
    assert (await world.dag(dag))["state"] == "failed"


@pytest.mark.parametrize("end", ["ack", "die"])
async def test_what_was_undone_is_done_again_also_where_a_caller_asked_for_its_undoing_and_took_that_back(
    world: DagWorld, end: str
) -> None:
    """The last the service knows of the compensation is that it was skipped."""
    dag = await charged(world)
    world.queue.die("ship")
    await world.settle()
    getattr(world.queue, end)("refund")
    await world.settle()
    await world.verb(dag, "pause")
    await world.verb(dag, "retry", {"from": ["refund"]})
    await world.verb(dag, "skip", {"nodes": ["refund"]})
    await world.verb(dag, "resume")
    await world.settle()
    assert (await world.dag(dag))["state"] == "failed"
    await world.verb(dag, "retry", {"nodes": ["ship"]})
    await world.settle()
    assert world.queue.deliverable() == ["charge"]


@pytest.mark.parametrize("settings", [{"retry_at_once_nodes_max": 1}])
async def test_a_large_retry_in_steps_notes_what_was_done(other: DagWorld) -> None:
    world = other
    dag = await charged(world)
    await world.verb(dag, "retry", {"from": ["charge"]})
    await world.settle()
    assert world.queue.deliverable() == ["charge"]
    await world.verb(dag, "cancel", expect=202)
    await world.settle()
    assert given(world) == {"charge": {"receipt": 1}, "payload:charge": {"amount": 10}}
    world.queue.ack("refund")
    await world.settle()


async def test_a_skipped_second_run_leaves_the_first_one_to_be_undone(world: DagWorld) -> None:
    dag = await world.create([{"key": "a"}, {**CHARGE, "upstream": ["a"]}, {"key": "z"}, REFUND], deadline_s=60)
    await world.settle()
    for key in ("a", "charge"):
        world.queue.ack(key, output=key)
        await world.settle()
    await world.verb(dag, "retry", {"from": ["a"]})
    await world.verb(dag, "skip", {"nodes": ["charge"]})
    await world.settle()
    await past_deadline(world, dag)
    assert world.queue.deliverable() == ["refund"]
    assert given(world)["charge"] == "charge"
    world.queue.ack("refund")
    await world.settle()
    assert (await world.dag(dag))["state"] == "failed"


@pytest.mark.parametrize(
    ("undone", "told"),
    [
        ({"timer": {"delay_s": 0}}, {}),
        ({"dag": {"nodes": [{"key": "inner", "topic": "t"}]}}, {"undone": {"inner": 7}}),
        ({"topic": "t"}, {"undone": 7, "payload:undone": None}),
        ({"topic": "t", "pass_outputs": True}, {"undone": 7, "payload:undone": None, "inputs:undone": {}}),
    ],
    ids=["a timer", "a DAG", "an item without a payload", "an item that was given nothing"],
)
async def test_a_compensation_is_not_told_what_there_is_not(
    world: DagWorld, undone: dict[str, Any], told: dict[str, Any]
) -> None:
    """A timer has neither an item nor an output, a DAG in a node's place has no item."""
    nodes = [{"key": "undone", "topic": None, **undone}, {"key": "ship", "upstream": ["undone"]}]
    dag = await world.create([*nodes, {"key": "undo", "compensates": "undone", "pass_outputs": True}])
    await world.sweep()
    for key in set(world.queue.deliverable()) - {"ship"}:
        world.queue.ack(key, output=7)
    await world.sweep()
    world.queue.die("ship")
    await world.settle()
    assert given(world, "undo") == told
    assert await world.call("GET", f"/{dag}/node/inputs?key=undo", expect=200) == told
    world.queue.ack("undo")
    await world.settle()
    assert (await world.dag(dag))["state"] == "failed"
