"""Bodies are JSON that every reader reads alike, or they are refused; the quick way lets no more through."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import BadRequest, Invalid, NotJson, TooDeep
from shared.http import json_body

TEXTS = st.text(st.characters(blacklist_categories=["Cs"]), max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=15,
)


def check(body: bytes, depth_max: int = 32) -> Any:
    return json_body.check(body, depth_max=depth_max)


@given(VALUES, st.booleans(), st.sampled_from([None, 1, "\t"]))
def test_any_value_is_read_as_the_standard_library_reads_it(value: Any, escaped: bool, indent: Any) -> None:
    text = json.dumps(value, ensure_ascii=escaped, indent=indent)

    assert check(text.encode()) == json.loads(text)


@given(st.binary(max_size=60))
def test_any_bytes_are_json_or_refused(body: bytes) -> None:
    try:
        found = check(body)
    except (BadRequest, Invalid):
        return
    assert found == (json.loads(body) if body else {})


@given(VALUES, st.data())
def test_one_wrong_byte_never_slips_through(value: Any, data: st.DataObject) -> None:
    body = bytearray(json.dumps({"a": value}).encode())
    place = data.draw(st.integers(0, len(body) - 1))
    body[place] = data.draw(st.integers(0, 255))
    try:
        expected = json.loads(bytes(body).decode("utf-8"), object_pairs_hook=_unique, parse_constant=_refuse)
        json.dumps(expected, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, UnicodeError):
        with pytest.raises((BadRequest, Invalid)):
            check(bytes(body))
    else:
        assert check(bytes(body)) == expected


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("twice")
    return dict(pairs)


def _refuse(_constant: str) -> Any:
    raise ValueError("constant")


@pytest.mark.parametrize("depth", [1, 31, 32])
def test_depth_up_to_the_limit(depth: int) -> None:
    assert check(b"[" * depth + b"]" * depth) is not None
    assert check(b'{"a":' * (depth - 1) + b"{}" + b"}" * (depth - 1)) is not None


@pytest.mark.parametrize("depth", [33, 900, 100_000])
def test_depth_over_the_limit(depth: int) -> None:
    for opening, closing in ((b"[", b"]"), (b'{"a":', b"}"), (b'[{"a":', b"}]")):
        with pytest.raises(TooDeep):
            check(opening * depth + b"1" + closing * depth)
    with pytest.raises(TooDeep):
        check(b"[" * depth)


@given(st.integers(1, 40), st.text(st.sampled_from('[]{}"\\a'), max_size=60))
def test_brackets_in_strings_are_not_depth(depth: int, text: str) -> None:
    body = b"[" * depth + json.dumps(text).encode() + b"]" * depth
    if depth <= 32:
        assert json.dumps(text).encode() in json.dumps(check(body)).encode()
    else:
        with pytest.raises(TooDeep):
            check(body)


def test_many_brackets_side_by_side_are_not_depth() -> None:
    assert check(b"[" + b",".join([b"[{}]"] * 5000) + b"]") == [[{}]] * 5000


@pytest.mark.parametrize(
    "body",
    [b'{"a":1,"a":1}', b'{"a":1,"\\u0061":1}', b'[{"x":{"b":[],"b":[]}}]', b'{"a":{"b":1},"c":2,"a":{"b":1}}'],
)
def test_a_name_twice(body: bytes) -> None:
    with pytest.raises(BadRequest) as caught:
        check(body)
    assert caught.value.code == "duplicate_name"


def test_one_name_in_two_objects() -> None:
    assert check(b'[{"a":1},{"a":1,"b":{"a":2}}]') == [{"a": 1}, {"a": 1, "b": {"a": 2}}]


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        (rb'"\ud800"', ""),
        (rb'{"\udfff":1}', ""),
        (rb'{"a":{"\udfff":1}}', "/a"),
        (rb'["\ud83d","\ude00"]', "/0"),
        (rb'"\ude00\ud83d"', ""),
        (rb'{"a":"\ud83d\ude00","b/~":[1,{"c":"x\udc00"}]}', "/b~1~0/1/c"),
    ],
)
def test_half_of_a_surrogate_pair(body: bytes, pointer: str) -> None:
    with pytest.raises(Invalid) as caught:
        check(body)
    assert [error.pointer for error in caught.value.errors] == [pointer]


@pytest.mark.parametrize("number", [2**53 + 1, 2**63, 2**64, -(2**63) - 1, 10**400])
def test_integers_keep_every_digit(number: int) -> None:
    assert check(str(number).encode()) == number


@pytest.mark.parametrize(
    "body", [b"NaN", b"-Infinity", b"1e400", b"-1e999", b"9" * 5000, b"01", b"1.", b".5", b"+1"]
)
def test_numbers_that_are_none(body: bytes) -> None:
    with pytest.raises(NotJson):
        check(body)
    with pytest.raises(NotJson):
        check(b'{"a": [' + body + b"]}")


def test_an_absent_body_is_an_empty_object() -> None:
    assert check(b"") == {}


@given(st.dictionaries(TEXTS, VALUES, max_size=4), st.booleans(), st.sampled_from([None, 1, "\t"]))
def test_a_large_body_is_read_part_by_part_as_it_is_as_a_whole(
    value: dict[str, Any], escaped: bool, indent: Any
) -> None:
    body = json.dumps(value, ensure_ascii=escaped, indent=indent).encode()

    assert json_body.check_by_parts(body, depth_max=32) == json.loads(body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"nodes": [1, 2], "nodes": [3]}',
        b'{"nodes": [{"a": 1, "a": 2}]}',
        b'{"nodes": [[[[1]]]]}',
        b'{"nodes": ["\xff"]}',
        b'{"nodes": ["\\ud800"]}',
        b'{"nodes": [NaN]}',
        b'{"nodes": [1',
        b'{"nodes": [1]} 2',
        b"[[1], [1",
        b"nothing",
    ],
)
def test_what_is_wrong_in_a_large_body_is_told_as_of_a_small_one(body: bytes) -> None:
    refusals = []
    for read in (json_body.check, json_body.check_by_parts):
        with pytest.raises((BadRequest, Invalid)) as refused:
            read(body, depth_max=4)
        refusals.append((refused.value.code, refused.value.detail, refused.value.errors))
    assert refusals[0] == refusals[1]


@pytest.mark.parametrize("body", [b"[[1, [2]]]", b"5", b'"text"', b'{"a": [], "b": {}}', b""])
def test_a_large_body_may_be_any_value(body: bytes) -> None:
    assert json_body.check_by_parts(body, depth_max=4) == check(body)
