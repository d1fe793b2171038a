"""The commands about one DAG, or a list of them: submit, watch, retry and the like."""

import argparse
import asyncio
import sys
from typing import Any, Final
from urllib.parse import quote

from headgate._calls.dag import MADE_KEY, Dag
from headgate._cli import commands
from headgate._cli.dag import local_run, submitting
from headgate._cli.output import Progress, gist, plain, printable, show_fields, show_json, told
from headgate._client.blocking.handle import DagHandle
from headgate._client.settings import endpoints
from headgate._stderr import stderr_line
from headgate.errors import Invalid
from headgate.wire import Dag as DagView
from headgate.wire import DagEvent, NodeView

_DAG_COLUMNS: Final = ("id", "name", "state", "total", "succeeded", "failed", "released", "blocked", "created_at")
_NODE_COLUMNS: Final = ("key", "state", "topic", "attempts", "generation", "blocked_by", "error")


def submit(args: argparse.Namespace) -> int:
    dag = Dag.from_spec(commands.read_spec(args.file))
    with commands.client_of(args) as client:
        made = submitting.submit(client, dag)
        if made.same is False:
            stderr_line(f"a DAG of the key {dag.key!r} was there, made of something else; this is that one")
        if not args.watch:
            show_dag(args, client.dag(made.dag.id).show())
            return commands.OK
    return asyncio.run(_watch(args, made.dag.id))


def listing(args: argparse.Namespace) -> int:
    with commands.client_of(args) as client:
        found = told(client.dags(state=args.state, name=args.name, key=args.key, limit=args.limit))
    if args.output == "json":
        show_json(found, sys.stdout)
    else:
        rows = [{**dag.model_dump(), **dag.nodes.model_dump()} for dag in found]
        commands.show_rows(args, rows, _DAG_COLUMNS, "no DAGs")
    return commands.OK


def show(args: argparse.Namespace) -> int:
    if (args.id is None) == (args.key is None):
        raise Invalid("name a DAG by its id or by --key, one of them")
    with commands.client_of(args) as client:
        handle = client.dag(args.id) if args.key is None else client.dag_by_key(args.key)
        dag = handle.show()
        wanted = args.state is not None or args.nodes
        nodes = handle.nodes(args.state, limit=args.limit) if wanted else []
    if args.output == "json":
        show_json({**plain(dag), "node_list": plain(nodes)} if wanted else dag, sys.stdout)
        return commands.OK
    show_dag(args, dag)
    if wanted:
        sys.stdout.write("\n")
        rows = [{**node.model_dump(), **_in_short(node)} for node in nodes]
        commands.show_rows(args, rows, _NODE_COLUMNS, "no such nodes")
    return commands.OK


def _in_short(node: NodeView) -> dict[str, Any]:
    blockers = ", ".join(block.key or block.name or block.kind for block in node.blocked_by)
    # Attempts are told with the end; `explain` knows those of a node that runs.
    return {"blocked_by": blockers or None, "error": gist(node.error), "attempts": node.attempts or None}


def show_dag(args: argparse.Namespace, dag: DagView) -> None:
    """A DAG as the commands show it."""
    if args.output == "json":
        show_json(dag, sys.stdout)
        return
    fields = dag.model_dump(exclude={"nodes", "on_failure", "priority", "last_event_id"})
    flags = [name for name in ("open", "held", "paused", "cleaning") if fields.pop(name)]
    if (dag.key or "").startswith(MADE_KEY):
        del fields["key"]
    shown = ", ".join(f"{count} {state}" for state, count in dag.nodes.model_dump().items() if count)
    took = (dag.finished_at or dag.created_at) - dag.created_at
    more = {
        "took": f"{took.total_seconds():.3g} s" if dag.finished_at else None,
        "is": ", ".join(flags) or None,
        "on_failure": None if dag.on_failure == "continue" else dag.on_failure,
        "priority": {name: by for name, by in dag.priority.model_dump().items() if by} if dag.priority else None,
        "nodes": shown or "none",
        "page": f"{_page(args)}#/{quote(dag.namespace)}/dags/{dag.id}",
    }
    show_fields({**fields, **more}, sys.stdout)


