"""The HTTP/1.1 transport against servers that do what servers do: chunks, hang-ups, early closes, silence."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable

import httpx
import pytest

from headgate._http.http1 import IDLE_S_MAX, Http1Transport
from headgate._http.messages import message_of

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class Server:
    """Sends a scripted answer to each request, in pieces; None hangs up. Remembers what came, by connection."""

    def __init__(self, *answers: list[bytes] | None) -> None:
        self.answers = list(answers)
        self.requests: list[bytes] = []
        self.connections = 0
        self.gone = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
                self.requests.append(head + await reader.readexactly(length))
                answer = self.answers.pop(0)
                if answer is None:
                    break
                for piece in answer:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)
                if answer == []:
                    await reader.read()
                    break
                whole = b"".join(answer).lower()
                if b"connection: close" in whole or (b"length" not in whole and b"chunked" not in whole):
                    break
        self.gone.set()
        writer.close()


@contextlib.asynccontextmanager
async def serving(server: Server) -> AsyncIterator[Callable[..., httpx.Request]]:
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]

    def request(body: bytes = b"{}", read_s: float = 5.0, **headers: str) -> httpx.Request:
        return httpx.Request(
            "POST",
            f"http://127.0.0.1:{port}/v1/x?y=z",
            content=body,
            headers=headers,
            extensions={"timeout": {"connect": 5.0, "read": read_s, "pool": 5.0}},
        )

    try:
        yield request
    finally:
        listener.close()


async def test_calls_share_a_connection() -> None:
    server = Server([OK], [OK], [OK])
    async with serving(server) as request, Http1Transport() as transport:
        for _ in range(3):
            response = await transport.handle_async_request(request(b'{"a":1}'))
            assert (response.status_code, response.content) == (200, b"ok")
    assert server.connections == 1
    assert server.requests[0].startswith(b"POST /v1/x?y=z HTTP/1.1\r\n")
    assert server.requests[0].endswith(b'\r\n\r\n{"a":1}')


@pytest.mark.parametrize(
    "answer",
    [
        [b"HTTP/1.1 200 OK\r\ncontent-le", b"ngth: 2\r\n\r", b"\no", b"k"],
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\no\r\n1;x=y\r\nk\r\n0\r\n\r\n"],
        [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", b"2\r", b"\nok\r\n0\r\nt: 1\r\n", b"\r\n"],
        [b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"],
    ],
)
async def test_an_answer_in_any_pieces_is_whole_and_the_connection_stays(answer: list[bytes]) -> None:
    server = Server(answer, [OK])
    async with serving(server) as request, Http1Transport() as transport:
        for _ in range(2):
            assert (await transport.handle_async_request(request())).content == b"ok"
    assert server.connections == 1


@pytest.mark.parametrize(
    "answer",
    [
        [b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nConnection: close\r\n\r\nok"],
        [b"HTTP/1.0 200 OK\r\n\r\nok"],
        [b"HTTP/1.1 200 OK\r\n\r\no", b"k"],
    ],
)
async def test_a_connection_that_the_server_ends_is_not_used_again(answer: list[bytes]) -> None:
    server = Server(answer, [OK])
    async with serving(server) as request, Http1Transport() as transport:
        for _ in range(2):
            assert (await transport.handle_async_request(request())).content == b"ok"
    assert server.connections == 2


async def test_204_has_no_body() -> None:
    server = Server([b"HTTP/1.1 204 No Content\r\n\r\n"])
    async with serving(server) as request, Http1Transport() as transport:
        assert (await transport.handle_async_request(request())).content == b""


@pytest.mark.parametrize(
    "answer",
    [
        [b"SSH-2.0-OpenSSH\r\n\r\n"],
        [b"HTTP/1.1 abc OK\r\n\r\n"],
        [b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n"],
        [b"HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\n"],
        [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 0\r\n\r\nzz\r\n"],
        [b"HTTP/1.1 200 OK\r\nx: " + b"y" * 70_000],
    ],
)
async def test_what_is_not_http_is_a_protocol_error(answer: list[bytes]) -> None:
    async with serving(Server(answer)) as request, Http1Transport() as transport:
        with pytest.raises(httpx.RemoteProtocolError):
            await transport.handle_async_request(request())


@pytest.mark.parametrize(
    "answer", [None, [b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 9\r\n\r\nok"]]
)
async def test_a_hang_up_before_the_end_is_a_read_error(answer: list[bytes] | None) -> None:
    async with serving(Server(answer)) as request, Http1Transport() as transport:
        with pytest.raises(httpx.ReadError):
            await transport.handle_async_request(request())


async def test_silence_times_out_and_its_connection_is_dropped() -> None:
    server = Server([], [OK])
    async with serving(server) as request, Http1Transport() as transport:
        with pytest.raises(httpx.ReadTimeout):
            await transport.handle_async_request(request(read_s=0.01))
        await asyncio.wait_for(server.gone.wait(), 5)
        assert (await transport.handle_async_request(request())).content == b"ok"
    assert server.connections == 2


async def test_a_cancelled_call_hangs_up_so_that_the_service_can_notice() -> None:
    server = Server([])
    async with serving(server) as request, Http1Transport() as transport:
        call = asyncio.create_task(transport.handle_async_request(request()))
        while not server.requests:
            await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.wait_for(server.gone.wait(), 5)


async def test_a_refused_connection_is_a_connect_error() -> None:
    async with serving(Server()) as request:
        refused = request()
    async with Http1Transport() as transport:
        with pytest.raises(httpx.ConnectError):
            await transport.handle_async_request(refused)


async def test_a_connection_idle_too_long_is_replaced() -> None:
    server = Server([OK], [OK])
    async with serving(server) as request, Http1Transport() as transport:
        await transport.handle_async_request(request())
        (pool,) = transport._pools.values()
        (idle,) = next(iter(pool.idle.values()))
        idle.idle_since -= IDLE_S_MAX
        await transport.handle_async_request(request())
    assert server.connections == 2


async def test_no_more_connections_than_allowed() -> None:
    server = Server(*[[OK]] * 6)
    async with serving(server) as request, Http1Transport(connections_max=2) as transport:
        await asyncio.gather(*(transport.handle_async_request(request()) for _ in range(6)))
    assert server.connections <= 2


async def test_calls_that_wait_do_not_hold_up_others() -> None:
    """A worker of many topics asks for each of them: its leases ran out behind that."""
    server = Server([], [OK], [OK])
    async with serving(server) as request, Http1Transport(connections_max=1) as transport:
        message = message_of(request(), b"{}")
        waiting = asyncio.create_task(transport.exchange(message._replace(waits=True)))
        while not server.requests:
            await asyncio.sleep(0)
        for _ in range(2):
            assert (await transport.handle_async_request(request())).content == b"ok"
        assert not waiting.done()
        waiting.cancel()


async def test_calls_that_wait_leave_files_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker of very many topics had all the files that it may open in calls that wait: it could not extend."""
    monkeypatch.setattr("resource.getrlimit", lambda _: (2, 2))
    server = Server([], [OK], [OK])
    async with serving(server) as request, Http1Transport() as transport:
        message = message_of(request(), b"{}")._replace(waits=True)
        waiting = asyncio.create_task(transport.exchange(message))
        while not server.requests:
            await asyncio.sleep(0)
        behind = asyncio.create_task(transport.exchange(message))
        assert (await transport.handle_async_request(request())).content == b"ok"
        assert len(server.requests) == 2, "one waits, one was answered, and one is still to come"
        waiting.cancel()
        assert (await behind)[2] == b"ok"


