"""Cancel, retry, skip, policies and deadlines against everything else: PROTOCOL 16, 17."""

import asyncio

from tests.support.dag_world import DagWorld
from tests.support.locks import locked


async def test_a_cancel_is_final_only_when_the_queue_has_confirmed_it(world: DagWorld) -> None:
    dag = await world.create({"a": [], "b": ["a"], "c": ["b"]})
    await world.settle()
    world.queue.down = {"cancel"}
    assert (await world.verb(dag, "cancel", {"reason": "no need"}, expect=202))["state"] == "cancelling"
    await world.settle()
    assert (await world.dag(dag))["state"] == "cancelling"
    assert (await world.verb(dag, "retry", expect=409))["code"] == "dag_cancelling"
    assert (await world.add(dag, {"d": []}, expect=409))["code"] == "dag_finished"
    world.queue.down = set()
    await world.sweep()
    found = await world.verb(dag, "cancel")
    assert (found["state"], found["reason"], found["nodes"]["cancelled"]) == ("cancelled", "no need", 3)
    assert world.queue.items == {}
    assert (await world.verb(dag, "retry", expect=409))["code"] == "dag_finished"


async def test_an_ack_that_comes_before_the_cancel_is_confirmed_wins(world: DagWorld) -> None:
    dag = await world.create({"a": [], "b": ["a"]})
    await world.settle()
    async with world.queue.hold("cancel") as hold:
        await world.verb(dag, "cancel", expect=202)
        await world.loops.walker.step(world.shard)
        await hold.reached()
        world.queue.ack("a", output="done")
        await world.loops.results[0].drain()
        hold.released.set()
        await world.settle()
    assert await world.states(dag) == {"a": "succeeded", "b": "cancelled"}
    assert (await world.dag(dag))["state"] == "cancelled"
    assert (await world.node(dag, "a"))["output"] == "done"


async def test_finished_is_not_a_confirmation(world: DagWorld) -> None:
    """The item ended before its cancel: only its completion says how."""
    dag = await world.create({"a": []})
    await world.settle()
    world.queue.ack("a")
    await world.verb(dag, "cancel", expect=202)
    await world.loops.walker.step(world.shard)
    await world.loops.relay.idle()
    assert (await world.dag(dag))["state"] == "cancelling"
    await world.settle()
    assert await world.states(dag) == {"a": "succeeded"}
    assert (await world.dag(dag))["state"] == "cancelled"


async def test_r22_a_release_on_its_way_when_the_dag_is_cancelled_does_not_outlive_it(world: DagWorld) -> None:
    dag = await world.create({"a": [], "b": ["a"]})
    await world.settle()
    async with world.queue.hold("revive") as hold:
        world.queue.ack("a")
        await world.loops.results[0].drain()
        await hold.reached()
        await world.verb(dag, "cancel", expect=202)
        await world.loops.walker.step(world.shard)
        hold.released.set()
        await world.settle()
    assert world.queue.items == {}
    assert await world.states(dag) == {"a": "succeeded", "b": "cancelled"}
    assert (await world.dag(dag))["state"] == "cancelled"


async def test_r22_a_completion_behind_a_cancel_releases_nothing(world: DagWorld) -> None:
    dag = await world.create({"a": [], "b": ["a"]})
    await world.settle()
    world.queue.ack("a")
    async with locked(world, dag) as until_waiting:
        cancelling = asyncio.create_task(world.verb(dag, "cancel", expect=202))
        await until_waiting(1)
        completing = asyncio.create_task(world.loops.results[0].drain())
        await until_waiting(2)
    await asyncio.gather(cancelling, completing)
    await world.settle()
    assert await world.states(dag) == {"a": "succeeded", "b": "cancelled"}
    assert "revive" not in {verb for verb, _, _ in world.queue.calls}


async def test_r23_a_cancel_that_overtakes_the_enqueue_keeps_the_item_from_appearing(world: DagWorld) -> None:
    dag = await world.create({"a": []}, hold=True)
    async with world.queue.hold("enqueue") as hold:
        adding = asyncio.create_task(world.add(dag, {"late": []}, expect=409))
        await hold.reached()
        await world.verb(dag, "cancel", expect=202)
        await world.settle()
        assert (await world.dag(dag))["state"] == "cancelled"
        hold.released.set()
        refused = await adding
        assert (refused["code"], refused["outcome"]) == ("dag_finished", "unknown"), "its node is there, and over"
    await world.settle()
    assert world.queue.items == {}
    assert await world.states(dag) == {"a": "cancelled", "late": "cancelled"}


