"""What a sub-DAG is made of, as the JSON text that its node keeps; pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from services.dag.model import NewDag, NewEdge, NewNode
from services.dag.queue_items import encode

# The external by which a node of a sub-DAG asks for what the parent node was given.
GIVEN: Final = "parent"


class SubSpec(NamedTuple):
    """A DAG to create in a node's place."""

    dag: NewDag
    nodes: list[NewNode]
    dependencies: list[NewEdge]


def dump(spec: SubSpec) -> str:
    """A sub-DAG as JSON text."""
    dag = spec.dag
    return encode(
        {
            "name": dag.name,
            "open": dag.open,
            "on_failure": dag.on_failure,
            "deadline_s": dag.deadline_s,
            "metadata": dag.metadata,
            "lifts": [dag.started_lift, dag.path_lift],
            "nodes": [_dump_node(node) for node in spec.nodes],
            "dependencies": [[edge.upstream, edge.downstream] for edge in spec.dependencies],
        }
    )


def load(text: str) -> SubSpec:
    """The reverse of `dump`."""
    raw: dict[str, Any] = json.loads(text)
    dag = NewDag(
        key=None,
        name=raw["name"],
        open=raw["open"],
        held=False,
        on_failure=raw["on_failure"],
        deadline_s=raw["deadline_s"],
        metadata=raw["metadata"],
        started_lift=raw.get("lifts", [None])[0],
        path_lift=raw.get("lifts", [None])[-1],
    )
    edges = [NewEdge(up, down, i) for i, (up, down) in enumerate(raw["dependencies"])]
    return SubSpec(dag, [_load_node(node) for node in raw["nodes"]], edges)


def given(nodes: Sequence[NewNode]) -> list[tuple[str, str]]:
    """The (node, external) pairs that are resolved with what the parent node was given."""
    return [(node.key, GIVEN) for node in nodes if GIVEN in node.external]


def _dump_node(node: NewNode) -> dict[str, Any]:
    return {
        "key": node.key,
        "topic": node.topic,
        "trigger": node.trigger,
        "pass_outputs": node.pass_outputs,
        "upstream": node.upstream,
        "external": node.external,
        "item": node.item,
        "fingerprint": node.fingerprint.hex(),
        "levels": node.levels,
        "run_on": node.run_on,
        "compensates": node.compensates,
        "deadlines": node.deadlines,
        "tolerate": node.tolerate,
        "timer": node.timer,
    }


def _load_node(raw: dict[str, Any]) -> NewNode:
    lists = {name: tuple(raw[name]) for name in ("upstream", "external")}
    lists["deadlines"] = tuple((name, deadline_s) for name, deadline_s in raw.get("deadlines", ()))
    return NewNode(**{**raw, **lists, "fingerprint": bytes.fromhex(raw["fingerprint"])})
