"""Workflows: steps, calls, signals, many at once, long histories, parked runs, timers; beside DAGs and peers."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from benchmarks import replay
from benchmarks.bench import Bench
from benchmarks.machine import Meter
from benchmarks.outcome import Outcome
from benchmarks.peers.environment import PeerFailed
from benchmarks.peers.process import DBOS, RESTATE, WORKFLOWS, Running, open_peers
from benchmarks.spread import percentile, ratios, spread
from headgate.testing import simulate

ROOT = Path(__file__).parents[2]
COUNT, CROWD_RUNS, CROWD_CALLS, WIDTH = 100, 64, 20, 1_000
LONG_EVENTS, PARKED_RUNS, PARKED_SIGNALS, TIMERS = 50_000, 2_000, 20, 1_000
DBOS_COUNT = 20
CALL_RATIO, TAIL_RATIO, SIGNAL_RATIO, CROWD_RATIO = 3.0, 4.0, 2.5, 0.5
GATHER_RATIO, GATHER_TURNS, LONG_RATIO, PARKED_RATIO = 2.0, 200, 1.2, 1.1
DBOS_STEP_RATIO, DBOS_CHILD_RATIO = 0.8, 0.2
REPLAY_RATE, REPLAY_RATIO, TIMER_LATE_MS = 30_000, 1.3, 50.0
NOTES = {RESTATE.name: "one node; its log on the disk before it answers"}

# By peer and by what it stands beside of ours: what it is of theirs, and its milliseconds in every round.
Steps = dict[str, dict[str, tuple[str, list[list[float]]]]]

METHOD = f"""\
One process holds a `headgate.Worker` of workflows and of the task that they call, and the client. `wf.run` and
`wf.call`: {COUNT} one after another in one run; a step is the time from one start of the step's function, or
of the task's handler, to the next one's. `chain`: a DAG of {COUNT} nodes by the same worker, measured alike. A
signal: from the client's call, to a run that is awake, or to one that is parked ({PARKED_SIGNALS} of them), to
the code that received it. A crowd: {CROWD_RUNS} runs of {CROWD_CALLS} calls each, and {CROWD_RUNS} chains of
{CROWD_CALLS} nodes, from the first start to the last end. `gather` of {WIDTH:,} calls in one run, and a DAG of
{WIDTH:,} nodes between two, from the start to the end. A call in a run of {LONG_EVENTS:,} events, beside one
in a short run. Memory of the services before and after {PARKED_RUNS:,} runs were started and parked.
{TIMERS:,} timers of a graph, due over two seconds, and all at once: from the time that each was due to its
end, by the shard's clock. Replay: calls, one after another and all at once, of 1,000 and of 100,000 events,
processor time of this process. DBOS (`--peers`): {COUNT} steps in one workflow, and {DBOS_COUNT} child
workflows through its queue. Restate (`--peers`), a server of one node that syncs its log: {COUNT} of `ctx.run`
in one workflow, and {COUNT} calls of a handler of another service. The Durable Task SDK is left out: its one
backend that needs no server from elsewhere keeps all in memory, for tests."""


async def run(bench: Bench) -> Outcome:
    """Measure everything."""
    outcome = Outcome("workflows", METHOD)
    plan = bench.plan
    count, parked = plan.sized(COUNT, 10), plan.sized(PARKED_SIGNALS, 3)
    bench.progress.begin("workflows", plan.rounds * (3 + bench.peers * len(WORKFLOWS)) + 5)
    rounds: dict[str, list[Any]] = {}
    theirs: Steps = {}
    async with AsyncExitStack() as stack:
        peers = await open_peers(bench, WORKFLOWS, outcome, stack)
        for number in range(plan.rounds):
            found = await _ask(bench, outcome, do="steps", topic=f"steps-{number}", count=count, parked=parked)
            shown = ", ".join(f"{name.removesuffix('_ms')} {percentile(found[name], 0.5):.2f}" for name in found)
            bench.progress.step(f"p50, ms: {shown}")
            crowd = {"runs": plan.sized(CROWD_RUNS, 4), "count": plan.sized(CROWD_CALLS, 4)}
            found |= await _ask(bench, outcome, do="crowd", topic=f"crowd-{number}", **crowd)
            bench.progress.step(f"calls/s {found['calls_s']:,.0f}, nodes/s {found['nodes_s']:,.0f}")
            width = plan.sized(WIDTH, 50)
            found |= await _ask(bench, outcome, do="gather", topic=f"gather-{number}", count=width)
            bench.progress.step(f"gather {found['gather_s']:.2f} s, graph {found['graph_s']:.2f} s")
            for name, value in found.items():
                rounds.setdefault(name, []).append(value)
            await _measure(bench, outcome, peers, count, theirs)
    _report(outcome, rounds)
    _compare(outcome, rounds, theirs)
    await _grown(bench, outcome)
    await _timers(bench, outcome)
    await _parked(bench, outcome)
    _replayed(bench, outcome)
    return outcome


def _report(outcome: Outcome, rounds: dict[str, list[Any]]) -> None:
    p50s: dict[str, list[float]] = {}
    for name, shown in (
        ("run", "wf.run"),
        ("call", "wf.call"),
        ("chain", "chain"),
        ("signal", "signal to code"),
        ("awake_signal", "signal to code that is awake"),
    ):
        p50s[name] = [percentile(part, 0.5) for part in rounds[f"{name}_ms"]]
        outcome.add(f"{shown}: p50", "ms", p50s[name])
        outcome.add(f"{shown}: p99", "ms", [percentile(part, 0.99) for part in rounds[f"{name}_ms"]])
    tails = [percentile(part, 0.99) for part in rounds["call_ms"]]
    outcome.add("crowd of runs", "calls/s", rounds["calls_s"])
    outcome.add("crowd of chains", "nodes/s", rounds["nodes_s"])
    outcome.add("gather", "s", rounds["gather_s"])
    outcome.add("graph of as many nodes", "s", rounds["graph_s"])
    outcome.add("turns of a gather", "turns", rounds["turns"])
    outcome.require_below("wf.call / chain step, p50", ratios(p50s["call"], p50s["chain"]), CALL_RATIO)
    outcome.require_below("wf.call, p99 / p50", ratios(tails, p50s["call"]), TAIL_RATIO)
    outcome.require_below("signal to code / chain step, p50", ratios(p50s["signal"], p50s["chain"]), SIGNAL_RATIO)
    crowds = ratios(rounds["calls_s"], rounds["nodes_s"])
    outcome.require_at_least("crowd, calls/s / nodes/s", crowds, CROWD_RATIO)
    outcome.require_below("gather / the same DAG", ratios(rounds["gather_s"], rounds["graph_s"]), GATHER_RATIO)
    outcome.require_below("turns of a gather", spread(rounds["turns"]), GATHER_TURNS + 1, "turns")


def _compare(outcome: Outcome, rounds: dict[str, list[Any]], peers: Steps) -> None:
    bounds = {"run": DBOS_STEP_RATIO, "call": DBOS_CHILD_RATIO}
    for peer, kinds in peers.items():
        who = peer.partition(",")[0]
        for ours, (theirs, steps_ms) in kinds.items():
            p50s = [percentile(part, 0.5) for part in steps_ms]
            mine = [percentile(part, 0.5) for part in rounds[f"{ours}_ms"]]
            compared, name = ratios(mine, p50s), f"wf.{ours} / {who}'s {theirs}, p50"
            outcome.add(f"{peer}, {theirs}: p50", "ms", p50s, NOTES.get(peer, ""))
            if peer == DBOS.name:
                outcome.require_below(name, compared, bounds[ours])
            else:
                outcome.add(name, "ratio", compared.values)


async def _measure(bench: Bench, outcome: Outcome, peers: dict[str, Running], count: int, found: Steps) -> None:
    """One round of every peer; one that fails is left out, and so is what it measured before."""
    for name, peer in list(peers.items()):
        children = ("child through its queue", min(count, DBOS_COUNT)) if name == DBOS.name else ("call", count)
        for ours, (theirs, nodes) in (("run", ("step", count)), ("call", children)):
            answer = await peer.answer(bench, outcome, do="chain", nodes=nodes, queued=ours == "call")
            if answer is None:
                del peers[name]
                found.pop(name, None)
                break
            found.setdefault(name, {}).setdefault(ours, (theirs, []))[1].append(answer["steps_ms"])
            bench.progress.note(f"{name}, {theirs}: p50 {percentile(answer['steps_ms'], 0.5):.2f} ms")
        bench.progress.step(name)


async def _grown(bench: Bench, outcome: Outcome) -> None:
    events = bench.plan.sized(LONG_EVENTS, 300)
    found = await _ask(bench, outcome, do="grown", topic="grown", count=bench.plan.sized(COUNT, 10), events=events)
    long, short = (percentile(found[name], 0.5) for name in ("long_ms", "short_ms"))
    outcome.add(f"wf.call in a run of {events:,} events: p50", "ms", [long])
    outcome.require_below(
        f"wf.call in a run of {events:,} events / in a short one", ratios([long], [short]), LONG_RATIO
    )
    bench.progress.step(f"a call after {events:,} events: {long:.2f} ms, in a short run {short:.2f} ms")


async def _timers(bench: Bench, outcome: Outcome) -> None:
    found = await _ask(bench, outcome, do="timers", topic="timers", count=bench.plan.sized(TIMERS, 50))
    for name, shown in (("spread_ms", "over two seconds"), ("at_once_ms", "at once")):
        outcome.add(f"timers due {shown}: late, p50", "ms", [percentile(found[name], 0.5)])
        outcome.add(f"timers due {shown}: late, p99", "ms", [percentile(found[name], 0.99)])
    late = spread([percentile(found["spread_ms"], 0.99)])
    outcome.require_below("timers due over two seconds: late, p99", late, TIMER_LATE_MS, "ms")
    bench.progress.step(f"timers late: p99 {late.median:.1f} ms")


async def _parked(bench: Bench, outcome: Outcome) -> None:
    runs = bench.plan.sized(PARKED_RUNS, 20)
    await _ask(bench, outcome, do="parked", topic="parked", runs=50)
    before = {group: bench.stack.meter.rss_mib(group) for group in ("queue", "dag")}
    await _ask(bench, outcome, do="parked", topic="parked", runs=runs)
    after = {group: bench.stack.meter.rss_mib(group) for group in ("queue", "dag")}
    for group, mib in after.items():
        outcome.add(f"memory of the {group} service with {runs:,} parked runs", "MiB", [mib])
    grown = spread([sum(after.values()) / sum(before.values())])
    outcome.require_below(f"memory of the services with {runs:,} parked runs / before", grown, PARKED_RATIO)
    bench.progress.step(f"memory with {runs:,} parked runs: {grown.median:.3f} of before")


def _replayed(bench: Bench, outcome: Outcome) -> None:
    for function, shown in ((replay.chain, "one after another"), (replay.wide, "all at once")):
        few, many = (_events_s(function, events) for events in (1_000, bench.plan.sized(100_000, 4_000)))
        outcome.require_at_least(f"replay of calls {shown}", spread([many]), REPLAY_RATE, "events/s")
        name = f"replay of calls {shown}, per event of many / of 1,000"
        outcome.require_below(name, ratios([few], [many]), REPLAY_RATIO)
        bench.progress.step(f"replay of calls {shown}: {many:,.0f} events/s, of 1,000 {few:,.0f}")


def _events_s(function: Callable[..., Any], events: int) -> float:
    lines = list(simulate(function, events // 2).unguarded().run().run.lines())
    gc.collect()
    gc.freeze()
    try:
        return len(lines) / min(replay.replayed_s(function, lines) for _ in range(3))
    finally:
        gc.unfreeze()


async def _ask(bench: Bench, outcome: Outcome, **asked: Any) -> dict[str, Any]:
    """What a process of its own answers."""
    asked |= {"queue_url": bench.stack.queue_url, "dag_url": bench.stack.dag_url}
    program = (sys.executable, "-m", "benchmarks.workflow_program", json.dumps(asked))
    before = bench.stack.meter.read()
    process = await asyncio.create_subprocess_exec(*program, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    try:
        said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    bench.watch(outcome, Meter.between(before, bench.stack.meter.read()))
    if process.returncode:
        raise PeerFailed(f"the worker of workflows ended with {process.returncode}")
    found: dict[str, Any] = json.loads(said)
    return found
