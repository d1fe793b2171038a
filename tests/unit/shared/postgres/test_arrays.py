"""Arrays as the driver sends them: the bytes are those of the server's own form."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.postgres import arrays

_CODECS = {name: (encode, decode) for _, name, encode, decode in arrays.CODECS}
_IDS = st.uuids()


@given(st.lists(_IDS, max_size=40))
def test_ids_keep_their_order(ids: list[uuid.UUID]) -> None:
    assert arrays.decode_uuids(arrays.encode_uuids(list(map(str, ids)))) == ids


@given(st.lists(st.none() | _IDS | _IDS.map(lambda item: str(item).upper()) | _IDS.map(lambda item: item.hex)))
def test_ids_of_other_forms_are_encoded_too(ids: list[Any]) -> None:
    meant = [None if item is None else uuid.UUID(str(item)) for item in ids]
    assert arrays.decode_uuids(arrays.encode_uuids(ids)) == meant


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "x" * 36,
        "01a2030b-8af2-73ae-9aa1-bcffc87f200",
        "01a2030b-8af2-73ae-9aa1-bcffc87f20000",
        "01a2030b08af2-73ae-9aa1-bcffc87f2000",
        "01a2030b-8af2-73ae-9aa1-bcffc87f20é0",
    ],
)
@pytest.mark.parametrize("beside", [[], ["01a2030b-8af2-73ae-9aa1-bcffc87f2001"] * 10])
def test_what_is_no_id_is_not_sent(wrong: str, beside: list[str]) -> None:
    with pytest.raises(ValueError, match=r"UUID|hex|base 16"):
        arrays.encode_uuids([*beside, wrong, *beside])


@pytest.mark.parametrize("place", [0, 1, 5, 11])
def test_one_of_another_form_among_many(place: int) -> None:
    """Two ids that make up for one another's length, or have their dashes elsewhere, are read one by one."""
    ids = [str(uuid.UUID(int=n)) for n in range(12)]
    meant = list(map(uuid.UUID, ids))
    for other in (
        ids[place].replace("-", ""),
        ids[place].replace("-", "")[:4] + "-" * 4 + ids[place].replace("-", "")[4:],
    ):
        assert arrays.decode_uuids(arrays.encode_uuids([*ids[:place], other, *ids[place + 1 :]])) == meant
    with pytest.raises(ValueError, match="UUID"):
        arrays.encode_uuids([*ids[:place], ids[place] + "00", ids[place][:-2], *ids[place + 2 :]])


@pytest.mark.parametrize("name", ["_int4", "_int8", "_float8"])
@given(numbers=st.lists(st.none() | st.integers(-(2**31), 2**31 - 1), max_size=20))
def test_numbers_keep_their_order(name: str, numbers: list[int | None]) -> None:
    encode, decode = _CODECS[name]
    assert decode(encode(numbers)) == numbers


@given(flags=st.lists(st.none() | st.booleans(), max_size=20))
def test_flags_keep_their_order(flags: list[bool | None]) -> None:
    encode, decode = _CODECS["_bool"]
    assert decode(encode(flags)) == flags


def test_what_has_several_dimensions_is_not_taken_for_one() -> None:
    _, decode = _CODECS["_int4"]
    with pytest.raises(ValueError, match="dimensions"):
        decode(b"\0\0\0\2" + bytes(40))
