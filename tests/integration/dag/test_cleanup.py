"""Cleanup and compensation: after all else, whatever the end, in the order of undoing, untouched by cancels."""

import asyncio
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from services.dag.run.cleanup import Span, waves
from tests.support.bounded import steps
from tests.support.dag_world import DagWorld, specs
from tests.support.locks import locked


def undo(key: str) -> dict[str, Any]:
    return {"key": f"undo {key}", "compensates": key}


async def run(world: DagWorld, *, dead: str = "") -> list[str]:
    """Ack everything that is delivered, wave by wave, but let `dead` die; the keys in their order."""
    order = []
    for _ in steps():
        if not (ready := world.queue.deliverable()):
            break
        for key in ready:
            order.append(key)
            if key == dead:
                world.queue.die(key)
            else:
                world.queue.ack(key)
        await world.settle()
    return order


async def test_cleanup_waits_for_every_ordinary_node_and_the_dag_for_cleanup(world: DagWorld) -> None:
    dag = await world.create([{"key": "clean", "run_on": "always"}, {"key": "a"}, {"key": "b", "upstream": ["a"]}])
    await world.settle()
    node = await world.node(dag, "clean")
    assert (node["state"], node["run_on"], [by["kind"] for by in node["blocked_by"]]) == (
        "blocked",
        "always",
        ["end"],
    )
    world.queue.ack("a")
    await world.settle()
    assert world.queue.deliverable() == ["b"]
    world.queue.ack("b")
    await world.settle()
    assert world.queue.deliverable() == ["clean"]
    found = await world.dag(dag)
    assert (found["state"], found["cleaning"]) == ("running", True)
    assert (await world.add(dag, {"more": []}, expect=409))["code"] == "dag_finished"
    assert (await world.verb(dag, "retry", expect=409))["code"] == "dag_cancelling"
    world.queue.ack("clean")
    await world.settle()
    found = await world.dag(dag)
    assert (found["state"], found["cleaning"], found["nodes"]["succeeded"]) == ("succeeded", False, 3)


@pytest.mark.parametrize(
    ("end", "runs"),
    [
        ("succeeded", {"always", "succeeded"}),
        ("failed", {"always", "failed", "unsuccessful"}),
        ("cancelled", {"always", "cancelled", "unsuccessful"}),
    ],
)
async def test_each_cleanup_runs_on_its_ends(world: DagWorld, end: str, runs: set[str]) -> None:
    kinds = ["always", "succeeded", "failed", "cancelled", "unsuccessful"]
    dag = await world.create([{"key": "a"}, *({"key": kind, "run_on": kind} for kind in kinds)])
    await world.settle()
    if end == "cancelled":
        await world.verb(dag, "cancel", expect=202)
        await world.settle()
        assert (await world.verb(dag, "cancel", expect=202))["state"] == "cancelling", "it cleans up still"
    order = await run(world, dead="a" if end == "failed" else "")
    assert set(order) - {"a"} == runs
    assert (await world.dag(dag))["state"] == end
    states = await world.states(dag)
    assert {kind for kind in kinds if states[kind] == "skipped"} == set(kinds) - runs


async def test_a_cancel_while_it_cleans_up_changes_nothing(world: DagWorld) -> None:
    dag = await world.create([{"key": "a"}, {"key": "c", "run_on": "succeeded"}])
    await world.settle()
    world.queue.ack("a")
    await world.settle()
    answer = await world.verb(dag, "cancel", {"reason": "too late"}, expect=202)
    assert (answer["state"], answer["reason"]) == ("running", None)
    await world.settle()
    assert await run(world) == ["c"]
    found = await world.dag(dag)
    assert (found["state"], found["reason"]) == ("succeeded", None)


