"""`headgate why` and `headgate top`, as their users meet them."""

import json
from typing import Any

from tests.unit.headgate.conftest import Run
from tests.unit.headgate.fakes import Service, problem

ID = "01a20a31-8e51-7116-8ffe-76f1a3967000"


def told(about: str) -> dict[str, Any]:
    causes = [
        {"kind": "node", "text": "b waits for a"},
        {"kind": "pause", "text": "a is kept\x1b[2J", "since": "2030-01-01T10:00:00Z"},
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
            "  - a is kept?[2J  (since 2030-01-01 10:00:00Z)",
        ]
    assert [path.partition("/v1/namespaces/default")[2].partition("?")[0] for path in asked] == [
        "/why",
        "/why",
        f"/dags/{ID}/why",
    ]


def test_an_id_that_is_no_items_is_a_dags(service: Service, run: Run) -> None:
    service.reply = lambda _m, path, _b: told("dag") if "/dags/" in path else problem(404, "not_found")
    code, out, _ = run("-o", "json", "why", ID)
    assert code == 0 and json.loads(out)["about"] == "dag"


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
