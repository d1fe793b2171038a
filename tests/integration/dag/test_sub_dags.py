"""DAGs in the place of nodes, on two shards: what one must tell the other has its effect once, whatever stops."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from services.dag.model import Send
from shared.errors import OverQuota
from tests.support.dag_world import DagWorld
from tests.support.databases import Databases
from tests.support.queue_fake import FakeQueue
from tests.support.sub_dags import SlowReport, child_of, drained, item, start, sub, two_shards, until


@pytest.fixture
async def world(databases: Databases) -> AsyncIterator[DagWorld]:
    async with two_shards(databases) as made:
        yield made


async def test_a_sub_dag_is_made_when_its_node_is_released_and_its_end_ends_the_node(world: DagWorld) -> None:
    dag = await start(world, item("a"), sub("mid", {"x": [], "y": ["x"]}, "a", name="inner"), item("z", "mid"))
    child = await child_of(world, dag, "mid")
    await world.call("GET", f"/{child}", expect=404)
    world.queue.ack("a")
    await world.settle()
    found = await world.dag(child)
    assert found["parent"] == {"dag": dag, "node": "mid", "generation": 1}
    assert (found["state"], found["name"], world.queue.deliverable()) == ("running", "inner", ["x"])
    assert (await world.node(dag, "mid"))["state"] == "released"
    world.queue.ack("x", output=1)
    await world.settle()
    assert (await world.node(dag, "z"))["state"] == "blocked", "half a sub-DAG is no end"
    world.queue.ack("y", output={"n": 2})
    await world.settle()
    assert (await world.node(dag, "mid"))["output"] == {"y": {"n": 2}}, "what its last nodes came to"
    assert world.queue.deliverable() == ["z"]
    world.queue.ack("z")
    await world.settle()
    assert (await world.dag(dag))["state"] == "succeeded"


async def test_children_spread_over_the_shards(world: DagWorld) -> None:
    dag = await start(world, *(sub(f"s{i}", {"x": []}) for i in range(6)))
    homes = {(await child_of(world, dag, f"s{i}"))[-3:] for i in range(6)}
    assert len(homes) == 2
    await world.verb(dag, "cancel", expect=202)
    await world.settle()


@pytest.mark.parametrize("outcome", ["failed", "cancelled"])
async def test_a_sub_dag_that_fails_or_is_cancelled_ends_its_node_so(world: DagWorld, outcome: str) -> None:
    dag = await start(world, sub("mid", {"x": []}), item("z", "mid"), item("after", "mid", trigger="all_done"))
    if outcome == "failed":
        world.queue.die("x")
    else:
        await world.verb(await child_of(world, dag, "mid"), "cancel", expect=202)
    await world.settle()
    assert await world.states(dag) == {"mid": outcome, "z": "skipped", "after": "released"}
    assert outcome in (await world.node(dag, "mid"))["error"]


async def test_cancel_of_the_parent_cancels_what_runs_in_it_at_every_depth(world: DagWorld) -> None:
    inner = {"key": "deep", "dag": {"nodes": [item("x"), item("y", "x")]}}
    dag = await start(world, {"key": "mid", "dag": {"nodes": [inner]}}, sub("never", {"n": []}, "mid"))
    child = await child_of(world, dag, "mid")
    grandchild = await child_of(world, child, "deep")
    assert world.queue.deliverable() == ["x"]
    assert (await world.verb(dag, "cancel", expect=202))["state"] == "cancelling"
    await world.settle()
    for each in (dag, child, grandchild):
        assert (await world.dag(each))["state"] == "cancelled"
    assert world.queue.items == {}
    await world.call("GET", f"/{await child_of(world, dag, 'never')}", expect=404)


async def until_cancelled(world: DagWorld, dag: str, hold: asyncio.Event) -> None:
    """Wait for the parent's end while something is held back, then let that go."""
    try:
        async with asyncio.timeout(60):
            while (await world.dag(dag))["state"] != "cancelled":
                await asyncio.sleep(0)
    finally:
        hold.set()


