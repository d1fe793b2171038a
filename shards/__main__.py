"""`python -m shards`: look at the shard map and change it while the services run."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import asyncpg

from shards import growing, moving, removing, slots, status
from shards.door import Refused, server
from shards.held import Held, hold
from shared.settings import fenced
from shared.shards.map_file import load, ranges

_EPILOG = """\
The map is the file that HEADGATE_QUEUE_SHARDS_FILE (with --service dag: HEADGATE_DAG_SHARDS_FILE) names, which
running services follow. Without --yes a command says what it would do. Each may be stopped at any moment:
run it again to finish it.

  python -m shards --map FILE init --yes            write the file from HEADGATE_QUEUE_SHARDS
  python -m shards status
  python -m shards add 4 --dsn postgresql://db3/headgate --yes
  python -m shards slots --rebalance --yes          give the new shard its share of keys and affinities
  python -m shards move 2 --to postgresql://db3/headgate --yes
  python -m shards drain 0 --yes
  python -m shards remove 0 --yes                   once it is empty, and what ended there forgotten
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; answer the exit code."""
    return asyncio.run(run(arguments))


async def run(arguments: Sequence[str] | None = None) -> int:
    """As `main`, inside a loop."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.verb is None:
        parser.print_help(sys.stderr)
        return 2
    variable = f"HEADGATE_{options.service.upper()}_SHARDS"
    text = options.map or os.environ.get(f"{variable}_FILE", "")
    if not text:
        print(f"shards: say which file: {variable}_FILE, or --map", file=sys.stderr)
        return 2
    try:
        fresh = load(os.environ.get(variable, ""), None, options.service) if options.verb == "init" else None
        with hold(Path(text), options.service, fresh=fresh) as held:
            await options.run(held, options)
    except (Refused, ValueError) as error:
        print(f"shards: {error}", file=sys.stderr)
        return 1
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        print(f"shards: {error}; run the command again to finish it", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m shards",
        description="Look at the shard map and change it while the services run.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--service", choices=("queue", "dag"), default="queue")
    parser.add_argument("--map", metavar="FILE", help="the map's file, instead of the environment's")
    verbs = parser.add_subparsers(dest="verb", title="commands", metavar="<command>")

    def verb(name: str, run: object, text: str, *, acts: bool = True) -> argparse.ArgumentParser:
        made = verbs.add_parser(name, help=text, description=text)
        made.set_defaults(run=run)
        if acts:
            made.add_argument("--yes", action="store_true", help="do it; without this, say what would be done")
        return made

    verb("status", _status, "print each shard: where it is, its state, slots and items", acts=False)
    verb("init", _init, "write the map's file from the environment")
    made = verb("add", _add, "make a new shard and put it into the map")
    made.add_argument("number", type=int)
    made.add_argument("--dsn", required=True, help="the database in which it is made")
    made = verb("drain", _drain, "let a shard run empty: nothing new without an id comes, its slots go elsewhere")
    made.add_argument("number", type=int)
    made.add_argument("--keep-slots", action="store_true", help="keys and affinities go on coming")
    verb("undrain", _undrain, "let a shard take new items again").add_argument("number", type=int)
    made = verb("remove", _remove, "take a drained shard out of the map, once nothing lives there")
    made.add_argument("number", type=int)
    made = verb("move", _move, "move a whole shard to another server")
    made.add_argument("number", type=int)
    where = made.add_mutually_exclusive_group(required=True)
    where.add_argument("--to", metavar="DSN", help="the database it moves to")
    where.add_argument("--to-shard", type=int, metavar="N", help="the same: the database of shard N")
    made.add_argument(
        "--abort", action="store_true", help="open it again where it was, if the move is not finished"
    )
    made.add_argument("--drop-old", action="store_true", help="drop what is left where it was")
    made = verb("drop-old", _drop_old, "drop what a finished move left at its source")
    made.add_argument("number", type=int)
    made.add_argument("--at", required=True, metavar="DSN", help="the database it moved away from")
    made = verb("slots", _slots, "print which slots call which shard home, or even them out")
    made.add_argument("--rebalance", action="store_true", help="give every active shard an even share")
    return parser


async def _status(held: Held, _options: argparse.Namespace) -> None:
    print(f"{held.path}, version {held.plan.version}")
    rows = await status.rows(held)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


async def _init(held: Held, options: argparse.Namespace) -> None:
    for address in held.plan.shards:
        print(f"{address.schema}  {server(address.dsn)}  {len(held.plan.slots_of(address.number))} slots")
    if _may(options):
        await growing.write_first(held)
        print(f"written: {held.path}. Start every process with it, and without the list of shards.")


