"""Schedules: each slot is decided once and on record, whoever is at it, however long nobody was."""

import asyncio
import uuid
from collections import Counter
from typing import Any

import pytest

from tests.support.bounded import steps
from tests.support.dag_world import DagWorld

PATH = "/v1/namespaces/default/schedules"
CLOCK = """CREATE OR REPLACE FUNCTION shard_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS $$ SELECT
timestamptz '2026-06-01T00:00:00Z' + interval '%s s' $$"""
HOURLY: dict[str, Any] = {"spec": {"interval_s": 3600}, "action": {"item": {"topic": "work", "payload": {"n": 1}}}}
HOUR = 3600


@pytest.fixture(autouse=True)
async def at_midnight(world: DagWorld) -> None:
    await clock(world, 1)


async def clock(world: DagWorld, seconds: float) -> None:
    """So long after midnight it is, and stays."""
    await world.rows(CLOCK % seconds)


async def call(world: DagWorld, method: str, path: str, body: Any = None, expect: int = 200) -> Any:
    answer = await world.http.request(method, PATH + path, json=body)
    assert answer.status_code == expect, answer.text
    return answer.json()


async def put(world: DagWorld, name: str, expect: int = 201, **more: Any) -> Any:
    return await call(world, "PUT", f"/{name}", {**HOURLY, **more}, expect)


async def decide(world: DagWorld) -> None:
    """All that is due is decided, and what follows is told."""
    for _ in steps():
        if not await world.loops.slots.step(world.shard):
            break
    await world.settle()


async def later(world: DagWorld, seconds: float) -> None:
    await clock(world, seconds)
    await decide(world)


async def ticks(world: DagWorld, name: str) -> list[Any]:
    """What became of slots, oldest first, without what is different each time."""
    found = (await call(world, "GET", f"/{name}/ticks?limit=1000"))["items"]
    return [(tick["at"][5:16], tick["slots"], tick["decision"], tick["reason"]) for tick in reversed(found)]


async def end_runs(world: DagWorld, name: str = "nightly") -> None:
    """Whoever works acks."""
    for item in [item for item in world.queue.items.values() if item.state == "ready"]:
        if item.node == name:
            world.queue.end(item, "acked")
    await world.settle()


async def test_a_slot_starts_a_run_that_is_told_its_time(world: DagWorld) -> None:
    made = await put(world, "nightly")
    assert made["next_at"] == "2026-06-01T01:00:00Z" and made["spec"] == {"interval_s": 3600.0}
    await later(world, HOUR - 1)
    assert await ticks(world, "nightly") == [] and world.queue.items == {}
    await later(world, HOUR + 2)
    assert await ticks(world, "nightly") == [("06-01T01:00", 1, "started", None)]
    [tick] = (await call(world, "GET", "/nightly/ticks"))["items"]
    run = await world.dag(tick["run"])
    assert (run["name"], run["state"]) == ("nightly", "running")
    item = world.queue.item_of("nightly")
    assert item.body["payload"] == {"n": 1}
    assert item.body["inputs"]["external:schedule"] == {
        "id": "nightly",
        "at": "2026-06-01T01:00:00+00:00",
        "kind": "slot",
        "tick": 1,
    }
    assert (await call(world, "GET", "/nightly"))["next_at"] == "2026-06-01T02:00:00Z"
    await end_runs(world)
    assert (await world.dag(tick["run"]))["state"] == "succeeded"


async def test_two_owners_decide_each_slot_once(world: DagWorld) -> None:
    for n in range(5):
        await put(world, f"s{n}", overlap="allow")
    other = DagWorld(world.database, world.queue)
    try:
        for hour in (1, 2, 3):
            await clock(world, hour * HOUR + 1)
            await asyncio.gather(decide(world), decide(other))
        for n in range(5):
            assert await ticks(world, f"s{n}") == [(f"06-01T0{hour}:00", 1, "started", None) for hour in (1, 2, 3)]
        [runs] = await world.rows("SELECT count(*)::int AS n FROM dag")
        assert runs["n"] == 15
    finally:
        await other.close()


