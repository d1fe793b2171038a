"""`python -m benchmarks.against OTHER`: this checkout and another one, say of the state before, driven in turns.

Each has a stack of its own, run by its own `.venv` (`make setup` there first), and this checkout's clients drive
both: many short slices, in pairs whose order alternates. A pair gives a ratio of rates, and one of the processor's
time an item. Two stacks of the same code differ by their start, so that a start is one value: ask for several.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import uvloop

from benchmarks.bench import FULL, Bench
from benchmarks.graphs import Graph, fan, layered
from benchmarks.load import drive
from benchmarks.machine import Meter, describe
from benchmarks.progress import Progress
from benchmarks.runs import Builder, Consumers
from benchmarks.scenarios.chain import run_chain
from benchmarks.scenarios.cycle import RAW, Cell, Clients
from benchmarks.scenarios.fan import run_once
from benchmarks.scenarios.layered import run_held
from benchmarks.stack import BenchStack

HERE = Path(__file__).parents[1]
KINDS = (
    *("cycle-100-4", "cycle-100-16", "cycle-10-4", "cycle-1-4", "cycle-1-64"),
    *("chain", "fan", "layered"),
)
CHAIN_NODES = 60
GRAPH = layered(1_000, layer=50, edges_per_node=3, seed=1)
WIDTH = 998
# What runs in the other checkout, too: it uses nothing but what every state of the benchmarks has had.
HOLD = """\
import asyncio, json, sys
from benchmarks.stack import open_stack

async def hold():
    async with open_stack() as stack:
        print(json.dumps([stack.queue_url, stack.dag_url, stack.queue_shards, stack.dag_shards]), flush=True)
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(hold())
"""

# One slice: how many items or nodes, and the seconds that they took.
Sliced = tuple[int, float]
Take = Callable[[], Awaitable[Sliced]]


@dataclass
class Pairs:
    """Ratios of this checkout to the other, one a pair."""

    rates: list[float] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)

    def add(self, ours: tuple[float, float], other: tuple[float, float]) -> None:
        """Rate and processor seconds an item, of both."""
        self.rates.append(ours[0] / other[0])
        self.costs.append(ours[1] / other[1])

    def shown(self) -> str:
        """The mean of the rates' ratios with what it is known to (95 %), and that of the costs."""
        rate, known = mean(self.rates)
        return f"{rate:.3f} +-{known:.3f}, processor an item {mean(self.costs)[0]:.3f}"


def mean(ratios: Sequence[float]) -> tuple[float, float]:
    """The geometric mean of some ratios, and half of its interval of 95 %."""
    logs = [math.log(ratio) for ratio in ratios]
    middle = math.exp(statistics.fmean(logs))
    apart = statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.inf
    return middle, 1.96 * apart * middle