async def _add(held: Held, options: argparse.Namespace) -> None:
    print(f"make shard {options.number} at {server(options.dsn)} and put it into the map")
    if _may(options):
        await growing.add(held, options.number, options.dsn)
        print(f"added. It takes new items; `slots --rebalance` gives it keys and affinities. {_version(held)}")


async def _drain(held: Held, options: argparse.Namespace) -> None:
    address = held.address(options.number)
    home = len(held.plan.slots_of(address.number))
    print(f"shard {address.number} is to take nothing new without an id; {home} slots call it home")
    if not _may(options):
        return
    growing.set_draining(held, address.number, True)
    print(f"  it takes nothing new from now on, whatever becomes of its slots. {_version(held)}")
    if held.plan.service == "queue" and not options.keep_slots:
        await _rebalance(held)
    print(f"draining: it is empty when `status` shows no items. {_version(held)}")


async def _undrain(held: Held, options: argparse.Namespace) -> None:
    print(f"shard {held.address(options.number).number} is to take new items again")
    if _may(options):
        growing.set_draining(held, options.number, False)
        print(f"active; `slots --rebalance` gives it its share of slots. {_version(held)}")


async def _remove(held: Held, options: argparse.Namespace) -> None:
    address = held.address(options.number)
    await removing.remove(held, options.number, only_look=True)
    print(f"close shard {address.number} at {server(address.dsn)} for good, and take it out of the map")
    if _may(options):
        await removing.remove(held, options.number)
        print(f"removed. {_version(held)} What is left is closed: DROP SCHEMA {fenced(address.schema)} CASCADE")


async def _move(held: Held, options: argparse.Namespace) -> None:
    address = held.address(options.number)
    options.to = options.to or held.address(options.to_shard).dsn
    if server(address.dsn) == server(options.to) and not options.abort:
        print(f"shard {address.number} is at {server(address.dsn)}: nothing to do")
        return
    places = await moving.look(held, options.number, options.to)
    try:
        steps = {"fence": ["fence it", "copy it", "flip the map"], "copy": ["copy it", "flip the map"]}
        what = ["open it again where it was"] if options.abort else steps.get(places.stage, ["flip the map"])
        print(f"shard {address.number}, {server(address.dsn)} -> {server(options.to)}: {', '.join(what)}")
        if places.left is not None and not options.abort:
            print(f"  what an earlier move left there (epoch {places.left.epoch}) is dropped first")
        if not _may(options):
            return
        if options.abort:
            await moving.abort(held, places)
            print(f"the move is undone. {_version(held)}")
            return
        counts = await moving.move(held, places, _progress)
    finally:
        await places.source.close()
        await places.target.close()
    for name, count in counts.items():
        print(f"  {name}: {count} rows, compared")
    print(f"moved. {_version(held)}")
    if options.drop_old:
        await moving.drop_old(held, options.number, address.dsn)
        print(f"dropped what was left at {server(address.dsn)}")
    else:
        print(f"the old copy is kept, closed: `drop-old {address.number} --at DSN` drops it")


async def _drop_old(held: Held, options: argparse.Namespace) -> None:
    print(f"drop what a finished move of shard {options.number} left at {server(options.at)}")
    if _may(options):
        print(f"dropped {await moving.drop_old(held, options.number, options.at)} tables")


async def _slots(held: Held, options: argparse.Namespace) -> None:
    if held.plan.service == "dag":
        raise Refused("DAG keys live with their DAGs: the slots of DAG shards stay where they are")
    for first, last, home in ranges(held.plan.homes):
        print(f"{first}-{last}  shard {home}")
    if not options.rebalance:
        return
    for (source, target), moved in slots.rebalanced(held.plan).items():
        print(f"{len(moved)} slots from shard {source} to shard {target}")
    if _may(options):
        await _rebalance(held)
        print(f"even. {_version(held)}")


async def _rebalance(held: Held) -> None:
    for source, target, begun in await slots.unfinished(held):
        keys = await slots.take(held, source, target, begun)
        print(f"  finished: {len(begun)} slots from shard {source} to shard {target}, with {keys} keys")
    for (source, target), moved in slots.rebalanced(held.plan).items():
        keys = await slots.take(held, source, target, moved)
        print(f"  {len(moved)} slots from shard {source} to shard {target}, with {keys} keys")


def _may(options: argparse.Namespace) -> bool:
    if not options.yes:
        print("nothing was done; add --yes to do it")
    return bool(options.yes)


def _version(held: Held) -> str:
    return f"The map is at version {held.plan.version}."


def _progress(table: str, done: int, total: int) -> None:
    if sys.stderr.isatty():
        share = done / total if total else 1.0
        bar = "#" * int(30 * share)
        print(
            f"\r  [{bar:<30}] {share:4.0%} {done / 1e6:,.1f} MB  {table:<20}", end="", file=sys.stderr, flush=True
        )


if __name__ == "__main__":
    sys.exit(main())
