"""`headgate workflow lint` and `replay`: looks at code that need no service."""

import argparse
import importlib
import importlib.util
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

from headgate._cli import commands
from headgate._cli.output import printable, show_json
from headgate._stderr import stderr_line
from headgate.errors import HeadgateError, Invalid, NotFound
from headgate.workflow.errors import Mismatch, TurnFailed
from headgate.workflow.lint import lint_file
from headgate.workflow.local.simulation import replay

WORKFLOWS: Final = """\
examples:
  headgate workflow start order '{"items": ["book"]}' --id order-17
  headgate workflow list --type order --stuck           runs whose code cannot go on
  headgate workflow signal order-17 approval '{"by": "ada"}'
  headgate workflow update order-17 address '"Rue 1"'   and what its code answers
  headgate workflow cancel --type order --version 2     all of them that run
  headgate workflow resume order-17 --replace 'card/charge#1={"receipt": 7}'   with that in the place of its output
  headgate workflow reset order-17 12                   its code goes on as when it was told of event 12
  headgate workflow move order-17 4                     workers of version 4 go on with it
  headgate workflow wait order-17 --timeout 60          until it is over
  headgate workflow versions order                      which versions of its code open runs need
  headgate workflow history order-17 --to run.json      as `replay` takes it
  headgate workflow check order shop.orders:order       open runs against this code
  headgate workflow check shop.orders                   those of all workflows that this module registers
  headgate workflow lint shop/                          what in workflows' code will not replay
  headgate workflow replay run.json shop.orders:order   the code against a run's history
  headgate workflow replay kept/ shop.orders:order      and against each one that was kept
"""
LINT: Final = r"""\ Reads functions that are decorated with `.workflow(...)` or whose first parameter is a
`Workflow`, and what they call in their file. Nothing is run. Exit code 1 if anything is found.
"""
REPLAY: Final = r"""\ FUNCTION is module:name, or path/file.py:name. The code runs, its commands go nowhere: no
service is needed. Each hash seed is a process of its own, so that what depends on the order of a set is found.
Exit code 1 if the code and the history part: at which event, what the history has, what the code asks for, and at
which line.
"""
SEEDS_MAX: Final = 20


class Add(Protocol):
    """Adds a command to a parser."""

    def __call__(
        self, name: str, run: Callable[[Any], int] | None, about: str, *, epilog: str | None = None
    ) -> argparse.ArgumentParser: ...


def add_commands(add: Add) -> None:
    lint = add("lint", lint_code, "look for what will not replay", epilog=LINT)
    lint.add_argument("paths", nargs="+", metavar="FILE", help="files, or directories with files of Python")
    again = add("replay", replay_history, "run code against a run's history", epilog=REPLAY)
    again.add_argument(
        "history",
        metavar="HISTORY",
        help="a history as JSON (- reads standard input), or a directory of such files",
    )
    again.add_argument("function", metavar="FUNCTION")
    again.add_argument("--seeds", type=int, default=3, metavar="N", help="under so many hash seeds (default 3)")
    again.add_argument(
        "--unguarded", action="store_true", help="do not watch for clock, chance, files and sockets"
    )


