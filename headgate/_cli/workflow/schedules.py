"""The commands about schedules: what the service starts at which times."""

import argparse
import sys
from datetime import datetime
from typing import Any, Final, get_args

from headgate import wire
from headgate._calls.dag import Dag
from headgate._cli import commands
from headgate._cli.output import show_fields, show_json, show_table, told

SCHEDULES: Final = """\
examples:
  headgate schedule put nightly --cron "0 3 * * *" --tz Europe/Paris --topic report '{"kind": "full"}'
  headgate schedule put hourly --interval 3600 --topic sync --overlap buffer_one
  headgate schedule put weekly --cron "0 6 * * MON" --dag release.json
  headgate schedule put monthly --cron "0 6 1 * *" --workflow report '{"kind": "full"}'
  headgate schedule list
  headgate schedule ticks nightly                        what became of its slots
  headgate schedule trigger nightly                      one run now
  headgate schedule backfill nightly 2030-01-01T00:00:00Z 2030-01-08T00:00:00Z
  headgate schedule pause nightly --reason "moving house"

The same put again changes nothing. While a run is unfinished, slots are skipped, or one is buffered, or all are
started (--overlap). A run is a DAG: `headgate dag show RUN`.
"""

Args = argparse.Namespace

_COLUMNS: Final = ["id", "spec", "overlap", "paused", "next_at"]
_TICKS: Final = ["tick", "kind", "at", "slots", "decision", "reason", "run"]


def add_commands(root: Any) -> None:
    """`headgate schedule ...`."""
    making = root.add("put", put, "make a schedule, or replace it")
    making.add_argument("id")
    making.add_argument("payload", nargs="?", help="JSON or plain text, of the topic's item; the workflow's input")
    making.add_argument("--cron", metavar="FIELDS", help='five fields, like "0 3 * * *"')
    making.add_argument("--tz", metavar="ZONE", help="the zone of --cron, like Europe/Paris (default UTC)")
    making.add_argument("--interval", type=float, metavar="S", help="every so many seconds")
    making.add_argument("--at", type=moment, action="append", metavar="TIME", help="at this time; may be repeated")
    making.add_argument("--topic", help="run an item of this topic")
    making.add_argument("--workflow", metavar="TYPE", help="run a workflow of this type")
    making.add_argument("--dag", metavar="FILE", help="run the DAG in this file")
    making.add_argument("--overlap", choices=get_args(wire.Overlap), help="while a run is unfinished")
    making.add_argument("--catchup", type=float, metavar="S", help="how late a run may begin (default 3600)")
    making.add_argument("--jitter", type=float, metavar="S", help="put each slot off by a part of it")
    making.add_argument("--max-attempts", type=int, metavar="N", help="dead after so many deliveries")
    root.add("list", listing, "list schedules")
    for name, run, about in (
        ("show", show, "show a schedule"),
        ("delete", delete, "delete a schedule; runs go on"),
        ("resume", resume, "go on with the next slot"),
        ("trigger", trigger, "one run now"),
    ):
        root.add(name, run, about).add_argument("id")
    pausing = root.add("pause", pause, "let slots pass")
    pausing.add_argument("id")
    pausing.add_argument("--reason", metavar="TEXT")
    filling = root.add("backfill", backfill, "run past slots once more")
    filling.add_argument("id")
    filling.add_argument("start", type=moment, help="slots after this time, like 2030-01-31T00:00:00Z")
    filling.add_argument("end", type=moment, help="up to this time")
    filling.add_argument("--overlap", choices=("skip", "allow"), help="allow: all at once")
    ticking = root.add("ticks", ticks, "what became of slots, newest first")
    ticking.add_argument("id")
    ticking.add_argument("--limit", type=int, default=20, metavar="N")


def moment(text: str) -> datetime:
    """A time with a zone.

    Raises:
        ArgumentTypeError
    """
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise argparse.ArgumentTypeError("must be a time with a zone, like 2030-01-31T00:00:00Z")
    return found


def put(args: Args) -> int:
    """schedule put."""
    named = {"overlap": "overlap", "catchup_s": "catchup", "jitter_s": "jitter", "max_attempts": "max_attempts"}
    given = {name: getattr(args, flag) for name, flag in named.items() if getattr(args, flag) is not None}
    options: Any = given
    payload = None if args.payload is None else commands.parsed(args.payload)
    dag = None if args.dag is None else Dag.from_spec(commands.read_spec(args.dag))
    with commands.client_of(args) as client:
        found = client.schedules.put(
            args.id,
            cron=args.cron,
            tz=args.tz,
            interval_s=args.interval,
            at=args.at,
            topic=args.topic,
            payload=payload if args.workflow is None else None,
            dag=dag,
            workflow=args.workflow,
            input=None if args.workflow is None else payload,
            **options,
        )
    return _show(args, found)


def listing(args: Args) -> int:
    """schedule list."""
    with commands.client_of(args) as client:
        found = told(client.schedules.all())
    if args.output == "json":
        show_json(found, sys.stdout)
    elif found:
        show_table([_row(one) for one in found], _COLUMNS, sys.stdout)
    else:
        sys.stdout.write("no schedules\n")
    return commands.OK


def show(args: Args) -> int:
    """schedule show."""
    with commands.client_of(args) as client:
        return _show(args, client.schedules.get(args.id))


def delete(args: Args) -> int:
    """schedule delete."""
    with commands.client_of(args) as client:
        deleted = client.schedules.delete(args.id)
    sys.stdout.write(f"{args.id} is deleted\n" if deleted else f"there was no schedule {args.id}\n")
    return commands.OK


def pause(args: Args) -> int:
    """schedule pause."""
    with commands.client_of(args) as client:
        return _show(args, client.schedules.pause(args.id, args.reason))


def resume(args: Args) -> int:
    """schedule resume."""
    with commands.client_of(args) as client:
        return _show(args, client.schedules.resume(args.id))


def trigger(args: Args) -> int:
    """schedule trigger."""
    with commands.client_of(args) as client:
        found = client.schedules.trigger(args.id)
    if args.output == "json":
        show_json(found, sys.stdout)
    else:
        show_table([found.model_dump()], _TICKS, sys.stdout)
    return commands.OK


def backfill(args: Args) -> int:
    """schedule backfill."""
    with commands.client_of(args) as client:
        count = client.schedules.backfill(args.id, args.start, args.end, overlap=args.overlap)
    sys.stdout.write(f"{count} slots\n")
    return commands.OK


def ticks(args: Args) -> int:
    """schedule ticks."""
    with commands.client_of(args) as client:
        found = client.schedules.ticks(args.id, limit=args.limit)
    if args.output == "json":
        show_json(found, sys.stdout)
    elif found:
        show_table([one.model_dump() for one in found], _TICKS, sys.stdout)
    else:
        sys.stdout.write("no slot has come yet\n")
    return commands.OK


def _show(args: Args, schedule: wire.Schedule) -> int:
    if args.output == "json":
        show_json(schedule, sys.stdout)
    else:
        show_fields(_row(schedule), sys.stdout)
    return commands.OK


def _row(schedule: wire.Schedule) -> dict[str, Any]:
    """What a person reads of it: a slot that will pass is not the next one."""
    shown = {**schedule.model_dump(), "spec": _said(schedule.spec)}
    return {**shown, "next_at": None} if schedule.paused else shown


def _said(spec: wire.ScheduleSpecView) -> str:
    if spec.cron is not None:
        return f"{spec.cron} ({spec.tz})"
    if spec.interval_s is not None:
        return f"every {spec.interval_s:g} s"
    return ", ".join(time.isoformat() for time in spec.at or ())
