"""Arrays as the driver sends them: all bytes made at once.

asyncpg looks at each element of an array in turn, which costs the client more than the server's work for it; of
the text of an array the server has to read every digit. Here an array of ids or numbers becomes the server's own
binary form by a few operations over all of it.
"""

from __future__ import annotations

from binascii import unhexlify
from collections.abc import Callable, Sequence
from itertools import chain, repeat
from struct import Struct, pack
from typing import Any
from uuid import UUID

# Dimensions, whether there are NULLs, the elements' type, how many, the number of the first.
_HEAD = Struct(">iiIii")
_EMPTY = Struct(">iiI")
_LENGTH = Struct(">i")
_NULL = _LENGTH.pack(-1)

_UUID = 2950
_UUID_LENGTH = _LENGTH.pack(16).hex()
_UUID_HEAD = Struct(f"{_HEAD.format}i")
_ONE_UUID = _UUID_HEAD.pack(1, 0, _UUID, 1, 1, 16)
# What an id and its length take, as text and as bytes.
_BETWEEN_CHARS = len(_UUID_LENGTH)
_UUID_CHARS, _UUID_BYTES = 36 + _BETWEEN_CHARS, 16 + _LENGTH.size
_MANY = 8
# Where the dashes of all ids are, from the last of each to the first: without one the next id is nearer.
_DASHES = tuple((place, _UUID_CHARS - gone) for gone, place in enumerate((23, 18, 13, 8)))

Encoder = Callable[[Sequence[Any]], bytes]
Decoder = Callable[[bytes], list[Any]]


def use(connection: Any) -> None:
    """Have a connection of asyncpg send arrays so. Its public `set_type_codec` takes no array's type."""
    settings = connection._protocol.get_settings()
    for oid, name, encoder, decoder in CODECS:
        settings.add_python_codec(oid, name, "pg_catalog", [], "scalar", encoder, decoder, "binary")


def encode_uuids(ids: Sequence[Any]) -> bytes:
    """Ids, as texts or not, as a binary `uuid[]`.

    Raises:
        ValueError: one of them is no id.
    """
    count = len(ids)
    try:
        if count == 1:
            data = bytes.fromhex(ids[0].replace("-", ""))
            return _ONE_UUID + data if len(data) == 16 else _encoded(_UUID, ids, _uuid_bytes)
        text = _UUID_LENGTH.join(ids)
        data = bytes.fromhex(text.replace("-", "")) if count < _MANY else _many_digits(text, count)
    except (AttributeError, TypeError, ValueError):
        return _encoded(_UUID, ids, _uuid_bytes)
    if len(text) != count * _UUID_CHARS - _BETWEEN_CHARS or len(data) != count * _UUID_BYTES - _LENGTH.size:
        return _encoded(_UUID, ids, _uuid_bytes)
    return _UUID_HEAD.pack(1, 0, _UUID, count, 1, _UUID_BYTES - _LENGTH.size) + data


def _many_digits(text: str, count: int) -> bytes:
    """The dashes of many ids are left out fastest all at a time that stand at the same place."""
    digits = bytearray(text, "ascii")
    dashes = b"-" * count
    for place, stride in _DASHES:
        if digits[place::stride] != dashes:
            raise ValueError("an id of another form")
        del digits[place::stride]
    return unhexlify(digits)


def decode_uuids(data: bytes) -> list[UUID | None]:
    """The elements of a binary `uuid[]`."""
    return _decoded(data, lambda element: UUID(bytes=element))


def _numbers(element_oid: int, code: str) -> tuple[Encoder, Decoder]:
    """How to write and read arrays of numbers of one type."""
    element = Struct(f">{code}")
    pair, empty = Struct(f">i{code}"), _EMPTY.pack(0, 0, element_oid)
    single = _HEAD.pack(1, 0, element_oid, 1, 1) + _LENGTH.pack(element.size)

    def encode(values: Sequence[Any]) -> bytes:
        count = len(values)
        if count == 1 and values[0] is not None:
            return single + element.pack(values[0])
        if not count:
            return empty
        if None in values:
            return _encoded(element_oid, values, element.pack)
        sizes_and_values = chain.from_iterable(zip(repeat(element.size), values))
        return _HEAD.pack(1, 0, element_oid, count, 1) + pack(">" + f"i{code}" * count, *sizes_and_values)

    def decode(data: bytes) -> list[Any]:
        if data[:8] != b"\0\0\0\1\0\0\0\0":  # not one dimension without NULLs
            return _decoded(data, lambda part: element.unpack(part)[0])
        if len(data) == _HEAD.size + pair.size:
            return [pair.unpack_from(data, _HEAD.size)[1]]
        return [value for _, value in pair.iter_unpack(data[_HEAD.size :])]

    return encode, decode


def _encoded(element_oid: int, values: Sequence[Any], element: Callable[[Any], bytes]) -> bytes:
    """Any array of one dimension, element by element."""
    if not values:
        return _EMPTY.pack(0, 0, element_oid)
    texts = [None if value is None else element(value) for value in values]
    parts = [_NULL if text is None else _LENGTH.pack(len(text)) + text for text in texts]
    return _HEAD.pack(1, int(None in texts), element_oid, len(parts), 1) + b"".join(parts)


def _uuid_bytes(item: Any) -> bytes:
    return UUID(str(item)).bytes


def _decoded(data: bytes, element: Callable[[bytes], Any]) -> list[Any]:
    (dimensions,) = _LENGTH.unpack_from(data)
    if dimensions > 1:
        raise ValueError("an array of several dimensions")
    found: list[Any] = []
    place = _HEAD.size
    while place < len(data):
        (length,) = _LENGTH.unpack_from(data, place)
        place += _LENGTH.size
        found.append(None if length < 0 else element(data[place : place + length]))
        place += max(length, 0)
    return found


# Types of arrays and their names: the same numbers on every server.
CODECS: tuple[tuple[int, str, Encoder, Decoder], ...] = (
    (2951, "_uuid", encode_uuids, decode_uuids),
    (1000, "_bool", *_numbers(16, "?")),
    (1007, "_int4", *_numbers(23, "i")),
    (1016, "_int8", *_numbers(20, "q")),
    (1022, "_float8", *_numbers(701, "d")),
)
