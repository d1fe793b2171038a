"""The three hot bodies (enqueue, dequeue, ack), decoded by msgspec straight into what the rooms below take.

The pydantic models of `headgate.wire` stay the contract: a body that msgspec refuses, or that uses a field
outside the common few, is validated by them, so that every refusal has the same shape and pointers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import starmap
from operator import attrgetter
from typing import Any, TypeVar

import msgspec

from headgate import wire
from headgate.wire.base import ACK_TOPIC_PATTERN
from services.queue.errors import PayloadTooLarge
from services.queue.model import (
    NO_OUTPUT,
    NULL,
    AckBody,
    Demands,
    NewItem,
    NewItems,
    PlainItem,
    PlainItems,
    Settle,
    Settled,
    is_simple,
)
from services.queue.settings import QueueSettings
from shared.errors import FieldError, invalid
from shared.http import json_body
from shared.http.edge import validate
from shared.ids import are_canonical, one_shard_of

S = TypeVar("S", bound=msgspec.Struct)

is_topic = re.compile(r"[A-Za-z0-9._/-]{1,128}").fullmatch
_ACK_TOPIC = re.compile(ACK_TOPIC_PATTERN).fullmatch
_INT32 = 2**31

# Bodies of dequeue calls that were judged before, up to a length.
KNOWN_DEMANDS_MAX, KNOWN_BYTES_MAX = 1_000, 256
_known_demands: dict[bytes, Demands] = {}

_plain_items = msgspec.json.Decoder(PlainItems)
_new_items = msgspec.json.Decoder(NewItems)
_acks = msgspec.json.Decoder(AckBody)
_demands = msgspec.json.Decoder(Demands)


def new_items(body: bytes, settings: QueueSettings, *, manages: bool = False) -> list[NewItem] | list[PlainItem]:
    """The items of an enqueue call; plain ones when all are. `manages`: it is the DAG service's."""
    plain = _decode(_plain_items, body)
    is_valid = plain is not None and _is_valid(plain.items, settings.batch_items_max)
    value = json_body.check(body, depth_max=settings.json_depth_max)
    if plain is not None and is_valid and b"\\u0000" not in body:
        if len(body) > settings.payload_bytes_max:
            _fit_payloads(plain.items, settings.payload_bytes_max)
        return plain.items
    decoded = _decode(_new_items, body)
    items = decoded.items if decoded is not None else []
    if not 1 <= len(items) <= settings.batch_items_max or not _are_common(items) or b"\\u0000" in body:
        validate(wire.EnqueueRequest, value)
        items = _new_items.decode(msgspec.json.encode(value)).items if decoded is None else items
    _fit(items, settings, manages)
    return items


def _is_valid(items: list[PlainItem], items_max: int) -> bool:
    """What the decoder has not judged: how many there are, their topics and ids."""
    return (
        1 <= len(items) <= items_max
        and all(map(is_topic, {item.topic for item in items}))
        and _are_plainly_named([item.id for item in items])
    )


def _are_plainly_named(ids: list[str | None]) -> bool:
    """Whether no item has an id, or each a canonical one of the same shard."""
    if ids.count(None) == len(ids):
        return True
    named = [item_id for item_id in ids if item_id is not None]
    return len(named) == len(ids) and are_canonical(named) and one_shard_of(named) is not None


def _fit_payloads(items: list[PlainItem], bytes_max: int) -> None:
    for i, size in enumerate(map(len, map(bytes, [item.payload for item in items]))):
        if size > bytes_max:
            items[i].payload = _fitted(f"/items/{i}/payload", items[i].payload, bytes_max)


def settled(body: bytes, settings: QueueSettings) -> list[Settled]:
    """The elements of an ack call."""
    decoded = _decode(_acks, body)
    value = json_body.check(body, depth_max=settings.json_depth_max)
    if decoded is not None and _is_bare(decoded, settings.batch_items_max):
        return decoded.items
    validate(wire.AckRequest, value)
    if decoded is None:
        decoded = _acks.decode(msgspec.json.encode(value))
    _fit_outputs("/items", decoded.items, settings)
    return decoded.items


def _is_bare(acks: AckBody, items_max: int) -> bool:
    """True for acks without outputs: the decoder has judged all else of them."""
    for item in acks.items:
        if item.output is not NO_OUTPUT:
            return False
    return 1 <= len(acks.items) <= items_max


def _fit_outputs(pointer: str, acks: Sequence[Settled], settings: QueueSettings) -> None:
    for i, item in enumerate(acks):
        if item.output is not NO_OUTPUT:
            item.output = _fitted(f"{pointer}/{i}/output", item.output, settings.output_bytes_max)


