"""The edge on a raw socket: framing, sizes and slow senders, as the served process meets them."""

import asyncio

import pytest
from prometheus_client import REGISTRY

from services.queue.settings import QueueSettings
from shared.http.hot_path import HotPath
from tests.support.served import END_S, ENQUEUE, GET, ITEM, LIMIT, SLOW, Served, Talk, status, talk


async def test_a_body_over_the_limit_is_refused_by_its_length_alone(port: int) -> None:
    answer = await talk(port, ENQUEUE + b"content-length: %d\r\n\r\n" % (LIMIT + 1))
    assert status(answer) == 413
    assert b'"too_large"' in answer and b'"none"' in answer


async def test_a_body_without_length_is_refused_one_byte_past_the_limit(port: int) -> None:
    def chunked(size: int) -> bytes:
        body = b'{"items":[]}' + b" " * (size - 12)
        return ENQUEUE + b"transfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (size, body)

    assert status(await talk(port, chunked(LIMIT))) == 422
    assert status(await talk(port, chunked(LIMIT + 1))) == 413


@pytest.mark.parametrize(
    "framing",
    [
        b"transfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n",
        b"expect: 100-continue\r\ncontent-length: 9%x\r\n\r\n%s",
        b"content-length: 9%x\r\n\r\n%s",
    ],
)
async def test_a_body_that_ends_with_its_connection_is_not_done_though_it_is_json(
    served: Served, talk_on: Talk, framing: bytes
) -> None:
    item = b'{"items":[{"topic":"cut"}]}'
    talk_on.writer.write(ENQUEUE + framing % (len(item), item))
    talk_on.writer.write_eof()
    await talk_on.rest()
    other = await Talk.open(served.port)
    other.send("dequeue", '{"topics":[{"topic":"cut","count":1}],"wait_s":0.5}')
    assert (await other.answer())[2]["items"] == []
    other.writer.close()


