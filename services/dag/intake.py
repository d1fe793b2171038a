"""From wire models to the service's own values: sizes are checked and fingerprints taken here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from headgate import wire
from services.dag.errors import ValueTooLarge
from services.dag.items import encode
from services.dag.model import NewDag, NewEdge, NewNode, Resolved
from services.dag.settings import DagSettings
from shared.errors import FieldError, Forbidden

_fingerprint = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode


def new_dag(spec: wire.DagSpec, settings: DagSettings) -> NewDag:
    """A DAG to create.

    Raises:
        ValueTooLarge: its metadata is over the limit.
    """
    metadata = None
    if spec.metadata is not None:
        metadata = _checked(spec.metadata, settings.metadata_bytes_max, "/metadata")
    return NewDag(
        key=spec.key,
        name=spec.name,
        open=spec.open,
        held=spec.hold,
        on_failure=spec.on_failure,
        deadline_s=spec.deadline_s,
        metadata=metadata,
    )


def new_nodes(nodes: Sequence[wire.NodeSpec], settings: DagSettings) -> list[NewNode]:
    """Nodes to add.

    Raises:
        ValueTooLarge: a payload or metadata is over its limit.
        Forbidden: a topic is the system's.
    """
    return [_new_node(i, node, settings) for i, node in enumerate(nodes)]


def _new_node(i: int, node: wire.NodeSpec, settings: DagSettings) -> NewNode:
    if node.topic.startswith("_"):
        raise Forbidden("topics that begin with `_` are the system's; use another name")
    _checked(node.payload, settings.payload_bytes_max, f"/nodes/{i}/payload")
    if node.metadata is not None:
        _checked(node.metadata, settings.metadata_bytes_max, f"/nodes/{i}/metadata")
    item: dict[str, Any] = {
        "topic": node.topic,
        "payload": node.payload,
        "priority": node.priority,
        "lease_s": node.lease_s,
        "max_attempts": node.max_attempts,
    }
    if node.metadata is not None:
        item["metadata"] = node.metadata
    if node.delay_s is not None:
        item["delay_s"] = node.delay_s
    if node.ttl_s is not None:
        item["ttl_s"] = node.ttl_s
    if node.backoff is not None:
        backoff = node.backoff
        item["backoff"] = {"base_s": backoff.base_s, "factor": backoff.factor, "max_s": backoff.max_s}
    upstream = tuple(dict.fromkeys(node.upstream or ()))
    external = tuple(dict.fromkeys(node.external or ()))
    whole = [item, node.trigger, node.pass_outputs, sorted(upstream), sorted(external)]
    return NewNode(
        key=node.key,
        topic=node.topic,
        trigger=node.trigger,
        pass_outputs=node.pass_outputs,
        upstream=upstream,
        external=external,
        item=encode(item),
        fingerprint=hashlib.blake2b(_fingerprint(whole).encode(), digest_size=16).digest(),
    )


def new_edges(dependencies: Sequence[wire.Dependency]) -> list[NewEdge]:
    """Edges to add."""
    return [NewEdge(edge.upstream, edge.downstream, f"/dependencies/{i}") for i, edge in enumerate(dependencies)]


def resolutions(facts: Sequence[wire.ExternalResolution], settings: DagSettings) -> list[Resolved]:
    """Externals to resolve.

    Raises:
        ValueTooLarge: data is over the limit.
    """
    return [
        Resolved(
            fact.node,
            fact.name,
            None if fact.data is None else _checked(fact.data, settings.data_bytes_max, f"/external/{i}/data"),
            fact.failed,
        )
        for i, fact in enumerate(facts)
    ]


def _checked(value: Any, bytes_max: int, pointer: str) -> str:
    text = encode(value)
    if len(text) > bytes_max or len(text.encode()) > bytes_max:
        detail = f"it has over {bytes_max} bytes as JSON"
        raise ValueTooLarge(f"a value is too large: {detail}", errors=[FieldError(pointer, detail)])
    return text
