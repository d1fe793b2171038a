"""What pages do, clicked: the dialog says how many and which, and what was confirmed has happened."""

import asyncio
import json
from typing import Any

from playwright.async_api import Browser, Page, Route

from tests.support import console
from tests.support.console import Look, Site, furnish, look
from tests.support.databases import Database


async def act(opened: Look, name: str, /, *, within: str = "#main", told: str, **fields: str) -> None:
    """Click a verb, see what its dialog says, fill it in, and confirm."""
    page = opened.page
    await page.locator(within).get_by_role("button", name=name, exact=True).first.click()
    dialog = page.locator("dialog")
    for label, value in fields.items():
        await dialog.locator(f"input[name={label}]").fill(value)
    confirm = dialog.locator("button[type=submit]")
    await page.wait_for_function(
        "(told) => document.querySelector('dialog .told')?.textContent.includes(told)"
        " && !document.querySelector('dialog button[type=submit]').disabled",
        arg=told,
    )
    await confirm.click()
    await dialog.get_by_role("button", name="Close").click()
    await page.wait_for_function("() => !document.querySelector('dialog')")


async def counts(site: Site, topic: str) -> dict[str, Any]:
    found = await site.queue.client.get("/v1/namespaces/default/topics")
    return next((each for each in found.json()["items"] if each["topic"] == topic), {})


async def test_verbs_of_topics_and_of_the_dead(site: Site, browser: Browser) -> None:
    await furnish(site)
    async with look(browser, site.dag.url) as opened:
        await opened.go("topics/mail")
        await act(opened, "Pause", told="Nothing of it is handed out")
        assert (await counts(site, "mail"))["paused"]
        await act(opened, "Resume", told="34 ready items")
        assert not (await counts(site, "mail"))["paused"]
        await act(opened, "Cancel some", told="34 items", state="ready")
        assert (await counts(site, "mail"))["ready"] == 0
        await opened.go("topics/video")
        await act(opened, "Purge", told="12 items")
        assert not await counts(site, "video")
        await opened.go("dead")
        await act(opened, "Redrive", told="2 items")
        assert (await counts(site, "reports"))["dead"] == 2
        await opened.go("operations")
        assert "redrive" in await opened.text()


async def test_what_a_filter_does_not_mean_cannot_be_confirmed(site: Site, browser: Browser) -> None:
    await furnish(site)
    async with look(browser, site.queue.url) as opened:
        await opened.go("topics/mail")
        await opened.page.get_by_role("button", name="Redrive dead").click()
        await opened.page.wait_for_function(
            "() => document.querySelector('dialog .told').textContent.includes('0 items')"
        )
        assert await opened.page.locator("dialog button[type=submit]").is_disabled()
        await opened.page.keyboard.press("Escape")
        await opened.page.get_by_role("button", name="Cancel some").click()
        await opened.page.locator("dialog input[name=state]").fill("lost")
        await opened.page.wait_for_selector("dialog .said:not([hidden])")
        assert await opened.page.locator("dialog button[type=submit]").is_disabled()


async def test_verbs_of_an_item(site: Site, browser: Browser) -> None:
    made = await site.post("enqueue", {"items": [{"topic": "one", "disabled": True}]})
    item = made["results"][0]["id"]
    async with look(browser, site.queue.url) as opened:
        await opened.go(f"items/{item}")
        await act(opened, "Revive", told="1 item")
        assert (await counts(site, "one"))["ready"] == 1
        await opened.drawn()
        await act(opened, "Cancel", told="1 item of one, ready")
        assert not await counts(site, "one")
        await opened.page.wait_for_selector("#note:not([hidden])")


async def test_quotas(site: Site, browser: Browser) -> None:
    await furnish(site)
    async with look(browser, site.dag.url) as opened:
        await opened.go("namespaces")
        await act(opened, "Quotas", told="Items: – → 5,000", items_max="5000")
        found = await site.queue.client.get("/v1/namespaces/default")
        assert found.json()["items_max"] == 5_000


async def test_quotas_that_another_operator_sets_meanwhile_stay(site: Site, browser: Browser) -> None:
    await furnish(site)
    async with look(browser, site.queue.url) as opened:
        await opened.go("namespaces")
        await opened.page.get_by_role("button", name="Quotas", exact=True).first.click()
        answer = await site.queue.client.put("/v1/namespaces/default", json={"enqueues_per_minute": 700})
        assert answer.status_code == 200
        dialog = opened.page.locator("dialog")
        await dialog.locator("input[name=items_max]").fill("5000")
        await dialog.locator(".told li").wait_for()
        assert await dialog.locator(".told").inner_text() == "Items: – → 5,000"
        await dialog.locator("button[type=submit]").click()
        await dialog.get_by_role("button", name="Close").click()
        found = (await site.queue.client.get("/v1/namespaces/default")).json()
        assert (found["items_max"], found["enqueues_per_minute"]) == (5_000, 700)


