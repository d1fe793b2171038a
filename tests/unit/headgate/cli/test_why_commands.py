"""`headgate why` and `headgate top`, as their users meet them."""

import json
from typing import Any

import pytest

from tests.unit.headgate.conftest import Run
from tests.unit.headgate.fakes import Service, problem

ID = "01a20a31-8e51-7116-8ffe-76f1a3967000"


def told(about: str) -> dict[str, Any]:
    causes = [
        {"kind": "node", "text": "b waits for a"},
        {"kind": "pause", "text": "a is kept\x1b[2J", "since": "2020-01-01T10:00:00Z"},
    ]
    return {"about": about, "name": "x", "sentence": "It is kept.", "causes": causes}


def test_why_asks_for_a_topic_an_item_a_dag_or_a_node(service: Service, run: Run) -> None:
    asked: list[str] = []

    def reply(_method: str, path: str, _body: Any) -> Any:
        asked.append(path)
        return told("topic")

    service.reply = reply
    for words in (["mail"], [ID], [ID, "a b"]):
        code, out, _ = run("why", *words)
        assert code == 0
        assert out.splitlines() == [
            "It is kept.",
            "  - b waits for a",
            "  - a is kept?[2J  (since 2020-01-01 10:00:00Z)",
        ]
    assert [path.partition("/v1/namespaces/default")[2].partition("?")[0] for path in asked] == [
        "/why",
        "/why",
        f"/dags/{ID}/why",
    ]


@pytest.mark.parametrize(
    ("about", "sentence", "causes", "lines"),
    [
        (
            "namespace",
            "Topic a is paused; 2 are ready; no consumer has asked for b; 1 has died, most of them of c.",
            ["topic a is paused; 2 are ready", "no consumer has asked for b", "1 has died, most of them of c"],
            [
                "Topic a is paused; 2 are ready.",
                "  - no consumer has asked for b",
                "  - 1 has died, most of them of c",
            ],
        ),
        (
            "topic",
            "It holds nothing; no consumer has asked for it. Did you mean email?",
            ["it holds nothing", "no consumer has asked for it"],
            ["It holds nothing.", "  - no consumer has asked for it", "Did you mean email?"],
        ),
        (
            "dag",
            "1 node is queued; 1 node is kept; 4 nodes are blocked.",
            ["1 node is queued", "1 node is kept"],
            ["1 node is queued.", "  - 1 node is kept", "4 nodes are blocked."],
        ),
        (
            "node",
            "d waits because b waits for the external ok; 4 nodes of the DAG are blocked.",
            ["d waits for c", "c waits for b", "b waits for the external ok"],
            [
                "d waits because b waits for the external ok; 4 nodes of the DAG are blocked.",
                "  - d waits for c",
                "  - c waits for b",
            ],
        ),
        ("topic", "It is paused; 7 are ready.", ["it is paused; 7 are ready"], ["It is paused; 7 are ready."]),
    ],
)
def test_each_cause_is_told_once(
    service: Service, run: Run, about: str, sentence: str, causes: list[str], lines: list[str]
) -> None:
    found = [{"kind": "k", "text": text} for text in causes]
    service.reply = lambda _m, _p, _b: {"about": about, "name": "x", "sentence": sentence, "causes": found}
    code, out, _ = run("why", "x")
    assert code == 0 and out.splitlines() == lines


def test_since_when_is_told_and_not_when_it_ends(service: Service, run: Run) -> None:
    since = {
        "2020-01-01T10:00:00Z": "It waits.  (since 2020-01-01 10:00:00Z)",
        "2999-01-01T10:00:00Z": "It waits.",
    }
    for at, line in since.items():
        causes = [{"kind": "k", "text": "it waits", "since": at}]
        service.reply = lambda _m, _p, _b, c=causes: {
            "about": "item",
            "name": "x",
            "sentence": "It waits.",
            "causes": c,
        }
        assert run("why", ID)[1].splitlines() == [line]


def test_an_id_that_is_no_items_is_a_dags(service: Service, run: Run) -> None:
    service.reply = lambda _m, path, _b: told("dag") if "/dags/" in path else problem(404, "not_found")
    code, out, _ = run("-o", "json", "why", ID)
    assert code == 0 and json.loads(out)["about"] == "dag"


