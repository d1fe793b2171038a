"""Why a node, or a DAG, does not go on: from what it waits for down to the root, in one sentence."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from typing import Any, Final

from services.dag.model import Dag
from services.dag.read.explain import Explainer, FrontierNode
from services.dag.read.queries import NodeDetail, Queries
from shared.clock import in_words

_STEPS_MAX: Final = 25
_FRONTIER: Final = 100
_UNASKED_TOLD_S: Final = 15.0
_START: Final = "start one (`headgate worker`)"
_ENDED: Final = frozenset(("succeeded", "failed", "skipped", "cancelled"))


class DagReasons:
    """Answers what keeps nodes and DAGs."""

    def __init__(self, queries: Queries, explainer: Explainer) -> None:
        self._queries = queries
        self._explainer = explainer

    async def of_node(self, namespace: str, dag_id: str, key: str) -> dict[str, Any]:
        """Why a node has not ended.

        Raises:
            NotFound: there is no such node.
        """
        causes: list[dict[str, Any]] = []
        seen: set[str] = set()
        at: str | None = key
        while at is not None and at not in seen and len(seen) < _STEPS_MAX:
            seen.add(at)
            detail = await self._queries.node(namespace, dag_id, at)
            found, at = await self._step(namespace, dag_id, detail)
            causes += found
        dag = await self._queries.dag(namespace, dag_id)
        root = causes[-1]
        sentence = root["text"] if len(causes) == 1 else f"{key} waits because {root['text']}"
        if dag.blocked and root["kind"] not in _ENDED:
            sentence += f"; {_nodes(dag.blocked, 'of the DAG ')} blocked"
        return {"about": "node", "name": key, "sentence": f"{sentence}.", "causes": causes}

    async def of_dag(self, namespace: str, dag_id: str) -> dict[str, Any]:
        """Why a DAG has not ended.

        Raises:
            NotFound: there is no such DAG.
        """
        page = await self._explainer.frontier(namespace, dag_id, limit=_FRONTIER, cursor=None)
        dag = page.dag
        causes = [
            _cause(each["kind"], _OBSTACLES.get(each["kind"], each["kind"]), each.get("since"))
            for each in page.waits_for
        ]
        causes += _of_frontier(dag_id, page.nodes)
        if dag.over:
            causes = [_cause(dag.state, f"it has ended: {dag.state}{_failed(dag)}", dag.finished_at)]
        elif not causes:
            causes = [_cause("deciding", "it is just being decided")]
        sentence = "; ".join(each["text"] for each in causes[:3])
        if dag.blocked and not dag.over:
            sentence += f"; {_nodes(dag.blocked)} blocked"
        return {
            "about": "dag",
            "name": dag.name or dag.id,
            "sentence": f"{sentence[:1].upper()}{sentence[1:]}.",
            "causes": causes,
        }

    async def _step(
        self, namespace: str, dag_id: str, detail: NodeDetail
    ) -> tuple[list[dict[str, Any]], str | None]:
        """What keeps one node, and the node to look at next."""
        row = detail.row
        if row.state in _ENDED:
            error = f": {row.error.strip().rpartition(chr(10))[2][:500]}" if row.error else ""
            return [_cause(row.state, f"{row.key} {_ENDS[row.state]}{error}", row.finished_at, row.key)], None
        if row.state == "released":
            return [await self._released(namespace, dag_id, detail)], None
        nodes = [each for each in detail.blocked_by if each["kind"] == "node"]
        others = [each for each in detail.blocked_by if each["kind"] != "node"]
        if not nodes:
            if not others:
                return [_cause("deciding", f"{row.key} is just being decided", None, row.key)], None
            return [
                _cause(each["kind"], f"{row.key} {_kept(dag_id, row.key, each)}", each.get("since"), row.key)
                for each in others
            ], None
        first = next((each for each in nodes if each["state"] not in _ENDED), nodes[0])
        more = f" and {len(nodes) - 1} more" if len(nodes) > 1 else ""
        return [_cause("node", f"{row.key} waits for {first['key']}{more}", row.created_at, row.key)], first["key"]

    async def _released(self, namespace: str, dag_id: str, detail: NodeDetail) -> dict[str, Any]:
        row = detail.row
        if row.sub:
            return _cause("dag", f"{row.key} is a DAG that runs: {row.item_id}", row.released_at, row.key)
        item = (await self._explainer.timeline(namespace, dag_id, row.key)).item
        if item is None:
            return _cause("released", f"{row.key} is released", row.released_at, row.key)
        if item.state == "leased":
            worker = f" by {item.worker}" if item.worker else ""
            return _cause(
                "running", f"{row.key} is worked on{worker}, attempt {item.attempt}", item.since, row.key
            )
        if item.state == "delayed":
            due = item.deliver_at.isoformat() if item.deliver_at else "later"
            return _cause("delayed", f"{row.key} is due at {due}", item.since, row.key)
        if item.unasked_s is not None and item.unasked_s >= _UNASKED_TOLD_S:
            text = (
                f"{row.key} is queued in {row.topic}, which no consumer has asked for"
                f" in {in_words(item.unasked_s)}:"
                f" {_START}"
            )
            return _cause("unasked", text, row.released_at, row.key)
        return _cause("queued", f"{row.key} waits for a consumer of {row.topic}", row.released_at, row.key)


_KEPT: Final = {
    "hold": "waits for the DAG's release: it is held",
    "pause": "waits for the DAG to be resumed: it is paused",
    "retry": "waits until a retry has found out what runs again",
    "end": "waits for the rest of the DAG to end",
}
_ENDS: Final = {
    "succeeded": "has succeeded",
    "failed": "has failed",
    "skipped": "was skipped",
    "cancelled": "was cancelled",
}
_OBSTACLES: Final = {
    "hold": "it is held until it is released",
    "pause": "it is paused until it is resumed",
    "retry": "a retry is at work",
    "close": "it is open, or empty, and ends when it is closed",
}


def _of_frontier(dag_id: str, nodes: list[FrontierNode]) -> list[dict[str, Any]]:
    """What the nodes that nothing in the graph keeps are at, as few lines."""
    found = []
    for standing in (
        "running",
        "queued",
        "delayed",
        "kept",
        "sending",
        "ending",
        "releasing",
        "cancelling",
        "unknown",
    ):
        some = [node for node in nodes if node.standing == standing]
        if not some:
            continue
        first = min(some, key=lambda node: node.since)
        text = f"{_nodes(len(some), is_part=len(nodes) >= _FRONTIER)} {_STANDINGS.get(standing, standing)}"
        unasked = [
            node for node in some if node.item is not None and (node.item.unasked_s or 0) >= _UNASKED_TOLD_S
        ]
        if standing == "queued" and unasked:
            some_s = max(node.item.unasked_s or 0 for node in unasked if node.item is not None)
            text += f", and no consumer has asked for {unasked[0].row.topic} in {in_words(some_s)}: {_START}"
        if standing == "kept":
            text += (
                f": {first.row.key} {_kept(dag_id, first.row.key, first.waits_for[0])}" if first.waits_for else ""
            )
        found.append(_cause(standing, text, first.since, first.row.key))
    return found


_STANDINGS: Final = {
    "running": "worked on",
    "queued": "queued",
    "kept": "kept by something outside of the graph",
    "delayed": "not due yet",
}


def _kept(dag_id: str, key: str, obstacle: dict[str, Any]) -> str:
    kind = obstacle["kind"]
    if kind == "external":
        command = shlex.join(("headgate", "dag", "resolve", dag_id, key, obstacle["name"]))
        return f"waits for the external {obstacle['name']} (`{command}`)"
    return _KEPT.get(kind, f"waits for {kind}")


def _failed(dag: Dag) -> str:
    return f", {dag.failed} node{'s' if dag.failed > 1 else ''} failed" if dag.failed else ""


def _nodes(count: int, of: str = "", *, is_part: bool = False) -> str:
    """So many nodes, as the begin of what they are; of a part of them the rest is not counted."""
    if is_part:
        return f"{count}+ nodes {of}are"
    return f"{count} node {of}is" if count == 1 else f"{count} nodes {of}are"


def _cause(kind: str, text: str, since: datetime | None = None, node: str | None = None) -> dict[str, Any]:
    return {
        "kind": kind,
        "text": text,
        "since": None if since is None else since.astimezone(UTC),
        "near": [],
        "node": node,
    }
