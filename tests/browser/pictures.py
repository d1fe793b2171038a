"""The pictures of docs/pictures.md, made anew: each page of the site that it shows, with an hour of work on it."""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Route

from headgate import AsyncClient, Dag, Fail, Job, Worker, Workflow
from tests.browser.test_many_shards import made_up
from tests.support import console
from tests.support.clocks import ManualClock
from tests.support.console import Look, Site, look, pair
from tests.support.databases import Database

# `make pictures` names the folder; else they are made and thrown away.
KEPT = os.environ.get("HEADGATE_PICTURES")
ROUNDS, ROUND_S = 60, 60.0
WORK = ("invoices", "webhooks", "thumbnails")
HOUR = {"history_point_s": ROUND_S, "history_span_s": ROUNDS * ROUND_S}


@pytest.fixture
async def shop(database: Database, redis_url: str, of_queue: dict[str, Any]) -> AsyncIterator[Site]:
    """Both services, an hour and some trouble behind them."""
    of_queue = {**of_queue, "owner_name": "queue-1", "metrics_interval_s": 3_600.0}  # looked at each minute, below
    async with console.site(database, redis_url, of_queue, owner_name="dag-1", **HOUR) as site:
        hour = Hour(site)
        await hour.gone()
        async with working(site):
            await trouble(site)
            await hour.minute()
            yield site


class Hour:
    """The last hour of both services' history, gone through in a moment."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._clock = ManualClock(time.time() - ROUNDS * ROUND_S, wall=True)
        self._apps = [getattr(service.app, "app", service.app).state for service in (site.queue, site.dag)]
        for app in self._apps:
            app.watch.history._clock = app.watch.sampling._rates._clock = self._clock
        self._gauges: Any = next(loop for loop in self._apps[0].loops if loop.name == "gauges")._step
        self._gauges.__self__._rates._clock = self._clock

    async def gone(self) -> None:
        """Load that swells and falls, of which a little stays behind, and a tenant floods the last quarter."""
        for minute in range(1, ROUNDS):
            swell = 20 + 4 * abs(minute % 30 - 15)
            items = [{"topic": topic} for place, topic in enumerate(WORK, 1) for _ in range(swell // place)]
            await self._site.post("enqueue", {"items": items})
            topics = [{"topic": topic, "count": 50 // place} for place, topic in enumerate(WORK, 1)]
            leased = await self._site.post("dequeue", {"topics": topics, "wait_s": 0})
            await self._site.post("ack", {"items": [pair(item) for item in leased["items"]]})
            if minute > ROUNDS * 3 // 4:
                body = {"items": [{"topic": "imports"}] * 100}
                await self._site.queue.client.post("/v1/namespaces/acme/enqueue", json=body)
            await self.minute()

    async def minute(self) -> None:
        """Sample what the last one has brought."""
        self._clock.advance(ROUND_S)
        await self._gauges()
        await self._apps[1].orchestrator.shard_health.step()
        for app in self._apps:
            await app.watch.sampling.step()


@asynccontextmanager
async def working(site: Site) -> AsyncIterator[None]:
    """Workers at what the pictures show."""
    client = AsyncClient(queue_url=site.queue.url, dag_url=site.dag.url, namespace="default")
    worker = Worker(client, name="reports-1", version="2026.11.1", drain_s=0, wait_s=1)
    drawing = asyncio.Event()

    @worker.task("extract", slots=8)
    async def extract(job: Job) -> str:
        if job.payload == "visits" and job.attempt < 3:
            raise ConnectionError("warehouse: connection reset by peer")
        job.log.info("read 40,000 rows of %s", job.payload)
        return f"s3://reports/{job.payload}"

    @worker.task("clean", slots=8)
    async def clean(job: Job) -> str:
        return "done"

    @worker.task("draw", slots=4)
    async def draw(job: Job) -> None:
        if job.payload == "returns":
            raise Fail("no rows between 2026-11-01 and 2026-11-23")
        job.progress(3, 8, "drawing")
        drawing.set()
        await asyncio.sleep(3_600)

    @worker.task("charge", slots=3)
    async def charge(job: Job) -> str:
        if job.payload == "train" and job.attempt == 1:
            raise TimeoutError("the bank does not answer")
        return "receipt"

    @worker.workflow("order", version="2")
    async def order(wf: Workflow, cart: list[str]) -> None:
        await asyncio.gather(*(wf.call("charge", each, backoff={"base_s": 0.05}) for each in cart))
        wf.publish("stage", "waits for approval")
        await wf.receive("approval")

    await client.submit(report())
    run = await client.workflows.start("order", ["book", "train", "lamp"], id="order-1041", version="2")
    async with asyncio.TaskGroup() as group:
        task = group.create_task(worker.run(signals=False))
        await drawing.wait()
        while not (shown := await run.show()).parked or not shown.published:
            await asyncio.sleep(0.02)
        try:
            yield
        finally:
            worker.stop()
            worker.stop()
            await task
    await client.aclose()


def report() -> Dag:
    """A DAG of a few levels: one node is tried again, one fails for good, one waits for somebody's word."""
    dag = Dag("nightly report", key="report-2026-11-23")
    options = {"max_attempts": 3, "backoff": {"base_s": 0.05}}
    names = ("orders", "users", "stock", "visits", "refunds")
    parts = [dag.node(f"extract {name}", "extract", payload=name, **options) for name in names]
    clean = [dag.node(f"clean {name}", "clean", after=[part]) for name, part in zip(names, parts, strict=True)]
    join = dag.node("join", "clean", after=clean)
    charts = [
        dag.node(f"draw {name}", "draw", payload=name, after=[join], max_attempts=1)
        for name in ("sales", "returns", "traffic")
    ]
    proof = dag.node("proof", "mail", after=charts)
    dag.node("publish", "mail", after=[proof], external=["approval"])
    return dag


