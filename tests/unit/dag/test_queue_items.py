"""Queue items of nodes and the inputs they are given."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.dag.model import Item
from services.dag.queue_items import (
    ack_topic,
    deeper_than,
    depth,
    encode,
    inputs_body,
    inputs_reference,
    item_text,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)


def _depth(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max(map(_depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(_depth, value), default=0)
    return 0


@given(JSON)
def test_depth_is_that_of_the_value_whatever_its_strings_hold(value: object) -> None:
    text = encode(value)
    assert depth(text) == _depth(value)
    assert deeper_than(text, 2) == (_depth(value) > 2)


@given(st.dictionaries(st.text(min_size=1), JSON, max_size=4))
def test_inputs_are_one_json_object(values: dict[str, object]) -> None:
    assert json.loads(inputs_body([(name, encode(value)) for name, value in values.items()])) == values


@pytest.mark.parametrize("key", ["//pkg/tcpip:stack", "g++", "a b&c=d?e#f", "ü%41"])
def test_a_reference_carries_any_key(key: str) -> None:
    from urllib.parse import parse_qs, urlsplit

    path = json.loads(inputs_reference("ns", "dag-id", key))["$ref"]
    assert parse_qs(urlsplit(path).query) == {"key": [key]}


def test_an_item_says_where_its_end_is_to_be_told() -> None:
    item = Item("dag-id", "a", encode({"topic": "t", "payload": {"x": 1}, "lease_s": 5.0}))
    text = item_text(item, "item-id", 3, 7, disabled=True, inputs='{"u":1}')
    assert json.loads(text) == {
        "topic": "t",
        "payload": {"x": 1},
        "lease_s": 5.0,
        "id": "item-id",
        "ack_topic": "_dag:acks/007",
        "ack_context": {"dag": "dag-id", "node": "a", "generation": 3},
        "disabled": True,
        "inputs": {"u": 1},
    }
    assert "disabled" not in json.loads(item_text(item, "item-id", 3, 7))
    lifted = Item("dag-id", 'a "key" ü', encode({"topic": "t", "priority": -(2**31) + 2, "payload": "}"}))
    body = json.loads(item_text(lifted, "item-id", 1, 7, lift=3))
    assert (body["priority"], body["payload"], body["ack_context"]["node"]) == (-(2**31), "}", 'a "key" ü')
    assert ack_topic(4095) == "acks/4095"
