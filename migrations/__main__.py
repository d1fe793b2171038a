"""`python -m migrations`: bring every shard to the newest revision, or say where each one is."""

import argparse
import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg

from migrations import heads
from migrations.shard import MigrationFailed, revision, service_of, upgrade
from shared.postgres.schema import head
from shared.settings import ShardAddress
from shared.shards.map_file import load

_SERVICES = ("queue", "dag")
_FAILURES = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, MigrationFailed)

_EPILOG = """\
environment:
  HEADGATE_QUEUE_SHARDS, HEADGATE_DAG_SHARDS
      the shards of each service: `0=postgresql://a/db 1=postgresql://b/db`, or `postgresql://a/db#4` for shards
      0 to 3 of one database. A service that is not named is left alone.
  HEADGATE_QUEUE_SHARDS_FILE, HEADGATE_DAG_SHARDS_FILE
      instead: files with the maps, as `python -m shards` keeps them.

Safe to run from several places at once: a lock per shard lets one through, and the others find nothing left to do.
Shards are migrated one after another. One that fails is reported and does not hold up the rest.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand; answer the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m migrations",
        description="Schema migrations of all shards of both services.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(dest="verb", title="commands", metavar="<command>")
    verbs.add_parser("up", help="bring every shard to the newest revision")
    verbs.add_parser("status", help="print each shard's revision")
    verbs.add_parser("check", help="as status, but exit with 1 when a shard is not at the newest revision")
    new = verbs.add_parser("new", help="write an empty revision file, numbered after the last")
    new.add_argument("service", choices=_SERVICES)
    new.add_argument("message", help="what it does, in a few words; becomes part of the file's name")
    options = parser.parse_args(arguments)
    if options.verb is None:
        parser.print_help(sys.stderr)
        return 2
    if options.verb == "new":
        return _new(options.service, options.message)
    try:
        shards = _shards(os.environ)
    except ValueError as error:
        print(f"migrations: {error}", file=sys.stderr)
        return 2
    return asyncio.run(_up(shards) if options.verb == "up" else _status(shards, strict=options.verb == "check"))


def _shards(env: Mapping[str, str]) -> list[ShardAddress]:
    found: list[ShardAddress] = []
    for service in _SERVICES:
        variable = f"HEADGATE_{service.upper()}_SHARDS"
        text, path = env.get(variable, "").strip(), env.get(f"{variable}_FILE", "").strip()
        if text or path:
            found += load(text, Path(path) if path else None, service).shards
    if not found:
        raise ValueError("no shards: set HEADGATE_QUEUE_SHARDS and HEADGATE_DAG_SHARDS")
    return found


async def _up(shards: list[ShardAddress]) -> int:
    failed = 0
    for address in shards:
        try:
            before, after = await upgrade(address)
        except _FAILURES as error:
            failed += 1
            print(f"{address.schema}  failed: {_one_line(error)}", file=sys.stderr, flush=True)
            continue
        change = f"{after}, nothing to do" if before == after else f"{before or 'empty'} -> {after}"
        print(f"{address.schema}  {change}", flush=True)
    return 1 if failed else 0


async def _status(shards: list[ShardAddress], *, strict: bool) -> int:
    newest = heads()
    behind = 0
    rows = [("shard", "server", "revision", "head")]
    for address in shards:
        wanted = newest[service_of(address)]
        try:
            found = await revision(address) or "empty"
        except _FAILURES as error:
            found = f"unreachable ({_one_line(error)})"
        behind += found != wanted
        rows.append((address.schema, _server(address.dsn), found, wanted))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    if strict and behind:
        print(
            f"migrations: {behind} of {len(shards)} shards not at head: run `python -m migrations up`",
            file=sys.stderr,
        )
    return 1 if strict and behind else 0


def _new(service: str, message: str) -> int:
    number = f"{int(head(service)) + 1:04d}"
    from migrations.revisions import write_empty

    write_empty(service, message, number=number)
    return 0


def _server(dsn: str) -> str:
    """Host, port and database of a DSN; never its password."""
    parts = urlsplit(dsn)
    return f"{parts.hostname or 'local'}:{parts.port or 5432}{parts.path}"


def _one_line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0]


if __name__ == "__main__":
    sys.exit(main())
