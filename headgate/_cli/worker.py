"""`headgate worker`: an app's functions at work."""

import argparse
import logging
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any, Final

from headgate._app.processes import chosen, run_here, sources
from headgate._calls.verbs import present
from headgate._worker.supervisor import Supervisor

WORKER: Final = """\
TARGET is module:name of an App (or a Worker), like media:app; name is `app` if it is left out.

examples:
  headgate worker media:app --processes 4
  headgate worker media:app --reload              start anew when a source file changes
  headgate worker media:app --only resize         some of its functions
HEADGATE_CODE_VERSION, as a commit, is shown with the worker by `headgate workers`.
SIGTERM and Ctrl-C let running jobs end for --drain seconds; a second one does not wait.
"""


def add_worker(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="TARGET")
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="so many workers (default 1)")
    parser.add_argument("--reload", action="store_true", help="start anew when a source file changes")
    parser.add_argument("--only", action="append", metavar="FUNCTION", help="only this one; may be repeated")
    parser.add_argument("--drain", type=float, metavar="S", help="how long jobs may go on at the end (default 30)")
    parser.add_argument("--lease", type=float, metavar="S", help="how long a killed worker holds its jobs back")
    parser.add_argument("--metrics-port", type=int, metavar="PORT", help="where Prometheus may scrape it")
    parser.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))


def worker(args: Any) -> int:
    """Run the app's worker, here or in processes of their own."""
    if args.processes < 1:
        raise ValueError("--processes must be 1 or more")
    # For the app's own client, and those of the processes.
    for name in ("queue_url", "dag_url", "token", "namespace"):
        if value := getattr(args, name):
            os.environ[f"HEADGATE_{name.upper()}"] = value
    options = present(only=args.only, drain_s=args.drain, lease_s=args.lease, metrics_port=args.metrics_port)
    if args.processes == 1 and not args.reload:
        logging.basicConfig(level=args.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        run_here(args.target, options, args.namespace)
        return 0
    if args.metrics_port is not None:
        raise ValueError("--metrics-port is of one process: without --processes and --reload")
    if not args.reload:
        chosen(args.target, options, args.namespace)  # what is wrong with it is said once, not by each process
    # Kept bytecode stands for a source of the same size and second: a file changed twice in one would not be read.
    python = [sys.executable, "-B"] if args.reload else [sys.executable]
    command = [*python, "-m", "headgate", "worker", args.target, "--log-level", args.log_level]
    for name in args.only or ():
        command += ["--only", name]
    for flag, value in (("--drain", args.drain), ("--lease", args.lease), ("-n", args.namespace)):
        command += [flag, str(value)] if value is not None else []
    watched = partial(sources, Path.cwd()) if args.reload else None
    return Supervisor(command, args.processes, watched=watched).run()
