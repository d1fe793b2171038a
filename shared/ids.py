"""Ids that carry their shard: UUIDv7 whose last 12 bits are a shard number.

The generator is the SDK's (`headgate._ids`); this module adds what the services need to judge ids that
callers send. An id is opaque to callers, so a malformed one is never an error here: it is `None`.

Ids of a DAG's items carry its tag: three of their random digits are those of the DAG's own id. So it is seen
without asking which acks may need the same DAG's lock. Nothing depends on it: other DAGs may have the same tag.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from itertools import chain
from struct import Struct
from typing import NewType

from headgate._ids import new_id, new_ids

# A shard's, in its own service: those of the queue and of the DAG service are counted apart.
ShardNo = NewType("ShardNo", int)
SHARDS_MAX = 4096

_CANONICAL = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}").fullmatch
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}").fullmatch

_MANY = 8
# Of an id's text: how long it is, and where its dashes are.
ID_CHARS, _DASHES = 36, (8, 13, 18, 23)


def canonical(text: str) -> str | None:
    """The canonical form of an id, or None when it is not the text of a UUIDv7."""
    if _CANONICAL(text):
        return text
    lowered = text.lower()
    return lowered if _CANONICAL(lowered) else None


def canonicals(texts: list[str]) -> list[str | None]:
    """As `canonical`, for many at once: mostly all are as they should be."""
    return list(texts) if are_canonical(texts) else list(map(canonical, texts))


def are_canonical(texts: list[str]) -> bool:
    """Whether all are ids in canonical form. Of many, one place of all at a time costs a third of a match each."""
    count = len(texts)
    if count < _MANY:
        return all(map(_CANONICAL, texts))
    text = "".join(texts)
    return set(map(len, texts)) == {ID_CHARS} and text.isascii() and are_canonical_text(text.encode())


def are_canonical_text(text: bytes) -> bool:
    """As `are_canonical`, for ids one behind another, each of `ID_CHARS`."""
    count, digits = len(text) // ID_CHARS, bytearray(text)
    if digits[14::ID_CHARS] != b"7" * count or digits[19::ID_CHARS].translate(None, b"89ab"):
        return False
    # From the last to the first, so that the places before stay; without one all that follow are nearer.
    for gone, place in enumerate(reversed(_DASHES)):
        if digits[place :: ID_CHARS - gone] != b"-" * count:
            return False
        del digits[place :: ID_CHARS - gone]
    return not digits.translate(None, b"0123456789abcdef")


def canonical_token(text: str) -> str | None:
    """The canonical form of a lease token (128 random bits in UUID notation), or None."""
    if _UUID(text):
        return text
    lowered = text.lower()
    return lowered if _UUID(lowered) else None


# Made ahead, so many at a time: to ask the system for one takes longer than all else of a small dequeue.
_TOKENS = 128
_tokens: list[str] = []
os.register_at_fork(after_in_child=_tokens.clear)


def new_token() -> str:
    """A lease token: 128 random bits in UUID notation."""
    if not _tokens:
        drawn = os.urandom(16 * _TOKENS).hex()
        parts = [drawn[place : place + 32] for place in range(0, len(drawn), 32)]
        _tokens.extend([f"{part[:8]}-{part[8:12]}-{part[12:16]}-{part[16:20]}-{part[20:]}" for part in parts])
    return _tokens.pop()


def shard_of(item_id: str) -> ShardNo:
    """The shard number in a canonical id."""
    return ShardNo(int(item_id[-3:], 16))


def time_ms_of(item_id: str) -> int:
    """Milliseconds since the epoch at which a canonical id was made, by its maker's clock."""
    return int(item_id[:8] + item_id[9:13], 16)


def one_shard_of(item_ids: Sequence[str]) -> ShardNo | None:
    """The shard number of canonical ids; None where they differ in it, or there are none."""
    count = len(item_ids)
    if count == 1:
        return shard_of(item_ids[0])
    text = "".join(item_ids)
    number = text[-3:]
    for place, digit in enumerate(number, ID_CHARS - 3):
        if text[place::ID_CHARS] != digit * count:
            return None
    return ShardNo(int(number, 16)) if count else None


# Where an id has its DAG's tag.
DAG_TAG = slice(24, 27)
_DAG_TAG_OF_ID = Struct(f"{DAG_TAG.start}x{DAG_TAG.stop - DAG_TAG.start}s{ID_CHARS - DAG_TAG.stop}x")


def dag_tags(item_ids: Sequence[str]) -> set[bytes]:
    """The DAG tags of canonical ids."""
    if len(item_ids) == 1:
        return {item_ids[0][DAG_TAG].encode()}
    return set(chain.from_iterable(_DAG_TAG_OF_ID.iter_unpack("".join(item_ids).encode())))


def with_dag_tag(item_ids: Iterable[str], like: str) -> list[str]:
    """These new ids with the DAG tag of `like`."""
    mark = like[DAG_TAG]
    return [item_id[: DAG_TAG.start] + mark + item_id[DAG_TAG.stop :] for item_id in item_ids]


__all__ = [
    "DAG_TAG",
    "ID_CHARS",
    "SHARDS_MAX",
    "ShardNo",
    "are_canonical",
    "are_canonical_text",
    "canonical",
    "canonical_token",
    "canonicals",
    "dag_tags",
    "new_id",
    "new_ids",
    "new_token",
    "one_shard_of",
    "shard_of",
    "time_ms_of",
    "with_dag_tag",
]
