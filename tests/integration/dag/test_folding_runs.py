"""Acks that wake runs of workflows in the queue's own transaction, on a real queue and DAG shard side by side."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.integration.queue.test_hung_up_consumer import spy_on_claims, waiters
from tests.support.folding import Folding
from tests.support.folding_runs import FoldedRun
from tests.support.traffic import traffic


@pytest.fixture
async def run(folding: Folding, request: pytest.FixtureRequest) -> AsyncIterator[FoldedRun]:
    made = FoldedRun(folding, request.node.name.replace("[", ".").rstrip("]"))
    yield made
    if made.dag:
        await made.finish()


async def test_an_ack_wakes_the_run_that_waits_for_it(
    folding: Folding, run: FoldedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By one statement of the queue, and none of the DAG service."""
    await run.begin(calls=2)
    assert await folding.queue.ack(run.decider) == ["acked"]
    taken = await folding.take()
    ended = {"id": taken["work#2"]["id"], "lease_token": taken["work#2"]["lease_token"], "output": "two"}
    with traffic(monkeypatch) as met:
        assert [found["status"] for found in await folding.queue.results("ack", {"items": [ended]})] == ["acked"]
    assert met.statements == 1

    assert folding.told.taken == await folding.completions() == 0
    stands = await run.standing()
    assert (stands["decider"], stands["generation"]) == ("released", 2)
    assert (stands["last_event"], stands["last_told"], stands["seen"]) == (4, 4, 1)
    event = (await run.history())[-1]
    assert (event["kind"], event["key"], event["state"], event["output"]) == ("item", "work#2", "succeeded", "two")
    assert await run.take_decider()
    assert run.decider["dag"] == {"id": run.dag, "node": "decider", "generation": 2}
    # One more end while it is awake is an event, and no other delivery.
    assert await folding.queue.ack(taken["work#1"]) == ["acked"]
    assert not await folding.queue.dequeue(f"wf/{run.type}")
    assert await folding.completions() == 0
    assert [event["key"] for event in (await run.turn(last=4))["events"]] == ["work#1"]
    await folding.dags.audit(run.dag)


async def test_a_worker_that_waits_has_the_decider_with_the_acks_own_commit(
    folding: Folding, run: FoldedRun
) -> None:
    """From the second time on: the first tells the queue that acks make this topic's items ready."""
    await run.begin(calls=2)
    taken = await folding.take()
    await folding.queue.ack(taken["work#1"], run.decider)
    assert await run.take_decider()
    assert (await run.turn())["parked"]
    waiting = asyncio.create_task(folding.queue.dequeue(f"wf/{run.type}", wait_s=20))
    while not waiters(folding.queue, f"wf/{run.type}"):
        await asyncio.sleep(0.001)
    claims = spy_on_claims(folding.queue)

    assert await folding.queue.ack(taken["work#2"]) == ["acked"]
    [run.decider] = await waiting
    assert claims == []
    assert (await run.turn())["parked"]


async def test_the_end_of_a_generation_that_is_over_is_told_nobody(folding: Folding, run: FoldedRun) -> None:
    await run.begin()
    task = (await folding.take())["work#1"]
    assert await folding.queue.ack(run.decider, task) == ["acked", "acked"]
    assert await folding.completions() == 0
    assert await run.take_decider()
    assert (await run.turn(end="done"))["ended"]
    assert await folding.queue.ack(run.decider) == ["acked"]
    assert await folding.completions() == folding.told.taken == 0
    assert (await run.standing())["state"] == "succeeded"


