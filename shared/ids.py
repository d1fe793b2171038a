"""Ids that carry their shard: UUIDv7 whose last 12 bits are a shard number.

The generator is the SDK's (`headgate.ids`); this module adds what the services need to judge ids that
callers send. An id is opaque to callers, so a malformed one is never an error here: it is `None`.

Items of one DAG are of one kin: three of the random digits of their ids are those of the DAG's own. So it is seen
without asking which acks may need the same DAG's lock. Nothing rests on it: strangers may be of one kin too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from headgate.ids import new_id, new_ids

SHARDS_MAX = 4096

_CANONICAL = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}").fullmatch
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}").fullmatch

_MANY = 8
# Of an id's text: how long it is, and where its dashes are.
_CHARS, _DASHES = 36, (8, 13, 18, 23)


def canonical(text: str) -> str | None:
    """The canonical form of an id, or None when it is not the text of a UUIDv7."""
    if _CANONICAL(text):
        return text
    lowered = text.lower()
    return lowered if _CANONICAL(lowered) else None


def canonicals(texts: list[str]) -> list[str | None]:
    """As `canonical`, for many at once: mostly all are as they should be."""
    are_canonical = _are_canonical(texts) if len(texts) >= _MANY else all(map(_CANONICAL, texts))
    return list(texts) if are_canonical else list(map(canonical, texts))


def _are_canonical(texts: list[str]) -> bool:
    """Whether all match `_CANONICAL`: for many it costs a third to look at one place of all at a time."""
    count = len(texts)
    if set(map(len, texts)) != {_CHARS}:
        return False
    try:
        text = "".join(texts).encode("ascii")
    except UnicodeEncodeError:
        return False
    return (
        all(text[place::_CHARS] == b"-" * count for place in _DASHES)
        and text.count(b"-") == len(_DASHES) * count
        and text[14::_CHARS] == b"7" * count
        and not text[19::_CHARS].translate(None, b"89ab")
        and not text.translate(None, b"0123456789abcdef-")
    )


def canonical_token(text: str) -> str | None:
    """The canonical form of a lease token (128 random bits in UUID notation), or None."""
    if _UUID(text):
        return text
    lowered = text.lower()
    return lowered if _UUID(lowered) else None


def shard_of(item_id: str) -> int:
    """The shard number in a canonical id."""
    return int(item_id[-3:], 16)


def time_ms_of(item_id: str) -> int:
    """Milliseconds since the epoch at which a canonical id was made, by its maker's clock."""
    return int(item_id[:8] + item_id[9:13], 16)


# What ids of one kin have in common.
KIN = slice(24, 27)


def kin(item_ids: Iterable[str], like: str) -> list[str]:
    """New ids, made to be of one kin with `like`."""
    mark = like[KIN]
    return [item_id[: KIN.start] + mark + item_id[KIN.stop :] for item_id in item_ids]


__all__ = [
    "KIN",
    "SHARDS_MAX",
    "canonical",
    "canonical_token",
    "canonicals",
    "kin",
    "new_id",
    "new_ids",
    "shard_of",
    "time_ms_of",
]