async def test_a_start_behind_a_cancel_makes_nothing(world: DagWorld) -> None:
    """The child's place is taken by an empty cancelled DAG, so the late `start` finds it ended."""
    hold = asyncio.Event()
    carry = world.duties.sub_dags.carry

    async def late(shard: Any, send: Send) -> None:
        if send.action == "start":
            await hold.wait()
        await carry(shard, send)

    world.loops.relay._sub_dags.carry = late  # type: ignore[method-assign]
    made = await world.call("POST", "", {"nodes": [sub("mid", {"x": []})]}, expect=201)
    dag = str(made["id"])
    await world.verb(dag, "cancel", expect=202)
    for shard in world.duties.context.shards:
        await world.loops.walker.step(shard)
    await until_cancelled(world, dag, hold)
    await world.settle()
    assert (await world.dag(await child_of(world, dag, "mid")))["nodes"]["total"] == 0
    assert world.queue.items == {}


async def test_a_start_that_looked_before_the_cancel_and_made_after_it_makes_nothing(world: DagWorld) -> None:
    """The same, with the cancel in between the look at the node and the making of the child."""
    reached, hold = asyncio.Event(), asyncio.Event()
    create = world.duties.builder.create_sub

    async def slow(*args: Any) -> Any:
        reached.set()
        await hold.wait()
        return await create(*args)

    world.duties.builder.create_sub = slow  # type: ignore[method-assign]
    dag = str((await world.call("POST", "", {"nodes": [sub("mid", {"x": []})]}, expect=201))["id"])
    await reached.wait()
    await world.verb(dag, "cancel", expect=202)
    for shard in world.duties.context.shards:
        await world.loops.walker.step(shard)
    await until_cancelled(world, dag, hold)
    await world.settle()
    assert world.queue.items == {}
    assert (await world.dag(await child_of(world, dag, "mid")))["state"] == "cancelled"


async def test_a_child_that_succeeds_before_its_cancel_arrives_has_succeeded(world: DagWorld) -> None:
    dag = await start(world, sub("mid", {"x": []}))
    async with world.queue.hold("cancel") as hold:
        await world.verb(dag, "cancel", expect=202)
        for shard in world.duties.context.shards:
            await world.loops.walker.step(shard)
        # The child is cancelling by now, and waits for the queue.
        async with asyncio.timeout(60):
            while (await world.dag(await child_of(world, dag, "mid")))["state"] != "cancelling":
                await asyncio.sleep(0)
        for shard in world.duties.context.shards:
            await world.loops.walker.step(shard)
        await hold.reached()
        world.queue.ack("x")
        hold.released.set()
        await world.settle()
    assert (await world.dag(dag))["state"] == "cancelled"
    assert (await world.node(dag, "mid"))["state"] in ("succeeded", "cancelled")


async def test_retry_lets_a_failed_sub_dag_go_on_from_where_it_failed(world: DagWorld) -> None:
    dag = await start(world, sub("mid", {"x": [], "y": ["x"]}), item("z", "mid"))
    child = await child_of(world, dag, "mid")
    world.queue.ack("x")
    await world.settle()
    world.queue.die("y")
    await world.settle()
    assert (await world.dag(dag))["state"] == "failed"
    await world.verb(dag, "retry")
    await world.settle()
    assert await child_of(world, dag, "mid") == child
    assert await world.states(child) == {"x": "succeeded", "y": "released"}
    assert (await world.dag(child))["parent"]["generation"] == 2
    world.queue.ack("y")
    await world.settle()
    world.queue.ack("z")
    await world.settle()
    assert (await world.dag(dag))["state"] == "succeeded"
    assert [node for node, _ in world.queue.delivered] == ["x", "y", "z"]


async def test_retry_makes_another_sub_dag_for_one_that_was_cancelled(world: DagWorld) -> None:
    dag = await start(world, sub("mid", {"x": []}), item("bad"), on_failure="cancel")
    child = await child_of(world, dag, "mid")
    world.queue.die("bad")
    await world.settle()
    assert (await world.dag(dag))["state"] == "failed"
    assert (await world.dag(child))["state"] == "cancelled"
    await world.verb(dag, "retry")
    await world.settle()
    again = await child_of(world, dag, "mid")
    assert again != child
    for key in ("x", "bad"):
        world.queue.ack(key)
    await world.settle()
    assert (await world.dag(dag))["state"] == "succeeded"
    assert (await world.dag(again))["state"] == "succeeded"