async def test_after_an_outage_what_is_recent_is_caught_up(world: DagWorld) -> None:
    """Half-hourly, away for five hours, an hour of catch-up."""
    await put(world, "nightly", spec={"interval_s": HOUR / 2}, overlap="allow")
    await later(world, 5 * HOUR + 60)
    assert await ticks(world, "nightly") == [
        ("06-01T00:30", 8, "skipped", "missed"),
        ("06-01T04:30", 1, "started", None),
        ("06-01T05:00", 1, "started", None),
    ]
    [missed] = [
        tick for tick in (await call(world, "GET", "/nightly/ticks"))["items"] if tick["reason"] == "missed"
    ]
    assert missed["through"] == "2026-06-01T04:00:00Z"


@pytest.mark.parametrize(
    ("overlap", "expected"),
    [
        ("allow", {"started": 12}),
        ("skip", {"started": 1, "skipped": 11}),
        ("buffer_one", {"started": 1, "buffered": 1, "skipped": 10}),
        ("buffer_all", {"started": 1, "buffered": 11}),
    ],
)
async def test_two_processes_after_an_hours_outage_decide_each_slot_once(
    world: DagWorld, overlap: str, expected: dict[str, int]
) -> None:
    """A slot every five minutes; both come back at once, and look again."""
    await put(world, "often", spec={"cron": "*/5 * * * *", "tz": "Europe/Paris"}, overlap=overlap)
    other = DagWorld(world.database, world.queue)
    try:
        await clock(world, HOUR + 1)
        for _ in range(3):
            await asyncio.gather(decide(world), decide(other))
        decided: Counter[str] = Counter()
        told = await ticks(world, "often")
        for _, slots, decision, _ in told:
            decided[decision] += slots
        assert decided == expected
        assert len({at for at, *_ in told}) == len(told), "a slot is on record twice"
        [runs] = await world.rows("SELECT count(*)::int AS n FROM dag")
        assert runs["n"] == expected["started"]
    finally:
        await other.close()


async def test_an_outage_of_a_year_is_decided_in_bounded_steps(world: DagWorld) -> None:
    await put(world, "cron", spec={"cron": "*/5 * * * *"})
    await put(world, "often", spec={"interval_s": 1})
    await clock(world, 86_400)
    assert await world.loops.slots.step(world.shard) <= 20
    await decide(world)
    [missed, *rest] = await ticks(world, "cron")
    assert missed == ("06-01T00:05", 275, "skipped", "missed")
    assert [decision for _, _, decision, _ in rest] == ["started", "skipped"]
    [missed, *rest] = await ticks(world, "often")
    assert missed[1:] == (86_400 - 3_600 - 2, "skipped", "missed")


async def test_overlap_skip_leaves_slots_out(world: DagWorld) -> None:
    await put(world, "nightly")
    for hour in (1, 2, 3):
        await later(world, hour * HOUR + 1)
    assert await ticks(world, "nightly") == [
        ("06-01T01:00", 1, "started", None),
        ("06-01T02:00", 2, "skipped", "overlap"),
    ]
    await end_runs(world)
    await later(world, 4 * HOUR + 1)
    assert (await ticks(world, "nightly"))[-1] == ("06-01T04:00", 1, "started", None)
    await end_runs(world)


async def test_overlap_buffer_one_keeps_one(world: DagWorld) -> None:
    await put(world, "nightly", overlap="buffer_one")
    for hour in (1, 2, 3):
        await later(world, hour * HOUR + 1)
    assert await ticks(world, "nightly") == [
        ("06-01T01:00", 1, "started", None),
        ("06-01T02:00", 1, "buffered", None),
        ("06-01T03:00", 1, "skipped", "overlap"),
    ]
    await end_runs(world)
    await decide(world)
    assert (await ticks(world, "nightly"))[1] == ("06-01T02:00", 1, "started", None)
    item = next(item for item in world.queue.items.values() if item.state == "ready")
    assert item.body["inputs"]["external:schedule"]["at"] == "2026-06-01T02:00:00+00:00"
    await end_runs(world)
    await decide(world)
    assert await world.rows("SELECT FROM waiting_slot") == []


