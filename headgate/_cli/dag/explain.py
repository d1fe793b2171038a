"""`headgate dag explain`, `timeline` and `externals`: what DAGs wait for, for people."""

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from headgate import wire
from headgate._cli import commands
from headgate._cli.output import cell, gist, printable, show_json, show_table, told

_NODE_COLUMNS: Final = ("key", "topic", "is", "for", "since", "attempt", "note")
_EXTERNAL_COLUMNS: Final = ("dag", "name", "node", "waits for", "for", "blocked")
_TIME_COLUMNS: Final = ("at", "after", "what", "note")
CHAIN_SHOWN_MAX: Final = 12
# Who polls does so more often.
UNASKED_TOLD_S: Final = 15.0


def explain(args: commands.Args) -> int:
    with commands.client_of(args) as client:
        handle = client.dag(args.id)
        frontier = handle.frontier(limit=min(args.limit, wire.PAGE_LIMIT_MAX))
        nodes = list(frontier.items)
        page = frontier
        while page.next_cursor and len(nodes) < args.limit:
            page = handle.frontier(
                limit=min(args.limit - len(nodes), wire.PAGE_LIMIT_MAX), cursor=page.next_cursor
            )
            nodes += page.items
    if args.output == "json":
        show_json(
            {**frontier.model_dump(mode="json"), "items": nodes, "next_cursor": page.next_cursor}, sys.stdout
        )
        return commands.OK
    now = datetime.now(UTC)
    for line in _head(frontier, now):
        sys.stdout.write(line + "\n")
    if nodes:
        sys.stdout.write("\n")
        show_table([_row(node, now) for node in nodes], _NODE_COLUMNS, sys.stdout)
    if page.next_cursor:
        sys.stdout.write(f"... and more: --limit shows more than {args.limit}\n")
    return commands.OK


def externals(args: commands.Args) -> int:
    with commands.client_of(args) as client:
        found = told(client.why.externals(limit=args.limit))
    if args.output == "json":
        show_json(found, sys.stdout)
        return commands.OK
    now = datetime.now(UTC)
    rows = [
        {
            "dag": each.dag,
            "name": each.dag_name or each.dag_key,
            "node": each.node,
            "waits for": f"{each.external} and {each.more} more" if each.more else each.external,
            "for": None if each.since is None else _ago(each.since, now),
            "blocked": each.blocked,
        }
        for each in found
    ]
    commands.show_rows(args, rows, _EXTERNAL_COLUMNS, "no DAG waits for somebody's word")
    return commands.OK


def timeline(args: commands.Args) -> int:
    with commands.client_of(args) as client:
        found = client.dag(args.id).timeline(args.key)
    if args.output == "json":
        show_json(found, sys.stdout)
        return commands.OK
    again = f", generation {found.generation}" if found.generation > 1 else ""
    sys.stdout.write(f"{printable(found.key)} ({found.topic}) is {found.state}{again}\n\n")
    show_table(_events(found), _TIME_COLUMNS, sys.stdout)
    return commands.OK


def span(seconds: float) -> str:
    """A duration in at most two units: `3h 20m`."""
    if seconds < 1:
        return "0s" if seconds <= 0 else f"{seconds:.1g}s"
    left = int(seconds)
    parts = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2])


def _head(frontier: wire.Frontier, now: datetime) -> list[str]:
    counts = frontier.nodes.model_dump()
    shown = ", ".join(f"{count} {state}" for state, count in counts.items() if count) or "no nodes"
    lines = [f"{frontier.state}: {shown}"]
    for obstacle in frontier.waits_for:
        lines.append(f"waits for {_obstacle(obstacle)}, for {_ago(obstacle.since, now)}")
    for event in frontier.undeclared:
        lines.append(
            f"nothing waits for {printable(event.name)} of node {printable(event.node)}, which was resolved"
        )
    chain = frontier.longest_chain
    if chain is not None and chain.nodes:
        expected = "" if chain.expected_s is None else f", about {span(chain.expected_s)}"
        lines.append(f"longest chain left: {chain.nodes} nodes{expected}")
        keys = chain.keys[:CHAIN_SHOWN_MAX] + (["..."] if chain.nodes > CHAIN_SHOWN_MAX else [])
        lines += [f"{'  ' * depth}└ {printable(key)}" for depth, key in enumerate(keys)]
        if chain.unknown_topics:
            lines.append(f"no durations known of: {', '.join(chain.unknown_topics)}")
    return lines


def _row(node: wire.FrontierNode, now: datetime) -> dict[str, Any]:
    waits = ", ".join(_obstacle(obstacle) for obstacle in node.waits_for)
    note = f"waits for {waits}" if waits else gist(node.error)
    if node.standing == "delayed" and node.deliver_at is not None:
        note = f"due in {span((node.deliver_at - now).total_seconds())}"
    elif node.standing == "running" and node.lease_expires_at is not None:
        by = f"with {printable(node.worker)}, " if node.worker else ""
        note = f"{by}lease ends in {span((node.lease_expires_at - now).total_seconds())}"
    if node.unasked_s is not None and node.unasked_s >= UNASKED_TOLD_S:
        told = f"nobody has asked for topic {printable(node.topic or '')} for {span(node.unasked_s)}"
        note = f"{note}; {told}" if note else told
    return {
        "key": node.key,
        "topic": node.topic,
        "is": node.standing,
        "for": _ago(node.since, now),
        "since": node.since,
        "attempt": node.attempt,
        "note": note,
    }


def _obstacle(obstacle: wire.Obstacle) -> str:
    match obstacle.kind:
        case "external":
            return f"external {printable(obstacle.name or '')}"
        case "hold":
            return "release (it is held)"
        case "pause":
            return "resume (it is paused)"
        case "retry":
            return "a retry, which is still at work"
        case _:
            return "close (it is open, or empty)"


def _events(found: wire.Timeline) -> list[dict[str, Any]]:
    events: list[tuple[datetime | None, str, str | None]] = [(found.created_at, "created", None)]
    if found.generation > 1:
        events.append((found.generation_at, "retried", f"generation {found.generation}"))
    events.append((found.released_at, "released", None))
    for attempt in found.attempts:
        by = f"by {printable(attempt.worker)}" if attempt.worker else None
        if attempt.started_at is not None or attempt.outcome == "running":
            events.append((attempt.started_at, f"attempt {attempt.attempt} started", by))
        if attempt.outcome != "running":
            events.append((attempt.ended_at, f"attempt {attempt.attempt} {attempt.outcome}", gist(attempt.error)))
    if found.ended_at is not None:
        events.append((found.ended_at, found.state, gist(found.error)))
    return _rows([event for event in events if event[0] is not None or event[1].startswith("attempt")])


def _rows(events: Sequence[tuple[datetime | None, str, str | None]]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    before: datetime | None = None
    for at, what, note in events:
        after = span((at - before).total_seconds()) if at is not None and before is not None else None
        rows.append({"at": at, "after": after, "what": what, "note": cell(note) if note else None})
        before = at or before
    return rows


def _ago(since: datetime, now: datetime) -> str:
    return span((now - since).total_seconds())
