"""From wire models to the service's own values: sizes are checked and fingerprints taken here."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

from headgate import wire
from services.dag.build import addition, run_spec, subdag_spec
from services.dag.build.run_spec import RunSpec
from services.dag.errors import LimitExceeded, ValueTooLarge
from services.dag.model import UNDO, NewDag, NewEdge, NewNode, Resolved, Retry
from services.dag.queue_items import canonical, encode
from services.dag.settings import DagSettings
from shared.errors import FieldError, Forbidden, ServiceError, pointer_to

_BACKOFF = wire.Backoff()


def new_dag(spec: wire.DagSpec | wire.SubDag, settings: DagSettings) -> NewDag:
    """A DAG to create.

    Raises:
        ValueTooLarge: its metadata is over the limit.
    """
    metadata = None
    if spec.metadata is not None:
        metadata = checked(spec.metadata, settings.metadata_bytes_max, "/metadata")
    whole = spec if isinstance(spec, wire.DagSpec) else None
    return NewDag(
        key=whole.key if whole else None,
        name=spec.name,
        open=spec.open,
        held=whole.hold if whole else False,
        on_failure=spec.on_failure,
        deadline_s=spec.deadline_s,
        metadata=metadata,
        started_lift=spec.priority.inherit if spec.priority else None,
        path_lift=spec.priority.critical_path if spec.priority else None,
        unique=whole.unique if whole else False,
    )


def edge_count(nodes: Sequence[wire.NodeSpec]) -> int:
    """How many edges nodes bring, those of DAGs within them too."""
    return sum(len(node.upstream or ()) + (edge_count(node.dag.nodes or ()) if node.dag else 0) for node in nodes)


def new_nodes(nodes: Sequence[wire.NodeSpec], settings: DagSettings) -> list[NewNode]:
    """Nodes to add.

    Raises:
        ValueTooLarge: a payload, metadata or sub-DAG is over its limit.
        Forbidden: a topic is the system's.
        NodeExists, UnknownNode, Cycle, LimitExceeded: of a sub-DAG.
    """
    return [_new_node(i, node, settings) for i, node in enumerate(nodes)]


def _new_node(i: int, node: wire.NodeSpec, settings: DagSettings) -> NewNode:
    upstream = tuple(dict.fromkeys(node.upstream or ()))
    external = tuple(dict.fromkeys(each.name for each in node.external or ()))
    limits = {each.name: each.deadline_s for each in node.external or ()}
    deadlines = sorted((name, limit_s) for name, limit_s in limits.items() if limit_s is not None)
    if node.dag is not None:
        item, levels = sub_dag(node.dag, f"/nodes/{i}/dag", settings)
        said = encode({"dag": item})
    elif node.workflow is not None:
        item, levels = run_of(node.workflow, f"/nodes/{i}/workflow", settings), 1
        said = encode({"workflow": canonical(node.workflow.model_dump(mode="json", exclude_none=True))})
    elif node.timer is not None:
        item, levels = canonical(node.timer.model_dump(mode="json", exclude_none=True)), 0
        said = encode({"timer": item})
    else:
        (item, said), levels = _item(i, node, settings), 0
    rest: list[Any] = [node.trigger, node.pass_outputs, sorted(upstream), sorted(external)]
    if node.run_on is not None or node.compensates is not None:
        rest.append([node.run_on, node.compensates])
    if deadlines:
        rest.append(deadlines)
    if node.tolerate:
        rest.append("tolerate")
    whole = f"[{said},{canonical(rest)[1:]}"
    return NewNode(
        key=node.key,
        topic=node.topic or "",
        trigger=node.trigger,
        pass_outputs=node.pass_outputs,
        upstream=upstream,
        external=external,
        item=item,
        fingerprint=hashlib.blake2b(whole.encode(), digest_size=16).digest(),
        levels=levels,
        run_on=node.run_on if node.compensates is None else UNDO,
        compensates=node.compensates,
        deadlines=tuple(deadlines),
        tolerate=node.tolerate,
        timer=node.timer is not None,
    )


def run_of(said: wire.WorkflowNode, at: str, settings: DagSettings, *, does: str = "child") -> str:
    """A run as its node keeps it.

    Raises:
        ValueTooLarge: its input or metadata is over the limit.
    """
    if said.type.startswith("_"):
        raise Forbidden("types that begin with `_` are the system's; use another name")
    return run_spec.dump(
        RunSpec(
            does=does,
            workflow_id=said.id or "",
            type=said.type,
            input=None if said.input is None else checked(said.input, settings.payload_bytes_max, f"{at}/input"),
            version=said.version,
            deadline_s=said.deadline_s,
            priority=said.priority,
            metadata=None
            if said.metadata is None
            else checked(said.metadata, settings.metadata_bytes_max, f"{at}/metadata"),
            parent_close=said.parent_close,
        )
    )


def sub_dag(spec: wire.SubDag, at: str, settings: DagSettings) -> tuple[str, int]:
    """A sub-DAG as its node keeps it, and how many levels of DAGs it has; what is wrong with it is said now."""
    try:
        nodes = new_nodes(spec.nodes or (), settings)
        made = subdag_spec.SubSpec(new_dag(spec, settings), nodes, new_edges(spec.dependencies or ()))
        addition.check_whole(made.nodes, made.dependencies)
    except ServiceError as error:
        error.errors = tuple(FieldError(at + fault.pointer, fault.detail) for fault in error.errors)
        raise
    levels = 1 + max((node.levels for node in nodes), default=0)
    if levels > settings.subdag_depth_max:
        detail = f"DAGs would nest over {settings.subdag_depth_max} deep"
        raise LimitExceeded(detail, errors=[FieldError(at, detail)])
    text = subdag_spec.dump(made)
    if len(text.encode()) > settings.subdag_bytes_max:
        detail = f"it has over {settings.subdag_bytes_max} bytes as JSON"
        raise ValueTooLarge(f"a sub-DAG is too large: {detail}", errors=[FieldError(at, detail)])
    return text, levels


def _item(i: int, node: wire.NodeSpec, settings: DagSettings) -> tuple[str, str]:
    """A node's queue item as JSON text, and the same with all names sorted; a default said is a default left
    out. Both are put together from texts of the values: most have one form only, and an encoder costs more than a
    node's whole rest here."""
    assert node.topic is not None, "the model sees to that"
    if node.topic.startswith("_"):
        raise Forbidden("topics that begin with `_` are the system's; use another name")
    fields = {
        "topic": f'"{node.topic}"',
        "payload": checked(node.payload, settings.payload_bytes_max, f"/nodes/{i}/payload"),
        "priority": str(node.priority),
        "lease_s": repr(node.lease_s),
        "max_attempts": str(node.max_attempts),
    }
    if node.metadata is not None:
        fields["metadata"] = checked(node.metadata, settings.metadata_bytes_max, f"/nodes/{i}/metadata")
    if node.delay_s:
        fields["delay_s"] = repr(node.delay_s)
    if node.ttl_s is not None:
        fields["ttl_s"] = repr(node.ttl_s)
    if node.timeout_s is not None:
        fields["timeout_s"] = repr(node.timeout_s)
    if node.deadline_s is not None:
        fields["deadline_s"] = repr(node.deadline_s)
    if node.fairness_key is not None:
        fields["fairness_key"] = canonical(node.fairness_key)
    if node.backoff is not None and node.backoff != _BACKOFF:
        fields["backoff"] = canonical(node.backoff.model_dump())
    item = _object(fields.items())
    if "{" in fields["payload"]:
        fields["payload"] = canonical(node.payload)
    if node.metadata is not None:
        fields["metadata"] = canonical(node.metadata)
    return item, _object(sorted(fields.items()))


