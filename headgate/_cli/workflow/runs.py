"""The commands about runs of workflows, which ask the service."""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from headgate import wire
from headgate._cli import commands
from headgate._cli.output import LiveLine, printable, show_fields, show_json, show_table, told
from headgate._cli.workflow.checked import Code
from headgate._cli.workflow.code import SEEDS_MAX, Add, history_in
from headgate._stderr import stderr_line
from headgate._worker.deciders import PINNED_TOPIC, TOPIC
from headgate.errors import Invalid
from headgate.wire.workflow import Stuck
from headgate.workflow.errors import Mismatch, TurnFailed
from headgate.workflow.local.simulation import replay

Args = argparse.Namespace

CHECK: Final = r"""\ Replays open runs of a type on this code, before it is deployed: FUNCTION is module:name, or
path/file.py:name. A MODULE in the place of both stands for all workflows of its workers and apps, those of pinned
versions too. Exit code 1 where one of the runs parts from its history: the run, the event, what the
history has, what the code asks for, and at which line. Each hash seed is a process of its own.
"""
WAITING_TOLD_S: Final = 1.5
_COLUMNS: Final = ["id", "type", "version", "state", "parked", "stuck", "last_event", "run"]
_VERSIONS: Final = ["type", "version", "running", "stuck", "workers"]
_TIMELINE: Final = ["key", "kind", "made", "ended", "state"]


def add_commands(add: Add) -> None:
    starting = add("start", start, "start a run, or find the living one of its id")
    starting.add_argument("type")
    starting.add_argument("input", nargs="?", help="JSON or plain text")
    starting.add_argument("--id", metavar="ID", help="of the workflow; one is made by default")
    starting.add_argument("--version", metavar="VERSION", help="only workers of this one go on with the run")
    starting.add_argument("--reuse", choices=("never", "failed", "always"), help="where the id's run is over")
    listing = add("list", list_runs, "list runs, newest first")
    listing.add_argument("--type", metavar="TYPE")
    listing.add_argument("--state", choices=("running", *sorted(wire.OVER_STATES)))
    listing.add_argument("--version", metavar="VERSION")
    listing.add_argument("--stuck", action="store_true", help="those whose code cannot go on")
    listing.add_argument("--limit", type=int, default=100, metavar="N")
    for name, run, about in (
        ("show", show, "show a run"),
        ("query", query, "what a run has published, as JSON"),
        ("timeline", timeline, "what a run asked for, and when each ended"),
    ):
        add(name, run, about).add_argument("id")
    awaiting = add("wait", wait, "wait until a run is over, and show it: exit code 0 if it has succeeded")
    awaiting.add_argument("id")
    awaiting.add_argument("--timeout", type=float, metavar="S", help="show it as it stands then")
    saving = add("history", history, "a run's history, as `replay` takes it")
    saving.add_argument("id")
    saving.add_argument("--to", metavar="FILE", help="write it there")
    telling = add("signal", signal, "tell a run something")
    telling.add_argument("id")
    telling.add_argument("name")
    telling.add_argument("data", nargs="?", help="JSON or plain text")
    asking = add("update", update, "tell a run something, and show what its code answers")
    asking.add_argument("id")
    asking.add_argument("name")
    asking.add_argument("data", nargs="?", help="JSON or plain text")
    asking.add_argument("--id", dest="update_id", metavar="UPDATE", help="of the update; one is made by default")
    asking.add_argument("--wait-s", type=float, default=20.0, metavar="S", help="for the answer (default 20)")
    cancelling = add("cancel", cancel, "ask a run to end, or all of a type or version; their code may clean up")
    cancelling.add_argument("id", nargs="?")
    cancelling.add_argument("--type", metavar="TYPE", help="in place of an id: all of this type that run")
    cancelling.add_argument("--version", metavar="VERSION", help="all of this version")
    cancelling.add_argument("--stuck", action="store_true", help="all whose code cannot go on")
    cancelling.add_argument("--reason", metavar="TEXT")
    _add_verbs(add)
    counting = add("versions", versions, "open runs by the version of their code, and the workers that have it")
    counting.add_argument("type", nargs="?", metavar="TYPE")
    counting.add_argument(
        "--limit", type=int, default=10_000, metavar="N", help="of the newest runs (default 10000)"
    )
    checking = add("check", check, "replay open runs on this code, before it is deployed", epilog=CHECK)
    checking.add_argument("type", metavar="TYPE|MODULE")
    checking.add_argument("function", nargs="?", metavar="FUNCTION")
    checking.add_argument("--sample", type=int, default=500, metavar="N", help="so many open runs (default 500)")
    checking.add_argument("--corpus", metavar="DIR", help="and the histories (*.json) that are kept there")
    checking.add_argument("--seeds", type=int, default=3, metavar="N", help="under so many hash seeds (default 3)")


