"""The raw client and the loop that counts: what they get wrong would be in every number."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from benchmarks.load import Http, Leased, Refused, drive

Answer = Callable[[bytes, bytes], list[bytes]]


@asynccontextmanager
async def server(answer: Answer) -> AsyncIterator[str]:
    """Answers every request with the pieces that `answer(head, body)` gives, written one by one."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
                for piece in answer(head, await reader.readexactly(length)):
                    writer.write(piece)
                    await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listening:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"


def reply(body: bytes, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %s\r\ncontent-type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (
        status,
        len(body),
        body,
    )


async def test_an_answer_in_pieces_is_put_together_and_the_connection_used_again() -> None:
    whole = reply(b'{"items":[{"id":"a","lease_token":"t","payload":[1],"topic":"x"}]}')
    seen: list[bytes] = []

    def answer(head: bytes, body: bytes) -> list[bytes]:
        seen.append(body)
        return [whole[:9], whole[9:40], whole[40:90], whole[90:]]

    async with server(answer) as url:
        http = Http(url)
        for _ in range(2):
            assert await http.dequeue("t", 3) == [Leased("a", "t", [1])]
        http.close()
    assert len(seen) == 2 and b'"count":3' in seen[0]


async def test_an_error_is_never_counted_as_work() -> None:
    async with server(lambda *_: [reply(b'{"code":"overloaded"}', b"503 Service Unavailable")]) as url:
        http = Http(url)
        with pytest.raises(Refused, match="overloaded") as caught:
            await http.enqueue([{"topic": "t"}])
        http.close()
    assert caught.value.status == 503


async def test_an_item_that_was_not_acked_stops_the_measurement() -> None:
    body = b'{"results":[{"id":"a","status":"acked"},{"id":"b","status":"lease_lost"}]}'
    async with server(lambda *_: [reply(body)]) as url:
        http = Http(url)
        with pytest.raises(AssertionError):
            await http.ack([Leased("a", "t"), Leased("b", "t")])
        http.close()


async def test_a_cycle_that_has_begun_is_finished_and_its_time_counts() -> None:
    ended = asyncio.Event()
    asyncio.get_running_loop().call_later(0.05, ended.set)

    async def slow() -> int:
        await ended.wait()
        return 7

    begun = time.perf_counter()
    done = await drive([slow], 0.01)
    assert done.items == 7
    assert 0.04 < done.elapsed_s <= time.perf_counter() - begun
    assert done.items_per_s == pytest.approx(7 / done.elapsed_s)
