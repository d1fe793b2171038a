"""What asks to go on in another protocol is served as any other request, with its body; so is what comes next."""

import asyncio
import json
from typing import Any

import httptools
import pytest

from shared.http.upgrades import without_upgrade
from tests.support.served import END_S, ITEM, LIMIT, Served, Talk, status, talk

JAVA = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAAAAMAAAAA\r\n"
WEBSOCKET = b"Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
WAYS = pytest.mark.parametrize("fields", [JAVA, WEBSOCKET], ids=["h2c", "websocket"])
CUTS = pytest.mark.parametrize("size", [1, 7, 100_000], ids=["bytes", "pieces", "whole"])
QUOTAS = {"enqueues_per_minute": 100, "in_flight_max": 5}
INNER = b"PUT /v1/namespaces/inner HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n"


def put(name: str, fields: bytes, body: bytes, *, chunked: bool = False) -> bytes:
    head = (
        b"PUT /v1/namespaces/%b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" % name.encode()
    )
    if not chunked:
        return head + b"Content-Length: %d\r\n%b\r\n%b" % (len(body), fields, body)
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:3], body[3:]))
    return head + b"Transfer-Encoding: chunked\r\n%b\r\n%b0\r\n\r\n" % (fields, chunks)


async def send(talk_on: Talk, data: bytes, size: int) -> None:
    """In segments of so many bytes."""
    for begin in range(0, len(data), size):
        talk_on.writer.write(data[begin : begin + size])
        await talk_on.writer.drain()
        await asyncio.sleep(0)


def quotas_of(told: dict[str, Any]) -> dict[str, Any]:
    return {name: told[name] for name in QUOTAS}


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()


@WAYS
@CUTS
@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
async def test_the_body_is_read(talk_on: Talk, fields: bytes, size: int, chunked: bool) -> None:
    await send(talk_on, put("asks", fields, json.dumps(QUOTAS).encode(), chunked=chunked), size)
    code, _, told = await talk_on.answer()
    assert (code, quotas_of(told)) == (200, QUOTAS)
    talk_on.writer.write(get("/v1/namespaces/asks"))
    assert quotas_of((await talk_on.answer())[2]) == QUOTAS


@WAYS
async def test_a_body_may_come_later(talk_on: Talk, served: Served, fields: bytes) -> None:
    head, _, body = put("later", fields, json.dumps(QUOTAS).encode()).partition(b"\r\n\r\n")
    talk_on.writer.write(head + b"\r\n\r\n")
    async with asyncio.timeout(END_S):
        while not any(one.cycle for one in served.server.server_state.connections):
            await asyncio.sleep(0.005)
    talk_on.writer.write(body)
    assert quotas_of((await talk_on.answer())[2]) == QUOTAS


@WAYS
@CUTS
async def test_a_request_in_a_body_is_not_run(talk_on: Talk, fields: bytes, size: int) -> None:
    await send(talk_on, put("outer", fields, INNER), size)
    code, _, told = await talk_on.answer()
    assert (code, told["code"]) == (400, "not_json")
    talk_on.writer.write(get("/v1/namespaces"))
    code, _, listed = await talk_on.answer()
    assert (code, [one for one in listed["items"] if one["namespace"] in ("inner", "outer")]) == (200, [])