async def test_a_run_that_failed_is_over(world: DagWorld) -> None:
    await put(world, "nightly")
    await later(world, HOUR + 1)
    world.queue.die("nightly")
    await world.settle()
    await later(world, 2 * HOUR + 1)
    assert [decision for _, _, decision, _ in await ticks(world, "nightly")] == ["started", "started"]


async def test_while_paused_slots_pass_on_record(world: DagWorld) -> None:
    await put(world, "nightly")
    paused = await call(world, "POST", "/nightly/pause", {"reason": "moving"})
    assert (paused["paused"], paused["reason"]) == (True, "moving")
    await later(world, 3 * HOUR + 1)
    assert await ticks(world, "nightly") == [("06-01T01:00", 3, "skipped", "paused")]
    assert (await put(world, "nightly", 200))["paused"] is True
    resumed = await call(world, "POST", "/nightly/resume", {})
    assert (resumed["paused"], resumed["reason"]) == (False, None)
    await later(world, 4 * HOUR + 1)
    assert (await ticks(world, "nightly"))[-1] == ("06-01T04:00", 1, "started", None)


async def test_a_clock_that_goes_back_decides_nothing_twice(world: DagWorld) -> None:
    await put(world, "nightly", overlap="allow")
    await later(world, 2 * HOUR + 1)
    before = await ticks(world, "nightly")
    await later(world, 30)
    await later(world, 2 * HOUR + 1)
    assert await ticks(world, "nightly") == before
    await later(world, 3 * HOUR)
    assert len(await ticks(world, "nightly")) == len(before) + 1


async def test_the_same_put_again_changes_nothing(world: DagWorld) -> None:
    first = await put(world, "nightly")
    await clock(world, HOUR + 100)
    again = await put(world, "nightly", 200)
    assert {**again, "updated_at": 0} == {**first, "updated_at": 0}, "the slot that is due stays due"
    await decide(world)
    other = await put(world, "nightly", 200, action={"item": {"topic": "other"}})
    assert other["next_at"] == "2026-06-01T02:00:00Z"
    moved = await put(world, "nightly", 200, spec={"interval_s": 7200})
    assert moved["next_at"] == "2026-06-01T02:00:00Z"


async def test_a_trigger_runs_now_and_once(world: DagWorld) -> None:
    await put(world, "nightly", paused=True)
    request = {"request_id": str(uuid.uuid4())}
    tick = await call(world, "POST", "/nightly/trigger", request)
    assert (tick["kind"], tick["decision"]) == ("trigger", "started")
    again = await call(world, "POST", "/nightly/trigger", request)
    assert again == tick
    over = await call(world, "POST", "/nightly/trigger", {})
    assert (over["decision"], over["reason"], over["run"]) == ("skipped", "overlap", None)
    await world.settle()
    await end_runs(world)
    at = "2026-05-01T00:00:00Z"
    tick = await call(world, "POST", "/nightly/trigger", {"at": at})
    assert (tick["decision"], tick["at"]) == ("started", at)
    await world.settle()


async def test_a_backfill_runs_one_after_another(world: DagWorld) -> None:
    await put(world, "nightly")
    body = {"start": "2026-05-31T00:00:00Z", "end": "2026-05-31T03:00:00Z", "request_id": str(uuid.uuid4())}
    assert await call(world, "POST", "/nightly/backfill", body, 202) == {"slots": 3}
    assert await call(world, "POST", "/nightly/backfill", body, 202) == {"slots": 3}
    for n in range(1, 4):
        await decide(world)
        found = await ticks(world, "nightly")
        assert len(found) == n and found[-1] == (f"05-31T0{n}:00", 1, "started", None)
        await end_runs(world)
    await decide(world)
    assert len(await ticks(world, "nightly")) == 3
    assert await call(world, "POST", "/nightly/backfill", body, 202) == {"slots": 3}
    assert await world.rows("SELECT FROM waiting_slot") == []
    at_once = {"start": "2026-05-30T00:00:00Z", "end": "2026-05-30T04:00:00Z", "overlap": "allow"}
    assert await call(world, "POST", "/nightly/backfill", at_once, 202) == {"slots": 4}
    await decide(world)
    assert len(await ticks(world, "nightly")) == 7