@pytest.mark.parametrize("cancelled", [False, True])
async def test_what_succeeded_is_undone_latest_first_before_cleanup(world: DagWorld, cancelled: bool) -> None:
    nodes = [
        {"key": "a"},
        {"key": "b1", "upstream": ["a"]},
        {"key": "b2", "upstream": ["a"]},
        {"key": "plain", "upstream": ["b1", "b2"]},
        {"key": "d", "upstream": ["plain"]},
        {"key": "last", "upstream": ["d"]},
        *(undo(key) for key in ("a", "b1", "b2", "d", "last")),
        {"key": "clean", "run_on": "always"},
    ]
    dag = await world.create(nodes)
    await world.settle()
    for keys in (["a"], ["b1", "b2"], ["plain"], ["d"]):
        for key in keys:
            world.queue.ack(key)
        await world.settle()
    if cancelled:
        await world.verb(dag, "cancel", expect=202)
    else:
        world.queue.die("last")
    await world.settle()
    found = []
    while ready := world.queue.deliverable():
        found.append(set(ready))
        for key in ready:
            world.queue.ack(key)
        await world.settle()
    assert found == [{"undo d"}, {"undo b1", "undo b2"}, {"undo a"}, {"clean"}]
    assert (await world.node(dag, "undo last"))["state"] == "skipped"
    assert (await world.node(dag, "undo a"))["compensates"] == "a"
    assert (await world.dag(dag))["state"] == ("cancelled" if cancelled else "failed")


async def test_nothing_is_undone_where_the_dag_succeeds(world: DagWorld) -> None:
    dag = await world.create([{"key": "a"}, undo("a")])
    await world.settle()
    assert await run(world) == ["a"]
    assert (await world.dag(dag))["state"] == "succeeded"
    assert (await world.node(dag, "undo a"))["state"] == "skipped"


async def test_a_compensation_that_fails_keeps_none_of_the_others(world: DagWorld) -> None:
    dag = await world.create(
        [
            {"key": "a"},
            {"key": "b", "upstream": ["a"]},
            {"key": "c", "upstream": ["b"]},
            undo("a"),
            undo("b"),
            {"key": "clean", "run_on": "failed"},
        ]
    )
    await world.settle()
    for key in ("a", "b"):
        world.queue.ack(key)
        await world.settle()
    world.queue.die("c")
    await world.settle()
    assert await run(world, dead="undo b") == ["undo b", "undo a", "clean"]
    found = await world.dag(dag)
    assert (found["state"], found["nodes"]["failed"]) == ("failed", 2)


async def test_a_failed_cleanup_does_not_fail_the_dag_and_can_be_retried_alone(world: DagWorld) -> None:
    dag = await world.create(
        [{"key": "a"}, {"key": "c1", "run_on": "always"}, {"key": "c2", "run_on": "always"}], on_failure="cancel"
    )
    await world.settle()
    assert await run(world, dead="c1") == ["a", "c1", "c2"]
    found = await world.dag(dag)
    assert (found["state"], found["nodes"]["failed"]) == ("succeeded", 1)
    await world.verb(dag, "retry")
    await world.settle()
    assert await run(world) == ["c1"]
    found = await world.dag(dag)
    assert (found["state"], found["nodes"]["failed"]) == ("succeeded", 0)


async def test_a_retry_does_again_what_was_undone_and_cleans_up_again(world: DagWorld) -> None:
    dag = await world.create(
        [
            {"key": "a"},
            {"key": "kept", "upstream": ["a"]},
            {"key": "b", "upstream": ["kept"]},
            undo("a"),
            undo("b"),
            {"key": "clean", "run_on": "always"},
        ]
    )
    await world.settle()
    assert await run(world, dead="b") == ["a", "kept", "b", "undo a", "clean"]
    await world.verb(dag, "retry")
    await world.settle()
    assert sorted(await run(world, dead="b")) == ["a", "b", "clean", "undo a"], "`kept` is not done again"
    await world.verb(dag, "retry")
    await world.settle()
    assert sorted(await run(world)) == ["a", "b", "clean"]
    assert (await world.dag(dag))["state"] == "succeeded"
    assert (await world.node(dag, "undo a"))["state"] == "skipped"