def test_a_name_that_is_no_topics_is_a_workflows(service: Service, run: Run) -> None:
    """Its code's, where that cannot go on, else its DAG's; a topic that holds something comes first."""
    empty = {
        "about": "topic",
        "name": "order-17",
        "sentence": "It holds nothing.",
        "causes": [{"kind": "empty", "text": ""}],
    }
    stuck = {
        "code": "replay_mismatch",
        "error": "other",
        "attempts": 3,
        "event": 4,
        "expected": "a\x1b[2J",
        "got": "b",
    }
    shown: dict[str, Any] = {"id": "order-17", "run": ID, "type": "order", "stuck": stuck}
    held: dict[str, Any] = dict(empty)

    def reply(_method: str, path: str, _body: Any) -> Any:
        if "/workflows/" in path:
            return shown if "order-17" in path else problem(404, "not_found")
        return told("dag") if "/dags/" in path else held

    service.reply = reply
    code, out, _ = run("why", "order-17")
    assert code == 0 and out.splitlines() == [
        "The code of workflow order-17 cannot go on: replay_mismatch, 3 times in a row: other.",
        "  - event: 4",
        "  - expected: a?[2J",
        "  - got: b",
    ]
    del shown["stuck"]
    assert run("why", "order-17")[1].splitlines()[0] == "It is kept."
    assert run("why", "order-18")[1].splitlines()[0] == "It holds nothing."
    held["causes"] = [{"kind": "working", "text": "goes on"}]
    assert run("why", "order-17")[1].splitlines()[0] == "It holds nothing."


def test_an_id_of_nothing_is_said_to_be_so(service: Service, run: Run) -> None:
    service.reply = lambda _m, _p, _b: problem(404, "not_found")
    code, _, said = run("why", ID)
    assert code == 3 and "neither an item, a DAG nor a workflow" in said


def test_a_run_that_is_stuck_is_shown_as_check_shows_it(service: Service, run: Run) -> None:
    stuck = {"code": "replay_mismatch", "error": "other", "attempts": 2, "event": 4, "expected": "a", "got": "b"}
    service.reply = lambda _m, _p, _b: {"id": "o-1", "run": ID, "type": "order", "stuck": stuck}
    code, out, _ = run("workflow", "show", "o-1")
    assert code == 0 and "existing" not in out
    assert out.splitlines()[-4:] == [
        "stuck, 2 times in a row: replay_mismatch",
        "  event: 4",
        "  expected: a",
        "  got: b",
    ]
    code, out, _ = run("workflow", "start", "order", "--id", "o-1")
    assert code == 0 and "existing" in out


def test_top_shows_the_fullest_topics_first(service: Service, run: Run) -> None:
    topics = [
        {
            "topic": name,
            "ready": ready,
            "delayed": 0,
            "leased": 1,
            "disabled": 0,
            "dead": 0,
            "oldest_ready_age_s": 2.5,
            "paused": False,
        }
        for name, ready in (("few", 1), ("many", 9))
    ]
    service.reply = lambda _m, _p, _b: {"items": topics, "next_cursor": None}
    code, out, _ = run("top", "--once", "--rows", "1")
    assert code == 0 and out.splitlines()[0] == "default: 2 topics, 10 ready, 2 leased, 0 dead"
    assert [line.split()[0] for line in out.splitlines()[2:]] == ["TOPIC", "many"]
    code, out, _ = run("-o", "json", "top", "--once")
    assert [row["topic"] for row in json.loads(out)] == ["many", "few"]


def test_top_of_all_namespaces_shows_first_whose_items_become_more(
    service: Service, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = {"big": 50, "flooding": 3}
    service.reply = lambda _m, _p, _b: {
        "items": [{"namespace": name, "items": count} for name, count in items.items()],
        "next_cursor": None,
    }
    code, out, _ = run("top", "--all", "--once")
    assert code == 0 and out.splitlines()[0] == "2 namespaces, 53 items"
    assert [line.split()[0] for line in out.splitlines()[2:]] == ["NAMESPACE", "big", "flooding"]

    def later(_seconds: float) -> None:
        if items["flooding"] > 3:
            raise KeyboardInterrupt
        items["flooding"] += 20

    monkeypatch.setattr("headgate._cli.why.time.sleep", later)
    _, out, _ = run("top", "--all")
    assert [line.split()[:3] for line in out.splitlines()[-2:]] == [["flooding", "23", "20"], ["big", "50", "0"]]
