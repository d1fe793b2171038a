"""`headgate import`: looked at first, submitted in calls of at most 1,000, and one DAG however often."""

import json
from pathlib import Path
from typing import Any

import pytest

from headgate._cli.dag import import_graph
from tests.unit.headgate.conftest import Run
from tests.unit.headgate.fakes import Service, problem


class Dags:
    """One DAG of a service, that may fail at a call."""

    def __init__(self) -> None:
        self.key = ""
        self.nodes: dict[str, Any] = {}
        self.released = self.existing = False
        self.fail_at = -1
        self.calls = 0

    def reply(self, _method: str, path: str, body: Any) -> Any:
        self.calls += 1
        if self.calls == self.fail_at:
            return problem(503, "shard_unavailable")
        if path.endswith("/dags"):
            assert self.key in ("", body["key"])
            self.existing = bool(self.key)
            self.key = body["key"]
            self._take(body.get("nodes", ()))
            self.released = self.released or not body.get("hold")
        elif path.endswith("/nodes"):
            return {"nodes": self._take(body["nodes"])}
        elif path.endswith("/release"):
            self.released = True
        return {
            "id": "d1",
            "key": self.key,
            "namespace": "default",
            "state": "running",
            "held": not self.released,
            "existing": self.existing,
            "created_at": "2030-01-01T00:00:00Z",
            "nodes": {"total": len(self.nodes)},
        }

    def _take(self, nodes: Any) -> list[dict[str, Any]]:
        assert len(nodes) <= 1000
        for node in nodes:
            assert all(up in self.nodes or up in {n["key"] for n in nodes} for up in node.get("upstream", ()))
            self.nodes[node["key"]] = node
        return [{"key": node["key"], "item_id": "i", "state": "blocked"} for node in nodes]


@pytest.fixture
def chain(tmp_path: Path) -> str:
    """2,500 targets, each after the one before."""
    path = tmp_path / "Makefile"
    path.write_text("".join(f"t{i}: {f't{i - 1}' if i else 'src'}\n" for i in range(2500)))
    return str(path)


def test_a_dry_run_shows_and_sends_nothing(service: Service, run: Run, chain: str) -> None:
    code, out, _ = run("import", "make", chain, "--dry-run", "--map", "t7=seven")
    assert code == 0 and service.calls == []
    assert "2500 nodes, 2499 edges, 2500 levels, at most 1 nodes wide; 1 can start at once" in out
    assert "seven" in out and "source files" in out and "timestamps" in out
    code, out, _ = run("-o", "json", "import", "make", chain, "--dry-run", "--strict")
    found = json.loads(out)
    assert (code, found["nodes"], found["topics"]) == (1, 2500, {"import": 2500})
    assert {entry["what"]: entry["effect"] for entry in found["unmapped"]} == {
        "timestamps": "changed",
        "source files": "left out",
    }


def test_an_import_that_stopped_is_repeated_as_one_dag(service: Service, run: Run, chain: str) -> None:
    dags = Dags()
    service.reply = dags.reply
    dags.fail_at = 3
    assert run("import", "make", chain)[0] == 5
    assert 0 < len(dags.nodes) < 2500 and not dags.released
    code, out, err = run("import", "make", chain)
    assert (code, len(dags.nodes), dags.released) == (0, 2500, True)
    assert "d1" in out and "changed: timestamps" in err
    calls = dags.calls
    assert run("import", "make", chain)[0] == 0
    assert dags.calls == calls + 1


def test_a_hold_stays(service: Service, run: Run, chain: str) -> None:
    dags = Dags()
    service.reply = dags.reply
    assert run("import", "make", chain, "--hold", "--key", "mine")[0] == 0
    assert (len(dags.nodes), dags.released, dags.key) == (2500, False, "mine")


def test_strict_sends_nothing_that_would_do_something_else(service: Service, run: Run, chain: str) -> None:
    code, _, err = run("import", "make", chain, "--strict")
    assert code == 2 and "--strict" in err and service.calls == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "line 1: this is not JSON"),
        (b"\xff", "is not UTF-8"),
        (b'{"workflow": {"tasks": [{"name": "a", "parents": ["b"]}]}}', "/workflow/tasks/0/parents/0"),
    ],
)
def test_a_file_that_cannot_be_read_is_a_usage_error(
    run: Run, tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(content)
    code, _, err = run("import", "wfformat", str(path))
    assert code == 2 and message in err and str(path) in err and err.count("\n") == 1


def test_a_file_over_the_limit_is_refused_unread(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_graph, "FILE_BYTES_MAX", 10)
    path = tmp_path / "Makefile"
    path.write_text("all: abcde")
    assert run("import", "make", str(path), "--dry-run")[0] == 0
    path.write_text("all: abcdef")
    code, _, err = run("import", "make", str(path), "--dry-run")
    assert code == 2 and "over 10 bytes" in err
    assert run("import", "make", str(path), "--map", "x")[0] == 2
