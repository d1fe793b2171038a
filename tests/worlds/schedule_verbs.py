"""Verbs of schedules, and the way to the end of each."""

from datetime import UTC, datetime
from random import Random
from typing import Any
from uuid import UUID

from tests.worlds.dag_verbs import item_spec, sub_dag
from tests.worlds.registry import verb
from tests.worlds.schedule_facts import Asked, Schedule
from tests.worlds.wire import Answer
from tests.worlds.world_names import NAMESPACES

_SCHEDULES_MAX = 4  # at once; each makes DAGs by itself
_RUNS_MAX = 60  # of one whose runs may overlap


def may_make(world: Any) -> bool:
    return len(world.schedules) < _SCHEDULES_MAX


def has_schedules(world: Any) -> bool:
    return any(schedule.is_made for schedule in world.schedules)


def _pick(world: Any, rng: Random) -> Schedule:
    schedule: Schedule = rng.choice([schedule for schedule in world.schedules if schedule.is_made])
    return schedule


async def _call(
    world: Any, rng: Random, schedule: Schedule, path: str = "", body: Any = None, **how: Any
) -> Answer:
    answer: Answer = await world.dag(rng, schedule.namespace, f"/schedules/{schedule.id}{path}", body, **how)
    return answer


@verb(1.2, may_make, since=2)
async def put_schedule(world: Any, rng: Random) -> None:
    namespace, name = rng.choice(NAMESPACES), f"s{world.serial()}"
    overlap = rng.choice(("skip", "skip", "buffer_one", "allow"))
    tag = f"{namespace}/{name}"
    item: dict[str, Any] = {
        field: value for field, value in item_spec(rng, tag).items() if field not in ("pass_outputs", "delay_s")
    }
    body = {
        "spec": {"interval_s": 60 if overlap == "allow" else rng.choice((5, 30))},
        "action": {"item": item} if rng.random() < 0.6 else {"dag": sub_dag(world, rng, tag, 2)},
        "overlap": overlap,
        "catchup_s": rng.choice((10, 60, 3_600)),
    }
    schedule = Schedule(name, namespace, body, world.now_s)
    world.schedules.append(schedule)
    await put(world, rng, schedule)


@verb(0.5, has_schedules, since=2)
async def put_schedule_again(world: Any, rng: Random) -> None:
    """A program puts its schedules each time it starts; that changes nothing."""
    schedule = _pick(world, rng)
    if not schedule.may_be_deleted:
        await put(world, rng, schedule)


async def put(world: Any, rng: Random, schedule: Schedule) -> None:
    answer = await _call(world, rng, schedule, body=schedule.body, method="PUT")
    schedule.is_made |= answer.known != "fail"
    schedule.is_promised |= answer.known == "ok"


@verb(1, has_schedules, since=2)
async def steer_schedule(world: Any, rng: Random) -> None:
    await _call(world, rng, _pick(world, rng), rng.choice(("/pause", "/resume", "/resume")))


@verb(0.1, has_schedules, since=2)
async def delete_schedule(world: Any, rng: Random) -> None:
    """Its ticks are gone, and its runs go on."""
    schedule = _pick(world, rng)
    schedule.may_be_deleted = True
    await _call(world, rng, schedule, method="DELETE")


@verb(1, has_schedules, since=2)
async def trigger(world: Any, rng: Random) -> None:
    schedule = _pick(world, rng)
    await ask(world, rng, schedule, Asked("trigger", _request(rng), {}, world.now_s))


@verb(0.3, has_schedules, since=2)
async def backfill(world: Any, rng: Random) -> None:
    schedule = _pick(world, rng)
    end_s = world.now_s - rng.choice((0.0, 100.0))
    body = {
        "start": datetime.fromtimestamp(end_s - schedule.interval_s * rng.randint(1, 3), UTC).isoformat(),
        "end": datetime.fromtimestamp(end_s, UTC).isoformat(),
    } | ({"overlap": "allow"} if rng.random() < 0.2 else {})
    await ask(world, rng, schedule, Asked("backfill", _request(rng), body, world.now_s))


def _request(rng: Random) -> str:
    return str(UUID(int=rng.getrandbits(128), version=4))


async def ask(world: Any, rng: Random, schedule: Schedule, asked: Asked) -> None:
    """A trigger or a backfill, for the first time or again."""
    if asked not in schedule.asked:
        schedule.asked.append(asked)
    body = {**asked.body, "request_id": asked.request}
    for _ in range(rng.choice((1, 1, 2))):
        answer = await _call(world, rng, schedule, f"/{asked.kind}", body)
        if answer.known == "ok":
            asked.slots = answer.body["slots"]
            if "tick" in answer.body:
                asked.ticks.add(answer.body["tick"])
        asked.is_possible |= answer.known != "fail"


# -- the way to the end


async def let_go(world: Any, rng: Random) -> None:
    """Nothing new comes of a schedule; what waits has its turn. What nobody was answered for is asked again."""
    for schedule in world.schedules:
        if not schedule.is_made:
            continue
        if not schedule.is_promised and not schedule.may_be_deleted:
            await put(world, rng, schedule)
        for asked in schedule.asked:
            if asked.is_possible and asked.slots is None:
                await ask(world, rng, schedule, asked)
        shown = await _call(world, rng, schedule, method="GET")
        if shown.known == "ok" and "at" not in shown.body["spec"]:
            # In the past: it has no slot any more.
            over = {**schedule.body, "spec": {"at": ["2000-01-01T00:00:00Z"]}, "paused": False}
            await _call(world, rng, schedule, body=over, method="PUT")


async def read(world: Any, rng: Random) -> bool:
    """Learn of each schedule's runs and ticks; whether nothing of any is still to come."""
    is_over = True
    for schedule in world.schedules:
        if not schedule.is_made:
            continue
        runs = await world.pages(rng, world.dag, schedule.namespace, "/dags", name=schedule.id)
        for view in runs or ():
            if view["id"] not in world.dags.by_id:
                run = world.dags.new(schedule.run(view["id"]))
                world.dags.named(run, view["id"])
        shown = await _call(world, rng, schedule, method="GET")
        if shown.status == 404 and schedule.may_be_deleted:
            continue
        ticks = await world.pages(rng, world.dag, schedule.namespace, f"/schedules/{schedule.id}/ticks")
        if runs is None or ticks is None or shown.known != "ok":
            return False
        schedule.ticks = ticks
        asked = [asked for asked in schedule.asked if asked.kind == "backfill" and asked.is_possible]
        found = sum(tick["slots"] for tick in ticks if tick["kind"] == "backfill")
        is_over &= shown.body["next_at"] is None and all(tick["decision"] != "buffered" for tick in ticks)
        is_over &= all(one.slots is not None for one in asked) and found >= sum(one.slots or 0 for one in asked)
    return is_over