async def test_an_add_whose_dag_is_cancelled_before_the_queue_has_its_nodes_leaves_none(world: DagWorld) -> None:
    dag = await world.create({"a": []}, hold=True)
    async with world.queue.hold("enqueue") as hold:
        adding = asyncio.create_task(world.add(dag, {"late": []}))
        await hold.reached()
        world.queue.down = {"cancel"}
        await world.verb(dag, "cancel", expect=202)
        await world.settle()
        hold.released.set()
        assert (await adding)["nodes"][0]["state"] == "blocked", "it was added before the cancel"
    world.queue.down = set()
    await world.sweep()
    assert world.queue.items == {}
    assert await world.states(dag) == {"a": "cancelled", "late": "cancelled"}
    assert (await world.dag(dag))["state"] == "cancelled"


async def test_on_failure_cancel_ends_the_rest_and_the_dag_failed(world: DagWorld) -> None:
    dag = await world.create({"a": [], "b": [], "c": ["b"], "d": ["a"]}, on_failure="cancel")
    await world.settle()
    world.queue.die("a")
    await world.settle()
    assert await world.states(dag) == {"a": "failed", "b": "cancelled", "c": "cancelled", "d": "cancelled"}
    assert (await world.dag(dag))["state"] == "failed"
    assert world.queue.items == {}


async def test_a_release_decided_with_the_failure_does_not_happen(world: DagWorld) -> None:
    """One batch brings a failure and the last upstream of another node."""
    dag = await world.create({"a": [], "b": [], "c": ["b"]}, on_failure="cancel")
    await world.settle()
    world.queue.ack("b")
    world.queue.die("a")
    await world.settle()
    assert await world.states(dag) == {"a": "failed", "b": "succeeded", "c": "cancelled"}
    assert "revive" not in {verb for verb, _, _ in world.queue.calls}


async def test_a_passed_deadline_cancels_the_rest_and_fails_the_dag(world: DagWorld) -> None:
    dag = await world.create({"a": [], "b": ["a"]}, deadline_s=3600)
    await world.settle()
    await world.sweep()
    assert (await world.dag(dag))["state"] == "running"
    await _later(world, "2 h")
    await world.sweep()
    assert await world.states(dag) == {"a": "cancelled", "b": "cancelled"}
    assert (await world.dag(dag))["state"] == "failed"
    found = await world.verb(dag, "retry")
    assert found["state"] == "running"
    await world.sweep()
    assert (await world.dag(dag))["state"] == "running"
    assert world.queue.deliverable() == ["a"]


async def _later(world: DagWorld, interval: str) -> None:
    connection = await world.connect()
    await connection.execute(
        "CREATE OR REPLACE FUNCTION shard_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS "
        f"$$SELECT clock_timestamp() + interval '{interval}'$$"
    )
    await connection.close()


async def test_a_call_overrides_the_cause_of_a_cancel(world: DagWorld) -> None:
    dag = await world.create({"a": [], "b": []}, on_failure="cancel")
    await world.settle()
    world.queue.down = {"cancel"}
    world.queue.die("a")
    await world.settle()
    await world.verb(dag, "cancel", expect=202)
    world.queue.down = set()
    await world.sweep()
    assert (await world.dag(dag))["state"] == "cancelled"


async def test_a_retry_runs_what_failed_and_what_was_skipped_because_of_it(world: DagWorld) -> None:
    dag = await world.create(
        [
            {"key": "ok"},
            {"key": "bad"},
            {"key": "child", "upstream": ["bad", "ok"]},
            {"key": "grandchild", "upstream": ["child"]},
            {"key": "alarm", "upstream": ["bad"], "trigger": "any_failed"},
        ]
    )
    await world.settle()
    world.queue.ack("ok")
    world.queue.die("bad")
    await world.settle()
    world.queue.ack("alarm")
    await world.settle()
    assert (await world.dag(dag))["state"] == "failed"
    found = await world.verb(dag, "retry")
    assert (found["state"], found["nodes"]["succeeded"], found["nodes"]["blocked"]) == ("running", 2, 2)
    assert found["finished_at"] is None
    await world.settle()
    await world.audit()
    assert world.queue.deliverable() == ["bad"]
    for key in ("bad", "child", "grandchild"):
        world.queue.ack(key)
        await world.settle()
    found = await world.dag(dag)
    assert (found["state"], found["nodes"]["succeeded"]) == ("succeeded", 5)
    assert [(await world.node(dag, key))["generation"] for key in ("ok", "bad", "child")] == [1, 2, 2]
    assert (await world.verb(dag, "retry", expect=409))["code"] == "nothing_to_retry"


