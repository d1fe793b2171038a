"""Turns of the common shape: what the one statement writes is what a turn's transaction would have written."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from headgate.workflow.turns import Lease, Turn, TurnAnswer
from services.dag.workflows import plain_turns
from shared.fallback import Fallback
from shared.metrics import FALLBACKS
from tests.support.dag_world import DagWorld
from tests.support.run_services import DagRuns

WAIT_S = 20.0
# What both ways must have written alike; ids, secrets and times are each run's own.
STANDING = """
SELECT run.state, run.turn, run.seen, run.last_event, run.last_told, run.open_steps, run.received,
    run.received_total, run.markers, run.made_by, run.stuck, run.stuck_attempts,
    run.turn_digest IS NOT NULL AS has_digest,
    dag.next_n, dag.blocked, dag.released, dag.succeeded, dag.edges, dag.structure_version,
    dag.last_event AS changes,
    (SELECT array_agg((no & 4194303, key, state, generation, topic, trigger, pass_outputs, enqueued, fingerprint,
        up_left, ext_left, released_at IS NOT NULL, attempts, output, sub, run_on, timer)::text ORDER BY no)
        FROM node WHERE dag_no = dag.no AND key <> 'decider') AS nodes,
    (SELECT array_agg(item ORDER BY node_no) FROM node_spec WHERE node_no > dag.no << 22
        AND node_no < (dag.no + 1) << 22) AS specs,
    (SELECT array_agg((event, kind, key, generation, state, output, error, data, after)::text ORDER BY event)
        FROM event WHERE dag_no = dag.no AND event > 1) AS events,
    (SELECT array_agg((last_event, nodes, dag)::text ORDER BY last_event) FROM change
        WHERE dag_no = dag.no) AS log
FROM run JOIN dag ON dag.no = run.dag_no WHERE run.workflow_id = $1
"""


def item(number: int, after: int = 1) -> dict[str, Any]:
    spec = {"topic": "pack", "payload": number}
    return {"kind": "item", "key": f"pack#{number}", "after": after, "fingerprint": "0" * 16, "spec": spec}


def step(number: int, after: int = 1) -> dict[str, Any]:
    spec = {"name": "a"}
    return {"kind": "step", "key": f"step:a#{number}", "after": after, "fingerprint": "1" * 16, "spec": spec}


def result(number: int, **more: Any) -> dict[str, Any]:
    return {"key": f"step:a#{number}", "state": "succeeded", "output": {"n": number}} | more


@pytest.fixture
async def awake_world(world: DagWorld) -> AsyncIterator[DagWorld]:
    world.duties.context.news.hearers = 1
    yield world
    world.duties.context.news.hearers = 0


SHOWN = {"kind": "publish", "key": "a", "after": 1, "fingerprint": "2" * 16, "spec": {"value": 1}}


def lease_of(runs: DagRuns) -> Lease:
    """Of one run among several."""
    queue = runs.world.queue
    [ready] = [each for each in queue.ready(runs.topic) if each.body["ack_context"]["dag"] == runs.dag]
    return Lease(runs.dag, ready.generation, ready.body["payload"]["secret"])


class Told:
    """What a turn came to: its answer, or that it waits."""

    def __init__(self, world: DagWorld, runs: DagRuns) -> None:
        self.world, self.runs = world, runs

    async def take(self, lease: Lease, turn: Turn) -> TurnAnswer | None:
        call = asyncio.create_task(self.runs.turn(lease, replace(turn, wait_s=WAIT_S)))
        query = "SELECT FROM run WHERE workflow_id = $1 AND turn = $2 AND last_told <= seen"
        while not call.done() and not await self.world.rows(query, self.runs.id, turn.turn):
            await asyncio.sleep(0.001)
        if call.done():
            return call.result()
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        return None


TURNS: list[dict[str, Any]] = [
    {"commands": []},
    {"commands": [item(1)], "by": {"core": 1}},
    {"commands": [item(n) for n in range(1, 20)]},
    {"commands": [step(1)], "results": [result(1)]},
    {
        "commands": [item(1), step(1), item(2), step(2)],
        "results": [result(2, state="failed", output=None, error="boom"), result(1)],
    },
    {"commands": [], "received": {"go": 3}},
]


@pytest.mark.parametrize("turn", TURNS)
async def test_both_ways_write_the_same(
    awake_world: DagWorld, turn: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, told = [], []
    for name in ("plain", "whole"):
        if name == "whole":
            monkeypatch.setattr(plain_turns.PlainTurns, "_plain", lambda *_: Fallback("test"))
        runs = DagRuns(awake_world)
        runs.id = name
        await runs.start()
        lease = lease_of(runs)
        answer = await Told(awake_world, runs).take(lease, Turn(lease.generation, lease.secret, 1, 1, 1, **turn))
        told.append(None if answer is None else [event.body() | {"at": None} for event in answer.events])
        [row] = await awake_world.rows(STANDING, name)
        found.append(dict(row))
        await awake_world.sweep()  # a call dropped right after its commit has handed over nothing itself
        await awake_world.audit(runs.dag)
        await runs.close()
    assert found[0] == found[1]
    assert told[0] == told[1]
    assert len(awake_world.queue.ready("pack")) == 2 * sum(each["kind"] == "item" for each in turn["commands"])
    awake_world.queue.forget()


async def test_turns_that_come_together_are_one_statement_and_each_is_judged_for_itself(
    awake_world: DagWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of several is another worker's, one is paused, one was parked: they are taken, or refused, alone."""
    taken: list[list[bool]] = []
    take = plain_turns.store.turns.take_turns

    async def spy(*given: Any, **more: Any) -> Any:
        found = await take(*given, **more)
        taken.append([each is not None for each in found])
        return found

    monkeypatch.setattr(plain_turns.store.turns, "take_turns", spy)
    runs = []
    for name in "abcd":
        made = DagRuns(awake_world)
        made.id = name
        await made.start()
        runs.append(made)
    leases = list(map(lease_of, runs))
    assert (await runs[3].turn(leases[3], Turn(1, leases[3].secret, 1, 1, 1, [item(1)]))).parked
    await runs[2].client.workflows.get("c").pause()
    calls = [
        asyncio.create_task(made.turn(lease, Turn(1, secret, 1, 1, 1, [item(1)], wait_s=0.05)))
        for made, lease, secret in zip(
            runs, leases, [leases[0].secret, "no", leases[2].secret, leases[3].secret], strict=True
        )
    ]
    found = await asyncio.gather(*calls, return_exceptions=True)
    assert taken == [[True, False, False, False]]
    assert [getattr(each, "parked", type(each).__name__) for each in found] == [True, "TurnLost", True, True]
    for made in runs:
        await awake_world.audit(made.dag)
        await made.close()


