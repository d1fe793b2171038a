"""A worker that stops while a dequeue is under way: what its service has answered by then is not lost."""

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from headgate import AsyncClient, Job, Worker
from headgate._http.hang_up import HangUp
from headgate._http.http1 import Http1Transport
from tests.unit.headgate.client.test_client import leased
from tests.unit.headgate.http.test_http1 import OK, Server, serving
from tests.unit.headgate.worker.test_cut_off import told
from tests.unit.headgate.worker.test_worker import Queue


class AnswersTheGone(Server):
    """Answers only those who have hung up: as one that had just written its answer when it heard of that."""

    def __init__(self, answer: bytes) -> None:
        super().__init__()
        self.answer = answer
        self.asked = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        self.asked.set()
        await reader.read()
        writer.write(self.answer)
        writer.close()


async def asking(transport: Http1Transport, request: httpx.Request, hang_up: HangUp) -> bytes:
    with hang_up.reaches():
        response = await transport.handle_async_request(request)
    return response.content


async def test_an_answer_that_was_on_its_way_is_taken_by_who_has_hung_up() -> None:
    server, hang_up = AnswersTheGone(OK), HangUp()
    async with serving(server) as request, Http1Transport() as transport:
        calling = asyncio.create_task(asking(transport, request(), hang_up))
        await asyncio.wait_for(server.asked.wait(), 5)
        hang_up.all()
        assert await asyncio.wait_for(calling, 5) == b"ok"


async def test_a_call_that_is_hung_up_on_without_an_answer_is_cancelled_and_none_is_made_after_it() -> None:
    server, hang_up = AnswersTheGone(b""), HangUp()
    async with serving(server) as request, Http1Transport() as transport:
        calling = asyncio.create_task(asking(transport, request(), hang_up))
        await asyncio.wait_for(server.asked.wait(), 5)
        hang_up.all()
        await asyncio.wait([calling], timeout=5)
        assert calling.cancelled()
        server.asked.clear()
        later = asyncio.create_task(asking(transport, request(), hang_up))
        await asyncio.wait([later], timeout=5)
        assert later.cancelled() and not server.asked.is_set()


async def test_a_connection_that_is_another_calls_by_now_is_not_hung_up_on() -> None:
    """A dequeue that was refused waits before it is sent again, and an ack has its connection: that was cut."""
    server, hang_up = Server([OK], []), HangUp()
    async with serving(server) as request, Http1Transport() as transport:
        answered, over = asyncio.Event(), asyncio.Event()

        async def refused() -> None:
            with hang_up.reaches():
                await transport.handle_async_request(request())
                answered.set()
                await over.wait()

        waits = asyncio.create_task(refused())
        await asyncio.wait_for(answered.wait(), 5)
        other = asyncio.create_task(transport.handle_async_request(request()))
        while len(server.requests) < 2:
            await asyncio.sleep(0)
        assert server.connections == 1
        hang_up.all()
        assert not await hang_up.come(0.01)
        assert not other.done() and not server.gone.is_set()
        over.set()
        await waits
        other.cancel()


async def test_a_connection_that_was_reset_meanwhile_does_not_keep_others_from_being_hung_up_on() -> None:
    """`shutdown` of its socket raises: the worker ended by that, with all that it held."""

    class Resets(AnswersTheGone):
        async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if server.asked.is_set():
                await super().serve(reader, writer)
                return
            await reader.readuntil(b"\r\n\r\n")
            self.asked.set()
            await over.wait()
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()
            # Behind the reset, in the same turn of the loop: the client's socket has not been looked at since.
            asyncio.get_running_loop().call_soon(hang_up.all)

    server, hang_up, over = Resets(OK), HangUp(), asyncio.Event()
    async with serving(server) as request, Http1Transport() as transport:
        reset = asyncio.create_task(asking(transport, request(), hang_up))
        await asyncio.wait_for(server.asked.wait(), 5)
        other = asyncio.create_task(asking(transport, request(), hang_up))
        while len(hang_up._calls) < 2:
            await asyncio.sleep(0)
        over.set()
        assert await asyncio.wait_for(other, 5) == b"ok"
        await asyncio.wait([reset], timeout=5)
        assert reset.cancelled()


async def test_calls_that_are_not_of_those_go_on() -> None:
    server, hang_up = Server([OK]), HangUp()
    async with serving(server) as request, Http1Transport() as transport:
        assert await asking(transport, request(), HangUp()) == b"ok"
        server.answers = [[OK]]
        hang_up.all()
        assert (await transport.handle_async_request(request())).content == b"ok"


