"""A subscription that is never needed: whatever becomes of it, or of what is said there, it is made again."""

import asyncio
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from shared import redis
from shared.redis import listen


class Ear:
    """Each subscription says what it is to say, then fails; the last one is silent."""

    def __init__(self, *subscriptions: list[bytes | Exception]) -> None:
        self.left = list(subscriptions)
        self.now: list[bytes | Exception] = []

    def pubsub(self, **_options: Any) -> "Ear":
        return self

    async def __aenter__(self) -> "Ear":
        self.now = self.left.pop(0)
        return self

    async def __aexit__(self, *_error: object) -> None: ...

    async def subscribe(self, channel: str) -> None: ...

    async def get_message(self, timeout: float | None) -> dict[str, Any]:
        if not self.now:
            await asyncio.Event().wait()
        said = self.now.pop(0)
        if isinstance(said, Exception):
            raise said
        return {"data": said}


@pytest.mark.parametrize("error", [RedisConnectionError("lost"), AttributeError("of the client's own making")])
async def test_a_subscription_that_fails_in_any_way_is_made_again(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis, "LISTEN_AGAIN_S", 0.001)
    heard: list[bytes] = []
    last = asyncio.Event()

    def hear(data: bytes) -> None:
        heard.append(data)
        if data == b"bad":
            raise ValueError("no such message")
        if data == b"last":
            last.set()

    ear: Any = Ear([b"first", b"bad", b"third", error], [b"last"])
    listening = asyncio.create_task(listen(ear, "channel", hear))
    await asyncio.wait_for(last.wait(), 5)
    listening.cancel()
    await asyncio.wait([listening])
    assert heard == [b"first", b"bad", b"third", b"last"]
