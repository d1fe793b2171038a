"""The blocking HTTP/1.1 transport against servers that do what servers do; `test_http1` is for coroutines."""

import asyncio
import os
from collections.abc import Callable

import httpx
import pytest

from headgate._http.blocking_http1 import BlockingHttp1Transport
from headgate._http.messages import IDLE_S_MAX
from tests.unit.headgate.http.test_http1 import OK, Server, serving


async def call(transport: BlockingHttp1Transport, request: httpx.Request) -> httpx.Response:
    return await asyncio.to_thread(transport.handle_request, request)


async def test_calls_one_after_another_share_a_connection() -> None:
    server = Server([OK], [OK], [OK])
    with BlockingHttp1Transport() as transport:
        async with serving(server) as request:
            for number in range(3):
                answer = await call(transport, request(b"%d" % number, **{"x-y": "z"}))
                assert (answer.status_code, answer.content) == (200, b"ok")
    assert server.connections == 1
    assert server.requests[1].startswith(b"POST /v1/x?y=z HTTP/1.1\r\n")
    assert b"x-y: z\r\n" in server.requests[1].lower() and server.requests[1].endswith(b"\r\n\r\n1")


@pytest.mark.parametrize(
    "answer",
    [
        [OK[:7], OK[7:30], OK[30:]],
        [bytes([byte]) for byte in OK],
        [b"HTTP/1.1 100 Continue\r\n\r\n" + OK],
        [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\no\r\n", b"1;x=y\r\nk\r\n0\r\na: b\r\n\r\n"],
    ],
)
async def test_an_answer_in_any_pieces_is_whole_and_the_connection_stays(answer: list[bytes]) -> None:
    server = Server(answer, [OK])
    with BlockingHttp1Transport() as transport:
        async with serving(server) as request:
            assert (await call(transport, request())).content == b"ok"
            assert (await call(transport, request())).content == b"ok"
    assert server.connections == 1


@pytest.mark.parametrize(
    "answer",
    [
        [b"HTTP/1.1 200 OK\r\n\r\nok"],
        [b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok"],
        [b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok"],
        [OK + b"HTTP/1.1 200 OK\r\n"],
    ],
)
async def test_a_connection_that_the_server_ends_or_misuses_is_not_used_again(answer: list[bytes]) -> None:
    server = Server(answer, [OK])
    with BlockingHttp1Transport() as transport:
        async with serving(server) as request:
            assert (await call(transport, request())).content == b"ok"
            assert (await call(transport, request())).content == b"ok"
    assert server.connections == 2


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ([b"SSH-2.0-OpenSSH\r\n\r\n"], httpx.RemoteProtocolError),
        ([b"HTTP/1.1 200 OK\r\ncontent-length: -2\r\n\r\nok"], httpx.RemoteProtocolError),
        ([b"HTTP/1.1\r\n\r\n"], httpx.RemoteProtocolError),
        ([b"x" * 70_000], httpx.RemoteProtocolError),
        (None, httpx.ReadError),
        ([b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\nconnection: close\r\n\r\nok"], httpx.ReadError),
    ],
)
async def test_what_is_no_whole_answer_is_an_error(answer: list[bytes] | None, error: type[Exception]) -> None:
    with BlockingHttp1Transport() as transport:
        async with serving(Server(answer)) as request:
            with pytest.raises(error):
                await call(transport, request())


async def test_silence_times_out_and_its_connection_is_dropped() -> None:
    server = Server([], [OK])
    with BlockingHttp1Transport() as transport:
        async with serving(server) as request:
            with pytest.raises(httpx.ReadTimeout):
                await call(transport, request(read_s=0.01))
            await asyncio.wait_for(server.gone.wait(), 5)
            assert (await call(transport, request())).content == b"ok"
    assert server.connections == 2


async def test_a_refused_connection_is_a_connect_error() -> None:
    async with serving(Server()) as request:
        gone = request()
    with BlockingHttp1Transport() as transport, pytest.raises(httpx.ConnectError):
        await call(transport, gone)


@pytest.mark.parametrize("idle", ["too long", "hung up"])
async def test_an_idle_connection_that_may_be_gone_is_replaced(idle: str) -> None:
    server = Server([OK], [OK])
    with BlockingHttp1Transport() as transport:
        async with serving(server) as request:
            await call(transport, request())
            [[kept]] = transport._idle.values()
            if idle == "too long":
                kept.idle_since -= IDLE_S_MAX
            else:
                kept._socket.shutdown(0)
            assert (await call(transport, request())).content == b"ok"
    assert server.connections == 2


async def test_threads_have_connections_of_their_own() -> None:
    server = Server(*[[OK]] * 40)
    with BlockingHttp1Transport() as transport:
        async with serving(server) as request:
            found = await asyncio.gather(*(call(transport, request()) for _ in range(40)))
    assert [answer.content for answer in found] == [b"ok"] * 40
    assert 1 <= server.connections <= 40


async def test_a_child_of_a_fork_leaves_its_parents_connections_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server([OK], [OK], [OK])
    with BlockingHttp1Transport() as transport:
        async with serving(server) as request:
            await call(transport, request())
            monkeypatch.setattr(os, "getpid", parent := _other(os.getpid()))
            await call(transport, request())
            assert server.connections == 2
            assert parent() == transport._process


def _other(process: int) -> Callable[[], int]:
    return lambda: process + 1


async def test_a_header_cannot_smuggle_another() -> None:
    with BlockingHttp1Transport() as transport:
        async with serving(Server()) as request:
            with pytest.raises(httpx.LocalProtocolError):
                await call(transport, request(**{"x-y": "z\r\nx-evil: 1"}))
