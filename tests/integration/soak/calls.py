"""Single calls, and what is known of each afterwards; nothing is sent again by itself.

`ok`: it was answered. `fail`: the answer says that nothing was done. `info`: nobody knows; it may take effect at
any time after it was sent (the convention of Jepsen). Times are `time.monotonic()` of this process.
"""

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal

import httpx

Known = Literal["ok", "fail", "info"]

NAMESPACE = "/v1/namespaces/soak"
# A process that stands still is found out by this only.
TIMEOUT_S = 4.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of one call, sent and done when."""

    known: Known
    sent: float
    done: float
    status: int = 0
    body: Any = None

    @property
    def code(self) -> str:
        """Of a refusal; empty otherwise."""
        return str(self.body.get("code", "")) if isinstance(self.body, dict) else ""

    @property
    def reason(self) -> str:
        """For counts: why it is not `ok`."""
        return "" if self.known == "ok" else f" {self.code or 'no answer'}"

    def results(self, count: int) -> list[tuple[Known, dict[str, Any]]]:
        """What is known of each element of a batch, and its result."""
        if self.known != "ok":
            return [(self.known, {})] * count
        found = self.body["results"]
        assert len(found) == count, f"{len(found)} results for {count} elements"
        return [(known_of(result), result) for result in found]


def known_of(result: dict[str, Any]) -> Known:
    """What one element's result says of it."""
    if result["status"] != "refused":
        return "ok"
    return "fail" if result["outcome"] == "none" else "info"


class Caller:
    """One client with connections of its own."""

    def __init__(self, url: str) -> None:
        self._client = httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S)

    async def __aenter__(self) -> "Caller":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()

    async def post(self, path: str, body: Any = None) -> Answer:
        return await self.call("POST", path, json={} if body is None else body)

    async def get(self, path: str, **query: Any) -> Answer:
        return await self.call("GET", path, params=query)

    async def until_ok(self, method: str, path: str, *, within_s: float, **rest: Any) -> Answer:
        """The same call over and over, for those that may be repeated."""
        async with asyncio.timeout(within_s):
            while (answer := await self.call(method, path, **rest)).known != "ok":
                await asyncio.sleep(0.1)
        return answer

    async def call(self, method: str, path: str, **rest: Any) -> Answer:
        sent = time.monotonic()
        try:
            answer = await self._client.request(method, NAMESPACE + path, **rest)
        except httpx.ConnectError:
            await asyncio.sleep(0.05)
            return Answer("fail", sent, time.monotonic())
        except httpx.TransportError:
            return Answer("info", sent, time.monotonic())
        done = time.monotonic()
        if answer.is_success:
            return Answer("ok", sent, done, answer.status_code, answer.json())
        body: Any = None
        with suppress(ValueError):
            body = answer.json()
        assert answer.status_code != 500, f"{path}: {answer.text}"
        assert isinstance(body, dict), f"{path}: {answer.status_code} {answer.text!r}"
        known: Known = "fail" if body["outcome"] == "none" else "info"
        return Answer(known, sent, done, answer.status_code, body)