async def test_cleanup_may_depend_on_ordinary_nodes_and_on_cleanup(world: DagWorld) -> None:
    """Also in a cancelled DAG, where the ends of ordinary nodes are not counted below as they come."""
    dag = await world.create(
        [
            {"key": "made"},
            {"key": "never", "upstream": ["made"]},
            {"key": "drop", "run_on": "always", "upstream": ["made"], "pass_outputs": True},
            {"key": "skip", "run_on": "always", "upstream": ["never"]},
            {"key": "report", "run_on": "always", "upstream": ["drop", "skip"], "trigger": "all_done"},
        ]
    )
    await world.settle()
    world.queue.ack("made", output="cluster-7")
    await world.settle()
    await world.verb(dag, "cancel", expect=202)
    await world.settle()
    assert world.queue.deliverable() == ["drop"]
    assert world.queue.item_of("drop").body["inputs"] == {"made": "cluster-7"}
    assert await run(world) == ["drop", "report"]
    assert (await world.node(dag, "skip"))["state"] == "skipped"
    assert (await world.dag(dag))["state"] == "cancelled"


async def test_a_pause_keeps_compensation_and_cleanup_back_until_it_is_lifted(world: DagWorld) -> None:
    dag = await world.create(
        [{"key": "a"}, {"key": "b", "upstream": ["a"]}, undo("a"), {"key": "c", "run_on": "always"}]
    )
    await world.settle()
    world.queue.ack("a")
    await world.settle()
    await world.verb(dag, "pause")
    world.queue.die("b")
    await world.settle()
    assert world.queue.deliverable() == []
    await world.verb(dag, "resume")
    await world.settle()
    assert world.queue.deliverable() == ["undo a"]
    await world.verb(dag, "pause")
    world.queue.ack("undo a")
    await world.settle()
    assert world.queue.deliverable() == []
    await world.verb(dag, "resume")
    await world.settle()
    assert await run(world) == ["c"]
    assert (await world.dag(dag))["state"] == "failed"


async def test_a_deadline_cancels_the_rest_and_not_the_cleanup(world: DagWorld) -> None:
    dag = await world.create([{"key": "a"}, {"key": "c", "run_on": "failed"}], deadline_s=60)
    await world.settle()
    connection = await world.connect()
    await connection.execute("UPDATE dag SET deadline_at = shard_now() - interval '1 s'")
    await world.sweep()
    assert world.queue.deliverable() == ["c"]
    assert await connection.fetch("SELECT FROM dag WHERE deadline_at IS NOT NULL") == [], "nobody looks for it"
    await connection.close()
    await world.sweep()
    assert await run(world) == ["c"]
    assert (await world.dag(dag))["state"] == "failed"


async def test_a_dag_of_cleanup_nodes_alone_cleans_up_and_ends(world: DagWorld) -> None:
    dag = await world.create([{"key": "c", "run_on": "always"}, {"key": "f", "run_on": "failed"}])
    await world.settle()
    assert await run(world) == ["c"]
    assert (await world.dag(dag))["state"] == "succeeded"
    assert await world.states(dag) == {"c": "succeeded", "f": "skipped"}


@pytest.mark.parametrize("opened", [{"open": True}, {"hold": True}])
async def test_an_open_or_held_dag_of_cleanup_nodes_takes_more_and_says_what_it_waits_for(
    world: DagWorld, opened: dict[str, bool]
) -> None:
    dag = await world.create([{"key": "c", "run_on": "always"}], **opened)
    await world.settle()
    frontier = await world.call("GET", f"/{dag}/frontier", expect=200)
    assert [by["kind"] for by in frontier["waits_for"]] == ["close" if "open" in opened else "hold"]
    await world.add(dag, {"a": []})
    await world.verb(dag, "close" if "open" in opened else "release")
    await world.settle()
    assert await run(world) == ["a", "c"]
    assert (await world.dag(dag))["state"] == "succeeded"


