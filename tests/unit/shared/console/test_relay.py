"""Calls that pages make of the other service: what is passed on, what is not, and what a page is told."""

import asyncio
from pathlib import Path

import httpx
import pytest

from services.queue.app import create_app
from services.queue.settings import QueueSettings
from shared.console.relay import OtherServiceAway, ServiceRelay
from shared.errors import NotFound


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
async def test_only_calls_of_the_interface_are_passed_on(path: str) -> None:
    """Whoever asks is told that nobody answers there; what is not passed on asks nobody."""
    with pytest.raises(NotFound):
        await ServiceRelay("queue", "http://127.0.0.1:9").ask("GET", path, "", {}, b"", "10.0.0.1")


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


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_who_has_no_token_for_this_service_reaches_the_other_through_it_neither(
    method: str, tmp_path: Path
) -> None:
    """The other one may ask for none, where only this one is reached from outside."""
    settings = QueueSettings(
        shards="postgresql://nobody@127.0.0.1:1/none#1",
        HEADGATE_TOKENS_FILE=tmp_path / "tokens.jsonl",
        HEADGATE_DAG_URL="http://127.0.0.1:9",
    )
    transport = httpx.ASGITransport(app=create_app(settings))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080") as client:
        answer = await client.request(method, "/ui/dag/v1/namespaces/default/dags")
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
