"""What holds a connection: requests, while they are read and served; and nothing else for longer than stated."""

import asyncio
import socket
from typing import Any

import httptools
import pytest

from tests.support.served import END_S, ENQUEUE, GET, ITEM, SLOW, Served, Talk, status

QUIET = {"head_s_max": 0.3, "body_s_max": 0.3}


async def _until(is_so: Any) -> None:
    async with asyncio.timeout(END_S):
        while not is_so():
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("line_ends", [b"\r\n", b"\n", b"\r\n\r\n\r\n"])
async def test_line_ends_behind_an_answer_are_no_request(talk_on: Talk, line_ends: bytes) -> None:
    talk_on.send("enqueue", ITEM)
    assert (await talk_on.answer())[0] == 201
    talk_on.writer.write(line_ends)
    assert await talk_on.is_closed()


async def test_line_ends_that_keep_coming_keep_no_connection(talk_on: Talk) -> None:
    talk_on.writer.write(GET + b"\r\n")
    assert (await talk_on.answer())[0] == 200
    closed = asyncio.create_task(talk_on.is_closed())
    while not closed.done():
        talk_on.writer.write(b"\r\n")
        await asyncio.wait([closed], timeout=0.05)
    assert isinstance(closed.exception(), ConnectionError) or closed.result()


@pytest.mark.parametrize("served", [QUIET], indirect=True)
async def test_line_ends_are_no_first_request(talk_on: Talk) -> None:
    talk_on.writer.write(b"\r\n")
    assert status(await talk_on.rest()) == 408


async def test_a_body_that_ends_behind_its_answer_leaves_an_idle_connection(talk_on: Talk) -> None:
    head = (
        b"POST /nowhere HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n"
    )
    talk_on.writer.write(head)
    assert (await talk_on.answer())[0] == 404
    talk_on.writer.write(b"{}")
    assert await talk_on.is_closed()


@pytest.mark.parametrize("fields", ["", "x: y\r\nconnection: keep-alive\r\norigin: http://localhost\r\n"])
@pytest.mark.parametrize("method", ["CONNECT", "GET"])
async def test_what_asks_to_speak_otherwise_is_answered_and_may_rest_no_longer(
    talk_on: Talk, method: str, fields: str
) -> None:
    upgrade = "connection: upgrade\r\nupgrade: h2c\r\n" if method == "GET" else ""
    target = "/livez" if method == "GET" else "localhost:80"
    talk_on.writer.write(f"{method} {target} HTTP/1.1\r\nhost: localhost\r\n{upgrade}{fields}\r\n".encode())
    assert (await talk_on.answer())[0] in (200, 400, 404, 405)
    talk_on.writer.write(b"\x00\x01 whatever")
    assert status(await talk_on.rest()) in (0, 400)


@pytest.mark.parametrize("served", [QUIET], indirect=True)
async def test_each_request_that_is_sent_ahead_has_a_time_of_its_own(talk_on: Talk) -> None:
    """A client that always has a part of the next request in its packets is not slow."""
    request = GET + b"\r\n"
    talk_on.writer.write(request[:5])
    begun = asyncio.get_running_loop().time()
    while asyncio.get_running_loop().time() - begun < 3 * QUIET["head_s_max"]:
        talk_on.writer.write(request[5:] + request[:5])
        assert (await talk_on.answer())[0] == 200


@pytest.mark.parametrize("served", [QUIET], indirect=True)
async def test_a_request_is_not_slow_while_the_service_does_not_read(talk_on: Talk) -> None:
    talk_on.send("dequeue", '{"topics":[{"topic":"none"}],"wait_s":0.8}')
    head, _, body = (ENQUEUE + b"content-length: %d\r\n\r\n" % len(ITEM)).partition(b"\r\n\r\n")
    talk_on.writer.write(head + b"\r\n\r\n" + body)
    await asyncio.sleep(0.05)
    talk_on.writer.write(ITEM.encode())
    assert [(await talk_on.answer())[0] for _ in range(2)] == [200, 201]


@pytest.mark.parametrize(
    "second",
    [b"\x16\x03\x01 no HTTP\r\n\r\n", b"GET /livez HTTP/1.1\r\nhost", b"GET /" + b"a" * 9_000 + b" HTTP/1.1\r\n"],
    ids=["malformed", "slow", "too long"],
)
@pytest.mark.parametrize("served", [QUIET], indirect=True)
async def test_a_refusal_is_never_taken_for_the_answer_to_an_earlier_request(talk_on: Talk, second: bytes) -> None:
    talk_on.send("dequeue", '{"topics":[{"topic":"none"}],"wait_s":20}')
    await asyncio.sleep(0.05)
    talk_on.writer.write(second)
    assert await talk_on.is_closed()


@pytest.mark.parametrize("served", [{"pipelined_max": 3}], indirect=True)
async def test_requests_sent_ahead_are_few(port: int) -> None:
    for ahead, answered in ((3, 4), (4, 0)):
        talk_on = await Talk.open(port)
        talk_on.send("dequeue", '{"topics":[{"topic":"none"}],"wait_s":0.3}')
        await asyncio.sleep(0.05)
        talk_on.writer.write((GET + b"\r\n") * ahead)
        if answered:
            assert [(await talk_on.answer())[0] for _ in range(answered)] == [200] * answered
        else:
            assert await talk_on.is_closed()
        talk_on.writer.close()


