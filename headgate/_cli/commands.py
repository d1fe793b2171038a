"""What each command of the command line does. A command returns its exit code."""

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from headgate._calls.dag import MADE_KEY, Dag
from headgate._calls.elements import Result
from headgate._calls.verbs import present
from headgate._cli import local_run
from headgate._cli.output import Progress, gist, plain, printable, show_fields, show_json, show_table, told
from headgate._cli.submitting import submit
from headgate._client.async_client import AsyncClient
from headgate._client.client import Client
from headgate._client.handle import DagHandle
from headgate._client.settings import endpoints
from headgate._http.transport import RetryPolicy
from headgate._stderr import stderr_line
from headgate.errors import Invalid
from headgate.wire import Dag as DagView
from headgate.wire import DagEvent, DagShardHealth, NodeView

OK: Final = 0
FAILURE: Final = 1
USAGE: Final = 2
NOT_FOUND: Final = 3
CONFLICT: Final = 4
UNAVAILABLE: Final = 5

_STATUS_EXITS: Final = {
    "not_found": NOT_FOUND,
    "refused": FAILURE,
    "lease_lost": CONFLICT,
    "managed": CONFLICT,
    "finished": CONFLICT,
}
_DAG_COLUMNS: Final = ("id", "name", "state", "total", "succeeded", "failed", "released", "blocked", "created_at")
_NODE_COLUMNS: Final = ("key", "state", "topic", "attempts", "generation", "blocked_by", "error")
_TOPIC_COLUMNS: Final = (
    "topic",
    "ready",
    "delayed",
    "leased",
    "disabled",
    "dead",
    "oldest_ready_age_s",
    "paused",
)
_SHARD_COLUMNS: Final = (
    "shard",
    "state",
    "owner",
    "ready",
    "delayed",
    "leased",
    "dead",
    "enqueued_per_s",
    "acked_per_s",
    "db_latency_ms_p99",
)
_DAG_SHARD_COLUMNS: Final = (
    "shard",
    "state",
    "owner",
    "dags_running",
    "nodes_blocked",
    "nodes_released",
    "outbox",
    "ack_lag_s",
    "release_lag_s",
)

Args = argparse.Namespace


def parsed(text: str) -> Any:
    """JSON, or the text itself where it does not begin like a JSON object, list or string.

    Raises:
        Invalid: it begins like JSON and is none.
    """
    try:
        return json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        if text.lstrip()[:1] in ("{", "[", '"'):
            raise Invalid(f"this is not JSON: {error}") from None
        return text


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def read(path: str) -> str:
    return sys.stdin.read() if path == "-" else Path(path).read_text()


def read_spec(path: str) -> Any:
    """The JSON object in a file, or `-`.

    Raises:
        Invalid: it is not JSON, or no object.
    """
    try:
        spec = json.loads(read(path), parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise Invalid(f"{path} is not JSON: {error}") from None
    if not isinstance(spec, dict):
        raise Invalid(f"{path} should hold an object: {{name, nodes: [...], dependencies: [...]}}")
    return spec


def _client(args: Args) -> Client:
    return Client(**_settings(args))


def client_of(args: Args) -> Client:
    """The client of a command; other modules of the command line ask here."""
    return _client(args)


def show_dag(args: Args, dag: DagView) -> None:
    """A DAG as the commands show it."""
    _dag(args, dag)


def _async_client(args: Args) -> AsyncClient:
    return AsyncClient(**_settings(args))


def _settings(args: Args) -> dict[str, Any]:
    """A person waits less patiently than a program."""
    where = {name: getattr(args, name) for name in ("queue_url", "dag_url", "namespace", "token")}
    return {**where, "retry": RetryPolicy(attempts_max=4)}


def show_rows(args: Args, rows: Sequence[Any], columns: Sequence[str], empty: str) -> None:
    """Rows as the commands show them; `empty` is said where there are none."""
    if args.output == "json":
        show_json(list(rows), sys.stdout)
    elif rows:
        dumped = [row if isinstance(row, dict) else row.model_dump() for row in rows]
        show_table(dumped, columns, sys.stdout)
    else:
        stderr_line(empty)


def _one(args: Args, thing: Any) -> None:
    if args.output == "json":
        show_json(thing, sys.stdout)
    else:
        show_fields(thing if isinstance(thing, dict) else thing.model_dump(), sys.stdout)


def _results(args: Args, results: Sequence[Result]) -> int:
    rows = [present(**result._asdict()) for result in results]
    columns = ("id", "status", "code") if any("code" in row for row in rows) else ("id", "status")
    show_rows(args, rows, columns, "nothing to do")
    return max((_STATUS_EXITS.get(result.status, OK) for result in results), default=OK)


# Items


def enqueue(args: Args) -> int:
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
        metadata=parsed(args.metadata) if args.metadata else None,
    )
    if args.lines:
        payloads = [parsed(line) for line in read("-").splitlines() if line.strip()]
    else:
        payloads = [parsed(read("-") if args.payload == "-" else args.payload) if args.payload else None]
    items: list[Any] = [{"topic": args.topic, "payload": payload, **options} for payload in payloads]
    with _client(args) as client:
        return _results(args, client.enqueue(items))