def _object(fields: Iterable[tuple[str, str]]) -> str:
    return "{" + ",".join([f'"{name}":{text}' for name, text in fields]) + "}"


def value(body: wire.PutValue, settings: DagSettings) -> str:
    """A value to write, as JSON text.

    Raises:
        ValueTooLarge: it is over the limit.
    """
    return checked(body.value, settings.value_bytes_max, "/value")


def new_edges(dependencies: Sequence[wire.Dependency]) -> list[NewEdge]:
    """Edges to add."""
    return [NewEdge(edge.upstream, edge.downstream, i) for i, edge in enumerate(dependencies)]


def retry(body: wire.RetryDag, settings: DagSettings) -> Retry:
    """What to run again.

    Raises:
        ValueTooLarge: a payload is over the limit.
    """
    payloads = {
        key: checked(payload, settings.payload_bytes_max, pointer_to("payloads", key))
        for key, payload in (body.payloads or {}).items()
    }
    nodes = None if body.all or body.down_from else body.nodes
    down_from = None if body.all or nodes else body.down_from
    return Retry(nodes, down_from, body.all, payloads)


def resolutions(facts: Sequence[wire.ExternalResolution], settings: DagSettings) -> list[Resolved]:
    """Externals to resolve.

    Raises:
        ValueTooLarge: data is over the limit.
    """
    return [
        Resolved(
            fact.node,
            fact.name,
            None if fact.data is None else checked(fact.data, settings.data_bytes_max, f"/external/{i}/data"),
            fact.failed,
        )
        for i, fact in enumerate(facts)
    ]


def checked(value: Any, bytes_max: int, pointer: str) -> str:
    """A value as JSON text.

    Raises:
        ValueTooLarge: it is over the limit.
    """
    text = "null" if value is None else encode(value)
    if len(text) > bytes_max or len(text.encode()) > bytes_max:
        detail = f"it has over {bytes_max} bytes as JSON"
        raise ValueTooLarge(f"a value is too large: {detail}", errors=[FieldError(pointer, detail)])
    return text