@asynccontextmanager
async def held(checkout: Path) -> AsyncIterator[BenchStack]:
    """A stack of this checkout's code, in a process tree of its own."""
    process = await asyncio.create_subprocess_exec(
        str(checkout / ".venv/bin/python"),
        *("-c", HOLD),
        cwd=checkout,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        line = await process.stdout.readline()
        if not line:
            raise SystemExit(f"against: no stack came up in {checkout}; is it set up (`make setup` there)?")
        yield BenchStack(*json.loads(line), Meter({"stack": process.pid}), {})
    finally:
        process.stdin.close()
        await process.wait()


class Driven:
    """What drives one stack, by kind."""

    def __init__(self, stack: BenchStack, slice_s: float, opened: AsyncExitStack) -> None:
        self.stack = stack
        self._slice_s = slice_s
        self._opened = opened

    async def open(self, kind: str) -> Take:
        """A slice of this kind, again and again."""
        shape, *numbers = kind.split("-")
        if shape == "cycle":
            batch, clients = map(int, numbers)
            made = Clients(self.stack.queue_url, Cell(batch, clients, ()))
            cycles = (await self._opened.enter_async_context(made)).sides()[RAW]
            return lambda: self._cycle(cycles)
        if shape == "chain":
            bench = Bench(self.stack, FULL, Progress())
            return lambda: self._chain(bench)
        await self._opened.enter_async_context(Consumers(self.stack.queue_url, shape))
        builder = Builder(self.stack.dag_url, shape)
        self._opened.callback(builder.close)
        if shape == "fan":
            return lambda: self._fan(builder, fan(WIDTH))
        return lambda: self._layered(builder)

    async def _cycle(self, cycles: Sequence[Callable[[], Awaitable[int]]]) -> Sliced:
        done = await drive(cycles, self._slice_s)
        return done.items, done.elapsed_s

    async def _chain(self, bench: Bench) -> Sliced:
        steps_ms = await run_chain(bench, CHAIN_NODES)
        return len(steps_ms), sum(steps_ms) / 1000

    async def _fan(self, builder: Builder, graph: Graph) -> Sliced:
        return len(graph.keys), await run_once(builder, graph)

    async def _layered(self, builder: Builder) -> Sliced:
        elapsed_s, _ = await run_held(builder, GRAPH)
        return len(GRAPH.keys), elapsed_s


async def _slice(stack: BenchStack, take: Take) -> tuple[float, float]:
    before = stack.meter.read()
    items, elapsed_s = await take()
    busy = Meter.between(before, stack.meter.read())
    return items / elapsed_s, max(busy.seconds("stack"), 1e-6) / max(items, 1)


async def _start(options: argparse.Namespace, number: int, progress: Progress) -> dict[str, Pairs]:
    """Both stacks, started afresh, and all kinds on them."""
    sides = [HERE, options.other.resolve()]
    if number % 2:
        sides.reverse()
    found: dict[str, Pairs] = {}
    async with AsyncExitStack() as opened:
        stacks = {side: await opened.enter_async_context(held(side)) for side in sides}
        ours, other = (Driven(stacks[side], options.slice_s, opened) for side in (HERE, options.other.resolve()))
        for kind in options.kinds:
            takes = {driven: await driven.open(kind) for driven in (ours, other)}
            for take in takes.values():
                until_s = time.monotonic() + options.warm_s
                while time.monotonic() < until_s:
                    await take()
            pairs = found[kind] = Pairs()
            for pair in range(options.pairs):
                order = (ours, other) if pair % 2 else (other, ours)
                took = {driven: await _slice(driven.stack, takes[driven]) for driven in order}
                pairs.add(took[ours], took[other])
            progress.step(f"{kind}: {pairs.shown()}")
    return found


async def _run(options: argparse.Namespace) -> None:
    progress = Progress()
    progress.begin("against", options.starts * len(options.kinds))
    starts = [await _start(options, number, progress) for number in range(options.starts)]
    rows = {}
    for kind in options.kinds:
        rates = [mean(start[kind].rates)[0] for start in starts]
        costs = [mean(start[kind].costs)[0] for start in starts]
        rows[kind] = {"rates": rates, "costs": costs, "pairs": [start[kind].rates for start in starts]}
        by_start = " ".join(f"{rate:.3f}" for rate in rates)
        print(f"{kind:14} {mean(rates)[0]:.3f}   processor an item {mean(costs)[0]:.3f}   by start: {by_start}")
    if options.json is not None:
        options.json.write_text(json.dumps({"machine": describe(), "kinds": rows}, indent=1) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print a row a kind: this checkout over the other, above 1 where this one is faster."""
    about = __doc__.partition("\n\n")[2]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.against", description=about)
    parser.add_argument("other", type=Path, help="a checkout with a `.venv` of its own")
    parser.add_argument(
        "--kinds", nargs="+", default=KINDS, choices=KINDS, metavar="KIND", help=f"of {', '.join(KINDS)}"
    )
    parser.add_argument("--starts", type=int, default=4, help="both stacks afresh, so many times (4)")
    parser.add_argument("--pairs", type=int, default=40, help="pairs of slices a kind and start (40)")
    parser.add_argument("--slice-s", type=float, default=0.3, help="seconds a slice of `cycle` (0.3)")
    parser.add_argument("--warm-s", type=float, default=2.0, help="seconds of each side before a kind's pairs (2)")
    parser.add_argument("--json", type=Path, help="write every value there")
    uvloop.run(_run(parser.parse_args(arguments)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
