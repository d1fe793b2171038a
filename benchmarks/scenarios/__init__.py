"""The scenarios by name. Each is a coroutine from a `Bench` to an `Outcome`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from benchmarks.bench import Bench
from benchmarks.outcome import Outcome
from benchmarks.scenarios import (
    backlog,
    beside,
    build,
    chain,
    cycle,
    dags,
    fairness,
    fan,
    large,
    latency,
    layered,
    managed,
    million,
    neighbours,
    overload,
    payload,
    peers,
    processes,
    sampling,
    schema,
    sdk,
    shapes,
    snapshot,
    spread_out,
    worker_beside,
    workflows,
)
from benchmarks.schema.variants import SHARDS


@dataclass(frozen=True)
class Scenario:
    """One scenario: what it shows, how it runs, and on what kind of stack."""

    name: str
    shows: str
    run: Callable[[Bench], Awaitable[Outcome]]
    # How long it takes at the usual size, in minutes: alone, and with all peers.
    minutes: float = 1.0
    minutes_with_peers: float | None = None
    # Rounds at the usual size, where five would take too long.
    rounds: int | None = None
    usual: bool = True
    with_services: bool = True
    queue_shards: int | None = None

    def takes(self, *, peers: bool) -> str:
        """How long it takes at the usual size, in words."""
        minutes = self.minutes_with_peers if peers and self.minutes_with_peers is not None else self.minutes
        return f"about {minutes:g} min"


_ALL = (
    Scenario(
        "worker", "jobs a second of the SDK's worker, by slots, kind of handler and processes", sdk.run_worker, 4
    ),
    Scenario(
        "steps",
        "the step of a chain by the SDK's worker, with outputs, quotas, priority, and servers of their own",
        sdk.run_steps,
        2,
    ),
    Scenario(
        "graphs",
        "DAGs of 1,000 and of 10 nodes from create to end by the SDK alone, with outputs, quotas, priority",
        sdk.run_graphs,
        2.5,
        rounds=3,
    ),
    Scenario("client", "one call of the SDK, and 64 at once, beside bare sockets", sdk.run_client, 1.5),
    Scenario(
        "worker_beside",
        "the SDK's worker beside those of pgqueuer, procrastinate, graphile-worker, BullMQ, dramatiq and Celery",
        worker_beside.run,
        minutes=0.5,
        minutes_with_peers=4,
        rounds=3,
    ),
    Scenario(
        "managed",
        "flows of ten jobs through `App`, with results; a result's time; what `App` and its logs cost a worker",
        managed.run_managed,
        minutes=1.5,
        minutes_with_peers=2,
        rounds=3,
    ),
    Scenario("cycle", "enqueue, dequeue and ack, against the floors", cycle.run, minutes=4, minutes_with_peers=7),
    Scenario("sampling", "what a process' sampling costs the full cycle, beside none", sampling.run, minutes=1.5),
    Scenario(
        "peers",
        "pgqueuer, procrastinate, graphile-worker and BullMQ beside ours",
        peers.run,
        minutes=1.5,
        minutes_with_peers=9,
        rounds=3,
    ),
    Scenario(
        "latency", "latency at 25 to 90 % of the capacity", latency.run, minutes=1, minutes_with_peers=7, rounds=3
    ),
    Scenario("backlog", "rate, p99 and memory with 0, 1 and 10 million items ready", backlog.run, minutes=6),
    Scenario("snapshot", "rate and p99 while an old snapshot is held", snapshot.run, minutes=10.5),
    Scenario("spread", "one topic, 10,000 topics, 1,000 namespaces", spread_out.run, minutes=2),
    Scenario("payload", "payloads of 100 bytes and 10 KB; log written per item", payload.run, minutes=2.5),
    Scenario(
        "overload",
        "how fast calls are refused, at twice what can be done and to a crowd, and what is done meanwhile",
        overload.run,
        minutes=2.5,
        rounds=3,
    ),
    Scenario("processes", "1 and 4 queue processes on 4 shards", processes.run),
    Scenario(
        "chain",
        "the time of a step in a chain of 100 nodes, beside the sum of its parts",
        chain.run,
        minutes=0.5,
        minutes_with_peers=1.5,
    ),
    Scenario(
        "fan", "nodes per second of 1 -> 998 -> 1, from create to end", fan.run, minutes=0.3, minutes_with_peers=2
    ),
    Scenario(
        "dags",
        "DAGs of 10 and of 1,000 nodes per second, by DAG shards",
        dags.run,
        minutes=2,
        minutes_with_peers=3,
        rounds=3,
    ),
    Scenario("layered", "node rate at 1,000 and at 100,000 nodes", layered.run, minutes=2.5, rounds=3),
    Scenario("build", "edges added in random order by four builders, at 1,000 and 20,000 nodes", build.run),
    Scenario("shapes", "graphs of real programs, from create to end", shapes.run, rounds=3),
    Scenario(
        "fairness",
        "what fairness keys and minimum shares do, by count, and what a key costs",
        fairness.run,
        minutes=4,
    ),
    Scenario(
        "neighbours", "the age of items beside a namespace that sends a hundred times as many", neighbours.run
    ),
    Scenario(
        "workflows",
        "steps, calls and signals of workflows, many at once, long histories, parked runs, timers",
        workflows.run,
        minutes=2.5,
        minutes_with_peers=3.5,
        rounds=3,
    ),
    Scenario("large", "64,000 nodes, 257,000 edges: built in random order, run, checked", large.run),
    Scenario(
        "beside",
        "the step of a small DAG alone, and beside one of 100,000 nodes",
        beside.run,
        minutes=1.5,
        rounds=3,
    ),
    Scenario(
        "million",
        "a million nodes, built and run (not among the usual ones)",
        million.run,
        usual=False,
        minutes=15,
    ),
    Scenario(
        "schema",
        "the queue's tables against alternatives, direct SQL, at backlogs (not among the usual ones)",
        schema.run,
        usual=False,
        with_services=False,
        queue_shards=SHARDS,
        minutes=12,
    ),
)
SCENARIOS = {scenario.name: scenario for scenario in _ALL}
