"""Commands about items and DAGs: what is sent is what the documents of the services take, and what they answer is
shown."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.documented import UUID, Documented
from tests.unit.headgate.conftest import Run

HELD = {"id": UUID, "lease_token": "token"}


def queue(verb: str, body: Any = None) -> tuple[str, Any]:
    return f"queue {verb}", body


def dag(verb: str, body: Any = None) -> tuple[str, Any]:
    return f"dag {verb}", body


ITEMS: list[tuple[str, tuple[str, Any], str]] = [
    (
        f"enqueue t [1] --priority -3 --delay 2 --ttl 6 --lease 90 --max-attempts 3 --fairness-key f --id {UUID}",
        queue(
            "POST /enqueue",
            {
                "items": [
                    {
                        "topic": "t",
                        "payload": [1],
                        "priority": -3,
                        "delay_s": 2,
                        "ttl_s": 6,
                        "lease_s": 90,
                        "max_attempts": 3,
                        "id": UUID,
                        "fairness_key": "f",
                    }
                ]
            },
        ),
        "/results",
    ),
    (
        'enqueue t --key k --unique --metadata {"a":1}',
        queue(
            "POST /enqueue",
            {
                "items": [
                    {"topic": "t", "payload": None, "idempotency_key": "k", "unique": True, "metadata": {"a": 1}}
                ]
            },
        ),
        "/results",
    ),
    (f"ack {UUID} token", queue("POST /ack", {"items": [HELD]}), "/results"),
    (f"nack {UUID} token", queue("POST /nack", {"items": [HELD]}), "/results"),
    (
        f"nack {UUID} token --delay 2.5 --error no --final",
        queue("POST /nack", {"items": [{**HELD, "delay_s": 2.5, "error": "no", "final": True}]}),
        "/results",
    ),
    (
        f"extend {UUID} token --lease 9",
        queue("POST /extend", {"items": [{**HELD, "lease_s": 9}]}),
        "/results",
    ),
    (f"revive {UUID} a", queue("POST /revive", {"items": [{"id": UUID}, {"id": "a"}]}), "/results"),
    (f"cancel {UUID} a", queue("POST /cancel", {"ids": [UUID, "a"]}), "/results"),
    (f"item {UUID}", queue(f"GET /items/{UUID}"), "/"),
    ("items --topic t --state dead --limit 1", queue("GET /items?topic=t&state=dead&limit=1"), "/items"),
    (
        "dequeue a b --count 2 --wait 1.5 --lease 9",
        queue(
            "POST /dequeue",
            {"topics": [{"topic": "a", "count": 2}, {"topic": "b", "count": 2}], "wait_s": 1.5, "lease_s": 9},
        ),
        "/items",
    ),
]

DAGS: list[tuple[str, tuple[str, Any], str]] = [
    (
        "dag list --state failed --name n --key k --limit 1",
        dag("GET /dags?state=failed&name=n&key=k&limit=1"),
        "/items",
    ),
    ("dag show d1", dag("GET /dags/d1"), "/"),
    ("dag node d1 a", dag("GET /dags/d1/node?key=a"), "/"),
    ("dag graph d1 --format json", dag("GET /dags/d1/graph?format=json"), "/"),
    ("dag release d1", dag("POST /dags/d1/release", {}), "/"),
    ("dag close d1", dag("POST /dags/d1/close", {}), "/"),
    ("dag pause d1", dag("POST /dags/d1/pause", {}), "/"),
    ("dag resume d1", dag("POST /dags/d1/resume", {}), "/"),
    ("dag cancel d1 --reason why", dag("POST /dags/d1/cancel", {"reason": "why"}), "/"),
    ("dag skip d1 a b", dag("POST /dags/d1/skip", {"nodes": ["a", "b"]}), "/"),
    (
        "dag resolve d1 a e",
        dag("POST /dags/d1/resolve", {"external": [{"node": "a", "name": "e"}]}),
        "/results/0",
    ),
    (
        'dag resolve d1 a e --data {"n":1} --failed',
        dag("POST /dags/d1/resolve", {"external": [{"node": "a", "name": "e", "data": {"n": 1}, "failed": True}]}),
        "/results/0",
    ),
]
COMMANDS = [*ITEMS, *DAGS]


@pytest.fixture
def service() -> Documented:
    return Documented()


def part_of(answer: Any, path: str) -> Any:
    for step in filter(None, path.split("/")):
        answer = answer[int(step) if isinstance(answer, list) else step]
    return answer


@pytest.mark.parametrize(("words", "sent", "shown"), COMMANDS, ids=[words for words, _, _ in COMMANDS])
def test_a_command_sends_what_it_was_told_and_shows_what_came(
    service: Documented, run: Run, words: str, sent: tuple[str, Any], shown: str
) -> None:
    line, body = sent
    *verb, path = line.split(" ")
    code, out, _ = run(*words.split(" "), "-o", "json")
    assert (code, service.calls) == (0, [(" ".join((*verb, f"/v1/namespaces/default{path}")), body)])
    came, told = part_of(service.answers[0], shown), json.loads(out)
    assert as_sent(told) == as_sent(came)
    code, out, _ = run(*words.split(" "))
    first = came[0] if isinstance(came, list) else came
    assert code == 0 and str(first.get("id") or first.get("key") or first["name"]) in out


def as_sent(value: Any) -> Any:
    """In the form of an answer: what is not there is left out, and times end with a Z."""
    if isinstance(value, dict):
        return {name: as_sent(part) for name, part in value.items() if part is not None}
    if isinstance(value, list):
        return [as_sent(part) for part in value]
    return value.replace("+00:00", "Z") if isinstance(value, str) else value


def test_a_payload_is_read_from_standard_input(
    service: Documented, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"a": 1}'))
    assert run("enqueue", "t", "-", "--id", UUID)[0] == 0
    assert service.calls[0][1] == {"items": [{"topic": "t", "payload": {"a": 1}, "id": UUID}]}


@pytest.mark.parametrize("form", ["mermaid", "dot"])
def test_a_graph_is_printed_as_the_service_draws_it(
    service: Documented, run: Run, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_changes", "a --> b\n\n")
    assert run("dag", "graph", "d1", "--format", form)[:2] == (0, "a --> b\n")
    assert service.calls[0][0].endswith(f"/d1/graph?format={form}")


@pytest.mark.parametrize(("is_terminal", "said"), [(False, "a\u200db \u202ec"), (True, "a?b ?c")])
def test_a_graph_is_given_to_a_program_as_it_is_and_to_a_terminal_as_that_can_bear_it(
    service: Documented, run: Run, monkeypatch: pytest.MonkeyPatch, is_terminal: bool, said: str
) -> None:
    monkeypatch.setattr(service, "_changes", "a\u200db \u202ec\n")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    assert run("dag", "graph", "d1", "--format", "dot")[:2] == (0, f"{said}\n")


def test_nodes_in_a_state_are_shown_with_their_dag(service: Documented, run: Run) -> None:
    code, out, _ = run("dag", "show", "d1", "--state", "failed", "--limit", "1", "-o", "json")
    shown, nodes = service.answers
    assert code == 0 and service.calls[1][0].endswith("/d1/nodes?state=failed&limit=1")
    assert as_sent(json.loads(out)) == {**as_sent(shown), "node_list": as_sent(nodes["items"])}


@pytest.mark.parametrize(("state", "code"), [("succeeded", 0), ("failed", 1)])
def test_a_submit_that_watches_ends_with_the_dag(
    service: Documented, run: Run, tmp_path: Path, state: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "dag.json"
    file.write_text('{"nodes": [{"key": "a", "topic": "t"}]}')
    monkeypatch.setattr(service, "_changes", {"state": state})
    got, out, err = run("dag", "submit", str(file), "--watch")
    assert (got, state in out, "failed: error" in err) == (code, True, code == 1)
    assert any(line.partition("?")[0].endswith("/dags/id/wait") for line, _ in service.calls)