async def test_the_end_of_what_a_reset_has_made_void_is_told_nobody(
    folding: Folding, run: FoldedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker acks it before the queue hears of its cancel."""
    await run.begin()
    assert await folding.queue.ack(run.decider) == ["acked"]
    task = (await folding.take())["work#1"]
    monkeypatch.setattr(folding.dags.duties.context, "dispatch", lambda _shard, _sends: None)
    assert await run.verb("reset", {"event": 1}) == 202
    assert await folding.queue.ack(task) == ["acked"]
    monkeypatch.undo()
    await folding.settle()
    found = [(event["state"], event.get("void")) for event in await run.history() if event.get("key") == "work#1"]
    assert found == [("added", 1), ("succeeded", 1)]
    assert (await run.standing())["last_told"] == 1
    await folding.dags.audit(run.dag)


async def test_a_delivery_that_ends_without_a_turn_is_told_and_comes_again(
    folding: Folding, run: FoldedRun
) -> None:
    await run.begin()
    task = (await folding.take())["work#1"]
    await folding.queue.ack(task)
    assert await run.take_decider()
    assert await folding.queue.ack(run.decider) == ["acked"]
    assert await folding.completions() == 1
    await folding.settle()
    await folding.host.pass_time(6)
    assert await run.take_decider() and run.decider["dag"]["generation"] == 3
    await folding.host.clock.reset()


@pytest.mark.parametrize("verb", ["pause", "cancel"])
async def test_a_run_that_is_paused_or_asked_to_end_comes_to_the_same(
    folding: Folding, run: FoldedRun, verb: str
) -> None:
    await run.begin()
    await folding.queue.ack(run.decider)
    task = (await folding.take())["work#1"]
    assert await run.verb(verb) == 202
    await folding.queue.ack(task)
    await folding.settle()
    assert (await run.standing())["decider"] == ("blocked" if verb == "pause" else "released")
    await run.verb("resume")
    await folding.settle()
    assert await run.take_decider()
    assert not await folding.queue.dequeue(f"wf/{run.type}")


async def test_a_topic_that_is_gone_is_made_anew_by_the_ordinary_way(folding: Folding, run: FoldedRun) -> None:
    await run.begin()
    await folding.queue.ack(run.decider)
    task = (await folding.take())["work#1"]
    await folding.host.rows("UPDATE topic SET retiring = gen_random_uuid() WHERE name = $1", f"wf/{run.type}")
    assert await folding.queue.ack(task) == ["acked"]
    assert await folding.completions() == 1
    assert (await run.standing())["decider"] == "blocked", "what was written is undone"
    await folding.host.rows("UPDATE topic SET retiring = NULL WHERE name = $1", f"wf/{run.type}")
    await folding.settle()
    assert await run.take_decider()


@pytest.mark.parametrize("what", ["age", "shard"])
async def test_an_item_that_cannot_be_made_by_the_ack_is_made_by_the_ordinary_way(
    folding: Folding, run: FoldedRun, what: str
) -> None:
    await run.begin()
    await folding.queue.ack(run.decider)
    task = (await folding.take())["work#1"]
    if what == "age":
        await folding.host.clock.advance(226)
    else:
        await folding.execute(
            "UPDATE node SET item_id = (left(item_id::text, 33) || '00f')::uuid"
            f" WHERE key = 'decider' AND dag_no = (SELECT no FROM dag WHERE id = '{run.dag}')"
        )
    assert await folding.queue.ack(task) == ["acked"]
    assert await folding.completions() == 1
    await folding.settle()
    assert await run.take_decider()
    await folding.host.clock.reset()


async def test_many_ends_of_many_runs_and_of_a_dag_are_taken_by_one_ack(folding: Folding) -> None:
    runs = [FoldedRun(folding, f"many-{number}") for number in range(3)]
    for each in runs:
        await each.begin(calls=60)
        await folding.queue.ack(each.decider)
    dag = await folding.dags.create({"a": [], "b": ["a"]})
    await folding.dags.loops.relay.idle()
    taken = await folding.queue.dequeue("work", 100) + await folding.queue.dequeue("work", 100)
    assert len(taken) == 181
    assert set(await folding.queue.ack(*taken)) == {"acked"}

    assert await folding.completions() == folding.told.taken == 0
    assert await folding.states(dag) == {"a": "succeeded", "b": "released"}
    for each in runs:
        assert [event["event"] for event in await each.history()] == list(range(1, 122))
        assert await each.take_decider()
        await folding.dags.audit(each.dag)
        await each.finish()
    await folding.finish(dag)


async def test_a_dag_without_runs_asks_nothing_more(folding: Folding) -> None:
    """No statement but those of before: what is for runs is not called."""
    dag = await folding.dags.create({"a": [], "b": ["a"]})
    await folding.execute("ALTER FUNCTION tell_runs_here RENAME TO tell_runs_elsewhere")
    try:
        assert await folding.queue.ack((await folding.take())["a"]) == ["acked"]
        assert await folding.completions() == 0
        assert await folding.states(dag) == {"a": "succeeded", "b": "released"}
    finally:
        await folding.execute("ALTER FUNCTION tell_runs_elsewhere RENAME TO tell_runs_here")
    await folding.finish(dag)


async def test_a_fault_after_all_is_written_leaves_the_ordinary_way(folding: Folding, run: FoldedRun) -> None:
    await run.begin()
    await folding.queue.ack(run.decider)
    task = (await folding.take())["work#1"]
    schema = next(iter(folding.host.stores.values())).shard.address.schema
    broken = (
        f"ALTER FUNCTION {schema}.make_here RENAME TO make_well; CREATE FUNCTION {schema}.make_here(text[], int) "
        f"RETURNS uuid[] LANGUAGE plpgsql AS $$ BEGIN PERFORM {schema}.make_well($1, $2); PERFORM 1 / 0; END $$"
    )
    await folding.execute(broken)
    try:
        assert await folding.queue.ack(task) == ["acked"]
    finally:
        await folding.execute(
            f"DROP FUNCTION {schema}.make_here; ALTER FUNCTION {schema}.make_well RENAME TO make_here"
        )
    assert await folding.completions() == 1
    assert (await run.standing())["decider"] == "blocked"
    await folding.settle()
    assert await run.take_decider()
    assert len(await run.history()) == 3


async def test_a_tenants_own_item_that_names_a_run_does_nothing(folding: Folding, run: FoldedRun) -> None:
    await run.begin()
    context: dict[str, Any] = {"dag": run.dag, "node": "work#1", "generation": 1}
    await folding.queue.enqueue_one("own", ack_topic="acks/000", ack_context=context)
    [own] = await folding.queue.dequeue("own")
    assert await folding.queue.ack(own) == ["acked"]
    stands = await run.standing()
    assert (stands["decider"], stands["last_event"]) == ("blocked", 2)
