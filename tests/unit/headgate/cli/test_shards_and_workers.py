"""`headgate shards --dag`: numbers in columns, not objects in cells; `headgate workers`: who takes items."""

import json

from tests.unit.headgate.conftest import Run
from tests.unit.headgate.fakes import Service

SHARD = {
    "shard": 1,
    "owner": "d1",
    "dags": {"running": 5, "succeeded": 7},
    "nodes": {"released": 3, "succeeded": 18},
    "ack_lag_s": 0.25,
}
AT = "2030-01-01T00:00:00Z"
WORKER = {
    "name": "mail-1", "state": "alive", "host": "h", "version": "a1b2", "slots": 9, "running": 3, "since": AT,
    "last_seen": AT, "topics": [{"topic": "mail", "slots": 8, "running": 3}, {"topic": "x", "slots": 1}],
}  # fmt: skip


def test_dag_shards_are_a_table_of_numbers(service: Service, run: Run) -> None:
    service.reply = lambda *_: {"items": [SHARD], "next_cursor": None}
    code, out, _ = run("shards", "--dag")
    head, row = (line.split() for line in out.splitlines())
    assert code == 0
    assert dict(zip(head, row, strict=True)) == {
        "SHARD": "1",
        "STATE": "healthy",
        "OWNER": "d1",
        "DAGS_RUNNING": "5",
        "NODES_BLOCKED": "0",
        "NODES_RELEASED": "3",
        "OUTBOX": "0",
        "ACK_LAG_S": "0.25",
        "RELEASE_LAG_S": "-",
    }
    [told] = json.loads(run("shards", "--dag", "-o", "json")[1])
    assert told["dags"] == SHARD["dags"] and "dags_running" not in told


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
