"""`headgate logs`: what a job, or all jobs of a flow, have logged; also while they go on logging."""

import argparse
import heapq
import sys
import time
from collections.abc import Iterator
from typing import Any, Final

from headgate import wire
from headgate._cli import commands
from headgate._cli.output import json_text, printable
from headgate._client.blocking.client import Client
from headgate._stderr import stderr_line
from headgate.errors import NotFound

LOGS: Final = """\
examples:
  headgate logs ID              of an item, of a job of an app, or of all jobs of a flow or DAG
  headgate logs ID --follow     and what comes, until it has ended

Lines come in the order of time, over all workers that have run the job. Of a job 1 MiB is kept, for three days.
"""

LOOK_S: Final = 0.5
# A worker brings the last lines of a job a moment after its end.
AFTER_S: Final = 2.0
# Of a DAG with more nodes, name an item.
NODES_MAX: Final = 1_000

Found = tuple[str, wire.LogEntry]


def add_logs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", help="of an item, a job, a flow or a DAG")
    parser.add_argument("-f", "--follow", action="store_true", help="go on until it has ended")


def logs(args: Any) -> int:
    """Print lines; with `--follow` until nothing more will come."""
    with commands.client_of(args) as client:
        reading = _of_dag(client, args.id) or _Items(client, {"": args.id})
        over_at: float | None = None
        is_empty = True
        while True:
            if over_at is None and (not args.follow or reading.is_over()):
                over_at = time.monotonic() + AFTER_S
            for name, entry in reading.new():
                is_empty = False
                sys.stdout.write(_line(args, name, entry))
            sys.stdout.flush()
            if over_at is not None and (not args.follow or time.monotonic() > over_at):
                if is_empty:
                    stderr_line(
                        f"headgate: nothing is kept of what {printable(args.id)} logged in {client.namespace}"
                    )
                return commands.OK
            time.sleep(LOOK_S)


class _Items:
    """The logs of items, each by a name, read from where they were read to."""

    def __init__(self, client: Client, items: dict[str, str]) -> None:
        self._client = client
        self.items = items
        self._tails: dict[str, str] = {}

    def new(self) -> list[Found]:
        """The lines that have come since, in the order of time."""
        logs = [[(name, entry) for entry in self._new_of(item)] for name, item in self.items.items()]
        return list(heapq.merge(*logs, key=lambda found: found[1].at))

    def _new_of(self, item: str) -> Iterator[wire.LogEntry]:
        while True:
            page = self._client.logs.page(item, cursor=self._tails.get(item), limit=wire.PAGE_LIMIT_MAX)
            self._tails[item] = page.tail
            yield from page.items
            if page.next_cursor is None:
                return

    def is_over(self) -> bool:
        (found,) = self._client.item_states([*self.items.values()])
        return found.status == "not_found" or found.state == "dead"


class _Nodes(_Items):
    """The logs of all nodes of a DAG, which may grow."""

    def __init__(self, client: Client, dag_id: str) -> None:
        super().__init__(client, {})
        self._dag = client.dag(dag_id)
        self._look()

    def is_over(self) -> bool:
        """Whether it has ended; and what nodes there are now."""
        is_over = self._dag.show().finished
        self._look()
        return is_over

    def _look(self) -> None:
        nodes = self._dag.nodes(limit=NODES_MAX)
        self.items = {node.key: node.item_id for node in nodes if node.item_id and node.state != "blocked"}


def _of_dag(client: Client, dag_id: str) -> _Nodes | None:
    try:
        return _Nodes(client, dag_id)
    except NotFound:
        return None


def _line(args: Any, name: str, entry: wire.LogEntry) -> str:
    if args.output == "json":
        said = entry.model_dump(mode="json", exclude_none=True)
        return json_text({"node": name, **said} if name else said) + "\n"
    where = f" [{printable(name)}]" if name else ""
    again = f" (attempt {entry.attempt})" if entry.attempt > 1 else ""
    text = "\n  ".join(printable(part) for part in entry.text.splitlines())
    return f"{entry.at:%Y-%m-%d %H:%M:%S.%f} {entry.level.upper():<8}{where}{again} {text}\n"
