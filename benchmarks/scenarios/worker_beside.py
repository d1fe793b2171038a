"""The SDK's worker beside the workers of other queues: one process of each works off what is there."""

from __future__ import annotations

from contextlib import AsyncExitStack

from benchmarks.bench import Bench
from benchmarks.outcome import Outcome
from benchmarks.peers.environment import PeerFailed
from benchmarks.peers.process import PLAIN_WORKERS, WORKERS, Running, open_peers
from benchmarks.scenarios.sdk import drained
from benchmarks.spread import ratios

OURS = "Headgate"
# How many jobs at once, whether handlers are plain functions, jobs, and the requirement: by which part of a peer's
# name it is compared, and with how much of its rate.
CELLS: tuple[tuple[int, bool, int, dict[str, float]], ...] = (
    (10, False, 8_000, {"BullMQ, fsync always": 1.0, "pgqueuer": 1.0}),
    (100, False, 12_000, {"BullMQ, fsync always": 1.5, "pgqueuer": 1.5, "graphile-worker": 1.0}),
    (8, True, 3_000, {"dramatiq, fsync every second": 1.0}),
)
# Peers that take long for a job get fewer.
FEWER = {"procrastinate": 1_000}

METHOD = """\
Jobs that do nothing are there before a worker starts; one process of each library's own worker, with so many jobs
at once, works them off, in turns. The rate is from the first job's run to the last one's. `Headgate` is a
`headgate.Worker` as in `worker`. The others (`benchmarks/peers/programs`) have their best settings but how many
jobs they take at once: slots of ours, `batch_size` of pgqueuer, `concurrency` of procrastinate, graphile-worker
and BullMQ, threads of dramatiq and of Celery's pool of threads. Postgres is the server that ours uses, durable.
BullMQ runs on a Valkey whose log is flushed before every answer, and on one that is flushed once a second;
dramatiq and Celery on one of the second kind, which loses up to a second of jobs in a crash. Peers need
`--peers`."""


async def run(bench: Bench) -> Outcome:
    """Measure every cell."""
    outcome = Outcome("worker_beside", METHOD)
    async with AsyncExitStack() as stack:
        loops = await open_peers(bench, WORKERS, outcome, stack)
        threads = await open_peers(bench, PLAIN_WORKERS, outcome, stack)
        turns = (len(loops) + 1) * 2 + len(threads) + 1
        bench.progress.begin("worker_beside", bench.plan.rounds * turns)
        for slots, plain, full, required in CELLS:
            jobs = bench.plan.sized(full, 200)
            kind = "threads" if plain else "at once"
            rates: dict[str, list[float]] = {OURS: []}
            for number in range(bench.plan.rounds):
                topic = f"beside-{number}-{slots}-{plain}"
                rates[OURS].append(
                    await drained(bench, outcome, topic, jobs=jobs, slots=slots, plain=plain, processes=1)
                )
                bench.progress.step(f"{slots} {kind}: {OURS}: {rates[OURS][-1]:,.0f} jobs/s")
                for name, running in (threads if plain else loops).items():
                    rate = await _drained_by(bench, outcome, running, min(jobs, FEWER.get(name, jobs)), slots)
                    rates.setdefault(name, []).append(rate)
                    bench.progress.step(f"{slots} {kind}: {name}: {rate:,.0f} jobs/s")
            for name, values in rates.items():
                outcome.add(f"{slots} {kind}: {name}", "jobs/s", values)
            for name, least in required.items():
                if name in rates:
                    found = ratios(rates[OURS], rates[name])
                    outcome.require_at_least(f"{slots} {kind}: ours / {name}", found, least)
    return outcome


async def _drained_by(bench: Bench, outcome: Outcome, running: Running, jobs: int, slots: int) -> float:
    await running.one(do="fill", count=jobs)
    [answer], _, _ = await running.ask(bench, outcome, do="drain", concurrency=slots)
    if answer["jobs"] != jobs:
        raise PeerFailed(f"{running.peer.name} did {answer['jobs']} of {jobs} jobs")
    first_s, last_s = answer["ended_s"]
    return jobs / max(last_s - first_s, 1e-3)