def ack(args: Args) -> int:
    element: Any = {"id": args.id, "lease_token": args.lease_token}
    if args.result is not None:
        element["output"] = parsed(args.result)
    with _client(args) as client:
        return _results(args, client.ack([element]))


def nack(args: Args) -> int:
    element: Any = {
        "id": args.id,
        "lease_token": args.lease_token,
        **present(delay_s=args.delay, error=args.error, final=args.final or None),
    }
    with _client(args) as client:
        return _results(args, client.nack([element]))


def extend(args: Args) -> int:
    element: Any = {"id": args.id, "lease_token": args.lease_token, **present(lease_s=args.lease)}
    with _client(args) as client:
        return _results(args, client.extend([element]))


def revive(args: Args) -> int:
    with _client(args) as client:
        return _results(args, client.revive([{"id": item_id} for item_id in args.ids]))


def cancel(args: Args) -> int:
    with _client(args) as client:
        return _results(args, client.cancel(args.ids))


def item(args: Args) -> int:
    with _client(args) as client:
        _one(args, client.item(args.id))
    return OK


def items(args: Args) -> int:
    with _client(args) as client:
        found = told(client.items(args.topic, args.state, limit=args.limit))
        rows = (
            found
            if args.output == "json"
            else [{**each.model_dump(), "error": gist(each.error)} for each in found]
        )
        show_rows(args, rows, ("id", "topic", "state", "priority", "attempt", "payload", "error"), "no items")
    return OK


# Topics and shards


def topics(args: Args) -> int:
    with _client(args) as client:
        show_rows(args, told(client.topics()), _TOPIC_COLUMNS, f"no active topics in {client.namespace}")
    return OK


def topic(args: Args) -> int:
    if args.action == "purge" and not args.yes:
        stderr_line(f"headgate: this cancels every item of {args.topic}; say --yes if you mean it")
        return USAGE
    with _client(args) as client:
        actions: dict[str, Callable[..., int | None]] = {
            "pause": client.pause_topic,
            "resume": client.resume_topic,
            "purge": client.purge_topic,
            "redrive": client.redrive_topic,
        }
        count = actions[args.action](args.topic)
    _one(args, {"topic": args.topic, "action": args.action, **present(items=count)})
    return OK


def share(args: Args) -> int:
    try:
        wanted = {int(priority): float(part) for priority, part in (one.split("=") for one in args.shares)}
    except ValueError:
        raise Invalid("a share is written PRIORITY=SHARE, like 5=0.1") from None
    with _client(args) as client:
        client.configure_topic(args.topic, min_share=wanted)
    _one(args, {"topic": args.topic, "min_share": wanted or "none"})
    return OK


def namespaces(args: Args) -> int:
    with _client(args) as client:
        columns = ("namespace", "enqueues_per_minute", "enqueued_last_minute", "in_flight_max", "in_flight")
        show_rows(args, told(client.namespaces()), columns, "no namespaces")
    return OK


def shards(args: Args) -> int:
    with _client(args) as client:
        if not args.dag:
            show_rows(args, client.shards(), _SHARD_COLUMNS, "no shards")
            return OK
        found = client.dag_shards()
    if args.output == "json":
        show_json(found, sys.stdout)
    else:
        show_rows(args, [_dag_shard(shard) for shard in found], _DAG_SHARD_COLUMNS, "no shards")
    return OK


def _dag_shard(shard: DagShardHealth) -> dict[str, Any]:
    dags, nodes = shard.dags, shard.nodes
    counts = {"dags_running": dags.get("running", 0)}
    counts |= {f"nodes_{state}": nodes.get(state, 0) for state in ("blocked", "released")}
    return shard.model_dump() | counts


# DAGs


def dag_submit(args: Args) -> int:
    dag = Dag.from_spec(read_spec(args.file))
    with _client(args) as client:
        made = submit(client, dag)
        if made.same is False:
            stderr_line(f"a DAG of the key {dag.key!r} was there, made of something else; this is that one")
        if not args.watch:
            _dag(args, client.dag(made.dag.id).show())
            return OK
    return asyncio.run(_watch(args, made.dag.id))


def dag_list(args: Args) -> int:
    with _client(args) as client:
        found = told(client.dags(state=args.state, name=args.name, key=args.key, limit=args.limit))
    if args.output == "json":
        show_json(found, sys.stdout)
    else:
        rows = [{**dag.model_dump(), **dag.nodes.model_dump()} for dag in found]
        show_rows(args, rows, _DAG_COLUMNS, "no DAGs")
    return OK


