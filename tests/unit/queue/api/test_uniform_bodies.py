"""What is read as a whole means what it means read element by element; all else is left to that."""

import json
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from services.queue.api import body_decoders, uniform_bodies
from services.queue.enqueue.simple_enqueue import plain_call
from services.queue.model import Even, PlainAcks
from services.queue.settings import QueueSettings
from shared.errors import ServiceError
from shared.fallback import Fallback
from shared.ids import new_ids

SETTINGS = QueueSettings(shards="postgresql://x@127.0.0.1:1/n#1")
SMALL = SETTINGS.model_copy(update={"batch_items_max": 3, "payload_bytes_max": 9})
TOKEN = "5b1e9b5e-1d5a-4f5e-8d5e-0123456789ab"
ID, NEXT_ID = "01890a5d-ac96-774b-bcce-b302099af000", "01890a5d-ac96-774b-bcce-b302099af001"
SIBLING_ID = "01890a5d-ac97-774b-bcce-b302099af000"

SPACES = st.sampled_from([b""] * 5 + [b" ", b"\n\t", b"\x0b", b"x"])
HEADS = st.sampled_from(
    [b'"topic":"t",'] * 4
    + [
        b"",
        b'"priority":3,"topic":"u",',
        b'"topic":"t","lease_s":5,',
        b'"topic":"t","lease_s":0,',
        b'"topic":"t","topic":"t",',
        b'"topic":"t","payload":"x",',
        b'"topic":"t","id":"%b",' % ID.encode(),
        b'"topic":"payload",',
        b'"topic":"?",',
    ]
)
TEXTS = st.sampled_from(
    [b"", b"a", b"1234567", b"12345678", b"\xc3\xa9", b"},{", b",", b":", b" "] * 3
    + [b'"', b'","', b'"},{"topic":"t","payload":"', b"\\", b'\\"', b"\\u0000", b"\x1e", b"\n", b"\x7f", b"\xff"]
    + [b"\xc3", b"\xa9", b"\xed\xa0\x80"]
)
IDS = st.sampled_from([ID, NEXT_ID] * 5 + [ID.upper(), ID[:-1], "a" * 36, f"{ID} {NEXT_ID}", ID[:-1] + "\u00e9"])
# Of an item: what stands between its payload and its id, and that id, mostly of one shard.
BEHIND = st.sampled_from([b'","id":"'] * 7 + [b'","id": "', b'","ID":"', b'","priority":1,"id":"'])
ITEM_IDS = st.sampled_from(
    [ID.encode(), SIBLING_ID.encode()] * 5 + [NEXT_ID.encode(), ID.upper().encode(), b"a" * 36]
)
TOKENS = st.sampled_from([TOKEN] * 9 + [TOKEN.upper(), ID, "-" * 36])


def ack(item_id: str, token: str = TOKEN) -> bytes:
    return b'{"id":"%b","lease_token":"%b"}' % (item_id.encode(), token.encode())


@st.composite
def repetitive(draw: Any, head: bytes, tail: bytes, texts: st.SearchStrategy[bytes]) -> bytes:
    """A body that repeats itself, now and then with something else, or a wrong byte, somewhere."""
    lead, trail, between, end = (draw(SPACES) for _ in range(4))
    elements = [lead + b"{" + head + text + tail + b"}" + trail for text in draw(st.lists(texts, max_size=4))]
    if elements and draw(st.integers(0, 4)) == 0:
        elements.insert(
            draw(st.integers(0, len(elements))), draw(st.sampled_from([b"{}", b'{"topic":"t"}', b"5"]))
        )
    body: bytes = b'{"items":[' + (b"," + between).join(elements) + b"]" + end + b"}"
    place = draw(st.integers(0, 4 * len(body)))
    return body[:place] + bytes([draw(st.integers(0, 255))]) + body[place + draw(st.integers(0, 1)) :]


def read(quick: Any, slow: Any, body: bytes) -> None:
    """Reads a body both ways: what the quick one takes, the slow one takes to mean the same."""
    with patch.object(uniform_bodies, "ALIKE_BYTES_MIN", 0):
        found = quick(body)
    if not isinstance(found, Fallback):
        assert slow(body) == found


