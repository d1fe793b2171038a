"""Calls that pages make of the other service: what is passed on, what is not, and what a page is told."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from shared.console.relay import OtherServiceAway, ServiceRelay
from shared.errors import NotFound
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


@pytest.mark.parametrize(
    "path",
    [
        "/metrics",
        "/ui",
        "v1/me",
        "",
        "/v1/../metrics",
        "/v1/%2e%2e/metrics",
        "/v1/./x",
        "//evil.example/v1/me",
        "@evil.example/v1/me",
    ],
)
async def test_only_calls_of_the_interface_are_passed_on(relay: ServiceRelay, path: str) -> None:
    with pytest.raises(NotFound):
        await said(relay, "GET", path)


async def test_an_escaped_name_stays_escaped(relay: ServiceRelay) -> None:
    assert (await said(relay, "GET", "/v1/namespaces/a%2Fb/topics"))[0] == 404
    assert (await said(relay, "GET", "/v1/namespaces/a%00b/topics"))[0] == 422


async def test_a_service_that_does_not_answer_is_said_to_be_away() -> None:
    away = ServiceRelay("dag", "http://127.0.0.1:9")
    with pytest.raises(OtherServiceAway) as told:
        await away.ask("POST", "/v1/namespaces/default/dags", "", {}, b"{}", "")
    assert told.value.outcome == "none" and "http://127.0.0.1:9" in told.value.detail
    await away.close()


async def test_a_change_whose_answer_was_lost_may_have_happened() -> None:
    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(cut, "127.0.0.1", 0)
    away = ServiceRelay("dag", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    for method, outcome in (("POST", "unknown"), ("GET", "none")):
        with pytest.raises(OtherServiceAway) as told:
            await away.ask(method, "/v1/namespaces/default/dags", "", {}, b"", "")
        assert told.value.outcome == outcome
    await away.close()
    server.close()


async def test_a_service_that_was_not_named_is_not_there() -> None:
    with pytest.raises(NotFound, match="HEADGATE_DAG_URL"):
        await ServiceRelay("dag", None).ask("GET", "/v1/me", "", {}, b"", "")
