"""What every JSON body must be before anyone looks at its shape: well formed, flat enough, unambiguous.

Refused with 400: not UTF-8, not JSON, NaN, Infinity and numbers out of range, nesting over the limit, a
name twice in one object. Refused with 422: half of a surrogate pair in a string. The common case costs
three passes in C; only a body that looks wrong is read again slowly to say what is wrong with it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import msgspec

from shared.beside import beside
from shared.errors import BadRequest, FieldError, Invalid, NotJson, ServiceError, TooDeep, UnsupportedMedia

_ESCAPES = re.compile(rb"\\.", re.S)
_OTHERS = bytes(byte for byte in range(256) if byte not in b'"[]{}')
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}

_decode = msgspec.json.decode
_encode = msgspec.json.encode
_format = msgspec.json.format
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_elements = msgspec.json.Decoder(list[msgspec.Raw]).decode
# Some milliseconds.
BYTES_AT_ONCE_MAX = 512 * 1024


def check(body: bytes, *, depth_max: int) -> Any:
    """Return the decoded value of a body, `{}` for an absent one.

    Raises:
        BadRequest: `not_json`, `too_deep` or `duplicate_name`.
        Invalid: a string holds half of a surrogate pair.
    """
    if not body:
        return {}
    if body.count(b"[") + body.count(b"{") > depth_max:
        _check_depth(body, depth_max)
    try:
        value = _decode(body)
        plain = _encode(value) == _format(body, indent=-1)
    except (msgspec.MsgspecError, UnicodeError, ValueError, RecursionError):
        plain = False
    if plain:
        return value
    return _read_slowly(body)


async def read(body: bytes, *, depth_max: int) -> Any:
    """The same of a body of any size: a large one is read beside the event loop."""
    is_large = len(body) > BYTES_AT_ONCE_MAX
    return await beside(is_large, check_by_parts if is_large else check, body, depth_max=depth_max)


def check_by_parts(body: bytes, *, depth_max: int) -> Any:
    """As `check`, element by element of the lists that the body is made of: reading one keeps all threads waiting.
    Where a part looks wrong the whole is read at once, to say what is."""
    try:
        members = _decode_members(body)
        if _format(_encode(members), indent=-1) == _format(body, indent=-1):
            return {name: _member(bytes(part), depth_max - 1) for name, part in members.items()}
    except (msgspec.MsgspecError, UnicodeError, ServiceError):
        pass
    return check(body, depth_max=depth_max)


def _member(text: bytes, depth_max: int) -> Any:
    if not text.startswith(b"["):
        return check(text, depth_max=depth_max)
    return [check(bytes(part), depth_max=depth_max - 1) for part in _decode_elements(text)]


def _check_depth(body: bytes, depth_max: int) -> None:
    plain = _ESCAPES.sub(b"", body) if b"\\" in body else body
    # Most strings are two quotes now; of what is left every second part between quotes lies outside of them.
    brackets = plain.translate(None, _OTHERS).replace(b'""', b"")
    if b'"' in brackets:
        brackets = b"".join(brackets.split(b'"')[::2])
    deepest = max(accumulate(map(_STEPS.__getitem__, brackets)), default=0)
    if deepest > depth_max:
        raise TooDeep(f"the body nests {deepest} levels deep; at most {depth_max} are taken")


def _read_slowly(body: bytes) -> Any:
    try:
        text = body.decode("utf-8")
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse, parse_float=_finite)
    except UnicodeDecodeError:
        raise NotJson("the body is not UTF-8") from None
    except (ValueError, RecursionError):
        raise NotJson("the body is not JSON (RFC 8259)") from None
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        pointer = next(_torn(value, ""), "")
        detail = "a string holds half of a surrogate pair; send whole characters"
        raise Invalid(detail, errors=[FieldError(pointer, "not a whole character")]) from None
    return value


def _torn(value: Any, pointer: str) -> Iterator[str]:
    """Pointers to strings that are no UTF-8; to its object for a name that is none, as pointers are text."""
    if isinstance(value, str):
        if not _is_whole(value):
            yield pointer
    elif isinstance(value, list):
        for i, element in enumerate(value):
            yield from _torn(element, f"{pointer}/{i}")
    elif isinstance(value, dict):
        for name, member in value.items():
            if _is_whole(name):
                yield from _torn(member, f"{pointer}/{name.replace('~', '~0').replace('/', '~1')}")
            else:
                yield pointer


def _is_whole(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class DuplicateName(BadRequest):
    """An object names a member twice; which one would count is anybody's guess."""

    code = "duplicate_name"


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise DuplicateName("an object in the body names a member twice")
    return found


def _refuse(_constant: str) -> Any:
    raise ValueError("not a JSON number")


def _finite(digits: str) -> float:
    number = float(digits)
    if number in (float("inf"), float("-inf")):
        raise ValueError("number out of range")
    return number


def check_media(content_type: str, body: bytes = b"") -> None:
    """Raises UnsupportedMedia unless the type is JSON in UTF-8; NotJson of a body without any that is none."""
    if body and not content_type.strip():
        _read_slowly(body)
    media, _, parameters = content_type.partition(";")
    media = media.strip().lower()
    if media != "application/json" and not (media.startswith("application/") and media.endswith("+json")):
        raise UnsupportedMedia("send the body as application/json")
    if "charset" in parameters.lower() and "utf-8" not in parameters.lower():
        raise UnsupportedMedia("send the body in UTF-8")
