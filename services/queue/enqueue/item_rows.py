"""What items become in a shard: rows of an enqueue flush, and the print by which a repeated key is judged."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from operator import attrgetter

from msgspec import Raw

from services.queue.model import NULL, NewItem, NewRow, RareKind, is_simple
from services.queue.store.shard_store import Store
from shared.http.access import Caller
from shared.ids import time_ms_of


def ack_pair(namespace: str, ack_topic: str) -> tuple[str, str]:
    """The namespace and topic that an `ack_topic` names."""
    other, colon, topic = ack_topic.rpartition(":")
    return (other, topic) if colon else (namespace, topic)


def new_rows(
    store: Store,
    namespace: str,
    items: Sequence[tuple[NewItem, str]],
    caller: Caller,
    as_of: datetime | None = None,
) -> list[NewRow]:
    """Rows of a flush, of items with their ids. What simple ones have in common is worked out once."""
    kinds: dict[tuple[object, ...], RareKind] = {}
    found = []
    for item, item_id in items:
        named = item.id is not None
        if is_simple(item):
            waits = item.disabled
            says = (item.topic, item.ack_topic, item.priority, item.lease_s, item.max_attempts, waits, named)
            kind = kinds.get(says)
            if kind is None:
                kind = kinds[says] = _kind(namespace, item, caller, as_of)
        else:
            kind = _kind(namespace, item, caller, as_of)
            store.has_lanes = store.has_lanes or item.fairness_key is not None
            is_late = bool(item.delay_s) or item.deliver_after is not None
            waits = item.disabled or is_late or item.fairness_key is not None
        time_ms = time_ms_of(item_id) if named else 0
        payload = bytes(item.payload).decode()
        found.append(NewRow(item_id, kind, time_ms, payload, _text(item.ack_context), waits))
    return found


def _kind(namespace: str, item: NewItem, caller: Caller, as_of: datetime | None) -> RareKind:
    topic = (namespace, item.topic)
    ack_topic, managed = None, False
    if item.ack_topic is not None:
        ack_topic = ack_pair(namespace, item.ack_topic)
        managed = caller.is_dag_service and item.ack_topic.startswith("_dag:")
    extra = _extra(item, managed, as_of)
    return RareKind(topic, ack_topic, item.priority, item.lease_s, item.id is not None, extra, as_of)


def _extra(item: NewItem, managed: bool, as_of: datetime | None) -> str | None:
    """The rarer columns of an item but its context as a JSON object, None where it has none."""
    if is_simple(item) and as_of is None:
        return _simple_extra(item.disabled, item.max_attempts, managed)
    backoff = item.backoff
    return _json(
        metadata=_text(item.metadata),
        inputs=_text(item.inputs),
        headers=_text(item.headers),
        as_of=None if as_of is None else as_of.isoformat(),
        due_at=None if item.deliver_after is None else item.deliver_after.isoformat(),
        delay_s=item.delay_s,
        ttl_s=item.ttl_s if item.deadline_s is None else item.deadline_s,
        timeout_s=item.timeout_s,
        is_deadline=item.deadline_s is not None or None,
        disabled=item.disabled or None,
        at_most_once=item.delivery == "at_most_once" or None,
        max_attempts=item.max_attempts or None,
        backoff=f"{{{backoff.base_s},{backoff.factor},{backoff.max_s},{backoff.jitter}}}" if backoff else None,
        key=item.idempotency_key,
        lane=item.fairness_key,
        managed=managed or None,
    )


@lru_cache(maxsize=1_000)
def _simple_extra(disabled: bool, max_attempts: int, managed: bool) -> str | None:
    """That of an item which is simple: many have the same."""
    return _json(
        disabled=disabled or None,
        max_attempts=max_attempts or None,
        managed=managed or None,
    )


def _json(**columns: object) -> str | None:
    found = {name: value for name, value in columns.items() if value is not None}
    return json.dumps(found) if found else None


_payload, _ack_context, _extra_of = map(attrgetter, ("payload", "ack_context", "kind.extra"))


def texts_of(rows: Sequence[NewRow]) -> list[str | None]:
    """The texts that rows of a flush bring; what each has besides is a few hundred bytes."""
    return [*map(_payload, rows), *map(_ack_context, rows), *map(_extra_of, rows)]


def _text(raw: Raw) -> str | None:
    return None if raw == NULL else bytes(raw).decode()


def fingerprint(item: NewItem) -> bytes:
    """16 bytes that tell one key's content from another's."""
    # Of the value, not of its text: white space, escapes and the order of names are the sender's business.
    payload = json.dumps(json.loads(bytes(item.payload)), sort_keys=True)
    return hashlib.sha256(f"{item.topic}\0{payload}".encode()).digest()[:16]
