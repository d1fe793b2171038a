"""What one namespace notices of another that sends a hundred times as much."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.bench import Bench
from benchmarks.load import PAYLOAD, Http, Refused, alongside
from benchmarks.outcome import Outcome
from benchmarks.spread import percentile, ratios
from headgate import AsyncClient

CALM, HOT, TOPIC = "calm", "hot", "neighbours"
PAUSE_S, BATCH, CLIENTS, FACTOR = 0.05, 10, 8, 100
QUOTA = 6_000
RATIO_MAX = 2.0

METHOD = f"""\
One namespace enqueues an item every {PAUSE_S * 1000:g} ms, dequeues and acks it; its age is the time from
sending the enqueue to having the item. First alone; then beside a namespace that enqueues {FACTOR} times as
many, in batches of {BATCH} on {CLIENTS} connections, whether it is answered or not; then with a quota for that
one of {QUOTA:,} enqueues a minute, of which it sends many times as many. What it has stored is purged
after each round."""


async def run(bench: Bench) -> Outcome:
    """Alone, beside, and beside with a quota, in turns."""
    outcome = Outcome("neighbours", METHOD)
    bench.progress.begin("neighbours", bench.plan.rounds * 3)
    sides: dict[str, list[float]] = {"alone": [], "beside": [], "beside, with a quota": []}
    refused: list[int] = []
    http = Http(bench.stack.queue_url, namespace=CALM)
    hot = Http(bench.stack.queue_url, namespace=HOT)
    await _ages(http, 0.0)
    for _ in range(bench.plan.rounds):
        for side, ages in sides.items():
            quota = {"enqueues_per_minute": QUOTA} if side.endswith("quota") else {}
            await hot.call(b"PUT", "", quota)
            async with _hot(bench, 0 if side == "alone" else CLIENTS) as turned_away:
                ages.append(percentile(await _ages(http, bench.plan.slice_s), 0.99))
            if quota:
                refused.append(len(turned_away))
            await _purge(bench)
            bench.progress.step(f"{side}: {ages[-1]:.1f} ms")
    for side, ages in sides.items():
        outcome.add(f"age {side}, p99", "ms", ages)
    outcome.details["calls with refused elements"] = refused
    for side in ("beside", "beside, with a quota"):
        found = ratios(sides[side], sides["alone"])
        outcome.add(f"{side} / alone", "ratio", found.values)
        outcome.require_below(f"age {side} / alone, p99", found, RATIO_MAX)
    http.close()
    hot.close()
    return outcome


async def _ages(http: Http, duration_s: float) -> list[float]:
    ages: list[float] = []
    until = time.perf_counter() + duration_s
    while not ages or time.perf_counter() < until:
        begun = time.perf_counter()
        await http.enqueue([{"topic": TOPIC, "payload": PAYLOAD}])
        leased = await http.dequeue(TOPIC, 1, wait_s=5.0)
        ages.append((time.perf_counter() - begun) * 1000)
        await http.ack(leased)
        await asyncio.sleep(PAUSE_S)
    return ages


async def _purge(bench: Bench) -> None:
    async with AsyncClient(queue_url=bench.stack.queue_url, namespace=HOT) as client:
        await client.purge_topic(TOPIC)


@asynccontextmanager
async def _hot(bench: Bench, clients: int) -> AsyncIterator[list[int]]:
    """So many connections that send on; the calls that were turned away, in part or as a whole."""
    turned_away: list[int] = []
    every_s = PAUSE_S * BATCH * CLIENTS / FACTOR
    items = [{"topic": TOPIC, "payload": PAYLOAD}] * BATCH

    async def send(http: Http) -> None:
        due = time.perf_counter()
        while True:
            try:
                answer = await http.call(b"POST", "/enqueue", {"items": items})
                if b'"refused"' in answer:
                    turned_away.append(200)
            except Refused as error:
                if not error.for_now:
                    raise
                turned_away.append(error.status)
            due = max(due + every_s, time.perf_counter() - 1.0)
            await asyncio.sleep(max(0.0, due - time.perf_counter()))

    connections = [Http(bench.stack.queue_url, namespace=HOT) for _ in range(clients)]
    async with alongside(connections, send):
        yield turned_away
