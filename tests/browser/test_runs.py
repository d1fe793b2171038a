"""Runs of workflows in a browser: the list and its filters, the timeline of one, and what can be done to it."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Route

from headgate import AsyncClient, Job, NodeFailed, Worker, Workflow
from headgate.testing import replay
from tests.browser.test_acting import act
from tests.support.console import HOSTILE, Site, faults, look


@pytest.fixture
async def client(site: Site) -> AsyncIterator[AsyncClient]:
    """A client, and a worker beside it that has the workflows of these tests."""
    client = AsyncClient(queue_url=site.queue.url, dag_url=site.dag.url, namespace="default")
    worker = Worker(client, drain_s=1, wait_s=1)

    @worker.task("charge")
    async def charge(job: Job) -> str:
        if job.payload == "hard" and job.attempt == 1:
            raise ConnectionError("the bank is away")
        return "receipt"

    @worker.task("broken")
    async def broken(job: Job) -> None:
        raise ValueError(HOSTILE[:200])

    worker.workflow("order", version="2")(order)
    worker.workflow("odd")(odd)
    worker.workflow("failing")(failing)
    working = asyncio.create_task(worker.run(signals=False))
    yield client
    worker.stop()
    worker.stop()
    await working
    await client.aclose()


async def order(wf: Workflow, cart: Any) -> Any:
    wf.publish("stage", "charging")
    receipts = await asyncio.gather(*(wf.call("charge", each, backoff={"base_s": 0.01}) for each in cart))
    try:
        await wf.call("broken", max_attempts=1)
    except NodeFailed:
        wf.publish("stage", "waits for approval")
    approval = await wf.receive("approval")
    await wf.run(len, receipts)
    return {"receipts": receipts, "approved": approval}


async def odd(wf: Workflow) -> None:
    await asyncio.wait_for(wf.sleep(60), 1)


async def failing(wf: Workflow) -> None:
    raise RuntimeError("there is no way on")


async def stands(client: AsyncClient, id: str, wanted: Any) -> Any:
    """The run, once it is as `wanted`."""
    while True:
        run = await client.workflows.get(id).show()
        if wanted(run):
            return run
        await asyncio.sleep(0.02)


async def furnished(client: AsyncClient) -> None:
    """A run that waits for a signal, one that is stuck, and one that has failed."""
    await client.workflows.start("order", ["easy", "hard", "easy"], id="order-17", version="2")
    await client.workflows.start("odd", id="odd-1")
    await client.workflows.start("failing", id="failing-1")
    await stands(client, "order-17", lambda run: run.parked and run.published.get("stage") == "waits for approval")
    await stands(client, "odd-1", lambda run: run.stuck is not None)
    await stands(client, "failing-1", lambda run: run.finished)


async def ids(opened: Any) -> list[str]:
    found: list[str] = await opened.page.locator("td[data-name=id]").all_inner_texts()
    return sorted(found)


async def test_the_list_is_filtered_by_type_state_stuck_and_version(
    site: Site, client: AsyncClient, browser: Browser
) -> None:
    await furnished(client)
    async with look(browser, site.queue.url) as opened:
        wanted = {
            "runs": ["failing-1", "odd-1", "order-17"],
            "runs?type=order": ["order-17"],
            "runs?version=2": ["order-17"],
            "runs?version=1": [],
            "runs?state=failed": ["failing-1"],
            "runs?state=running": ["odd-1", "order-17"],
            "runs?stuck=1": ["odd-1"],
        }
        for view, found in wanted.items():
            await opened.go(view)
            assert await ids(opened) == found, view
        await opened.go("runs")
        await opened.page.get_by_role("link", name="stuck", exact=True).click()
        await opened.page.wait_for_function("() => document.querySelectorAll('tbody tr').length === 1")
        await opened.page.get_by_role("link", name="odd-1").click()
        await opened.page.wait_for_selector(".stuck")
        assert "Its code has not gone on for" in await opened.text()


async def test_the_timeline_has_a_lane_of_each_node_with_its_attempts(
    site: Site, client: AsyncClient, browser: Browser, tmp_path: Path
) -> None:
    await furnished(client)
    async with look(browser, site.dag.url) as opened:
        await opened.go("runs/order-17")
        page = opened.page
        lanes = await page.locator(".lanes button").all_inner_texts()
        assert sorted(lanes) == ["broken#1", "charge#1", "charge#2", "charge#3"]
        assert "waits for approval" in await opened.text()
        hard = page.locator(".lanes li", has_text="charge#2")
        titles = await hard.locator(".tried").evaluate_all("(all) => all.map((each) => each.title)")
        assert [title.split(" at ")[0] for title in titles] == ["attempt 1: failed", "attempt 2: acked"]
        assert await page.locator(".lanes i.turn").count() >= 1
        await page.get_by_role("button", name="broken#1").click()
        await page.wait_for_selector("aside:not([hidden])")
        assert "⟨U+202E⟩" in await page.inner_text("aside .error")
        assert await page.locator("#main img").count() == 0
        await act(opened, "Signal", told="1 run is told approval", name="approval", data='{"by": "ada"}')
        await stands(client, "order-17", lambda run: run.finished)
        await page.wait_for_function("() => document.querySelector('.why').textContent === 'It has succeeded.'")
        assert await page.locator(".lanes i.signal").count() == 1
        async with page.expect_download() as coming:
            await page.get_by_role("button", name="Download history").click()
        saved = tmp_path / "run.json"
        await (await coming.value).save_as(saved)
        replay(json.loads(saved.read_text()), order)


async def test_what_a_run_is_told_once_more_after_a_lost_answer_is_the_same_signal(
    site: Site, client: AsyncClient, browser: Browser
) -> None:
    """And a reset the same reset; what says something else is another."""
    await furnished(client)
    asked: list[tuple[str, str]] = []

    async def loses(route: Route) -> None:
        asked.append((route.request.url.rsplit("/", 1)[1], json.loads(route.request.post_data or "{}")["id"]))
        await route.abort()

    async with look(browser, site.queue.url) as opened:
        page = opened.page
        await opened.go("runs/order-17")
        await page.route("**/signals", loses)
        await page.route("**/reset", loses)
        for name, field, texts in (("Signal", "name", ("a", "a", "b")), ("Reset", "event", ("1", "1", "2"))):
            await page.get_by_role("button", name=name, exact=True).click()
            for text in texts:
                await page.locator(f"dialog input[name={field}]").fill(text)
                await page.locator("dialog button[type=submit]:not([disabled])").click()
                await page.locator("dialog .said:not([hidden])").wait_for()
            await page.keyboard.press("Escape")
    assert [verb for verb, _ in asked] == ["signals"] * 3 + ["reset"] * 3
    assert asked[0] == asked[1] and asked[3] == asked[4]
    assert len(set(asked)) == 4


async def test_verbs_of_runs(site: Site, client: AsyncClient, browser: Browser) -> None:
    await furnished(client)
    await client.workflows.start("order", [], id="order-18")
    await stands(client, "order-18", lambda run: run.parked)
    async with look(browser, site.queue.url) as opened:
        await opened.go("runs/order-17")
        await act(opened, "Pause", told="1 run: nothing more of it is released")
        assert (await client.workflows.get("order-17").show()).paused
        await opened.go("runs/order-17")
        await act(opened, "Resume", told="1 run goes on")
        assert not (await client.workflows.get("order-17").show()).paused
        await act(opened, "Cancel", told="1 run is asked to end", reason="not needed")
        await stands(client, "order-17", lambda run: run.state == "cancelled")
        await opened.go("runs/order-18")
        await act(opened, "Terminate", told="hears nothing of it")
        assert (await client.workflows.get("order-18").show()).state == "cancelled"
        await opened.go("runs/failing-1")
        assert "there is no way on" in await opened.text()
        assert await opened.page.get_by_role("button", name="Terminate").count() == 0
        await act(opened, "Resume", told="its end is taken back")
        await stands(client, "failing-1", lambda run: run.finished)
        await opened.go("runs/order-18")
        await act(opened, "Reset", told="as when its code was told of event 1", reason="terminated by mistake")
        await stands(client, "order-18", lambda run: run.resets == 1)


@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    "kind", [{}, {"dark": True}, {"width": 390, "height": 800}], ids=["light", "dark", "narrow"]
)
async def test_the_pages_of_runs_fit_and_have_no_serious_fault(
    site: Site, client: AsyncClient, browser: Browser, kind: dict[str, Any]
) -> None:
    await furnished(client)
    async with look(browser, site.queue.url, **kind) as opened:
        for view in ("runs", "runs/order-17", "runs/order-17?at=charge%232", "runs/odd-1", "runs/failing-1"):
            await opened.go(view)
            wide = await opened.page.evaluate(
                "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
            )
            assert wide <= 0, view
            assert await faults(opened.page, "serious", "critical") == [], view
