"""Heads of requests that were read before: a client on a connection it keeps sends the same one again and again.

Parsing a small request costs more than looking up that it was parsed. So the head of a plain request, but for the
digits of its Content-Length, is remembered with what it asks for. Only what comes whole, in one piece, is looked
up, and only what a parser has judged, and framed alike, is learned: a head that differs in one byte goes to the
parser. Whose token it holds is not remembered but asked anew by every request.

A head that came with the same digits before is found by itself, without being taken apart.
"""

from __future__ import annotations

from typing import NamedTuple

from shared.http.hot_path import Target

HEADS_MAX = WHOLE_MAX = 1_000
# Longer ones are no common ones, and would fill the memory.
HEAD_BYTES_MAX = 2_048
_DIGITS_MAX = 9

_END = b"\r\n\r\n"
_LENGTH, _LOWER_LENGTH = b"\r\nContent-Length: ", b"\r\ncontent-length: "


class Plain(NamedTuple):
    """What a plain head asks for, and how long a body it may have."""

    target: Target
    authorization: str | None
    body_bytes_max: int


def is_plain_body(headers: dict[bytes, bytes], bytes_max: int) -> bool:
    """True for JSON that says how long it is, up to `bytes_max`; 0: for no body at all."""
    length = headers.get(b"content-length")
    if bytes_max == 0:
        return length is None or length == b"0"
    return length is not None and int(length) <= bytes_max and headers.get(b"content-type") == b"application/json"


class KnownHeads:
    """The heads that one process has met lately."""

    def __init__(self) -> None:
        self._plain: dict[bytes, Plain] = {}
        self._whole: dict[bytes, tuple[Plain, int]] = {}  # with the digits, and what they say

    def find(self, data: bytes) -> tuple[Plain, bytes] | None:
        """What `data` asks for, and its body, if it is one whole request with a head that is known."""
        head, end, body = data.partition(_END)
        known = self._whole.get(head)
        if known is not None and end and known[1] == len(body):
            return known[0], body
        framed = _frame(data)
        plain = None if framed is None else self._plain.get(framed[0])
        if plain is None or len(body) > plain.body_bytes_max:
            return None
        if len(self._whole) >= WHOLE_MAX:
            self._whole.clear()
        self._whole[head] = plain, len(body)
        return plain, body

    def learn(self, data: bytes, plain: Plain, body: bytes) -> None:
        """A parser took the whole of `data` for one such request with that body."""
        framed = None if plain.target.of else _frame(data)  # the names of single things are many
        if framed is None:
            return
        key, found = framed
        # Whatever a parser may forgive in the ends of lines or a second length is not taken for granted.
        if found != body or key.count(b"\n") != key.count(b"\r\n") or key.lower().count(b"content-length") > 1:
            return
        if len(self._plain) >= HEADS_MAX:
            self._plain.clear()
            self._whole.clear()
        self._plain[key] = plain


def _frame(data: bytes) -> tuple[bytes, bytes] | None:
    """The head without the digits of its length, and the body, if `data` is both and nothing else."""
    head, end, body = data.partition(_END)
    if len(head) > HEAD_BYTES_MAX or not end:
        return None
    before, name, rest = head.partition(_LENGTH)
    if not name:
        before, name, rest = head.partition(_LOWER_LENGTH)
    if not name:
        return None if body else (head, b"")
    digits, _, after = rest.partition(b"\r\n")
    if not digits.isdigit() or len(digits) > _DIGITS_MAX or len(body) != int(digits):
        return None
    return b"%b%b%b" % (before, name, after), body