async def test_an_end_that_comes_while_an_earlier_one_is_being_told_is_told_too(world: DagWorld) -> None:
    """The first report reads the child while it runs again; the second end must not go with its row."""
    dag = await start(world, sub("mid", {"x": []}))
    child = await child_of(world, dag, "mid")
    slow = SlowReport(world)
    try:
        world.queue.die("x")
        await drained(world)
        await world.verb(child, "retry")
        slow.read.set()
        await slow.done.wait()
        assert (await world.node(dag, "mid"))["state"] == "released", "the child runs again"

        async def again() -> bool:
            return world.queue.deliverable() == ["x"]

        await until(again)
        world.queue.ack("x")
        await drained(world)
    finally:
        slow.read.set()
        slow.delete.set()
    await world.settle()
    await world.sweep()
    assert (await world.dag(dag))["state"] == "succeeded"


async def test_an_end_that_is_told_again_to_a_later_generation_does_not_go_with_the_earlier_row(
    world: DagWorld,
) -> None:
    """The first end's row is being deleted as the retried node lets the child go on, and that ends again."""
    dag = await start(world, sub("mid", {"x": []}))
    child = await child_of(world, dag, "mid")
    slow = SlowReport(world)
    try:
        slow.read.set()
        world.queue.die("x")
        await drained(world)
        await slow.done.wait()
        assert (await world.dag(dag))["state"] == "failed"
        await world.verb(dag, "retry")

        async def adopted() -> bool:
            return bool((await world.dag(child))["parent"]["generation"] == 2)

        await until(adopted)

        async def again() -> bool:
            return world.queue.deliverable() == ["x"]

        await until(again)
        world.queue.ack("x")
        await drained(world)
    finally:
        slow.delete.set()
    await world.settle()
    await world.sweep()
    assert (await world.dag(dag))["state"] == "succeeded"


async def test_every_row_may_be_carried_twice_and_late(world: DagWorld) -> None:
    carried: list[tuple[Any, Send]] = []
    carry = world.duties.sub_dags.carry

    async def twice(shard: Any, send: Send) -> None:
        carried.append((shard, send))
        await carry(shard, send)
        await carry(shard, send)

    world.loops.relay._sub_dags.carry = twice  # type: ignore[method-assign]
    dag = await start(world, sub("mid", {"x": []}), sub("end", {"y": []}, "mid"))
    world.queue.die("x")
    await world.settle()
    await world.verb(dag, "retry")
    await world.settle()
    world.queue.ack("x")
    await world.settle()
    world.queue.ack("y")
    await world.settle()
    before = await world.states(dag)
    for shard, send in carried:
        await carry(shard, send)
    await world.settle()
    assert await world.states(dag) == before == {"mid": "succeeded", "end": "succeeded"}
    assert [send.action for _, send in carried] == ["start", "report", "start", "report", "start", "report"]
    assert [node for node, _ in world.queue.delivered] == ["x", "y"]
    assert len(await world.rows("SELECT * FROM dag")) == 3


async def test_a_start_of_an_older_generation_makes_nothing(world: DagWorld) -> None:
    """It was on its way while everything was retried, before the child of its own time is told to stop."""
    kept: list[tuple[Any, Send]] = []
    carry = world.duties.sub_dags.carry

    async def keep_the_first(shard: Any, send: Send) -> None:
        if send.generation == 1:
            kept.append((shard, send))
        else:
            await carry(shard, send)

    world.loops.relay._sub_dags.carry = keep_the_first  # type: ignore[method-assign]
    dag = await start(world, sub("mid", {"x": []}))
    await world.verb(dag, "retry", {"all": True})
    await world.settle()
    starts = [(shard, send) for shard, send in kept if send.action == "start"]
    assert len(starts) == 1
    await carry(*starts[0])
    await world.settle()
    assert len(await world.rows("SELECT * FROM dag")) == 2, "the parent, and the child of its node's generation"
    for shard, send in kept:
        await carry(shard, send)
    world.queue.ack("x")
    await world.settle()


