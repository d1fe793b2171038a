"""`headgate workflow`: runs by the version of their code, and ends of many at once."""

import json
from typing import Any

from tests.unit.headgate.conftest import Run
from tests.unit.headgate.fakes import Service
from tests.unit.headgate.workflow.test_worker import RUN

AT = "2030-01-01T00:00:00Z"
STUCK = {"code": "history_mismatch", "error": "parts", "attempts": 3, "since": AT}


def worker_of(*topics: str) -> dict[str, Any]:
    shown = [{"topic": topic} for topic in topics]
    return {"name": "w", "state": "alive", "since": AT, "last_seen": AT, "topics": shown}


def test_open_runs_are_counted_by_version_with_the_workers_that_have_it(service: Service, run: Run) -> None:
    runs = [{**RUN, "version": "2", "stuck": STUCK}, {**RUN, "version": "2"}, {**RUN, "version": None}]
    workers = [worker_of("wf/order", "mail"), worker_of("wf/order")]
    service.reply = lambda _m, path, _b: {"items": workers if "/workers" in path else runs, "next_cursor": None}
    code, out, _ = run("workflow", "versions", "order", "-o", "json")
    assert code == 0
    assert json.loads(out) == [
        {"type": "order", "version": None, "running": 1, "stuck": 0, "workers": 2},
        {"type": "order", "version": "2", "running": 2, "stuck": 1, "workers": 0},
    ]
    assert run("workflow", "versions")[1].splitlines()[0].split() == [
        "TYPE", "VERSION", "RUNNING", "STUCK", "WORKERS",
    ]  # fmt: skip
    service.reply = lambda *_: {"items": [], "next_cursor": None}
    assert run("workflow", "versions")[1] == "no open runs\n"


def test_one_run_or_all_of_some_are_asked_to_end(service: Service, run: Run) -> None:
    service.reply = lambda _m, path, _b: {"items": [RUN, RUN], "next_cursor": None} if "?" in path else RUN
    assert run("workflow", "cancel", "order-17", "--reason", "why")[0] == 0
    path, body = service.calls[-1][1:]
    assert path == "/v1/namespaces/default/workflows/order-17/cancel"
    assert body["reason"] == "why" and body["id"], "sent again it is one"
    assert run("workflow", "cancel", "--type", "order", "--stuck")[1] == "asked to end: 2\n"
    for words in ((), ("order-17", "--type", "order")):
        code, _, said = run("workflow", "cancel", *words)
        assert code != 0 and "give an id, or which runs" in said


def test_a_run_is_awaited_and_its_end_is_the_exit_code(service: Service, run: Run) -> None:
    over = {**RUN, "output": 1, "parked": False}
    for state, code in (("succeeded", 0), ("failed", 1), ("running", 1)):
        service.reply = lambda *_, state=state: {**over, "state": state}
        found = run("workflow", "wait", "order-17", "--timeout", "2", "-o", "json")
        assert (found[0], json.loads(found[1])["state"]) == (code, state)
    assert service.calls[-1][1] == "/v1/namespaces/default/workflows/order-17/wait?timeout_s=2.0"


def test_a_pause_has_a_reason_as_other_verbs_have(service: Service, run: Run) -> None:
    service.reply = lambda *_: RUN
    assert run("workflow", "pause", "order-17", "--reason", "moving house")[0] == 0
    assert service.calls[-1][2]["reason"] == "moving house"
    assert run("workflow", "pause", "order-17")[0] == 0
    assert "reason" not in service.calls[-1][2]


def test_what_became_of_a_signal_is_json_for_programs(service: Service, run: Run) -> None:
    service.reply = lambda *_: {"status": "duplicate"}
    assert run("workflow", "signal", "order-17", "go")[1] == "duplicate\n"
    assert json.loads(run("workflow", "signal", "order-17", "go", "-o", "json")[1]) == {"status": "duplicate"}
