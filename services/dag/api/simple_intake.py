"""New DAGs and new nodes of the common shape, judged column by column: a quarter of what the long way costs.

What a program makes again and again are DAGs of items that say what they are, what they wait for and little more.
Such ones are read straight from their JSON value. Whatever is not as plain, or not right, is left to the wire
models, `intake` and `create_batch.plan`, which tell of it; what is taken here they would have made just so.
"""

from __future__ import annotations

import hashlib
import re
from itertools import chain, repeat
from operator import lt
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from headgate import wire
from services.dag.model import NewDag, NewEdge, NewNode
from services.dag.queue_items import canonical, encode
from services.dag.settings import DagSettings
from services.dag.store.create import Columns
from shared.fallback import Fallback

# Those that begin with `_` are the system's.
_TOPIC = re.compile(r"[A-Za-z0-9./-][A-Za-z0-9._/-]{0,127}").fullmatch


class _Node(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A node of the common shape; bounds and defaults are those of `wire.NodeSpec`. By these triggers a new node
    whose upstreams are as new fires exactly when it has none."""

    key: str
    topic: str
    payload: Any = None
    upstream: Annotated[list[str], Meta(max_length=wire.BATCH_MAX)] | None = None
    trigger: Literal["all_succeeded", "all_done", "none_failed"] = "all_succeeded"
    pass_outputs: bool = False
    priority: Annotated[int, Meta(ge=wire.INT32_MIN, le=wire.INT32_MAX)] = 0
    lease_s: Annotated[float, Meta(ge=1, le=wire.LEASE_S_MAX)] = float(wire.LEASE_S_DEFAULT)
    max_attempts: Annotated[int, Meta(ge=0, le=wire.INT32_MAX)] = 0


class _Spec(msgspec.Struct, forbid_unknown_fields=True):
    """A DAG of the common shape; see `wire.DagSpec`."""

    nodes: Annotated[list[_Node], Meta(min_length=1, max_length=wire.BATCH_MAX)]
    name: str | None = None
    key: str | None = None
    open: bool = False
    hold: bool = False
    on_failure: wire.OnFailure = "continue"


class _Edge(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """See `wire.Dependency`."""

    upstream: str
    downstream: str


class AdditionBody(msgspec.Struct, forbid_unknown_fields=True):
    """Nodes of the common shape to add; see `wire.AddNodes`."""

    nodes: Annotated[list[_Node], Meta(min_length=1, max_length=wire.BATCH_MAX)]
    dependencies: Annotated[list[_Edge], Meta(max_length=wire.BATCH_MAX)] | None = None


def has_many_edges(body: bytes, value: Any, edges_max: int) -> bool:
    """Whether a body, whose JSON value this is, brings more edges: each is a text of it."""
    return body.count(b'"') // 2 > edges_max and _edge_count(value) > edges_max


def _edge_count(value: Any) -> int:
    nodes = value.get("nodes") if isinstance(value, dict) else None
    count = 0
    for node in nodes if isinstance(nodes, list) else ():
        if isinstance(node, dict):
            upstream = node.get("upstream")
            count += len(upstream) if isinstance(upstream, list) else 0
            count += _edge_count(node.get("dag"))
    return count


def read(value: Any, settings: DagSettings) -> tuple[NewDag, Columns] | Fallback:
    """A DAG to create, from a body's JSON value, with its nodes in the order of the call, which respects their
    edges; it must be of the common shape."""
    try:
        spec = msgspec.convert(value, _Spec)
    except msgspec.ValidationError:
        return Fallback("shape")
    if spec.name is not None and len(spec.name) > wire.NAME_BYTES_MAX:
        return Fallback("names")
    names = [name for name in (spec.key, spec.name) if name is not None]
    made = _columns(spec.nodes, names, settings)
    if isinstance(made, Fallback):
        return made
    if made[1]:
        return Fallback("order")
    return NewDag(spec.key, spec.name, spec.open, spec.hold, spec.on_failure, None, None), made[0]


def read_added(value: Any) -> AdditionBody | Fallback:
    """Nodes to add, from a body's JSON value; each must be of the common shape."""
    try:
        return msgspec.convert(value, AdditionBody)
    except msgspec.ValidationError:
        return Fallback("shape")


def columns_of(added: AdditionBody, settings: DagSettings) -> tuple[Columns, list[str]] | Fallback:
    """Nodes to add, in the order of the call, which must respect the edges between them, and the keys of what they
    wait for besides: in `ups` -1 is the first of these, -2 the second."""
    return Fallback("dependencies") if added.dependencies else _columns(added.nodes, [], settings)


def nodes_of(added: AdditionBody, settings: DagSettings) -> tuple[list[NewNode], list[NewEdge]] | Fallback:
    """Nodes to add and edges beside them, in whatever order; each must be of the common shape. What they
    wait for may be there already, or not: that is for who adds them to see."""
    nodes, dependencies = added.nodes, added.dependencies or ()
    above = [tuple(node.upstream or ()) for node in nodes]
    named = [node.key for node in nodes]
    named += chain.from_iterable(above)
    named += [key for edge in dependencies for key in (edge.upstream, edge.downstream)]
    if not _are_plain(named) or not all(map(_TOPIC, {node.topic for node in nodes})):
        return Fallback("names")
    payloads = ["null" if node.payload is None else encode(node.payload) for node in nodes]
    if _are_too_long(payloads, settings) or any(len(set(ups)) < len(ups) for ups in above):
        return Fallback("limits")
    made = [
        NewNode(
            node.key,
            node.topic,
            node.trigger,
            node.pass_outputs,
            ups,
            (),
            _item(node, payload),
            _fingerprint(node, payload),
        )
        for node, ups, payload in zip(nodes, above, payloads, strict=True)
    ]
    return made, [NewEdge(edge.upstream, edge.downstream, i) for i, edge in enumerate(dependencies)]


class _Places(dict[str, int]):
    """The places of a call's nodes by their keys, and -1, -2, ... for what it names besides, as it comes."""

    def __init__(self, keys: list[str]) -> None:
        super().__init__(zip(keys, range(len(keys)), strict=True))
        self.besides: list[str] = []

    def __missing__(self, key: str) -> int:
        self.besides.append(key)
        self[key] = -len(self.besides)
        return self[key]


def _columns(nodes: list[_Node], names: list[str], settings: DagSettings) -> tuple[Columns, list[str]] | Fallback:
    """The nodes, and the keys of what they wait for besides; `names` stand beside them in the call. Every key must
    be there once, and each edge come once and lead to a later node."""
    keys = [node.key for node in nodes]
    topics = [node.topic for node in nodes]
    places = _Places(keys)
    if len(places) < len(keys):
        return Fallback("names")
    above = [[places[key] for key in node.upstream or ()] for node in nodes]
    lefts = list(map(len, above))
    ups = list(chain.from_iterable(above))
    downs = list(chain.from_iterable(map(repeat, range(len(nodes)), lefts)))
    if not all(map(lt, ups, downs)) or len(set(zip(downs, ups, strict=True))) < len(ups):
        return Fallback("order")
    if not _are_plain(keys + places.besides + names) or not all(map(_TOPIC, set(topics))):
        return Fallback("names")
    payloads = ["null" if node.payload is None else encode(node.payload) for node in nodes]
    if _is_over_limits(lefts, payloads, settings):
        return Fallback("limits")
    columns = Columns(
        keys=keys,
        topics=topics,
        triggers=[node.trigger for node in nodes],
        passes=[node.pass_outputs for node in nodes],
        fingerprints=list(map(_fingerprint, nodes, payloads)),
        items=list(map(_item, nodes, payloads)),
        lefts=lefts,
        ups=ups,
        downs=downs,
    )
    return columns, places.besides


def _are_plain(names: list[str]) -> bool:
    """Whether keys and names are in order, and stand in JSON as they are."""
    text = "".join(names)
    return (
        all(names)
        and max(map(len, names)) <= wire.KEY_BYTES_MAX
        and text.isascii()
        and text.isprintable()
        and '"' not in text
        and "\\" not in text
    )


def _is_over_limits(lefts: list[int], payloads: list[str], settings: DagSettings) -> bool:
    return (
        len(lefts) > settings.nodes_per_dag_max
        or sum(lefts) > settings.edges_per_dag_max
        or max(lefts) > settings.degree_max
        or _are_too_long(payloads, settings)
    )


def _are_too_long(payloads: list[str], settings: DagSettings) -> bool:
    return any(len(payload.encode()) > settings.payload_bytes_max for payload in payloads)


def _item(node: _Node, payload: str) -> str:
    """As `intake` writes it."""
    return (
        f'{{"topic":"{node.topic}","payload":{payload},"priority":{node.priority},"lease_s":{node.lease_s!r},'
        f'"max_attempts":{node.max_attempts}}}'
    )


def _fingerprint(node: _Node, payload: str) -> bytes:
    """As `intake` takes it."""
    if "{" in payload:
        payload = canonical(node.payload)
    upstream = '"' + '","'.join(sorted(node.upstream)) + '"' if node.upstream else ""
    said = (
        f'[{{"lease_s":{node.lease_s!r},"max_attempts":{node.max_attempts},"payload":{payload},'
        f'"priority":{node.priority},"topic":"{node.topic}"}},"{node.trigger}",'
        f"{'true' if node.pass_outputs else 'false'},[{upstream}],[]]"
    )
    return hashlib.blake2b(said.encode(), digest_size=16).digest()
