"""Calls of pages that are passed on to the other service, and what it says to them."""

from collections.abc import AsyncIterator

import pytest

from shared.console.relay import ServiceRelay
from tests.support.apps import Service


@pytest.fixture
async def relay(queue_service: Service) -> AsyncIterator[ServiceRelay]:
    made = ServiceRelay("queue", queue_service.url)
    yield made
    await made.close()


async def said(
    relay: ServiceRelay, method: str, path: str, query: str = "", body: bytes = b""
) -> tuple[int, bytes]:
    headers = {
        "content-type": "application/json",
        "cookie": "a=b",
        "host": "evil.example",
        "origin": "http://evil.example",
    }
    answer = await relay.ask(method, path, query, headers, body, "10.0.0.1")
    return answer.status, b"".join([part async for part in answer.body()])


async def test_calls_and_refusals_come_as_they_are(relay: ServiceRelay) -> None:
    made = await said(relay, "POST", "/v1/namespaces/default/enqueue", body=b'{"items": [{"topic": "a"}]}')
    assert made[0] == 201
    status, text = await said(relay, "GET", "/v1/namespaces/default/items", "topic=a&limit=1")
    assert status == 200 and b'"topic":"a"' in text
    assert (await said(relay, "GET", "/v1/namespaces/default/items", "nothing=1"))[0] == 422
    assert (await said(relay, "GET", "/v1/nothing"))[0] == 404


async def test_an_escaped_name_stays_escaped(relay: ServiceRelay) -> None:
    assert (await said(relay, "GET", "/v1/namespaces/a%2Fb/topics"))[0] == 404
    assert (await said(relay, "GET", "/v1/namespaces/a%00b/topics"))[0] == 422