async def test_connections_that_were_there_before_the_limit_go_on(talk_on: Talk, served: Served) -> None:
    talk_on.send("enqueue", ITEM)
    assert (await talk_on.answer())[0] == 201
    others = [await asyncio.open_connection("127.0.0.1", served.port) for _ in range(25)]
    await _until(lambda: len(served.server.server_state.connections) >= 26)
    for fields in ("", "x: y\r\n"):
        talk_on.send("enqueue", ITEM, fields=fields)
        assert (await talk_on.answer())[0] == 201
    one_more = await Talk.open(served.port)
    one_more.send("enqueue", ITEM)
    code, head, body = await one_more.answer()
    assert (code, body["code"], body["outcome"]) == (503, "overloaded", "none")
    assert b"retry-after: 1\r\n" in head
    one_more.writer.close()
    for _, writer in others:
        writer.close()


@pytest.mark.parametrize("close", [b"", b"connection: close\r\n"], ids=["rests", "closes"])
@pytest.mark.parametrize("served", [SLOW], indirect=True)
async def test_who_does_not_take_what_he_asked_for_is_cut(served: Served, close: bytes) -> None:
    """Also where what is left fits into the server's own buffer, which would not make it wait."""
    connections = served.server.server_state.connections
    with socket.socket() as mute:
        mute.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        mute.connect(("127.0.0.1", served.port))
        mute.setblocking(False)
        await _until(lambda: len(connections) == 1)
        [connection] = connections
        connection.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        loop = asyncio.get_running_loop()
        while not connection.transport.get_write_buffer_size():
            await loop.sock_sendall(mute, GET + b"\r\n")
            await asyncio.sleep(0.01)
        assert connection.transport.get_write_buffer_size() < 64 * 1024
        if close:
            await loop.sock_sendall(mute, GET + close + b"\r\n")
        await _until(lambda: not connections)


KIB = 1024
# Over the framework, and below it.
WAYS = pytest.mark.parametrize("fields", [b"", b"expect: nothing\r\n"], ids=["below ASGI", "over ASGI"])


def begin_of_large(size: int, fields: bytes = b"") -> bytes:
    head = ENQUEUE + fields + b"content-length: %d\r\n\r\n" % (size + 1)
    return head + b" " * size


@WAYS
@pytest.mark.parametrize("served", [{"body_bytes_max": 1024 * KIB, "tokens": True}], indirect=True)
async def test_a_large_body_of_an_unknown_caller_is_not_read_to_its_end(talk_on: Talk, fields: bytes) -> None:
    talk_on.writer.write(begin_of_large(100 * KIB, fields)[: -40 * KIB])
    await talk_on.writer.drain()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await talk_on.answer()
    talk_on.writer.write(b" " * 10 * KIB)
    code, head, body = await talk_on.answer()
    assert (code, body["code"], body["outcome"]) == (401, "unauthorized", "none")
    assert b"www-authenticate: bearer\r\n" in head
    assert await talk_on.is_closed()


LITTLE = {"body_bytes_max": 1024 * KIB, "bodies_bytes_max": 400 * KIB}


@WAYS
@pytest.mark.parametrize("served", [LITTLE], indirect=True)
async def test_large_bodies_are_held_as_far_as_there_is_room_and_small_ones_are_served(
    port: int, talk_on: Talk, fields: bytes
) -> None:
    first, second = await Talk.open(port), await Talk.open(port)
    first.writer.write(begin_of_large(300 * KIB, fields))
    await first.writer.drain()
    await asyncio.sleep(0.1)
    second.writer.write(begin_of_large(300 * KIB, fields))
    code, _, body = await second.answer()
    assert (code, body["code"], body["outcome"]) == (503, "overloaded", "none")
    talk_on.send("enqueue", ITEM)
    assert (await talk_on.answer())[0] == 201
    first.writer.write(b"x")  # now it is whole, and no JSON
    assert (await first.answer())[0] == 400
    third = await Talk.open(port)
    third.writer.write(begin_of_large(300 * KIB, fields) + b"x")
    assert (await third.answer())[0] == 400, "what was held is let go"
    fourth = await Talk.open(port)
    fourth.writer.write(begin_of_large(300 * KIB, fields))
    await fourth.writer.drain()
    await asyncio.sleep(0.1)
    fourth.writer.transport.abort()
    await asyncio.sleep(0.1)
    third.writer.write(begin_of_large(300 * KIB, fields) + b"x")
    assert (await third.answer())[0] == 400, "also when its client hangs up"
    for one in (first, second, third):
        one.writer.close()


async def _send_on(writer: asyncio.StreamWriter, parts: int) -> None:
    """Further parts of a body, one by one, as of a client that looks for no answer yet."""
    for _ in range(parts):
        writer.write(b" " * 64 * KIB)
        await writer.drain()
        await asyncio.sleep(0.005)


