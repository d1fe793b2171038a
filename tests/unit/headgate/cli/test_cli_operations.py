"""What the command line does to many items, to topics and to namespaces."""

import json
from typing import Any

import pytest

from headgate._cli.queue import operations
from tests.unit.headgate.conftest import Run
from tests.unit.headgate.fakes import Service, shards

OPERATION = {
    "id": "o1", "namespace": "default", "kind": "purge", "filter": {"topic": "t", "metadata": {"a": 1}},
    "state": "running", "requested_at": "2030-01-01T00:00:00Z",
    "total": 10, "scanned": 4, "changed": 3, "skipped": 1,
    "shards": [{"shard": 0, "state": "running", "total": 10, "scanned": 4, "changed": 3, "skipped": 1}],
}  # fmt: skip


def test_a_purge_by_filter_shows_what_it_would_take_and_asks(service: Service, run: Run) -> None:
    given = {"kind": "purge", "filter": {}, "namespace": "default"}
    service.reply = lambda *_: {**given, "dry_run": True, "matched": 30, "exact": False, "sample": ["a", "b"]}
    for more, expected in (((), 2), (("--dry-run",), 0)):
        code, out, err = run("purge", "--topic", "t", "--before", "2030-01-01T00:00:00Z", *more)
        assert (code, "--yes" in err) == (expected, expected == 2)
        assert out.splitlines() == ["would purge  30 or more", "  a", "  b", "  ..."]
        sent = {"topic": "t", "enqueued_before": "2030-01-01T00:00:00Z"}
        assert service.asked("/operations")[-1] == {"kind": "purge", "filter": sent, "dry_run": True}


def test_a_preview_says_which_shards_are_not_counted(service: Service, run: Run) -> None:
    given = {"kind": "purge", "filter": {}, "namespace": "default", "dry_run": True, "matched": 3, "exact": False}
    service.reply = lambda *_: {**given, "sample": [], "away": [1, 4]}
    code, out, err = run("purge", "--topic", "t", "--dry-run")
    assert code == 0 and "1, 4" in out and "not counted" in err


def test_an_operation_is_followed_to_its_end(service: Service, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "POLL_S", 0)
    done = {**OPERATION, "state": "done", "changed": 9, "scanned": 10, "finished_at": "2030-01-01T00:00:09Z"}

    def reply(method: str, path: str, _body: Any) -> Any:
        return shards(1) if "shards" in path else OPERATION if method == "POST" else done

    service.reply = reply
    code, out, err = run("operations", "cancel", "--topic", "t", "--metadata", '{"a": 1}', "--yes")

    assert code == 0
    assert service.asked("/operations")[0]["filter"] == {"topic": "t", "metadata": {"a": 1}}
    assert "9 changed, 1 left alone, 10/10 looked at" in err
    assert 'topic=t, metadata={"a": 1}' in out
    assert run("redrive", "--topic", "t", "--metadata", "7", "--yes")[0] == 2


def test_operations_are_listed_shown_and_stopped(service: Service, run: Run) -> None:
    service.reply = lambda _m, path, _b: (
        {"items": [OPERATION], "next_cursor": None} if path.endswith("limit=20") else OPERATION
    )
    assert run("operations", "list")[1].splitlines()[1].split()[:3] == ["o1", "purge", "running"]
    assert run("operations", "show", "o1")[1].splitlines()[-1].split() == ["0", "running", "10", "4", "3", "1"]
    assert run("operations", "stop", "o1", "-o", "json")[0] == 0
    assert service.calls[-1][:2] == ("POST", "/v1/namespaces/default/operations/o1/cancel")


def test_the_dead_are_added_up_over_pages(service: Service, run: Run) -> None:
    def group(error: str, count: int, day: int) -> dict[str, Any]:
        at = f"2030-01-0{day}T00:00:00Z"
        return {"error": error, "topic": "t", "count": count, "oldest": at, "newest": at, "sample_id": f"i{day}"}

    parts = [[group("x", 2, 1), group("y", 1, 1)], [group("y", 5, 3), group("x", 1, 2)]]
    service.reply = lambda _m, path, _b: {
        "items": parts["cursor" in path],
        "next_cursor": None if "cursor" in path else "next",
    }
    found = json.loads(run("dead", "-o", "json")[1])
    assert [(row["error"], row["count"], row["sample_id"]) for row in found] == [("y", 6, "i3"), ("x", 3, "i2")]
    assert [(row["oldest"][:10], row["newest"][:10]) for row in found] == [
        ("2030-01-01", "2030-01-03"),
        ("2030-01-01", "2030-01-02"),
    ]


def test_shares_of_a_topic(service: Service, run: Run) -> None:
    service.reply = lambda _m, _p, body: body
    assert run("share", "t", "--", "10=0.05", "-3=0.2")[0] == 0
    shares = [{"priority": -3, "share": 0.2}, {"priority": 10, "share": 0.05}]
    assert service.asked("/topics/configure") == [{"topic": "t", "min_share": shares}]
    assert run("share", "t")[0] == 0
    assert service.asked("/topics/configure")[-1]["min_share"] == []
    for wrong in ("5", "a=0.1", "5=x", "5=0.1=2"):
        assert run("share", "t", wrong)[0] == 2


def test_setting_one_quota_keeps_the_others(service: Service, run: Run) -> None:
    there = {"namespace": "shop", "items_max": 5_000, "in_flight_max": 7, "in_flight": 3, "items": 1_234}
    service.reply = lambda method, _p, body: there if method == "GET" else {"namespace": "shop", **body}
    code, out, _ = run("quotas", "set", "shop", "--enqueues-per-minute", "6000", "--in-flight-max", "none")
    assert code == 0
    assert service.calls[-1] == (
        "PUT",
        "/v1/namespaces/shop",
        {"enqueues_per_minute": 6_000, "items_max": 5_000},
    )
    assert "0 of 6,000" in out and "no limit" in out
    code, out, _ = run("quotas", "show", "shop")
    assert "3 of 7" in out and "1,234 of 5,000" in out
    assert run("quotas", "clear", "shop")[0] == 0
    assert service.calls[-1] == ("PUT", "/v1/namespaces/shop", {})


def test_setting_one_quota_of_dags_keeps_the_others(service: Service, run: Run) -> None:
    default = {"dags_max": 10, "nodes_max": None, "edges_max": None}
    there = {"namespace": "shop", "nodes_max": 5_000, "edges_max": 7, "default": default, "dags": 3}
    service.reply = lambda method, _p, body: there if method == "GET" else {**there, "nodes_max": None, **body}
    code, out, _ = run("quotas", "dags", "shop")
    assert code == 0 and "3 of 10 (default)" in out and "0 of 5,000" in out
    code, out, _ = run("quotas", "dags", "shop", "--dags-max", "4", "--nodes-max", "default")
    assert service.calls[-1] == ("PUT", "/v1/namespaces/shop", {"dags_max": 4, "edges_max": 7})
    assert code == 0 and "3 of 4" in out and "0, no limit" in out


def test_quotas_need_a_limit_to_set(service: Service, run: Run) -> None:
    assert run("quotas", "set", "shop")[0] == 2
    assert service.calls == []
    with pytest.raises(SystemExit):
        run("quotas", "set", "shop", "--items-max", "many")
    service.reply = lambda *_: {"items": [{"namespace": "shop", "items_max": 9, "items": 4}], "next_cursor": None}
    code, out, _ = run("quotas", "list")
    assert code == 0 and "shop" in out and "ITEMS_MAX" in out
    assert json.loads(run("quotas", "list", "-o", "json")[1])[0]["items_max"] == 9
