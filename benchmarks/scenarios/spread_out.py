"""The same work in one topic, over 10,000 topics, over 1,000 namespaces."""

from __future__ import annotations

from contextlib import AsyncExitStack

from benchmarks.bench import Bench
from benchmarks.outcome import Outcome
from benchmarks.turns import Cycles, Side, in_turns
from benchmarks.workers import Workers

BATCH, CLIENTS = 100, 4
TOPICS, NAMESPACES = 10_000, 1_000
ONE, MANY_TOPICS, MANY_NAMESPACES = "one topic", "10,000 topics in turn", "1,000 namespaces in turn"

METHOD = f"""\
{CLIENTS} clients enqueue a batch of {BATCH} into a topic, dequeue {BATCH} from it and ack them. The next batch
goes to the next of {TOPICS:,} topics, or to the same topic of the next of {NAMESPACES:,} namespaces; every one
has been used before the first slice. Memory is the resident memory of the queue process at the end."""


async def run(bench: Bench) -> Outcome:
    """Measure all three in turns."""
    outcome = Outcome("spread", METHOD)
    plan = bench.plan
    topics = [f"spread-{i}" for i in range(plan.sized(TOPICS, 40))]
    namespaces = [f"spread-{i}" for i in range(plan.sized(NAMESPACES, 20))]
    bench.progress.begin("spread", plan.rounds * 3)
    async with AsyncExitStack() as stack:
        workers = {
            ONE: Workers(bench.stack, CLIENTS, BATCH, ["spread"]),
            MANY_TOPICS: Workers(bench.stack, CLIENTS, BATCH, topics),
            MANY_NAMESPACES: Workers(bench.stack, CLIENTS, BATCH, ["spread"], namespaces),
        }
        for one in workers.values():
            await stack.enter_async_context(one)
        bench.progress.note(f"using {len(topics):,} topics and {len(namespaces):,} namespaces once")
        for name in (MANY_TOPICS, MANY_NAMESPACES):
            await workers[name].visit()
        sides: dict[str, Side] = {name: Cycles(one.cycles()) for name, one in workers.items()}
        found = await in_turns(bench, outcome, "batch 100", sides, workers=workers)
    for name in (MANY_TOPICS, MANY_NAMESPACES):
        outcome.add(f"{name} / one topic", "ratio", found[name].over(found[ONE]).values)
    outcome.add("queue process", "MiB", [bench.stack.meter.rss_mib("queue")])
    return outcome