def dag_show(args: Args) -> int:
    if (args.id is None) == (args.key is None):
        raise Invalid("name a DAG by its id or by --key, one of them")
    with _client(args) as client:
        handle = client.dag(args.id) if args.key is None else client.dag_by_key(args.key)
        dag = handle.show()
        wanted = args.state is not None or args.nodes
        nodes = handle.nodes(args.state, limit=args.limit) if wanted else []
    if args.output == "json":
        show_json({**plain(dag), "node_list": plain(nodes)} if wanted else dag, sys.stdout)
        return OK
    _dag(args, dag)
    if wanted:
        sys.stdout.write("\n")
        rows = [{**node.model_dump(), **_in_short(node)} for node in nodes]
        show_rows(args, rows, _NODE_COLUMNS, "no such nodes")
    return OK


def _in_short(node: NodeView) -> dict[str, Any]:
    blockers = ", ".join(block.key or block.name or block.kind for block in node.blocked_by)
    # Attempts are told with the end; `explain` knows those of a node that runs.
    return {"blocked_by": blockers or None, "error": gist(node.error), "attempts": node.attempts or None}


def _dag(args: Args, dag: DagView) -> None:
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


def _page(args: Args) -> str:
    """Where a browser finds the DAG service."""
    return endpoints(args.queue_url, args.dag_url, None, 0).dag_url.rstrip("/") + "/ui"


def dag_node(args: Args) -> int:
    with _client(args) as client:
        _one(args, client.dag(args.id).node(args.key))
    return OK


def dag_graph(args: Args) -> int:
    with _client(args) as client:
        handle = client.dag(args.id)
        if args.format == "json":
            show_json(handle.graph(), sys.stdout)
        else:
            sys.stdout.write(handle.graph_text(args.format).rstrip("\n") + "\n")
    return OK


def dag_verb(args: Args) -> int:
    """release, close, pause, resume, cancel, retry, skip."""
    with _client(args) as client:
        handle = client.dag(args.id)
        match args.verb:
            case "cancel" if args.nodes:
                show_rows(args, handle.cancel_nodes(args.nodes, args.reason), ("key", "status"), "no nodes")
                return OK
            case "cancel":
                dag = handle.cancel(args.reason)
            case "retry":
                dag = _retry(args, handle)
            case "skip":
                dag = handle.skip(args.nodes)
            case verb:
                dag = getattr(handle, verb)()
    _dag(args, dag)
    return OK


def _retry(args: Args, handle: DagHandle) -> DagView:
    payloads = {node: parsed(payload) for node, payload in args.payload or ()}
    down = {"down_from": args.nodes} if args.down else {"nodes": args.nodes or None}
    return handle.retry(**down, everything=args.all, payloads=payloads or None)


def dag_resolve(args: Args) -> int:
    data = parsed(args.data) if args.data is not None else None
    with _client(args) as client:
        found = client.dag(args.id).resolve(args.node, args.name, data=data, failed=args.failed)
    _one(args, found if args.output == "json" else {k: v for k, v in found.model_dump().items() if v is not None})
    return OK


def dag_events(args: Args) -> int:
    with _client(args) as client:
        for event in client.dag(args.id).events(args.after):
            sys.stdout.write(_event_line(args, event))
            sys.stdout.flush()
    return OK


def _event_line(args: Args, event: DagEvent) -> str:
    if args.output == "json":
        return event.model_dump_json(exclude_none=True) + "\n"
    flags = [name for name in ("open", "held", "paused") if getattr(event, name)]
    notes = [f"generation {event.generation}"] if (event.generation or 1) > 1 else flags
    what = "the DAG" if event.key is None else printable(event.key)
    return f"{event.id:>8}  {event.at:%H:%M:%S.%f}  {event.state:<10} {what} {', '.join(notes)}".rstrip() + "\n"


def dag_watch(args: Args) -> int:
    return asyncio.run(_watch(args, args.id))


def dag_run(args: Args) -> int:
    try:
        return asyncio.run(local_run.until_stopped(_run(args)))
    except local_run.Stopped as stopped:
        stderr_line(f"headgate: stopped by {stopped}")
        return stopped.code


async def _run(args: Args) -> int:
    async with _async_client(args) as client:
        progress = Progress(sys.stderr)
        handle = await local_run.run(client, read_spec(args.file), slots=args.slots, progress=progress)
        return await _verdict(args, handle)


async def _watch(args: Args, dag_id: str) -> int:
    async with _async_client(args) as client:
        handle = client.dag(dag_id)
        await handle.show()
        await local_run.watch(handle, Progress(sys.stderr))
        return await _verdict(args, handle)


async def _verdict(args: Args, handle: Any) -> int:
    dag: DagView = await handle.show()
    _dag(args, dag)
    if dag.state == "succeeded":
        return OK
    for node in await handle.nodes("failed", limit=10):
        stderr_line(f"{node.key} failed: {gist(node.error) or 'no reason given'}")
    return FAILURE
