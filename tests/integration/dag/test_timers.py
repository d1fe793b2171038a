"""Timers as nodes: never before their time, once after it, whatever happens to their DAG or to its owner."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.support.bounded import steps
from tests.support.dag_world import DagWorld

CLOCK = """CREATE OR REPLACE FUNCTION shard_now() RETURNS timestamptz LANGUAGE sql VOLATILE
AS $$ SELECT clock_timestamp() + interval '%s s' $$"""
SOAK: dict[str, Any] = {"key": "soak", "topic": None, "upstream": ["build"], "timer": {"delay_s": 60}}
RELEASE: list[dict[str, Any]] = [{"key": "build"}, SOAK, {"key": "publish", "upstream": ["soak"]}]


async def move(world: DagWorld, seconds: float) -> None:
    """The shard's clock is so far ahead."""
    await world.rows(CLOCK % seconds)


async def fire(world: DagWorld) -> None:
    """All that is due ends, and what follows is told."""
    for _ in steps():
        if not await world.loops.timers.step(world.shard):
            break
    await world.settle()


async def later(world: DagWorld, seconds: float) -> None:
    await move(world, seconds)
    await fire(world)


async def soaking(world: DagWorld, **more: Any) -> str:
    """A DAG whose timer runs."""
    dag = await world.create(RELEASE, **more)
    await world.settle()
    world.queue.ack("build")
    await world.settle()
    assert (await world.states(dag))["soak"] == "released"
    return dag


async def running(world: DagWorld) -> int:
    return len(await world.rows("SELECT FROM timer"))


async def test_a_timer_ends_after_its_time_and_not_before(world: DagWorld) -> None:
    dag = await soaking(world)
    assert [item.node for item in world.queue.items.values()] == ["publish"], "a timer has no item"
    await later(world, 59)
    assert (await world.states(dag))["soak"] == "released"
    await later(world, 60.5)
    assert await world.states(dag) == {"build": "succeeded", "soak": "succeeded", "publish": "released"}
    node = await world.node(dag, "soak")
    took = datetime.fromisoformat(node["finished_at"]) - datetime.fromisoformat(node["released_at"])
    assert took >= timedelta(seconds=60) and await running(world) == 0
    world.queue.ack("publish")
    await world.settle()
    assert (await world.dag(dag))["state"] == "succeeded"


async def test_a_timer_at_a_time_ends_then(world: DagWorld) -> None:
    at = datetime.now(UTC) + timedelta(seconds=100)
    past = datetime.now(UTC) - timedelta(days=1)
    dag = await world.create(
        [
            {"key": "at", "topic": None, "timer": {"at": at.isoformat()}},
            {"key": "past", "topic": None, "timer": {"at": past.isoformat()}},
            {"key": "now", "topic": None, "timer": {"delay_s": 0}},
        ]
    )
    await fire(world)
    assert await world.states(dag) == {"at": "released", "past": "succeeded", "now": "succeeded"}
    node = await world.node(dag, "at")
    assert datetime.fromisoformat(node["timer"]["due_at"]) == datetime.fromisoformat(node["timer"]["at"]) == at
    await later(world, 101)
    assert (await world.dag(dag))["state"] == "succeeded"


async def test_a_timer_due_while_all_was_down_ends_once_on_return(world: DagWorld) -> None:
    dag = await soaking(world)
    await move(world, 7 * 86_400)
    back = DagWorld(world.database, world.queue)
    try:
        await asyncio.gather(fire(world), fire(back))
        [ended] = await world.rows("SELECT count(*)::int AS n FROM change WHERE nodes LIKE '%1:succeeded%'")
        assert ended["n"] == 1 and (await world.states(dag))["soak"] == "succeeded"
    finally:
        await back.close()


async def test_time_passes_while_the_dag_is_paused_and_what_follows_waits(world: DagWorld) -> None:
    dag = await soaking(world)
    await world.verb(dag, "pause")
    await later(world, 61)
    assert await world.states(dag) == {"build": "succeeded", "soak": "succeeded", "publish": "blocked"}
    await world.verb(dag, "resume")
    assert (await world.states(dag))["publish"] == "released"
    await world.settle()


async def test_a_resume_ends_no_timer_before_its_time(world: DagWorld) -> None:
    """Going on decides blocked nodes; a timer that it releases begins to run then."""
    dag = await world.create(RELEASE, hold=True)
    await later(world, 1000)
    await world.verb(dag, "release")
    await world.verb(dag, "pause")
    await world.settle()
    world.queue.ack("build")
    await world.settle()
    assert (await world.states(dag))["soak"] == "blocked"
    await later(world, 2000)
    await world.verb(dag, "resume")
    await fire(world)
    assert (await world.states(dag))["soak"] == "released"
    await later(world, 2059)
    assert (await world.states(dag))["soak"] == "released"
    await later(world, 2061)
    assert (await world.states(dag))["soak"] == "succeeded"
    await world.settle()


