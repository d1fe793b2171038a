"""An answer that a connection's end cuts in two: what the kernel has not taken of it nobody gets."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
import uvloop

from shared.admission.connection_priority import Urgency
from shared.admission.delay import LoopLag
from shared.http import serve
from shared.http.access import Access
from shared.http.hot_path import Call, HotPath, Verb
from shared.settings import EdgeSettings

END_S = 20
# More than the kernel's buffers take here; of the first little is left, of the second much.
SOME, LARGE = 40_000, 1_000_000
LOOPS: list[Callable[[], asyncio.AbstractEventLoop]] = [asyncio.new_event_loop, uvloop.new_event_loop]


class Stage:
    """A verb that answers as many bytes as it is asked for; of which answers it was told that nobody got them."""

    def __init__(self) -> None:
        self.media = "application/json"
        self.asked = 0
        self.told: list[tuple[int, bool]] = []
        self.protocols: list[Any] = []
        self.address: tuple[str, int] = ("", 0)

    async def give(self, call: Call) -> tuple[int, Any]:
        self.asked += 1
        size = int(call.body)
        call.undelivered = partial(self._note, size)
        return 200, "x" * size

    async def _note(self, size: int, is_begun: bool) -> None:
        self.told.append((size, is_begun))

    async def is_told(self, *expected: tuple[int, bool]) -> None:
        """These are told of, and no others."""
        async with asyncio.timeout(END_S):
            while len(self.told) < len(expected) or any(protocol.tasks for protocol in self.protocols):
                await asyncio.sleep(0.001)
        assert sorted(self.told) == sorted(expected)

    async def is_written(self, answers: int) -> None:
        async with asyncio.timeout(END_S):
            while self.protocols[-1].server_state.total_requests < answers:
                await asyncio.sleep(0.001)

    async def is_lost(self) -> None:
        async with asyncio.timeout(END_S):
            while self.protocols[-1].connections:
                await asyncio.sleep(0.001)


class Client:
    """A connection of which the test says what is sent, and how much is read."""

    def __init__(self, stage: Stage) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        self._socket.setblocking(False)
        self._stage = stage
        self._got = bytearray()

    async def connect(self) -> None:
        await asyncio.get_running_loop().sock_connect(self._socket, self._stage.address)

    async def ask(self, size: int) -> None:
        head = f"POST /v1/namespaces/n/give HTTP/1.1\r\nhost: localhost\r\ncontent-type: {self._stage.media}\r\n"
        await self.send(f"{head}content-length: {len(str(size))}\r\n\r\n{size}".encode())

    async def send(self, text: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._socket, text)

    async def begin(self) -> None:
        """Read the beginning of an answer."""
        await self._read(lambda: 50 - len(self._got))

    async def take(self) -> None:
        """Read an answer to its end, or what is left of one."""
        await self.begin()
        await self._read(lambda: 0 if b"\r\n\r\n" in self._got else 1)
        head, _, _ = self._got.partition(b"\r\n\r\n")
        size = len(head) + 4 + int(head.rpartition(b": ")[2])
        await self._read(lambda: size - len(self._got))
        self._got.clear()

    async def take_all(self) -> None:
        """Read for as long as the connection lasts."""
        await self._read(lambda: 1 << 20)

    async def _read(self, wanted: Callable[[], int]) -> None:
        async with asyncio.timeout(END_S):
            while (count := wanted()) > 0:
                got = await asyncio.get_running_loop().sock_recv(self._socket, min(count, 1 << 20))
                self._got += got
                if not got:
                    break

    def close(self) -> None:
        self._socket.close()


@asynccontextmanager
async def staged() -> AsyncIterator[tuple[Stage, Client]]:
    stage, settings = Stage(), EdgeSettings()
    app = SimpleNamespace(state=SimpleNamespace(settings=settings))
    hot = HotPath(app, {"give": Verb(stage.give, Urgency.DEQUEUE)}, Access(None), settings, LoopLag(10.0))
    made = serve.guarded(settings, hot)
    config = uvicorn.Config(hot, log_level=logging.WARNING, access_log=False)
    config.load()
    state = uvicorn.server.ServerState()

    def protocol() -> Any:
        stage.protocols.append(made(config=config, server_state=state, app_state={}))
        return stage.protocols[-1]

    listening = socket.create_server(("127.0.0.1", 0))
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)  # those that it accepts have it, too
    stage.address = listening.getsockname()
    server = await asyncio.get_running_loop().create_server(protocol, sock=listening)
    client = Client(stage)
    await client.connect()
    try:
        yield stage, client
    finally:
        client.close()
        await stage.is_lost()
        server.close()


Story = Callable[[Stage, Client], Awaitable[None]]


async def cut_in_the_middle(stage: Stage, client: Client) -> None:
    await client.ask(LARGE)
    await client.begin()
    client.close()
    await stage.is_lost()
    await stage.is_told((LARGE, True))


async def cut_with_little_left(stage: Stage, client: Client) -> None:
    await client.ask(SOME)
    await client.begin()
    client.close()
    await stage.is_lost()
    await stage.is_told((SOME, True))


async def cut_with_little_left_and_others_behind_it(stage: Stage, client: Client) -> None:
    await _cut_before_another(stage, client, SOME)


async def read_as_a_whole(stage: Stage, client: Client) -> None:
    for size in (LARGE, 10, LARGE):
        await client.ask(size)
        await client.take()
    client.close()
    await stage.is_lost()
    await stage.is_told()


async def small_and_unread(stage: Stage, client: Client) -> None:
    """What the kernel has is sent, whether or not anybody reads it."""
    await client.ask(1_000)
    await stage.is_written(1)
    client.close()
    await stage.is_lost()
    await stage.is_told()


async def cut_after_one_that_was_read(stage: Stage, client: Client) -> None:
    await client.ask(LARGE)
    await client.take()
    await client.ask(LARGE + 1)
    await client.begin()
    client.close()
    await stage.is_lost()
    await stage.is_told((LARGE + 1, True))


async def cut_with_others_behind_it(stage: Stage, client: Client) -> None:
    await _cut_before_another(stage, client, LARGE)


async def _cut_before_another(stage: Stage, client: Client, size: int) -> None:
    """The next answer waits to be written until all of this one is taken; so it is lost as a whole."""
    await client.ask(size)
    await client.begin()
    await client.ask(10)
    async with asyncio.timeout(END_S):
        while stage.asked < 2:
            await asyncio.sleep(0.001)
    client.close()
    await stage.is_lost()
    await stage.is_told((size, True), (10, False))


async def asked_ahead_and_read(stage: Stage, client: Client) -> None:
    for size in (LARGE, 10, LARGE):
        await client.ask(size)
    for _ in range(3):
        await client.take()
    client.close()
    await stage.is_lost()
    await stage.is_told()


async def read_behind_a_refusal(stage: Stage, client: Client) -> None:
    """Another protocol has the connection as it is read to its end."""
    await client.ask(LARGE)
    await client.begin()
    await client.send(b"no request\r\n\r\n")
    await client.take_all()
    client.close()
    await stage.is_lost()
    await stage.is_told()


async def stopped_while_it_is_not_read(stage: Stage, client: Client) -> None:
    await client.ask(LARGE)
    await client.begin()
    for protocol in stage.protocols:
        protocol.shutdown()
    await stage.is_lost()
    await stage.is_told((LARGE, True))


@pytest.mark.parametrize("media", ["application/json", "application/json; charset=utf-8"], ids=["plain", "asgi"])
@pytest.mark.parametrize("new_loop", LOOPS, ids=["asyncio", "uvloop"])
@pytest.mark.parametrize(
    "story",
    [
        cut_in_the_middle,
        cut_with_little_left,
        cut_with_little_left_and_others_behind_it,
        read_as_a_whole,
        small_and_unread,
        cut_after_one_that_was_read,
        cut_with_others_behind_it,
        asked_ahead_and_read,
        read_behind_a_refusal,
        stopped_while_it_is_not_read,
    ],
)
def test_an_answer_is_delivered_where_the_kernel_has_all_of_it_and_else_told_of_once(
    new_loop: Callable[[], asyncio.AbstractEventLoop], story: Story, media: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "_REST_S_MAX", 0.05)

    async def run() -> None:
        async with staged() as (stage, client):
            stage.media = media
            await story(stage, client)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(run())
