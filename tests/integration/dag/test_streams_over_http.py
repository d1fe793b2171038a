"""Event streams over real sockets: both clients follow, a shutdown ends them at once, a mute reader is cut."""

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from headgate import AsyncClient, AsyncDagHandle, Client, Dag, RetryPolicy
from tests.support.apps import DAG_TOKEN, Service, queue_service
from tests.support.databases import Databases
from tests.support.ports import free_port


@pytest.fixture(scope="module")
async def queue(databases: Databases, redis_url: str) -> AsyncIterator[Service]:
    database = await databases.create(queue_shards=1, dag_shards=1)
    async with queue_service(database, redis_url) as made:
        yield made
    await databases.drop(database)


@asynccontextmanager
async def serving(
    queue: Service, redis_url: str, port: int, **more: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A DAG service in a process of its own, ready."""
    environment = {
        **os.environ,
        "HEADGATE_DAG_SHARDS": queue.database.dag_shards,
        "HEADGATE_DAG_PORT": str(port),
        "HEADGATE_QUEUE_URL": queue.url,
        "HEADGATE_REDIS_URL": redis_url,
        "HEADGATE_DAG_TOKEN": DAG_TOKEN,
        "HEADGATE_DAG_DRAIN_S": "0",
        **more,
    }
    command = (sys.executable, "-m", "services.dag")
    process = await asyncio.create_subprocess_exec(*command, env=environment, stderr=asyncio.subprocess.PIPE)
    try:
        async with httpx.AsyncClient() as http, asyncio.timeout(120):
            while not await _ready(http, port):
                await asyncio.sleep(0.05)
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _ready(http: httpx.AsyncClient, port: int) -> bool:
    try:
        return (await http.get(f"http://127.0.0.1:{port}/readyz")).status_code == 200
    except httpx.TransportError:
        return False


async def test_streams_live_through_a_restart_and_end_with_the_dag(queue: Service, redis_url: str) -> None:
    port = free_port()
    settings: Any = {
        "queue_url": queue.url,
        "dag_url": f"http://127.0.0.1:{port}",
        "retry": RetryPolicy(attempts_max=2_000, delay_s_max=0.3, budget=5_000),
    }
    dag = Dag("streamed")
    dag.node("b", "streamed", after=[dag.node("a", "streamed")])
    told: list[str] = []
    blocking: list[str] = []

    def follow(dag_id: str) -> None:
        with Client(**settings) as client:
            blocking.extend(event.id for event in client.dag(dag_id).events())

    async def follow_too(handle: AsyncDagHandle) -> None:
        async for event in handle.events():
            told.append(f"{event.key or 'DAG'} {event.state}")

    async with AsyncClient(**settings) as client, asyncio.timeout(200):
        async with serving(queue, redis_url, port) as process:
            handle = await client.submit(dag)
            following = [
                asyncio.create_task(follow_too(handle)),
                asyncio.create_task(asyncio.to_thread(follow, handle.id)),
                asyncio.create_task(handle.wait()),
            ]
            while "a released" not in told:
                await asyncio.sleep(0.01)
            process.terminate()
            assert process.stderr is not None
            said = (await process.stderr.read()).decode()
            # What does not end by itself is cancelled after a grace, and told.
            assert "graceful shutdown exceeded" not in said, said
        async with serving(queue, redis_url, port):
            for _ in range(2):
                item = await client.dequeue_one("streamed", wait_s=30)
                assert item is not None
                await client.ack_one(item)
            await asyncio.gather(*following)
    assert told[-1] == "DAG succeeded"
    assert len(told) == len(set(told)) == len(blocking)
    assert blocking == [str(i) for i in range(1, len(blocking) + 1)]


async def test_a_reader_that_takes_nothing_is_cut_and_its_place_is_free(queue: Service, redis_url: str) -> None:
    port = free_port()
    limits = {"HEADGATE_DAG_WRITE_S_MAX": "0.5", "HEADGATE_DAG_EVENT_STREAMS_MAX": "1"}
    base = f"http://127.0.0.1:{port}/v1/namespaces/default/dags"
    async with serving(queue, redis_url, port, **limits), httpx.AsyncClient(timeout=30) as http:
        made = (await http.post(base, json={"open": True, "hold": True})).json()
        for call in range(20):
            nodes = [{"key": f"{call}.{i}.{'x' * 180}", "topic": "never"} for i in range(1000)]
            answer = await http.post(f"{base}/{made['id']}/nodes", json={"nodes": nodes})
            assert answer.status_code == 201, answer.text
        with socket.socket() as mute:
            mute.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            mute.connect(("127.0.0.1", port))
            path = f"/v1/namespaces/default/dags/{made['id']}/events"
            mute.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            async with asyncio.timeout(60):
                refused = True
                while refused:
                    async with http.stream("GET", f"{base}/{made['id']}/events") as answer:
                        refused = answer.status_code == 503
                    await asyncio.sleep(0.1)
