"""Ends of timers and decisions of slots against what changes them, their statements in every order."""

from typing import Any

from tests.support.dag_scene import Scene, race
from tests.support.interleave import Actor, explore

TIMER: dict[str, Any] = {"key": "t", "topic": None, "timer": {"delay_s": 0}}
AFTER: dict[str, Any] = {"key": "b", "upstream": ["t"]}
SCHEDULE = "/v1/namespaces/default/schedules/s"
HOURLY: dict[str, Any] = {"spec": {"interval_s": 3600}, "action": {"item": {"topic": "work"}}}
PAST = "now() - interval '1 s'"
EMPTIED = """
DELETE FROM schedule; DELETE FROM tick; DELETE FROM waiting_slot; DELETE FROM schedule_run;
UPDATE dag SET state = 'cancelled' WHERE state = 'running'; DELETE FROM dag
"""


async def fires(actor: Actor) -> None:
    """Timers that are due end."""
    await actor.process.loops.timers.step(actor.process.shard)


async def test_two_processes_end_one_timer(scene: Scene) -> None:
    await race(
        scene,
        [TIMER, AFTER],
        (fires, fires),
        {(None, None): ({"t": "succeeded", "b": "released"}, "succeeded")},
    )


async def test_a_timer_ends_while_its_dag_is_cancelled(scene: Scene) -> None:
    """Its end may still come before its cancel does; nothing below it comes out."""
    await race(
        scene,
        [TIMER, AFTER],
        (scene.posts("cancel"), fires),
        {(202, None): ({"t": "succeeded", "b": "cancelled"}, "cancelled")},
    )


async def test_a_timer_ends_while_it_is_cancelled(scene: Scene) -> None:
    await race(
        scene,
        [TIMER, AFTER],
        (scene.posts("nodes/cancel", {"nodes": ["t"]}), fires),
        {(200, None): ({"t": "cancelled", "b": "skipped"}, "succeeded")},
        also=[({"t": "succeeded", "b": "released"}, "succeeded")],
    )


async def test_a_timer_ends_while_it_is_begun_anew(scene: Scene) -> None:
    async def work() -> None:
        scene.world.queue.ack("a")

    await race(
        scene,
        [{"key": "a"}, {**TIMER, "upstream": ["a"]}, AFTER],
        (scene.posts("retry", {"from": ["a"]}), fires),
        {(200, None): ({"a": "released", "t": "blocked", "b": "blocked"}, "succeeded")},
        before=work,
    )


async def test_a_timer_ends_while_another_upstream_does(scene: Scene) -> None:
    await race(
        scene,
        [{"key": "x"}, TIMER, {"key": "c", "upstream": ["x", "t"]}],
        (scene.drain, fires),
        {(None, None): ({"x": "succeeded", "t": "succeeded", "c": "released"}, "succeeded")},
        acked=["x"],
    )


async def test_a_timer_ends_while_an_edge_from_it_is_added(scene: Scene) -> None:
    await race(
        scene,
        [TIMER, {"key": "c", "external": ["go"]}],
        (scene.links("t", "c"), fires),
        {(201, None): ({"t": "succeeded", "c": "blocked"}, "succeeded")},
        then=lambda: scene.world.verb(scene.dag, "resolve", {"external": [{"node": "c", "name": "go"}]}),
    )


async def decides(actor: Actor) -> int:
    """What is due of schedules is decided, so much as one look finds."""
    return await actor.process.loops.slots.step(actor.process.shard)