def _add_verbs(add: Add) -> None:
    for name, run, about in (
        ("pause", pause, "release nothing more of a run"),
        ("terminate", terminate, "end a run"),
        ("resume", resume, "go on with a run that is paused, stuck or has failed"),
    ):
        ending = add(name, run, about)
        ending.add_argument("id")
        ending.add_argument("--reason", metavar="TEXT")
        if name == "resume":
            ending.add_argument(
                "--replace",
                action="append",
                default=[],
                metavar="KEY=OUTPUT",
                help="what its code is told in the place of what KEY came to (JSON or text); may be repeated",
            )
            ending.add_argument(
                "--retry",
                action="append",
                default=[],
                metavar="KEY",
                help="do once more what did not succeed, and tell its code what that comes to; may be repeated",
            )
    going_back = add("reset", reset, "let a run's code go on from an earlier event of its history")
    going_back.add_argument("id")
    going_back.add_argument("event", type=int, metavar="EVENT", help="its number, as `history` shows it")
    going_back.add_argument("--reason", metavar="TEXT")
    moving = add("move", move, "let workers of another version go on with a run")
    moving.add_argument("id")
    pinned = moving.add_mutually_exclusive_group(required=True)
    pinned.add_argument("version", nargs="?", metavar="VERSION")
    pinned.add_argument("--unpin", action="store_true", help="workers of any version")


def start(args: Args) -> int:
    """workflow start."""
    input = None if args.input is None else commands.parsed(args.input)
    with commands.client_of(args) as client:
        run = client.workflows.start(args.type, input, id=args.id, reuse=args.reuse, version=args.version)
        return _show(args, run.show(), is_started=True)


def list_runs(args: Args) -> int:
    """workflow list."""
    with commands.client_of(args) as client:
        found = told(
            client.workflows.list(
                type=args.type,
                state=args.state,
                version=args.version,
                stuck=True if args.stuck else None,
                limit=args.limit,
            )
        )
    if args.output == "json":
        show_json(list(found), sys.stdout)
    elif found:
        show_table([_row(run) for run in found], _COLUMNS, sys.stdout)
    else:
        sys.stdout.write("no such runs\n")
    return commands.OK


def show(args: Args) -> int:
    """workflow show."""
    with commands.client_of(args) as client:
        return _show(args, client.workflows.get(args.id).show())


def wait(args: Args) -> int:
    """workflow wait."""
    with commands.client_of(args) as client:
        run = client.workflows.get(args.id).wait(args.timeout)
    _show(args, run)
    return commands.OK if run.state == "succeeded" else commands.FAILURE


def query(args: Args) -> int:
    """workflow query."""
    with commands.client_of(args) as client:
        show_json(client.workflows.get(args.id).show().published, sys.stdout)
    return commands.OK


def signal(args: Args) -> int:
    """workflow signal."""
    data = None if args.data is None else commands.parsed(args.data)
    with commands.client_of(args) as client:
        answer = client.workflows.get(args.id).signal(args.name, data)
    if args.output == "json":
        show_json(answer, sys.stdout)
    else:
        sys.stdout.write(f"{answer.status}\n")
    return commands.OK


def update(args: Args) -> int:
    """workflow update."""
    data = None if args.data is None else commands.parsed(args.data)
    with commands.client_of(args) as client:
        handle = client.workflows.get(args.id)
        with _told_of_waiting():
            found = handle.update(args.name, data, id=args.update_id, wait_s=args.wait_s)
    if args.output == "json":
        show_json(found, sys.stdout)
    else:
        show_fields(found.model_dump(exclude_none=True), sys.stdout)
    return commands.OK if found.status in ("done", "pending") else commands.FAILURE


@contextlib.contextmanager
def _told_of_waiting() -> Iterator[None]:
    """Say on a terminal what a call waits for that takes longer than a worker needs."""
    told = threading.Timer(
        WAITING_TOLD_S, stderr_line, ["headgate: waits for a worker of the workflow's type ..."]
    )
    told.daemon = True
    if sys.stderr is not None and sys.stderr.isatty():
        told.start()
    try:
        yield
    finally:
        told.cancel()


def resume(args: Args) -> int:
    """workflow resume."""
    outputs: dict[str, Any] = {}
    for given in args.replace:
        key, equals, output = given.partition("=")
        if not (key and equals):
            raise Invalid(f"--replace {given!r} is not KEY=OUTPUT, as card/charge#2='{{\"receipt\": 7}}'")
        outputs[key] = commands.parsed(output)
    with commands.client_of(args) as client:
        run = client.workflows.get(args.id)
        return _show(args, run.resume(args.reason, outputs=outputs or None, retry=args.retry or None))


