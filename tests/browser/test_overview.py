"""What the first page finds by itself, and where that leads."""

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest
from playwright.async_api import Browser, Route

from tests.support.console import Site, filled, look

BYTES_MAX = 150_000


async def test_the_overview_is_small(site: Site, browser: Browser) -> None:
    await filled(site)
    async with look(browser, site.queue.url) as opened:
        sizes: dict[str, int] = {}

        async def weigh(response: Any) -> None:
            got = await response.request.sizes()
            sizes[response.url] = got["responseBodySize"] + got["responseHeadersSize"]

        opened.page.on("response", lambda response: asyncio.ensure_future(weigh(response)))
        await opened.go("overview")
        await opened.page.wait_for_timeout(200)
        assert sizes and sum(sizes.values()) < BYTES_MAX


async def test_what_is_wrong_leads_to_what_to_do(site: Site, browser: Browser) -> None:
    await filled(site)
    async with look(browser, site.queue.url) as opened:
        await opened.go("overview")
        row = opened.page.locator("tr", has_text="is paused; 7 are ready")
        await row.get_by_role("link", name="what to do").click()
        await opened.page.wait_for_function("() => location.hash.endsWith('runbooks/HeadgateItemsWait')")
        await opened.drawn()
        told = await opened.text()
        assert "start more" in told and "headgate_oldest_ready_age_seconds" in told
        await opened.go("runbooks/Nothing")
        assert "There is no such alert" in await opened.text()


async def test_a_dag_that_waits_for_somebodys_word_is_found_from_the_overview(
    site: Site, browser: Browser
) -> None:
    """Once it has waited for a minute; one click leads to the node."""
    await filled(site)
    nodes = [{"key": "gate", "topic": "t", "external": ["approval", "<i>funds</i>"]}]
    nodes += [{"key": f"after {n}", "topic": "t", "upstream": ["gate"]} for n in range(12)]
    dag = await site.post("dags", {"name": "release <b>9</b>", "nodes": nodes}, "dag")
    waited_s = 0
    async with look(browser, site.queue.url) as opened:

        async def later(route: Route) -> None:
            answer = await route.fetch()
            found = await answer.json()
            for each in found["items"]:
                at = datetime.fromisoformat(each["since"]) - timedelta(seconds=waited_s)
                each["since"] = at.isoformat()
            await route.fulfill(response=answer, json=found)

        await opened.page.route("**/externals?*", later)
        await opened.go("overview")
        row = opened.page.locator("tr", has_text="release <b>9</b>")
        assert await row.count() == 0
        waited_s = 60
        await row.wait_for()
        told = await row.inner_text()
        assert "gate waits for <i>funds</i> and 1 more, which somebody has to resolve, since " in told
        assert "; 12 more nodes are blocked" in told
        await row.get_by_role("link", name="resolve").click()
        await opened.page.wait_for_function(f"() => location.hash.endsWith('dags/{dag['id']}?node=gate')")
        await opened.page.wait_for_selector("aside:not([hidden])")
        assert "waits for the external" in await opened.page.inner_text("aside")


async def test_a_slow_shard_is_named_and_since_when(
    site: Site, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(site)
    sampling = getattr(site.queue.app, "app", site.queue.app).state.watch.sampling
    quick = sampling._latencies
    monkeypatch.setattr(sampling, "_latencies", lambda shard: (0.3,) * 3 if shard.number == 1 else quick(shard))
    await sampling.step()
    async with look(browser, site.queue.url) as opened:
        await opened.go("overview")
        row = opened.page.locator("tr", has_text="half of its statements take over 300 ms, since ")
        assert "HeadgateSlowPostgres" in (
            await row.get_by_role("link", name="what to do").get_attribute("href") or ""
        )
        await row.get_by_role("link", name="Queue shard 1").click()
        await opened.page.wait_for_function(
            "() => document.querySelector('.head .why')?.textContent.includes('It is slow: half of its')"
        )


async def test_the_overview_names_a_tenant_that_floods(site: Site, browser: Browser) -> None:
    """From any namespace's: one click leads to the topic. Tiles lead to what they count."""

    async def flood() -> None:
        while True:
            items = {"items": [{"topic": "imports"}] * 100}
            answer = await site.queue.client.post("/v1/namespaces/acme/enqueue", json=items)
            assert answer.status_code == 201
            await asyncio.sleep(0.05)

    flooding = asyncio.create_task(flood())
    try:
        async with look(browser, site.queue.url) as opened:
            await opened.go("overview")
            row = opened.page.locator("tr", has_text="floods: ")
            await row.wait_for()
            assert "and more come in, none goes out" in await row.inner_text()
            await row.get_by_role("link", name="acme: imports").click()
            await opened.page.wait_for_function("() => location.hash.endsWith('acme/topics/imports')")
            await opened.page.wait_for_selector(".plot canvas")
            assert "In, out and acked" in await opened.text()
            await opened.go("overview")
            await opened.page.locator("a.tile", has_text="ready, all namespaces").click()
            await opened.page.wait_for_function("() => document.querySelector('h1')?.textContent === 'Namespaces'")
    finally:
        flooding.cancel()
        await asyncio.gather(flooding, return_exceptions=True)
