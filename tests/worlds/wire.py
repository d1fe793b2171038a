"""Calls to processes inside this loop, and what is known of each afterwards.

`ok`: it was answered. `fail`: the answer says that nothing was done. `info`: nobody knows; it may have taken
effect (the convention of Jepsen).
"""

import asyncio
from contextvars import Context
from dataclasses import dataclass
from typing import Any, Literal

import httpx

Known = Literal["ok", "fail", "info"]


class Cut(httpx.AsyncBaseTransport):
    """The connections to one process: they end when it is killed, whatever is on its way."""

    def __init__(self, app: Any, machine: Context) -> None:
        self._inner = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        self._machine = machine
        self._calls: set[asyncio.Task[httpx.Response]] = set()
        self.is_cut = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self.is_cut:
            raise httpx.ConnectError("the process is dead", request=request)
        calling = self._inner.handle_async_request(request)
        call = asyncio.get_running_loop().create_task(calling, context=self._machine.copy())
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        await asyncio.wait([call])
        if self.is_cut or call.cancelled():
            raise httpx.ReadError("the process died", request=request)
        return call.result()

    def cut(self) -> list[asyncio.Task[httpx.Response]]:
        """End everything; the calls that are being ended."""
        self.is_cut = True
        ending = list(self._calls)
        for call in ending:
            call.cancel()
        return ending


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of one call that was made at `sent` and over before `done`, in seconds of the world's clock."""

    known: Known
    sent: float
    done: float
    status: int = 0
    body: Any = None

    @property
    def code(self) -> str:
        """Of a refusal; empty otherwise."""
        return str(self.body.get("code", "")) if isinstance(self.body, dict) else ""

    def results(self, count: int, settled: str = "") -> list[tuple[Known, dict[str, Any]]]:
        """What is known of each element of a batch, and its result; `settled`: of that part of what a dequeue
        settles."""
        if self.known != "ok":
            return [(self.known, {})] * count
        found = self.body["results"]
        found = found[settled] if settled else found
        assert len(found) == count, f"{len(found)} results for {count} elements"
        return [(known_of(result), result) for result in found]

    def __str__(self) -> str:
        if self.known == "info":
            return "no answer"
        if self.known == "fail":
            return f"{self.status} {self.code}"
        results = self.body.get("results", ())
        parts = results.values() if isinstance(results, dict) else [results]
        statuses = [result.get("status") for part in parts for result in part]
        return f"{self.status} {' '.join(map(str, statuses))}".rstrip()


def known_of(result: dict[str, Any]) -> Known:
    """What one element's result says of it."""
    if result["status"] != "refused":
        return "ok"
    return "fail" if result["outcome"] == "none" else "info"
