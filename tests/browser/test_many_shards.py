"""A fleet of a thousand shards on one page, made up: it is drawn, told apart and changed without waiting."""

import json
from typing import Any

from playwright.async_api import Browser, Route

from headgate._ids import shard_of
from tests.support.console import Site, look

SHARDS = 1_000
AWAY = (7, 401)
FULL = 123
POINTS = 60


def made_up(service: str, metrics: list[str]) -> dict[str, Any]:
    """What `GET /v1/history` would tell of so many shards."""
    series = []
    for metric in metrics:
        for shard in range(SHARDS):
            last = (shard not in AWAY) if metric == "up" else 5_000 if shard == FULL else shard % 50
            values = [float(last)] * POINTS
            series.append({"metric": metric, "shard": shard, "namespace": None, "topic": None, "values": values})
    made = {"begins_at_s": 1_700_000_000, "step_s": 60, "points": POINTS, "series": series, "marks": []}
    return made | {"processes": [service], "silent": 0, "left_out": 0}


async def test_a_thousand_shards_are_a_map_that_stays_quick(site: Site, browser: Browser) -> None:
    asked: list[str] = []

    async def instead(route: Route) -> None:
        asked.append(route.request.url)
        service = "dag" if "/ui/dag/" in route.request.url else "queue"
        wanted = route.request.url.split("metrics=")[1].split("&")[0].replace("%2C", ",").split(",")
        await route.fulfill(content_type="application/json", body=json.dumps(made_up(service, wanted)))

    async with look(browser, site.queue.url) as opened:
        page = opened.page
        await page.route("**/v1/history?*", instead)
        await page.route("**/v1/shards?*", lambda route: route.abort())
        await opened.go("shards")
        squares = page.locator('[aria-label^="Queue shards"] a')
        assert await squares.count() == SHARDS
        assert await page.locator(".heat a.away").count() == 2 * len(AWAY)
        took_ms = await page.evaluate(
            """() => new Promise((done) => {
                const begun = performance.now();
                const main = document.getElementById('main');
                const look = () => {
                    const chosen = document.querySelector('.choice [aria-current]');
                    if (chosen?.textContent === 'ready' && main.dataset.at === location.hash) {
                        document.body.getBoundingClientRect();
                        done(performance.now() - begun);
                    } else setTimeout(look, 5);
                };
                [...document.querySelectorAll('.choice a')].find((each) => each.textContent === 'ready').click();
                look();
            })"""
        )
        print(f"2,000 squares by another measure after {took_ms:.0f} ms")
        full = page.locator('[aria-label="queue shard 123: answers, ready 5,000"]')
        assert await full.get_attribute("class") == "step-4"
        assert len(asked) <= 6, "the map is one question to each service"
        fits = await page.evaluate(
            "() => document.documentElement.scrollWidth <= document.documentElement.clientWidth"
        )
        assert fits
        await full.click()
        await page.wait_for_function("() => location.hash.endsWith('shards/queue-123')")


async def test_a_shard_says_whose_work_it_has(site: Site, browser: Browser) -> None:
    made = await site.post("enqueue", {"items": [{"topic": "mail"} for _ in range(30)]})
    shard = shard_of(made["results"][0]["id"])
    await site.queue.client.post("/v1/namespaces/other/enqueue", json={"items": [{"topic": "slow"}]})
    async with look(browser, site.queue.url) as opened:
        await opened.go(f"shards/queue-{shard}")
        await opened.page.wait_for_function(
            "() => [...document.querySelectorAll('h2')].some((each) => each.textContent === 'Hottest topics')"
        )
        told = await opened.text()
        assert "Whose work it has" in told and "mail" in told
        await opened.page.get_by_role("link", name="mail").click()
        await opened.page.wait_for_function("() => location.hash.endsWith('default/topics/mail')")
