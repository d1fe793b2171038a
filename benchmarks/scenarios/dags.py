"""Many DAGs at once: whole DAGs per second, and what more shards of the DAG service bring."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from benchmarks.bench import Bench
from benchmarks.cost import Cost
from benchmarks.graphs import Graph, fan
from benchmarks.machine import Meter
from benchmarks.outcome import Outcome
from benchmarks.peers.process import DAGS, open_peers
from benchmarks.runs import Builder, Consumers
from benchmarks.spread import ratios
from benchmarks.stack import BenchStack, open_site

TOPIC = "dags"
# Callers at once: of small DAGs many or few, of large ones few.
MANY, FEW = 128, 16
SHARDS = (1, 2, 4)
SMALL, LARGE = 10, 1_000
REQUIRED_DAGS_PER_S = 300.0

METHOD = f"""\
One site for each number of DAG shards ({", ".join(str(count) for count in SHARDS)}), all on the same server,
each with a DAG service and a queue of its own. Callers create DAGs 1 -> n -> 1 of {SMALL} nodes ({MANY} callers,
with 2 shards {FEW} as well) or {LARGE:,} nodes ({FEW}), one call each, and wait for the end of each before they
create the next; 4 connections dequeue up to 100 items by long poll and ack them at once. Counted from the first
create call to the last end. Peers (`--peers`) get many DAGs of {SMALL} nodes at once, in their own way (see
`fan`)."""


@dataclass(frozen=True)
class Cell:
    """DAGs of a size, by so many callers, on the site with so many DAG shards."""

    nodes: int
    shards: int
    callers: int

    @property
    def name(self) -> str:
        usual = MANY if self.nodes == SMALL else FEW
        callers = "" if self.callers == usual else f", {self.callers} callers"
        return f"{self.nodes:,} nodes, {self.shards} DAG shards{callers}"


@dataclass
class Found:
    """What one cell did."""

    dags_per_s: list[float] = field(default_factory=list)
    cost: Cost = field(default_factory=Cost)


async def run(bench: Bench) -> Outcome:
    """Measure both sizes on every site in turns."""
    outcome = Outcome("dags", METHOD)
    plan = bench.plan
    sizes = {SMALL: (fan(SMALL - 2), plan.sized(4_000, 32)), LARGE: (fan(LARGE - 2), plan.sized(16, 1))}
    shards = SHARDS if not plan.small else (2,)
    cells = [Cell(nodes, count, MANY if nodes == SMALL else FEW) for nodes in sizes for count in shards]
    cells.append(Cell(SMALL, 2, FEW))
    found = {cell: Found() for cell in cells}
    peer_rates: dict[str, list[float]] = {}
    bench.progress.begin("dags", plan.rounds * len(found))
    async with AsyncExitStack() as stack:
        sites = {
            count: await stack.enter_async_context(open_site(bench.stack, f"dags_{count}", dag_shards=count))
            for count in shards
        }
        peers = await open_peers(bench, DAGS, outcome, stack)
        for site in sites.values():
            await run_many(site, sizes[SMALL][0], 2 * MANY, MANY)
        for turn in range(plan.rounds):
            for cell in cells[:: 1 if turn % 2 == 0 else -1]:
                await _measure(bench.on(sites[cell.shards]), outcome, found[cell], cell, *sizes[cell.nodes])
                bench.progress.step(f"{cell.name}: {found[cell].dags_per_s[-1]:,.1f} DAGs/s")
            for name, running in list(peers.items()):
                few = plan.sized(20 if name.startswith("pg-boss") else 200, 4)
                answer = await running.answer(bench, outcome, do="fan", width=SMALL - 2, count=few)
                if answer is None:
                    del peers[name]
                    peer_rates.pop(name, None)
                    continue
                peer_rates.setdefault(name, []).append(few / answer["seconds"])
                bench.progress.note(f"{name}: {peer_rates[name][-1]:,.1f} DAGs/s of {SMALL} nodes")
    for cell, one in found.items():
        outcome.add(cell.name, "DAGs/s", one.dags_per_s, one.cost)
    for name, values in peer_rates.items():
        outcome.add(f"{SMALL} nodes, {name}", "DAGs/s", values)
    for cell in cells[:-1]:
        first = found[Cell(cell.nodes, shards[0], cell.callers)]
        if cell.shards != shards[0]:
            outcome.add(f"{cell.name} / 1", "ratio", ratios(found[cell].dags_per_s, first.dags_per_s).values)
    two = outcome.add("10 nodes, 2 DAG shards, create to end", "DAGs/s", found[Cell(SMALL, 2, MANY)].dags_per_s)
    outcome.require_at_least("DAGs of 10 nodes, 2 DAG shards", two, REQUIRED_DAGS_PER_S, "DAGs/s")
    return outcome


async def _measure(bench: Bench, outcome: Outcome, found: Found, cell: Cell, graph: Graph, dags: int) -> None:
    wal_from = await bench.stack.wal_bytes()
    before = bench.stack.meter.read()
    elapsed_s = await run_many(bench.stack, graph, dags, cell.callers)
    busy = Meter.between(before, bench.stack.meter.read())
    bench.watch(outcome, busy)
    found.cost.add(busy, dags * len(graph.keys), await bench.stack.wal_bytes() - wal_from)
    found.dags_per_s.append(dags / elapsed_s)


async def run_many(site: BenchStack, graph: Graph, dags: int, callers: int) -> float:
    """Run so many DAGs from create to end, some at a time; the seconds it took."""
    builders = [Builder(site.dag_url, TOPIC) for _ in range(callers)]
    left = iter(range(dags))

    async def build(builder: Builder) -> None:
        for _ in left:
            dag = await builder.create(graph)
            await builder.finish(dag, len(graph.keys))

    async with Consumers(site.queue_url, TOPIC):
        begun = time.perf_counter()
        await asyncio.gather(*(build(builder) for builder in builders))
        elapsed_s = time.perf_counter() - begun
    for builder in builders:
        builder.close()
    return elapsed_s