async def test_a_start_that_comes_again_once_its_node_has_failed_makes_nothing(world: DagWorld) -> None:
    carried: list[tuple[Any, Send]] = []
    carry, create = world.duties.sub_dags.carry, world.duties.builder.create_sub

    async def note(shard: Any, send: Send) -> None:
        carried.append((shard, send))
        await carry(shard, send)

    async def refuse(*_args: Any) -> Any:
        raise OverQuota("there is no room")

    world.loops.relay._sub_dags.carry = note  # type: ignore[method-assign]
    world.duties.builder.create_sub = refuse  # type: ignore[method-assign]
    dag = await start(world, sub("mid", {"x": []}))
    assert (await world.states(dag))["mid"] == "failed"
    world.duties.builder.create_sub = create  # type: ignore[method-assign]
    [(shard, send)] = carried
    await carry(shard, send)
    await world.settle()
    assert len(await world.rows("SELECT * FROM dag")) == 1
    assert world.queue.items == {}


async def test_a_queue_that_is_away_delays_a_sub_dag_and_loses_nothing(world: DagWorld) -> None:
    world.queue.down = {"enqueue"}
    dag = await world.create()
    await world.add(dag, [{"key": "mid", "topic": None, **sub("mid", {"x": [], "y": ["x"]})}])
    await world.settle()
    world.queue.down = set()
    await world.sweep()
    await world.sweep()
    assert world.queue.deliverable() == ["x"]
    for key in ("x", "y"):
        world.queue.ack(key)
        await world.settle()
    await world.verb(dag, "close")
    assert (await world.dag(dag))["state"] == "succeeded"


async def test_what_the_parent_node_is_given_reaches_the_nodes_that_ask_for_it(world: DagWorld) -> None:
    inner = {"nodes": [item("x", external=["parent"], pass_outputs=True), item("y")]}
    dag = await start(world, item("a"), {"key": "mid", "upstream": ["a"], "dag": inner, "pass_outputs": True})
    world.queue.ack("a", output=[1, 2])
    await world.settle()
    assert world.queue.item_of("x").body["inputs"] == {"external:parent": {"a": [1, 2]}}
    assert world.queue.item_of("y").body.get("inputs") is None
    await world.verb(dag, "cancel", expect=202)
    await world.settle()


async def test_outputs_over_the_limit_become_a_reference_that_lists_them(world: DagWorld) -> None:
    dag = await start(world, sub("mid", {"a": [], **{f"x{i:02}": ["a"] for i in range(20)}}))
    world.queue.ack("a", output="not a last node")
    await world.settle()
    for i in range(20):
        world.queue.ack(f"x{i:02}", output="#" * 3_400)
    await world.settle()
    child = await child_of(world, dag, "mid")
    path = (await world.node(dag, "mid"))["output"]["$ref"]
    assert path == f"/v1/namespaces/default/dags/{child}/outputs"
    first = await world.call("GET", f"/{child}/outputs?limit=15", expect=200)
    cursor = first["next_cursor"]
    rest = await world.call("GET", f"/{child}/outputs?limit=15&cursor={cursor}", expect=200)
    keys = [each["key"] for each in first["items"] + rest["items"]]
    assert keys == [f"x{i:02}" for i in range(20)]
    assert (first["items"][0]["output"], rest["next_cursor"]) == ("#" * 3_400, None)