def _page(args: argparse.Namespace) -> str:
    """Where a browser finds the DAG service."""
    return endpoints(args.queue_url, args.dag_url, None, 0).dag_url.rstrip("/") + "/ui"


def node(args: argparse.Namespace) -> int:
    with commands.client_of(args) as client:
        commands.show_one(args, client.dag(args.id).node(args.key))
    return commands.OK


def graph(args: argparse.Namespace) -> int:
    with commands.client_of(args) as client:
        handle = client.dag(args.id)
        if args.format == "json":
            show_json(handle.graph(), sys.stdout)
        else:
            text = handle.graph_text(args.format).rstrip("\n") + "\n"
            if sys.stdout.isatty():
                text = "".join(printable(line) + "\n" for line in text[:-1].split("\n"))
            sys.stdout.write(text)  # to a program each key as it is
    return commands.OK


def verb(args: argparse.Namespace) -> int:
    """release, close, pause, resume, cancel, retry, skip."""
    with commands.client_of(args) as client:
        handle = client.dag(args.id)
        match args.verb:
            case "cancel" if args.nodes:
                cancelled = handle.cancel_nodes(args.nodes, args.reason)
                commands.show_rows(args, cancelled, ("key", "status"), "no nodes")
                return commands.OK
            case "cancel":
                dag = handle.cancel(args.reason)
            case "retry":
                dag = _retry(args, handle)
            case "skip":
                dag = handle.skip(args.nodes)
            case verb:
                dag = getattr(handle, verb)()
    show_dag(args, dag)
    return commands.OK


def _retry(args: argparse.Namespace, handle: DagHandle) -> DagView:
    payloads = {node: commands.parsed(payload) for node, payload in args.payload or ()}
    down = {"down_from": args.nodes} if args.down else {"nodes": args.nodes or None}
    return handle.retry(**down, everything=args.all, payloads=payloads or None)


def resolve(args: argparse.Namespace) -> int:
    data = commands.parsed(args.data) if args.data is not None else None
    with commands.client_of(args) as client:
        found = client.dag(args.id).resolve(args.node, args.name, data=data, failed=args.failed)
    told = {name: value for name, value in found.model_dump().items() if value is not None}
    commands.show_one(args, found if args.output == "json" else told)
    return commands.OK


def events(args: argparse.Namespace) -> int:
    with commands.client_of(args) as client:
        for event in client.dag(args.id).events(args.after):
            sys.stdout.write(_event_line(args, event))
            sys.stdout.flush()
    return commands.OK


def _event_line(args: argparse.Namespace, event: DagEvent) -> str:
    if args.output == "json":
        return event.model_dump_json(exclude_none=True) + "\n"
    flags = [name for name in ("open", "held", "paused") if getattr(event, name)]
    notes = [f"generation {event.generation}"] if (event.generation or 1) > 1 else flags
    what = "the DAG" if event.key is None else printable(event.key)
    return f"{event.id:>8}  {event.at:%H:%M:%S.%f}  {event.state:<10} {what} {', '.join(notes)}".rstrip() + "\n"


def watch(args: argparse.Namespace) -> int:
    return asyncio.run(_watch(args, args.id))


def run(args: argparse.Namespace) -> int:
    try:
        return asyncio.run(local_run.until_stopped(_run(args)))
    except local_run.Stopped as stopped:
        stderr_line(f"headgate: stopped by {stopped}")
        return stopped.code


async def _run(args: argparse.Namespace) -> int:
    async with commands.async_client_of(args) as client:
        progress = Progress(sys.stderr)
        handle = await local_run.run(client, commands.read_spec(args.file), slots=args.slots, progress=progress)
        return await _verdict(args, handle)


async def _watch(args: argparse.Namespace, dag_id: str) -> int:
    async with commands.async_client_of(args) as client:
        handle = client.dag(dag_id)
        await handle.show()
        await local_run.watch(handle, Progress(sys.stderr))
        return await _verdict(args, handle)


async def _verdict(args: argparse.Namespace, handle: Any) -> int:
    dag: DagView = await handle.show()
    show_dag(args, dag)
    if dag.state == "succeeded":
        return commands.OK
    for node in await handle.nodes("failed", limit=10):
        stderr_line(printable(f"{node.key} failed: {gist(node.error) or 'no reason given'}"))
    return commands.FAILURE