@WAYS
@CUTS
async def test_what_is_sent_ahead_is_answered_in_its_order(talk_on: Talk, fields: bytes, size: int) -> None:
    """Also where others ask for an upgrade, too, and where a verb on the short way stands between."""
    enqueue = (
        b"POST /v1/namespaces/default/enqueue HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    )
    enqueue += b"%bcontent-length: %d\r\n\r\n%b" % (fields, len(ITEM), ITEM.encode())
    ahead = put("first", fields, b'{"in_flight_max":1}') + enqueue + put("second", fields, b'{"in_flight_max":2}')
    ahead += get("/v1/namespaces/first").replace(b"\r\n\r\n", b"\r\n%b\r\n" % fields) + get("/livez") + enqueue
    await send(talk_on, ahead, size)
    told = [await talk_on.answer() for _ in range(6)]
    assert [code for code, _, _ in told] == [200, 201, 200, 200, 200, 201]
    assert [told[at][2]["in_flight_max"] for at in (0, 2, 3)] == [1, 2, 1]


@WAYS
async def test_a_connection_is_kept_and_upgrades_may_be_asked_for_again(talk_on: Talk, fields: bytes) -> None:
    for _ in range(3):
        talk_on.send("enqueue", ITEM, fields=fields.decode())
        code, head, body = await talk_on.answer()
        assert (code, body["results"][0]["status"]) == (201, "enqueued")
        assert b"upgrade" not in head and b"connection: close" not in head
        talk_on.send("enqueue", ITEM)
        assert (await talk_on.answer())[0] == 201


ASKS_ONLY = get("/livez").replace(b"\r\n\r\n", b"\r\nConnection: Upgrade\r\nUpgrade: a\r\n\r\n")


@pytest.mark.parametrize("served", [{"pipelined_max": 2_000}], indirect=True)
async def test_however_many_come_in_one_piece_none_stands_on_the_one_before(talk_on: Talk) -> None:
    talk_on.writer.write(ASKS_ONLY * 1_500)
    assert [(await talk_on.answer())[0] for _ in range(1_500)] == [200] * 1_500


@pytest.mark.parametrize("served", [{"pipelined_max": 3}], indirect=True)
async def test_they_count_among_those_that_are_sent_ahead(talk_on: Talk) -> None:
    talk_on.send("dequeue", '{"topics":[{"topic":"none"}],"wait_s":20}')
    await asyncio.sleep(0.05)
    talk_on.writer.write(ASKS_ONLY * 4)
    assert await talk_on.is_closed()


@WAYS
async def test_the_head_says_when_the_connection_ends(talk_on: Talk, fields: bytes) -> None:
    closing = fields.replace(b"Upgrade", b"close, Upgrade", 1)
    talk_on.writer.write(put("last", closing, b"{}") + get("/livez"))
    code, head, _ = await talk_on.answer()
    assert code == 200 and b"connection: close\r\n" in head
    assert await talk_on.is_closed()


async def test_the_sender_is_asked_to_go_on(talk_on: Talk) -> None:
    talk_on.send("enqueue", ITEM, fields=JAVA.decode() + "Expect: 100-continue\r\n")
    async with asyncio.timeout(END_S):
        assert (await talk_on._reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
    assert (await talk_on.answer())[0] == 201


@WAYS
async def test_what_is_wrong_is_refused_as_ever(port: int, fields: bytes) -> None:
    begin = b"POST /v1/namespaces/default/enqueue HTTP/1.1\r\ncontent-type: application/json\r\n" + fields
    host = b"host: localhost\r\n"
    for rest, code in (
        (b"content-length: 2\r\n\r\n{}", 400),
        (host * 2 + b"content-length: 2\r\n\r\n{}", 400),
        (host + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (host + b"transfer-encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n", 400),
        (host + b"x: a\r\n b\r\ncontent-length: 2\r\n\r\n{}", 400),
        (host + b"x: %b\r\n\r\n" % (b"y" * 17_000), 431),
        (host + b"content-length: %d\r\n\r\n" % (LIMIT + 1), 413),
    ):
        assert status(await talk(port, begin + rest)) == code, rest
    assert status(await talk(port, b"BREW /v1/shards HTTP/1.1\r\n" + host + fields + b"\r\n")) == 405


@pytest.mark.parametrize("served", [{"head_s_max": 0.3, "body_s_max": 0.3}], indirect=True)
async def test_a_body_that_does_not_come_is_not_waited_for(talk_on: Talk) -> None:
    talk_on.writer.write(put("slow", JAVA, b"{}")[:-1])
    assert await talk_on.is_closed()


@pytest.mark.parametrize("target", [b"localhost:80", b"/livez"])
async def test_nothing_is_connected(port: int, target: bytes) -> None:
    """CONNECT has no body that HTTP knows: what follows is no request of this connection."""
    talk_on = await Talk.open(port)
    talk_on.writer.write(b"CONNECT %b HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n" % target + INNER)
    code, head, told = await talk_on.answer()
    assert (code, told["code"]) == (400, "bad_request") and b"connection: close\r\n" in head
    assert await talk_on.is_closed()
    talk_on.writer.close()
    assert b'"inner"' not in await talk(port, get("/v1/namespaces"))


def test_a_head_keeps_all_but_the_wish() -> None:
    fields = [
        (b"host", b"a"),
        (b"connection", b"Upgrade"),
        (b"connection", b"close,\tHTTP2-Settings , upgrade"),
        (b"x", b""),
    ]
    fields += [(b"upgrade", b"h2c"), (b"http2-settings", b"AA"), (b"content-length", b"2")]
    head = without_upgrade(b"POST", b"/a?b", "1.0", fields)
    assert head == b"POST /a?b HTTP/1.0\r\nhost: a\r\nconnection: close\r\nx: \r\ncontent-length: 2\r\n\r\n"
    heard: list[bytes] = []

    class Heard:
        def on_body(self, body: bytes) -> None:
            heard.append(body)

    httptools.HttpRequestParser(Heard()).feed_data(head + b"{}")
    assert heard == [b"{}"]
