"""Processes that ask one another: who answers is heard, who does not is counted, nonsense is dropped."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from typing import Any

import pytest

from shared.console import peers as room
from shared.console.peers import Peers
from shared.redis import connect


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where everybody answers nobody is waited for in vain, so a busy machine may take its time."""
    monkeypatch.setattr(room, "ANSWER_S", 20.0)


@pytest.fixture
async def several(redis_url: str) -> AsyncIterator[list[Peers]]:
    prefix = f"t{secrets.token_hex(4)}"
    made = [Peers(redis_url, prefix, "queue", name) for name in ("a", "b", "c")]
    redis = connect(redis_url)
    for peer in made:
        peer.start()
    channel = f"{prefix}:queue:ask"
    while dict(await redis.pubsub_numsub(channel)).get(channel.encode()) != 3:
        await asyncio.sleep(0)
    yield made
    for peer in made:
        await peer.stop()
    await redis.aclose()


async def test_every_other_process_answers(several: list[Peers]) -> None:
    for peer in several:

        async def answer(question: Any, name: str = peer.name) -> Any:
            return [name, question]

        peer.answerers["who"] = answer
    heard = await several[0].ask("who", {"x": 1})
    assert heard.answers == {"b": ["b", {"x": 1}], "c": ["c", {"x": 1}]}
    assert heard.asked == 2


async def test_who_fails_or_does_not_know_the_question_is_counted_and_keeps_nobody_waiting(
    several: list[Peers], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "ANSWER_S", 3.0)  # one of them never answers

    async def good(_question: Any) -> Any:
        return "here"

    async def bad(_question: Any) -> Any:
        raise RuntimeError("no")

    several[1].answerers["who"], several[2].answerers["who"] = good, bad
    heard = await several[0].ask("who", None)
    assert heard == ({"b": "here"}, 2)


async def test_nonsense_on_the_channel_ends_nothing(several: list[Peers], redis_url: str) -> None:
    async def good(_question: Any) -> Any:
        return "here"

    several[1].answerers["who"] = several[2].answerers["who"] = good
    redis = connect(redis_url)
    for nonsense in (b"", b"\xff\xff", b"[]", b"\x94\xa1a\xa3who\xa1x\xc0"):
        await redis.publish(several[0]._channel, nonsense)
    await redis.aclose()
    assert (await several[0].ask("who", None)).answers == {"b": "here", "c": "here"}


async def test_without_redis_a_process_knows_itself_alone() -> None:
    alone = Peers(None, "p", "queue", "a")
    alone.start()
    assert await alone.ask("who", None) == ({}, 0)
    await alone.stop()
    lost = Peers("redis://127.0.0.1:1/0", "p", "queue", "a")
    assert await lost.ask("who", None) == ({}, 0)
    await lost.stop()
