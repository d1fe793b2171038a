"""Externals with a deadline: past it they count as resolved, and failed; plain names are as they were."""

from typing import Any

import pytest

from tests.support.dag_world import DagWorld

CLOCK = """CREATE OR REPLACE FUNCTION shard_now() RETURNS timestamptz LANGUAGE sql VOLATILE
AS $$ SELECT clock_timestamp() + interval '%s s' $$"""


async def later(world: DagWorld, seconds: float) -> None:
    """The shard's clock is so far ahead; then the sweeper looks."""
    await world.rows(CLOCK % seconds)
    await world.loops.sweeper.step(world.shard)
    await world.settle()


def waiting(key: str, *external: Any, **more: Any) -> dict[str, Any]:
    return {"key": key, "external": list(external), **more}


async def test_past_its_deadline_an_external_fails_its_node(world: DagWorld) -> None:
    dag = await world.create([waiting("a", {"name": "x", "deadline_s": 60}, "y"), {"key": "b", "upstream": ["a"]}])
    await later(world, 59)
    assert await world.states(dag) == {"a": "blocked", "b": "blocked"}
    await later(world, 61)
    assert await world.states(dag) == {"a": "failed", "b": "skipped"}
    node = await world.node(dag, "a")
    assert node["error"] == "not resolved by its deadline: x"
    late, plain = node["external"]
    assert (late["name"], late["resolved"], late["failed"], late["reason"]) == ("x", True, True, "deadline")
    assert plain == {"name": "y", "resolved": False, "failed": False}
    assert (await world.dag(dag))["state"] == "failed"
    too_late = await world.verb(dag, "resolve", {"external": [{"node": "a", "name": "x"}]})
    assert too_late["results"][0]["status"] == "already_resolved"
    assert world.queue.items == {}


async def test_what_was_resolved_in_time_has_no_deadline_left(world: DagWorld) -> None:
    dag = await world.create([waiting("a", {"name": "x", "deadline_s": 60})])
    await world.verb(dag, "resolve", {"external": [{"node": "a", "name": "x"}]})
    await later(world, 1000)
    assert await world.states(dag) == {"a": "released"}


async def test_what_was_resolved_before_it_was_declared_has_none_either(world: DagWorld) -> None:
    dag = await world.create([{"key": "first"}], open=True)
    await world.verb(dag, "resolve", {"external": [{"node": "a", "name": "x"}]})
    await world.add(dag, [waiting("a", {"name": "x", "deadline_s": 1})])
    await later(world, 1000)
    assert (await world.states(dag))["a"] == "released"


async def test_a_retry_lets_the_deadline_count_anew(world: DagWorld) -> None:
    dag = await world.create([waiting("a", {"name": "x", "deadline_s": 60})])
    await later(world, 61)
    await world.verb(dag, "retry")
    await later(world, 61 + 59)
    assert await world.states(dag) == {"a": "blocked"}
    await world.verb(dag, "resolve", {"external": [{"node": "a", "name": "x"}]})
    await world.settle()
    assert await world.states(dag) == {"a": "released"}


async def test_a_dag_that_is_over_keeps_no_deadline_and_a_retry_sets_it_again(world: DagWorld) -> None:
    nodes = [waiting("a", {"name": "x", "deadline_s": 60}), {"key": "bad"}]
    dag = await world.create(nodes, on_failure="cancel")
    await world.settle()
    world.queue.die("bad")
    await world.settle()
    assert (await world.states(dag))["a"] == "cancelled"
    await later(world, 61)
    assert await world.rows("SELECT FROM external WHERE deadline_at IS NOT NULL") == []
    await world.verb(dag, "retry")
    await later(world, 61 + 59)
    assert (await world.states(dag))["a"] == "blocked"
    await later(world, 61 + 61)
    assert (await world.states(dag))["a"] == "failed"


async def test_many_deadlines_of_many_dags_are_swept_in_turn(world: DagWorld) -> None:
    dags = [
        await world.create([waiting(f"n{i}", {"name": "x", "deadline_s": 5}) for i in range(3)]) for _ in range(4)
    ]
    await later(world, 6)
    for dag in dags:
        assert set((await world.states(dag)).values()) == {"failed"}
    assert await world.loops.sweeper.step(world.shard) == 0


async def test_the_deadline_is_part_of_what_makes_a_node_the_same(world: DagWorld) -> None:
    dag = await world.create([waiting("a", {"name": "x", "deadline_s": 60}), waiting("b", "x")])
    await world.add(dag, [waiting("a", {"name": "x", "deadline_s": 60}), waiting("b", {"name": "x"})])
    for other in ("x", {"name": "x", "deadline_s": 61}):
        assert (await world.add(dag, [waiting("a", other)], expect=409))["code"] == "node_exists"


async def test_a_node_of_a_sub_dag_has_deadlines_too(world: DagWorld) -> None:
    inner = [{"topic": "work", **waiting("i", {"name": "x", "deadline_s": 60})}]
    body = {"nodes": [{"key": "outer", "dag": {"nodes": inner}}]}
    dag = (await world.call("POST", "", body, expect=201))["id"]
    await world.settle()
    await later(world, 61)
    assert await world.states(dag) == {"outer": "failed"}