@WAYS
@pytest.mark.parametrize(
    ("served", "expected"),
    [({**LITTLE, "bodies_bytes_max": 200 * KIB}, 503), ({"body_bytes_max": 1024 * KIB, "tokens": True}, 401)],
    indirect=["served"],
    ids=["no room", "unknown"],
)
async def test_who_reads_only_behind_his_body_gets_the_refusal(
    talk_on: Talk, fields: bytes, expected: int
) -> None:
    """A connection that is closed while bytes come is reset, and the answer with it."""
    talk_on.writer.write(begin_of_large(900 * KIB, fields)[: -640 * KIB])
    await _send_on(talk_on.writer, 10)
    code, head, _ = await talk_on.answer()
    assert code == expected
    assert b"connection: close\r\n" in head
    assert await talk_on.is_closed()


@pytest.mark.parametrize("bad", [b"transfer-encoding: chunked\r\n", b"x: " + b"y" * 17_000 + b"\r\n"])
@pytest.mark.parametrize("served", [{"body_bytes_max": 1024 * KIB}], indirect=True)
async def test_a_bad_head_is_told_to_who_sends_a_body_behind_it(talk_on: Talk, bad: bytes) -> None:
    talk_on.writer.write(begin_of_large(1, bad))
    await _send_on(talk_on.writer, 3)
    code, _, _ = await talk_on.answer()
    assert code in (400, 431)


@WAYS
@pytest.mark.parametrize("served", [{**LITTLE, "bodies_bytes_max": 200 * KIB}], indirect=True)
async def test_of_a_body_that_was_refused_nothing_is_held(served: Served, talk_on: Talk, fields: bytes) -> None:
    refused = await Talk.open(served.port)
    refused.writer.write(begin_of_large(900 * KIB, fields)[: -640 * KIB])
    assert (await refused.answer())[0] == 503
    talk_on.writer.write(begin_of_large(150 * KIB, fields) + b"x")
    assert (await talk_on.answer())[0] == 400, "there is room, though the other has not hung up"
    assert len(served.server.server_state.connections) == 2
    assert not served.server.server_state.tasks
    refused.writer.close()
    await _until(lambda: len(served.server.server_state.connections) == 1)


@pytest.mark.parametrize("served", [{**LITTLE, "bodies_bytes_max": 200 * KIB}], indirect=True)
async def test_who_sends_on_without_end_is_cut(served: Served, talk_on: Talk) -> None:
    talk_on.writer.write(begin_of_large(900 * KIB)[: -640 * KIB])
    with pytest.raises(ConnectionError):
        await _send_on(talk_on.writer, 40)
    await _until(lambda: not served.server.server_state.connections)


@pytest.mark.parametrize("served", [{**LITTLE, **SLOW, "bodies_bytes_max": 200 * KIB}], indirect=True)
async def test_who_does_not_hang_up_after_a_refusal_is_cut(served: Served, talk_on: Talk) -> None:
    talk_on.writer.write(begin_of_large(900 * KIB)[: -640 * KIB])
    assert (await talk_on.answer())[0] == 503
    await _until(lambda: not served.server.server_state.connections)


@pytest.mark.parametrize("served", [{"bodies_bytes_max": 200 * KIB}], indirect=True)
async def test_a_body_that_was_answered_by_its_length_takes_no_room(talk_on: Talk) -> None:
    talk_on.writer.write(begin_of_large(900 * KIB, b"x: y\r\n")[: -640 * KIB])
    assert (await talk_on.answer())[0] == 413
    await _send_on(talk_on.writer, 10)
    talk_on.writer.write(b" ")
    talk_on.send("enqueue", ITEM)
    assert (await talk_on.answer())[0] == 201


NAMES = {
    "rebound": ("host: localhost", "host: rebind.example"),
    "another's page": ("x: y", "origin: http://e.example"),
}


@pytest.mark.parametrize(("good", "bad"), NAMES.values(), ids=NAMES)
async def test_a_page_is_recognised_on_the_short_way_too(talk_on: Talk, good: str, bad: str) -> None:
    def send(field: str) -> None:
        head = ENQUEUE.replace(b"host: localhost", b"" if "host" in field else b"host: localhost")
        head = head.replace(b"\r\n\r\n", b"\r\n") + field.encode() + b"\r\ncontent-length: %d\r\n\r\n" % len(ITEM)
        talk_on.writer.write(head + ITEM.encode())

    for _ in range(2):
        for field, code in ((good, 201), (good, 201), (bad, 403), (bad, 403)):
            send(field)
            assert (await talk_on.answer())[0] == code


def test_the_parser_skips_line_ends_between_requests() -> None:
    """What the tests above are about: no callback tells of them."""

    class Heard:
        begun = 0

        def on_message_begin(self) -> None:
            self.begun += 1

    parser = httptools.HttpRequestParser(heard := Heard())
    parser.feed_data(GET + b"\r\n")
    parser.feed_data(b"\r\n\r\n")
    assert heard.begun == 1
