"""Cursors of lists: opaque to callers, and good only for the list that gave them."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from typing import Any, Final

from shared.errors import invalid

_SEPARATOR: Final = "|"


def encode(query: str, position: str) -> str:
    """A cursor that goes on after `position` in the list of `query`."""
    text = f"{zlib.crc32(query.encode()):08x}{_SEPARATOR}{position}"
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode(query: str, cursor: str) -> str:
    """The position in a cursor.

    Raises:
        Invalid: it is not a cursor of this list.
    """
    try:
        text = base64.urlsafe_b64decode((cursor + "=" * (-len(cursor) % 4)).encode("ascii")).decode()
    except ValueError:
        text = ""
    mark, separator, position = text.partition(_SEPARATOR)
    if not separator or mark != f"{zlib.crc32(query.encode()):08x}":
        raise invalid("/cursor", "this is not a cursor of this list; pass `next_cursor` as it came")
    return position


def page(items: Sequence[Any], next_cursor: str | None, away: Sequence[int]) -> dict[str, Any]:
    """A page of a list over all shards; `away` are those that did not answer, named where there are any."""
    found: dict[str, Any] = {"items": items, "next_cursor": next_cursor}
    return found | {"away": away} if away else found


def cut(query: str, found: Sequence[dict[str, Any]], field: str, limit: int, cursor: str | None) -> dict[str, Any]:
    """A page of a list that was read whole, in ascending order of `field` (text, or a number from 0)."""
    after = "" if cursor is None else decode(query, cursor)
    rest = [entry for entry in found if _position(entry[field]) > after]
    more = encode(query, _position(rest[limit - 1][field])) if len(rest) > limit else None
    return {"items": rest[:limit], "next_cursor": more}


def _position(value: str | int) -> str:
    return value if isinstance(value, str) else f"{value:010d}"