async def test_an_open_dag_whose_ordinary_nodes_have_ended_waits_for_its_close(world: DagWorld) -> None:
    dag = await world.create([{"key": "a"}, {"key": "c", "run_on": "always"}], open=True)
    await world.settle()
    world.queue.ack("a")
    await world.settle()
    frontier = await world.call("GET", f"/{dag}/frontier", expect=200)
    assert [by["kind"] for by in frontier["waits_for"]] == ["close"]
    await world.verb(dag, "close")
    await world.settle()
    frontier = await world.call("GET", f"/{dag}/frontier", expect=200)
    assert frontier["waits_for"] == [], "it cleans up now"
    assert await run(world) == ["c"]


async def test_a_sub_dag_may_clean_up_and_a_cancelled_sub_dag_cleans_up_first(world: DagWorld) -> None:
    inner = {"nodes": specs([{"key": "x"}, {"key": "cx", "run_on": "cancelled"}])}
    dag = await world.call(
        "POST",
        "",
        {
            "nodes": [
                {"key": "mid", "dag": inner},
                {"key": "tidy", "run_on": "always", "dag": {"nodes": specs({"t": []})}},
            ]
        },
        expect=201,
    )
    await world.settle()
    await world.verb(dag["id"], "cancel", expect=202)
    await world.settle()
    assert world.queue.deliverable() == ["cx"]
    assert await run(world) == ["cx", "t"]
    assert (await world.dag(dag["id"]))["state"] == "cancelled"


async def test_what_cannot_be_is_refused(world: DagWorld) -> None:
    async def refused(pointer: str, *nodes: dict[str, Any], **more: Any) -> str:
        problem = await world.call("POST", "", {"nodes": specs(list(nodes)), **more}, expect=422)
        assert [error["pointer"] for error in problem["errors"]] == [pointer], problem
        return str(problem["code"])

    a, c = {"key": "a"}, {"key": "c", "run_on": "always"}
    await refused("/nodes/2/upstream/0", a, c, {"key": "b", "upstream": ["c"]})
    await refused("/dependencies/0", a, undo("a"), dependencies=[{"upstream": "a", "downstream": "undo a"}])
    await refused("/nodes/0/compensates", {"key": "u", "compensates": "c"}, c)
    await refused("/nodes/1/upstream", a, {**undo("a"), "upstream": ["a"]})
    await refused("/nodes/1/run_on", a, {**undo("a"), "run_on": "always"})
    await refused("/nodes/0/run_on", {**a, "run_on": "never"})
    assert await refused("/nodes/0/compensates", undo("no")) == "unknown_node"
    dag = await world.create([a, c])
    assert (await world.link(dag, ("c", "a"), expect=422))["code"] == "invalid"
    other = await world.add(dag, [undo("a")])
    assert await world.add(dag, [undo("a")]) == other


@pytest.mark.parametrize(("many", "status"), [(3, 201), (4, 422)])
async def test_cleanup_nodes_are_taken_to_the_limit_and_not_past_it(
    world: DagWorld, many: int, status: int
) -> None:
    made = DagWorld(world.database, world.queue, cleanups_per_dag_max=3)
    try:
        nodes = specs([{"key": "a"}, *({"key": f"c{i}", "run_on": "always"} for i in range(many))])
        await made.call("POST", "", {"nodes": nodes}, expect=status)
    finally:
        await made.close()


async def test_the_last_ends_meet_a_cancel_and_the_cleanup_follows_the_one_that_was_first(world: DagWorld) -> None:
    for cancel_first in (True, False):
        dag = await world.create([{"key": "a"}, *({"key": k, "run_on": k} for k in ("succeeded", "cancelled"))])
        await world.settle()
        world.queue.ack("a")
        async with locked(world, dag) as until_waiting:
            works = [lambda dag=dag: world.call("POST", f"/{dag}/cancel", {}), world.loops.results[0].drain]
            if not cancel_first:
                works.reverse()
            tasks = []
            for n, work in enumerate(works):
                tasks.append(asyncio.create_task(work()))
                await until_waiting(n + 1)
        await asyncio.gather(*tasks)
        await world.settle()
        end = "cancelled" if cancel_first else "succeeded"
        assert await run(world) == [end]
        assert (await world.dag(dag))["state"] == end


