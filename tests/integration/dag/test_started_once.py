"""A run is begun once by each call that asks for it, whatever has become of it when the call comes again."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from headgate.workflow.turns import Turn
from services.dag.workflows.nested import NestedRuns
from shared.errors import Unavailable
from shared.postgres.connections import Transaction
from shared.postgres.sql import Statement
from tests.integration.dag.test_bad_runs import dump
from tests.integration.dag.test_runs import command, leased, turn
from tests.support.dag_world import DagWorld
from tests.support.run_services import TYPE, DagRuns

RUNS = "/v1/namespaces/default/workflows"


@pytest.fixture
async def runs(world: DagWorld) -> AsyncIterator[DagRuns]:
    made = DagRuns(world)
    yield made
    await made.close()


async def start(runs: DagRuns, request: str | None, **more: Any) -> tuple[int, str]:
    """The status, and the run's id."""
    named = {} if request is None else {"request_id": request}
    answer = await runs.world.http.post(RUNS, json={"type": TYPE, "id": runs.id, **named, **more})
    assert answer.status_code in (200, 201), answer.text
    await runs.world.settle()
    return answer.status_code, answer.json()["run"]


async def end(runs: DagRuns, state: str, **more: Any) -> None:
    lease = await leased(runs)
    last = (await runs.events())[-1].event
    ended: Turn = turn(lease, 1, last, last, command("end", "", after=last, state=state, **more))
    await runs.turn(lease, ended)
    await runs.acked(lease)


@pytest.mark.parametrize(
    ("state", "reuse"), [("failed", "failed"), ("succeeded", "always"), ("cancelled", "failed")]
)
async def test_a_start_that_is_sent_again_when_its_run_is_over_begins_no_other(
    runs: DagRuns, state: str, reuse: str
) -> None:
    _, runs.dag = await start(runs, "once", reuse=reuse, signal={"name": "go", "data": 1, "id": "s"})
    await end(runs, state, **({"error": "boom"} if state == "failed" else {}))
    before = await dump(runs.world)
    assert await start(runs, "once", reuse=reuse, signal={"name": "go", "data": 1, "id": "s"}) == (200, runs.dag)
    assert await dump(runs.world) == before
    status, other = await start(runs, "another-call", reuse=reuse)
    assert (status, other != runs.dag) == (201, True)


async def test_nor_where_that_one_has_gone_on_as_another(runs: DagRuns) -> None:
    _, runs.dag = await start(runs, "once")
    await end(runs, "continued", input=2)
    runs.dag = (await runs.world.http.get(f"{RUNS}/{runs.id}")).json()["run"]
    await end(runs, "failed", error="boom")
    assert await start(runs, "once") == (200, runs.dag)
    assert (await start(runs, None))[0] == 201


async def test_what_names_a_call_is_no_signal_of_that_id(runs: DagRuns) -> None:
    _, runs.dag = await start(runs, "once")
    assert await runs.signal("go", 1, id="once")
    assert not await runs.signal("go", 1, id="once")


async def test_another_types_start_is_refused_under_the_same_name(runs: DagRuns) -> None:
    _, runs.dag = await start(runs, "once", reuse="never")
    await end(runs, "failed", error="boom")
    other = {"type": "another", "id": runs.id, "request_id": "once", "reuse": "never"}
    answer = await runs.world.http.post(RUNS, json=other)
    assert (answer.status_code, answer.json()["code"]) == (409, "id_in_use")


async def test_a_start_that_code_asks_for_and_that_is_carried_again_begins_no_other(
    runs: DagRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The word that it has begun is lost, and it has failed when it is carried again."""

    async def lost(*_: Any, **__: Any) -> None:
        raise Unavailable("the shard of the run that asks is away")

    _, runs.dag = await start(runs, None)
    with monkeypatch.context() as patch:
        patch.setattr(NestedRuns, "_end", lost)
        lease, asks = await leased(runs), command("start", "start:part#1", type="part", id="part-1")
        await runs.turn(lease, turn(lease, 1, 1, 1, asks))
        await runs.world.settle()
        part = DagRuns(runs.world)
        part.id, part.topic = "part-1", "wf/part"
        part.dag = (await runs.world.http.get(f"{RUNS}/part-1")).json()["run"]
        await end(part, "failed", error="boom")
    await runs.world.rows("UPDATE outbox SET due_at = shard_now()")
    await runs.world.sweep()
    assert [event.output for event in await runs.events() if event.kind == "start" and event.is_told] == [
        {"id": "part-1", "run": part.dag}
    ]
    shown = (await runs.world.http.get(f"{RUNS}/part-1")).json()
    assert (shown["run"], shown["state"]) == (part.dag, "failed")
    await part.close()


async def test_reuse_decides_where_it_is_said_and_else_the_same_again_is_the_same_call(runs: DagRuns) -> None:
    _, runs.dag = await start(runs, None)
    await end(runs, "succeeded", output=7)
    before = await dump(runs.world)
    for reuse in ("never", "failed"):
        body = {"type": TYPE, "id": runs.id, "reuse": reuse, "request_id": "another-call"}
        answer = await runs.world.http.post(RUNS, json=body)
        assert (answer.status_code, answer.json()["code"]) == (409, "id_in_use"), reuse
    assert await start(runs, None) == (200, runs.dag)
    assert await dump(runs.world) == before


async def test_a_history_waits_for_what_is_behind_an_event(runs: DagRuns) -> None:
    _, runs.dag = await start(runs, None)
    reading = asyncio.create_task(runs.world.http.get(f"{RUNS}/{runs.id}/history?after=1&wait_s=20"))
    done, _ = await asyncio.wait([reading], timeout=0.05)
    assert not done
    await runs.signal("go", 1)
    assert [event["kind"] for event in (await reading).json()["events"]] == ["signal"]


async def test_an_id_whose_run_is_dropped_before_it_is_locked_is_taken(
    runs: DagRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, runs.dag = await start(runs, None)
    row = Transaction.row

    async def drop_first(tx: Transaction, statement: Statement, **values: Any) -> Any:
        if statement.name == "lock_id":
            monkeypatch.setattr(Transaction, "row", row)
            await runs.world.rows("DELETE FROM workflow")
        return await row(tx, statement, **values)

    monkeypatch.setattr(Transaction, "row", drop_first)
    status, run = await start(runs, None)
    assert (status, run != runs.dag) == (201, True)
