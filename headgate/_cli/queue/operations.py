"""The commands about many items at once: purge, redrive and cancel by filter, and the dead by error."""

import argparse
import json
import sys
import time
from typing import Any, Final, get_args

from headgate import wire
from headgate._calls.verbs import present
from headgate._cli import commands
from headgate._cli.output import LiveLine, OperationProgress, printable, show_fields, show_json, told
from headgate._client.blocking.client import Client
from headgate._stderr import stderr_line
from headgate.errors import Invalid

POLL_S: Final = 0.5

FILTERS: Final = """\
examples:
  headgate dead                                           what died, by error
  headgate redrive --topic mail --error 'timeout after <n> s'
  headgate purge --topic mail --dry-run                   what would go, and nothing is done
  headgate purge --topic mail --before 2030-01-31T12:00:00Z --yes
  headgate operations cancel --topic mail --metadata '{"campaign": 7}' --yes
  headgate operations watch ID                            follow it to its end
  headgate operations stop ID                             leave the rest as it is

A DAG's items are left alone, and so is what is enqueued after the command.
"""

_COLUMNS: Final = ("id", "kind", "state", "total", "scanned", "changed", "skipped", "requested_at", "filter")
DAGS_SHOWN_MAX: Final = 5
_DEAD_COLUMNS: Final = ("count", "of DAGs", "topic", "error", "oldest", "newest", "sample_id")

Args = argparse.Namespace


def add_filter(parser: argparse.ArgumentParser) -> None:
    """The options that say which items are meant, and what to do before they are touched."""
    meant = parser.add_argument_group("which items")
    meant.add_argument("--topic")
    meant.add_argument("--state", choices=get_args(wire.ItemState))
    meant.add_argument("--error", metavar="TEXT", help="an error, or the `error` of a group of `headgate dead`")
    meant.add_argument("--priority-min", type=int, metavar="N")
    meant.add_argument("--priority-max", type=int, metavar="N")
    meant.add_argument("--before", metavar="TIME", help="enqueued before (RFC 3339)")
    meant.add_argument("--after", metavar="TIME", help="enqueued then or later")
    meant.add_argument("--metadata", metavar="JSON", help="an object; items whose metadata hold all of it")
    parser.add_argument("--dry-run", action="store_true", help="show what would be taken; change nothing")
    parser.add_argument("--yes", action="store_true", help="do not ask: items are cancelled for good")
    parser.add_argument("--no-wait", action="store_true", help="do not follow it to its end")


def operate(args: Args) -> int:
    """purge, redrive, cancel."""
    wanted = _filter(args)
    with commands.client_of(args) as client:
        if args.dry_run or (args.kind != "redrive" and not args.yes):
            _show_preview(args, client.preview_operation(args.kind, **wanted))
            if args.dry_run:
                return commands.OK
            stderr_line("headgate: nothing was done; say --yes if you mean it")
            return commands.USAGE
        with LiveLine(sys.stderr) as line:
            line.update(f"{args.kind} begins ...")
            begun = client.begin_operation(args.kind, **wanted)
        if args.no_wait:
            return _show(args, begun)
        return _follow(args, client, begun)


def _filter(args: Args) -> Any:
    metadata = commands.parsed(args.metadata) if args.metadata else None
    if metadata is not None and not isinstance(metadata, dict):
        raise Invalid("--metadata takes a JSON object")
    return present(
        topic=args.topic,
        state=args.state,
        error=args.error,
        priority_min=args.priority_min,
        priority_max=args.priority_max,
        enqueued_before=args.before,
        enqueued_after=args.after,
        metadata=metadata,
    )


def _show_preview(args: Args, preview: wire.OperationPreview) -> None:
    if args.output == "json":
        show_json(preview, sys.stdout)
        return
    count = f"{preview.matched}" if preview.exact else f"{preview.matched} or more"
    show_fields(
        {
            "would " + preview.kind: count,
            "left alone": preview.skipped or None,
            "shards away": preview.away or None,
        },
        sys.stdout,
    )
    if preview.away:
        stderr_line("headgate: what is on shards that are away is not counted; begun now, it is done there later")
    _tell_why(preview.skipped)
    for item_id in preview.sample:
        sys.stdout.write(f"  {item_id}\n")
    if preview.matched > len(preview.sample):
        sys.stdout.write("  ...\n")


def _follow(args: Args, client: Client, operation: wire.Operation) -> int:
    progress = OperationProgress(sys.stderr)
    progress.update(operation)
    try:
        while not operation.finished:
            time.sleep(POLL_S)
            operation = client.operation(operation.id)
            progress.update(operation)
    except KeyboardInterrupt:
        progress.close()
        stderr_line(f"headgate: it goes on; `headgate operations stop {operation.id}` stops it")
        return 130
    progress.close()
    return _show(args, operation)


def _show(args: Args, operation: wire.Operation) -> int:
    if args.output == "json":
        show_json(operation, sys.stdout)
    else:
        fields = operation.model_dump(exclude={"shards", "dry_run", "filter"})
        away = [shard.shard for shard in operation.shards if shard.state in ("waiting", "unreachable")]
        show_fields({**fields, "filter": _filter_text(operation), "shards away": away}, sys.stdout)
        _tell_why(operation.skipped)
    return commands.OK


def _tell_why(left_alone: int) -> None:
    if left_alone:
        stderr_line(
            "headgate: left alone are items of DAGs, which `headgate dag retry` runs again, and what had moved on "
            "meanwhile"
        )


def _filter_text(operation: wire.Operation) -> str:
    given = operation.filter.model_dump(mode="json", exclude_none=True)
    return ", ".join(
        f"{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in given.items()
    )


def listing(args: Args) -> int:
    """operations list."""
    with commands.client_of(args) as client:
        found = told(client.operations(limit=args.limit))
    if args.output == "json":
        show_json(found, sys.stdout)
        return commands.OK
    rows = [{**operation.model_dump(), "filter": _filter_text(operation) or None} for operation in found]
    commands.show_rows(args, rows, _COLUMNS, "no operations")
    return commands.OK


def show(args: Args) -> int:
    """operations show."""
    with commands.client_of(args) as client:
        operation = client.operation(args.id)
    _show(args, operation)
    if args.output != "json":
        sys.stdout.write("\n")
        columns = ("shard", "state", "total", "scanned", "changed", "skipped")
        commands.show_rows(args, operation.shards, columns, "no shards")
    return commands.OK


def watch(args: Args) -> int:
    """operations watch."""
    with commands.client_of(args) as client:
        return _follow(args, client, client.operation(args.id))


def stop(args: Args) -> int:
    """operations stop."""
    with commands.client_of(args) as client:
        return _show(args, client.cancel_operation(args.id))


def dead(args: Args) -> int:
    """dead."""
    with commands.client_of(args) as client:
        groups = told(client.dead(args.topic))
    if args.output == "json":
        show_json(groups, sys.stdout)
        return commands.OK
    rows = [{**group.model_dump(), "of DAGs": group.managed or None} for group in groups]
    commands.show_rows(args, rows, _DEAD_COLUMNS, "nothing is dead")
    for dag in [group.dag for group in groups if group.dag is not None][:DAGS_SHOWN_MAX]:
        stderr_line(f"headgate: `headgate dag retry {dag.id}` runs node {printable(dag.node)} again, of a DAG")
    return commands.OK
