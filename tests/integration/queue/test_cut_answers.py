"""A dequeue's answer of which its caller reads a little and hangs up: nobody has got the items."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.apps import Service, queue_service
from tests.support.databases import Database

PATH = "/v1/namespaces/default"
ITEMS, PAYLOAD = 200, "x" * 60_000  # more than the kernel's buffers take
END_S = 30


@pytest.fixture
async def service(database: Database, redis_url: str) -> AsyncIterator[Service]:
    async with queue_service(database, redis_url) as made:
        yield made


async def fill(service: Service, count: int, **fields: Any) -> None:
    for at in range(0, count, 100):
        items = [{"topic": "t", "payload": PAYLOAD, **fields} for _ in range(min(100, count - at))]
        answer = await service.client.post(f"{PATH}/enqueue", json={"items": items})
        assert {result["status"] for result in answer.json()["results"]} == {"enqueued"}


async def cut(service: Service, count: int) -> None:
    """Ask for so many items, read the beginning of the answer and hang up."""
    loop = asyncio.get_running_loop()
    body = json.dumps({"topics": [{"topic": "t", "count": count}], "lease_s": 600})
    head = f"POST {PATH}/dequeue HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    with socket.socket() as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        made.setblocking(False)
        await loop.sock_connect(made, ("127.0.0.1", service.client.base_url.port))
        await loop.sock_sendall(made, f"{head}content-length: {len(body)}\r\n\r\n{body}".encode())
        assert await loop.sock_recv(made, 100)


async def standing(service: Service) -> dict[str, int]:
    [topic] = (await service.client.get(f"{PATH}/topics")).json()["items"]
    return {name: topic[name] for name in ("ready", "leased", "dead")}


async def until_standing(service: Service, **expected: int) -> None:
    async with asyncio.timeout(END_S):
        while await standing(service) != {"ready": 0, "leased": 0, "dead": 0} | expected:
            await asyncio.sleep(0.02)


async def test_items_of_an_answer_that_was_cut_are_handed_back_at_no_attempt(service: Service) -> None:
    """Also those that have one attempt only; a lease of ten minutes is not waited for."""
    await fill(service, ITEMS, max_attempts=1)
    await cut(service, ITEMS)
    await until_standing(service, ready=ITEMS)
    found: list[Any] = []
    async with asyncio.timeout(END_S):
        while len(found) < ITEMS:
            wanted = {"topics": [{"topic": "t", "count": ITEMS}], "wait_s": 1}
            found += (await service.client.post(f"{PATH}/dequeue", json=wanted)).json()["items"]
    assert {item["attempt"] for item in found} == {1}


async def test_what_is_delivered_at_most_once_is_not_where_a_byte_of_its_answer_has_left(service: Service) -> None:
    await fill(service, ITEMS - 20)
    await fill(service, 20, delivery="at_most_once")
    await cut(service, ITEMS)
    await until_standing(service, ready=ITEMS - 20, leased=20)
