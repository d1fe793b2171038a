"""`headgate limits`: what topics hand out at most."""

import argparse
import sys
from typing import Any, Final

from headgate import _commands as commands
from headgate._output import show_fields, show_json, show_table
from headgate.wire import TopicLimitsView

LIMITS: Final = """\
examples:
  headgate limits                                  the topics that have limits, and what is in flight
  headgate limits bank                             those of one topic
  headgate limits bank --rate 5                    5 items a second, and 5 at once after a pause
  headgate limits bank --rate 5 --burst 1          5 a second, one by one
  headgate limits bank --concurrency 2             2 at a time; a rate that was set stays
  headgate limits bank --rate none                 no rate any more; the others stay
  headgate limits bank --clear                     no limits at all
  headgate limits job/resize --concurrency 4       the function `resize` of an app

Limits count for all workers together: 5 a second are 5, however many processes take them. An item that finds
no room stays ready, in its order. An item is in flight from its dequeue until it is acked, given back, or its
lease ends. In force within about a second.

To slow a topic for a while only, as when a service says 429, raise `Throttled(retry_after_s)` in the handler.
To deliver nothing at all: `headgate topic pause TOPIC`. Needs a token with scope `admin` for the namespace.
"""

_COLUMNS: Final = ["topic", "rate", "burst", "concurrency", "in_flight"]


def add_command(root: Any) -> None:
    """The command."""
    parser = root.add("limits", limits, "limit how fast and how many a topic hands out", epilog=LIMITS)
    parser.add_argument("topic", nargs="?")
    parser.add_argument(
        "--rate", type=_rate, metavar="N", default=argparse.SUPPRESS, help="items a second, or none"
    )
    parser.add_argument("--burst", type=int, metavar="N", help="of a rate: so many at once (a second's worth)")
    parser.add_argument(
        "--concurrency", type=_concurrency, metavar="N", default=argparse.SUPPRESS, help="in flight, or none"
    )
    parser.add_argument("--clear", action="store_true", help="take all limits of the topic away")


def limits(args: argparse.Namespace) -> int:
    """Show limits, or change those that are named; the service takes all of a topic at once."""
    given = {name: getattr(args, name) for name in ("rate", "concurrency") if hasattr(args, name)}
    if args.burst is not None:
        given["burst"] = args.burst
    if problem := _problem(args, given):
        sys.stderr.write(f"headgate: {problem}; see --help\n")
        return commands.USAGE
    with commands.client_of(args) as client:
        if args.topic is None:
            return _list(args, client.limits.all())
        if args.clear:
            return _show(args, client.limits.put(args.topic))
        found = client.limits.get(args.topic)
        if given:
            found = client.limits.put(args.topic, **_changed(found, given))
        return _show(args, found or TopicLimitsView(topic=args.topic))


def _problem(args: argparse.Namespace, given: dict[str, Any]) -> str | None:
    if args.topic is None and (given or args.clear):
        return "say which topic is to be limited"
    if args.clear and given:
        return "--clear takes all limits away: give it alone"
    return None


def _changed(found: TopicLimitsView | None, given: dict[str, Any]) -> dict[str, Any]:
    """All limits, where some are changed. A new rate has a burst of its own."""
    kept: dict[str, Any] = {}
    if found is not None:
        kept["concurrency"] = found.concurrency
        if "rate" not in given and found.rate is not None:
            kept |= {"rate": found.rate, "burst": found.burst}
    return kept | given


def _list(args: argparse.Namespace, found: list[TopicLimitsView]) -> int:
    if args.output == "json":
        show_json(found, sys.stdout)
    elif found:
        show_table([one.model_dump() for one in found], _COLUMNS, sys.stdout)
    else:
        sys.stdout.write("no topic has limits\n")
    return commands.OK


def _show(args: argparse.Namespace, found: TopicLimitsView) -> int:
    if args.output == "json":
        show_json(found, sys.stdout)
        return commands.OK
    rate = "no limit" if found.rate is None else f"{found.rate:g} a second, {found.burst:,} at once"
    concurrency = "no limit" if found.concurrency is None else f"{found.in_flight:,} of {found.concurrency:,}"
    show_fields({"topic": found.topic, "rate": rate, "in flight": concurrency}, sys.stdout)
    return commands.OK


def _rate(text: str) -> float | None:
    return None if text == "none" else float(text)


def _concurrency(text: str) -> int | None:
    return None if text == "none" else int(text)
