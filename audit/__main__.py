"""`python -m audit`: find what a lost transaction left behind; `python -m audit repair`: mend it."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path

import asyncpg

from audit import between, dags, queues
from audit.finding import Finding, table
from audit.mending import mend
from audit.metrics import write_metrics
from audit.reading import Reader, Scope, Tick, reader
from services.queue.app import create_app
from services.queue.settings import QueueSettings
from shared.errors import ShardUnavailable
from shared.http.access import Caller
from shared.ids import canonical
from shared.settings import ShardAddress
from shared.shards.map_file import load

_FAILURES = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, ShardUnavailable, TimeoutError)
_TICK_ROWS = 10_000

_EPILOG = """\
environment:
  HEADGATE_QUEUE_SHARDS, HEADGATE_DAG_SHARDS (or the same with _FILE)
      the shard maps, as the services have them. With only one of them, that service is looked at by itself.

examples:
  python -m audit                          look at everything
  python -m audit --dag 0198...            one DAG and its items
  python -m audit --since 2026-11-20       DAGs and items made since then
  python -m audit --metrics /var/lib/node_exporter/textfile/headgate_audit.prom
                                           the same, for the node exporter to pick up
  python -m audit repair                   say what would be mended
  python -m audit repair --yes             mend it

Exit code: 0 when nothing was found (or all of it was mended), 1 when something was, 2 when a shard did not answer.
All of it may run while the services run. After a repair the services go on by themselves; look again to see it.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; answer the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m audit",
        description="Compares counters with facts and the two services with each other. Reads only.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("verb", nargs="?", choices=["find", "repair"], default="find", help="default: find")
    parser.add_argument("--yes", action="store_true", help="repair: do it; without it only what would be done")
    parser.add_argument("--dag", metavar="ID", type=_dag_id, help="only this DAG")
    parser.add_argument("--since", metavar="TIME", type=_time, help="only what was made since (ISO 8601, UTC)")
    parser.add_argument(
        "--age-s",
        metavar="SECONDS",
        type=float,
        default=300.0,
        help="how long something may be on its way before it counts as lost (default: 300)",
    )
    parser.add_argument(
        "--metrics",
        metavar="FILE",
        type=Path,
        help="write findings by kind and the time into FILE as Prometheus text; with neither --dag nor --since",
    )
    options = parser.parse_args(arguments)
    if options.metrics is not None and (options.verb != "find" or options.dag or options.since):
        parser.error("--metrics goes with a look at everything: without repair, --dag and --since")
    try:
        shards = _shards(os.environ)
        return asyncio.run(_run(shards, options))
    except ValueError as error:
        print(f"audit: {error}", file=sys.stderr)
    except _FAILURES as error:
        print(f"audit: a shard did not answer: {error}", file=sys.stderr)
    return 2


async def look(
    dag_shards: Sequence[Reader], queue_shards: Sequence[Reader], scope: Scope, tick: Tick
) -> list[Finding]:
    """Everything that is wrong."""
    found: list[Finding] = []
    for shard in dag_shards:
        found += await dags.check(shard, scope, tick)
    if scope.dag is None:
        for shard in queue_shards:
            found += await queues.check(shard, tick)
    if dag_shards and queue_shards:
        found += await between.check(dag_shards, queue_shards, scope, tick)
    return found


async def _run(addresses: Mapping[str, list[ShardAddress]], options: argparse.Namespace) -> int:
    scope = Scope(options.dag, options.since, options.age_s)
    async with AsyncExitStack() as stack:
        opened = {
            service: [await stack.enter_async_context(reader(address)) for address in addresses[service]]
            for service in ("dag", "queue")
        }
        progress = Progress()
        found = await look(opened["dag"], opened["queue"], scope, progress.add)
        progress.close()
        if options.metrics is not None:
            write_metrics(options.metrics, found)
        if not found:
            print("audit: nothing found")
            return 0
        for line in table(found):
            print(line)
        if options.verb == "find":
            return 1
        mendable = [finding for finding in found if finding.mendable]
        if not options.yes:
            print(f"audit: {len(mendable)} of {len(found)} would be mended; add --yes to do it")
            return 1
        shards = {shard.address.schema: shard for shard in (*opened["dag"], *opened["queue"])}
        done = await mend(mendable, shards, cancel)
        print(f"audit: {done} of {len(found)} mended; look again once the services have gone on")
        return 0 if done == len(found) else 1


async def cancel(namespace: str, item_ids: Sequence[str]) -> int:
    """End managed items as the queue service would if the DAG service asked it."""
    process = create_app(QueueSettings()).app.state.process
    try:
        caller = Caller(frozenset({"admin", "enqueue", "consume", "dag"}))
        results = await process.cancels.cancel(namespace, item_ids, caller)
    finally:
        for store in process.stores.values():
            await store.shard.close()
    return sum(result.status in ("cancelled", "already_cancelled", "finished") for result in results)


class Progress:
    """How many rows were looked at so far, on a terminal only."""

    def __init__(self) -> None:
        self._rows = 0
        self._shown = 0
        self._on = sys.stderr.isatty()

    def add(self, rows: int) -> None:
        """So many more."""
        self._rows += rows
        if self._on and self._rows - self._shown >= _TICK_ROWS:
            self._shown = self._rows
            print(f"\raudit: {self._rows:,} rows", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Leave the line clean."""
        if self._on:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _shards(env: Mapping[str, str]) -> dict[str, list[ShardAddress]]:
    found: dict[str, list[ShardAddress]] = {}
    for service in ("dag", "queue"):
        variable = f"HEADGATE_{service.upper()}_SHARDS"
        text, path = env.get(variable, "").strip(), env.get(f"{variable}_FILE", "").strip()
        named = text or path
        found[service] = list(load(text, Path(path) if path else None, service).shards) if named else []
    if not any(found.values()):
        raise ValueError("no shards: set HEADGATE_QUEUE_SHARDS and HEADGATE_DAG_SHARDS")
    for service, shards in found.items():
        if not shards:
            variable = f"HEADGATE_{service.upper()}_SHARDS"
            print(f"audit: {variable} is not set, so the two sides are not compared", file=sys.stderr)
    return found


def _dag_id(text: str) -> str:
    known = canonical(text)
    if known is None:
        raise argparse.ArgumentTypeError("not the id of a DAG")
    return known


def _time(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError("not a time as 2026-11-20 or 2026-11-20T08:00:00Z") from error
    return found if found.tzinfo else found.replace(tzinfo=UTC)


if __name__ == "__main__":
    sys.exit(main())
