"""Runs at their limits: long histories, many calls at once, pages of many bytes."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from headgate import Workflow
from headgate.testing import replay
from headgate.workflow.driving.driver import Driver
from services.dag.model import Ending
from tests.support.bounded import steps
from tests.support.dag_world import DagWorld
from tests.support.run_services import TYPE, DagRuns, drive

CALLS = 10_000
SIGNALS = 40_000


@pytest.fixture
async def runs(world: DagWorld) -> AsyncIterator[DagRuns]:
    made = DagRuns(world)
    yield made
    await made.close()


async def busy(wf: Workflow) -> list[int]:
    outputs = await asyncio.gather(*(wf.call("pack", number) for number in range(CALLS)))
    heard = [await wf.receive("go") for _ in range(SIGNALS)]
    return [sum(outputs), sum(heard)]


async def add_signals(world: DagWorld, count: int) -> None:
    """As `add_signal` writes each of them."""
    await world.rows(
        """
        WITH told AS (
            INSERT INTO event (dag_no, event, kind, key, state, data)
            SELECT dag_no, last_event + n, 'signal', 'signal:go#' || n, 'received', '{"name":"go","data":1}'
            FROM run CROSS JOIN generate_series(1, $1::int) AS n),
        counted AS (INSERT INTO signal_count SELECT dag_no, 'go', $1 FROM run)
        UPDATE run SET signals = $1, last_event = last_event + $1, last_told = last_event + $1
        """,
        count,
    )


async def test_a_run_has_ten_thousand_calls_at_once_and_sixty_thousand_events(
    runs: DagRuns, world: DagWorld
) -> None:
    driver = Driver({TYPE: busy}, runs.runs)
    await runs.start()
    await drive(runs, driver)
    [pending] = await world.rows("SELECT count(*) AS n FROM node WHERE state = 'released'")
    assert pending["n"] == CALLS
    completer = world.duties.completer
    for first in range(1, CALLS + 1, 500):
        ends = [
            Ending(runs.dag, f"pack#{number}", 1, "succeeded", 1, "1", None, None)
            for number in range(first, first + 500)
        ]
        assert await completer.apply(world.shard, ends) == 500
    await add_signals(world, SIGNALS)
    driver.cores.take(runs.dag)  # replayed from its beginning
    lease = await runs.lease()
    assert lease is not None
    await driver.work(TYPE, lease)
    shown = await runs.shown()
    assert (shown["state"], shown["output"]) == ("succeeded", [CALLS, SIGNALS])
    found = await runs.client.workflows.get(runs.id).history()
    assert len(found["events"]) > 60_000
    replay(found, busy)


async def test_a_page_of_runs_has_a_bound_in_bytes_and_leaves_none_out(
    world: DagWorld, runs: DagRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def shows(wf: Workflow, size: int) -> None:
        wf.publish("text", "x" * size)
        await wf.receive("never")

    driver = Driver({TYPE: shows}, runs.runs)
    for number, size in enumerate((10, 8_000, 8_000, 10, 9_500, 10, 10)):
        runs.id = f"order-{number}"
        await runs.start(size)
        await drive(runs, driver)
        world.queue.forget()
    monkeypatch.setitem(world.settings.__dict__, "page_bytes_max", 12_000)
    pages: list[list[str]] = []
    cursor = ""
    for _ in steps():
        query: dict[str, Any] = {"limit": 5} | ({"cursor": cursor} if cursor else {})
        answer = await world.http.get("/v1/namespaces/default/workflows", params=query)
        assert answer.status_code == 200, answer.text
        assert len(answer.content) < 12_000 + 8_000
        pages.append([run["id"].removeprefix("order-") for run in answer.json()["items"]])
        cursor = answer.json()["next_cursor"]
        if not cursor:
            break
    assert pages == [["6", "5"], ["4", "3"], ["2"], ["1", "0"]]