async def test_a_wrong_sub_dag_is_refused_before_anything_is_written(world: DagWorld) -> None:
    async def refused(dag: Any, status: int, pointer: str, **more: Any) -> str:
        body = {"nodes": [item("first"), {"key": "mid", "dag": dag, **more}]}
        problem = await world.call("POST", "", body, expect=status)
        assert [error["pointer"] for error in problem["errors"]] == [pointer], problem
        return str(problem["code"])

    x = item("x")
    assert await refused({"nodes": [x, item("y", "no")]}, 422, "/nodes/1/dag/nodes/1/upstream/0") == "unknown_node"
    assert await refused({"nodes": [x, item("x", priority=1)]}, 409, "/nodes/1/dag/nodes/1/key") == "node_exists"
    assert await refused({"nodes": [item("x", payload="#" * 66_000)]}, 413, "/nodes/1/dag/nodes/0/payload")
    assert await refused({}, 422, "/nodes/1/dag/nodes") == "invalid"
    assert await refused({"nodes": [x]}, 422, "/nodes/1/topic", topic="t") == "invalid"
    assert await refused({"nodes": [x], "key": "k"}, 422, "/nodes/1/dag/key") == "invalid"
    problem = await world.call("POST", "", {"nodes": [{"key": "a"}]}, expect=422)
    assert problem["errors"][0]["pointer"] == "/nodes/0/topic"
    cycle = {"nodes": [item("x", "y"), item("y", "x")]}
    body = {"nodes": [{"key": "mid", "dag": cycle}]}
    assert (await world.call("POST", "", body, expect=422))["code"] == "cycle"
    assert await world.rows("SELECT * FROM dag") == []


async def test_dags_nest_to_the_limit_and_not_past_it(world: DagWorld) -> None:
    def nested(levels: int) -> dict[str, Any]:
        nodes = [item("leaf")] if levels == 1 else [{"key": "n", "dag": nested(levels - 1)}]
        return {"nodes": nodes}

    body = {"nodes": [{"key": "n", "dag": nested(4)}]}
    assert (await world.call("POST", "", body, expect=422))["code"] == "limit_exceeded"
    dag = await start(world, {"key": "n", "dag": nested(3)})
    assert world.queue.deliverable() == ["leaf"]
    child = dag
    for _ in range(3):
        child = await child_of(world, child, "n")
    # A DAG that is three deep already takes no sub-DAG by an add either.
    assert (await world.add(child, [{"topic": None, **sub("more", {"x": []})}], expect=422))[
        "code"
    ] == "limit_exceeded"
    world.queue.ack("leaf")
    await world.settle()
    assert (await world.dag(dag))["state"] == "succeeded"


async def test_a_sub_dag_takes_so_many_bytes_and_not_one_more(world: DagWorld) -> None:
    made = DagWorld(world.database, FakeQueue(), subdag_bytes_max=2_000)
    try:
        for fill, status in ((3_000, 413), (200, 201)):
            inner = {"nodes": [item("x", payload="#" * fill)]}
            body = {"nodes": [{"key": "mid", "external": ["go"], "dag": inner}]}
            await made.call("POST", "", body, expect=status)
    finally:
        await made.close()


async def test_the_same_sub_dag_again_is_a_no_op_and_another_is_refused(world: DagWorld) -> None:
    dag = await world.create(open=True)
    node = {"topic": None, "external": ["go"], **sub("mid", {"x": []})}
    first = await world.add(dag, [node])
    assert await world.add(dag, [node]) == first
    other = {"topic": None, "external": ["go"], **sub("mid", {"y": []})}
    assert (await world.add(dag, [other], expect=409))["code"] == "node_exists"


async def test_cancel_of_the_single_node_cancels_its_dag_and_the_rest_goes_on(world: DagWorld) -> None:
    dag = await start(world, sub("mid", {"x": []}), item("other"), item("after", "mid", trigger="all_done"))
    child = await child_of(world, dag, "mid")
    await world.call("POST", f"/{dag}/nodes/cancel", {"nodes": ["mid"]})
    await world.settle()
    assert (await world.dag(child))["state"] == "cancelled"
    assert await world.states(dag) == {"mid": "cancelled", "other": "released", "after": "released"}


async def test_a_retry_of_everything_stops_the_child_that_runs_and_makes_another(world: DagWorld) -> None:
    dag = await start(world, sub("mid", {"x": []}))
    child = await child_of(world, dag, "mid")
    await world.verb(dag, "retry", {"all": True})
    await world.settle()
    again = await child_of(world, dag, "mid")
    assert again != child
    assert [(await world.dag(each))["state"] for each in (child, again)] == ["cancelled", "running"]
    world.queue.ack("x")
    await world.settle()
    assert (await world.dag(dag))["state"] == "succeeded"
