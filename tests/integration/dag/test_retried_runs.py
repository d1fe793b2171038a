"""Runs that have failed, or are stuck, go on with what is done once more: `resume(retry=[key])`."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from headgate import AsyncClient, Conflict, NodeFailed, Workflow
from headgate.testing import replay
from headgate.workflow.driving.driver import Driver
from tests.integration.dag.test_bad_runs import dump
from tests.integration.dag.test_reset_runs import resume, runs, until_child_failed, until_failed
from tests.support.run_services import TYPE, DagRuns, drive

__all__ = ["runs"]


async def test_a_failed_run_goes_on_with_a_call_that_is_done_once_more(runs: DagRuns) -> None:
    """What ended beside it is told as it was; what was asked for since its end is asked for anew."""

    async def code(wf: Workflow) -> Any:
        first = asyncio.ensure_future(wf.call("b"))
        try:
            found = await wf.call("a", max_attempts=1)
        except NodeFailed:
            await wf.call("tell")
            raise
        return [found, await first]

    driver = Driver({TYPE: code}, runs.runs)
    await runs.start()
    await drive(runs, driver)
    await runs.finish("b#1", output="kept")
    await drive(runs, driver)
    await runs.finish("a#1", "failed")
    await drive(runs, driver)
    await runs.finish("tell#1")
    await drive(runs, driver)
    assert (await runs.shown())["state"] == "failed"
    await runs.world.settle()
    assert (await resume(runs, retry=["a#1"])).state == "running"
    assert runs.world.queue.item_of("a#1").generation == 2
    await drive(runs, driver)
    before = await dump(runs.world)
    with pytest.raises(Conflict, match="the run goes on"):
        await resume(runs, retry=["a#1"])
    assert await dump(runs.world) == before
    await runs.finish("a#1", output="at last")
    await drive(runs, driver)
    assert (await runs.shown())["output"] == ["at last", "kept"]
    events = await runs.events()
    ends = [(each.state, each.generation, each.void) for each in events if each.key == "a#1" and each.is_told]
    assert ends == [("failed", 1, 1), ("succeeded", 2, None)]
    assert {each.key for each in events if each.void == 1 and each.kind == "item"} == {"a#1", "tell#1"}
    [said] = [each.data for each in events if each.state == "reset"]
    assert (said["retried"], said["reason"]) == (["a#1"], "mended") and "replaced" not in said
    replay(events, code)


class LosesAnswer(httpx.ASGITransport):
    """Of the first call of a verb that was done the answer is lost, after something else has happened."""

    def __init__(self, app: Any, verb: str, meanwhile: Callable[[], Awaitable[None]]) -> None:
        super().__init__(app)
        self._verb = verb
        self._meanwhile: Callable[[], Awaitable[None]] | None = meanwhile

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        answer = await super().handle_async_request(request)
        if request.url.path.endswith(self._verb) and self._meanwhile is not None:
            meanwhile, self._meanwhile = self._meanwhile, None
            await meanwhile()
            raise httpx.ReadError("the answer was lost")
        return answer


@pytest.mark.parametrize("became", ["running", "succeeded", "failed"])
async def test_a_retry_that_is_sent_again_because_its_answer_was_lost_is_one(runs: DagRuns, became: str) -> None:
    async def code(wf: Workflow) -> Any:
        return await wf.call("a", max_attempts=1)

    driver = Driver({TYPE: code}, runs.runs)
    await runs.start()
    await drive(runs, driver)
    await runs.finish("a#1", "failed")
    await drive(runs, driver)
    await runs.world.settle()

    async def meanwhile() -> None:
        await runs.world.settle()
        await drive(runs, driver)
        if became != "running":
            await runs.finish("a#1", became, output=7 if became == "succeeded" else None)
            await drive(runs, driver)
            await runs.world.settle()

    transport = LosesAnswer(runs.world.app.state.hot, "/resume", meanwhile)
    client = AsyncClient(queue_url="http://localhost", dag_url="http://localhost", transport=transport)
    try:
        shown = await client.workflows.get(runs.id).resume(retry=["a#1"])
    finally:
        await client.aclose()
    assert (shown.state, shown.resets) == (became, 1)
    assert [each.generation for each in await runs.events() if each.key == "a#1" and each.is_told] == (
        [1] if became == "running" else [1, 2]
    )


async def test_a_call_that_fails_once_more_fails_the_run_again_and_may_be_retried_again(runs: DagRuns) -> None:
    """What it asks for because of that has a key of its own each time."""

    async def code(wf: Workflow) -> Any:
        try:
            return await wf.call("a", max_attempts=1)
        except NodeFailed:
            await wf.call("tell")
            raise

    driver = Driver({TYPE: code}, runs.runs)
    await runs.start()
    await drive(runs, driver)
    for retried in range(3):
        await runs.finish("a#1", "failed")
        await drive(runs, driver)
        await runs.finish(f"tell#1~{retried}" if retried else "tell#1")
        await drive(runs, driver)
        assert (await runs.shown())["state"] == "failed"
        await runs.world.settle()
        assert (await resume(runs, retry=["a#1"])).resets == retried + 1
        await drive(runs, driver)
    await runs.finish("a#1", output=1)
    await drive(runs, driver)
    assert (await runs.shown())["output"] == 1
    before = await dump(runs.world)
    with pytest.raises(Conflict, match="has ended"):
        await resume(runs, retry=["a#1"])
    assert await dump(runs.world) == before
    replay(await runs.events(), code)


async def test_one_end_is_replaced_and_another_still_to_come(runs: DagRuns) -> None:
    """What was cancelled with the run is done, too; what has succeeded is not done twice."""

    async def code(wf: Workflow) -> Any:
        return await asyncio.gather(wf.call("a", max_attempts=1), wf.call("b"), wf.call("c"))

    driver = Driver({TYPE: code}, runs.runs)
    await runs.start()
    await drive(runs, driver)
    await runs.finish("c#1", output=3)
    await drive(runs, driver)
    await runs.finish("a#1", "failed")
    await drive(runs, driver)
    await runs.world.settle()
    await resume(runs, outputs={"a#1": 1}, retry=["b#1", "c#1"])
    await drive(runs, driver)
    assert {item.node for item in runs.world.queue.items.values()} == {"b#1"}
    await runs.finish("b#1", output=2)
    await drive(runs, driver)
    assert (await runs.shown())["output"] == [1, 2, 3]
    replay(await runs.events(), code)


async def test_a_step_of_a_failed_run_is_done_once_more(runs: DagRuns) -> None:
    calls: list[int] = []

    def look() -> str:
        calls.append(1)
        if len(calls) == 1:
            raise ValueError("odd")
        return "even"

    async def code(wf: Workflow) -> Any:
        return await wf.run(look)

    driver = Driver({TYPE: code}, runs.runs)
    await runs.start()
    await drive(runs, driver)
    assert (await runs.shown())["state"] == "failed"
    await runs.world.settle()
    await resume(runs, retry=["step:look#1"])
    await drive(runs, driver)
    assert ((await runs.shown())["output"], len(calls)) == ("even", 2)
    replay(await runs.events(), code)


async def test_a_child_that_failed_is_begun_once_more(runs: DagRuns) -> None:
    driver = await until_child_failed(runs)
    child = runs.client.workflows.get("the-child")
    first = await child.show()
    await resume(runs, retry=["child:small#1"])
    await drive(runs, driver)
    second = await child.show()
    assert second.state == "running" and second.run != first.run


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"retry": ["nothing#1"]}, 422, "unknown_node"),
        ({"retry": ["timer#1"]}, 409, "not_replaceable"),
        ({"retry": ["b#1"], "outputs": {"b#1": 1}}, 422, "invalid"),
        ({"retry": ["a#1", "b#1"]}, 202, ""),  # a succeeded: b alone
        ({"retry": [f"a#{n}" for n in range(101)]}, 422, "invalid"),
        ({"retry": "b#1"}, 422, "invalid"),
        ({"retry": ["b\n#1"]}, 422, "invalid"),
    ],
)
async def test_bad_retries_change_nothing(runs: DagRuns, body: Any, status: int, code: str) -> None:
    await until_failed(runs)
    before = await dump(runs.world)
    answer = await runs.world.http.post(f"/v1/namespaces/default/workflows/{runs.id}/resume", json=body)
    assert answer.status_code == status, answer.text
    if status == 202:
        assert (await dump(runs.world)) != before
    else:
        assert (answer.json()["code"], await dump(runs.world)) == (code, before)
