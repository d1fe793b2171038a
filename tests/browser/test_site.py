"""One site of both services: all pages, with live data, in a real browser."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Route

from shared.http.access import make_token
from tests.support import console
from tests.support.console import HOSTILE, Look, Site, faults, filled, furnish, look
from tests.support.databases import Database

VIEWS = [
    "overview",
    "topics",
    "topics/mail",
    "topics/reports",
    "dead",
    "operations",
    "dags",
    "dags/{dag}",
    "dags/{dag}?view=nodes",
    "dags/{dag}?view=timeline",
    "dags/{dag}?view=grid",
    "schedules",
    "namespaces",
    "shards",
    "shards?by=ready",
    "shards/queue-0",
    "shards/dag-0",
    "audit",
    "runbooks",
    "runbooks/HeadgateShardAway",
    "workers",
    "search?q=mail",
    "items/{item}",
]
_FETCH_BY_TOKEN = """async ([path, token]) => (await fetch(path, {
    method: 'POST', body: '{"topic": "mail"}',
    headers: { 'content-type': 'application/json', authorization: `Bearer ${token}` },
})).status"""
_FETCH_FROM_AFAR = """([url, media]) => fetch(url, {
    method: 'POST', mode: media === 'text/plain' ? 'no-cors' : 'cors',
    headers: { 'content-type': media }, body: '{"topic": "mail"}',
}).then(() => 'sent', () => 'refused')"""


async def every_view(opened: Look, names: dict[str, str], check: Callable[[str], Awaitable[None]]) -> None:
    for view in VIEWS:
        await opened.go(view.format(**names))
        await check(view)


@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    "kind", [{}, {"dark": True}, {"width": 390, "height": 800}], ids=["light", "dark", "narrow"]
)
async def test_every_page_is_drawn_fits_and_has_no_serious_fault(
    site: Site, browser: Browser, kind: dict[str, Any]
) -> None:
    names = await filled(site)
    found: list[tuple[str, str, str]] = []
    async with look(browser, site.queue.url, **kind) as opened:

        async def check(view: str) -> None:
            wide = await opened.page.evaluate(
                "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
            )
            assert wide <= 0, view
            found.extend((view, *fault) for fault in await faults(opened.page, "serious", "critical"))

        await every_view(opened, names, check)
    assert found == []


async def test_pages_say_why(site: Site, browser: Browser) -> None:
    names = await filled(site)
    wanted = {
        "topics/paused": "It is paused; 7 are ready.",
        "topics": "Topic paused is paused; 7 are ready",
        "items/{item}": "its lease ends in",
        "dags/{dag}": "queued",
        "dags/{dag}?node=compile 3": "compile 3 has failed: exit 1.",
    }
    async with look(browser, site.dag.url) as opened:
        for view, told in wanted.items():
            await opened.go(view.format(**names))
            await opened.page.wait_for_function(
                "(told) => [...document.querySelectorAll('.why')].some((each) => each.textContent.includes(told))",
                arg=told,
            )


async def test_backticks_of_tenants_stay_in_sentences_and_commands_are_set_as_such(
    site: Site, browser: Browser
) -> None:
    dag = await site.post("dags", {"nodes": [{"key": "a`b", "topic": "t"}]}, "dag")
    site.queue.app.app.state.process.dispatch.asked._since_s -= 3_600
    async with look(browser, site.dag.url) as opened:
        await opened.go(f"dags/{dag['id']}?node=a%60b")
        why = opened.page.locator("aside .why p").first
        await why.wait_for()
        assert (await why.inner_text()).startswith("a`b is queued in t")
        assert await why.locator("code").all_inner_texts() == ["headgate worker"]


async def test_a_topic_that_is_empty_by_turns_stays_in_the_list(site: Site, browser: Browser) -> None:
    """One whose items are taken as they come."""
    await site.post("enqueue", {"items": [{"topic": "quick"}]})
    await console.sampled(site)
    [item] = await site.take("quick", 1)
    await site.post("ack", {"items": [console.pair(item)]})
    await console.sampled(site)
    assert (await site.queue.client.get("/v1/namespaces/default/topics")).json()["items"] == []
    async with look(browser, site.queue.url) as opened:
        await opened.go("topics")
        await opened.page.get_by_role("row", name="quick").wait_for()
        assert "–" in await opened.page.get_by_role("row", name="quick").inner_text()


async def test_the_page_of_a_leased_item_says_who_has_it(site: Site, browser: Browser) -> None:
    await site.post("enqueue", {"items": [{"topic": "held"}, {"topic": "held"}]})
    demand = {"topics": [{"topic": "held", "count": 1}], "wait_s": 5}
    [mine] = (await site.post("dequeue", {**demand, "worker": "host-<7>"}))["items"]
    [nobodys] = (await site.post("dequeue", demand))["items"]
    async with look(browser, site.dag.url) as opened:
        await opened.go(f"items/{mine['id']}")
        assert "host-<7>" in await opened.page.locator("section.head dl").inner_text()
        await opened.go(f"items/{nobodys['id']}")
        assert "worker" not in await opened.page.locator("section.head dl").inner_text()


async def test_a_paused_schedule_has_no_next_run(site: Site, browser: Browser) -> None:
    await furnish(site)
    path = "/v1/namespaces/default/schedules/nightly/pause"
    assert (await site.dag.client.post(path, json={"reason": "<b>audit</b>"})).status_code == 200
    async with look(browser, site.queue.url) as opened:
        await opened.go("schedules")
        assert "none while it is paused" in await opened.text() and "<b>audit</b>" in await opened.text()


async def test_a_topic_says_what_changed_lately(site: Site, browser: Browser) -> None:
    await filled(site)
    await site.post("topics/pause", {"topic": "video"})
    async with look(browser, site.queue.url) as opened:
        await opened.go("topics/video")
        told = (await opened.text()).partition("What changed in the last 10 minutes")[2]
        assert "pause topic by anybody" in told and "started" in told
        await opened.go("topics/mail")
        told = (await opened.text()).partition("What changed in the last 10 minutes")[2]
        assert "pause topic" not in told


async def test_an_item_says_how_far_its_job_is(site: Site, browser: Browser) -> None:
    await site.post("enqueue", {"items": [{"topic": "mail"}]})
    [item] = await site.take("mail", 1)
    progress = {"done": 3, "total": 8, "note": "<b>drawing</b>"}
    await site.post("extend", {"items": [{**console.pair(item), "progress": progress}]})
    async with look(browser, site.queue.url) as opened:
        await opened.go(f"items/{item['id']}")
        assert "3 of 8: <b>drawing</b> " in await opened.text()


async def test_a_grid_has_a_cell_for_each_attempt(site: Site, browser: Browser) -> None:
    nodes = [{"key": "again", "topic": "twice"}, {"key": "last", "topic": "t", "upstream": ["again"]}]
    dag = await site.post("dags", {"nodes": nodes}, "dag")
    [item] = await site.take("twice", 1)
    await site.post("nack", {"items": [{**console.pair(item), "error": "no <b>luck</b>", "delay_s": 0}]})
    [item] = await site.take("twice", 1)
    await site.post("ack", {"items": [console.pair(item)]})
    async with look(browser, site.dag.url) as opened:
        await opened.go(f"dags/{dag['id']}?view=grid")
        cells = await opened.page.locator(".grid .cell").evaluate_all("(all) => all.map((each) => each.title)")
        assert cells[0].startswith("again, attempt 1: failed") and cells[0].endswith("no <b>luck</b>")
        assert cells[1].startswith("again, attempt 2:")
        await opened.page.get_by_role("button", name="again").click()
        await opened.page.wait_for_selector("aside:not([hidden])")
        await opened.go(f"dags/{dag['id']}?view=timeline")
        tried = await opened.page.locator(".lanes .tried").evaluate_all("(all) => all.map((each) => each.title)")
        assert [words.split(" after")[0] for words in tried] == ["attempt 1: failed", "attempt 2: acked"]


async def test_either_service_shows_all_pages(site: Site, browser: Browser) -> None:
    names = await filled(site)
    async with look(browser, site.dag.url) as opened:

        async def check(view: str) -> None:
            assert await opened.page.locator("#note").is_hidden(), view
            assert await opened.page.locator(".lost").count() == 0, view

        await every_view(opened, names, check)


async def test_a_service_that_is_away_is_named_and_the_rest_is_shown(
    database: Database, redis_url: str, browser: Browser
) -> None:
    nowhere = {"HEADGATE_DAG_URL": "http://127.0.0.1:9"}
    async with (
        console.apps.queue_service(database, redis_url, **nowhere) as queue,
        look(browser, queue.url) as opened,
    ):
        await opened.go("overview")
        told = await opened.page.inner_text(".lost")
        assert told == "the dag service at http://127.0.0.1:9 does not answer"
        assert "shards, all answer" in await opened.text()
        await opened.page.goto(f"{queue.url}/ui#/default/dags")
        await opened.page.wait_for_selector("#note:not([hidden])")
        assert "does not answer" in await opened.page.inner_text("#note")


async def test_a_service_that_nobody_named_is_said_to_be_unknown(
    database: Database, redis_url: str, browser: Browser
) -> None:
    async with (
        console.apps.queue_service(database, redis_url, HEADGATE_DAG_URL=None) as queue,
        look(browser, queue.url) as opened,
    ):
        await opened.go("overview")
        assert "HEADGATE_DAG_URL" in await opened.page.inner_text(".lost")


async def test_what_tenants_wrote_is_text(site: Site, browser: Browser) -> None:
    names = await filled(site)
    found = await site.queue.client.get("/v1/namespaces/default/items", params={"topic": "reports", "limit": 1})
    names["item"] = found.json()["items"][0]["id"]
    async with look(browser, site.queue.url) as opened:
        for view in ("items/{item}", "dead", "overview", "dags/{dag}", "dags"):
            await opened.go(view.format(**names))
            assert await opened.page.locator("#main img, #main script, #main b b").count() == 0
            assert "\u202e" not in await opened.text()
        await opened.go(f"items/{names['item']}")
        assert "<script>alert(2)</script>⟨U+202E⟩gnp.exe" in await opened.text()
        assert HOSTILE[-100:] in await opened.text()
        hostile = "%3Cimg%20src=x%20onerror=alert(1)%3E"
        for address in (
            f"{hostile}/topics",
            f"default/topics/{hostile}",
            f"default/search?q={hostile}",
            "%",
            "a/%zz",
        ):
            await opened.page.goto(f"{site.queue.url}/ui#/{address}")
            await opened.page.wait_for_timeout(50)
            assert await opened.page.locator("img").count() == 0


async def test_search_finds_an_id_a_key_a_topic_and_a_name(site: Site, browser: Browser) -> None:
    names = await filled(site)
    wanted = {
        names["item"]: "in mail",
        names["dag"]: "16 nodes",
        "r7": "release",
        "vid": "video",
        "release <b>7</b>": "DAG",
    }
    async with look(browser, site.dag.url) as opened:
        await opened.go("topics")
        for text, told in wanted.items():
            await opened.page.keyboard.press("/")
            await opened.page.keyboard.press("Control+A")
            await opened.page.keyboard.type(text)
            await opened.page.keyboard.press("Enter")
            await opened.page.wait_for_function(
                "(text) => document.querySelector('#main h1')?.textContent.endsWith(text)", arg=text
            )
            await opened.drawn()
            assert told in await opened.text(), text


async def test_who_goes_by_keyboard_stays_where_they_are(site: Site, browser: Browser) -> None:
    await filled(site)
    async with look(browser, site.queue.url) as opened:
        await opened.go("topics")
        await opened.page.locator("#main a", has_text="mail").focus()
        await opened.page.evaluate("() => { window.before = document.activeElement; }")
        await site.post("enqueue", {"items": [{"topic": "aaa"}]})
        await opened.page.wait_for_function(
            "() => window.before !== document.activeElement && document.activeElement.textContent === 'mail'"
        )
        await opened.page.keyboard.press("Enter")
        await opened.page.wait_for_function("() => location.hash.endsWith('topics/mail')")
        await opened.drawn()
        await opened.page.get_by_role("button", name="Pause").press("Enter")
        assert await opened.page.locator("dialog").count() == 1
        await opened.page.keyboard.press("Escape")
        await opened.page.wait_for_function("() => !document.querySelector('dialog')")


async def test_a_reader_sees_no_verb_and_may_do_nothing(
    database: Database, redis_url: str, browser: Browser, tmp_path: Path
) -> None:
    reader, line = make_token(["*"], ["ops"], None)
    writer, other = make_token(["*"], ["ops", "admin", "enqueue", "consume"], None)
    file = tmp_path / "tokens.jsonl"
    file.write_text(f"{line}\n{other}\n")
    async with console.site(database, redis_url, HEADGATE_TOKENS_FILE=file) as site:
        for service in (site.queue, site.dag):
            service.client.headers["authorization"] = f"Bearer {writer}"
        names = await filled(site)
        async with look(browser, site.queue.url) as opened:
            await opened.page.goto(f"{site.queue.url}/ui#/default/topics")
            await opened.page.get_by_label("token").fill(reader)
            await opened.page.get_by_role("button", name="use this token").click()
            await opened.drawn()

            async def check(view: str) -> None:
                assert await opened.page.locator(".verbs button").count() == 0, view

            await every_view(opened, names, check)
            await opened.go("topics/mail")
            for path in ("/v1/namespaces/default/topics/purge", "/ui/dag/v1/namespaces/default/dags"):
                answer = await opened.page.evaluate(
                    _FETCH_BY_TOKEN,
                    [path, reader],
                )
                assert answer == 403, path


async def test_a_page_of_another_origin_changes_nothing(site: Site, browser: Browser) -> None:
    """It may be on the other service's port, and speak to a service, or through it to the other."""
    await furnish(site)
    async with look(browser, site.dag.url) as opened:
        await opened.go("topics")
        foreign = site.dag.url.replace("127.0.0.1", "localhost")
        await opened.page.goto(f"{foreign}/ui#/default/topics")
        paths = ["/v1/namespaces/default/topics/purge", "/ui/dag/v1/namespaces/default/dags"]
        for path in paths:
            for media in ("text/plain", "application/json"):
                said = await opened.page.evaluate(
                    _FETCH_FROM_AFAR,
                    [f"{site.queue.url}{path}", media],
                )
                assert said == "refused"  # by the policy of the page; below, without it
        opened.said.clear()
    for path in paths:
        headers = {
            "origin": "http://evil.example",
            "sec-fetch-site": "cross-site",
            "content-type": "application/json",
        }
        answer = await site.queue.client.post(path, content='{"topic": "mail"}', headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (403, "cross_site")
        answer = await site.queue.client.post(path, content='{"topic": "mail"}', headers={"host": "evil.example"})
        assert (answer.status_code, answer.json()["code"]) == (403, "unknown_host")
    left = await site.queue.client.get("/v1/namespaces/default/topics")
    assert next(topic for topic in left.json()["items"] if topic["topic"] == "mail")["ready"] == 34


async def test_what_cannot_be_listed_hides_nothing_else(site: Site, browser: Browser) -> None:
    """A shard that is away has no list of its items; the rest of the page stands."""
    await filled(site)
    problem = {"status": 503, "code": "shard_unavailable", "detail": "shard 1 cannot be reached"}
    async with look(browser, site.queue.url) as opened:

        async def refuse(route: Route) -> None:
            await route.fulfill(status=503, content_type="application/problem+json", body=json.dumps(problem))

        for lists in ("**/items?*", "**/dead?*"):
            await opened.page.route(lists, refuse)
        await opened.go("topics/paused")
        assert await opened.page.inner_text(".lost") == problem["detail"]
        told = await opened.text()
        assert "It is paused; 7 are ready." in told and "There is no list of them now." in told
        await opened.page.goto(f"{site.queue.url}/ui#/default/dead")
        await opened.page.wait_for_function("() => document.querySelector('h1')?.textContent === 'Dead'")
        assert await opened.page.inner_text("#note") == problem["detail"]
        await opened.page.goto(f"{site.queue.url}/ui#/default/items/0198f1a2-0000-7000-8000-000000000000")
        await opened.page.wait_for_function(
            "() => document.querySelector('h1')?.textContent.startsWith('0198f1a2')"
        )


async def test_lists_say_which_shard_they_lack(site: Site, browser: Browser) -> None:
    """On every page that shows such a list, and no longer than it lacks one."""
    await filled(site)
    lacks = True
    async with look(browser, site.queue.url) as opened:

        async def without(route: Route) -> None:
            answer = await route.fetch()
            found = await answer.json()
            await route.fulfill(response=answer, json={**found, "away": [1]} if lacks else found)

        for lists in ("topics", "dead", "workers", "namespaces", "dags", "schedules", "workflows", "operations"):
            await opened.page.route(f"**/v1/**/{lists}?*", without)
            await opened.page.route(f"**/v1/{lists}?*", without)
        for view in ("topics", "dead", "workers", "namespaces", "operations", "overview", "topics/mail"):
            await opened.go(view)
            line = opened.page.locator("p.lost", has_text="queue shard 1")
            await line.wait_for()
            assert "what is there is missing here" in await line.inner_text(), view
        for view in ("dags", "schedules", "runs"):
            await opened.go(view)
            await opened.page.locator("p.lost", has_text="DAG shard 1 does not answer").wait_for()
        lacks = False
        await opened.go("topics")
        await opened.page.wait_for_function(
            "() => document.querySelector('#main .tile') && !document.querySelector('.lost')"
        )


async def test_a_topic_that_is_mistyped_leads_to_the_one_that_is_meant(site: Site, browser: Browser) -> None:
    await filled(site)
    await site.post("enqueue", {"items": [{"topic": "maill"}]})
    site.queue.app.app.state.process.dispatch.asked._since_s -= 3_600
    await site.post("dequeue", {"topics": [{"topic": "mail", "count": 1}], "wait_s": 0})
    async with look(browser, site.queue.url) as opened:
        await opened.go("topics/maill")
        await opened.page.locator(".why").get_by_role("link", name="mail", exact=True).click()
        await opened.page.wait_for_function("() => location.hash.endsWith('topics/mail')")


async def test_charts_have_a_range_and_a_prometheus_that_is_away_is_named(
    database: Database, redis_url: str, browser: Browser
) -> None:
    away: dict[str, Any] = {"HEADGATE_PROMETHEUS_URL": "http://127.0.0.1:9", "history_span_s": 3_600.0}
    async with console.site(database, redis_url, **away) as site, look(browser, site.queue.url) as opened:
        await filled(site)
        await opened.go("overview")
        ranges = opened.page.get_by_role("group", name="range of the charts").get_by_role("link")
        assert await ranges.all_inner_texts() == ["15m", "1h", "6h", "1d", "7d", "30d"]
        await opened.page.get_by_role("link", name="15m").click()
        await opened.page.wait_for_selector("h2:text-is('The last 15 minutes')")
        await opened.page.wait_for_selector(".plot canvas")
        await opened.page.get_by_role("link", name="7d").click()
        await opened.page.wait_for_selector("h2:text-is('The last 7 days')")
        assert "the Prometheus at http://127.0.0.1:9 does not answer" in await opened.page.inner_text(".lost")
        assert "is paused; 7 are ready" in await opened.text()