async def test_a_full_pool_times_out() -> None:
    server = Server([])
    async with serving(server) as request, Http1Transport(connections_max=1) as transport:
        first = asyncio.create_task(transport.handle_async_request(request()))
        while not server.requests:
            await asyncio.sleep(0)
        waiting = request()
        waiting.extensions["timeout"]["pool"] = 0.01
        with pytest.raises(httpx.PoolTimeout):
            await transport.handle_async_request(waiting)
        first.cancel()


async def test_a_header_cannot_smuggle_another() -> None:
    async with Http1Transport() as transport:
        with pytest.raises(httpx.LocalProtocolError):
            await transport.handle_async_request(
                httpx.Request("GET", "http://127.0.0.1:1/", headers=[(b"x", b"a\r\ny: b")])
            )


def test_one_transport_serves_event_loops_one_after_the_other() -> None:
    transport = Http1Transport()

    async def once() -> bytes:
        async with serving(Server([OK])) as request:
            return (await transport.handle_async_request(request())).content

    assert [asyncio.run(once()), asyncio.run(once())] == [b"ok", b"ok"]


async def test_two_living_loops_use_one_transport_and_leak_no_connection() -> None:
    """Each call of one loop threw the other's connection away without closing it."""
    calls = 5
    server = Server(*[[OK]] * (2 * calls))
    other = asyncio.new_event_loop()
    thread = threading.Thread(target=other.run_forever, daemon=True)
    thread.start()
    transport = Http1Transport()
    async with serving(server) as request:
        for _ in range(calls):
            await transport.handle_async_request(request())
            theirs = asyncio.run_coroutine_threadsafe(transport.handle_async_request(request()), other)
            await asyncio.wrap_future(theirs)
        assert server.connections == 2
        kept = [idle for pool in transport._pools.values() for line in pool.idle.values() for idle in line]
        assert len(kept) == 2
        await transport.aclose()
        async with asyncio.timeout(5):
            while not all(idle._transport is not None and idle._transport.is_closing() for idle in kept):
                await asyncio.sleep(0.001)
    other.call_soon_threadsafe(other.stop)
    await asyncio.to_thread(thread.join, 5)
    other.close()


async def test_what_a_loop_left_that_has_ended_is_dropped() -> None:
    server = Server([OK], [OK])
    transport = Http1Transport()
    async with serving(server) as request:
        await asyncio.to_thread(lambda: asyncio.run(transport.handle_async_request(request())))
        await transport.handle_async_request(request())
        assert list(transport._pools) == [asyncio.get_running_loop()]
        await transport.aclose()
    assert transport._pools == {}