async def test_a_cancel_ends_timers_at_once_and_for_good(world: DagWorld) -> None:
    dag = await soaking(world)
    await world.verb(dag, "cancel", expect=202)
    await world.settle()
    assert (await world.dag(dag))["state"] == "cancelled"
    assert (await world.states(dag))["soak"] == "cancelled" and await running(world) == 0
    await later(world, 61)
    assert (await world.states(dag))["soak"] == "cancelled"


async def test_a_deadline_and_a_failure_elsewhere_end_timers(world: DagWorld) -> None:
    late = await soaking(world, deadline_s=30)
    await move(world, 31)
    await world.loops.sweeper.step(world.shard)
    await world.settle()
    assert (await world.dag(late))["state"] == "failed" and await running(world) == 0
    nodes = [{"key": "wait", "topic": None, "timer": {"delay_s": 60}}, {"key": "work"}]
    failing = await world.create(nodes, on_failure="cancel")
    await world.settle()
    world.queue.die("work")
    await world.settle()
    assert (await world.dag(failing))["state"] == "failed" and await running(world) == 0
    assert (await world.states(failing))["wait"] == "cancelled"


async def test_single_timers_are_cancelled_and_skipped(world: DagWorld) -> None:
    dag = await soaking(world)
    found = await world.verb(dag, "nodes/cancel", {"nodes": ["soak"], "reason": "no need"})
    assert found["results"] == [{"key": "soak", "status": "cancelled"}]
    node = await world.node(dag, "soak")
    assert (node["state"], node["error"], await running(world)) == ("cancelled", "no need", 0)
    again = await world.verb(dag, "nodes/cancel", {"nodes": ["soak"]})
    assert again["results"][0]["status"] == "already_cancelled"
    await world.settle()
    other = await world.create(RELEASE)
    await world.verb(other, "skip", {"nodes": ["soak"]})
    assert (await world.states(other))["soak"] == "skipped"
    await world.settle()


async def test_a_retried_timer_runs_anew(world: DagWorld) -> None:
    dag = await soaking(world)
    await move(world, 50)
    await world.verb(dag, "retry", {"from": ["build"]})
    await world.settle()
    assert await running(world) == 0
    world.queue.ack("build")
    await world.settle()
    await later(world, 61)
    assert (await world.states(dag))["soak"] == "released", "the old generation's time does not end the new one"
    await later(world, 111)
    node = await world.node(dag, "soak")
    assert (node["state"], node["generation"]) == ("succeeded", 2)
    await world.settle()


async def test_a_timer_that_ended_runs_again_in_a_retry_of_all(world: DagWorld) -> None:
    dag = await soaking(world)
    await later(world, 61)
    world.queue.die("publish")
    await world.settle()
    await world.verb(dag, "retry")
    await world.settle()
    assert (await world.states(dag))["soak"] == "succeeded", "what succeeded is kept"
    await world.verb(dag, "retry", {"all": True})
    await world.settle()
    world.queue.ack("build")
    await world.settle()
    await fire(world)
    assert (await world.states(dag))["soak"] == "released"
    await later(world, 130)
    assert (await world.states(dag))["soak"] == "succeeded"
    await world.settle()


async def test_an_end_against_a_retry_of_the_timer(world: DagWorld) -> None:
    """Who ends timers has read that one is due; before it has the DAG's lock, a retry begins it anew."""
    dag = await soaking(world)
    await move(world, 61)
    [due] = await world.rows("SELECT node_no FROM timer")
    await world.verb(dag, "retry", {"from": ["build"]})
    await world.settle()
    world.queue.ack("build")
    await world.settle()
    assert await running(world) == 1
    assert await world.loops.timers._end_together(world.shard, [due["node_no"]]) == 0
    node = await world.node(dag, "soak")
    assert (node["state"], node["generation"]) == ("released", 2)


async def test_an_external_of_a_timer_is_waited_for(world: DagWorld) -> None:
    node = {"key": "soak", "topic": None, "external": ["go"], "timer": {"delay_s": 5}}
    dag = await world.create([node])
    await later(world, 100)
    assert (await world.states(dag))["soak"] == "blocked"
    await world.verb(dag, "resolve", {"external": [{"node": "soak", "name": "go"}]})
    await fire(world)
    assert (await world.states(dag))["soak"] == "released"
    await later(world, 106)
    assert (await world.dag(dag))["state"] == "succeeded"
    failing = await world.create([node])
    await world.verb(failing, "resolve", {"external": [{"node": "soak", "name": "go", "failed": True}]})
    assert (await world.states(failing))["soak"] == "failed"


