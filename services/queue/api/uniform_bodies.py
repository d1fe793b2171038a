"""Calls whose elements differ in a text or an id each, as most calls of many do: read as a whole.

A producer sends items of one topic, a consumer acks what it leased under one token: between the texts that differ
the same bytes stand over and over. A body that is such a repetition to the byte is taken apart by it, and nothing
is made for an element. Every other body is read by `services.queue.api.body_decoders`, to the same end.
"""

from __future__ import annotations

import re
import struct
from itertools import chain

import msgspec

from services.queue.api.body_decoders import is_topic
from services.queue.model import SEPARATOR, PlainAcks, PlainCall, PlainItem, PlainPart
from services.queue.settings import QueueSettings
from shared.errors import ServiceError
from shared.fallback import Fallback
from shared.http import json_body
from shared.ids import ID_CHARS, are_canonical_text, canonical_token, one_shard_of


def _spaced(*tokens: bytes) -> re.Pattern[bytes]:
    """Tokens of JSON with white space between, before and behind them."""
    return re.compile(rb"[ \t\r\n]*".join((b"", *tokens, b"")))


_ITEMS = (rb"\{", rb'"items"', rb":", rb"\[")
# The first item, up to the text that is its payload. What stands between two of those texts, and at the end.
_FIRST_ITEM = re.compile(_spaced(*_ITEMS).pattern + rb'(\{[^][{}\\]*?"payload"[ \t\r\n]*:[ \t\r\n]*)"').match
_NEXT = _spaced(rb"\}", rb",").fullmatch
_LAST = _spaced(rb"\}", rb"\]", rb"\}").fullmatch

# The first ack: what stands before its id, and behind it with the token. What stands before an item's id, where
# its caller gave it one: its payload, which ends there.
_TO_ID, _TO_TOKEN, _TO_ITEM_ID = (
    _spaced(*tokens).pattern
    for tokens in ((rb"\{", rb'"id"', rb":"), (rb",", rb'"lease_token"', rb":"), (rb",", rb'"id"', rb":"))
)
_ITEM_ID = re.compile(rb'("%b")[0-9a-f-]{%d}"' % (_TO_ITEM_ID, ID_CHARS)).match
_FIRST_ACK = re.compile(
    _spaced(*_ITEMS).pattern + rb'(%b")[0-9a-f-]{36}("%b"([0-9a-f-]{36})")' % (_TO_ID, _TO_TOKEN)
).match

# Of most calls: nothing is lost by them.
SMALL = Fallback("small")

# A call's items nest so deep.
_DEPTH = 3

# Of calls of fewer bytes, hence of few elements, `hot` makes less than these patterns cost.
ALIKE_BYTES_MIN = 1_000

# Heads of items that were judged before, up to a length.
KNOWN_HEADS_MAX, HEAD_BYTES_MAX = 1_000, 256
_known_heads: dict[bytes, PlainItem] = {}

# Between two payloads without their quotes.
_BETWEEN = f'"{SEPARATOR}"'.encode()

_plain_item = msgspec.json.Decoder(PlainItem).decode
_text = msgspec.json.Decoder(str).decode


def items(body: bytes, settings: QueueSettings) -> PlainCall | Fallback:
    """What an enqueue call asks for whose items are equal up to their payloads, which are texts and stand last, or
    before ids of one shard."""
    if len(body) < ALIKE_BYTES_MIN or settings.json_depth_max < _DEPTH:
        return SMALL
    head, texts, ids = _repeated(body)
    if not texts:
        return Fallback("shape")
    item = _known_heads.get(head) or _judged(head, settings)
    if item is None:
        return Fallback("item")
    if len(texts) > settings.batch_items_max or max(map(len, texts)) + len(b'""') > settings.payload_bytes_max:
        return Fallback("limits")
    try:
        # No quotes are left in what is not repeated, and no control characters: each is the inside of a text.
        _text(b'"%b"' % b"".join(texts))
        joined = _BETWEEN.join(texts).decode()
    except (msgspec.MsgspecError, UnicodeError):
        return Fallback("text")
    return PlainCall([PlainPart(item.topic, item.priority, item.lease_s, f'"{joined}"', range(len(texts)))], ids)