def demands(body: bytes, settings: QueueSettings) -> Demands:
    """A dequeue call. A consumer sends the same again and again: what was judged plain is not read twice."""
    known = _known_demands.get(body)
    if known is not None and known.wait_s <= settings.wait_s_max:
        return known
    plain = _decode(_demands, body)
    is_bounded = plain is not None and _is_bounded(plain, settings)
    value = json_body.check(body, depth_max=settings.json_depth_max)
    if plain is not None and is_bounded and plain.settle is None:
        if len(body) <= KNOWN_BYTES_MAX:
            if len(_known_demands) >= KNOWN_DEMANDS_MAX:
                _known_demands.clear()
            _known_demands[body] = plain
        return plain
    if not is_bounded:
        validate(wire.DequeueRequest, value)
    decoded = plain or _demands.decode(msgspec.json.encode(value))
    if decoded.wait_s > settings.wait_s_max:
        raise invalid("/wait_s", f"at most {settings.wait_s_max} s")
    if decoded.settle is not None:
        _fit_settle(decoded.settle, settings)
    return decoded


def _is_bounded(demands: Demands, settings: QueueSettings) -> bool:
    """True for a demand for one topic that is within all bounds, and settles nothing but acks."""
    settle = demands.settle
    return (
        len(demands.topics) == 1
        and is_topic(demands.topics[0].topic) is not None
        and 1 <= demands.topics[0].count <= wire.BATCH_MAX
        and 0 <= demands.wait_s <= min(wire.WAIT_S_MAX, settings.wait_s_max)
        and (demands.lease_s is None or 1 <= demands.lease_s <= wire.LEASE_S_MAX)
        and (demands.worker is None or _is_label(demands.worker))
        and (settle is None or (not settle.nacks and len(settle.acks or ()) <= wire.BATCH_MAX))
    )


def _is_label(text: str) -> bool:
    try:
        wire.label(text)
    except ValueError:
        return False
    return True


def _fit_settle(settle: Settle, settings: QueueSettings) -> None:
    _fit_outputs("/settle/acks", settle.acks or (), settings)
    for i, item in enumerate(settle.nacks or ()):
        if item.metadata != NULL:
            item.metadata = _fitted(f"/settle/nacks/{i}/metadata", item.metadata, settings.metadata_bytes_max)


def check_sizes(pointer: str, sizes: Sequence[tuple[str, Any, int]]) -> None:
    """Raises PayloadTooLarge when a decoded value's compact JSON is over its limit: (field, value, bytes)."""
    for field, value, bytes_max in sizes:
        if value is not None and wire.encoded_bytes(value) > bytes_max:
            raise too_large(f"{pointer}/{field}", bytes_max)


def too_large(pointer: str, bytes_max: int) -> PayloadTooLarge:
    """The error for a value over its own limit."""
    detail = f"{pointer} is over {bytes_max} bytes; keep large values elsewhere and send a reference"
    return PayloadTooLarge(detail, errors=[FieldError(pointer, f"at most {bytes_max} bytes of JSON")])


def _decode(decoder: msgspec.json.Decoder[S], body: bytes) -> S | None:
    try:
        return decoder.decode(body or b"{}")
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def _are_common(items: list[NewItem]) -> bool:
    """True for items whose every given field is judged right here: plain ones, and those of DAGs.

    What many have in common is judged once.
    """
    kinds = {(item.topic, item.ack_topic, item.priority, item.lease_s, item.max_attempts) for item in items}
    return (
        all(map(is_simple, items))
        and all(starmap(_is_common, kinds))
        and are_canonical([item.id for item in items if item.id is not None])
        and all(item.ack_context is NULL or bytes(item.ack_context)[:1] == b"{" for item in items)
    )


def _is_common(topic: str, ack_topic: str | None, priority: int, lease_s: float, max_attempts: int) -> bool:
    return bool(
        is_topic(topic)
        and -_INT32 <= priority < _INT32
        and 1 <= lease_s <= wire.LEASE_S_MAX
        and 0 <= max_attempts < _INT32
        and (ack_topic is None or _ACK_TOPIC(ack_topic))
    )


def _fit(items: list[NewItem], settings: QueueSettings, manages: bool) -> None:
    limits = {
        "payload": settings.payload_bytes_max,
        "metadata": settings.metadata_bytes_max,
        "inputs": settings.inputs_bytes_max,
        "headers": settings.headers_bytes_max,
        "ack_context": settings.managed_context_bytes_max if manages else settings.ack_context_bytes_max,
    }
    for field, bytes_max in limits.items():
        for i, raw in enumerate(map(attrgetter(field), items)):
            if raw is not NULL and len(bytes(raw)) > bytes_max:
                setattr(items[i], field, _fitted(f"/items/{i}/{field}", raw, bytes_max))


def _fitted(pointer: str, raw: msgspec.Raw, bytes_max: int) -> msgspec.Raw:
    """A value's text as it came; over the limit by white space or escapes alone, without the white space.

    The limit is on compact UTF-8 JSON. What is stored is at most six times as long: characters written as
    escapes.
    """
    text = bytes(raw)
    if len(text) <= bytes_max:
        return raw
    if len(msgspec.json.encode(msgspec.json.decode(text))) > bytes_max:
        raise too_large(pointer, bytes_max)
    return msgspec.Raw(msgspec.json.format(text, indent=-1))
