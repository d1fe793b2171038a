"""What a process' own sampling costs the full cycle: as it is, far more often, and not at all, in turns."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager

from benchmarks.bench import Bench
from benchmarks.load import Http
from benchmarks.outcome import Outcome
from benchmarks.spread import Spread, spread
from benchmarks.stack import BenchStack, open_site
from benchmarks.turns import Cycles, Side, in_turns
from benchmarks.workers import Workers

BATCH, CLIENTS, TOPICS = 100, 4, 100
SHARE_MAX = 0.01
USUAL_S, OFTEN_S, NEVER_S = 5.0, 0.1, 60.0
TIMES = USUAL_S / OFTEN_S
USUAL, OFTEN, NEVER = (
    f"sampled every {USUAL_S:g} s",
    f"sampled every {OFTEN_S:g} s",
    "not sampled",
)

METHOD = f"""\
{CLIENTS} clients enqueue, dequeue and ack batches of {BATCH} of one topic, 4 shards, while {TOPICS} other topics
hold an item each. Three sites of the same server in turns: one whose queue process samples as it does by default
(the history and `/metrics`, every {USUAL_S:g} s), one that samples {TIMES:g} times as often, and one that does not
(a point of {NEVER_S:g} s, and no sample for `/metrics`). A share of a percent is less than the spread of a ratio;
so it is told from what {TIMES:g} times as much costs: a {TIMES:g}th of it."""


async def run(bench: Bench) -> Outcome:
    """Measure all three."""
    outcome = Outcome("sampling", METHOD)
    bench.progress.begin("sampling", 3 * bench.plan.rounds)
    sides: dict[str, Side] = {}
    async with AsyncExitStack() as stack:
        for number, (name, every_s) in enumerate(((USUAL, USUAL_S), (OFTEN, OFTEN_S), (NEVER, NEVER_S))):
            metrics_s = 1e6 if name == NEVER else every_s
            with _environment(HISTORY_POINT_S=every_s, METRICS_INTERVAL_S=metrics_s):
                site = await stack.enter_async_context(open_site(bench.stack, f"sampling_{number}"))
            await _fill(site)
            workers = await stack.enter_async_context(Workers(site, CLIENTS, BATCH, ["sampling"]))
            sides[name] = Cycles(workers.cycles(), site)
        found = await in_turns(bench, outcome, f"batch {BATCH}, {CLIENTS} clients", sides)
        for name in (USUAL, OFTEN):
            outcome.add(f"{name} / {NEVER}", "ratio", found[name].over(found[NEVER]).values)
        outcome.require_below(
            f"share of the full cycle that sampling takes, from {TIMES:g} times as much of it",
            _share(found[OFTEN].over(found[NEVER])),
            SHARE_MAX,
        )
    return outcome


def _share(often: Spread) -> Spread:
    """What sampling takes as it is: its time for an item, as a share of an item's."""
    return spread([max(0.0, 1 / ratio - 1) / TIMES for ratio in often.values])


async def _fill(site: BenchStack) -> None:
    http = Http(site.queue_url)
    try:
        await http.enqueue([{"topic": f"other-{number}", "payload": 0} for number in range(TOPICS)])
    finally:
        http.close()


@contextmanager
def _environment(**settings: float) -> Iterator[None]:
    """Queue processes that are started meanwhile have these settings."""
    given = {f"HEADGATE_QUEUE_{name}": f"{value:g}" for name, value in settings.items()}
    os.environ.update(given)
    try:
        yield
    finally:
        for name in given:
            del os.environ[name]
