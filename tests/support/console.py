"""Both services as one site, with live data, and a Chromium that looks at it.

The browser is `HEADGATE_CHROMIUM`, or a `chromium` or `google-chrome` in the path.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from axe_playwright_python.base import AXE_SCRIPT
from playwright.async_api import Browser, ConsoleMessage, Page, async_playwright

from tests.support import apps
from tests.support.apps import Service
from tests.support.databases import Database
from tests.support.ports import free_port

QUICK = {"history_point_s": 0.5, "history_span_s": 120.0}
# Text that would be markup, a right-to-left override, and a word without an end.
HOSTILE = '<img src=x onerror="alert(1)"><script>alert(2)</script>\u202egnp.exe\u202c ' + "w" * 10_240


def chromium() -> str | None:
    """Where a Chromium is, if there is one."""
    given = os.environ.get("HEADGATE_CHROMIUM")
    return given or next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@dataclass
class Site:
    """Both services."""

    queue: Service
    dag: Service

    async def post(self, path: str, body: dict[str, Any], service: str = "queue") -> Any:
        """A call that has to succeed, in namespace `default`."""
        client = getattr(self, service).client
        answer = await client.post(f"/v1/namespaces/default/{path}", json=body)
        assert answer.status_code < 300, answer.text
        return answer.json()

    async def take(self, topic: str, count: int) -> list[dict[str, Any]]:
        """Items of a topic, leased."""
        found = await self.post("dequeue", {"topics": [{"topic": topic, "count": count}], "wait_s": 5})
        items: list[dict[str, Any]] = found["items"]
        return items


@asynccontextmanager
async def site(
    database: Database, redis_url: str, of_queue: dict[str, Any] | None = None, **settings: Any
) -> AsyncIterator[Site]:
    """Both services, each knowing where the other one is."""
    port = free_port()
    addresses = {"HEADGATE_DAG_URL": f"http://127.0.0.1:{port}"}
    quick = {"metrics_interval_s": 0.5, **QUICK, **settings, **(of_queue or {})}
    async with apps.queue_service(database, redis_url, **addresses, **quick) as queue:
        given = {"port": port, **QUICK, **settings}
        async with apps.dag_service(database, redis_url, queue.url, **given) as dag:
            yield Site(queue, dag)


async def furnish(made: Site) -> str:
    """Topics in every state, dead items, a schedule, and a DAG that failed half-way; the DAG's id."""
    await made.post("enqueue", {"items": [{"topic": "mail", "payload": {"to": n}} for n in range(40)]})
    await made.post("enqueue", {"items": [{"topic": "video", "delay_s": 600} for _ in range(12)]})
    await made.post("enqueue", {"items": [{"topic": "paused", "payload": n} for n in range(7)]})
    await made.post("enqueue", {"items": [{"topic": "reports", "payload": HOSTILE} for _ in range(5)]})
    await made.post("topics/pause", {"topic": "paused"})
    leased = await made.take("mail", 6)
    await made.post("ack", {"items": [pair(item) for item in leased[:3]]})
    broken = await made.take("reports", 4)
    errors = (
        HOSTILE[:8_000],
        "ConnectionError: smtp is away",
        "ConnectionError: smtp is away",
        "ValueError: no address",
    )
    nacks = [{**pair(item), "final": True, "error": error} for item, error in zip(broken, errors, strict=True)]
    await made.post("nack", {"items": nacks})
    nodes: list[dict[str, Any]] = [{"key": "fetch", "topic": "build"}]
    nodes += [{"key": f"compile {n}", "topic": "build", "upstream": ["fetch"]} for n in range(12)]
    nodes += [{"key": "link", "topic": "build", "upstream": [f"compile {n}" for n in range(12)]}]
    nodes += [{"key": "approve", "topic": "build", "upstream": ["link"], "external": ["approval"]}]
    nodes += [{"key": HOSTILE[:190], "topic": "build", "upstream": ["approve"]}]
    dag = await made.post("dags", {"name": "release <b>7</b>", "key": "r7", "nodes": nodes}, "dag")
    for _ in range(2):
        work = await made.take("build", 6)
        failing = [item for item in work if item["dag"]["node"] == "compile 3"]
        await made.post("ack", {"items": [pair(item) for item in work if item not in failing]})
        if failing:
            nack = {**pair(failing[0]), "final": True, "error": "ld: cannot find -lz\nexit 1"}
            await made.post("nack", {"items": [nack]})
    spec = {"spec": {"cron": "0 6 * * *", "tz": "UTC"}, "action": {"item": {"topic": "mail"}}}
    answer = await made.dag.client.put("/v1/namespaces/default/schedules/nightly", json=spec)
    assert answer.status_code < 300, answer.text
    dag_id: str = dag["id"]
    return dag_id


