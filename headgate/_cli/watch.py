"""`headgate watch`: a command that only looks, again and again, until it is interrupted."""

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from headgate._cli import commands
from headgate._cli.output import printable
from headgate._stderr import stderr_line
from headgate.errors import Invalid, NoAnswer, OverQuota, Unavailable

CLEAR: Final = "\x1b[H\x1b[2J"
EVERY_S: Final = 2.0
# What changes something is not to be done every two seconds.
_LOOKS: Final = frozenset(
    [
        *("dead", "item", "items", "namespaces", "shards", "topics", "why", "workers"),
        *("dag explain", "dag externals", "dag list", "dag node", "dag show", "dag timeline", "operations list"),
        *("quotas list", "quotas show", "schedule list", "schedule show", "schedule ticks"),
        *("workflow list", "workflow show"),
    ]
)
Parse = Callable[[list[str], argparse.Namespace], argparse.Namespace]


def watch(parse: Parse, args: argparse.Namespace) -> int:
    """Run it again and again. A service that is away is waited for; what will not change ends it."""
    if args.every <= 0:
        raise Invalid("--every takes a number of seconds over 0")
    words: list[str] = args.arguments
    if not (_LOOKS & {" ".join(words[:1]), " ".join(words[:2])}):
        raise Invalid(f"watch repeats what only looks, which is one of: {', '.join(sorted(_LOOKS))}")
    given = {name: value for name, value in vars(args).items() if name not in ("arguments", "command", "every")}
    meant = parse(words, argparse.Namespace(**given))
    while True:
        if sys.stdout.isatty():
            sys.stdout.write(f"{CLEAR}every {args.every:g} s: headgate {' '.join(words)}\n\n")
        code = _look(meant)
        if code:
            return code
        sys.stdout.flush()
        time.sleep(args.every)


def _look(meant: Any) -> int:
    try:
        return int(meant.command(meant))
    except (NoAnswer, OverQuota, Unavailable) as away:
        stderr_line(f"headgate: {printable(str(away))}; trying again")
        return commands.OK