@pytest.mark.parametrize(
    ("external", "pointer"),
    [
        ([""], "/nodes/0/external/0"),
        (["a\n"], "/nodes/0/external/0"),
        ([1], "/nodes/0/external/0"),
        ([{"name": ""}], "/nodes/0/external/0/name"),
        ([{}], "/nodes/0/external/0/name"),
        ([{"name": "x", "deadline_s": 0}], "/nodes/0/external/0/deadline_s"),
        ([{"name": "x", "deadline_s": "1"}], "/nodes/0/external/0/deadline_s"),
        ([{"name": "x", "deadline_s": 1e12}], "/nodes/0/external/0/deadline_s"),
        ([{"name": "x", "deadline": 1}], "/nodes/0/external/0/deadline"),
        (["x", {"name": "x", "deadline_s": 1}], "/nodes/0/external/1"),
        (["x"] * 1001, "/nodes/0/external"),
    ],
)
async def test_what_is_no_external_is_refused(world: DagWorld, external: Any, pointer: str) -> None:
    answer = await world.call(
        "POST", "", {"nodes": [{"key": "a", "topic": "t", "external": external}]}, expect=422
    )
    assert answer["errors"][0]["pointer"] == pointer


def gated(run_on: str = "always") -> dict[str, Any]:
    """A cleanup node that somebody has to let go within a minute."""
    return waiting("clean", {"name": "x", "deadline_s": 60}, run_on=run_on)


async def test_a_cleanup_nodes_deadline_has_no_part_in_how_the_dag_ends(world: DagWorld) -> None:
    dag = await world.create(
        [
            {"key": "a"},
            {"key": "b", "upstream": ["a"]},
            {"key": "undo a", "compensates": "a"},
            gated(),
            {"key": "next", "run_on": "always", "upstream": ["clean"], "trigger": "all_done"},
        ],
        on_failure="cancel",
    )
    await world.settle()
    world.queue.ack("a")
    await world.settle()
    await later(world, 61)
    states = await world.states(dag)
    assert (states["b"], states["clean"], (await world.dag(dag))["state"]) == ("released", "blocked", "running")
    external = (await world.node(dag, "clean"))["external"][0]
    assert (external["failed"], external["reason"]) == (True, "deadline")
    world.queue.ack("b")
    await world.settle()
    assert world.queue.deliverable() == ["next"]
    world.queue.ack("next")
    await world.settle()
    assert (await world.dag(dag))["state"] == "succeeded"
    assert await world.states(dag) == {
        "a": "succeeded",
        "b": "succeeded",
        "undo a": "skipped",
        "clean": "failed",
        "next": "succeeded",
    }
    await world.verb(dag, "retry")
    await world.verb(dag, "resolve", {"external": [{"node": "clean", "name": "x"}]})
    await world.settle()
    assert world.queue.deliverable() == ["clean"], "its deadline counts anew, and it is let go in time"


async def test_a_cleanup_node_that_is_not_for_this_end_is_skipped_whatever_came_of_its_external(
    world: DagWorld,
) -> None:
    dag = await world.create([{"key": "a"}, gated("failed")])
    await world.settle()
    await later(world, 61)
    world.queue.ack("a")
    await world.settle()
    assert await world.states(dag) == {"a": "succeeded", "clean": "skipped"}


@pytest.mark.parametrize("in_its_phase", [False, True])
async def test_a_cancelled_dag_ends_when_the_deadline_of_its_cleanup_has_passed(
    world: DagWorld, in_its_phase: bool
) -> None:
    dag = await world.create([{"key": "a"}, gated("cancelled")])
    await world.settle()
    if in_its_phase:
        await world.verb(dag, "cancel", expect=202)
        await world.settle()
        assert (await world.dag(dag))["cleaning"]
        await later(world, 61)
    else:
        async with world.queue.hold("cancel") as held:
            await world.verb(dag, "cancel", expect=202)
            await world.loops.walker.step(world.shard)
            await held.reached()
            await world.rows(CLOCK % 61)
            await world.loops.sweeper.step(world.shard)
            assert (await world.states(dag))["clean"] == "blocked", "the cancel of `a` is on its way"
        await world.settle()
    clean = await world.node(dag, "clean")
    assert clean["state"] == "failed"
    if in_its_phase:
        assert clean["error"] == "not resolved by its deadline: x"
    assert (await world.dag(dag))["state"] == "cancelled"


async def test_a_deadline_of_an_older_generation_that_passes_amid_a_retry_means_nothing(world: DagWorld) -> None:
    """It is swept while the retry has still to come to the node, which was skipped before it waited to the end."""
    world.settings.__dict__.update(retry_at_once_nodes_max=0, retry_step_nodes=1)
    dag = await world.create(
        [
            {"key": "a"},
            {"key": "b", "upstream": ["a"]},
            waiting("c", {"name": "x", "deadline_s": 60}, upstream=["b"]),
            {"key": "other"},
        ]
    )
    await world.settle()
    world.queue.die("a")
    await world.settle()
    assert (await world.states(dag))["c"] == "skipped"
    await world.verb(dag, "retry")
    await world.rows(CLOCK % 61)
    await world.loops.sweeper.step(world.shard)
    await world.settle()
    for key in ("a", "b"):
        world.queue.ack(key)
        await world.settle()
    assert (await world.states(dag))["c"] == "blocked"
    await world.verb(dag, "resolve", {"external": [{"node": "c", "name": "x"}]})
    await world.settle()
    assert "c" in world.queue.deliverable()
