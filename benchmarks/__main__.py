"""`python -m benchmarks`: measure, write the results down, say whether what is required is met."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
import tempfile
import traceback
from collections.abc import Coroutine, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import uvloop

from benchmarks import report
from benchmarks.bench import FULL, QUICK, Bench, Plan
from benchmarks.machine import describe
from benchmarks.outcome import to_json
from benchmarks.peers import PeerFailed
from benchmarks.progress import Progress
from benchmarks.scenarios import SCENARIOS, Scenario
from benchmarks.stack import open_stack
from services.local.errors import LocalError
from shared.clock import SystemClock

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "benchmarks.md"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line names; 0 when every requirement is met."""
    options = _parser().parse_args(arguments)
    if options.page:
        report.update_page(PAGE, options.results or HERE / "results")
        return 0
    plan = QUICK if options.quick else FULL
    plan = replace(
        plan,
        slice_s=options.slice_s or plan.slice_s,
        backlogs=tuple(options.backlog) if options.backlog else plan.backlogs,
        snapshot_s=options.snapshot_s or plan.snapshot_s,
    )
    chosen = [SCENARIOS[name] for name in options.only] if options.only else _usual()
    elsewhere = options.results or (
        Path(tempfile.mkdtemp(prefix="headgate-bench-results-")) if options.quick else None
    )
    try:
        return uvloop.run(_until_signal(_run(chosen, plan, elsewhere, options)))
    except (LocalError, PeerFailed) as error:
        print(f"benchmarks: {error}", file=sys.stderr)
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("benchmarks: stopped; finished scenarios are written down", file=sys.stderr)
    return 1


def _usual() -> list[Scenario]:
    return [scenario for scenario in SCENARIOS.values() if scenario.usual]


async def _until_signal(work: Coroutine[Any, Any, int]) -> int:
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, task.cancel)
    return await task


async def _run(chosen: Sequence[Scenario], plan: Plan, elsewhere: Path | None, options: argparse.Namespace) -> int:
    """Measure and write down, in the repository unless elsewhere; 1 when a requirement is not met."""
    results = elsewhere or HERE / "results"
    progress = Progress()
    machine = describe()
    unmet = 0
    for scenario in chosen:
        rounds = options.rounds or (plan.rounds if plan.small else scenario.rounds or plan.rounds)
        sized = replace(plan, rounds=rounds)
        takes = "a minute at most" if plan.small else scenario.takes(peers=options.peers)
        progress.note(f"{scenario.name} ({takes}): {scenario.shows}")
        try:
            async with open_stack(
                with_services=scenario.with_services, queue_shards=scenario.queue_shards
            ) as stack:
                outcome = await scenario.run(Bench(stack, sized, progress, options.peers, options.pgmq_sql))
                described = {**machine, "postgres": dict(stack.postgres)}
        except Exception:
            traceback.print_exc()
            progress.note(f"{scenario.name} failed: nothing is written down")
            unmet += 1
            continue
        if plan.small:
            outcome.requirements.clear()  # they are about sizes that a quick run does not have
        run = {"at": report.iso(SystemClock().wall_s()), **asdict(sized)}
        path = report.save(results, to_json(outcome, described, run))
        print(report.text(outcome))
        progress.note(f"written to {path}")
        unmet += sum(not need.met for need in outcome.requirements)
        if elsewhere is None:
            report.update_page(PAGE, results)
    return 1 if unmet else 0


def _parser() -> argparse.ArgumentParser:
    names = "\n".join(
        f"  {name:<14} {scenario.shows} ({scenario.takes(peers=False)})" for name, scenario in SCENARIOS.items()
    )
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure Headgate on this machine, on a durable stack of its own that is deleted afterwards.",
        epilog=f"scenarios:\n{names}\n\n{_EPILOG}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--only", action="append", choices=SCENARIOS, metavar="NAME", help="run this scenario (may be repeated)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="a minute instead of many: shows that it runs, no more"
    )
    parser.add_argument(
        "--peers", action="store_true", help="run peers too, each installed once into an environment of its own"
    )
    parser.add_argument("--pgmq-sql", type=Path, metavar="FILE", help="run pgmq, from this SQL file")
    parser.add_argument(
        "--snapshot-s", type=float, metavar="S", help=f"for snapshot: how long it is held ({FULL.snapshot_s:g})"
    )
    parser.add_argument("--page", action="store_true", help="only draw docs/benchmarks.md again from the JSON")
    parser.add_argument(
        "--rounds",
        type=int,
        metavar="N",
        help=f"rounds of every comparison ({FULL.rounds}, or fewer where they are long)",
    )
    parser.add_argument("--slice-s", type=float, metavar="S", help=f"seconds of every slice ({FULL.slice_s:g})")
    parser.add_argument(
        "--backlog",
        type=int,
        action="append",
        metavar="N",
        help="for backlog and schema: ready items in the way (0, 1000000, and for backlog 10000000)",
    )
    parser.add_argument(
        "--results", type=Path, metavar="DIR", help="write JSON there and leave docs/benchmarks.md alone"
    )
    return parser


_EPILOG = """\
Without --only, all scenarios but schema and million are run. Each is measured in rounds: every side of a
comparison in turn, a few seconds each, so that what slows the machine slows all sides; ratios are taken within
rounds, and shown as the median with the lowest and highest. A difference smaller than that spread is no result.

Results go to benchmarks/results/*.json and docs/benchmarks.md; with --quick or --results DIR
elsewhere. The exit code is 1 when a requirement is not met. Leave the machine alone meanwhile: what other
processes used of it is measured too and written beside the results.

  python -m benchmarks --quick                    does it run?
  python -m benchmarks --only cycle --rounds 9    narrower spread for one scenario
  python -m benchmarks --only schema              the measurements behind docs/adr
"""

if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main())
