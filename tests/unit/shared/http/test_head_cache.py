"""Heads that are known: what is taken for one, and what never becomes one."""

import pytest

from shared.admission.connection_priority import Urgency
from shared.http import head_cache
from shared.http.head_cache import KnownHeads, Plain
from shared.http.hot_path import Target, Verb


async def _serve(_call: object) -> tuple[int, object]:
    return 200, {}


PLAIN = Plain(Target("default", "enqueue", Verb(_serve, Urgency.ENQUEUE)), None, 100)
POST = b"POST /v1/namespaces/default/enqueue HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


def request(body: bytes, length: bytes | None = None, *, head: bytes = POST, more: bytes = b"") -> bytes:
    digits = str(len(body)).encode() if length is None else length
    return head + b"Content-Length: " + digits + b"\r\n" + more + b"\r\n" + body


@pytest.fixture
def heads() -> KnownHeads:
    """The head of `request` is known."""
    heads = KnownHeads()
    heads.learn(request(b"{}"), PLAIN, b"{}")
    return heads


@pytest.mark.parametrize("body", [b"{}", b"", b'{"a":1}', b"x" * 100, b"a\r\n\r\nb"])
def test_bodies_of_any_length_share_a_head(heads: KnownHeads, body: bytes) -> None:
    assert heads.find(request(body)) == (PLAIN, body)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        request(b"{}")[:-1],
        request(b"{}") + b"P",
        request(b"{}") * 2,
        b"\r\n" + request(b"{}"),
        request(b"x" * 101),
        request(b"{}", b"+2"),
        request(b"{}", b" 2"),
        request(b"{}", b"2 "),
        request(b"{}", b"2, 2"),
        request(b"{}", b"-2"),
        request(b"{}", b""),
        request(b"{}", b"0" * 9 + b"2"),
        request(b"{}", "\N{SUPERSCRIPT TWO}".encode()),
        request(b"{}", head=POST.replace(b"Host: x", b"Host: y")),
        request(b"{}", head=POST.replace(b"enqueue", b"dequeue")),
        request(b"{}", more=b"Transfer-Encoding: chunked\r\n"),
        request(b"{}", more=b"Content-Length: 2\r\n"),
        request(b"{}").replace(b"Content-Length", b"Content-length"),
    ],
)
def test_what_is_not_one_whole_request_with_that_head_goes_to_the_parser(heads: KnownHeads, data: bytes) -> None:
    assert heads.find(data) is None


@pytest.mark.parametrize(
    ("data", "body"),
    [
        (request(b"{}"), b"{"),
        (request(b"{}", more=b"content-length: 2\r\n"), b"{}"),
        (request(b"{}", more=b"X: content-length: 2\r\n"), b"{}"),
        (request(b"{}", more=b"X: y\n"), b"{}"),
        (request(b"{}", more=b"X: " + b"y" * 2_000 + b"\r\n"), b"{}"),
    ],
    ids=["framed otherwise", "two lengths", "named elsewhere", "bare line feed", "long"],
)
def test_a_head_that_leaves_a_doubt_is_not_learned(data: bytes, body: bytes) -> None:
    heads = KnownHeads()
    heads.learn(data, PLAIN, body)
    assert heads.find(data) is None


def test_a_head_that_came_before_is_whole_only_with_its_end_and_its_body(heads: KnownHeads) -> None:
    for body in (b"", b"{}"):
        whole = request(body)
        assert heads.find(whole) == heads.find(whole) == (PLAIN, body)
        assert heads.find(whole.partition(b"\r\n\r\n")[0]) is None
        assert heads.find(whole + b"P") is None
        assert heads.find(whole[:-1]) is None


def test_heads_with_their_lengths_are_bounded(heads: KnownHeads, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_cache, "WHOLE_MAX", 2)
    for length in (1, 2, 3, 1):
        assert heads.find(request(b"x" * length)) == (PLAIN, b"x" * length)
        assert len(heads._whole) <= 2


def test_heads_without_a_body_are_known_too() -> None:
    heads = KnownHeads()
    heads.learn(POST + b"\r\n", PLAIN, b"")
    assert heads.find(POST + b"\r\n") == (PLAIN, b"")
    assert heads.find(POST + b"\r\n{}") is None


def test_heads_are_bounded_and_those_of_single_things_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_cache, "HEADS_MAX", 2)
    heads = KnownHeads()
    some = [request(b"", head=POST.replace(b"Host: x", b"Host: %d" % n)) for n in range(3)]
    for data in some[:2]:
        heads.learn(data, PLAIN, b"")
    assert all(map(heads.find, some[:2]))
    heads.learn(some[2], PLAIN, b"")
    assert list(map(bool, map(heads.find, some))) == [False, False, True]
    heads.learn(some[0], PLAIN._replace(target=PLAIN.target._replace(of="a-dag")), b"")
    assert heads.find(some[0]) is None
