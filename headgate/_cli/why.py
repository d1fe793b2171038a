"""`headgate why` and `headgate top`: why something does not go on, and what goes on now."""

import re
import sys
import time
from typing import Any, Final

from headgate import wire
from headgate._cli import commands
from headgate._cli.output import printable, show_json, show_table
from headgate._client.client import Client
from headgate.errors import NotFound

_ID: Final = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}").fullmatch
_COLUMNS: Final = ("topic", "ready", "leased", "delayed", "dead", "oldest_ready", "paused")
_CLEAR: Final = "\x1b[H\x1b[2J"


def why(args: commands.Args) -> int:
    with commands.client_of(args) as client:
        found = _why(client, args.what, args.node)
    if args.output == "json":
        show_json(found, sys.stdout)
        return commands.OK
    sys.stdout.write(f"{printable(found.sentence)}\n")
    if len(found.causes) > 1:
        for cause in found.causes:
            since = f"  (since {cause.since:%Y-%m-%d %H:%M:%SZ})" if cause.since else ""
            sys.stdout.write(f"  - {printable(cause.text)}{since}\n")
    return commands.OK


def _why(client: Client, what: str | None, node: str | None) -> wire.Why:
    """Of the item or the DAG of that id, else of the topic of that name; of a DAG's node; of the namespace."""
    if what is None:
        return client.why.namespace()
    if node is None and not _ID(what):
        return client.why.topic(what)
    if node is None:
        try:
            return client.why.item(what)
        except NotFound:
            pass  # a DAG's, then
    return client.dag(what).why(node)


def top(args: commands.Args) -> int:
    """Topics, most ready first, again and again until it is interrupted."""
    with commands.client_of(args) as client:
        while True:
            topics = sorted(client.topics(), key=lambda topic: -topic.ready)
            rows: list[dict[str, Any]] = [
                {**topic.model_dump(), "oldest_ready": topic.oldest_ready_age_s, "paused": topic.paused or None}
                for topic in topics[: args.rows]
            ]
            if args.once and args.output == "json":
                show_json(rows, sys.stdout)
                return commands.OK
            if not args.once and sys.stdout.isatty():
                sys.stdout.write(_CLEAR)
            sums = ", ".join(
                f"{sum(getattr(t, name) for t in topics)} {name}" for name in ("ready", "leased", "dead")
            )
            sys.stdout.write(f"{client.namespace}: {len(topics)} topics, {sums}\n\n")
            show_table(rows, _COLUMNS, sys.stdout)
            sys.stdout.flush()
            if args.once:
                return commands.OK
            time.sleep(args.every)