async def test_r20_an_older_generations_end_is_without_effect(world: DagWorld) -> None:
    dag = await world.create({"a": [], "b": ["a"]})
    await world.settle()
    old = world.queue.item_of("a")
    world.queue.die("a")
    await world.settle()
    await world.verb(dag, "retry")
    await world.settle()
    world.queue.complete(old.body, "acked", output="stale")
    await world.settle()
    assert await world.states(dag) == {"a": "released", "b": "blocked"}
    world.queue.ack("a", output="fresh")
    await world.settle()
    assert (await world.node(dag, "a"))["output"] == "fresh"
    assert world.queue.deliverable() == ["b"]


async def test_r20_an_old_release_on_its_way_does_not_run_the_old_item(world: DagWorld) -> None:
    dag = await world.create({"a": [], "b": ["a"]})
    await world.settle()
    async with world.queue.hold("revive") as hold:
        world.queue.ack("a")
        await world.loops.results[0].drain()
        await hold.reached()
        old = world.queue.item_of("b", generation=1)
        world.queue.end(old, "dead", error="gone")
        await world.loops.results[0].drain()
        await world.verb(dag, "retry", {"nodes": ["b"]})
        hold.released.set()
        await world.settle()
    assert [(item.node, item.generation) for item in world.queue.ready()] == [("b", 2)]


async def test_a_retry_on_a_running_dag_recounts_children_that_still_wait(world: DagWorld) -> None:
    dag = await world.create(
        [
            {"key": "bad"},
            {"key": "slow"},
            {"key": "join", "upstream": ["bad", "slow"], "trigger": "all_done"},
        ]
    )
    await world.settle()
    world.queue.die("bad")
    await world.settle()
    await world.verb(dag, "retry")
    await world.settle()
    await world.audit()
    world.queue.ack("slow")
    await world.settle()
    assert world.queue.deliverable() == ["bad"]
    world.queue.ack("bad")
    await world.settle()
    assert world.queue.deliverable() == ["join"]


async def test_a_retry_after_on_failure_cancel_reopens_all_that_it_cancelled(world: DagWorld) -> None:
    dag = await world.create({"a": [], "b": [], "c": ["b"], "ok": [], "d": ["ok", "a"]}, on_failure="cancel")
    await world.settle()
    world.queue.ack("ok")
    await world.settle()
    world.queue.die("a")
    await world.settle()
    await world.verb(dag, "retry")
    await world.settle()
    await world.audit()
    assert sorted(world.queue.deliverable()) == ["a", "b"]
    for key in ("a", "b"):
        world.queue.ack(key)
    await world.settle()
    for key in ("c", "d"):
        world.queue.ack(key)
    await world.settle()
    assert (await world.dag(dag))["state"] == "succeeded"


async def test_a_retry_of_one_node_leaves_other_failures(world: DagWorld) -> None:
    dag = await world.create({"a": [], "b": [], "c": ["a", "b"], "d": ["a"]})
    await world.settle()
    world.queue.die("a")
    world.queue.die("b")
    await world.settle()
    await world.verb(dag, "retry", {"nodes": ["a"]})
    await world.settle()
    assert await world.states(dag) == {"a": "released", "b": "failed", "c": "skipped", "d": "blocked"}
    world.queue.ack("a")
    await world.settle()
    world.queue.ack("d")
    await world.settle()
    assert (await world.dag(dag))["state"] == "failed"
    assert (await world.verb(dag, "retry", {"nodes": ["a"]}, expect=409))["code"] == "nothing_to_retry"
    assert (await world.verb(dag, "retry", {"nodes": ["zz"]}, expect=422))["code"] == "unknown_node"


