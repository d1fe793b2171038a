"""One queue process on 4 shards, against 4 processes on 4 shards, on the same cores."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from benchmarks.bench import Bench
from benchmarks.load import Slice
from benchmarks.machine import Busy
from benchmarks.outcome import Outcome
from benchmarks.stack import BenchStack, open_site
from benchmarks.turns import Cycles, Side, in_turns
from benchmarks.workers import Workers

BATCH, CLIENTS, TOPICS = 100, 4, 16
ONE, FOUR = "1 process, 4 shards", "4 processes, 4 shards"
REQUIRED_RATIO = 0.9

METHOD = f"""\
Two sites on the same server, each a database with 4 shards; one has one queue process, the other four, and
client i talks to process i. {CLIENTS} clients enqueue, dequeue and ack batches of {BATCH} over {TOPICS} topics
in turn. `transactions` are those that the site's database committed or rolled back meanwhile, housekeeping among
them, over the batches acked: a request that touches only the shards it must needs one each for enqueue, claim and
ack, and now and then one to look for keys."""


@dataclass(frozen=True)
class _Counted:
    """A side whose database's transactions are counted while it is measured: it has some when it idles, too."""

    side: Cycles
    site: BenchStack
    workers: Workers
    per_batch: list[float] = field(default_factory=list)

    async def warm_up(self, bench: Bench) -> None:
        """Let caches, connections and plans settle."""
        await self.side.warm_up(bench)

    async def measure(self, bench: Bench, outcome: Outcome) -> tuple[Slice, Busy]:
        """One slice, and who was busy in it."""
        before, batches = await self.site.transactions(), self.workers.batches
        measured = await self.side.measure(bench, outcome)
        used = await self.site.transactions() - before
        self.per_batch.append(used / max(1, self.workers.batches - batches))
        return measured


async def run(bench: Bench) -> Outcome:
    """Measure both sites in turns."""
    outcome = Outcome("processes", METHOD)
    bench.progress.begin("processes", bench.plan.rounds * 2)
    topics = [f"processes-{i}" for i in range(TOPICS)]
    async with AsyncExitStack() as stack:
        sites = {
            ONE: await stack.enter_async_context(open_site(bench.stack, "processes_one")),
            FOUR: await stack.enter_async_context(open_site(bench.stack, "processes_four", queue_processes=4)),
        }
        workers = {
            name: await stack.enter_async_context(Workers(site, CLIENTS, BATCH, topics))
            for name, site in sites.items()
        }
        sides = {
            name: _Counted(Cycles(workers[name].cycles(), site), site, workers[name])
            for name, site in sites.items()
        }
        found = await in_turns(bench, outcome, "batch 100", dict[str, Side](sides), workers=workers)
        for name, side in sides.items():
            outcome.add(f"{name}: transactions a batch", "count", side.per_batch)
    ratio = found[FOUR].over(found[ONE])
    outcome.require_at_least("4 processes on 4 shards / 1 process, same cores", ratio, REQUIRED_RATIO)
    return outcome