async def test_bad_framing_is_refused_and_the_connection_closed(port: int) -> None:
    for request_bytes in (
        ENQUEUE + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        ENQUEUE + b"content-length: 2\r\ncontent-length: 3\r\n\r\n{}",
        ENQUEUE + b"transfer-encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
        ENQUEUE + b"content-length: two\r\n\r\n{}",
        b"GET /livez\r\n\r\n",
        b"GET /livez HTTP/1.1\r\n\r\n",
        ENQUEUE + b"host: localhost\r\ncontent-length: 2\r\n\r\n{}",
        ENQUEUE + b"authorization: Bearer a\r\nAuthorization: Bearer b\r\ncontent-length: 2\r\n\r\n{}",
        GET + b"content-type: text/plain\r\ncontent-type: application/json\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ):
        answer = await talk(port, request_bytes)
        assert status(answer) == 400, request_bytes
        assert b"connection: close" in answer.lower()
        assert b'"none"' in answer


async def test_header_fields(port: int) -> None:
    for fields, expected in ((99, 200), (100, 431)):
        more = b"".join(b"x-%d: y\r\n" % n for n in range(fields))
        assert status(await talk(port, GET + more + b"\r\n")) == expected


async def test_header_bytes(port: int) -> None:
    for size, expected in ((15_000, 200), (17_000, 431)):
        assert status(await talk(port, GET + b"x: " + b"y" * size + b"\r\n\r\n")) == expected


async def test_url_bytes(port: int) -> None:
    for size, expected in ((8192, 200), (8193, 414)):
        target = b"/livez?" + b"a" * (size - 7)
        assert status(await talk(port, b"GET " + target + b" HTTP/1.1\r\nhost: localhost\r\n\r\n")) == expected


@pytest.mark.parametrize("served", [SLOW], indirect=True)
async def test_a_head_that_does_not_come_is_answered_and_closed(port: int) -> None:
    answer = await talk(port, b"GET /livez HTTP/1.1\r\nhost:")
    assert status(answer) == 408
    assert b'"too_slow"' in answer


@pytest.mark.parametrize("served", [SLOW], indirect=True)
async def test_bytes_that_trickle_do_not_keep_a_connection_open(port: int) -> None:
    """The deadline is absolute: each byte that comes does not begin it anew."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(ENQUEUE + b"content-length: 1000\r\n\r\n")
    closed = asyncio.create_task(reader.read())
    sent = 0
    async with asyncio.timeout(END_S):
        while not (await asyncio.wait([closed], timeout=0.02))[0]:
            writer.write(b" ")
            sent += 1
    await asyncio.gather(closed, return_exceptions=True)
    writer.close()
    assert sent < 1000


async def test_connections_over_the_limit_are_turned_away(port: int) -> None:
    idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
    try:
        assert status(await talk(port, GET + b"\r\n")) == 503
    finally:
        for _, writer in idle:
            writer.close()


async def test_methods_that_no_route_has(port: int) -> None:
    for method in (b"TRACE", b"BREW", b"OPTIONS", b"get", b"POSTER"):
        for path, methods in (
            (b"/v1/shards", b"GET"),
            (b"/v1/namespaces/default/enqueue", b"POST"),
            (b"/v1/namespaces/default", b"GET, PUT"),
        ):
            answer = await talk(
                port, method + b" " + path + b" HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
            )
            assert status(answer) == 405, answer
            assert b"\r\nallow: " + methods + b"\r\n" in answer
            assert b'"method_not_allowed"' in answer
        answer = await talk(port, method + b" /nowhere HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        assert status(answer) == 404, answer
    assert status(await talk(port, b"BREW livez\r\n\r\n")) == 400


@pytest.mark.parametrize(
    "fields",
    ["", "connection: keep-alive\r\n", "expect: 100-continue\r\n", "accept: */*\r\nx-other: 1\r\n"],
    ids=["plain", "keep-alive", "expect", "others"],
)
async def test_a_verb_answers_alike_however_it_is_asked(talk_on: Talk, fields: str) -> None:
    talk_on.send("enqueue", ITEM, fields=fields)
    if "expect" in fields:
        assert (await talk_on._reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
    code, head, body = await talk_on.answer()
    assert code == 201
    assert b"content-type: application/json\r\n" in head
    assert body["results"][0]["status"] == "enqueued"
    talk_on.send("enqueue", '{"items":[]}', fields=fields.replace("expect: 100-continue\r\n", ""))
    code, head, body = await talk_on.answer()
    assert code == 422
    assert b"content-type: application/problem+json\r\n" in head
    assert body["code"] == "invalid"


async def test_requests_sent_without_waiting_are_answered_in_their_order(talk_on: Talk) -> None:
    """The second is still a verb, the third is not; none may overtake the first, which waits."""
    talk_on.send("dequeue", '{"topics":[{"topic":"never"}],"wait_s":0.3}')
    talk_on.send("enqueue", ITEM)
    talk_on.writer.write(GET + b"\r\n")
    talk_on.send("enqueue", '{"items":[]}')
    answers = [await talk_on.answer() for _ in range(4)]
    assert [code for code, _, _ in answers] == [200, 201, 200, 422]
    assert answers[0][2] == {"items": []}
    assert answers[2][2] == {"status": "ok"}


async def test_an_unknown_method_does_not_disturb_what_follows(talk_on: Talk) -> None:
    talk_on.send("enqueue", '{"items": [{"topic": "t"}]}')
    assert (await talk_on.answer())[0] == 201
    talk_on.writer.write(
        b"BREW /v1/namespaces/default/enqueue HTTP/1.1\r\nhost: localhost\r\ncontent-length: 3\r\n\r\n{}x"
    )
    assert (await talk_on.answer())[0] == 405
    talk_on.send("enqueue", '{"items": [{"topic": "t"}]}')
    assert (await talk_on.answer())[0] == 201


@pytest.mark.parametrize("fields", ["", "x: y\r\n", "connection: upgrade\r\nupgrade: h2c\r\n"])
@pytest.mark.parametrize("method", ["POST", "PUT"])
async def test_a_body_is_never_read_as_a_request(talk_on: Talk, served: Served, method: str, fields: str) -> None:
    """Not for an unknown method behind it either, though a packet begins with what looks like another one."""
    odd = b"BREW /livez HTTP/1.1\r\nhost: localhost\r\n\r\n"
    inner = b"FOO /livez HTTP/1.1\r\nhost: localhost\r\n\r\nPUT /v1/namespaces/inner HTTP/1.1\r\n"
    inner += b"host: localhost\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
    inner += b"GET /livez HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(odd)
    path = "/enqueue" if method == "POST" else ""
    head = f"{method} /v1/namespaces/outer{path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    talk_on.writer.write(f"{head}{fields}content-length: {len(inner)}\r\n\r\n".encode())
    await talk_on.writer.drain()
    [connection] = served.server.server_state.connections
    async with asyncio.timeout(END_S):
        while not connection._begun:
            await asyncio.sleep(0.005)
    talk_on.writer.write(inner + odd)
    assert (await talk_on.rest()).count(b"HTTP/1.1 ") <= 1
    other = await Talk.open(served.port)
    other.writer.write(b"GET /v1/namespaces HTTP/1.1\r\nhost: localhost\r\n\r\n")
    assert "inner" not in str((await other.answer())[2])
    other.writer.close()


async def test_a_verb_asked_to_close_closes_after_its_answer(talk_on: Talk) -> None:
    talk_on.send("enqueue", ITEM, fields="connection: close\r\n")
    code, head, _ = await talk_on.answer()
    assert code == 201
    assert b"connection: close\r\n" in head
    assert await talk_on.is_closed()


async def test_a_connection_that_stays_idle_after_an_answer_is_closed(talk_on: Talk) -> None:
    talk_on.send("enqueue", ITEM)
    assert (await talk_on.answer())[0] == 201
    talk_on.send("enqueue", ITEM)
    assert (await talk_on.answer())[0] == 201
    assert await talk_on.is_closed()


async def test_a_body_that_comes_in_parts_is_one_body(talk_on: Talk) -> None:
    for part in (ENQUEUE, b"content-length: %d\r\n\r\n" % len(ITEM), ITEM[:9].encode(), ITEM[9:].encode()):
        talk_on.writer.write(part)
        await talk_on.writer.drain()
        await asyncio.sleep(0.01)
    assert (await talk_on.answer())[0] == 201


async def test_what_waited_for_a_client_that_hung_up_stays_ready(port: int) -> None:
    gone = await Talk.open(port)
    gone.send("dequeue", '{"topics":[{"topic":"gone"}],"wait_s":20}')
    await asyncio.sleep(0.1)
    gone.writer.transport.abort()
    await asyncio.sleep(0.1)
    talk_on = await Talk.open(port)
    talk_on.send("enqueue", '{"items":[{"topic":"gone"}]}')
    assert (await talk_on.answer())[0] == 201
    talk_on.send("dequeue", '{"topics":[{"topic":"gone"}],"wait_s":5}')
    code, _, body = await talk_on.answer()
    assert code == 200
    assert [item["attempt"] for item in body["items"]] == [1]
    talk_on.writer.close()


class Door:
    """The entrance of a served app, shut: every call stands. Its clock goes when it is told."""

    def __init__(self, app: HotPath, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entrance = app.entrance
        self.now_s = 1000.0
        self._limits = self.entrance._limits
        self.entrance._limits = [0] * len(self._limits)
        self.entrance._over_max = self.entrance._over = 0
        monkeypatch.setattr(self.entrance, "_clock", self)
        for line in self.entrance._lines:
            monkeypatch.setattr(line, "_clock", self)

    def monotonic_s(self) -> float:
        return self.now_s

    def open(self) -> None:
        self.entrance._limits = self._limits
        self.entrance.leave(0)

    async def stand(self, calls: int) -> None:
        async with asyncio.timeout(END_S):
            while self.entrance.standing != calls:
                await asyncio.sleep(0.005)


@pytest.fixture
def door(served: Served, monkeypatch: pytest.MonkeyPatch) -> Door:
    return Door(served.app, monkeypatch)


@pytest.mark.parametrize("fields", ["", "x-other: 1\r\nconnection: close\r\n"], ids=["below ASGI", "over ASGI"])
async def test_a_call_behind_a_line_that_stands_is_refused_unread(port: int, door: Door, fields: str) -> None:
    first, second = await Talk.open(port), await Talk.open(port)
    first.send("enqueue", ITEM, fields=fields)
    await door.stand(1)
    door.now_s += QueueSettings().start_wait_s_max
    second.send("enqueue", "no JSON at all", fields=fields)
    code, head, body = await second.answer()
    assert (code, body["code"], body["outcome"]) == (503, "overloaded", "none")
    assert b"content-type: application/problem+json\r\n" in head
    assert b"retry-after: 1\r\n" in head
    door.open()
    assert (await first.answer())[0] == 201
    if not fields:
        second.send("enqueue", ITEM)
        assert (await second.answer())[0] == 201
    for one in (first, second):
        one.writer.close()


async def test_what_stood_when_its_client_hung_up_is_not_done(port: int, door: Door) -> None:
    gone, other = await Talk.open(port), await Talk.open(port)
    gone.send("enqueue", ITEM.replace("edge", "gone"))
    await door.stand(1)
    other.send("enqueue", ITEM.replace("edge", "other"))
    await door.stand(2)  # before the first hangs up: a look at the line may end it at once
    gone.writer.transport.abort()
    async with asyncio.timeout(END_S):
        while door.entrance.standing == 2 and not any(
            call.disconnected for _, call in door.entrance._lines[2]._turns[0][2].calls
        ):
            await asyncio.sleep(0.005)
    door.open()
    assert (await other.answer())[0] == 201
    other.send("dequeue", '{"topics":[{"topic":"gone"},{"topic":"other"}]}')
    assert [item["topic"] for item in (await other.answer())[2]["items"]] == ["other"]
    other.writer.close()


async def test_what_stands_when_the_process_leaves_is_answered_first(
    served: Served, talk_on: Talk, door: Door
) -> None:
    talk_on.send("enqueue", ITEM)
    await door.stand(1)
    served.server.should_exit = True
    async with asyncio.timeout(END_S):
        while served.server.servers and served.server.servers[0].is_serving():
            await asyncio.sleep(0.005)
    door.open()
    assert (await talk_on.answer())[0] == 201
    assert await talk_on.is_closed()
    await served.ended


@pytest.mark.parametrize("served", [SLOW], indirect=True)
async def test_a_body_that_stops_coming_is_cut_behind_other_requests(talk_on: Talk) -> None:
    for _ in range(3):
        talk_on.send("enqueue", ITEM)
        assert (await talk_on.answer())[0] == 201
    talk_on.writer.write(ENQUEUE + b"content-length: %d\r\n\r\n{" % len(ITEM))
    assert await talk_on.is_closed()


async def test_a_dequeue_that_waits_is_not_worked_on(talk_on: Talk, port: int, served: Served) -> None:
    talk_on.send("dequeue", '{"topics":[{"topic":"edge"}],"wait_s":20}')
    lines = served.app.state.process.dispatch._lines
    async with asyncio.timeout(END_S):
        while ("default", "edge") not in lines or not lines["default", "edge"].waiting:
            await asyncio.sleep(0.005)
    assert served.app.entrance._working == 0
    other = await Talk.open(port)
    other.send("enqueue", ITEM)
    assert (await other.answer())[0] == 201
    assert len((await talk_on.answer())[2]["items"]) == 1
    assert served.app.entrance._working == 0
    other.writer.close()


async def acquaint(talk_on: Talk, *bodies: tuple[str, str]) -> None:
    """Let the heads of these (verb, body) become known: the first request of a connection teaches nothing."""
    for verb, body in (("ack", '{"items":[]}'), *bodies):
        talk_on.send(verb, body)
        assert (await talk_on.answer())[0] in (200, 201, 422)


async def test_a_head_that_is_known_is_not_read_again(
    served: Served, talk_on: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    await acquaint(talk_on, ("enqueue", ITEM))
    read: list[bytes] = []
    known = served.app.target
    monkeypatch.setattr(served.app, "target", lambda method, url: read.append(url) or known(method, url))
    for topic in ("edge", "another"):  # of another length
        talk_on.send("enqueue", ITEM.replace("edge", topic))
        assert (await talk_on.answer())[0] == 201
    assert read == []
    talk_on.send("enqueue", ITEM, fields="x-other: 1\r\n")
    assert (await talk_on.answer())[0] == 201
    assert len(read) == 1


async def test_behind_a_known_head_a_body_has_its_limit(talk_on: Talk) -> None:
    await acquaint(talk_on, ("enqueue", ITEM))
    talk_on.send("enqueue", ITEM + " " * (LIMIT - len(ITEM)))
    assert (await talk_on.answer())[0] == 201
    talk_on.send("enqueue", ITEM + " " * (LIMIT + 1 - len(ITEM)))
    assert (await talk_on.answer())[0] == 413


async def test_known_heads_in_pieces_and_in_a_row(talk_on: Talk) -> None:
    await acquaint(talk_on, ("enqueue", ITEM))
    whole = ENQUEUE + b"content-length: %d\r\n\r\n%s" % (len(ITEM), ITEM.encode())
    for pieces in ((whole[:-5], whole[-5:] + whole), (whole[:40], whole[40:], whole), (whole * 2,)):
        for piece in pieces:
            talk_on.writer.write(piece)
            await asyncio.sleep(0.01)
        for _ in range(2):
            assert (await talk_on.answer())[0] == 201


async def test_who_hung_up_behind_a_known_head_is_leased_nothing(port: int) -> None:
    wanted = '{"topics":[{"topic":"edge"}],"wait_s":%s}'
    gone = await Talk.open(port)
    await acquaint(gone, ("dequeue", wanted % 0))
    gone.send("dequeue", wanted % 20)
    await asyncio.sleep(0.1)
    gone.writer.transport.abort()
    await asyncio.sleep(0.1)
    talk_on = await Talk.open(port)
    talk_on.send("enqueue", ITEM)
    assert (await talk_on.answer())[0] == 201
    talk_on.send("dequeue", wanted % 5)
    assert [item["attempt"] for item in (await talk_on.answer())[2]["items"]] == [1]
    talk_on.writer.close()


async def test_who_leaves_closes_behind_a_known_head_too(
    served: Served, talk_on: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    await acquaint(talk_on, ("enqueue", ITEM))
    monkeypatch.setattr(served.server.config.http_protocol_class, "leaving", True)
    talk_on.send("enqueue", ITEM)
    code, head, _ = await talk_on.answer()
    assert code == 201
    assert b"connection: close\r\n" in head


async def test_a_sender_that_goes_in_the_middle_of_its_body_is_no_fault_of_the_service(port: int) -> None:
    """Where it is read by the framework: a 500 raises an alarm."""
    refused, failed = purges(400), purges(500)
    purge = ENQUEUE.replace(b"enqueue", b"topics/purge")
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(purge + b"content-length: 20\r\n\r\n{")
    await writer.drain()
    writer.close()
    async with asyncio.timeout(END_S):
        while purges(400) == refused:
            assert purges(500) == failed
            await asyncio.sleep(0.01)


def purges(status: int) -> float:
    """How many were answered so."""
    labels = {"method": "POST", "route": "/v1/namespaces/{ns}/topics/purge", "status": str(status)}
    return REGISTRY.get_sample_value("headgate_http_request_seconds_count", labels) or 0.0
