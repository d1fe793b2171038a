"""`headgate limits`: what topics hand out at most."""

import argparse
import sys
from typing import Any, Final

from headgate._cli import commands
from headgate._cli.output import cell, show_fields, show_json, show_table
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
  headgate limits bank --key-concurrency 1         of each `fairness_key` one at a time
  headgate limits bank --unthrottle                end what handlers have throttled, of all keys
  headgate limits bank --unthrottle --key acme     of one key

Limits count for all workers together: 5 a second are 5, however many processes take them. An item that finds
no room stays ready, in its order. An item is in flight from its dequeue until it is acked, given back, or its
lease ends. In force within about a second.

To slow a topic for a while only, as when a service says 429, raise `Throttled(retry_after_s)` in the handler.
To deliver nothing at all: `headgate topic pause TOPIC`. Needs a token with scope `admin` for the namespace.
"""

_COLUMNS: Final = [
    "topic",
    "rate",
    "burst",
    "concurrency",
    "in_flight",
    "key_rate",
    "key_concurrency",
    "throttled",
]
_GIVEN: Final = ("rate", "concurrency", "key_rate", "key_concurrency")


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
    parser.add_argument(
        "--key-rate",
        type=_rate,
        metavar="N",
        default=argparse.SUPPRESS,
        help="items a second of each key, or none",
    )
    parser.add_argument("--key-burst", type=int, metavar="N", help="of a key's rate: so many at once")
    parser.add_argument(
        "--key-concurrency", type=_concurrency, metavar="N", default=argparse.SUPPRESS, help="of each key, or none"
    )
    parser.add_argument("--unthrottle", action="store_true", help="end throttles of the topic and its keys")
    parser.add_argument("--key", help="with --unthrottle: of this key alone")
    parser.add_argument("--clear", action="store_true", help="take all limits of the topic away")


def limits(args: argparse.Namespace) -> int:
    """Show limits, or change those that are named; the service takes all of a topic at once."""
    given = {name: getattr(args, name) for name in _GIVEN if hasattr(args, name)}
    given |= {name: getattr(args, name) for name in ("burst", "key_burst") if getattr(args, name) is not None}
    if problem := _problem(args, given):
        sys.stderr.write(f"headgate: {problem}; see --help\n")
        return commands.USAGE
    with commands.client_of(args) as client:
        if args.topic is None:
            return _list(args, client.limits.all())
        if args.unthrottle:
            return _show(args, client.limits.unthrottle(args.topic, key=args.key))
        if args.clear:
            return _show(args, client.limits.put(args.topic))
        found = client.limits.get(args.topic)
        if given:
            found = client.limits.put(args.topic, **_changed(found, given))
        return _show(args, found or TopicLimitsView(topic=args.topic))


def _problem(args: argparse.Namespace, given: dict[str, Any]) -> str | None:
    if args.topic is None and (given or args.clear or args.unthrottle):
        return "say which topic is meant"
    if args.key is not None and not args.unthrottle:
        return "--key belongs to --unthrottle; limits are the same for all keys"
    if args.unthrottle and (given or args.clear):
        return "--unthrottle ends throttles and changes no limits: give it alone"
    if args.clear and given:
        return "--clear takes all limits away: give it alone"
    return None


def _changed(found: TopicLimitsView | None, given: dict[str, Any]) -> dict[str, Any]:
    """All limits, where some are changed. A new rate has a burst of its own."""
    kept: dict[str, Any] = {}
    if found is not None:
        kept |= {"concurrency": found.concurrency, "key_concurrency": found.key_concurrency}
        if "rate" not in given and found.rate is not None:
            kept |= {"rate": found.rate, "burst": found.burst}
        if "key_rate" not in given and found.key_rate is not None:
            kept |= {"key_rate": found.key_rate, "key_burst": found.key_burst}
    return kept | given


def _list(args: argparse.Namespace, found: list[TopicLimitsView]) -> int:
    if args.output == "json":
        show_json(found, sys.stdout)
    elif found:
        show_table([{**one.model_dump(), "throttled": _throttled(one)} for one in found], _COLUMNS, sys.stdout)
    else:
        sys.stdout.write("no topic has limits, and none is throttled\n")
    return commands.OK


def _show(args: argparse.Namespace, found: TopicLimitsView) -> int:
    if args.output == "json":
        show_json(found, sys.stdout)
        return commands.OK
    concurrency = "no limit" if found.concurrency is None else f"{found.in_flight:,} of {found.concurrency:,}"
    fields: dict[str, Any] = {
        "topic": found.topic,
        "rate": _per_second(found.rate, found.burst),
        "in flight": concurrency,
    }
    if found.key_rate is not None or found.key_concurrency is not None:
        fields["rate of a key"] = _per_second(found.key_rate, found.key_burst)
        fields["in flight of a key"] = "no limit" if found.key_concurrency is None else found.key_concurrency
    if throttled := _throttled(found):
        fields["throttled"] = throttled
    show_fields(fields, sys.stdout)
    return commands.OK


def _per_second(rate: float | None, burst: int) -> str:
    return "no limit" if rate is None else f"{rate:g} a second, {burst:,} at once"


def _throttled(found: TopicLimitsView) -> str:
    """What is throttled, and until when."""
    whole = [] if found.throttled_until is None else [f"until {cell(found.throttled_until)}"]
    return ", ".join([*whole, *(f"{one.key} until {cell(one.until)}" for one in found.throttled_keys)])


def _rate(text: str) -> float | None:
    return None if text == "none" else float(text)


def _concurrency(text: str) -> int | None:
    return None if text == "none" else int(text)
