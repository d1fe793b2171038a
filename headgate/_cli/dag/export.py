"""`headgate dag export`: ended DAGs as JSON lines, gone on with where it stopped.

For each DAG `{"dag": ...}`, then its nodes, `{"node": ...}` each, then `{"end": id, "finished_at": ...}`. Only
what stands before an `end` line is whole; what follows the last one is cut off when the export goes on.
"""

import json
import os
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from headgate import wire
from headgate._calls.verbs import present
from headgate._cli import commands
from headgate._cli.output import LiveLine, plain
from headgate._client.blocking.client import Client
from headgate._stderr import stderr_line
from headgate.errors import Invalid, NotFound

PAGE_DAGS: Final = 100


class Reached(NamedTuple):
    """How far a file has come: whole bytes, the last end in it, and the DAGs of that very moment."""

    size: int = 0
    finished_at: datetime | None = None
    ids: frozenset[str] = frozenset()


def export(args: commands.Args) -> int:
    if args.mark and args.since:
        raise Invalid("--mark says that all before is exported; with --since it would not be")
    path = Path(args.to)
    reached = read_reached(path) if path.exists() else Reached()
    since = max(filter(None, (args.since, reached.finished_at)), default=None)
    count, last = 0, reached.finished_at
    with commands.client_of(args) as client, path.open("ab") as out, LiveLine(sys.stderr) as progress:
        out.truncate(reached.size)
        for dag in _ended(client, since, args.until):
            if dag.id in reached.ids and dag.finished_at == reached.finished_at:
                continue
            try:
                _write(out, client, dag, progress, count)
            except NotFound:
                stderr_line(f"{dag.id} was dropped before it could be exported")
                continue
            count, last = count + 1, dag.finished_at
        out.flush()
        os.fsync(out.fileno())
        if args.mark and last is not None:
            client.mark_exported(last)
    stderr_line(f"{count} DAGs exported to {path}" + (f", up to {last.isoformat()}" if last else ""))
    return commands.OK


def read_reached(path: Path) -> Reached:
    """What is whole in a file that an export has written.

    Raises:
        Invalid: it is something else.
    """
    if not path.is_file():
        raise Invalid(f"{path} is no file, which an export could go on with")
    size, reached = 0, Reached()
    ids: set[str] = set()
    with path.open("rb") as file:
        for line in file:
            size += len(line)
            if not line.endswith(b"\n"):
                break
            try:
                entry = json.loads(line)
                if "end" not in entry:
                    assert "dag" in entry or "node" in entry
                    continue
                finished_at = datetime.fromisoformat(entry["finished_at"])
            except (ValueError, KeyError, TypeError, AssertionError):
                raise Invalid(f"{path} is no export: its lines are not `dag`, `node` and `end`") from None
            ids = {*ids, entry["end"]} if finished_at == reached.finished_at else {entry["end"]}
            reached = Reached(size, finished_at, frozenset(ids))
    return reached


def _ended(client: Client, since: datetime | None, until: datetime | None) -> Iterator[wire.Dag]:
    """DAGs in the order of their ends, a page at a time."""
    seen: set[str] = set()
    while True:
        page = client.ended_dags(since=since, until=until, limit=PAGE_DAGS + len(seen))
        fresh = [dag for dag in page if dag.id not in seen]
        if not fresh:
            return
        yield from fresh
        since = fresh[-1].finished_at
        seen = {dag.id for dag in page if dag.finished_at == since}


def _write(out: BinaryIO, client: Client, dag: wire.Dag, progress: LiveLine, before: int) -> None:
    _line(out, {"dag": plain(dag)})
    for count, node in enumerate(client.dag(dag.id).export()):
        if not count % 1_000:
            progress.update(f"DAG {before + 1}: {count} of {dag.nodes.total} nodes")
        _line(out, {"node": plain(node)})
    _line(out, present(end=dag.id, finished_at=dag.finished_at and dag.finished_at.isoformat()))


def _line(out: BinaryIO, entry: Any) -> None:
    out.write(json.dumps(entry, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")
