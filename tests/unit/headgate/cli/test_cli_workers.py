"""`headgate workers`: who takes items."""

import json

from tests.unit.headgate.conftest import Run
from tests.unit.headgate.fakes import Service

AT = "2030-01-01T00:00:00Z"
WORKER = {
    "name": "mail-1", "state": "alive", "host": "h", "version": "a1b2", "slots": 9, "running": 3, "since": AT,
    "last_seen": AT, "topics": [{"topic": "mail", "slots": 8, "running": 3}, {"topic": "x", "slots": 1}],
}  # fmt: skip


def test_workers_are_listed_page_by_page(service: Service, run: Run) -> None:
    pages = [
        {"items": [WORKER], "next_cursor": "c"},
        {"items": [{**WORKER, "name": "curl"}], "next_cursor": None},
    ] * 2
    service.reply = lambda *_: pages.pop(0)
    code, out, _ = run("workers")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == ["NAME", "mail-1", "curl"]
    assert "mail x" in out and "a1b2" in out
    assert [worker["running"] for worker in json.loads(run("workers", "-o", "json")[1])] == [3, 3]


def test_those_that_went_are_asked_for_and_none_is_said(service: Service, run: Run) -> None:
    service.reply = lambda *_: {"items": [], "next_cursor": None}
    assert run("workers", "--gone")[1] == "no workers\n"
    assert "gone=true" in service.calls[-1][1]
