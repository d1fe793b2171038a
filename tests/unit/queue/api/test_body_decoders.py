"""The quick decoders of hot bodies take what the documented models take, and nothing else."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headgate import wire
from services.queue.api import body_decoders
from services.queue.model import NewItem, PlainItem
from services.queue.settings import QueueSettings
from shared.errors import ServiceError, TooDeep
from shared.http.edge import validate

SETTINGS = QueueSettings(shards="postgresql://x@127.0.0.1:1/n#1")
ID = "01890a5d-ac96-774b-bcce-b302099af000"
BACKOFFS = [{"base_s": 1}, {"base_s": 0.5, "factor": 3}, {"base_s": 1, "max_s": 5}]
ODD = st.sampled_from(
    [None, True, False, 0, 1, -1, 7.0, 1.5, "", "t", "7", [], {}, [1], {"a": 1}, 2**31, 2**70, 1e300, ID, "\u0000"]
) | st.sampled_from(BACKOFFS)
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

    assert taken(lambda: body_decoders.new_items(json.dumps(body).encode(), SETTINGS)) == documented


@given(
    st.lists(st.dictionaries(st.sampled_from(["id", "lease_token", "output", "x"]), ODD, max_size=4), max_size=3),
    st.booleans(),
)
def test_ack_bodies(items: list[dict[str, Any]], whole: bool) -> None:
    body = {"items": [{"id": "a", "lease_token": "b", **item} if whole else item for item in items]}
    documented = taken(lambda: validate(wire.AckRequest, body))

    assert taken(lambda: body_decoders.settled(json.dumps(body).encode(), SETTINGS)) == documented


@given(
    st.lists(st.dictionaries(st.sampled_from(["topic", "count", "x"]), ODD, max_size=3), max_size=3),
    st.dictionaries(st.sampled_from(["wait_s", "lease_s", "worker", "x"]), ODD, max_size=3),
)
def test_dequeue_bodies(topics: list[dict[str, Any]], more: dict[str, Any]) -> None:
    body = {"topics": [{"topic": "t", **topic} for topic in topics], **more}
    documented = taken(lambda: validate(wire.DequeueRequest, body))

    assert taken(lambda: body_decoders.demands(json.dumps(body).encode(), SETTINGS)) == documented


ELEMENTS = st.dictionaries(
    st.sampled_from(
        ["id", "lease_token", "output", "delay_s", "metadata", "error", "final", "costs_attempt", "x"]
    ),
    ODD,
    max_size=4,
).map(lambda d: {"id": "a", "lease_token": "b", **d})


@given(
    st.lists(st.just({"topic": "t"}), max_size=2),
    st.dictionaries(st.sampled_from(["acks", "nacks", "x"]), st.lists(ELEMENTS, max_size=2) | ODD, max_size=2)
    | ODD,
    st.dictionaries(st.sampled_from(["wait_s", "lease_s", "worker"]), ODD, max_size=2),
)
@example([], {"acks": [], "nacks": None}, {})
@example([], {"nacks": [{"id": "a", "lease_token": "b"}]}, {})
@example([{"topic": "t"}], {"acks": [{"id": "a", "lease_token": "b"}] * 1_001}, {})
@example([{"topic": "t"}], {"acks": [{"id": "a", "lease_token": "b"}]}, {"worker": "x" * 201})
@example([{"topic": "t"}], {"acks": [{"id": "a", "lease_token": "b"}]}, {"worker": "a\nb"})
@example([{"topic": "t"}], None, {"worker": "\u007f"})
def test_dequeue_bodies_that_settle(topics: list[dict[str, Any]], settle: Any, more: dict[str, Any]) -> None:
    body = {"topics": topics, "settle": settle, **more}
    documented = taken(lambda: validate(wire.DequeueRequest, body))

    assert taken(lambda: body_decoders.demands(json.dumps(body).encode(), SETTINGS)) == documented


def test_a_dequeue_that_settles_is_not_remembered() -> None:
    """What it settles is its own: the next call of equal bytes is judged for itself."""
    body = b'{"topics":[{"topic":"t"}],"settle":{"acks":[{"id":"a","lease_token":"b","output":1}]}}'
    first, second = (body_decoders.demands(body, SETTINGS) for _ in range(2))

    assert first is not second
    assert first.settle is not None and first.settle.acks is not None
    assert bytes(first.settle.acks[0].output) == b"1"


def test_a_named_workers_dequeue_is_judged_once() -> None:
    body = b'{"topics":[{"topic":"t","count":7}],"wait_s":20,"worker":"host-77"}'
    first, second = (body_decoders.demands(body, SETTINGS) for _ in range(2))

    assert first is second
    assert first.worker == "host-77"


@given(st.dictionaries(st.sampled_from(FIELDS), ODD, max_size=3))
@example({"id": "01890a5d-ac96-774b-bcce-b302099af000"})
def test_what_is_taken_means_the_same(fields: dict[str, Any]) -> None:
    body = {"items": [{"topic": "t", **fields}]}
    try:
        [documented] = validate(wire.EnqueueRequest, body).items
    except ServiceError:
        return
    [taken_in] = body_decoders.new_items(json.dumps(body).encode(), SETTINGS)
    item = taken_in
    if isinstance(taken_in, PlainItem):
        # A plain item leaves everything else as it is by default.
        item = NewItem(
            taken_in.topic,
            id=taken_in.id,
            payload=taken_in.payload,
            priority=taken_in.priority,
            lease_s=taken_in.lease_s,
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
    if item.backoff is None or documented.backoff is None:
        assert item.backoff == documented.backoff
    else:
        assert msgspec.to_builtins(item.backoff) == documented.backoff.model_dump()


@pytest.mark.parametrize("given", [{}, {"factor": 3}, {"max_s": 5}])
def test_what_a_backoff_leaves_out_has_its_documented_default(given: dict[str, float]) -> None:
    body = {"items": [{"topic": "t", "backoff": {"base_s": 1, **given}}]}
    [item] = body_decoders.new_items(json.dumps(body).encode(), SETTINGS)

    assert isinstance(item, NewItem)
    assert msgspec.to_builtins(item.backoff) == {"base_s": 1, "factor": 2, "max_s": 300, "jitter": 0.2, **given}


TEXTS = st.sampled_from([b'"t"', b'"topic"', b'""', b'"{[,:"', b'"\xc3\xa9"'])
WRONG = [b'"\xed\xa0\x80"', b'"\xff"', b'"\xc0\xaf"', b'"\x1e"', b'"\x7f"', b'"\n"', b'"a" "b"', b'"a",5']
ESCAPED = [rb'"\ud800"', rb'"\u0000"', rb'"\""', rb'"\x"', rb'"\u0061"']
OTHER = [
    b"5",
    b"null",
    b"1e999",
    b"NaN",
    b"01",
    b"[]",
    b"{}",
    b'["a"]',
    b'{"a":"b"}',
    b'{"a":1,"a":2}',
    b'[[["a"]]]',
]


def bodies(first: bytes, second: bytes, *more: bytes) -> st.SearchStrategy[bytes]:
    """Mostly bodies of items of two texts; some with members left out, doubled or odd, some with a wrong byte."""
    names = st.sampled_from([first, second, *more, rb"\u0069d"])
    odd = st.lists(st.tuples(names, TEXTS | st.sampled_from([*WRONG, *ESCAPED, *OTHER])), max_size=4)
    members = st.tuples(TEXTS, TEXTS).map(lambda texts: list(zip((first, second), texts, strict=True))) | odd
    item = members.map(lambda pairs: b"{%b}" % b",".join(b'"%b":%b' % pair for pair in pairs))
    ends = st.sampled_from([(b'{"items":[', b"]}")] * 4 + [(b'{"items":[],"items":[', b"]}"), (b"[", b"]")])
    body = st.tuples(ends, st.lists(item, max_size=4)).map(
        lambda both: both[0][0] + b",".join(both[1]) + both[0][1]
    )
    wrong = st.tuples(body, st.integers(0, 200), st.integers(0, 255)).map(
        lambda made: made[0][: made[1]] + bytes([made[2]]) + made[0][made[1] + 1 :]
    )
    return body | wrong


def outcome(read: Any) -> Any:
    """What is read, or how it is refused."""
    try:
        return [(type(item), msgspec.structs.astuple(item)) for item in read()]
    except ServiceError as error:
        return type(error), str(error), error.errors


@given(bodies(b"id", b"lease_token", b"output", b"x"))
@example(b'{"items":[{"id":"a","lease_token":"b","id":"a"}]}')
@example(b'{"items":[{"id":"a","lease_token":"b","output":5}]}')
@example(rb'{"items":[{"id":"a","lease_token":"\""}]}')
@example(rb'{"items":[{"id":"a","lease_token":"\ud800"}]}')
def test_bare_acks_are_judged_as_all_others(body: bytes) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(body_decoders, "_is_bare", lambda *_: False)
        slow = outcome(lambda: body_decoders.settled(body, SETTINGS))

    assert outcome(lambda: body_decoders.settled(body, SETTINGS)) == slow


@pytest.mark.parametrize("read", [body_decoders.new_items, body_decoders.settled, body_decoders.demands])
def test_bodies_too_deep_for_the_decoder_are_refused_in_words(read: Any) -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    for body in (deep, b'{"items":[{"topic":"t","payload":%b}]}' % deep, b'{"items":[{"output":%b}]}' % deep):
        with pytest.raises(TooDeep):
            read(body, SETTINGS)


@pytest.mark.parametrize("length", [0, 1001])
def test_batches_out_of_range(length: int) -> None:
    body = json.dumps({"items": [{"topic": "t"}] * length}).encode()

    assert not taken(lambda: body_decoders.new_items(body, SETTINGS))


def test_a_demand_sent_again_is_read_once_and_judged_again(monkeypatch: pytest.MonkeyPatch) -> None:
    body = b'{"topics":[{"topic":"again","count":3}],"wait_s":20}'
    first = body_decoders.demands(body, SETTINGS)
    assert body_decoders.demands(bytes(bytearray(body)), SETTINGS) is first
    with pytest.raises(ServiceError):
        body_decoders.demands(body, SETTINGS.model_copy(update={"wait_s_max": 10.0}))


def test_demands_kept_are_bounded_and_refused_or_long_ones_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_decoders, "_known_demands", {})
    monkeypatch.setattr(body_decoders, "KNOWN_DEMANDS_MAX", 2)
    for n in range(5):
        body_decoders.demands(b'{"topics":[{"topic":"t%d"}]}' % n, SETTINGS)
        assert len(body_decoders._known_demands) <= 2
    body_decoders._known_demands.clear()
    long = b'{"topics":[{"topic":"t"}]%s}' % (b" " * body_decoders.KNOWN_BYTES_MAX)
    body_decoders.demands(long, SETTINGS)
    for refused in (b'{"topics":[{"topic":"t"}],"wait_s":1e9}', b'{"topics":[{"topic":"?"}]}', b"{}"):
        with pytest.raises(ServiceError):
            body_decoders.demands(refused, SETTINGS)
    assert body_decoders._known_demands == {}
