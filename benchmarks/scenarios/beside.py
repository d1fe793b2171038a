"""A small DAG's step while a large DAG runs: does the large one slow its neighbours?"""

from __future__ import annotations

import asyncio
import time

from benchmarks.bench import Bench
from benchmarks.graphs import wide
from benchmarks.load import Http
from benchmarks.machine import Meter
from benchmarks.outcome import Outcome
from benchmarks.runs import Builder, Consumers
from benchmarks.scenarios.chain import run_chain
from benchmarks.spread import percentile, ratios

TOPIC = "beside"
BLOCKS, WIDTH = 5, 20_000
CONNECTIONS = 2
TAIL_RATIO, RSS_MIB = 2.0, 250.0

METHOD = f"""\
The large DAG is {BLOCKS} times 1 -> {WIDTH:,} -> 1, one after another, built under a hold. A DAG of the same
shape and a tenth of its width tells how many nodes the machine runs in a second; then {CONNECTIONS} connections
consume the large one at half that rate, up to 100 items at a time. Every round runs chains of 100 nodes while
nobody consumes the large DAG, and again while it runs; a step is measured as in `chain`. The ratio is taken
within rounds."""


class Paced:
    """Connections that consume a topic, together no faster than `items_per_s`. `acked` counts."""

    def __init__(self, queue_url: str, items_per_s: float) -> None:
        self.acked = 0
        self._http = [Http(queue_url) for _ in range(CONNECTIONS)]
        self._item_s = CONNECTIONS / items_per_s
        self._tasks: list[asyncio.Task[None]] = []
        self._is_stopping = False

    async def __aenter__(self) -> Paced:
        self._tasks = [asyncio.create_task(self._consume(http)) for http in self._http]
        return self

    async def __aexit__(self, *_: object) -> None:
        # What is leased is acked: the DAG would wait for the leases to run out.
        self._is_stopping = True
        await asyncio.gather(*self._tasks)
        for http in self._http:
            http.close()

    async def _consume(self, http: Http) -> None:
        while not self._is_stopping:
            begun_s = time.perf_counter()
            leased = await http.dequeue(TOPIC, 100, wait_s=1.0)
            if leased:
                acked = await http.ack(leased)
                self.acked += acked  # read behind the wait: others count meanwhile
                await asyncio.sleep(begun_s + len(leased) * self._item_s - time.perf_counter())


async def run(bench: Bench) -> Outcome:
    """Measure steps alone and beside the large DAG, in turns."""
    outcome = Outcome("beside", METHOD)
    plan = bench.plan
    nodes, chains = plan.sized(100, 20), plan.sized(4, 1)
    bench.progress.begin("beside", plan.rounds * 2 + 2)
    builder = Builder(bench.stack.dag_url, TOPIC)
    rate = await _full_rate(bench, builder)
    graph = wide(BLOCKS, plan.sized(WIDTH, 200))
    begun_s = time.perf_counter()
    dag = await builder.create(graph, hold=True)
    bench.progress.step(f"built: {len(graph.keys) / (time.perf_counter() - begun_s):,.0f} nodes/s")
    await run_chain(bench, nodes)
    alone_ms: list[list[float]] = []
    beside_ms: list[list[float]] = []
    fed: list[float] = []
    for _ in range(plan.rounds):
        alone_ms.append(await _steps(bench, chains, nodes))
        async with Paced(bench.stack.queue_url, rate / 2) as paced:
            await builder.release(dag)
            before, begun_s = bench.stack.meter.read(), time.perf_counter()
            beside_ms.append(await _steps(bench, chains, nodes))
            fed.append(paced.acked / (time.perf_counter() - begun_s))
            assert paced.acked, "the large DAG has come to its end"
            bench.watch(outcome, Meter.between(before, bench.stack.meter.read()))
    await builder.cancel(dag)
    builder.close()
    _report(bench, outcome, rate, fed, alone_ms, beside_ms)
    return outcome


async def _steps(bench: Bench, chains: int, nodes: int) -> list[float]:
    steps_ms = [step for _ in range(chains) for step in await run_chain(bench, nodes)]
    bench.progress.step(f"step p50 {percentile(steps_ms, 0.5):.2f}, p99 {percentile(steps_ms, 0.99):.2f} ms")
    return steps_ms


def _report(
    bench: Bench,
    outcome: Outcome,
    rate: float,
    fed: list[float],
    alone_ms: list[list[float]],
    beside_ms: list[list[float]],
) -> None:
    outcome.add("the machine's rate, same shape", "nodes/s", [rate])
    outcome.add("the large DAG, fed beside the chains", "nodes/s", fed)
    for name, rounds in (("alone", alone_ms), ("beside the large DAG", beside_ms)):
        outcome.add(f"step {name}, p50", "ms", [percentile(steps, 0.5) for steps in rounds])
        outcome.add(f"step {name}, p99", "ms", [percentile(steps, 0.99) for steps in rounds], "of each round")
    tails = [[percentile(steps, 0.99) for steps in rounds] for rounds in (beside_ms, alone_ms)]
    outcome.require_below("step p99, beside the large DAG / alone", ratios(*tails), TAIL_RATIO)
    rss_mib = outcome.add("DAG service", "MiB", [bench.stack.meter.rss_mib("dag")])
    outcome.require_below("memory of the DAG service", rss_mib, RSS_MIB, "MiB")


async def _full_rate(bench: Bench, builder: Builder) -> float:
    """Nodes per second, from release to end, of a DAG a tenth as wide."""
    graph = wide(BLOCKS, bench.plan.sized(WIDTH // 10, 50))
    dag = await builder.create(graph, hold=True)
    async with Consumers(bench.stack.queue_url, TOPIC):
        begun_s = time.perf_counter()
        await builder.release(dag)
        await builder.finish(dag, len(graph.keys))
        rate = len(graph.keys) / (time.perf_counter() - begun_s)
    bench.progress.step(f"the machine's rate: {rate:,.0f} nodes/s")
    return rate