async def test_backfills_that_wait_are_bounded_together(world: DagWorld) -> None:
    await put(world, "nightly", spec={"interval_s": 1})
    hour = {"start": "2026-05-31T00:00:00Z", "end": "2026-05-31T00:10:00Z"}
    assert await call(world, "POST", "/nightly/backfill", hour, 202) == {"slots": 600}
    over = await call(world, "POST", "/nightly/backfill", hour, 422)
    assert over["code"] == "limit_exceeded" and "600" in over["detail"]
    assert len(await world.rows("SELECT FROM waiting_slot")) == 600
    rest = {"start": "2026-05-31T00:00:00Z", "end": "2026-05-31T00:06:40Z"}
    assert await call(world, "POST", "/nightly/backfill", rest, 202) == {"slots": 400}


async def test_a_backfill_at_once_does_not_wait_for_one_that_goes_one_by_one(world: DagWorld) -> None:
    await put(world, "nightly")
    one_by_one = {"start": "2026-05-29T00:00:00Z", "end": "2026-05-29T03:00:00Z"}
    at_once = {"start": "2026-05-30T00:00:00Z", "end": "2026-05-30T02:00:00Z", "overlap": "allow"}
    await call(world, "POST", "/nightly/backfill", one_by_one, 202)
    await call(world, "POST", "/nightly/backfill", at_once, 202)
    await decide(world)
    started = [tick[0] for tick in await ticks(world, "nightly")]
    assert started == ["05-29T01:00", "05-30T01:00", "05-30T02:00"]


async def test_a_dag_is_run_whole(world: DagWorld) -> None:
    nodes = [
        {"key": "a", "topic": "work", "external": ["schedule"], "pass_outputs": True},
        {"key": "b", "topic": "work", "upstream": ["a"]},
        {"key": "soak", "timer": {"delay_s": 5}, "upstream": ["b"]},
    ]
    await put(world, "flow", action={"dag": {"nodes": nodes, "on_failure": "cancel", "name": "album"}})
    await later(world, HOUR + 1)
    [tick] = (await call(world, "GET", "/flow/ticks"))["items"]
    assert await world.states(tick["run"]) == {"a": "released", "b": "blocked", "soak": "blocked"}
    assert (await world.dag(tick["run"]))["name"] == "album"
    assert world.queue.item_of("a").body["inputs"]["external:schedule"]["id"] == "flow"
    assert world.queue.item_of("b").state == "disabled"


async def test_a_run_that_is_refused_is_on_record(world: DagWorld) -> None:
    world.settings.__dict__["nodes_per_dag_max"] = 1
    nodes = [{"key": key, "topic": "work"} for key in "ab"]
    await put(world, "large", action={"dag": {"nodes": nodes}})
    await put(world, "nightly")
    await later(world, HOUR + 1)
    assert await ticks(world, "large") == [("06-01T01:00", 1, "skipped", "limit_exceeded")]
    assert await ticks(world, "nightly") == [("06-01T01:00", 1, "started", None)]
    [runs] = await world.rows("SELECT count(*)::int AS n FROM dag")
    assert runs["n"] == 1


async def test_one_schedules_trouble_does_not_hold_up_others(world: DagWorld) -> None:
    await put(world, "broken")
    await put(world, "nightly")
    await world.rows("UPDATE schedule SET plan = 'x' WHERE id = 'broken'")
    await later(world, HOUR + 1)
    assert await ticks(world, "nightly") == [("06-01T01:00", 1, "started", None)]
    assert await ticks(world, "broken") == []
    [put_off] = await world.rows("SELECT look_at > next_at AS late FROM schedule WHERE id = 'broken'")
    assert put_off["late"], "it is looked at again later"


async def test_without_the_queue_a_slot_stays_due(world: DagWorld) -> None:
    await put(world, "nightly")
    world.queue.down.update(("shards", "enqueue"))
    await later(world, HOUR + 1)
    world.queue.down.clear()
    await later(world, HOUR + 20)
    assert await ticks(world, "nightly") == [("06-01T01:00", 1, "started", None)]


