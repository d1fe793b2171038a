"""`python -m tests.worlds`: random worlds for some minutes, or some of them, and a word on each that breaks."""

import argparse
import asyncio
import logging
import sys
import tempfile
import time
from pathlib import Path
from random import Random

import structlog
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from tests.support.databases import Databases
from tests.support.servers import postgres
from tests.worlds.registry import EDITION
from tests.worlds.world import ROUNDS, Broken, run


def main() -> int:
    """Run worlds; 1 when one is broken."""
    # A world of faults has a lot to say; what it means is for the oracles.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    parser = argparse.ArgumentParser(prog="python -m tests.worlds", description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0, help="for how long to begin new worlds (default: 2)")
    parser.add_argument("--seed", type=int, default=None, help="the first world's seed; the next ones count up")
    parser.add_argument("--number", type=int, default=None, help="so many worlds, however long they take")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"of each world (default: {ROUNDS})")
    parser.add_argument(
        "--edition", type=int, default=EDITION, help=f"of the verbs (default: {EDITION}, the newest)"
    )
    parser.add_argument("--go-on", action="store_true", help="after a broken world, too")
    options = parser.parse_args()
    return asyncio.run(_run(options))


async def _run(options: argparse.Namespace) -> int:
    console = Console(stderr=True)
    first = Random().randrange(1_000_000) if options.seed is None else options.seed
    number = options.number if options.number is not None else sys.maxsize
    until_s = time.monotonic() + (options.minutes * 60 if options.number is None else float("inf"))
    broken: list[int] = []
    done = 0
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with tempfile.TemporaryDirectory() as directory, Progress(*columns, console=console) as progress:
        bar = progress.add_task(
            "worlds", total=options.rounds * number if options.number else options.minutes * 60
        )
        async with postgres() as dsn:
            databases = Databases(dsn)
            begun_s = time.monotonic()

            def tell() -> None:
                text = f"world {seed} ({done} done, {len(broken)} broken)"
                if options.number is not None:
                    progress.update(bar, advance=1, description=text)
                else:
                    progress.update(bar, completed=time.monotonic() - begun_s, description=text)

            for seed in range(first, first + min(number, 10**9)):
                if time.monotonic() >= until_s:
                    break
                try:
                    world = await run(
                        databases, Path(directory), seed, rounds=options.rounds, edition=options.edition, tell=tell
                    )
                    print(f"world {seed} is sound: {world.summary()}", flush=True)
                except Broken as error:
                    broken.append(seed)
                    print(error, flush=True)
                    if not options.go_on:
                        break
                done += 1
            await databases.drop_templates()
    print(f"{done} worlds from {first}: " + (f"broken {broken}" if broken else "all sound"))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
