"""Cursors of lists: opaque to callers, and good only for the list that gave them."""

from __future__ import annotations

import base64
import zlib
from typing import Final

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
