"""Runs in the place of nodes: begun once, followed, and left or ended with their parents, whatever comes first."""

from typing import Any

import pytest

from shared.errors import Unavailable
from tests.support.dag_world import DagWorld
from tests.support.databases import Database
from tests.support.queue_fake import FakeQueue

RUNS = "/v1/namespaces/default/workflows"


def node(**more: Any) -> list[dict[str, Any]]:
    return [{"key": "w", "topic": None, "workflow": {"type": "part", "id": "part-1", **more}}]


async def end(world: DagWorld, state: str, **more: Any) -> None:
    """The code of the run that is delivered comes to its end."""
    [item] = world.queue.ready("wf/part")
    context = item.body["ack_context"]
    path = f"/v1/namespaces/default/dags/{context['dag']}"
    page = (await world.http.get(f"{path}/history")).json()
    last = page["events"][-1]["event"]
    command = {"kind": "end", "key": "", "after": last, "fingerprint": "0" * 16, "spec": {"state": state, **more}}
    turn = {
        "generation": context["generation"],
        "secret": item.body["payload"]["secret"],
        "turn": page["turn"] + 1,
    }
    answer = await world.http.post(
        f"{path}/turn", json={**turn, "last": last, "seen": last, "commands": [command]}
    )
    assert answer.json() == {"turn": page["turn"] + 1, "ended": True}, answer.text
    world.queue.end(item, "acked")
    await world.settle()


async def runs(world: DagWorld) -> list[tuple[str, int]]:
    query = (
        "SELECT run.state, d.parent_generation AS generation FROM run JOIN dag d ON d.no = dag_no ORDER BY d.no"
    )
    return [(row["state"], row["generation"]) for row in await world.rows(query)]


async def test_a_retry_begins_another_run_of_the_same_workflow(world: DagWorld) -> None:
    dag = await world.create(node(input={"n": 1}))
    await world.settle()
    await end(world, "failed", error="as it must be")
    assert (await world.dag(dag))["state"] == "failed"
    assert (await world.node(dag, "w"))["error"] == "as it must be"
    await world.verb(dag, "retry")
    await world.settle()
    await end(world, "succeeded", output=[1, 2])
    assert (await world.dag(dag))["state"] == "succeeded"
    assert (await world.node(dag, "w"))["output"] == [1, 2]
    assert await runs(world) == [("failed", 1), ("succeeded", 2)]
    assert (await world.http.get(f"{RUNS}/part-1")).json()["state"] == "succeeded"


async def test_a_run_that_is_cancelled_before_it_has_begun_never_begins(
    world: DagWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: Any) -> None:
        raise Unavailable("not now")

    with monkeypatch.context() as patched:
        patched.setattr(world.duties.starter, "start_child", away)
        dag = await world.create(node())
        await world.settle()
        await world.verb(dag, "cancel", expect=202)
        await world.settle()
    assert (await world.dag(dag))["state"] == "cancelled"
    await world.sweep()
    assert await runs(world) == [] and await world.rows("SELECT FROM outbox") == []


async def test_a_start_that_is_carried_again_begins_nothing(world: DagWorld) -> None:
    dag = await world.create(node())
    await world.settle()
    await world.rows(
        "INSERT INTO outbox (node_no, generation, action, item_id, created_at, due_at) "
        "SELECT no, 1, 'start', item_id, shard_now(), shard_now() FROM node WHERE key = 'w'"
    )
    await world.sweep()
    assert await runs(world) == [("running", 1)]
    await end(world, "succeeded", output=7)
    await world.rows(
        "INSERT INTO outbox (node_no, generation, action, item_id, created_at, due_at) "
        "SELECT no, 1, 'start', item_id, shard_now(), shard_now() FROM node WHERE key = 'w'"
    )
    await world.sweep()
    assert await runs(world) == [("succeeded", 1)]
    assert (await world.dag(dag))["state"] == "succeeded"


@pytest.mark.parametrize(
    ("policy", "child", "asked"),
    [("cancel", "running", True), ("terminate", "cancelled", False), ("abandon", "running", False)],
)
async def test_what_becomes_of_a_child_is_its_parents_word(
    world: DagWorld, policy: str, child: str, asked: bool
) -> None:
    dag = await world.create(node(parent_close=policy))
    await world.settle()
    await world.verb(dag, "cancel", expect=202)
    await world.settle()
    assert await runs(world) == [(child, 1)]
    events = (await world.http.get(f"{RUNS}/part-1/history")).json()["events"]
    assert ("cancel_requested" in [event["state"] for event in events]) == asked
    over = (await world.dag(dag))["state"]
    assert over == ("cancelling" if policy == "cancel" else "cancelled")
    if child == "running":
        await end(world, "cancelled" if asked else "succeeded")
    assert (await world.dag(dag))["state"] == "cancelled"


async def test_an_id_that_another_run_has_fails_the_node(world: DagWorld) -> None:
    made = await world.http.post(RUNS, json={"type": "part", "id": "part-1"})
    assert made.status_code == 201
    dag = await world.create(node())
    await world.settle()
    assert (await world.dag(dag))["state"] == "failed"
    assert "part-1" in (await world.node(dag, "w"))["error"]
    assert await runs(world) == [("running", None)]


async def test_a_run_whose_time_is_over_is_asked_to_end_and_then_ended(world: DagWorld) -> None:
    await world.http.post(RUNS, json={"type": "part", "id": "part-1", "deadline_s": 60})
    for state in ("running", "cancelled"):
        await world.rows("UPDATE dag SET deadline_at = shard_now() - interval '1 s'")
        await world.sweep()
        shown = (await world.http.get(f"{RUNS}/part-1")).json()
        events = (await world.http.get(f"{RUNS}/part-1/history")).json()["events"]
        assert shown["state"] == state
        assert [event["state"] for event in events] == ["started", "cancel_requested"]
    assert await world.rows("SELECT FROM dag WHERE state IN ('running', 'cancelling')") == []


async def test_a_run_is_dropped_whole_and_its_id_is_free(world: DagWorld, dag_database: Database) -> None:
    """Retention takes the run's rows with its DAG's."""
    settings = {"ended_dag_grace_s": 30.0, "ended_dag_retention_s": 60.0}
    small = DagWorld(dag_database, FakeQueue(), **settings)
    try:
        await small.http.post(RUNS, json={"type": "part", "id": "dropped"})
        await small.http.post(f"{RUNS}/dropped/signals", json={"name": "go"})
        await small.settle()
        await end(small, "succeeded", output=1)
        await small.rows("UPDATE dag SET finished_at = finished_at - interval '1 day'")
        for _ in range(6):
            await small.loops.retention.step(small.shard)
        assert (await small.http.get(f"{RUNS}/dropped")).status_code == 404
        for table in ("run", "workflow", "event", "signal_id", "signal_count", "published"):
            assert await small.rows(f"SELECT FROM {table}") == [], table
        assert (await small.http.post(RUNS, json={"type": "part", "id": "dropped"})).status_code == 201
    finally:
        await small.close()
