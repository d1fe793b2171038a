"""`python -m tests.mutations`: plant every fault, and say which test saw it."""

import argparse
import asyncio
import sys
from collections.abc import Sequence

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.mutations import in_worlds
from tests.mutations.catalogue import MUTATIONS
from tests.mutations.model import Mutation
from tests.mutations.page import write
from tests.mutations.running import Outcome, run

_EPILOG = """\
examples:
  python -m tests.mutations                  all of them
  python -m tests.mutations --only ack       those with `ack` in their names
  python -m tests.mutations --list           what there is
  python -m tests.mutations --write          all, and what came of it into docs/testing.md
  python -m tests.mutations --worlds         those that random worlds may meet, by worlds and not by tests

Exits with 1 when a fault was seen by no test.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was asked for; answer the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutations",
        description="Plants faults one at a time in a copy of the tree and runs the tests that should see them.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--only", metavar="PART", nargs="*", default=[""], help="those whose name holds one of these"
    )
    parser.add_argument("--jobs", type=int, default=1, help="how many at once (default: 1)")
    parser.add_argument("--list", action="store_true", help="list them and run nothing")
    parser.add_argument("--write", action="store_true", help="write what came of them into docs/testing.md")
    parser.add_argument("--worlds", action="store_true", help="let random worlds look for them")
    parser.add_argument("--seed", type=int, default=1, help="of the first world (default: 1)")
    parser.add_argument(
        "--number", type=int, default=in_worlds.WORLDS_MAX, help="of worlds that look for one of them (default: 8)"
    )
    options = parser.parse_args(arguments)
    if options.worlds:
        return _in_worlds(options)
    chosen = [mutation for mutation in MUTATIONS if any(part in mutation.name for part in options.only)]
    if options.list:
        for mutation in chosen:
            print(f"{mutation.name}: {mutation.guards} ({mutation.path})")
        return 0
    outcomes = _run(chosen, options.jobs)
    seen = sum(outcome.seen_by is not None for outcome in outcomes)
    print(f"{seen} of {len(outcomes)} mutations were seen")
    if options.write:
        write(outcomes)
    return 0 if seen == len(outcomes) else 1


def _in_worlds(options: argparse.Namespace) -> int:
    """Say what worlds find; they are not bound to find anything."""

    def tell(found: in_worlds.Found) -> None:
        where = f"world {found.seed}, the {found.nth}." if found.seed is not None else f"{found.nth} worlds"
        print(f"{found.mutation.name}: {where}: {found.what} ({found.took_s:.0f} s)", flush=True)

    chosen = in_worlds.chosen(options.only)
    found = asyncio.run(
        in_worlds.run(chosen, range(options.seed, options.seed + options.number), options.jobs, tell)
    )
    print(f"{sum(one.seed is not None for one in found)} of {len(found)} mutations were found by worlds")
    if options.write:
        in_worlds.write(found)
    return 0


def _run(chosen: Sequence[Mutation], jobs: int) -> list[Outcome]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns) as progress:
        task = progress.add_task("mutations", total=len(chosen))

        def tell(outcome: Outcome) -> None:
            seen = f"seen by {outcome.seen_by}" if outcome.seen_by else "MISSED"
            progress.console.print(
                f"{outcome.mutation.name}: {seen}: {outcome.how} ({outcome.took_s:.0f} s)",
                highlight=False,
                markup=False,
                soft_wrap=True,
            )
            progress.advance(task)

        return asyncio.run(run(chosen, jobs, tell))


if __name__ == "__main__":
    sys.exit(main())