def photos() -> list[dict[str, Any]]:
    """A wide DAG."""
    steps = ("fetch photos", "read tags", "thumbnails")
    nodes: list[dict[str, Any]] = []
    for n in range(300):
        for before, step in zip((None, *steps), steps, strict=False):
            upstream = [f"{before} {n}"] if before else []
            nodes.append({"key": f"{step} {n}", "topic": step.replace(" ", "-"), "upstream": upstream})
    return [*nodes, {"key": "album", "topic": "album", "upstream": [f"thumbnails {n}" for n in range(300)]}]


async def trouble(site: Site) -> None:
    """A pause, dead items of two kinds, a schedule, quotas."""
    await site.post("enqueue", {"items": [{"topic": "exports"} for _ in range(35)]})
    await site.post("topics/pause", {"topic": "exports"})
    await site.post("enqueue", {"items": [{"topic": "reminders", "delay_s": 600} for _ in range(60)]})
    broken = await site.take("webhooks", 7)
    for at, item in enumerate(broken):
        error = "ConnectionError: hooks.example does not answer" if at < 5 else "ValueError: no address"
        await site.post("nack", {"items": [{**pair(item), "final": True, "error": error}]})
    for name, cron in (("nightly", "0 6 * * *"), ("hourly-sync", "5 * * * *")):
        spec = {"spec": {"cron": cron, "tz": "Europe/Paris"}, "action": {"item": {"topic": "reminders"}}}
        await site.dag.client.put(f"/v1/namespaces/default/schedules/{name}", json=spec)
    await site.post("dags", {"name": "photo import", "nodes": photos()}, "dag")
    for item in await site.take("fetch-photos", 40):
        await site.post("nack", {"items": [{**pair(item), "final": True, "error": "HTTP 403"}]})
    quotas = {"items_max": 5_000, "enqueues_per_minute": 6_000}
    await site.queue.client.put("/v1/namespaces/acme", json=quotas)


@dataclass
class Album:
    """Where the pictures go."""

    site: Site
    browser: Browser
    folder: Path

    async def take(
        self, name: str, view: str, then: Callable[[Look], Awaitable[None]] | None = None, **kind: Any
    ) -> None:
        """One picture of a view, after something was done on it."""
        async with look(self.browser, self.site.queue.url, **{"width": 1280, "height": 860, **kind}) as opened:
            await opened.go(view)
            if then is not None:
                await then(opened)
            await opened.page.screenshot(path=self.folder / f"{name}.png")


async def test_each_page_has_its_picture(shop: Site, browser: Browser, tmp_path: Path) -> None:
    folder = Path(KEPT) if KEPT else tmp_path
    album = Album(shop, browser, folder)
    dags = (await shop.dag.client.get("/v1/namespaces/default/dags")).json()["items"]
    by_name = {each["name"]: each["id"] for each in dags}
    dag = by_name["nightly report"]

    def shows(selector: str) -> Callable[[Look], Awaitable[None]]:
        async def then(opened: Look) -> None:
            await opened.page.wait_for_selector(selector)

        return then

    def clicks(name: str) -> Callable[[Look], Awaitable[None]]:
        async def then(opened: Look) -> None:
            await opened.page.locator("#main").get_by_role("button", name=name, exact=True).first.click()
            await opened.page.wait_for_function(
                "() => document.querySelector('dialog button[type=submit]')?.disabled === false"
            )

        return then

    async def fleet(opened: Look) -> None:
        async def instead(route: Route) -> None:
            service = "dag" if "/ui/dag/" in route.request.url else "queue"
            wanted = route.request.url.split("metrics=")[1].split("&")[0].replace("%2C", ",").split(",")
            await route.fulfill(content_type="application/json", body=json.dumps(made_up(service, wanted)))

        await opened.page.route("**/v1/history?*", instead)
        await opened.page.route("**/v1/shards?*", lambda route: route.abort())
        await opened.go("shards?by=ready")
        await opened.page.wait_for_selector(".heat a:nth-child(900)")

    await album.take("overview", "overview", shows(".plot canvas"))
    await album.take("overview-dark", "overview", shows(".plot canvas"), dark=True)
    await album.take("overview-narrow", "overview", shows(".plot canvas"), width=400)
    await album.take("topics", "topics")
    await album.take("topic", "topics/invoices", shows(".plot canvas"))
    await album.take("dead", "dead")
    await album.take("redrive", "dead", clicks("Redrive"))
    await album.take("dags", "dags")
    await album.take("dag", f"dags/{dag}?node=draw%20returns", shows("aside:not([hidden]) .error"))
    folded = f"dags/{by_name['photo import']}?fold=topic"
    await album.take("dag-folded", folded, shows(".node"))
    await album.take("dag-grid", f"dags/{dag}?view=grid", shows(".grid .cell"))
    await album.take("dag-timeline", f"dags/{dag}?view=timeline")
    await album.take("run", "runs/order-1041", shows(".lanes .tried"))
    await album.take("schedules", "schedules")
    await album.take("workers", "workers")
    await album.take("namespaces", "namespaces")
    await album.take("shards", "shards?by=ready")
    await album.take("fleet", "overview", fleet)
    await album.take("shard", "shards/queue-0", shows(".plot canvas"))
    await album.take("drain", "shards/queue-0", clicks("Drain"))
    await album.take("audit", "audit")