def stdout_line(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def lint_code(args: commands.Args) -> int:
    files: list[Path] = []
    for given in map(Path, args.paths):
        if not given.exists():
            raise NotFound(f"there is no {given}")
        files += sorted(given.rglob("*.py")) if given.is_dir() else [given]
    found = [finding for file in files for finding in lint_file(file)]
    if args.output == "json":
        show_json([finding._asdict() for finding in found], sys.stdout)
    else:
        for finding in found:
            stdout_line(printable(str(finding)))
    return commands.FAILURE if found else commands.OK


def replay_history(args: commands.Args) -> int:
    if not 1 <= args.seeds <= SEEDS_MAX:
        raise Invalid(f"--seeds is 1 to {SEEDS_MAX}")
    if args.seeds > 1:
        return _under_seeds(args)
    function = function_named(args.function)
    given = Path(args.history)
    files = sorted(given.glob("*.json")) if given.is_dir() else [args.history]
    if not files:
        raise NotFound(f"there is no history (*.json) in {given}")
    for file in map(str, files):
        code = _replay_one(args, file, function)
        if code != commands.OK:
            break
    return code


def _replay_one(args: commands.Args, file: str, function: Callable[..., Any]) -> int:
    history = history_in(file)
    try:
        run = replay(history, function, watched=not args.unguarded)
    except TurnFailed as error:
        return _tell(args, file, error)
    state = run.end.spec["state"] if run.end else "waits for " + (", ".join(run.is_waiting_for) or "a signal")
    failure = run.end.spec.get("error") if run.end else None
    if args.output == "json":
        fields = {"events": run.told_count, "state": state, "where": run.where()}
        show_json({"history": file, **fields} | ({} if failure is None else {"error": failure}), sys.stdout)
    else:
        stdout_line(
            printable(f"{file}: the same commands at each of {run.told_count} events; {state} ({run.where()})")
        )
        for line in (failure or "").splitlines():
            stdout_line(f"  {printable(line)}")
    return commands.OK


def _under_seeds(args: commands.Args) -> int:
    """Each seed in a process of its own; the first that fails is what is said."""
    options = ["--seeds", "1", *(["--unguarded"] if args.unguarded else []), "-o", args.output]
    read = sys.stdin.buffer.read() if args.history == "-" else b""
    said = b""
    for seed in range(args.seeds):
        run = subprocess.run(  # noqa: S603 (this very program)
            [sys.executable, "-m", "headgate", "workflow", "replay", args.history, args.function, *options],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            input=read,
            capture_output=True,
            check=False,
        )
        said = run.stdout
        if run.returncode != 0:
            sys.stderr.write(run.stderr.decode(errors="replace"))
            if seed:
                stderr_line(f"headgate: under hash seed {seed}, and not under {seed - 1}: the order of a set?")
            break
    sys.stdout.write(said.decode(errors="replace"))
    return run.returncode


def _tell(args: commands.Args, file: str, error: TurnFailed) -> int:
    if args.output == "json":
        fields = {name: getattr(error, name, None) for name in ("event", "expected", "got", "line")}
        show_json({"history": file, "code": error.code, "error": str(error), **fields}, sys.stdout)
    elif isinstance(error, Mismatch):
        for name in ("event", "expected", "got", "line"):
            stdout_line(printable(f"{name + ':':10} {getattr(error, name) or 'nothing'}"))
    stderr_line(f"headgate: {printable(file)}: {error.code}: {printable(str(error))}")
    return commands.FAILURE


def history_in(path: str) -> dict[str, Any]:
    try:
        found = json.loads(sys.stdin.read() if path == "-" else Path(path).read_text())
    except (ValueError, RecursionError):
        raise Invalid(f"{path} is not JSON") from None
    if not isinstance(found, dict) or not isinstance(found.get("events"), list):
        raise Invalid(f"{path} is not a run's history: it has no list of `events`")
    return found


def function_named(name: str) -> Callable[..., Any]:
    """What `module:name` or `file.py:name` names.

    Raises:
        Invalid, NotFound: it names nothing, or no coroutine function.
    """
    where, _, attribute = name.rpartition(":")
    if not where:
        raise Invalid(f"{name!r} is neither module:name nor path/file.py:name")
    try:
        found = getattr(module_named(where), attribute)
    except AttributeError as error:
        raise NotFound(f"cannot import {name}: {error}") from error
    if not inspect.iscoroutinefunction(found):
        raise Invalid(f"{name} is no `async def`")
    result: Callable[..., Any] = found
    return result


def module_named(where: str) -> Any:
    """A module, or that of a file.

    Raises:
        NotFound: there is none, or it cannot be imported.
    """
    try:
        return _module(where)
    except HeadgateError:
        raise
    except (ImportError, AttributeError, SyntaxError) as error:
        raise NotFound(f"cannot import {where}: {error}") from error


def _module(where: str) -> Any:
    sys.path.insert(0, str(Path.cwd()))
    if not where.endswith(".py"):
        return importlib.import_module(where)
    path = Path(where)
    if not path.exists():
        raise NotFound(f"there is no {path}")
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
