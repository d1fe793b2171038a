"""Each call about a DAG at its limits, with all that follows from it: no statement passes its bound.

The DAG is wide: so many roots, one node below all of them, so many children below that. A new call joins by a
line in `CALLS`. Bounds are lowered by settings: what is not cut into steps is seen by its rows. Nothing is timed.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pytest

from tests.support.bounded import steps
from tests.support.dag_world import BASE, DagWorld
from tests.support.queue_fake import FakeQueue
from tests.support.traffic import traffic

WIDTH = 400
STEP = 40
VALUE = 4_096
BOUND = 64 * 1024
# Of one row beside its texts.
AROUND = 500
SETTINGS: dict[str, Any] = {
    "payload_bytes_max": VALUE,
    "data_bytes_max": VALUE,
    "edges_per_step_max": STEP,
    "walk_edges_max": STEP,
    "scan_nodes_max": STEP,
    "scan_edges_max": STEP,
    "list_scan_nodes_max": 5 * STEP,
    "completions_per_step_max": STEP,
    "send_items_max": STEP,
    "retry_at_once_nodes_max": STEP,
    "retry_at_once_edges_max": STEP,
    "retry_step_nodes": STEP,
    "retry_step_edges": STEP,
    "completion_bytes_max": BOUND,
    "inputs_step_bytes_max": BOUND,
    "page_bytes_max": BOUND,
    "send_bytes_max": BOUND,
    "keep_rows_max": STEP,
    "timers_per_step_max": STEP,
    "value_bytes_max": VALUE,
    "keep_bytes_max": BOUND,
    "ended_dag_grace_s": 30.0,
}


def text(size: int = VALUE) -> str:
    return "x" * (size - 2)


def roots(**fields: Any) -> list[dict[str, Any]]:
    return [{"key": f"r{n}", "topic": "work", **fields} for n in range(WIDTH)]


async def wide(world: DagWorld) -> str:
    """All roots are delivered."""
    joint = {"key": "joint", "topic": "work", "upstream": [f"r{n}" for n in range(WIDTH)], "pass_outputs": True}
    dag = await world.create([*roots(payload=text(VALUE // 8)), joint])
    await world.add(dag, [{"key": f"c{n}", "topic": "work", "upstream": ["joint"]} for n in range(WIDTH)])
    await world.settle()
    return dag


async def half(world: DagWorld) -> str:
    """All roots have succeeded, and the node below them is delivered."""
    dag = await wide(world)
    acked(world, [f"r{n}" for n in range(WIDTH)])
    await world.settle()
    return dag


async def ended(world: DagWorld) -> str:
    """All have succeeded."""
    dag = await half(world)
    acked(world, ["joint"])
    await world.settle()
    acked(world, [f"c{n}" for n in range(WIDTH)])
    await world.settle()
    assert (await world.dag(dag))["state"] == "succeeded"
    return dag


async def waiting(world: DagWorld) -> str:
    return await world.create(roots(external=["go"]))


async def one(world: DagWorld) -> str:
    return await world.create({"a": []})


async def none(_world: DagWorld) -> str:
    return ""


def acked(world: DagWorld, keys: list[str]) -> None:
    for key in keys:
        world.queue.ack(key, output=text())


async def with_values(world: DagWorld) -> str:
    """A DAG that shares many values."""
    dag = await one(world)
    for n in range(WIDTH // 2):
        await world.call("PUT", f"/{dag}/values/v{n}", {"value": text()}, expect=200)
    return dag


async def timed(world: DagWorld) -> str:
    """Many timers that run, and a node below all of them."""
    timers = [{"key": f"t{n}", "timer": {"delay_s": 600}} for n in range(WIDTH)]
    joint = {"key": "joint", "topic": "work", "upstream": [f"t{n}" for n in range(WIDTH)]}
    dag: str = (await world.call("POST", "", {"nodes": [*timers, joint]}, expect=201))["id"]
    await world.settle()
    return dag


async def timers_end(world: DagWorld, _dag: str) -> None:
    for shard in world.duties.context.shards:
        connection = await world.looking_at(shard)
        await connection.execute("UPDATE timer SET due_at = shard_now(), look_at = shard_now()")
        for _ in steps():
            if not await world.loops.timers.step(shard):
                break


SCHEDULES = BASE.replace("/dags", "/schedules")


async def scheduled(world: DagWorld) -> str:
    """Many schedules of large DAGs."""
    nodes = [{"key": f"n{n}", "topic": "work", "payload": text()} for n in range(4)]
    body = {"spec": {"interval_s": 3_600}, "action": {"dag": {"nodes": nodes}}, "overlap": "allow"}
    for n in range(WIDTH // 8):
        assert (await world.http.put(f"{SCHEDULES}/s{n}", json=body)).status_code == 201
    return ""


async def backfill(world: DagWorld, _dag: str) -> None:
    """Its runs begin as fast as they can."""
    now = datetime.now(UTC)
    start = now - timedelta(hours=WIDTH // 8)
    body = {"start": start.isoformat(), "end": now.isoformat()}
    answer = await world.http.post(f"{SCHEDULES}/s0/backfill", json=body)
    assert answer.status_code == 202, answer.text
    for _ in steps():
        if not sum([await world.loops.slots.step(shard) for shard in world.duties.context.shards]):
            break
    ticks = await world.http.get(f"{SCHEDULES}/s0/ticks?limit=1000")
    assert [tick["decision"] for tick in ticks.json()["items"]] == ["started"] * (WIDTH // 8)


async def ack_roots(world: DagWorld, _dag: str) -> None:
    acked(world, [f"r{n}" for n in range(WIDTH)])


async def ack_joint(world: DagWorld, _dag: str) -> None:
    acked(world, ["joint"])


async def fail_roots(world: DagWorld, _dag: str) -> None:
    world.queue.die("r0")


async def resolve(world: DagWorld, dag: str) -> None:
    facts = [{"node": f"r{n}", "name": "go", "data": text()} for n in range(WIDTH)]
    await world.verb(dag, "resolve", {"external": facts})


async def archive(world: DagWorld, _dag: str) -> None:
    world.settings.__dict__["ended_dag_grace_s"] = 0.0
    while await world.loops.retention.step(world.shard):
        pass


def verb(name: str, body: Any = None, expect: int = 200) -> Callable[[DagWorld, str], Awaitable[Any]]:
    return lambda world, dag: world.verb(dag, name, body, expect=expect)


def read(path: str) -> Callable[[DagWorld, str], Awaitable[Any]]:
    async def reading(world: DagWorld, dag: str) -> None:
        answer = await world.http.get(f"{BASE}/{dag}/{path}" if dag else f"{SCHEDULES}{path}")
        assert answer.status_code == 200
        # Of outputs and of each kind of what surrounds a node, and what each node says beside.
        assert len(answer.content) <= 4 * BOUND + WIDTH * AROUND

    return reading


class Case(NamedTuple):
    make: Callable[[DagWorld], Awaitable[str]]
    call: Callable[[DagWorld, str], Awaitable[Any]]


CALLS: dict[str, Case] = {
    "create": Case(none, lambda world, _dag: world.create(roots(payload=text()))),
    "add": Case(one, lambda world, dag: world.add(dag, roots(payload=text(), upstream=["a"]))),
    "acks of all upstreams of a node": Case(wide, ack_roots),
    "an ack that releases many": Case(half, ack_joint),
    "a failure that skips many": Case(wide, fail_roots),
    "resolve": Case(waiting, resolve),
    "cancel": Case(wide, verb("cancel", expect=202)),
    "retry of all": Case(ended, verb("retry", {"all": True})),
    "nodes": Case(ended, read("nodes?limit=1000")),
    "nodes by state": Case(ended, read("nodes?limit=1000&state=succeeded")),
    "outputs": Case(ended, read("outputs?limit=1000")),
    "export": Case(ended, read("export?limit=1000")),
    "one node": Case(half, read("node?key=joint")),
    "archive": Case(ended, archive),
    "a value": Case(one, lambda world, dag: world.call("PUT", f"/{dag}/values/v", {"value": text()}, expect=200)),
    "values": Case(with_values, read("values?limit=1000")),
    "timers that end at one time": Case(timed, timers_end),
    "a backfill": Case(scheduled, backfill),
    "schedules": Case(scheduled, read("?limit=1000")),
}


BRINGS = {"create", "add", "resolve"}
SHOWS = {"nodes", "nodes by state", "outputs", "export", "one node", "values", "schedules"}


@pytest.fixture
async def bounded(world: DagWorld) -> AsyncIterator[DagWorld]:
    made = DagWorld(world.database, FakeQueue(), **SETTINGS)
    yield made
    await made.close()


@pytest.mark.parametrize("name", CALLS)
async def test_a_call_at_its_limit_and_what_follows_keep_their_bounds(
    bounded: DagWorld, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    case = CALLS[name]
    dag = await case.make(bounded)

    with traffic(monkeypatch) as met:
        await case.call(bounded, dag)
        await bounded.settle()

    assert met.statements
    # What a call brings, or a page shows, is a part of its statement; all else goes in steps.
    brought = WIDTH * VALUE if name in BRINGS else 0
    assert met.rows[0] <= (WIDTH + 1 if name in BRINGS | SHOWS else 6 * STEP), met.rows
    assert met.told[0] <= 2 * BOUND + WIDTH * AROUND, met.told
    assert met.given[0] <= brought + 2 * BOUND + WIDTH * AROUND, met.given