async def test_timers_are_added_expanded_and_nested(world: DagWorld) -> None:
    dag = await world.create({"a": []})
    await world.settle()
    timer = {"topic": None, "timer": {"delay_s": 5}}
    sub = {"key": "sub", "topic": None, "dag": {"nodes": [{"key": "inner", "timer": {"delay_s": 5}}]}}
    await world.add(dag, [{"key": "t", "upstream": ["a"], **timer}, sub])
    children = {"node": "a", "nodes": [{"key": "child", "timer": {"delay_s": 7}}]}
    await world.verb(dag, "expand", children, expect=201)
    again = await world.verb(dag, "expand", children, expect=201)
    assert again["nodes"][0]["state"] == "released"
    await world.settle()
    world.queue.ack("a")
    await world.settle()
    assert await world.states(dag) == {"a": "succeeded", "child": "released", "sub": "released", "t": "blocked"}
    await later(world, 8)
    await later(world, 14)
    await world.loops.relay.step(world.shard)
    await world.settle()
    assert (await world.dag(dag))["state"] == "succeeded"


async def test_what_timers_show(world: DagWorld) -> None:
    dag = await soaking(world)
    node = await world.node(dag, "soak")
    due = datetime.fromisoformat(node["released_at"]) + timedelta(seconds=60)
    assert node["topic"] is None and node["timer"]["delay_s"] == 60
    assert datetime.fromisoformat(node["timer"]["due_at"]) == due
    frontier = await world.call("GET", f"/{dag}/frontier", expect=200)
    [shown] = frontier["items"]
    assert (shown["key"], shown["standing"]) == ("soak", "delayed")
    assert datetime.fromisoformat(shown["deliver_at"]) == due
    timeline = await world.call("GET", f"/{dag}/timeline?key=soak", expect=200)
    assert timeline["attempts"] == [] and datetime.fromisoformat(timeline["deliver_at"]) == due
    await later(world, 61)
    assert (await world.node(dag, "soak"))["timer"] == {"delay_s": 60, "due_at": None}
    exported = await world.call("GET", f"/{dag}/export", expect=200)
    [item] = [node["item"] for node in exported["items"] if node["key"] == "soak"]
    assert item == {"delay_s": 60}
    await world.settle()


async def test_the_same_timer_again_is_a_no_op_and_another_is_refused(world: DagWorld) -> None:
    dag = await world.create([{"key": "t", "topic": None, "timer": {"delay_s": 5}}])
    await world.add(dag, [{"key": "t", "topic": None, "timer": {"delay_s": 5.0}}])
    refused = await world.add(dag, [{"key": "t", "topic": None, "timer": {"delay_s": 6}}], expect=409)
    assert refused["code"] == "node_exists"
    refused = await world.add(dag, [{"key": "t"}], expect=409)
    assert refused["code"] == "node_exists"
    assert await running(world) == 1


async def test_many_timers_end_in_bounded_steps(world: DagWorld) -> None:
    world.settings.__dict__["timers_per_step_max"] = 10
    nodes = [{"key": f"t{n}", "topic": None, "timer": {"delay_s": 1}} for n in range(35)]
    dags = [await world.create(nodes) for _ in range(2)]
    await move(world, 2)
    counts = []
    for _ in steps():
        counts.append(await world.loops.timers.step(world.shard))
        if not counts[-1]:
            break
    assert counts == [10] * 7 + [0]
    assert [(await world.dag(dag))["state"] for dag in dags] == ["succeeded"] * 2


async def test_one_dags_trouble_does_not_hold_up_others_timers(world: DagWorld) -> None:
    """Its row is locked by somebody who does not let go."""
    world.settings.__dict__["timers_per_step_max"] = 2
    stuck = await world.create([{"key": f"t{n}", "topic": None, "timer": {"delay_s": 1}} for n in range(3)])
    well = await world.create([{"key": "t", "topic": None, "timer": {"delay_s": 2}}])
    await move(world, 3)
    other = await world.connect()
    async with other.transaction():
        await other.execute("SELECT FROM dag WHERE id = $1 FOR UPDATE", stuck)
        for _ in range(4):
            await world.loops.timers.step(world.shard)
        assert (await world.dag(well))["state"] == "succeeded"
        assert (await world.dag(stuck))["state"] == "running"
    await other.close()
    await later(world, 10)
    assert (await world.dag(stuck))["state"] == "succeeded"


