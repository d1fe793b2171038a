"""Following events: a stream that is cut is gone on with, nothing twice, nothing left out, and it ends."""

import json
import random
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from headgate import errors, wire
from headgate._calls.verbs import DAG_EVENTS, Call, call
from headgate._client.aio.client import AsyncClient
from headgate._client.blocking.events import follow
from headgate._http.transport import Endpoints, Exchange, RetryPolicy, SyncTransport
from tests.unit.headgate.fakes import Service, problem


def event(number: int, kind: str = "node", state: str = "released") -> dict[str, Any]:
    return {"id": str(number), "kind": kind, "dag": "d1", "at": "2030-01-01T00:00:00Z", "state": state, "key": "k"}


END = event(9, "dag", "succeeded")


class Cut(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body that breaks after its text."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __iter__(self) -> Any:
        yield self._text.encode()
        raise httpx.ReadError("reset")

    async def __aiter__(self) -> Any:
        yield self._text.encode()
        raise httpx.ReadError("reset")


def frames(*events: dict[str, Any]) -> str:
    return "retry: 1000\n\n:\n\n" + "".join(f"id: {e['id']}\ndata: {json.dumps(e)}\n\n" for e in events)


def stream(*events: dict[str, Any]) -> httpx.Response:
    return httpx.Response(200, text=frames(*events))


def cut(*events: dict[str, Any], rest: str = "") -> httpx.Response:
    return httpx.Response(200, stream=Cut(frames(*events) + rest))


def ask(query: Any) -> Call[wire.DagEvent]:
    return call(DAG_EVENTS, wire.DagEvent.model_validate, ns="default", dag="d1", query=query)


def following(*answers: Any, after: str | None = None) -> tuple[list[str], Service, list[float]]:
    left = list(answers)
    service = Service(lambda *_: left.pop(0))
    slept: list[float] = []
    endpoints = Endpoints("http://queue.test", "http://dag.test")
    exchange = Exchange(endpoints, RetryPolicy(attempts_max=3), random.Random(1))
    transport = SyncTransport(exchange, service, slept.append)
    found = [event.id for event in follow(transport, ask, after)]
    assert left == []
    return found, service, slept


@pytest.mark.parametrize(
    "breaks",
    [
        lambda: stream(event(1), event(2)),
        lambda: cut(event(1), event(2)),
        lambda: cut(event(1), event(2), rest='id: 3\ndata: {"id": "3", "ki'),
    ],
)
def test_a_stream_that_is_cut_is_gone_on_with_after_its_last_event(breaks: Callable[[], Any]) -> None:
    found, service, slept = following(
        breaks(), httpx.ConnectError("down"), problem(503, "shutting_down"), stream(event(3), END), after="0"
    )
    assert found == ["1", "2", "3", "9"]
    assert [path.partition("?after=")[2] for _, path, _ in service.calls] == ["0", "2", "2", "2"]
    assert len(slept) == 3


def test_nothing_more_to_come_ends_it() -> None:
    assert following(httpx.Response(204), after="9")[0] == []
    assert following(cut(event(1), END), httpx.Response(204))[0] == ["1", "9"]


def test_a_dag_that_failed_and_was_retried_before_is_followed_past_its_old_end() -> None:
    failed = event(2, "dag", "failed")
    assert following(stream(event(1), failed, event(3)), stream(END))[0] == ["1", "2", "3", "9"]


def test_it_gives_up_when_nothing_comes_for_as_long_as_a_call_is_tried() -> None:
    with pytest.raises(errors.ConnectionFailed):
        following(stream(), stream(), stream())
    with pytest.raises(errors.NotFound):
        following(problem(404, "not_found"))


async def test_coroutines_follow_the_same_way() -> None:
    left = [cut(event(1)), stream(event(2), END)]
    service = Service(lambda *_: left.pop(0))
    async with AsyncClient(dag_url="http://d", transport=service, retry=RetryPolicy(base_s=0.0)) as client:
        assert [event.id async for event in client.dag("d1").events()] == ["1", "2", "9"]