async def test_what_is_confirmed_is_what_was_said(site: Site, browser: Browser) -> None:
    """What is told of a filter that is no longer there lets nobody confirm the one that is."""
    await furnish(site)
    asked, let = asyncio.Event(), asyncio.Event()

    async def late(route: Route) -> None:
        if json.loads(route.request.post_data or "{}")["filter"].get("state") == "leased":
            asked.set()
            await let.wait()
        await route.continue_()

    async with look(browser, site.queue.url) as opened:
        page = opened.page
        await opened.go("topics/mail")
        await page.route("**/operations", late)
        await page.get_by_role("button", name="Cancel some").click()
        await page.locator("dialog input[name=state]").fill("leased")
        await asked.wait()
        await page.evaluate("() => { window.setTimeout = () => 0; }")  # the next look is not due yet
        await page.locator("dialog input[name=state]").fill("ready")
        async with page.expect_response("**/operations"):
            let.set()
        await page.evaluate(
            "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )
        assert await page.locator("dialog button[type=submit]").is_disabled()


async def test_what_is_under_way_is_not_left_before_it_says_what_came_of_it(site: Site, browser: Browser) -> None:
    await furnish(site)
    begun, let = asyncio.Event(), asyncio.Event()

    async def late(route: Route) -> None:
        if not json.loads(route.request.post_data or "{}").get("dry_run"):
            begun.set()
            await let.wait()
        await route.continue_()

    async with look(browser, site.queue.url) as opened:
        page = opened.page
        await opened.go("topics/mail")
        await page.route("**/operations", late)
        await page.get_by_role("button", name="Purge").click()
        await page.locator("dialog button[type=submit]:not([disabled])").click()
        await begun.wait()
        await page.keyboard.press("Escape")
        assert await page.get_by_role("button", name="Leave it").is_disabled()
        let.set()
        await page.get_by_role("button", name="Close").click()
    assert not await counts(site, "mail")


async def confirmed_twice(page: Page) -> str:
    """Confirm what a dialog asks, and once more as its first answer is lost; what it said in between."""
    confirm = page.locator("dialog button[type=submit]:not([disabled])")
    await confirm.click()
    await page.locator("dialog .said:not([hidden])").wait_for()
    said = await page.locator("dialog .said").inner_text()
    await confirm.click()
    await page.get_by_role("button", name="Close").click()
    return said


async def test_what_is_confirmed_again_after_a_lost_answer_is_one_operation(site: Site, browser: Browser) -> None:
    """So what came after it was looked at is left alone, and the audit log has it once."""
    await furnish(site)
    lost = False

    async def loses(route: Route) -> None:
        nonlocal lost
        if lost or json.loads(route.request.post_data or "{}").get("dry_run"):
            await route.continue_()
            return
        lost = True
        await route.fetch()
        await site.post("enqueue", {"items": [{"topic": "mail"}] * 3})
        await route.abort()

    async with look(browser, site.queue.url) as opened:
        page = opened.page
        await opened.go("topics/mail")
        await page.route("**/operations", loses)
        await page.get_by_role("button", name="Purge").click()
        assert "may have been done" in await confirmed_twice(page)
    assert (await counts(site, "mail"))["ready"] == 3
    found = (await site.queue.client.get("/v1/audit")).json()["items"]
    assert [(each["verb"], each["changed"]) for each in found if "purge" in each["verb"]] == [
        ("purge operation", 37)
    ]


async def test_a_schedule_is_run_once_though_the_answer_was_lost(site: Site, browser: Browser) -> None:
    await furnish(site)
    lost: list[str] = []

    async def loses(route: Route) -> None:
        lost.append(json.loads(route.request.post_data or "{}")["request_id"])
        answer = await route.fetch()
        await (route.fulfill(response=answer) if len(lost) > 1 else route.abort())

    async with look(browser, site.queue.url) as opened:
        page = opened.page
        await opened.go("schedules")
        await page.route("**/trigger", loses)
        await page.get_by_role("button", name="Run now").click()
        assert "may have been done" in await confirmed_twice(page)
    assert len(lost) == 2 and len(set(lost)) == 1
    found = (await site.dag.client.get("/v1/audit")).json()["items"]
    assert [each["verb"] for each in found if "trigger" in each["verb"]] == ["trigger schedule"]


async def test_an_operation_that_was_refused_is_begun_by_another_id(site: Site, browser: Browser) -> None:
    """The shard that the first names may be away for long."""
    await furnish(site)
    ids: list[str] = []

    async def away(route: Route) -> None:
        asked = json.loads(route.request.post_data or "{}")
        if asked.get("dry_run"):
            await route.continue_()
            return
        ids.append(asked["id"])
        if len(ids) > 1:
            await route.continue_()
        else:
            await route.fulfill(status=503, json={"detail": "shard 0 does not answer", "outcome": "none"})

    async with look(browser, site.queue.url) as opened:
        page = opened.page
        await opened.go("topics/mail")
        await page.route("**/operations", away)
        await page.get_by_role("button", name="Purge").click()
        confirm = page.locator("dialog button[type=submit]:not([disabled])")
        await confirm.click()
        await page.locator("dialog .said:not([hidden])").wait_for()
        assert await page.locator("dialog .said").inner_text() == "shard 0 does not answer"
        await confirm.click()
        await page.get_by_role("button", name="Close").click()
    assert len(set(ids)) == 2
    assert not await counts(site, "mail")


async def test_a_dialog_goes_with_its_page(site: Site, browser: Browser) -> None:
    await furnish(site)
    async with look(browser, site.queue.url) as opened:
        await opened.go("topics")
        await opened.go("topics/mail")
        await opened.page.get_by_role("button", name="Purge").click()
        await opened.page.locator("dialog .sample").wait_for()
        await opened.page.go_back()
        await opened.page.wait_for_function("() => !document.querySelector('dialog')")
        await opened.drawn()
        assert opened.page.url.endswith("/topics")
    assert (await counts(site, "mail"))["ready"] == 34


async def test_verbs_of_dags_and_nodes(site: Site, browser: Browser) -> None:
    dag = await furnish(site)

    async def state() -> dict[str, Any]:
        found: dict[str, Any] = (await site.dag.client.get(f"/v1/namespaces/default/dags/{dag}")).json()
        return found

    async with look(browser, site.queue.url) as opened:
        await opened.go(f"dags/{dag}")
        await act(opened, "Pause", told="6 that are released go on")
        assert (await state())["paused"]
        await opened.drawn()
        await act(opened, "Resume", told="released again")
        assert not (await state())["paused"]
        await opened.drawn()
        await act(opened, "Retry failed", told="1 failed node runs again")
        assert (await state())["nodes"]["failed"] == 0
        await opened.go(f"dags/{dag}?node=approve")
        await opened.page.wait_for_selector("aside:not([hidden])")
        await act(opened, "Resolve approval", within="aside", told="said to have happened", data='{"by": "ada"}')
        node = await site.dag.client.get(f"/v1/namespaces/default/dags/{dag}/node", params={"key": "approve"})
        assert node.json()["external"][0]["resolved"]
        await opened.page.wait_for_selector("aside:not([hidden])")
        await act(opened, "Skip", within="aside", told="1 node")
        assert (await state())["nodes"]["skipped"] >= 1
        await opened.go(f"dags/{dag}")
        await act(opened, "Cancel", told="unfinished nodes", reason="not needed")
        assert (await state())["state"] in ("cancelling", "cancelled")


async def test_a_shard_is_drained_and_used_again_from_its_page(
    database: Database, redis_url: str, of_queue: dict[str, Any], browser: Browser
) -> None:
    async with console.site(database, redis_url, of_queue) as site, look(browser, site.queue.url) as opened:
        await opened.go("shards/queue-1")
        await act(opened, "Drain", told="1024 slots call it home")
        await opened.page.wait_for_function(
            "() => document.querySelector('#main .head .badge')?.textContent.includes('draining')"
        )
        await opened.page.wait_for_function("() => document.body.textContent.includes('drain 1')")
        await opened.drawn()
        await act(opened, "Use it again", told="From then on what may live anywhere comes here")
        await opened.page.wait_for_function(
            "() => document.querySelector('#main .head .badge')?.textContent.includes('healthy')"
        )
        await opened.drawn()
        await opened.page.locator("#main").get_by_role("button", name="Move", exact=True).click()
        await opened.page.locator("dialog input[name=to]").fill("1")
        await opened.page.locator("dialog pre", has_text="nothing to do").wait_for()
        assert await opened.page.locator("dialog button[type=submit]").is_disabled()


async def test_a_shard_that_drains_and_is_away_can_be_used_again(
    database: Database, redis_url: str, of_queue: dict[str, Any], browser: Browser
) -> None:
    """As after a drain that found its server away: it takes nothing new, and its state does not say so."""

    async def away(route: Route) -> None:
        answer = await route.fetch()
        await route.fulfill(response=answer, json={**await answer.json(), "state": "open"})

    async with console.site(database, redis_url, of_queue) as site, look(browser, site.queue.url) as opened:
        await site.queue.client.post("/v1/shards/1/commands", json={"kind": "drain"})
        await opened.go("shards/queue-1")
        await opened.page.wait_for_function(
            "() => document.querySelector('#main .head .badge')?.textContent.includes('draining')"
        )
        await opened.page.route("**/v1/shards/1", away)
        await opened.page.wait_for_function(
            "() => document.querySelector('#main .head .badge')?.textContent.includes('away')"
        )
        verbs = opened.page.locator("#main .verbs")
        assert await verbs.get_by_role("button", name="Use it again").count() == 1
        assert await verbs.get_by_role("button", name="Drain", exact=True).count() == 0


async def test_without_the_setting_a_shards_page_shows_the_command(site: Site, browser: Browser) -> None:
    async with look(browser, site.queue.url) as opened:
        await opened.go("shards/queue-1")
        assert "python -m shards drain 1 --yes" in await opened.text()
        assert await opened.page.locator("#main").get_by_role("button", name="Drain").count() == 0