@given(HEADS.flatmap(lambda head: repetitive(head + b'"payload":"', b'"', TEXTS)))
@example(b'{"items":[{"topic":"t","payload":"\xc3"},{"topic":"t","payload":"\xa9"}]}')
@example(b'{"items":[{"topic":"t","payload":"a\x1eb"}]}')
@example(b'{"items":[{"topic":"t","payload":"a"},{"topic":"u","payload":"b"}]}')
@example(b'{"items":[{"topic":"t","payload":"a"},{"topic":"t","payload":5}]}')
@example(b'{"items":[{"topic":"t","payload":"a"},{"topic":"t","payload":"b","priority":1}]}')
@example(b'{"items":[{"topic":"t","topic":"t","payload":"a"}]}')
@example(b'{"items":[{"topic":"t","payload":"a"}x,{"topic":"t","payload":"b"}]}')
@example(b'{"items":[{"topic":"t","payload":"a"},5]}')
@example(b'{"items":[{"topic":"t","payload":"}]}')
@example(b'{"items":[{"topic":"t","payload":"a\\"},{"topic":"t","payload":"b"}]}')
@example(b'{"items":[{"topic":"t","payload":"\\ud800"}]}')
def test_items_mean_the_same(body: bytes) -> None:
    def slowly(body: bytes) -> Any:
        return plain_call(body_decoders.new_items(body, SMALL))  # type: ignore[arg-type]

    read(lambda body: uniform_bodies.items(body, SMALL), slowly, body)


@given(
    HEADS.flatmap(
        lambda head: repetitive(head + b'"payload":"', b'"', st.tuples(TEXTS, BEHIND, ITEM_IDS).map(b"".join))
    )
)
@example(b'{"items":[{"topic":"t","payload":"a","id":"%b"},{"topic":"t","payload":"b"}]}' % ID.encode())
@example(b'{"items":[{"topic":"t","payload":"a"},{"topic":"t","payload":"b","id":"%b"}]}' % ID.encode())
@example(b'{"items":[{"topic":"t","payload":"a","id":"%b","id":"%b"}]}' % (ID.encode(), ID.encode()))
@example(
    b'{"items":[{"topic":"t","payload":"\xc3","id":"%b"},{"topic":"t","payload":"\xa9","id":"%b"}]}'
    % (ID.encode(), ID.encode())
)
def test_items_with_ids_by_their_caller_mean_the_same(body: bytes) -> None:
    def slowly(body: bytes) -> Any:
        return plain_call(body_decoders.new_items(body, SMALL))  # type: ignore[arg-type]

    read(lambda body: uniform_bodies.items(body, SMALL), slowly, body)


@given(
    TOKENS.flatmap(
        lambda token: repetitive(b'"id":"', b'","lease_token":"%b"' % token.encode(), IDS.map(str.encode))
    )
)
@example(b'{"items":[{"id":"%b %b","lease_token":"%b"}]}' % (ID.encode(), NEXT_ID.encode(), TOKEN.encode()))
@example(b'{"items":[%b]}' % b",".join([ack(ID), ack(ID, NEXT_ID), ack(ID)]))
@example(b'{"items":[%b]}' % b",".join([ack(ID), ack(ID + "0")]))
@example(b'{"items":[%bx,%b]}' % (ack(ID), ack(ID)))
def test_acks_mean_the_same(body: bytes) -> None:
    def slowly(body: bytes) -> Any:
        items = body_decoders.settled(body, SMALL)
        [token] = {item.lease_token for item in items}
        assert all(item.output == body_decoders.NO_OUTPUT for item in items)
        return PlainAcks([item.id for item in items], token)

    read(lambda body: uniform_bodies.acks(body, SMALL), slowly, body)


