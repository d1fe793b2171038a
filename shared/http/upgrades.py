"""A request that asks to go on in another protocol (`Upgrade`): it is served as if it had not.

A server may ignore the wish (RFC 9110, 7.8), and clients count on it: Java's has it by default, for `h2c`. The
parser, however, ends where such a head ends, whatever body it announces. So it is given the head again, without
the wish.
"""

from __future__ import annotations

from collections.abc import Iterable

# Fields, and tokens of `Connection`, that are about the other protocol.
_ABOUT_IT = frozenset((b"upgrade", b"http2-settings"))


def without_upgrade(method: bytes, target: bytes, version: str, fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The head of these parts, of which a parser has judged each one, but for what asks for an upgrade."""
    lines = [b"%b %b HTTP/%b\r\n" % (method, target, version.encode())]
    for name, value in fields:
        kept = _connection(value) if name == b"connection" else value
        if name not in _ABOUT_IT and kept is not None:
            lines.append(b"%b: %b\r\n" % (name, kept))
    return b"".join(lines) + b"\r\n"


def _connection(value: bytes) -> bytes | None:
    """The other tokens of the field; None if it has none."""
    tokens = [token.strip() for token in value.split(b",")]
    return b", ".join(token for token in tokens if token.lower() not in _ABOUT_IT) or None