async def test_a_retry_asks_again_for_externals_that_failed(world: DagWorld) -> None:
    dag = await world.create([{"key": "a", "external": ["x", "y"]}])
    facts = [{"node": "a", "name": "y"}, {"node": "a", "name": "x", "failed": True}]
    await world.verb(dag, "resolve", {"external": facts})
    await world.settle()
    assert (await world.dag(dag))["state"] == "failed"
    await world.verb(dag, "retry")
    assert await world.blocked_by(dag, "a") == [{"kind": "external", "name": "x"}]
    again = await world.verb(dag, "resolve", {"external": [{"node": "a", "name": "x"}]})
    assert again["results"][0]["status"] == "resolved"
    await world.settle()
    assert world.queue.deliverable() == ["a"]


async def test_a_retry_does_not_wait_for_an_external_that_nobody_declared(world: DagWorld) -> None:
    dag = await world.create({"a": []})
    await world.verb(dag, "resolve", {"external": [{"node": "a", "name": "other", "failed": True}]})
    await world.settle()
    world.queue.die("a")
    await world.settle()
    await world.verb(dag, "retry")
    await world.settle()
    assert world.queue.deliverable() == ["a"]


async def test_skip_takes_blocked_nodes_only_and_survives_a_retry(world: DagWorld) -> None:
    dag = await world.create({"a": [], "b": ["a"], "c": ["b"], "d": ["a"]})
    await world.settle()
    assert (await world.verb(dag, "skip", {"nodes": ["a"]}, expect=409))["code"] == "node_released"
    assert (await world.verb(dag, "skip", {"nodes": ["b", "zz"]}, expect=422))["code"] == "unknown_node"
    await world.verb(dag, "skip", {"nodes": ["b"]})
    await world.verb(dag, "skip", {"nodes": ["b"]})
    await world.settle()
    assert await world.states(dag) == {"a": "released", "b": "skipped", "c": "skipped", "d": "blocked"}
    world.queue.die("a")
    await world.settle()
    await world.verb(dag, "retry")
    await world.settle()
    world.queue.ack("a")
    await world.settle()
    assert await world.states(dag) == {"a": "succeeded", "b": "skipped", "c": "skipped", "d": "released"}


async def test_long_cancels_and_releases_are_walked_in_steps(world: DagWorld) -> None:
    world.settings.__dict__["scan_nodes_max"] = 4
    nodes = {f"n{i}": [] for i in range(23)}
    dag = await world.create(nodes, hold=True)
    await world.verb(dag, "release")
    await world.settle()
    assert len(world.queue.deliverable()) == 23
    await world.verb(dag, "cancel", expect=202)
    await world.settle()
    found = await world.dag(dag)
    assert (found["state"], found["nodes"]["cancelled"]) == ("cancelled", 23)
    assert not await world.rows("SELECT * FROM scan")


async def test_a_cancel_of_an_empty_dag_is_final_at_once(world: DagWorld) -> None:
    dag = await world.create(open=True)
    assert (await world.verb(dag, "cancel"))["state"] == "cancelled"
    await world.settle()
    assert not await world.rows("SELECT * FROM scan")


async def test_verbs_on_an_ended_dag_are_no_ops(world: DagWorld) -> None:
    dag = await world.create({"a": []})
    await world.settle()
    world.queue.ack("a")
    await world.settle()
    for verb in ("release", "close", "pause", "resume", "cancel"):
        found = await world.verb(dag, verb)
        assert (found["state"], found["paused"]) == ("succeeded", False)


async def test_an_item_made_long_after_its_retry_gets_an_id_that_the_queue_still_takes(world: DagWorld) -> None:
    dag = await world.create({"a": [], "b": ["a"]})
    await world.settle()
    world.queue.die("a")
    await world.settle()
    await world.verb(dag, "retry")
    await world.settle()
    made_at_retry = (await world.node(dag, "b"))["item_id"]
    world.queue.too_old = {made_at_retry}
    world.settings.__dict__["id_window_s"] = -1.0
    world.queue.ack("a")
    await world.settle()
    assert world.queue.deliverable() == ["b"]
    node = await world.node(dag, "b")
    assert node["item_id"] == world.queue.item_of("b").body["id"] != made_at_retry
    assert node["generation"] == 2