def test_names_that_are_no_ids_and_no_tokens_are_left_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uniform_bodies, "ALIKE_BYTES_MIN", 0)
    odd = "a" * 36
    for acks, is_taken in (
        ([ack(ID)], True),
        ([ack(odd)], False),
        ([ack(ID), ack(odd)], False),
        ([ack(ID, odd)], False),
    ):
        assert (
            not isinstance(uniform_bodies.acks(b'{"items":[%b]}' % b",".join(acks), SETTINGS), Fallback)
        ) == is_taken


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
@pytest.mark.parametrize("count", [50, 1_000])
def test_what_clients_send_is_read_as_a_whole(count: int, separators: tuple[str, str]) -> None:
    def body(items: list[dict[str, str]]) -> bytes:
        return json.dumps({"items": items}, separators=separators, ensure_ascii=False).encode()

    texts = [f"{n} \u20ac {'x' * n}" for n in range(count)]
    ids = new_ids(7, count)
    for call, given_ids in (
        ([{"topic": "t", "payload": text} for text in texts], None),
        ([{"topic": "t", "payload": text, "id": id_} for text, id_ in zip(texts, ids, strict=True)], ids),
    ):
        read = uniform_bodies.items(body(call), SETTINGS)
        assert not isinstance(read, Fallback) and read.ids == given_ids
        assert list(map(json.loads, read.parts[0].payloads.split("\x1e"))) == texts
    acks = uniform_bodies.acks(body([{"id": item_id, "lease_token": TOKEN} for item_id in ids]), SETTINGS)

    assert acks == (ids, TOKEN)


@pytest.mark.parametrize("many", [3, 4])
def test_calls_of_as_many_as_may_be_and_one_more(many: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uniform_bodies, "ALIKE_BYTES_MIN", 0)
    items = msgspec.json.encode({"items": [{"topic": "t", "payload": "x"}] * many})
    acks = msgspec.json.encode({"items": [{"id": ID, "lease_token": TOKEN}] * many})

    assert (not isinstance(uniform_bodies.items(items, SMALL), Fallback)) == (many == 3)
    assert (not isinstance(uniform_bodies.acks(acks, SMALL), Fallback)) == (many == 3)


@pytest.mark.parametrize("length", [7, 8])
def test_payloads_as_large_as_may_be_and_one_byte_more(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uniform_bodies, "ALIKE_BYTES_MIN", 0)
    items = [{"topic": "t", "payload": "x"}, {"topic": "t", "payload": "x" * length}]

    assert (not isinstance(uniform_bodies.items(msgspec.json.encode({"items": items}), SMALL), Fallback)) == (
        length == 7
    )


def test_what_nests_too_deep_is_refused_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uniform_bodies, "ALIKE_BYTES_MIN", 0)
    body = b'{"items":[{"topic":"t","payload":"x"}]}'
    for depth, is_taken in ((3, True), (2, False)):
        settings = SETTINGS.model_copy(update={"json_depth_max": depth})
        assert (not isinstance(uniform_bodies.items(body, settings), Fallback)) == is_taken
    with pytest.raises(ServiceError):
        body_decoders.new_items(body, settings)


def test_heads_kept_are_bounded_and_refused_or_long_ones_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uniform_bodies, "ALIKE_BYTES_MIN", 0)
    monkeypatch.setattr(uniform_bodies, "_known_heads", {})
    monkeypatch.setattr(uniform_bodies, "KNOWN_HEADS_MAX", 2)
    for n in range(5):
        assert uniform_bodies.items(b'{"items":[{"topic":"t%d","payload":"x"}]}' % n, SETTINGS)
        assert len(uniform_bodies._known_heads) <= 2
    uniform_bodies._known_heads.clear()
    long = b" " * uniform_bodies.HEAD_BYTES_MAX
    assert uniform_bodies.items(b'{"items":[{"topic":"t",%b"payload":"x"}]}' % long, SETTINGS)
    for refused in (b'"topic":"?"', b'"topic":"t","lease_s":0', b'"topic":"t","x":1', b'"topic":"t","topic":"t"'):
        assert uniform_bodies.items(b'{"items":[{%b,"payload":"x"}]}' % refused, SETTINGS) == Fallback("item")
    assert uniform_bodies._known_heads == {}


@pytest.mark.parametrize("count", [1, 3])
def test_results_of_one_status_read_as_those_of_each(count: int) -> None:
    even = Even(new_ids(7, count), "acked")

    assert msgspec.json.encode({"results": even.raw()}) == msgspec.json.encode({"results": even.each()})
