"""The command line: `headgate <verb>` and `headgate dag <verb>`."""

import argparse
import difflib
import os
import re
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, NoReturn, get_args

from headgate import wire
from headgate._cli import commands, completion, why
from headgate._cli.dag import dags, explain, export, grow, import_graph
from headgate._cli.help_texts import DAGS, EXAMPLES, EXPORT, RUN, SPEC
from headgate._cli.logs import LOGS, add_logs, logs
from headgate._cli.output import printable, silence, written_whole
from headgate._cli.queue import items, limits, operations, quotas, topics, workers
from headgate._cli.queue.dequeue import dequeue as dequeue_items
from headgate._cli.up import UP, up
from headgate._cli.watch import EVERY_S, watch
from headgate._cli.worker import WORKER, add_worker, worker
from headgate._cli.workflow import code, runs, schedules
from headgate._http.transport import VERSION
from headgate._stderr import stderr_line
from headgate.errors import (
    BadRequest,
    Conflict,
    HeadgateError,
    Invalid,
    NoAnswer,
    NotFound,
    OverQuota,
    Unauthorized,
    Unavailable,
)
from headgate.importing import READERS

# Not argparse defaults: those of a command would undo what was said before it.
DEFAULTS: Final = {"queue_url": None, "dag_url": None, "token": None, "namespace": None, "output": "table"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit code."""
    if sys.stdout is None:  # what a dequeue leases would be lost, and a socket may be where it was
        stderr_line("headgate: the standard output is closed; nothing was done. For none: >/dev/null")
        return commands.USAGE
    with written_whole():
        try:
            return _run(argv)
        finally:
            silence()


def _run(argv: Sequence[str] | None) -> int:
    args = argparse.Namespace(**DEFAULTS)
    try:
        try:
            build_parser().parse_args(argv, args)
        finally:
            sys.stdout.flush()  # of --help, whose reader may have left
        code = int(args.command(args))
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        return commands.OK
    except KeyboardInterrupt:
        stderr_line("headgate: interrupted")
        return 130
    except HeadgateError as error:
        stderr_line(f"headgate: {printable(str(error))}{_advice(error, args.namespace)}")
        return exit_code(error)
    except (OSError, ValueError) as error:
        stderr_line(f"headgate: {printable(str(error))}")
        return commands.USAGE


def exit_code(error: HeadgateError) -> int:
    match error:
        case NotFound():
            return commands.NOT_FOUND
        case Conflict():
            return commands.CONFLICT
        case NoAnswer() | Unavailable() | OverQuota():
            return commands.UNAVAILABLE
        case Invalid() | BadRequest():
            return commands.USAGE
        case _:
            return commands.FAILURE


def _advice(error: HeadgateError, namespace: str | None) -> str:
    match error:
        case NotFound() if str(error).endswith("in this namespace"):
            here = namespace or os.environ.get("HEADGATE_NAMESPACE") or "default"
            return f", which is {printable(here)}; for another: -n NS, or HEADGATE_NAMESPACE"
        case Unauthorized():
            return "; set HEADGATE_TOKEN"
        case OverQuota() if error.retry_after_s:
            return f"; try again in {error.retry_after_s:g} s"
        case _:
            return ""


class _Parser(argparse.ArgumentParser):
    """A parser that knows what was probably meant."""

    def _print_message(self, message: str, file: Any = None) -> None:
        """Say when `--help` cannot be written; argparse keeps that to itself."""
        if message:
            (file or sys.stderr).write(message)

    def error(self, message: str) -> NoReturn:
        unknown = re.match(r"unrecognized arguments: (--[a-z-]+)", message)
        if unknown is not None:
            near = difflib.get_close_matches(unknown[1], sorted(_flags(self)), cutoff=0.7)
            super().error(message + (f"; did you mean {' or '.join(near)}?" if near else ""))
        wrong = re.fullmatch(r"argument <command>: invalid choice: '(.*)' \(choose from (.*)\)", message)
        if wrong is None:
            super().error(message)
        near = difflib.get_close_matches(wrong[1], re.findall(r"[a-z-]+", wrong[2]))
        meant = f"; did you mean {' or '.join(near)}?" if near else ""
        self.exit(
            commands.USAGE,
            f"{self.prog}: there is no command {printable(wrong[1])!r}{meant}\n"
            f"`{self.prog} --help` lists the commands\n",
        )


def _flags(parser: argparse.ArgumentParser) -> set[str]:
    """Every option of a parser and of the commands below it."""
    found = set(parser._option_string_actions)
    for action in parser._actions:
        if isinstance(action.choices, dict):
            found = found.union(*map(_flags, action.choices.values()))
    return found


def _teach(parser: argparse.ArgumentParser, _args: argparse.Namespace) -> int:
    """What is said to a name that needs a command after it."""
    parser.print_help(sys.stderr)
    return commands.USAGE


class _Commands:
    """Adds commands to a parser, each with the options that all of them have."""

    def __init__(self, parser: argparse.ArgumentParser, shared: argparse.ArgumentParser) -> None:
        self._shared = shared
        self._commands = parser.add_subparsers(title="commands", metavar="<command>")
        parser.set_defaults(command=partial(_teach, parser))

    def add(
        self, name: str, run: Callable[[Any], int] | None, about: str, *, epilog: str | None = None
    ) -> argparse.ArgumentParser:
        parser = self._commands.add_parser(
            name,
            help=about,
            description=about[0].upper() + about[1:] + ".",
            epilog=epilog,
            parents=[self._shared],
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if run is not None:
            parser.set_defaults(command=run)
        return parser

    def pass_on(self, name: str, run: Callable[[Any], int], about: str) -> None:
        """A command whose arguments, options too, are read by what it runs."""
        parser = self._commands.add_parser(name, help=about, add_help=False, prefix_chars="\0")
        parser.add_argument("arguments", nargs="*")
        parser.set_defaults(command=run)


def _parsed(words: list[str], given: argparse.Namespace) -> argparse.Namespace:
    return build_parser().parse_args(words, given)


def build_parser() -> argparse.ArgumentParser:
    shared = argparse.ArgumentParser(add_help=False)
    where = shared.add_argument_group("where and how")
    for flag, about in (
        ("--queue-url", "the queue service (HEADGATE_QUEUE_URL)"),
        ("--dag-url", "the DAG service (HEADGATE_DAG_URL)"),
        ("--token", "an access token (better: HEADGATE_TOKEN)"),
    ):
        metavar = "URL" if flag.endswith("url") else "TOKEN"
        where.add_argument(flag, metavar=metavar, default=argparse.SUPPRESS, help=about)
    where.add_argument(
        "-n", "--namespace", metavar="NS", default=argparse.SUPPRESS, help="the namespace (HEADGATE_NAMESPACE)"
    )
    where.add_argument(
        "-o", "--output", choices=("table", "json"), default=argparse.SUPPRESS, help="for people, or for programs"
    )
    parser = _Parser(
        prog="headgate",
        description="A priority queue, and DAGs of queued work.",
        epilog=EXAMPLES,
        parents=[shared],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"headgate {VERSION}")
    root = _Commands(parser, shared)
    made = root.add("completion", partial(completion.completion, build_parser), "write what a shell completes")
    made.epilog = completion.ABOUT
    made.add_argument("shell", choices=completion.SHELLS)
    _add_items(root)
    _add_topics(root)
    _add_import(root)
    _add_operations(root, shared)
    root.pass_on("up", up, UP)
    add_logs(root.add("logs", logs, "show what jobs have logged", epilog=LOGS))
    add_worker(root.add("worker", worker, "run an app's functions", epilog=WORKER))
    _add_quotas(_Commands(root.add("quotas", None, "what a namespace may use", epilog=quotas.QUOTAS), shared))
    about = "runs of workflows, and their code"
    workflows = _Commands(root.add("workflow", None, about, epilog=code.WORKFLOWS), shared)
    code.add_commands(workflows.add)
    runs.add_commands(workflows.add)
    schedule = root.add("schedule", None, "runs that begin at times", epilog=schedules.SCHEDULES)
    schedules.add_commands(_Commands(schedule, shared))
    _add_dags(_Commands(root.add("dag", None, "DAGs: submit, watch, retry and more", epilog=DAGS), shared))
    return parser


def _add_items(root: _Commands) -> None:
    enqueue = root.add("enqueue", items.enqueue, "put an item into a topic")
    enqueue.add_argument("topic")
    enqueue.add_argument("payload", nargs="?", help="JSON or plain text; - reads it from standard input")
    enqueue.add_argument("--lines", action="store_true", help="one payload per line of standard input")
    enqueue.add_argument("--priority", type=int, metavar="N", help="lower is served first (default 0)")
    enqueue.add_argument("--delay", type=float, metavar="S", help="deliver not before so many seconds")
    enqueue.add_argument("--ttl", type=float, metavar="S", help="drop after so many seconds")
    enqueue.add_argument("--lease", type=float, metavar="S", help="how long a consumer has (default 60)")
    enqueue.add_argument("--max-attempts", type=int, metavar="N", help="dead after so many deliveries")
    enqueue.add_argument("--id", help="an id of your own, a UUIDv7")
    enqueue.add_argument("--key", help="an idempotency key: the same key adds nothing")
    enqueue.add_argument("--unique", action="store_true", help="with --key: only while its item is there")
    enqueue.add_argument("--fairness-key", metavar="KEY", help="take turns with the items of other keys")
    enqueue.add_argument("--metadata", metavar="JSON")

    dequeue = root.add("dequeue", dequeue_items, "lease items")
    dequeue.add_argument("topics", nargs="+", metavar="topic")
    dequeue.add_argument("--count", type=int, default=1, metavar="N", help="up to so many of each topic")
    dequeue.add_argument("--wait", type=float, default=0.0, metavar="S", help="wait for the first (up to 30)")
    dequeue.add_argument("--lease", type=float, metavar="S", help="how long they are yours")
    dequeue.add_argument("--ack", action="store_true", help="ack them once they are printed")

    ack = root.add("ack", items.ack, "end a leased item: done")
    nack = root.add("nack", items.nack, "give a leased item back")
    extend = root.add("extend", items.extend, "keep a leased item for longer")
    for parser in (ack, nack, extend):
        parser.add_argument("id")
        parser.add_argument("lease_token")
    ack.add_argument("--result", metavar="JSON", help="its output, for a DAG's downstream nodes")
    nack.add_argument("--delay", type=float, metavar="S", help="deliver again not before so many seconds")
    nack.add_argument("--error", metavar="TEXT", help="why")
    nack.add_argument("--final", action="store_true", help="it is dead, whatever attempts it has left")
    extend.add_argument(
        "--lease", type=float, metavar="S", help="the lease ends so many seconds from now (the item's own)"
    )

    for name, run, about in (
        ("revive", items.revive, "make disabled items deliverable"),
        ("cancel", items.cancel, "have items never delivered again"),
    ):
        root.add(name, run, about).add_argument("ids", nargs="+", metavar="id")
    root.add("item", items.item, "show an item that is not acked").add_argument("id")
    listing = root.add("items", items.items, "list items")
    listing.add_argument("--topic")
    listing.add_argument("--state", choices=get_args(wire.ItemState))
    listing.add_argument("--limit", type=int, default=100, metavar="N")


def _add_topics(root: _Commands) -> None:
    root.add("topics", topics.topics, "list active topics with their counts")
    workers.add_command(root)
    limits.add_command(root)
    topic = root.add("topic", topics.topic, "pause, resume, purge or redrive a topic")
    topic.add_argument("action", choices=("pause", "resume", "purge", "redrive"))
    topic.add_argument("topic")
    topic.add_argument("--yes", action="store_true", help="needed for purge, which cancels its items")
    share = root.add("share", topics.share, "give worse priorities a minimum share of a topic")
    share.add_argument("topic")
    share.add_argument(
        "shares",
        nargs="*",
        metavar="PRIORITY=SHARE",
        help="like 5=0.1: a tenth for 5 and worse (-- before negative ones); none: take away",
    )
    why_command = root.add("why", why.why, "say why a topic, an item, a DAG or a node does not go on")
    why_command.add_argument(
        "what", nargs="?", help="a topic, or the id of an item, DAG or workflow; else of the namespace"
    )
    why_command.add_argument("node", nargs="?", help="of a DAG: the key of a node")
    top = root.add("top", why.top, "show the topics that hold most, again and again")
    top.add_argument("--all", action="store_true", help="namespaces instead: whose items become more, and most")
    top.add_argument("--every", type=float, default=2.0, metavar="SECONDS")
    top.add_argument("--rows", type=int, default=20, metavar="N")
    top.add_argument("--once", action="store_true", help="show it once")
    watched = root.add("watch", partial(watch, _parsed), "run a command that only looks, again and again")
    watched.add_argument("--every", type=float, default=EVERY_S, metavar="SECONDS")
    watched.add_argument("arguments", nargs=argparse.REMAINDER, metavar="COMMAND ...")
    root.add("namespaces", topics.namespaces, "list namespaces with quotas and use")
    shards = root.add("shards", topics.shards, "show the health of the shards")
    shards.add_argument("--dag", action="store_true", help="those of the DAG service")


def _add_operations(root: _Commands, shared: argparse.ArgumentParser) -> None:
    dead = root.add("dead", operations.dead, "show dead items by kind of error", epilog=operations.FILTERS)
    dead.add_argument("--topic")
    parser = root.add("operations", None, "what is done to many items at once", epilog=operations.FILTERS)
    nested = _Commands(parser, shared)
    for commands_of, kind, about in (
        (root, "purge", "cancel items by filter, dead ones too"),
        (root, "redrive", "put dead items back, by filter"),
        (nested, "purge", "cancel items by filter, dead ones too"),
        (nested, "redrive", "put dead items back, by filter"),
        (nested, "cancel", "cancel items by filter; dead ones stay"),
    ):
        begin = commands_of.add(kind, operations.operate, about, epilog=operations.FILTERS)
        begin.set_defaults(kind=kind)
        operations.add_filter(begin)
    nested.add("list", operations.listing, "list operations, newest first").add_argument(
        "--limit", type=int, default=20, metavar="N"
    )
    for name, run, about in (
        ("show", operations.show, "show how far an operation is, by shard"),
        ("watch", operations.watch, "follow an operation to its end"),
        ("stop", operations.stop, "leave the rest of an operation undone"),
    ):
        nested.add(name, run, about).add_argument("id")


def _add_quotas(verbs: _Commands) -> None:
    verbs.add("list", quotas.listing, "show limits and use of every namespace")
    show = verbs.add("show", quotas.show, "show limits and use of a namespace")
    show.add_argument("ns", nargs="?", metavar="namespace", help="by default the client's own")
    change = verbs.add("set", quotas.change, "change limits; what is not named stays", epilog=quotas.QUOTAS)
    quotas.add_limits(change)
    unfinished = verbs.add("dags", quotas.dags, "show or change limits of unfinished DAGs", epilog=quotas.QUOTAS)
    quotas.add_dag_limits(unfinished)
    unfinished.add_argument("ns", nargs="?", metavar="namespace", help="by default the client's own")
    for parser in (change, verbs.add("clear", quotas.clear, "take all limits away")):
        parser.add_argument("ns", metavar="namespace")


def _add_dags(verbs: _Commands) -> None:
    submit = verbs.add("submit", dags.submit, "submit a DAG", epilog=SPEC)
    submit.add_argument("file", help="a JSON file, or - for standard input")
    submit.add_argument("--watch", action="store_true", help="follow it to the end")
    run = verbs.add("run", dags.run, "submit a DAG of shell commands and run it here", epilog=RUN)
    run.add_argument("file", help="a JSON file, or - for standard input")
    run.add_argument("--slots", type=int, default=os.cpu_count() or 1, metavar="N", help="commands at a time")
    listing = verbs.add("list", dags.listing, "list DAGs")
    listing.add_argument("--state", choices=get_args(wire.DagState))
    listing.add_argument("--name")
    listing.add_argument("--key", help="the one that was made with this key")
    show = verbs.add("show", dags.show, "show a DAG")
    show.add_argument("--nodes", action="store_true", help="and its nodes")
    show.add_argument("--state", choices=get_args(wire.NodeState), help="and its nodes in this state")
    explaining = verbs.add(
        "explain", explain.explain, "say what a DAG waits for, since when, and how long it may take"
    )
    waiting = verbs.add("externals", explain.externals, "list what DAGs wait for that somebody has to resolve")
    for parser in (listing, show, explaining, waiting):
        parser.add_argument("--limit", type=int, default=100, metavar="N")
    watch = verbs.add("watch", dags.watch, "follow a DAG to its end")
    events = verbs.add("events", dags.events, "print every change of a DAG and its nodes, to its end")
    events.add_argument("--after", metavar="EVENT", help="go on after this event instead of from the first")
    node = verbs.add("node", dags.node, "show a node and what it waits for")
    timeline = verbs.add("timeline", explain.timeline, "show one node's life: created, released, attempts, ended")
    graph = verbs.add("graph", dags.graph, "print the graph")
    resolve = verbs.add("resolve", dags.resolve, "say that an external dependency has happened")
    show.add_argument("id", nargs="?")
    show.add_argument("--key", help="the DAG that was made with this key, instead of an id")
    for parser in (watch, events, node, explaining, timeline, graph, resolve):
        parser.add_argument("id")
    node.add_argument("key")
    timeline.add_argument("key")
    graph.add_argument("--format", choices=("mermaid", "dot", "json"), default="mermaid")
    resolve.add_argument("node")
    resolve.add_argument("name")
    resolve.add_argument("--data", metavar="JSON")
    resolve.add_argument("--failed", action="store_true", help="it failed, and so does the node")
    exporting = verbs.add("export", export.export, "write ended DAGs to a file, as JSON lines", epilog=EXPORT)
    exporting.add_argument("--since", type=_moment, metavar="TIME", help="ends from then on")
    exporting.add_argument("--until", type=_moment, metavar="TIME", help="ends before then")
    exporting.add_argument("--to", required=True, metavar="FILE", help="where to; a file that exists is continued")
    exporting.add_argument("--mark", action="store_true", help="and tell the service how far that has come")
    grow.add_commands(verbs.add)
    _add_dag_verbs(verbs)


def _moment(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    return found if found.tzinfo else found.astimezone(UTC)


def _add_import(root: _Commands) -> None:
    parser = root.add(
        "import",
        import_graph.import_file,
        "make a DAG from another system's file",
        epilog=import_graph.IMPORT,
    )
    parser.add_argument("format", metavar="FORMAT", choices=tuple(READERS))
    parser.add_argument("file", metavar="FILE", help="- reads standard input")
    parser.add_argument("--topic", default="import", help="of nodes that --map does not name (default: import)")
    parser.add_argument(
        "--map",
        action="append",
        default=[],
        metavar="KIND=TOPIC",
        help="a topic for one kind of node; may be repeated",
    )
    parser.add_argument("--goal", action="append", default=[], metavar="TARGET", help="make: only what it needs")
    parser.add_argument("--key", help="the DAG's key (default: made from the file)")
    parser.add_argument("--hold", action="store_true", help="start nothing before `headgate dag release`")
    parser.add_argument("--dry-run", action="store_true", help="show what would be made, and what does not map")
    parser.add_argument("--strict", action="store_true", help="refuse where the DAG would do something else")


def _add_dag_verbs(verbs: _Commands) -> None:
    for verb, about in (
        ("release", "lift the hold of a DAG"),
        ("close", "end a DAG that was left open for more nodes"),
        ("pause", "release no further nodes"),
        ("resume", "go on after pause"),
        ("cancel", "cancel every unfinished node, or those named"),
        ("retry", "run failed nodes again, with what they kept from running"),
        ("skip", "take blocked nodes as skipped"),
    ):
        parser = verbs.add(verb, dags.verb, about)
        parser.set_defaults(verb=verb)
        parser.add_argument("id")
        if verb == "cancel":
            parser.add_argument("nodes", nargs="*", metavar="node", help="only these; the others go on")
            parser.add_argument("--reason")
        elif verb in ("retry", "skip"):
            parser.add_argument("nodes", nargs="*" if verb == "retry" else "+", metavar="node")
        if verb == "retry":
            parser.add_argument("--down", action="store_true", help="these and all below them, what succeeded too")
            parser.add_argument("--all", action="store_true", help="every node of the DAG")
            parser.add_argument(
                "--payload", action="append", nargs=2, metavar=("NODE", "JSON"), help="another payload for a node"
            )


if __name__ == "__main__":
    sys.exit(main())
