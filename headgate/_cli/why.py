"""`headgate why` and `headgate top`: why something does not go on, and what goes on now."""

import contextlib
import re
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

from headgate import wire
from headgate._cli import commands
from headgate._cli.dag.explain import span
from headgate._cli.output import printable, show_json, show_table, told
from headgate._cli.workflow.runs import stuck_fields
from headgate._client.blocking.client import Client
from headgate.errors import HeadgateError, NotFound
from headgate.wire.console import Cause

_ID: Final = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}").fullmatch
_COLUMNS: Final = ("topic", "ready", "leased", "delayed", "dead", "oldest_ready", "paused")
_ALL_COLUMNS: Final = ("namespace", "items", "more", "in_flight", "stored_bytes", "enqueued_last_minute")
_CLEAR: Final = "\x1b[H\x1b[2J"


def why(args: commands.Args) -> int:
    with commands.client_of(args) as client:
        found = _why(client, args.what, args.node)
    if args.output == "json":
        show_json(found, sys.stdout)
        return commands.OK
    for line in _lines(found):
        sys.stdout.write(f"{printable(line)}\n")
    return commands.OK


def _lines(found: wire.Why) -> Iterator[str]:
    """Each cause once: the first, or what a node waits for in the end, as the sentence has it, then the others."""
    causes, sentence = found.causes, found.sentence
    is_chain = found.about == "node" and len(causes) > 1
    if is_chain and causes[-1].text in sentence:
        yield f"{sentence}{_since(causes[-1])}"
        yield from (f"  - {cause.text}{_since(cause)}" for cause in causes[:-1])
    elif not is_chain and len(causes) > 1 and (told_chars := _lead(sentence, [cause.text for cause in causes])):
        rest = sentence[told_chars:].lstrip("; .")
        yield f"{sentence[: len(causes[0].text)]}.{_since(causes[0])}"
        yield from (f"  - {cause.text}{_since(cause)}" for cause in causes[1:])
        yield from [f"{rest[:1].upper()}{rest[1:]}"] if rest else []
    elif len(causes) > 1:
        yield sentence
        yield from (f"  - {cause.text}{_since(cause)}" for cause in causes)
    else:
        yield f"{sentence}{_since(causes[0]) if causes else ''}"


def _lead(sentence: str, texts: list[str]) -> int:
    """How much of a sentence is the first causes, as it has them; 0: it says something else."""
    for count in range(3, 0, -1):
        lead = "; ".join(texts[:count])
        if sentence[:1].casefold() == lead[:1].casefold() and sentence[1:].startswith(lead[1:]):
            return len(lead)
    return 0


def _since(cause: Cause) -> str:
    is_over = cause.since is not None and cause.since <= datetime.now(UTC)  # else that is when it ends
    return f"  (since {cause.since:%Y-%m-%d %H:%M:%SZ})" if is_over else ""


def _why(client: Client, what: str | None, node: str | None) -> wire.Why:
    """Of the item or the DAG of that id, of the topic of that name, if it is none of the workflow of that id; of
    a DAG's node; of the namespace."""
    if what is None:
        return client.why.namespace()
    if node is not None:
        return client.dag(what).why(node)
    if not _ID(what):
        found = client.why.topic(what)
        is_empty = any(cause.kind == "empty" for cause in found.causes)
        return (_of_run(client, what) if is_empty else None) or found
    for ask in (client.why.item, lambda _: client.dag(what).why()):
        with contextlib.suppress(NotFound):
            return ask(what)
    found_run = _of_run(client, what)
    if found_run is None:
        raise NotFound(f"neither an item, a DAG nor a workflow has the id {what} in {client.namespace}")
    return found_run


def _of_run(client: Client, workflow_id: str) -> wire.Why | None:
    """Why the run of a workflow does not go on: its code cannot, or what its DAG waits for; None: no such run."""
    try:
        run = client.workflows.get(workflow_id).show()
        if run.stuck is None:
            return client.dag(run.run).why().model_copy(update={"name": workflow_id})
    except HeadgateError:
        return None  # what is known of a topic of this name stands
    stuck = run.stuck
    times = "once" if stuck.attempts == 1 else f"{stuck.attempts} times in a row"
    text = f"the code of workflow {workflow_id} cannot go on: {stuck.code}, {times}: {stuck.error}"
    causes = [Cause(kind="stuck", text=text, since=stuck.since)]
    causes += [
        Cause(kind=name, text=f"{name}: {value}") for name, value in stuck_fields(stuck).items() if name != "error"
    ]
    return wire.Why(about="dag", name=workflow_id, sentence=f"{text[:1].upper()}{text[1:]}.", causes=causes)


def top(args: commands.Args) -> int:
    """Topics, most ready first, or namespaces, most items first, again and again until it is interrupted."""
    with commands.client_of(args) as client:
        before: dict[str, int] = {}
        while True:
            if args.all:
                rows, head, before = _namespaces(client, before, args)
            else:
                rows, head = _topics(client, args)
            if args.once and args.output == "json":
                show_json(rows, sys.stdout)
                return commands.OK
            if not args.once and sys.stdout.isatty():
                sys.stdout.write(_CLEAR)
            sys.stdout.write(f"{head}\n\n")
            show_table(
                rows if args.all else [_in_words(row) for row in rows],
                _ALL_COLUMNS if args.all else _COLUMNS,
                sys.stdout,
            )
            sys.stdout.flush()
            if args.once:
                return commands.OK
            time.sleep(args.every)


def _topics(client: Client, args: commands.Args) -> tuple[list[dict[str, Any]], str]:
    topics = sorted(told(client.topics()), key=lambda topic: -topic.ready)
    sums = ", ".join(f"{sum(getattr(t, name) for t in topics)} {name}" for name in ("ready", "leased", "dead"))
    return [
        topic.model_dump() for topic in topics[: args.rows]
    ], f"{client.namespace}: {len(topics)} topics, {sums}"


def _in_words(row: dict[str, Any]) -> dict[str, Any]:
    """A topic as people read it."""
    oldest_s = row["oldest_ready_age_s"]
    return {**row, "oldest_ready": None if oldest_s is None else span(oldest_s), "paused": row["paused"] or None}


def _namespaces(
    client: Client, before: dict[str, int], args: commands.Args
) -> tuple[list[dict[str, Any]], str, dict[str, int]]:
    """`more`: by how much the items of each have become more since the last look, which shows who floods."""
    found = sorted(told(client.namespaces()), key=lambda one: -one.items)
    rows = [
        {**one.model_dump(), "more": one.items - before[one.namespace] if one.namespace in before else None}
        for one in found
    ]
    rows.sort(key=lambda row: -max(row["more"] or 0, 0))
    head = f"{len(found)} namespaces, {sum(one.items for one in found)} items"
    return rows[: args.rows], head, {one.namespace: one.items for one in found}