def reset(args: Args) -> int:
    """workflow reset."""
    with commands.client_of(args) as client:
        return _show(args, client.workflows.get(args.id).reset(args.event, args.reason))


def move(args: Args) -> int:
    """workflow move."""
    with commands.client_of(args) as client:
        return _show(args, client.workflows.get(args.id).move(args.version))


def versions(args: Args) -> int:
    """workflow versions."""
    with commands.client_of(args) as client:
        open_runs = told(client.workflows.list(type=args.type, state="running", limit=args.limit))
        known = Counter(each.topic for worker in told(client.workers.all()) for each in worker.topics)
    rows = version_rows(open_runs, known)
    if args.output == "json":
        show_json(rows, sys.stdout)
    elif rows:
        show_table(rows, _VERSIONS, sys.stdout)
    else:
        sys.stdout.write("no open runs\n")
    return commands.OK


def version_rows(open_runs: Iterable[wire.WorkflowRun], workers: Counter[str]) -> list[dict[str, Any]]:
    """Of each type and version how many runs are open, how many of them stuck, and how many workers, which are
    given by topic, take their deliveries."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for run in open_runs:
        row = found.setdefault(
            (run.type, run.version or ""),
            {"type": run.type, "version": run.version, "running": 0, "stuck": 0},
        )
        row["running"] += 1
        row["stuck"] += run.stuck is not None
    for (type, version), row in found.items():
        row["workers"] = workers[f"{PINNED_TOPIC}{version}/{type}" if version else f"{TOPIC}{type}"]
    return [found[key] for key in sorted(found)]


def _verb(name: str) -> Callable[[Args], int]:
    def run(args: Args) -> int:
        with commands.client_of(args) as client:
            handle = client.workflows.get(args.id)
            return _show(args, getattr(handle, name)(args.reason))

    return run


terminate, pause = map(_verb, ("terminate", "pause"))


def cancel(args: Args) -> int:
    """workflow cancel."""
    some = args.type is not None or args.version is not None or args.stuck
    if some == (args.id is not None):
        raise Invalid("give an id, or which runs: --type, --version, --stuck")
    if not some:
        return _verb("cancel")(args)
    with commands.client_of(args) as client, LiveLine(sys.stderr) as line:
        count = client.workflows.cancel_all(
            type=args.type,
            version=args.version,
            stuck=args.stuck or None,
            reason=args.reason,
            progress=lambda done, total: line.steps(done, total, "runs"),
        )
    sys.stdout.write(f"asked to end: {count}\n")
    return commands.OK


def history(args: Args) -> int:
    """workflow history."""
    with commands.client_of(args) as client:
        found = client.workflows.get(args.id).history()
    if args.to is None:
        show_json(found, sys.stdout)
    else:
        Path(args.to).write_text(json.dumps(found))
        stderr_line(f"{len(found['events'])} events in {args.to}")
    return commands.OK


def timeline(args: Args) -> int:
    """workflow timeline."""
    with commands.client_of(args) as client:
        found = client.workflows.get(args.id).history()
    rows = timeline_rows(found["events"])
    if args.output == "json":
        show_json(rows, sys.stdout)
    else:
        show_table(rows, _TIMELINE, sys.stdout)
    return commands.OK


def timeline_rows(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a run asked for and was told, each with its times, in the order of their beginnings."""
    found: dict[str, dict[str, Any]] = {}
    for event in events:
        kind, key, state = event["kind"], event.get("key", ""), event["state"]
        if event.get("void"):
            continue
        if kind in ("cancel", "publish"):
            key = f"{kind} {key}"
        row = found.setdefault(key or f"{kind} {state}", {"key": key or kind, "kind": kind, "made": event["at"]})
        row["state"] = state
        if state != "added":
            row["ended"] = event["at"]
    return list(found.values())