async def slots_race(scene: Scene, other: Any, allowed: dict[Any, list[tuple[int, int]]], **more: Any) -> None:
    """A slot that is due is decided while `other` happens. Allowed are, by what that is answered, counts of runs
    and of slots on record."""
    seen: dict[Any, set[tuple[int, int]]] = {}
    body = {**HOURLY, **more}

    async def begin() -> list[Any]:
        await scene.clear()
        await scene.watcher.execute(EMPTIED)
        made = await scene.world.http.put(SCHEDULE, json=body)
        assert made.status_code == 201, made.text
        await scene.watcher.execute(f"UPDATE schedule SET next_at = {PAST}, look_at = {PAST}")
        return [lambda: decides(scene.actors[0]), lambda: other(scene.actors[1])]

    async def check(results: list[Any]) -> None:
        [runs] = await scene.world.rows("SELECT count(*)::int AS n FROM dag")
        [slots] = await scene.world.rows("SELECT coalesce(sum(slots), 0)::int AS n FROM tick")
        found = (runs["n"], slots["n"])
        assert found in allowed[results[1]], f"{results}: {found}"
        seen.setdefault(results[1], set()).add(found)

    orders = await explore(scene.watcher, scene.actors, begin, check, interruptions_max=2)
    assert orders > 1
    assert {answer: sorted(found) for answer, found in seen.items()} == allowed


async def test_two_owners_decide_one_slot(scene: Scene) -> None:
    await slots_race(scene, decides, {0: [(1, 1)], 1: [(1, 1)]})


async def test_a_slot_is_decided_while_its_schedule_is_put_again(scene: Scene) -> None:
    async def put(actor: Actor) -> int:
        body = {"spec": {"interval_s": 3600}, "action": {"item": {"topic": "other"}}}
        return int((await actor.process.http.put(SCHEDULE, json=body)).status_code)

    await slots_race(scene, put, {200: [(1, 1)]})


async def triggers(actor: Actor) -> str:
    """What becomes of a run that is to be now."""
    return str((await actor.process.http.post(f"{SCHEDULE}/trigger", json={})).json()["decision"])


async def test_a_slot_is_decided_while_a_run_is_triggered(scene: Scene) -> None:
    """One of them runs, and the other finds that."""
    await slots_race(scene, triggers, {"started": [(1, 2)], "skipped": [(1, 2)]})


async def test_a_slot_and_a_trigger_end_each_others_run(scene: Scene) -> None:
    """Both run, and whichever comes first is cancelled."""
    await slots_race(scene, triggers, {"started": [(2, 2)]}, overlap="terminate_other")
    states = await scene.world.rows("SELECT state = 'running' AS goes_on FROM dag ORDER BY no")
    assert [row["goes_on"] for row in states] == [False, True]


async def test_a_slot_is_decided_while_its_schedule_is_deleted(scene: Scene) -> None:
    async def delete(actor: Actor) -> bool:
        return bool((await actor.process.http.delete(SCHEDULE)).json()["deleted"])

    await slots_race(scene, delete, {True: [(0, 0), (1, 0)]})


async def test_a_schedule_is_put_again_while_it_is_deleted(scene: Scene) -> None:
    """It is the one that was there, which is gone then, or one that is made anew."""
    seen: set[tuple[int, bool, int]] = set()

    async def begin() -> list[Any]:
        await scene.clear()
        await scene.watcher.execute(EMPTIED)
        assert (await scene.world.http.put(SCHEDULE, json=HOURLY)).status_code == 201
        put, delete = scene.actors
        return [lambda: put.process.http.put(SCHEDULE, json=HOURLY), lambda: delete.process.http.delete(SCHEDULE)]

    async def check(results: list[Any]) -> None:
        [left] = await scene.world.rows("SELECT count(*)::int AS n FROM schedule")
        put, deleted = results
        seen.add((put.status_code, deleted.json()["deleted"], left["n"]))

    await explore(scene.watcher, scene.actors, begin, check, interruptions_max=2)
    assert seen == {(200, True, 0), (201, True, 1)}


async def test_a_slot_is_decided_while_its_schedule_is_paused(scene: Scene) -> None:
    async def pause(actor: Actor) -> int:
        return int((await actor.process.http.post(f"{SCHEDULE}/pause", json={})).status_code)

    await slots_race(scene, pause, {200: [(0, 1), (1, 1)]})