async def test_many_cleanups_are_walked_in_steps(world: DagWorld) -> None:
    made = DagWorld(world.database, world.queue, scan_nodes_max=4)
    try:
        many = [{"key": f"c{i:02}", "run_on": "always" if i % 3 else "failed"} for i in range(20)]
        dag = await made.create([{"key": "a"}, *many])
        await made.settle()
        await run(made)
        assert (await made.dag(dag))["state"] == "succeeded"
        states = await made.states(dag)
        assert [states[f"c{i:02}"] for i in range(20)] == ["succeeded" if i % 3 else "skipped" for i in range(20)]
    finally:
        await made.close()


def test_waves_never_undo_what_another_that_began_later_needed() -> None:
    chance = random.Random(7)
    zero = datetime(2030, 1, 1, tzinfo=UTC)
    for _ in range(300):
        spans = []
        for no in range(chance.randint(0, 12)):
            begun = chance.randint(0, 20)
            ended = begun + chance.randint(0, 8)
            spans.append(Span(no, zero + timedelta(seconds=begun), zero + timedelta(seconds=ended)))
        turns = waves(spans)
        assert sorted(turns) == [span.no for span in spans]
        assert set(turns.values()) == set(range(1, len(set(turns.values())) + 1))
        for a in spans:
            for b in spans:
                if a.finished_at <= b.released_at and a.finished_at < b.finished_at:
                    assert turns[b.no] < turns[a.no], "b may have waited for a"


async def test_a_retry_of_everything_runs_cleanup_again_at_the_new_end_only(world: DagWorld) -> None:
    dag = await world.create([{"key": "a"}, undo("a"), {"key": "c", "run_on": "always"}])
    await world.settle()
    assert await run(world) == ["a", "c"]
    await world.verb(dag, "retry", {"all": True})
    await world.settle()
    assert world.queue.deliverable() == ["a"]
    await world.verb(dag, "retry", {"all": True})
    await world.settle()
    assert await run(world) == ["a", "c"]
    assert await world.states(dag) == {"a": "succeeded", "undo a": "skipped", "c": "succeeded"}


async def test_a_dag_with_cleanup_that_was_moved_away_can_be_retried(world: DagWorld) -> None:
    world.settings.__dict__["ended_dag_grace_s"] = 0.0
    dag = await world.create(
        [{"key": "a"}, {"key": "b", "upstream": ["a"]}, undo("a"), {"key": "c", "run_on": "always"}]
    )
    await world.settle()
    await run(world, dead="b")
    for _ in steps():
        if not await world.loops.retention.step(world.shard):
            break
    assert await world.rows("SELECT * FROM node") == []
    assert (await world.node(dag, "undo a"))["compensates"] == "a"
    await world.verb(dag, "retry")
    await world.settle()
    assert sorted(await run(world)) == ["a", "b", "c"]
    assert (await world.dag(dag))["state"] == "succeeded"


async def test_a_cleanup_that_was_to_be_cancelled_and_failed_before_fails_no_later_generation(
    world: DagWorld,
) -> None:
    dag = await world.create([{"key": "a"}, undo("a"), {"key": "c", "run_on": "always"}])
    await world.settle()
    assert (await run(world, dead="a"))[0] == "a"
    await world.verb(dag, "retry")
    await world.settle()
    world.queue.ack("a")
    await world.settle()
    async with world.queue.hold("cancel") as held:
        await world.verb(dag, "nodes/cancel", {"nodes": ["c"]}, expect=202)
        await held.reached()
        world.queue.die("c")
    await world.settle()
    assert await world.states(dag) == {"a": "succeeded", "undo a": "skipped", "c": "failed"}
    await world.verb(dag, "retry", {"from": ["a"]})
    await world.settle()
    assert await run(world) == ["a", "c"]
    assert (await world.dag(dag))["state"] == "succeeded"
