"""`headgate workers`: who takes items."""

import argparse
import sys
from typing import Any, Final

from headgate._cli import commands
from headgate._cli.output import show_json, show_table, told

_COLUMNS: Final = ["name", "state", "host", "version", "topics", "slots", "running", "since", "last_seen"]


def add_command(root: Any) -> None:
    """The command."""
    parser = root.add("workers", workers, "list the workers that are there")
    parser.add_argument("--gone", action="store_true", help="those that went lately, instead")


def workers(args: argparse.Namespace) -> int:
    """List them, by name."""
    with commands.client_of(args) as client:
        found = told(client.workers.all(gone=args.gone))
    if args.output == "json":
        show_json(found, sys.stdout)
    elif found:
        rows = [{**one.model_dump(), "topics": " ".join(each.topic for each in one.topics)} for one in found]
        show_table(rows, _COLUMNS, sys.stdout)
    else:
        sys.stdout.write("no workers\n")
    return commands.OK
