"""Queue items of nodes, and the inputs they are given; pure."""

from __future__ import annotations

import json
import re
from functools import cache
from itertools import accumulate
from typing import Any, Final
from urllib.parse import quote

from services.dag.model import SYSTEM_NAMESPACE, Item
from shared.ids import ShardNo

_PRIORITY_MIN: Final = -(2**31)

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_canonical = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode
_quoted = json.encoder.encode_basestring
_STRINGS = re.compile(r'"(?:[^"\\]|\\.)*"')
_NOT_BRACKETS = re.compile(r"[^][{}]+")


def encode(value: Any) -> str:
    """Compact JSON text: what limits are measured on and what is stored."""
    return _encode(value)


def canonical(value: Any) -> str:
    """The same with all names sorted: what fingerprints are taken of."""
    return _canonical(value)


def with_payload(spec: str, payload: str) -> str:
    """A node's item, as JSON text, with another payload."""
    return _encode(json.loads(spec) | {"payload": json.loads(payload)})


@cache
def ack_topic(shard_number: ShardNo) -> str:
    """The topic, within the system's namespace, on which a DAG shard hears of its items' ends."""
    return f"acks/{shard_number:03d}"


def item_text(
    item: Item,
    item_id: str,
    generation: int,
    shard_number: ShardNo,
    *,
    disabled: bool = False,
    inputs: str | None = None,
    lift: int = 0,
) -> str:
    """The element of an enqueue call for one generation of a node, as JSON text."""
    spec = _lifted(item.spec, lift) if lift else item.spec
    more = ',"disabled":true' if disabled else ""
    if inputs is not None:
        more += f',"inputs":{inputs}'
    return (
        f'{spec[:-1]},"id":"{item_id}","ack_topic":"{SYSTEM_NAMESPACE}:{ack_topic(shard_number)}",'
        f'"ack_context":{{"dag":"{item.dag_id}","node":{_quoted(item.key)},"generation":{generation}}}{more}}}'
    )


def _lifted(spec: str, lift: int) -> str:
    body: dict[str, Any] = json.loads(spec)
    return _encode(body | {"priority": max(_PRIORITY_MIN, body["priority"] - lift)})


def inputs_body(parts: list[tuple[str, str]]) -> str:
    """The inputs of a node as JSON text, from (name, JSON text)."""
    return "{" + ",".join(f"{_encode(name)}:{value}" for name, value in parts) + "}"


def inputs_reference(namespace: str, dag_id: str, key: str) -> str:
    """What a node is given in place of inputs over the limits: where to fetch them."""
    path = f"/v1/namespaces/{namespace}/dags/{dag_id}/node/inputs?key={quote(key, safe='')}"
    return _encode({"$ref": path})


def outputs_reference(namespace: str, dag_id: str) -> str:
    """What stands in place of outputs over the limit: where to fetch them."""
    return _encode({"$ref": f"/v1/namespaces/{namespace}/dags/{dag_id}/outputs"})


def depth(text: str) -> int:
    """How deep JSON text nests."""
    brackets = _NOT_BRACKETS.sub("", _STRINGS.sub("", text))
    return max(accumulate(1 if bracket in "[{" else -1 for bracket in brackets), default=0)


def deeper_than(text: str, depth_max: int) -> bool:
    """True when JSON text nests deeper than `depth_max`; costs a count where it cannot."""
    return text.count("[") + text.count("{") > depth_max and depth(text) > depth_max
