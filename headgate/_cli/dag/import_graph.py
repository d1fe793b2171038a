"""`headgate import`: graphs of other systems, looked at or submitted."""

import hashlib
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Final

from headgate._cli import commands
from headgate._cli.dag import dags
from headgate._cli.dag.submitting import submit
from headgate._cli.output import printable, show_json, show_table
from headgate._stderr import stderr_line
from headgate.errors import HeadgateError, Invalid
from headgate.importing import READERS, Found, Options
from headgate.importing.found import FILE_BYTES_MAX

IMPORT: Final = """\
FORMAT is
  wfformat   WfCommons' WfFormat, JSON
  make       a Makefile, as far as it can be read without Make; or what `make -pn` prints
  airflow    a serialised Airflow DAG, JSON
  states     a Step Functions state machine, JSON
Nothing in FILE is run. --dry-run shows what would be made, and what does not map; look at that first.

examples:
  headgate import make Makefile --dry-run
  make -pn | headgate import make - --topic build --map .o=cc
  headgate import airflow etl.json --topic etl --map BashOperator=shell --hold
An import that stopped is repeated: the same file makes one DAG, unless --key names another.
"""

_UNMAPPED_COLUMNS: Final = ("effect", "what", "times", "first", "note")
_TOPIC_COLUMNS: Final = ("topic", "nodes")


def import_file(args: commands.Args) -> int:
    options = Options(args.topic, dict(map(_pair, args.map)), tuple(args.goal))
    text = _text(args.file)
    try:
        found = READERS[args.format](text, options)
    except HeadgateError as error:
        raise Invalid(f"{args.file}: {error}") from error
    changed = [entry for entry in found.unmapped if entry.effect == "changed"]
    if args.dry_run:
        _show(args, found)
        return commands.FAILURE if args.strict and changed else commands.OK
    _show_unmapped(found)
    if args.strict and changed:
        raise Invalid("the DAG would not do what the original did, and --strict was said; nothing was sent")
    dag = found.dag
    dag.key, dag.made_key, dag.hold = args.key or _key(args, text), False, args.hold
    with commands.client_of(args) as client:
        made = submit(client, dag)
    dags.show_dag(args, made.dag)
    return commands.OK


def _text(path: str) -> str:
    raw = sys.stdin.buffer.read(FILE_BYTES_MAX + 1) if path == "-" else _read(Path(path))
    if len(raw) > FILE_BYTES_MAX:
        raise Invalid(f"{path} is over {FILE_BYTES_MAX} bytes")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise Invalid(f"{path} is not UTF-8: {error.reason} at byte {error.start}") from None


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(FILE_BYTES_MAX + 1)


def _pair(text: str) -> tuple[str, str]:
    kind, equals, topic = text.rpartition("=")
    if not (kind and equals and topic):
        raise Invalid(f"--map {text}: it is KIND=TOPIC")
    return kind, topic


def _key(args: commands.Args, text: str) -> str:
    """One for a file and the options that change what it makes."""
    meant = repr((args.format, args.topic, sorted(args.map), args.goal, args.hold))
    return f"import-{hashlib.sha256(f'{meant}{text}'.encode()).hexdigest()[:32]}"


def _show(args: commands.Args, found: Found) -> None:
    dag = found.dag
    level: dict[str, int] = {}
    for node in dag.ordered():
        level[node.key] = 1 + max((level[key] for key in node.upstream), default=0)
    widths = Counter(level.values())
    topics = Counter(node.topic for node in dag.nodes.values())
    if args.output == "json":
        unmapped = [entry._asdict() for entry in found.unmapped]
        counts = {"nodes": len(dag.nodes), "edges": found.edges, "levels": len(widths)}
        show_json({"name": dag.name, **counts, "topics": dict(topics), "unmapped": unmapped}, sys.stdout)
        return
    out = sys.stdout
    widest = max(widths.values())
    roots = sum(not node.upstream for node in dag.nodes.values())
    out.write(f"{printable(dag.name or args.file)}: {len(dag.nodes)} nodes, {found.edges} edges, ")
    out.write(f"{len(widths)} levels, at most {widest} nodes wide; {roots} can start at once\n\n")
    show_table([{"topic": topic, "nodes": count} for topic, count in topics.most_common()], _TOPIC_COLUMNS, out)
    if found.unmapped:
        out.write("\n")
        show_table(_rows(found), _UNMAPPED_COLUMNS, out)


def _show_unmapped(found: Found) -> None:
    for row in _rows(found):
        times = f" ({row['times']} times)" if row["times"] > 1 else ""
        place = f", {row['first']}" if row["first"] else ""
        stderr_line(f"{row['effect']}: {row['what']}{place}{times}{': ' + row['note'] if row['note'] else ''}")


def _rows(found: Found) -> list[dict[str, Any]]:
    return [
        {
            "effect": entry.effect,
            "what": entry.what,
            "times": entry.times,
            "first": entry.where or None,
            "note": entry.note or None,
        }
        for entry in found.unmapped
    ]
