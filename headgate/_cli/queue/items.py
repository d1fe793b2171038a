"""The commands about items: enqueue, ack and the like, and lists of them."""

import argparse
from collections.abc import Sequence
from typing import Any, Final

from headgate._calls.elements import Result
from headgate._calls.verbs import present
from headgate._cli import commands
from headgate._cli.output import gist, told

_STATUS_EXITS: Final = {
    "not_found": commands.NOT_FOUND,
    "refused": commands.FAILURE,
    "lease_lost": commands.CONFLICT,
    "managed": commands.CONFLICT,
    "finished": commands.CONFLICT,
}


def _results(args: argparse.Namespace, results: Sequence[Result]) -> int:
    rows = [present(**result._asdict()) for result in results]
    columns = ("id", "status", "code") if any("code" in row for row in rows) else ("id", "status")
    commands.show_rows(args, rows, columns, "nothing to do")
    return max((_STATUS_EXITS.get(result.status, commands.OK) for result in results), default=commands.OK)


def enqueue(args: argparse.Namespace) -> int:
    options = present(
        priority=args.priority,
        delay_s=args.delay,
        ttl_s=args.ttl,
        lease_s=args.lease,
        max_attempts=args.max_attempts,
        id=args.id,
        idempotency_key=args.key,
        unique=args.unique or None,
        fairness_key=args.fairness_key,
        metadata=commands.parsed(args.metadata) if args.metadata else None,
    )
    if args.lines:
        payloads = [commands.parsed(line) for line in commands.read("-").splitlines() if line.strip()]
    else:
        text = commands.read("-") if args.payload == "-" else args.payload
        payloads = [commands.parsed(text) if args.payload else None]
    items: list[Any] = [{"topic": args.topic, "payload": payload, **options} for payload in payloads]
    with commands.client_of(args) as client:
        return _results(args, client.enqueue(items))


def ack(args: argparse.Namespace) -> int:
    element: Any = {"id": args.id, "lease_token": args.lease_token}
    if args.result is not None:
        element["output"] = commands.parsed(args.result)
    with commands.client_of(args) as client:
        return _results(args, client.ack([element]))


def nack(args: argparse.Namespace) -> int:
    element: Any = {
        "id": args.id,
        "lease_token": args.lease_token,
        **present(delay_s=args.delay, error=args.error, final=args.final or None),
    }
    with commands.client_of(args) as client:
        return _results(args, client.nack([element]))


def extend(args: argparse.Namespace) -> int:
    element: Any = {"id": args.id, "lease_token": args.lease_token, **present(lease_s=args.lease)}
    with commands.client_of(args) as client:
        return _results(args, client.extend([element]))


def revive(args: argparse.Namespace) -> int:
    with commands.client_of(args) as client:
        return _results(args, client.revive([{"id": item_id} for item_id in args.ids]))


def cancel(args: argparse.Namespace) -> int:
    with commands.client_of(args) as client:
        return _results(args, client.cancel(args.ids))


def item(args: argparse.Namespace) -> int:
    with commands.client_of(args) as client:
        commands.show_one(args, client.item(args.id))
    return commands.OK


def items(args: argparse.Namespace) -> int:
    with commands.client_of(args) as client:
        found = told(client.items(args.topic, args.state, limit=args.limit))
        rows = (
            found
            if args.output == "json"
            else [{**each.model_dump(), "error": gist(each.error)} for each in found]
        )
        commands.show_rows(
            args, rows, ("id", "topic", "state", "priority", "attempt", "payload", "error"), "no items"
        )
    return commands.OK
