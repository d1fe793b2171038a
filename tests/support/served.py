"""A queue service behind the real edge, in the test's own process, and clients that speak to it byte by byte."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import uvicorn

from services.queue.app import create_app
from services.queue.settings import QueueSettings
from shared.http.hot_path import HotPath
from shared.http.serve import guarded
from tests.support.databases import Database, Databases
from tests.support.ports import free_port

ENQUEUE = b"POST /v1/namespaces/default/enqueue HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
GET = b"GET /livez HTTP/1.1\r\nhost: localhost\r\n"
LIMIT = 4096
END_S = 20.0
# Settings with which who is slow is cut soon.
SLOW = {"head_s_max": 0.3, "body_s_max": 0.3, "write_s_max": 0.3}


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave Ctrl-C to pytest."""
        yield


class Served(NamedTuple):
    """A queue service behind the real edge."""

    port: int
    app: HotPath
    server: uvicorn.Server
    ended: asyncio.Task[None]


@pytest.fixture
async def edge_database(databases: Databases) -> AsyncIterator[Database]:
    """One shard is enough for who looks at the edge."""
    made = await databases.create(queue_shards=1, dag_shards=1)
    yield made
    await databases.drop(made)


@pytest.fixture
async def served(edge_database: Database, request: pytest.FixtureRequest) -> AsyncIterator[Served]:
    """One with small limits. The parameter overrides settings."""
    given = dict(getattr(request, "param", {}))
    if given.pop("tokens", False):
        given["HEADGATE_TOKENS_FILE"] = "/nowhere/tokens"
    settings = QueueSettings(
        **{
            "shards": edge_database.queue_shards,
            "body_bytes_max": LIMIT,
            "head_s_max": END_S,
            "body_s_max": END_S,
            "connections_max": 20,
            **given,
        }
    )
    port = free_port()
    app = create_app(settings)
    config = uvicorn.Config(
        app,
        host="127.0.0.1",
        port=port,
        http=guarded(settings, app),
        log_level="warning",
        timeout_graceful_shutdown=1,
        timeout_keep_alive=1,
    )
    server = _Server(config)
    serving = asyncio.create_task(server.serve())
    async with asyncio.timeout(END_S):
        while not server.started:
            await asyncio.sleep(0.01)
    yield Served(port, app, server, serving)
    server.should_exit = True
    await serving


@pytest.fixture
def port(served: Served) -> int:
    """Where it listens."""
    return served.port


async def talk(port: int, *parts: bytes) -> bytes:
    """Send these parts; all that is answered until the server closes, or has nothing more to say."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
        async with asyncio.timeout(END_S):
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(
                (int(line[15:]) for line in head.lower().split(b"\r\n") if line[:15] == b"content-length:"), 0
            )
            return head + await reader.readexactly(length)
    except asyncio.IncompleteReadError as error:
        return error.partial
    finally:
        writer.close()


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer else 0


ITEM = '{"items":[{"topic":"edge"}]}'


class Talk:
    """One connection that is kept, to the verbs of one topic."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer

    @classmethod
    async def open(cls, port: int) -> "Talk":
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    def send(self, verb: str, body: str, *, fields: str = "") -> None:
        head = (
            f"POST /v1/namespaces/default/{verb} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        )
        self.writer.write(f"{head}{fields}content-length: {len(body)}\r\n\r\n{body}".encode())

    async def answer(self) -> tuple[int, bytes, dict[str, Any]]:
        """Status, head and decoded body of the next answer."""
        async with asyncio.timeout(END_S):
            head = await self._reader.readuntil(b"\r\n\r\n")
            length = next(
                int(line[15:]) for line in head.lower().split(b"\r\n") if line[:15] == b"content-length:"
            )
            return status(head), head.lower(), json.loads(await self._reader.readexactly(length))

    async def rest(self) -> bytes:
        """What comes until the service closes the connection."""
        async with asyncio.timeout(END_S):
            return await self._reader.read()

    async def is_closed(self) -> bool:
        return await self.rest() == b""


@pytest.fixture
async def talk_on(port: int) -> AsyncIterator[Talk]:
    talk_on = await Talk.open(port)
    yield talk_on
    talk_on.writer.close()
