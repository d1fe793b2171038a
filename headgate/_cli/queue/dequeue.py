"""`headgate dequeue`: with `--ack`, what could not be printed is handed back, not acked."""

import argparse
import contextlib
import select
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Any, Final

from headgate._calls.elements import Leased
from headgate._cli import commands
from headgate._cli.commands import CONFLICT, FAILURE, OK, show_rows
from headgate._cli.output import json_text, printable, silence
from headgate._client.blocking.client import Client
from headgate._stderr import stderr_line
from headgate.errors import HeadgateError

_COLUMNS = ("id", "topic", "attempt", "payload", "lease_token", "lease_expires_at")
# What most have none of.
_MORE: Final[dict[str, Any]] = {"inputs": None, "metadata": {}, "headers": {}, "priority": 0, "dag": None}


def dequeue(args: argparse.Namespace) -> int:
    with commands.client_of(args) as client:
        found = client.dequeue(dict.fromkeys(args.topics, args.count), wait_s=args.wait, lease_s=args.lease)
        if not (args.ack and found):
            show_rows(args, [_row(item) for item in found], _COLUMNS, "nothing is ready")
            return OK
        try:
            _show_whole(args, found)
            _push_out()
        except OSError as error:
            _hand_back(client, found, error)
            silence()
            return FAILURE
        except BaseException as error:
            _hand_back(client, found, error)
            raise
        return _ack(client, found)


def _show_whole(args: argparse.Namespace, items: Sequence[Leased]) -> None:
    """Show all that was given with the items: nobody can ask for them again.

    Raises:
        UnicodeEncodeError: the output cannot hold it.
    """
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors in ("ignore", "replace"):
        sys.stdout.reconfigure(errors="strict")
    more = [name for name, empty in _MORE.items() if any(getattr(item, name) != empty for item in items)]
    rows = [_row(item) for item in items]
    if args.output != "json":
        rows = [{**row, **{name: _text(row[name]) for name in ("payload", *more)}} for row in rows]
    show_rows(args, rows, (*_COLUMNS, *more), "", whole=True)


def _text(value: Any) -> str | None:
    """A value in a table that shows all of it: as JSON what it would round, or say by a word, or blank out."""
    if value is None or (isinstance(value, str) and value == printable(value)):
        return value
    return json_text(value)


def _push_out() -> None:
    """Raises OSError unless what was printed has left this process for somebody who is there."""
    out = sys.stdout
    out.flush()
    try:
        number = out.fileno()
    except (OSError, ValueError):
        return  # no file of the system
    poll = select.poll()
    poll.register(number, 0)
    # A pipe takes what fits into it also when its reader is about to go; one whose reader is gone says so.
    if any(event & (select.POLLERR | select.POLLNVAL) for _, event in poll.poll(0)):
        raise BrokenPipeError("nobody reads the output")


def _hand_back(client: Client, items: Sequence[Leased], why: BaseException) -> None:
    nacks: list[Any] = [
        {
            "id": item.id,
            "lease_token": item.lease_token,
            "error": f"it could not be printed: {type(why).__name__}",
            "costs_attempt": False,
        }
        for item in items
    ]
    told = "handed back"
    try:
        client.nack(nacks)
    except HeadgateError as error:
        told = f"free again when their leases have run out ({error})"
    said = f"headgate: nothing was acked: the output could not be written; {len(items)} items are {told}"
    with contextlib.suppress(OSError):
        stderr_line(said)


def _ack(client: Client, items: Sequence[Leased]) -> int:
    code = OK
    for result in client.ack([item.ack() for item in items]):
        if result.status not in ("acked", "already_acked"):
            stderr_line(f"headgate: {result.id} was not acked: {result.code or result.status}; it comes again")
            code = max(code, FAILURE if result.status == "refused" else CONFLICT)
    return code


def _row(item: Leased) -> dict[str, Any]:
    fields = {name: getattr(item, name) for name in item.__slots__}
    return {**fields, "dag": item.dag._asdict() if item.dag else None}