_NOT_REPEATED: tuple[bytes, list[bytes], None] = (b"", [], None)


def _repeated(body: bytes) -> tuple[bytes, list[bytes], list[str] | None]:
    """What stands before the first item's payload, all payloads and ids between repetitions of that; else none."""
    first = _FIRST_ITEM(body)
    if first is None or b"\\" in body:
        return _NOT_REPEATED
    last = body.rfind(b'"')
    if first.end() > last or _LAST(body, last + 1) is None:
        return _NOT_REPEATED
    head, start = first[1], first.end()
    end = body.find(b'"', start)
    named = _ITEM_ID(body, end)
    end = end if named is None else named.end() - 1
    again = body.find(head, start)
    if again < 0:
        parts = [body[start:last]]
    elif _NEXT(body, end + 1, again) is None:
        return _NOT_REPEATED
    else:
        parts = body[start:last].split(body[end : again + len(head)] + b'"')
    return (head, parts, None) if named is None else _named(head, parts, named[1])


def _named(head: bytes, parts: list[bytes], between: bytes) -> tuple[bytes, list[bytes], list[str] | None]:
    """Payloads and ids of parts that are a payload, what stands between the two, and an id each."""
    behind = len(between) + ID_CHARS
    ends = b"".join([part[-behind:] for part in parts])
    if len(ends) != behind * len(parts):
        return _NOT_REPEATED
    ids = list(chain.from_iterable(struct.iter_unpack(f"{len(between)}x{ID_CHARS}s", ends)))
    text = b"".join(ids)
    if ends != between + between.join(ids) or not are_canonical_text(text):
        return _NOT_REPEATED
    found = list(map(bytes.decode, ids))
    return _NOT_REPEATED if one_shard_of(found) is None else (head, [part[:-behind] for part in parts], found)


def _judged(head: bytes, settings: QueueSettings) -> PlainItem | None:
    """An item by its head, if it is a plain one within all bounds."""
    text = head + b"null}"
    try:
        json_body.check(text, depth_max=settings.json_depth_max)
        item = _plain_item(text)
    except (msgspec.MsgspecError, UnicodeError, ServiceError):
        return None
    if not is_topic(item.topic) or item.id is not None:
        return None
    if len(head) <= HEAD_BYTES_MAX:
        if len(_known_heads) >= KNOWN_HEADS_MAX:
            _known_heads.clear()
        _known_heads[head] = item
    return item


def acks(body: bytes, settings: QueueSettings) -> PlainAcks | Fallback:
    """What an ack call asks for whose elements are an id each and all one token."""
    if len(body) < ALIKE_BYTES_MIN:
        return SMALL
    first = _FIRST_ACK(body)
    if first is None:
        return Fallback("shape")
    lead, close, token = first.groups()
    start, last, end = first.end(1), body.rfind(close), first.end()
    again = body.find(lead, end)
    is_whole = _LAST(body, last + len(close)) is not None and canonical_token(token.decode()) is not None
    if not is_whole or (again >= 0 and _NEXT(body, end, again) is None):
        return Fallback("shape")
    again = end if again < 0 else again  # the end of a single element
    between = close + body[end:again] + lead
    count, rest = divmod(last - start + len(between), ID_CHARS + len(between))
    if rest or count > settings.batch_items_max:
        return Fallback("limits" if not rest else "shape")
    text = body[start:last]
    # One format for any count: `struct` compiles and keeps each format that it is given.
    ids = list(chain.from_iterable(struct.iter_unpack(f"{ID_CHARS}s{len(between)}x", text + between)))
    if between.join(ids) != text or not are_canonical_text(b"".join(ids)):
        return Fallback("shape")
    return PlainAcks(list(map(bytes.decode, ids)), token.decode())