def check(args: Args) -> int:
    """workflow check."""
    if args.sample < 0 or (args.sample == 0 and args.corpus is None):
        raise Invalid("--sample is at least 1, or 0 with --corpus")
    if not 1 <= args.seeds <= SEEDS_MAX:
        raise Invalid(f"--seeds is 1 to {SEEDS_MAX}")
    code = Code(args.type, args.function)
    with tempfile.TemporaryDirectory() as directory:
        kept = [Path(args.corpus)] if args.corpus else []
        if args.sample:
            _save_open_runs(args, code.types, Path(directory))
            kept.append(Path(directory))
        found_there = [file for place in kept for file in sorted(place.glob("*.json"))]
        files = [file for file in found_there if code.of(history_in(str(file))) is not None]
        if args.seeds == 1:
            parted = []
            with LiveLine(sys.stderr) as progress:
                for count, file in enumerate(files):
                    progress.steps(count, len(files), "runs")
                    if found := _parted_from(file, code):
                        parted.append(found)
        else:
            parted = _parted_under_seeds(args, kept)
    if args.output == "json":
        show_json({"runs": len(files), "parted": parted}, sys.stdout)
    else:
        for one in parted:
            _write_parted(one["id"], one)
        sys.stdout.write(f"{len(files) - len(parted)} of {len(files)} runs replay to the same\n")
    return commands.FAILURE if parted else commands.OK


def _save_open_runs(args: Args, types: Iterable[str], directory: Path) -> None:
    with commands.client_of(args) as client, LiveLine(sys.stderr) as progress:
        open_runs: list[wire.WorkflowRun] = []
        for type in types:
            left = args.sample - len(open_runs)
            open_runs += told(client.workflows.list(type=type, state="running", limit=left)) if left else []
        for number, run in enumerate(open_runs):
            progress.steps(number, len(open_runs), "runs read")
            found = client.workflows.get(run.id).history()
            (directory / f"{number:06d}.json").write_text(json.dumps(found))


def _parted_under_seeds(args: Args, kept: Sequence[Path]) -> list[dict[str, Any]]:
    """Each hash seed in a process of its own, since it holds for a whole one; what parts under the first that any
    part under."""
    progress = LiveLine(sys.stderr)
    of_code = [args.type] if args.function is None else [args.type, args.function]
    for seed in range(args.seeds):
        parted: list[dict[str, Any]] = []
        progress.steps(seed, args.seeds, "seeds")
        for place in kept:
            options = ["--sample", "0", "--corpus", str(place), "--seeds", "1", "-o", "json"]
            run = subprocess.run(  # noqa: S603 (this very program)
                [sys.executable, "-m", "headgate", "workflow", "check", *of_code, *options],
                env={**os.environ, "PYTHONHASHSEED": str(seed)},
                capture_output=True,
                check=False,
            )
            if run.returncode not in (commands.OK, commands.FAILURE) or not run.stdout:
                raise Invalid(run.stderr.decode(errors="replace").strip())
            parted += json.loads(run.stdout)["parted"]
        if parted:
            progress.close()
            return [{**one, "hash_seed": seed} for one in parted]
    progress.close()
    return []


def _parted_from(file: Path, code: Code) -> dict[str, Any] | None:
    found = history_in(str(file))
    function = code.of(found)
    assert function is not None
    try:
        replay(found, function)
    except TurnFailed as error:
        first: dict[str, Any] = next(iter(found["events"]), {})
        return _parted(str((first.get("data") or {}).get("id", file.stem)), error)
    return None


def _parted(id: str, error: TurnFailed) -> dict[str, Any]:
    found: dict[str, Any] = {"id": id, "code": error.code, "error": str(error)}
    if isinstance(error, Mismatch):
        found |= {"event": error.event, "expected": error.expected, "got": error.got, "line": error.line}
    return found


def _row(run: wire.WorkflowRun) -> dict[str, Any]:
    return {**run.model_dump(), "stuck": run.stuck.code if run.stuck else None}


def stuck_fields(stuck: Stuck) -> dict[str, Any]:
    """What is known of where a run's code parts from its history, else the error."""
    return _parted_fields(stuck.model_dump())


def _parted_fields(found: Mapping[str, Any]) -> dict[str, Any]:
    fields = {name: found[name] for name in ("event", "expected", "got", "line") if found.get(name)}
    return fields or {"error": found["error"]}


def _write_parted(what: str, found: Mapping[str, Any]) -> None:
    """One line of what it is, and one for each thing that is known of it."""
    sys.stdout.write(printable(f"{what}: {found['code']}") + "\n")
    for name, value in _parted_fields(found).items():
        sys.stdout.write(printable(f"  {value}" if name == "error" else f"  {name}: {value}") + "\n")


def _show(args: Args, run: wire.WorkflowRun, *, is_started: bool = False) -> int:
    """Show a run; of one that was started also whether it was there before."""
    if args.output == "json":
        show_json(run, sys.stdout)
        return commands.OK
    fields = run.model_dump(exclude_none=True, exclude={"stuck"} if is_started else {"stuck", "existing"})
    show_fields(fields, sys.stdout)
    if run.stuck is not None:
        times = "" if run.stuck.attempts == 1 else f", {run.stuck.attempts} times in a row"
        _write_parted(f"stuck{times}", run.stuck.model_dump())
    return commands.OK
