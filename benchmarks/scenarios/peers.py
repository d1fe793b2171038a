"""Queues that are services or worker libraries, at their own best settings, beside ours and both floors."""

from __future__ import annotations

from contextlib import AsyncExitStack

from benchmarks.backlog import fill, settle
from benchmarks.bench import Bench
from benchmarks.floors import Reference
from benchmarks.outcome import Outcome
from benchmarks.peers import open_pgmq
from benchmarks.peers.process import QUEUES, PeerSide, Running, open_peers
from benchmarks.stack import open_site
from benchmarks.turns import Cycles, Measured, Side, in_turns
from benchmarks.workers import Workers

OURS, REFERENCE, PGMQ = "Headgate, through HTTP", "fixed reference", "pgmq, bare SQL"
TOPIC = "peers"
CELLS = ((100, 4), (1, 64))
BACKLOG = 100_000

METHOD = f"""\
The full life of a job, from being added to being finished, on one server and in turns. Ours, the fixed
reference and pgmq run as in `cycle`. A peer is two or one processes of its own program
(`benchmarks/peers/programs`, where its settings are said), each adding jobs in batches by as many producers as
ours has clients, as long as few are unfinished, and working on them with its own worker; jobs that its workers
began and finished within the slice are counted. A peer's workers start before a slice and stop after it;
between slices its processes stand still. BullMQ runs on the Valkey of this project, which speaks Redis: with
the settings Redis comes with (a crash loses minutes), with a log that is flushed once a second, and with one
that is flushed before every answer, which is what all others do here. The last cell has {BACKLOG:,} ready jobs
in the way. Peers need `--peers`; those that could not be installed are named in the JSON."""


async def run(bench: Bench) -> Outcome:
    """Measure every cell."""
    outcome = Outcome("peers", METHOD)
    plan = bench.plan
    backlog = plan.sized(BACKLOG, 500)
    async with AsyncExitStack() as stack:
        reference = await stack.enter_async_context(await Reference.open(bench.stack))
        pgmq = await stack.enter_async_context(open_pgmq(bench))
        peers = await open_peers(bench, QUEUES, outcome, stack)
        sides_count = 2 + (pgmq is not None) + len(peers)
        bench.progress.begin("peers", plan.rounds * sides_count * (len(CELLS) + 1))
        for batch, clients in CELLS:
            workers = await stack.enter_async_context(Workers(bench.stack, clients, batch, [TOPIC]))
            sides: dict[str, Side] = {OURS: Cycles(workers.cycles()), REFERENCE: Cycles(reference.cycles(batch))}
            if pgmq is not None:
                sides[PGMQ] = Cycles(pgmq.cycles(batch))
            sides |= {name: PeerSide(running, batch, clients) for name, running in peers.items()}
            name = f"batch {batch}, {clients} clients"
            found = await in_turns(bench, outcome, name, sides)
            _compare(outcome, name, found, peers)
        bench.progress.note(f"adding {backlog:,} jobs to everyone")
        site = await stack.enter_async_context(open_site(bench.stack, "peers_backlog"))
        await fill(site, [TOPIC], backlog)
        await settle(site)
        await reference.fill(backlog)
        workers = await stack.enter_async_context(Workers(site, 4, 100, [TOPIC]))
        sides = {OURS: Cycles(workers.cycles(), site), REFERENCE: Cycles(reference.cycles(100))}
        if pgmq is not None:
            await pgmq.fill(backlog)
            sides[PGMQ] = Cycles(pgmq.cycles(100))
        for name, running in peers.items():
            await running.one(do="fill", count=backlog)
            sides[name] = PeerSide(running, 100, 4, backlog=True)
        name = f"batch 100, 4 clients, {backlog:,} in the way"
        _compare(outcome, name, await in_turns(bench, outcome, name, sides), peers)
    return outcome


def _compare(outcome: Outcome, name: str, found: dict[str, Measured], peers: dict[str, Running]) -> None:
    ours = found[OURS]
    for other, measured in found.items():
        if other != OURS:
            outcome.add(f"{name}: ours / {other}", "ratio", ours.over(measured).values)
    running = [ours.over(found[peer]) for peer in peers if peer in found]
    if running and "way" not in name:
        worst = min(running, key=lambda ratio: ratio.median)
        outcome.require_at_least(f"{name}: ours / the fastest service or worker library", worst, 1.0)
    elif not peers:
        outcome.details["peers"] = "not asked for"
