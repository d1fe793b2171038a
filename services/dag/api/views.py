"""DAGs and nodes as callers see them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from services.dag.model import Added, Dag
from services.dag.read.queries import NodeDetail
from services.dag.store.reads import ShownNode


def dag_view(dag: Dag) -> dict[str, Any]:
    """A DAG as callers see it."""
    return {
        "id": dag.id,
        "key": dag.key,
        "name": dag.name,
        "namespace": dag.namespace,
        "state": dag.state,
        "open": dag.open,
        "held": dag.held,
        "paused": dag.paused,
        "created_at": dag.created_at,
        "finished_at": dag.finished_at,
        "deadline_at": dag.deadline_at,
        "nodes": {
            "total": dag.total,
            "blocked": dag.blocked,
            "released": dag.released,
            "succeeded": dag.succeeded,
            "failed": dag.failed,
            "skipped": dag.skipped,
            "cancelled": dag.cancelled,
        },
        "on_failure": dag.on_failure,
        "workflow": dag.workflow,
        "metadata": raw(dag.metadata),
        "reason": dag.reason,
        "priority": {"inherit": dag.started_lift, "critical_path": dag.path_lift} if dag.lifted else None,
        "undeclared": [{"node": node, "name": name} for node, name in dag.undeclared],
        "cleaning": dag.cleanup_phase > 0 and not dag.over,
        "parent": None
        if dag.parent_dag is None
        else {"dag": dag.parent_dag, "node": dag.parent_node, "generation": dag.parent_generation},
        "last_event_id": str(dag.last_event),
    }


def added_view(added: Sequence[Added]) -> list[dict[str, str]]:
    """Nodes of an add call as callers see them."""
    return [{"key": node.key, "item_id": node.item_id, "state": node.state} for node in added]


def node_view(detail: NodeDetail) -> dict[str, Any]:
    """A node as callers see it."""
    row = detail.row
    return {
        "key": row.key,
        "item_id": row.item_id,
        "state": row.state,
        "generation": row.generation,
        "topic": row.topic or None,
        "dag": row.item_id if row.sub else None,
        "timer": detail.timer,
        "run_on": None if detail.compensates else row.run_on,
        "compensates": detail.compensates,
        "trigger": row.trigger,
        "tolerate": row.tolerate,
        "upstream": detail.upstream,
        "downstream": detail.downstream,
        "external": detail.externals,
        "blocked_by": detail.blocked_by,
        "partial": detail.is_cut,
        "attempts": row.attempts,
        "output": raw(row.output),
        "error": row.error,
        "created_at": row.created_at,
        "released_at": row.released_at,
        "finished_at": row.finished_at,
    }


def node_end_view(row: ShownNode) -> dict[str, Any]:
    """Where a node stands, and what it has come to."""
    return {
        "key": row.key,
        "item_id": row.item_id,
        "state": row.state,
        "output": raw(row.output),
        "error": row.error,
    }


def raw(text: str | None) -> msgspec.Raw | None:
    """JSON text as it is."""
    return None if text is None else msgspec.Raw(text.encode())