async def test_who_releases_a_short_timer_is_woken(world: DagWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where another process owns the shard, whose look might come too late; of long ones the owner sees."""
    woken_in_s: list[float] = []
    timers = world.loops.timers
    for wakers in world.duties.context.wakers.values():
        monkeypatch.setattr(wakers.timers, "kick_in", woken_in_s.append)
    monkeypatch.setattr(world.duties.context.ownership, "owns", lambda _number: False)
    delays = {"short": 0.5, "long": 100.0}
    for key, delay_s in delays.items():
        await world.create([{"key": key, "topic": None, "timer": {"delay_s": delay_s}}])
    assert len(woken_in_s) == 1 and 0 < woken_in_s.pop() <= 0.5
    await timers.step(world.shard)
    assert len(woken_in_s) == 1 and 0 < woken_in_s.pop() <= 0.5
    await move(world, 99)
    assert await timers.step(world.shard) == 1
    assert await timers.step(world.shard) == 0
    assert woken_in_s in ([], [pytest.approx(0.5, abs=0.5)]), "the long one is the owner's"
    woken_in_s.clear()
    monkeypatch.setattr(world.duties.context.ownership, "owns", lambda _number: True)
    await timers.step(world.shard)
    assert 0 < min(woken_in_s) <= 1.25


async def test_an_older_owner_takes_no_timers(world: DagWorld) -> None:
    """A shard was migrated, and a process of before the migration owns it, after one that knew of timers."""
    await world.rows(
        "UPDATE shard_owner SET owner = 'old', epoch = 7, level = 1, level_epoch = 6, "
        "expires_at = shard_now() + interval '1 h'"
    )
    try:
        body = {"nodes": [{"key": "t", "timer": {"delay_s": 1}}]}
        refused = await world.call("POST", "", body, expect=503)
        assert (refused["code"], refused["outcome"]) == ("upgrading", "none")
        assert await world.rows("SELECT FROM dag") == []
        await world.create({"a": []})
        await world.rows("UPDATE shard_owner SET epoch = 8, level = 1, level_epoch = 8")
        await world.call("POST", "", body, expect=201)
        await world.settle()
    finally:
        await world.rows("UPDATE shard_owner SET owner = NULL, level = 0, level_epoch = 0")


@pytest.mark.parametrize(
    ("node", "pointer"),
    [
        ({"timer": {}}, "/nodes/0/timer"),
        ({"timer": {"delay_s": 1, "at": "2030-01-01T00:00:00Z"}}, "/nodes/0/timer"),
        ({"timer": {"delay_s": -1}}, "/nodes/0/timer/delay_s"),
        ({"timer": {"delay_s": "1"}}, "/nodes/0/timer/delay_s"),
        ({"timer": {"delay_s": 1e12}}, "/nodes/0/timer/delay_s"),
        ({"timer": {"at": "tomorrow"}}, "/nodes/0/timer/at"),
        ({"timer": {"at": "2030-01-01T00:00:00"}}, "/nodes/0/timer/at"),
        ({"timer": {"at": "9030-01-01T00:00:00Z"}}, "/nodes/0/timer/at"),
        ({"timer": {"delay_s": 1, "every": 2}}, "/nodes/0/timer/every"),
        ({"timer": 5}, "/nodes/0/timer"),
        ({"timer": {"delay_s": 1}, "topic": "work"}, "/nodes/0/topic"),
        ({"timer": {"delay_s": 1}, "payload": 1}, "/nodes/0/payload"),
        ({"timer": {"delay_s": 1}, "pass_outputs": True}, "/nodes/0/pass_outputs"),
        ({"timer": {"delay_s": 1}, "run_on": "always"}, "/nodes/0/run_on"),
        ({"timer": {"delay_s": 1}, "dag": {"open": True}}, "/nodes/0/timer"),
        ({}, "/nodes/0/topic"),
    ],
)
async def test_timers_that_are_refused(world: DagWorld, node: dict[str, Any], pointer: str) -> None:
    refused = await world.call("POST", "", {"nodes": [{"key": "t", **node}]}, expect=422)
    assert [error["pointer"] for error in refused["errors"]] == [pointer]
    assert await world.rows("SELECT FROM dag") == []


async def test_a_timer_that_nobody_would_end_is_found_and_mended(world: DagWorld) -> None:
    from audit import dags, mending
    from audit.reading import Reader, Scope

    dag = await soaking(world)
    await world.rows("DELETE FROM timer")
    connection = await world.looking_at(world.shard)
    reader = Reader(connection, world.shard.address)
    found = await dags.check(reader, Scope(dag=dag))
    assert [finding.kind for finding in found] == ["timer_lost"]

    async def cancel(_namespace: str, _ids: Any) -> int:
        return 0

    assert await mending.mend(found, {world.shard.address.schema: reader}, cancel) == 1
    await later(world, 61)
    assert (await world.states(dag))["soak"] == "succeeded"
    await world.settle()


async def test_what_is_due_is_asked_again_under_the_lock(world: DagWorld) -> None:
    """Who ends timers has read that one is due, by a clock that has gone back since."""
    dag = await soaking(world)
    [due] = await world.rows("SELECT node_no FROM timer")
    assert await world.loops.timers._end_together(world.shard, [due["node_no"]]) == 0
    assert (await world.states(dag))["soak"] == "released" and await running(world) == 1
