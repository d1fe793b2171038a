"""`headgate dag explain` and `timeline`, as people read them."""

import re
from typing import Any

import pytest

from headgate._cli.dag import explain
from tests.unit.headgate.conftest import Run
from tests.unit.headgate.fakes import Service

AT = "2030-01-01T00:00:00Z"


def node(key: str, **more: Any) -> dict[str, Any]:
    return {
        "key": key,
        "state": "released",
        "topic": "t",
        "item_id": "i",
        "standing": "queued",
        "since": AT,
        **more,
    }


def frontier(*items: dict[str, Any], cursor: str | None = None, **more: Any) -> dict[str, Any]:
    counts = {"total": 3, "released": 1, "blocked": 2}
    return {"id": "d", "state": "running", "nodes": counts, "items": items, "next_cursor": cursor, **more}


def test_explain_tells_frontier_obstacles_and_chain(service: Service, run: Run) -> None:
    chain = {"nodes": 2, "keys": ["a", "\x1b[31mb"], "expected_s": 5000, "unknown_topics": []}
    gate = node("g", state="blocked", standing="kept", waits_for=[{"kind": "external", "name": "ok", "since": AT}])
    answer = frontier(node("a"), gate, longest_chain=chain, waits_for=[{"kind": "pause", "since": AT}])
    service.reply = lambda *_: answer
    code, out, _ = run("dag", "explain", "d")
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "running: 3 total, 2 blocked, 1 released"
    assert lines[1].startswith("waits for resume (it is paused), for ")
    assert lines[2] == "longest chain left: 2 nodes, about 1h 23m"
    assert lines[3:5] == ["└ a", "  └ ?[31mb"]
    assert lines[-2].split()[:3] == ["a", "t", "queued"]
    assert lines[-1].endswith("waits for external ok")


def test_explain_says_no_duration_where_it_knows_none(service: Service, run: Run) -> None:
    chain = {"nodes": 2, "keys": ["a", "b"], "expected_s": None, "unknown_topics": ["u"]}
    service.reply = lambda *_: frontier(node("a"), longest_chain=chain)
    _, out, _ = run("dag", "explain", "d")
    assert out.splitlines()[1:5] == ["longest chain left: 2 nodes", "└ a", "  └ b", "no durations known of: u"]


def test_explain_names_the_worker_and_topics_that_nobody_asks_for(service: Service, run: Run) -> None:
    service.reply = lambda *_: frontier(
        node("a", standing="running", worker="host-7", lease_expires_at="2099-01-01T00:00:00Z"),
        node("b", unasked_s=3700.0),
        node("c", unasked_s=2.0),
        undeclared=[{"node": "publish", "name": "aproval"}],
    )
    _, out, _ = run("dag", "explain", "d")
    lines = out.splitlines()
    assert lines[1] == "nothing waits for aproval of node publish, which was resolved"
    assert "with host-7, lease ends in" in lines[-3]
    assert lines[-2].endswith("nobody has asked for topic t for 1h 1m")
    assert "nobody" not in lines[-1]


def test_explain_goes_on_to_the_limit_and_says_so(service: Service, run: Run) -> None:
    def reply(_method: str, path: str, _body: Any) -> Any:
        page = int(path.partition("cursor=")[2] or 0)
        return frontier(node(f"n{page}"), cursor=str(page + 1))

    service.reply = reply
    _, out, _ = run("dag", "explain", "d", "--limit", "3")
    assert [line.split()[0] for line in out.splitlines()[-4:]] == ["n0", "n1", "n2", "..."]


def test_timeline_is_in_the_order_of_time(service: Service, run: Run) -> None:
    service.reply = lambda *_: {
        "key": "a",
        "state": "failed",
        "topic": "t",
        "item_id": "i",
        "generation": 2,
        "created_at": "2030-01-01T00:00:00Z",
        "generation_at": "2030-01-01T01:00:00Z",
        "released_at": "2030-01-01T01:00:30Z",
        "attempts": [
            {
                "attempt": 1,
                "outcome": "failed",
                "error": "Traceback (most recent call last):\n  File x\nboom\n",
                "ended_at": "2030-01-01T03:20:30Z",
            }
        ],
        "ended_at": "2030-01-01T03:20:30Z",
    }
    code, out, _ = run("dag", "timeline", "d", "a")
    assert code == 0
    assert out.splitlines()[0] == "a (t) is failed, generation 2"
    told = [re.split(r"  +", line)[1:] for line in out.splitlines()[3:]]
    assert told == [
        ["-", "created", "-"],
        ["1h", "retried", "generation 2"],
        ["30s", "released", "-"],
        ["2h 20m", "attempt 1 failed", "boom"],
        ["0s", "failed", "-"],
    ]


@pytest.mark.parametrize(
    ("seconds", "text"), [(-1, "0s"), (0.04, "0.04s"), (59.9, "59s"), (3600, "1h"), (90061, "1d 1h")]
)
def test_spans_have_at_most_two_units(seconds: float, text: str) -> None:
    assert explain.span(seconds) == text


def test_externals_are_listed_with_how_long_they_wait(service: Service, run: Run) -> None:
    kept = {"dag": "d", "dag_name": "release \x1b[31m7", "node": "gate", "external": "approval", "more": 2}
    answer = [{**kept, "since": AT, "blocked": 812}, {**kept, "since": None, "blocked": 1}]
    service.reply = lambda *_: {"items": answer, "next_cursor": None}
    code, out, _ = run("dag", "externals")
    assert code == 0
    assert "release ?[31m7" in out and "approval and 2 more" in out and "812" in out
    service.reply = lambda *_: {"items": [], "next_cursor": None}
    assert run("dag", "externals")[2] == "no DAG waits for somebody's word\n"
