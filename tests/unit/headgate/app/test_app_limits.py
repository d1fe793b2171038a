"""The limits of functions, which a worker sets before it takes anything."""

from typing import Any

import pytest

from headgate import App, AsyncClient, Forbidden, RetryPolicy
from headgate._app.worker import AppWorker
from tests.unit.headgate.fakes import Service, problem

ONCE = RetryPolicy(attempts_max=1)
STANDING = {"topic": "job/f", "rate": 2.0, "burst": 2, "concurrency": 3, "in_flight": 0, "key_concurrency": 1}
SET = {"topic": "job/f", "rate": 2, "burst": 2, "concurrency": 3, "key_concurrency": 1}


def worker_of(service: Service) -> AppWorker:
    app = App("bank")
    app.job(name="f", rate=2, concurrency=3, key_concurrency=1)(lambda: None)
    app.job(name="g")(lambda: None)
    client = AsyncClient(queue_url="http://q", dag_url="http://d", transport=service, retry=ONCE)
    return AppWorker(app, client=client)


@pytest.mark.parametrize(
    ("found", "sent"),
    [
        ([], [SET]),
        ([{**STANDING, "concurrency": 9}], [SET]),
        ([{**STANDING, "key_concurrency": None}], [SET]),
        ([STANDING], []),
    ],
    ids=["none", "others", "others of keys", "the same"],
)
async def test_limits_are_set_where_they_do_not_stand(found: list[Any], sent: list[Any]) -> None:
    def reply(method: str, _path: str, body: Any) -> Any:
        return {"items": found, "next_cursor": None} if method == "GET" else body

    service = Service(reply)
    await worker_of(service)._bring_limits()
    assert [body for method, _, body in service.calls if method == "PUT"] == sent


async def test_a_worker_that_may_not_set_its_limits_takes_nothing() -> None:
    def reply(method: str, _path: str, _body: Any) -> Any:
        return {"items": [], "next_cursor": None} if method == "GET" else problem(403, "forbidden")

    service = Service(reply)
    with pytest.raises(Forbidden):
        await worker_of(service).run(signals=False)
    assert service.asked("dequeue") == []


async def test_a_service_that_is_away_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate._app.worker.pause_s", lambda _: 0.0)
    answers: list[Any] = [
        problem(503, "unavailable"),
        {"items": [], "next_cursor": None},
        problem(503, "unavailable"),
    ]
    service = Service(lambda *_: answers.pop(0) if answers else {"items": [STANDING], "next_cursor": None})
    await worker_of(service)._bring_limits()
    assert len(service.calls) == 4
