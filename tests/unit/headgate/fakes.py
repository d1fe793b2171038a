"""A service made of scripted answers, behind httpx's seam: for both clients, without a socket or a sleep."""

import json
from collections.abc import Callable
from typing import Any

import httpx

Answer = httpx.Response | Exception


def problem(status: int, code: str, outcome: str = "none", **more: Any) -> httpx.Response:
    headers = {"content-type": "application/problem+json"}
    if "retry_after" in more:
        headers["retry-after"] = str(more.pop("retry_after"))
    body = {"type": "about:blank", "title": code, "status": status, "code": code, "outcome": outcome, **more}
    return httpx.Response(status, json=body, headers=headers)


class Service(httpx.MockTransport):
    """Answers each call by `reply`, and remembers what was asked."""

    def __init__(self, reply: Callable[[str, str, Any], Answer | Any]) -> None:
        super().__init__(self._answer)
        self.reply = reply
        self.calls: list[tuple[str, str, Any]] = []

    def _answer(self, request: httpx.Request) -> httpx.Response:
        path = request.url.raw_path.decode()
        body = json.loads(request.content) if request.content else None
        self.calls.append((request.method, path, body))
        answer = self.reply(request.method, path, body)
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, httpx.Response) else httpx.Response(200, json=answer)

    def asked(self, part: str) -> list[Any]:
        """The bodies of the calls whose path holds `part`."""
        return [body for _, path, body in self.calls if part in path]


def shards(*numbers: int) -> dict[str, Any]:
    return {"items": [{"shard": number, "state": "healthy"} for number in numbers], "next_cursor": None}


def enqueued(body: Any) -> dict[str, Any]:
    return {"results": [{"id": item.get("id", "made"), "status": "enqueued"} for item in body["items"]]}