async def test_jitter_puts_slots_off(world: DagWorld) -> None:
    await put(world, "nightly", jitter_s=600)
    [row] = await world.rows("SELECT extract(epoch FROM look_at - next_at)::float8 AS late FROM schedule")
    assert 0 <= row["late"] < 600
    await later(world, HOUR + row["late"] - 1)
    assert await ticks(world, "nightly") == []
    await later(world, HOUR + row["late"] + 1)
    assert await ticks(world, "nightly") == [("06-01T01:00", 1, "started", None)]


async def test_another_jitter_loses_no_slot_that_is_still_put_off(world: DagWorld) -> None:
    await put(world, "nightly", jitter_s=600)
    [row] = await world.rows("SELECT extract(epoch FROM look_at - next_at)::float8 AS late FROM schedule")
    await later(world, HOUR + row["late"] / 2)
    assert await ticks(world, "nightly") == []
    moved = await put(world, "nightly", 200, jitter_s=0)
    assert moved["next_at"] == "2026-06-01T01:00:00Z", "its time is past, and it is not decided yet"
    await decide(world)
    assert await ticks(world, "nightly") == [("06-01T01:00", 1, "started", None)]


async def test_given_times_come_to_an_end(world: DagWorld) -> None:
    made = await put(world, "once", spec={"at": ["2026-06-01T01:00:00Z"]})
    assert made["spec"]["at"] == ["2026-06-01T01:00:00Z"]
    await later(world, HOUR + 1)
    assert (await call(world, "GET", "/once"))["next_at"] is None
    await later(world, 100 * HOUR)
    assert len(await ticks(world, "once")) == 1


async def test_ticks_are_kept_in_number(world: DagWorld) -> None:
    world.settings.__dict__["schedule_ticks_max"] = 3
    await put(world, "nightly", overlap="allow")
    for hour in range(1, 6):
        await later(world, hour * HOUR + 1)
    assert [at for at, _, _, _ in await ticks(world, "nightly")] == ["06-01T03:00", "06-01T04:00", "06-01T05:00"]
    page = await call(world, "GET", "/nightly/ticks?limit=2")
    assert [tick["tick"] for tick in page["items"]] == [5, 4]
    rest = await call(world, "GET", f"/nightly/ticks?limit=2&cursor={page['next_cursor']}")
    assert [tick["tick"] for tick in rest["items"]] == [3] and rest["next_cursor"] is None


async def test_a_deleted_schedule_leaves_its_runs(world: DagWorld) -> None:
    await put(world, "nightly", overlap="buffer_one")
    await later(world, HOUR + 1)
    await later(world, 2 * HOUR + 1)
    assert await call(world, "DELETE", "/nightly") == {"id": "nightly", "deleted": True}
    assert await call(world, "DELETE", "/nightly") == {"id": "nightly", "deleted": False}
    await call(world, "GET", "/nightly", expect=404)
    for table in ("schedule", "tick", "waiting_slot", "schedule_run"):
        assert await world.rows(f"SELECT FROM {table}") == []
    await later(world, 3 * HOUR + 1)
    [run] = await world.rows("SELECT state FROM dag")
    assert run["state"] == "running"


async def test_another_tenants_schedules_are_not_there(world: DagWorld) -> None:
    await put(world, "nightly")
    strange = "/v1/namespaces/other/schedules"
    times = {"start": "2026-05-31T00:00:00Z", "end": "2026-05-31T03:00:00Z"}
    for method, path, body in (
        ("GET", "/nightly", None),
        ("GET", "/nightly/ticks", None),
        ("POST", "/nightly/trigger", {}),
        ("POST", "/nightly/pause", {}),
        ("POST", "/nightly/resume", {}),
        ("POST", "/nightly/backfill", times),
    ):
        answer = await world.http.request(method, strange + path, json=body)
        assert answer.json()["code"] == "not_found", path
    assert (await world.http.get(strange)).json()["items"] == []
    assert (await world.http.delete(f"{strange}/nightly")).json()["deleted"] is False
    assert (await call(world, "GET", "/nightly"))["paused"] is False


