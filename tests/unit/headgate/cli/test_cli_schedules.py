"""What the command line does to schedules."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.headgate.conftest import Run
from tests.unit.headgate.fakes import Service

AT = "2030-01-01T00:00:00Z"
SCHEDULE = {
    "id": "nightly", "namespace": "default", "spec": {"cron": "0 3 * * *", "tz": "Europe/Paris"},
    "action": {"item": {"topic": "report"}}, "overlap": "skip", "catchup_s": 3600, "jitter_s": 0, "paused": False,
    "next_at": AT, "created_at": AT, "updated_at": AT,
}  # fmt: skip
TICK = {
    "tick": 1, "kind": "slot", "at": AT, "through": AT, "slots": 1, "decision": "started", "run": "d1",
    "decided_at": AT,
}  # fmt: skip


def test_a_schedule_is_put_as_it_is_said(service: Service, run: Run, tmp_path: Path) -> None:
    service.reply = lambda *_: SCHEDULE
    code, out, _ = run(
        *("schedule", "put", "nightly", '{"kind": "full"}', "--topic", "report"),
        *("--cron", "0 3 * * *", "--tz", "Europe/Paris", "--overlap", "buffer_one", "--max-attempts", "3"),
    )
    assert code == 0 and "0 3 * * * (Europe/Paris)" in out
    method, path, body = service.calls[-1]
    assert (method, path) == ("PUT", "/v1/namespaces/default/schedules/nightly")
    assert body == {
        "spec": {"cron": "0 3 * * *", "tz": "Europe/Paris"},
        "action": {"item": {"topic": "report", "payload": {"kind": "full"}, "max_attempts": 3}},
        "overlap": "buffer_one",
    }
    file = tmp_path / "dag.json"
    file.write_text(json.dumps({"name": "album", "nodes": [{"key": "a", "topic": "t"}]}))
    assert run("schedule", "put", "weekly", "--interval", "60", "--dag", str(file))[0] == 0
    body = service.calls[-1][2]
    assert body["spec"] == {"interval_s": 60} and body["action"]["dag"]["nodes"] == [{"key": "a", "topic": "t"}]
    assert run("schedule", "put", "daily", '{"n": 1}', "--interval", "60", "--workflow", "report")[0] == 0
    (node,) = service.calls[-1][2]["action"]["dag"]["nodes"]
    assert node["workflow"] == {"type": "report", "input": {"n": 1}}
    with pytest.raises(SystemExit):
        run("schedule", "put", "x", "--at", "soon", "--topic", "t")


def test_schedules_are_listed_shown_and_stopped(service: Service, run: Run) -> None:
    def reply(method: str, path: str, _body: Any) -> Any:
        if method == "DELETE":
            return {"id": "nightly", "deleted": True}
        if "/ticks" in path:
            return {"items": [TICK], "next_cursor": None}
        if path.endswith("/trigger"):
            return TICK
        if path.endswith("/backfill"):
            return {"slots": 7}
        return SCHEDULE if "/nightly" in path else {"items": [SCHEDULE], "next_cursor": None}

    service.reply = reply
    assert "0 3 * * * (Europe/Paris)" in run("schedule", "list")[1]
    assert "nightly" in run("schedule", "show", "nightly", "-o", "json")[1]
    assert "started" in run("schedule", "ticks", "nightly")[1]
    assert "d1" in run("schedule", "trigger", "nightly")[1]
    assert run("schedule", "pause", "nightly", "--reason", "moving")[0] == 0
    assert service.calls[-1][2] == {"reason": "moving"}
    assert run("schedule", "resume", "nightly")[0] == 0
    assert run("schedule", "backfill", "nightly", AT, "2030-01-08T00:00:00Z")[1] == "7 slots\n"
    assert run("schedule", "delete", "nightly")[1] == "nightly is deleted\n"


def test_a_schedule_that_is_paused_has_no_next_slot_to_look_forward_to(service: Service, run: Run) -> None:
    listed = {**SCHEDULE, "paused": True}
    service.reply = lambda *_: {"items": [listed, {**SCHEDULE, "id": "hourly"}], "next_cursor": None}
    lines = {line.split()[0]: line for line in run("schedule", "list")[1].splitlines()}
    assert "2030" in lines["hourly"] and "2030" not in lines["nightly"]
    assert AT in run("schedule", "list", "-o", "json")[1]
    service.reply = lambda *_: listed
    assert "next_at" not in run("schedule", "pause", "nightly")[1]