@pytest.mark.parametrize(
    ("turn", "reason"),
    [
        ({"commands": [item(n) for n in range(1, 102)]}, "large"),
        ({"commands": [step(1)]}, "steps"),
        ({"commands": [SHOWN]}, "commands"),
        ({"commands": [item(1, after=1), item(1, after=1)]}, "steps"),
        ({"commands": [item(1, after=7)]}, "run_state"),
    ],
)
async def test_what_is_not_as_simple_is_left_to_the_long_way(
    awake_world: DagWorld, turn: dict[str, Any], reason: str
) -> None:
    counted = FALLBACKS.labels("run_turn", reason)._value
    before = counted.get()
    runs = DagRuns(awake_world)
    await runs.start()
    lease = await runs.lease()
    assert lease is not None
    call = runs.turn(lease, Turn(lease.generation, lease.secret, 1, 1, 1, wait_s=0.01, **turn))
    await asyncio.gather(call, return_exceptions=True)
    assert counted.get() == before + 1
    await runs.close()


DECIDER = """
SELECT state, generation, enqueued, attempts, released_at IS NOT NULL AS is_released, finished_at,
    (SELECT array_agg((name, sent)::text ORDER BY name) FROM signal_count WHERE dag_no = node.dag_no) AS counted,
    (SELECT array_agg((id, asks)::text ORDER BY id) FROM signal_id WHERE dag_no = node.dag_no) AS ids
FROM node WHERE key = 'decider' AND dag_no = (SELECT dag_no FROM run WHERE workflow_id = $1)
"""


@pytest.mark.parametrize("is_parked", [True, False])
async def test_both_ways_take_the_same_signals(
    world: DagWorld, monkeypatch: pytest.MonkeyPatch, *, is_parked: bool
) -> None:
    """The first wakes a run that is parked; what comes again adds nothing."""
    found = []
    for name in ("plain", "whole"):
        if name == "whole":
            monkeypatch.setattr(plain_turns.store.turns, "take_signal", _none)
        runs = DagRuns(world)
        runs.id = name
        await runs.start()
        lease = lease_of(runs)
        if is_parked:
            assert (await runs.turn(lease, Turn(lease.generation, lease.secret, 1, 1, 1))).parked
        world.queue.end(world.queue.item_of("decider", lease.generation), "acked")
        run = runs.client.workflows.get(name)
        told = [(await run.signal("go", {"n": n}, id=f"s{n}")).status for n in (1, 2, 1)]
        told.append((await run.update("ask", 1, id="u", wait_s=0)).status)
        [row] = await world.rows(STANDING, name)
        [decider] = await world.rows(DECIDER, name)
        decider = dict(decider)
        decider["ids"] = [each for each in decider["ids"] if "sdk-" not in each]  # of its start: made anew
        found.append((told, dict(row), decider))
        await world.settle()
        await world.audit(runs.dag)
        assert len([each for each in world.queue.ready(runs.topic) if each.generation == 2]) == 1
        await run.terminate()
        await world.settle()
        world.queue.forget()
        await runs.close()
    assert found[0] == found[1]


async def _none(*_: Any, **__: Any) -> None:
    """It is to be taken otherwise."""


@pytest.mark.parametrize("why", ["paused", "full", "old item", "over"])
async def test_a_signal_that_is_not_as_simple_is_left_to_the_long_way(
    world: DagWorld, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = DagRuns(world)
    await runs.start()
    lease = lease_of(runs)
    run = runs.client.workflows.get(runs.id)
    assert (await runs.turn(lease, Turn(lease.generation, lease.secret, 1, 1, 1))).parked
    match why:
        case "paused":
            await run.pause()
        case "full":
            monkeypatch.setitem(world.settings.__dict__, "unread_signals_max", 0)
        case "old item":
            monkeypatch.setitem(world.settings.__dict__, "id_window_s", -4.0)
        case "over":
            await run.terminate()
    counted = FALLBACKS.labels("run_signal", "run_state")._value
    before = counted.get()
    answer = await world.http.post(f"/v1/namespaces/default/workflows/{runs.id}/signals", json={"name": "go"})
    assert counted.get() == before + 1
    assert answer.status_code == {"paused": 202, "full": 429, "old item": 202, "over": 409}[why], answer.text
    [decider] = await world.rows(DECIDER, runs.id)
    states = {"paused": "blocked", "full": "blocked", "old item": "released", "over": "cancelled"}
    assert decider["state"] == states[why]
    await runs.close()