BAD: list[tuple[dict[str, Any], str]] = [
    ({"spec": {}}, "/spec"),
    ({"spec": {"cron": "* * * * *", "interval_s": 5}}, "/spec"),
    ({"spec": {"cron": "* * * *"}}, "/spec/cron"),
    ({"spec": {"cron": "0 0 31 2 *"}}, "/spec/cron"),
    ({"spec": {"cron": "* * * * *", "tz": "Mars/Base"}}, "/spec/tz"),
    ({"spec": {"cron": "* * * * *", "tz": "../etc/passwd"}}, "/spec/tz"),
    ({"spec": {"interval_s": 5, "tz": "UTC"}}, "/spec/tz"),
    ({"spec": {"interval_s": 0.5}}, "/spec/interval_s"),
    ({"spec": {"at": []}}, "/spec/at"),
    ({"spec": {"at": ["soon"]}}, "/spec/at/0"),
    ({"action": {}}, "/action"),
    ({"action": {"item": {"topic": "t"}, "dag": {"open": True}}}, "/action"),
    ({"action": {"item": {}}}, "/action/item/topic"),
    ({"action": {"item": {"topic": "t", "delay_s": 5}}}, "/action/item/delay_s"),
    ({"action": {"dag": {"nodes": []}}}, "/action/dag/nodes"),
    (
        {"action": {"dag": {"nodes": [{"key": "a", "topic": "t", "upstream": ["b"]}]}}},
        "/action/dag/nodes/0/upstream/0",
    ),
    ({"overlap": "cancel_all"}, "/overlap"),
    ({"catchup_s": 1}, "/catchup_s"),
    ({"jitter_s": -1}, "/jitter_s"),
    ({"every": 5}, "/every"),
]


@pytest.mark.parametrize(("more", "pointer"), BAD)
async def test_schedules_that_are_refused(world: DagWorld, more: dict[str, Any], pointer: str) -> None:
    refused = await call(world, "PUT", "/s", {**HOURLY, **more}, 422)
    assert [error["pointer"] for error in refused["errors"]] == [pointer]
    assert await world.rows("SELECT FROM schedule") == []


async def test_calls_that_are_refused(world: DagWorld) -> None:
    await put(world, "nightly", spec={"interval_s": 1})
    start, end = "2026-05-31T00:00:00Z", "2026-05-31T03:00:00Z"
    many = await call(world, "POST", "/nightly/backfill", {"start": start, "end": end}, 422)
    assert many["code"] == "limit_exceeded"
    for body, pointer in (
        ({"start": end, "end": start}, "/end"),
        ({"start": start, "end": "2026-06-02T00:00:00Z"}, "/end"),
        ({"start": start}, "/end"),
        ({"start": start, "end": end, "request_id": "x"}, "/request_id"),
    ):
        refused = await call(world, "POST", "/nightly/backfill", body, 422)
        assert refused["errors"][0]["pointer"] == pointer
    old = {"start": "0001-01-01T00:00:00Z", "end": "0001-01-01T00:00:05Z"}
    assert (await call(world, "POST", "/nightly/backfill", old, 202))["slots"] <= 5
    for zone in ("America/New_York", "Asia/Tokyo"):
        await put(world, zone.split("/")[1], spec={"cron": "0 3 * * *", "tz": zone})
        assert (await call(world, "POST", f"/{zone.split('/')[1]}/backfill", old, 202))["slots"] == 0
    system = await call(world, "PUT", "/s", {**HOURLY, "action": {"item": {"topic": "_dag"}}}, 403)
    assert system["code"] == "forbidden"
    large = await call(
        world, "PUT", "/s", {**HOURLY, "action": {"item": {"topic": "t", "payload": "x" * 70_000}}}, 413
    )
    assert large["errors"][0]["pointer"] == "/action/item/payload"
    for name in ("a%20b", "x" * 129):
        assert (await world.http.put(f"{PATH}/{name}", json=HOURLY)).status_code == 422
