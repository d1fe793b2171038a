"""The quick decoders of hot bodies take what the documented models take, and nothing else."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import wire
from services.queue import hot
from services.queue.model import NewItem, PlainItem
from services.queue.settings import QueueSettings
from shared.errors import ServiceError
from shared.http import validate

SETTINGS = QueueSettings(shards="postgresql://x@127.0.0.1:1/n#1")
ID = "01890a5d-ac96-774b-bcce-b302099af000"
ODD = st.sampled_from(
    [None, True, False, 0, 1, -1, 7.0, 1.5, "", "t", "7", [], {}, [1], {"a": 1}, 2**31, 2**70, 1e300, ID, "\u0000"]
)
FIELDS = sorted(wire.Item.model_fields)
ITEMS = st.dictionaries(st.sampled_from([*FIELDS, "topic", "prioirty"]), ODD, max_size=4).map(
    lambda d: {"topic": "t", **d}
)


def taken(read: Any) -> bool:
    try:
        read()
    except ServiceError as error:
        assert error.status in (413, 422)
        return False
    return True


@given(st.lists(ITEMS, max_size=3))
def test_enqueue_bodies(items: list[dict[str, Any]]) -> None:
    body = {"items": items}
    documented = taken(lambda: validate(wire.EnqueueRequest, body))

    assert taken(lambda: hot.new_items(json.dumps(body).encode(), SETTINGS)) == documented


@given(
    st.lists(st.dictionaries(st.sampled_from(["id", "lease_token", "output", "x"]), ODD, max_size=4), max_size=3),
    st.booleans(),
)
def test_ack_bodies(items: list[dict[str, Any]], whole: bool) -> None:
    body = {"items": [{"id": "a", "lease_token": "b", **item} if whole else item for item in items]}
    documented = taken(lambda: validate(wire.AckRequest, body))

    assert taken(lambda: hot.settled(json.dumps(body).encode(), SETTINGS)) == documented


@given(
    st.lists(st.dictionaries(st.sampled_from(["topic", "count", "x"]), ODD, max_size=3), max_size=3),
    st.dictionaries(st.sampled_from(["wait_s", "lease_s", "worker", "x"]), ODD, max_size=3),
)
def test_dequeue_bodies(topics: list[dict[str, Any]], more: dict[str, Any]) -> None:
    body = {"topics": [{"topic": "t", **topic} for topic in topics], **more}
    documented = taken(lambda: validate(wire.DequeueRequest, body))

    assert taken(lambda: hot.demands(json.dumps(body).encode(), SETTINGS)) == documented


@given(st.dictionaries(st.sampled_from(FIELDS), ODD, max_size=3))
def test_what_is_taken_means_the_same(fields: dict[str, Any]) -> None:
    body = {"items": [{"topic": "t", **fields}]}
    try:
        [documented] = validate(wire.EnqueueRequest, body).items
    except ServiceError:
        return
    [taken_in] = hot.new_items(json.dumps(body).encode(), SETTINGS)
    item = taken_in
    if isinstance(taken_in, PlainItem):
        # A plain item leaves everything else as it is by default.
        item = NewItem(
            taken_in.topic, payload=taken_in.payload, priority=taken_in.priority, lease_s=taken_in.lease_s
        )

    for name in (
        "topic",
        "id",
        "priority",
        "lease_s",
        "delay_s",
        "ttl_s",
        "disabled",
        "delivery",
        "max_attempts",
        "affinity",
    ):
        assert getattr(item, name) == getattr(documented, name), name
    for name in ("payload", "metadata", "inputs", "ack_context"):
        assert json.loads(bytes(getattr(item, name))) == getattr(documented, name), name


@pytest.mark.parametrize("length", [0, 1001])
def test_batches_out_of_range(length: int) -> None:
    body = json.dumps({"items": [{"topic": "t"}] * length}).encode()

    assert not taken(lambda: hot.new_items(body, SETTINGS))


def test_a_demand_sent_again_is_read_once_and_judged_again(monkeypatch: pytest.MonkeyPatch) -> None:
    body = b'{"topics":[{"topic":"again","count":3}],"wait_s":20}'
    first = hot.demands(body, SETTINGS)
    assert hot.demands(bytes(bytearray(body)), SETTINGS) is first
    with pytest.raises(ServiceError):
        hot.demands(body, SETTINGS.model_copy(update={"wait_s_max": 10.0}))


def test_demands_kept_are_bounded_and_refused_or_long_ones_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hot, "_known_demands", {})
    monkeypatch.setattr(hot, "KNOWN_DEMANDS_MAX", 2)
    for n in range(5):
        hot.demands(b'{"topics":[{"topic":"t%d"}]}' % n, SETTINGS)
        assert len(hot._known_demands) <= 2
    hot._known_demands.clear()
    long = b'{"topics":[{"topic":"t"}]%s}' % (b" " * hot.KNOWN_BYTES_MAX)
    hot.demands(long, SETTINGS)
    for refused in (b'{"topics":[{"topic":"t"}],"wait_s":1e9}', b'{"topics":[{"topic":"?"}]}', b"{}"):
        with pytest.raises(ServiceError):
            hot.demands(refused, SETTINGS)
    assert hot._known_demands == {}
