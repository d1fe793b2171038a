"""What the wire models let in and what they refuse, from Python objects and from JSON text alike."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from headgate import wire
from headgate._ids import new_id

NEAR = {"nodes": [{"key": "b", "topic": "t", "trigger": "any_failed"}]}


def pointers(model: type[BaseModel], body: Any, *, text: bool) -> list[str]:
    with pytest.raises(ValidationError) as caught:
        if text:
            model.model_validate_json(json.dumps(body))
        else:
            model.model_validate(body)
    return [fault.pointer for fault in wire.field_errors(caught.value.errors())]


@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("priority", 7.0),
        ("priority", True),
        ("priority", "7"),
        ("priority", 2**31),
        ("priority", -(2**31) - 1),
        ("priority", 2**70),
        ("priority", None),
        ("lease_s", True),
        ("lease_s", "60"),
        ("lease_s", 0),
        ("lease_s", 0.999),
        ("lease_s", 43_200.5),
        ("lease_s", 10**400),
        ("delay_s", -0.001),
        ("delay_s", wire.DELAY_S_MAX + 1),
        ("ttl_s", 0),
        ("max_attempts", -1),
        ("max_attempts", 1.0),
        ("topic", ""),
        ("topic", "a" * 129),
        ("topic", "a b"),
        ("topic", "a\n"),
        ("topic", "\u00e9"),
        ("topic", "x'; DROP TABLE item;--"),
        ("topic", None),
        ("disabled", 1),
        ("delivery", "exactly_once"),
        ("metadata", []),
        ("metadata", {"a": {"b\x00": 1}}),
        ("metadata", {"a": ["x\x00"]}),
        ("headers", {"traceparent": 1}),
        ("headers", {"a\x00": "b"}),
        ("ack_context", "text"),
        ("ack_topic", "a:b:c"),
        ("ack_topic", "n" * 65 + ":t"),
        ("affinity", ""),
        ("affinity", "\u00e9" * 513),
        ("affinity", "tab\t"),
        ("idempotency_key", ""),
        ("idempotency_key", "k" * 1_025),
        ("idempotency_key", "\u00e9" * 513),
        ("idempotency_key", "k\n"),
        ("fairness_key", "\u00e9" * 101),
        ("id", "not-an-id"),
        ("id", "0198b6a4-1aad-4156-b939-278e17f04005"),
        ("deliver_after", 1_900_000_000),
        ("deliver_after", "2020-01-01T00:00:00"),
        ("deliver_after", "2020-01-01"),
        ("deliver_after", "2020-06-30T23:59:60Z"),
        ("deliver_after", "2020-13-01T00:00:00Z"),
        ("deliver_after", "9999-12-31T23:59:59Z"),
        ("deliver_after", "9999-12-31T23:59:59-23:59"),
        ("deliver_after", "0001-01-01T00:00:00+23:00"),
        ("backoff", {"jitter": 2}),
        ("backoff", {"base_s": -1}),
        ("prioirty", 1),
    ],
)
def test_a_wrong_field_is_refused_by_its_name(field: str, value: Any, text: bool) -> None:
    found = pointers(wire.Item, {"topic": "t", field: value}, text=text)
    assert len(found) == 1
    assert found[0].startswith(f"/{field}")


def test_a_lone_surrogate_is_refused_wherever_it_stands() -> None:
    for item in (
        {"topic": "\ud800"},
        {"topic": "t", "payload": ["\ud800"]},
        {"topic": "t", "metadata": {"\udfff": 1}},
        {"topic": "t", "affinity": "a\ud800"},
    ):
        assert pointers(wire.Item, item, text=False)


@pytest.mark.parametrize(
    "fields",
    [
        {"priority": -(2**31)},
        {"priority": 2**31 - 1},
        {"lease_s": 1},
        {"lease_s": 43_200},
        {"delay_s": 0, "ttl_s": 0.5},
        {"delay_s": 5, "ttl_s": 5},
        {"topic": "a/../b._-"},
        {"payload": "h\u00e9llo \U0001f600"},
        {"idempotency_key": " ~"},
        {"affinity": "//pkg/tcpip:stack g++"},
        {"ack_topic": "other:done/x"},
        {"deliver_after": "2020-01-01t00:00:00.5+02:00"},
        {"metadata": None, "id": None, "deliver_after": None, "delay_s": 1},
    ],
)
def test_the_limits_themselves_are_allowed(fields: dict[str, Any]) -> None:
    body = {"topic": "t", **fields}
    assert wire.Item.model_validate(body) == wire.Item.model_validate_json(json.dumps(body))


def test_an_id_in_capitals_is_the_same_id() -> None:
    item_id = new_id(7)
    assert wire.Item(topic="t", id=item_id.upper()).id == item_id


def test_deliver_after_may_be_a_month_ahead_and_no_more() -> None:
    month = datetime.now(UTC) + timedelta(seconds=wire.DELAY_S_MAX)
    assert wire.Item(topic="t", deliver_after=month).deliver_after == month
    later = (month + timedelta(minutes=1)).isoformat()
    assert pointers(wire.Item, {"topic": "t", "deliver_after": later}, text=False) == ["/deliver_after"]


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"deliver_after": "2020-01-01T00:00:00Z", "delay_s": 1}, "/items/1/delay_s"),
        ({"delay_s": 2, "ttl_s": 1}, "/items/1/ttl_s"),
        ({"idempotency_key": "k", "affinity": "a"}, "/items/1/idempotency_key"),
        ({"idempotency_key": "k", "id": new_id(0)}, "/items/1/idempotency_key"),
    ],
)
def test_fields_that_exclude_one_another_are_pointed_at(fields: dict[str, Any], pointer: str) -> None:
    body = {"items": [{"topic": "t"}, {"topic": "t", **fields}]}
    assert pointers(wire.EnqueueRequest, body, text=False) == [pointer]


@pytest.mark.parametrize(
    ("model", "field", "element"),
    [
        (wire.EnqueueRequest, "items", {"topic": "t"}),
        (wire.AckRequest, "items", {"id": "x", "lease_token": "y"}),
        (wire.NackRequest, "items", {"id": "x", "lease_token": "y"}),
        (wire.ExtendRequest, "items", {"id": "x", "lease_token": "y"}),
        (wire.ReviveRequest, "items", {"id": "x"}),
        (wire.CancelRequest, "ids", "x"),
        (wire.AddNodes, "nodes", {"key": "k", "topic": "t"}),
        (wire.AddDependencies, "dependencies", {"upstream": "a", "downstream": "b"}),
        (wire.ResolveRequest, "external", {"node": "a", "name": "b"}),
        (wire.SkipNodes, "nodes", "k"),
        (wire.ExpandNode, "nodes", {"key": "k", "topic": "t"}),
        (wire.CancelNodes, "nodes", "k"),
    ],
)
def test_what_a_call_is_about_holds_1_to_1000(model: type[BaseModel], field: str, element: Any) -> None:
    rest = {"node": "n"} if model is wire.ExpandNode else {}
    assert pointers(model, {**rest, field: []}, text=False) == [f"/{field}"]
    assert pointers(model, {**rest, field: [element] * 1_001}, text=False) == [f"/{field}"]
    model.model_validate({**rest, field: [element] * 1_000})


@pytest.mark.parametrize(
    ("model", "field", "element"),
    [
        (wire.DagSpec, "nodes", {"key": "k", "topic": "t"}),
        (wire.DagSpec, "dependencies", {"upstream": "a", "downstream": "b"}),
        (wire.SubDag, "dependencies", {"upstream": "a", "downstream": "b"}),
        (wire.AddNodes, "dependencies", {"upstream": "a", "downstream": "b"}),
        (wire.RetryDag, "nodes", "k"),
        (wire.RetryDag, "from", "k"),
        (wire.NodeSpec, "upstream", "u"),
        (wire.NodeSpec, "external", "u"),
    ],
)
def test_an_optional_list_holds_up_to_1000(model: type[BaseModel], field: str, element: Any) -> None:
    rest: dict[str, Any] = {
        wire.NodeSpec: {"key": "k", "topic": "t"},
        wire.SubDag: {"open": True},
        wire.AddNodes: {"nodes": [{"key": "k", "topic": "t"}]},
    }.get(model, {})
    for count in (0, 1_000):
        model.model_validate({**rest, field: [element] * count})
    assert pointers(model, {**rest, field: [element] * 1_001}, text=False) == [f"/{field}"]


def test_a_dag_may_begin_empty() -> None:
    assert wire.DagSpec.model_validate({}).nodes is None


def test_malformed_ids_and_tokens_are_answers_not_faults() -> None:
    for text in ("", "x" * 300, "\x00", "../..", "\U0001f600"):
        wire.AckItem(id=text, lease_token=text)
        wire.CancelRequest(ids=[text])
    assert pointers(wire.CancelRequest, {"ids": [7]}, text=False) == ["/ids/0"]


def test_dequeue_counts_are_bounded_together() -> None:
    two = [{"topic": "a", "count": 500}, {"topic": "b", "count": 501}]
    assert pointers(wire.DequeueRequest, {"topics": two}, text=False) == ["/topics"]
    for count in (0, -1, 1_001, 10**9, 1.0, True):
        body = {"topics": [{"topic": "a", "count": count}]}
        assert pointers(wire.DequeueRequest, body, text=True) == ["/topics/0/count"]
    for wait_s in (-1, 30.001, True):
        body = {"topics": [{"topic": "a"}], "wait_s": wait_s}
        assert pointers(wire.DequeueRequest, body, text=False) == ["/wait_s"]


def test_any_trigger_needs_an_upstream_in_its_call() -> None:
    assert pointers(wire.AddNodes, NEAR, text=False) == ["/nodes/0/trigger"]
    wire.AddNodes.model_validate({"nodes": [{**NEAR["nodes"][0], "upstream": ["a"]}]})
    wire.AddNodes.model_validate({**NEAR, "dependencies": [{"upstream": "a", "downstream": "b"}]})


@pytest.mark.parametrize("key", ["//pkg/tcpip:stack", "g++", "a" * 1_024, "\u00e9" * 512, " ", "\u200f"])
def test_node_keys_are_opaque(key: str) -> None:
    assert wire.NodeSpec(key=key, topic="t").key == key


@pytest.mark.parametrize("key", ["", "a" * 1_025, "\u00e9" * 513, "a\x7f", "a\x85", "a\n", "\x00"])
def test_node_keys_are_bounded_and_hold_no_control_characters(key: str) -> None:
    assert pointers(wire.NodeSpec, {"key": key, "topic": "t"}, text=False) == ["/key"]


def test_an_output_of_null_differs_from_none_given() -> None:
    given = wire.AckItem.model_validate({"id": "x", "lease_token": "y", "output": None})
    absent = wire.AckItem.model_validate({"id": "x", "lease_token": "y"})
    assert "output" in given.model_fields_set
    assert "output" not in absent.model_fields_set


def test_an_older_client_reads_a_newer_service() -> None:
    answer = {"items": [{"topic": "t", "ready": 1, "added_later": 2}], "next_cursor": None, "more": 3}
    assert wire.Page[wire.TopicStats].model_validate(answer).items[0].ready == 1


def test_pointers_escape_what_rfc_6901_says() -> None:
    assert wire.pointer_of(["items", 0, "a/b~c"]) == "/items/0/a~1b~0c"


def test_sizes_are_those_of_compact_utf8() -> None:
    assert wire.encoded_bytes({"a": "\u00e9"}) == len('{"a":"é"}'.encode())


def test_a_payload_may_hold_any_json() -> None:
    item = wire.Item.model_validate({"topic": "t", "payload": {"deep": [["\x00"]], "\x00": None}})
    assert item.payload == {"deep": [["\x00"]], "\x00": None}


def test_half_a_character_in_a_payload_is_refused() -> None:
    with pytest.raises(ValidationError):
        wire.Item.model_validate({"topic": "t", "payload": ["\ud800"]})


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ({"topic": "t", "prioritty": 1}, "there is no such field"),
        ({}, "it is missing"),
        ({"topic": "two words"}, "must be 1 to 128 letters, digits and . _ / -"),
        ({"topic": "t", "id": "7"}, "must be a UUIDv7"),
        ({"topic": "t", "ack_topic": "a:b:c"}, "must be a topic, or namespace:topic"),
        ({"topic": "t", "lease_s": 0}, "must be greater than or equal to 1"),
        ({"topic": "t", "delivery": "once"}, "must be 'at_least_once' or 'at_most_once'"),
        ({"topic": "t", "idempotency_key": "ü" * 513}, "must be 1 to 1024 bytes of UTF-8"),
    ],
)
def test_faults_are_told_in_words_not_in_the_validators_own(item: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        wire.Item.model_validate(item)
    (fault,) = wire.field_errors(caught.value.errors())
    assert fault.detail.startswith(said)