async def sampled(site: Site) -> None:
    """A sample of everything, without waiting for it, nor for the look at what shards hold that it tells of."""
    of_queue, of_dag = (getattr(service.app, "app", service.app).state for service in (site.queue, site.dag))
    [gauges] = [loop for loop in of_queue.loops if loop.name == "gauges"]
    await gauges._step()
    for state in (of_queue, of_dag):
        await state.watch.sampling.step()


async def filled(site: Site) -> dict[str, str]:
    """As `furnish`, sampled: ids of the DAG and of an item."""
    dag = await furnish(site)
    await sampled(site)
    found = await site.queue.client.get("/v1/namespaces/default/items", params={"topic": "mail", "limit": 1})
    return {"dag": dag, "item": found.json()["items"][0]["id"]}


def pair(item: dict[str, Any]) -> dict[str, str]:
    """What settles an item."""
    return {"id": item["id"], "lease_token": item["lease_token"]}


@dataclass
class Look:
    """A page of the site in a browser, and all that its console said."""

    page: Page
    base: str
    said: list[str] = field(default_factory=list)

    async def go(self, path: str) -> None:
        """Open a view, by what follows `#/default/`, and wait until it is drawn."""
        await self.page.goto(f"{self.base}/ui#/default/{path}")
        await self.drawn()

    async def drawn(self) -> None:
        """Wait until the view that the address names is there, and not about to be drawn again."""
        await self.page.wait_for_function(
            "() => { const main = document.getElementById('main');"
            " return main.dataset.at === location.hash && main.ariaBusy !== 'true' &&"
            " !['', '…'].includes(main.textContent); }"
        )

    async def text(self) -> str:
        """What stands on the page."""
        return await self.page.inner_text("#main")


# All that it finds besides would take longer on its way here than the look itself.
_FAULTS = """async (impacts) => (await axe.run({resultTypes: ['violations']})).violations
    .filter((each) => impacts.includes(each.impact))
    .flatMap((each) => each.nodes.slice(0, 2).map((node) => [each.id, node.html.slice(0, 150)]))"""


async def faults(page: Page, *impacts: str) -> list[tuple[str, str]]:
    """What axe-core finds on a page of these impacts, like `serious`: the rule, and the element."""
    if not await page.evaluate("() => 'axe' in window"):
        await page.evaluate(AXE_SCRIPT)
    return [(rule, element) for rule, element in await page.evaluate(_FAULTS, impacts)]


@asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    """A headless Chromium."""
    async with async_playwright() as playwright:
        found = await playwright.chromium.launch(
            executable_path=chromium(), args=["--no-sandbox", "--disable-gpu", "--force-device-scale-factor=1"]
        )
        try:
            yield found
        finally:
            await found.close()


@asynccontextmanager
async def look(
    opened: Browser, base: str, *, dark: bool = False, width: int = 1280, height: int = 900
) -> AsyncIterator[Look]:
    """A page that fails the test if its console has an error, or if a file of it is refused."""
    context = await opened.new_context(
        color_scheme="dark" if dark else "light", viewport={"width": width, "height": height}
    )
    page = await context.new_page()
    made = Look(page, base)

    def hear(message: ConsoleMessage) -> None:
        # What a service refuses is on the page, in words; a browser adds a line about the status.
        if message.type in ("error", "warning") and not re.search("Failed to load resource", message.text):
            made.said.append(message.text)

    page.on("console", hear)
    page.on("pageerror", lambda error: made.said.append(str(error)))
    page.on("dialog", lambda dialog: made.said.append(f"dialog: {dialog.message}"))
    try:
        yield made
        assert made.said == []
    finally:
        await context.close()
        await asyncio.sleep(0)