async def test_an_answer_of_which_more_comes_is_told_from_one_that_does_not_come() -> None:
    class Slow(AnswersTheGone):
        async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            self.asked.set()
            await reader.read()
            writer.write(self.answer[:30])
            await more.wait()
            writer.write(self.answer[30:])
            writer.close()

    more, server, hang_up = asyncio.Event(), Slow(OK), HangUp()
    async with serving(server) as request, Http1Transport() as transport:
        calling = asyncio.create_task(asking(transport, request(), hang_up))
        await asyncio.wait_for(server.asked.wait(), 5)
        hang_up.all()
        async with asyncio.timeout(5):
            while not await hang_up.come(0.01):
                pass
        assert not await hang_up.come(0.01), "nothing has come meanwhile"
        more.set()
        assert not await hang_up.come(5), "it has ended"
        assert calling.done() and calling.result() == b"ok"


class Front:
    """Answers HTTP for a queue; a dequeue that settles, or one that does not, is answered once its client has hung
    up, in `pieces`, one for each `go`."""

    def __init__(self, queue: Queue, pieces: int = 1, *, settling: bool = False) -> None:
        self.queue = queue
        self.settling = settling
        self.pieces = pieces
        self.asked = asyncio.Event()
        self.go = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            path = head.split()[1].decode()
            length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            body = await reader.readexactly(length)
            if path.endswith("/dequeue") and bool(json.loads(body).get("settle")) is self.settling:
                self.asked.set()
                await reader.read()
            request = httpx.Request("POST", f"http://q{path}", content=body)
            response = await self.queue.handle_async_request(request)
            content = await response.aread()
            head = b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n" % (response.status_code, len(content))
            if reader.at_eof():
                await self.write(writer, head + content)
                break
            writer.write(head + content)
        writer.close()

    async def write(self, writer: asyncio.StreamWriter, answer: bytes) -> None:
        step = -(-len(answer) // self.pieces)
        for start in range(0, len(answer), step):
            if start:
                await self.go.wait()
                self.go.clear()
            writer.write(answer[start : start + step])


@asynccontextmanager
async def worker_before(front: Front) -> AsyncIterator[Worker]:
    listener = await asyncio.start_server(front.serve, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    client = AsyncClient(queue_url=f"http://127.0.0.1:{port}")
    try:
        yield Worker(client, drain_s=0.0)
    finally:
        await client.aclose()
        listener.close()


@pytest.mark.parametrize("stops", [1, 2])
async def test_items_that_were_handed_out_as_a_worker_stopped_are_handed_back(stops: int) -> None:
    """They were leased to nobody, until their leases ran out, and that was an attempt."""
    handled: list[str] = []
    front = Front(Queue(leased("a"), leased("b")))
    async with worker_before(front) as worker:
        worker.task("t", slots=2)(lambda job: handled.append(job.id))
        running = asyncio.create_task(worker.run(signals=False))
        await asyncio.wait_for(front.asked.wait(), 5)
        for _ in range(stops):
            worker.stop()
        await asyncio.wait_for(running, 10)
    assert handled == []
    assert {item_id: nack["costs_attempt"] for item_id, nack in told(front.queue).items()} == {
        "a": False,
        "b": False,
    }


async def test_a_large_answer_that_comes_slowly_is_taken_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a slow link: it was given up after a second, whatever had come of it."""
    come = HangUp.come

    async def looks(hang_up: HangUp, s_max: float) -> bool:
        front.go.set()
        return await come(hang_up, s_max)

    monkeypatch.setattr(HangUp, "come", looks)
    monkeypatch.setattr("headgate._worker.dequeues.HUNG_UP_S_MAX", 0.3)
    front = Front(Queue(leased("a")), pieces=4)
    async with worker_before(front) as worker:
        worker.task("t")(lambda _job: None)
        running = asyncio.create_task(worker.run(signals=False))
        await asyncio.wait_for(front.asked.wait(), 5)
        worker.stop()
        await asyncio.wait_for(running, 10)
    assert told(front.queue)["a"]["costs_attempt"] is False


async def test_items_that_a_dequeue_got_that_settled_are_handed_back_in_a_hurry_too() -> None:
    """Where there is no hurry its answer is waited for; in one the call was cut off, with what it had got."""

    front = Front(Queue(leased("first"), leased("second"), leased("third")), settling=True)
    async with worker_before(front) as worker:
        worker.task("t", prefetch=0)(lambda _job: None)
        running = asyncio.create_task(worker.run(signals=False))
        await asyncio.wait_for(front.asked.wait(), 5)
        worker.stop()
        worker.stop()
        await asyncio.wait_for(running, 10)
    assert {item_id: nack["costs_attempt"] for item_id, nack in told(front.queue).items()} == {"second": False}


async def test_a_worker_does_not_wait_long_for_a_service_that_does_not_hear_of_its_hanging_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Deaf(Front):
        async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            self.asked.set()
            await over.wait()
            writer.close()

    monkeypatch.setattr("headgate._worker.dequeues.HUNG_UP_S_MAX", 0.01)
    over, front = asyncio.Event(), Deaf(Queue())
    async with worker_before(front) as worker:

        @worker.task("t")
        async def handler(_job: Job) -> None: ...

        running = asyncio.create_task(worker.run(signals=False))
        await asyncio.wait_for(front.asked.wait(), 5)
        worker.stop()
        await asyncio.wait_for(running, 10)
        over.set()
