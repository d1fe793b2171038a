"""The commands about topics, namespaces and shards."""

import argparse
import sys
from collections.abc import Callable
from typing import Any, Final

from headgate._calls.verbs import present
from headgate._cli import commands
from headgate._cli.output import show_json, told
from headgate._stderr import stderr_line
from headgate.errors import Invalid
from headgate.wire import DagShardHealth

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


def topics(args: argparse.Namespace) -> int:
    with commands.client_of(args) as client:
        commands.show_rows(args, told(client.topics()), _TOPIC_COLUMNS, f"no active topics in {client.namespace}")
    return commands.OK


def topic(args: argparse.Namespace) -> int:
    if args.action == "purge" and not args.yes:
        stderr_line(f"headgate: this cancels every item of {args.topic}; say --yes if you mean it")
        return commands.USAGE
    with commands.client_of(args) as client:
        actions: dict[str, Callable[..., int | None]] = {
            "pause": client.pause_topic,
            "resume": client.resume_topic,
            "purge": client.purge_topic,
            "redrive": client.redrive_topic,
        }
        count = actions[args.action](args.topic)
    commands.show_one(args, {"topic": args.topic, "action": args.action, **present(items=count)})
    return commands.OK


def share(args: argparse.Namespace) -> int:
    try:
        wanted = {int(priority): float(part) for priority, part in (one.split("=") for one in args.shares)}
    except ValueError:
        raise Invalid("a share is written PRIORITY=SHARE, like 5=0.1") from None
    with commands.client_of(args) as client:
        client.configure_topic(args.topic, min_share=wanted)
    commands.show_one(args, {"topic": args.topic, "min_share": wanted or "none"})
    return commands.OK


def namespaces(args: argparse.Namespace) -> int:
    with commands.client_of(args) as client:
        columns = ("namespace", "enqueues_per_minute", "enqueued_last_minute", "in_flight_max", "in_flight")
        commands.show_rows(args, told(client.namespaces()), columns, "no namespaces")
    return commands.OK


def shards(args: argparse.Namespace) -> int:
    with commands.client_of(args) as client:
        if not args.dag:
            commands.show_rows(args, client.shards(), _SHARD_COLUMNS, "no shards")
            return commands.OK
        found = client.dag_shards()
    if args.output == "json":
        show_json(found, sys.stdout)
    else:
        commands.show_rows(args, [_dag_shard(shard) for shard in found], _DAG_SHARD_COLUMNS, "no shards")
    return commands.OK


def _dag_shard(shard: DagShardHealth) -> dict[str, Any]:
    dags, nodes = shard.dags, shard.nodes
    counts = {"dags_running": dags.get("running", 0)}
    counts |= {f"nodes_{state}": nodes.get(state, 0) for state in ("blocked", "released")}
    return shard.model_dump() | counts
