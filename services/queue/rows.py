"""What items become in a shard: rows of an enqueue flush, and the print by which a repeated key is judged."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from services.queue.model import NULL, NewItem, NewRow, is_plain
from services.queue.store import Store
from shared.access import Caller
from shared.ids import time_ms_of


def ack_pair(namespace: str, ack_topic: str) -> tuple[str, str]:
    """The namespace and topic that an `ack_topic` names."""
    other, colon, topic = ack_topic.rpartition(":")
    return (other, topic) if colon else (namespace, topic)


def new_row(store: Store, namespace: str, item: NewItem, item_id: str, caller: Caller) -> NewRow:
    """One row of a flush; the item's names must be known to the store."""
    ref = store.names.known(namespace, item.topic)
    assert ref is not None
    extra = None if is_plain(item) else _extra(store, namespace, item, caller)
    store.has_lanes = store.has_lanes or item.fairness_key is not None
    return NewRow(
        item_id,
        None if item.id is None else time_ms_of(item_id),
        ref.namespace_id,
        ref.topic_id,
        item.priority,
        item.lease_s,
        bytes(item.payload).decode(),
        None if extra is None else json.dumps(extra),
        item.disabled or bool(item.delay_s) or item.deliver_after is not None or item.fairness_key is not None,
    )


def _extra(store: Store, namespace: str, item: NewItem, caller: Caller) -> dict[str, Any]:
    """The rarer columns of an item, JSON values as texts."""
    ack = store.names.known(*ack_pair(namespace, item.ack_topic)) if item.ack_topic is not None else None
    backoff = item.backoff
    found = {
        "metadata": _text(item.metadata),
        "inputs": _text(item.inputs),
        "headers": _text(item.headers),
        "due_at": None if item.deliver_after is None else item.deliver_after.isoformat(),
        "delay_s": item.delay_s,
        "ttl_s": item.ttl_s,
        "disabled": item.disabled or None,
        "at_most_once": item.delivery == "at_most_once" or None,
        "max_attempts": item.max_attempts or None,
        "backoff": f"{{{backoff.base_s},{backoff.factor},{backoff.max_s}}}" if backoff else None,
        "ack_topic_id": None if ack is None else ack.topic_id,
        "ack_context": _text(item.ack_context),
        "key": item.idempotency_key,
        "lane": item.fairness_key,
        "managed": (caller.is_dag_service and (item.ack_topic or "").startswith("_dag:")) or None,
    }
    return {name: value for name, value in found.items() if value is not None}


def _text(raw: Any) -> str | None:
    return None if raw == NULL else bytes(raw).decode()


def fingerprint(item: NewItem) -> bytes:
    """16 bytes that tell one key's content from another's."""
    # Of the value, not of its text: white space, escapes and the order of names are the sender's business.
    payload = json.dumps(json.loads(bytes(item.payload)), sort_keys=True)
    return hashlib.sha256(f"{item.topic}\0{payload}".encode()).digest()[:16]
