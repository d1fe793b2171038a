"""`headgate dag export`: whole DAGs only, each once, gone on with after any interruption."""

import json
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.unit.headgate.conftest import Run
from tests.unit.headgate.fakes import Service, problem


def dag(n: int, second: int) -> dict[str, Any]:
    end = f"2030-01-01T00:00:{second:02}+00:00"
    return {
        "id": f"d{n}",
        "namespace": "default",
        "state": "succeeded",
        "created_at": "2030-01-01T00:00:00Z",
        "finished_at": end,
    }


class Ended:
    """DAGs that ended, in a service that may fail at one of them."""

    def __init__(self, *dags: dict[str, Any]) -> None:
        self.dags = list(dags)
        self.broken = ""
        self.marks: list[str] = []

    def reply(self, _method: str, path: str, body: Any) -> Any:
        query = {name: values[0] for name, values in parse_qs(urlsplit(path).query).items()}
        if "/exports/dags" in path:
            since = query.get("since", "")
            found = [entry for entry in self.dags if entry["finished_at"] >= since]
            return {"items": found[: int(query["limit"])], "next_cursor": None}
        if "/exports/mark" in path:
            self.marks.append(body["until"])
            return body
        name = path.split("/")[-2]
        if name == self.broken:
            return problem(503, "shard_unavailable")
        node = {
            "key": "a",
            "item_id": "i",
            "state": "succeeded",
            "topic": "t",
            "created_at": "2030-01-01T00:00:00Z",
        }
        return {"items": [{**node, "item": {"payload": name}}], "next_cursor": None}


def blocks(path: Path) -> list[str]:
    """The ids in a file that holds whole DAGs only."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [next(iter(line)) for line in lines] == ["dag", "node", "end"] * (len(lines) // 3)
    for dag_line, node_line, end_line in zip(lines[::3], lines[1::3], lines[2::3], strict=True):
        assert dag_line["dag"]["id"] == node_line["node"]["item"]["payload"] == end_line["end"]
    return [line["end"] for line in lines[2::3]]


def test_an_export_that_stopped_goes_on_behind_the_last_whole_dag(
    service: Service, run: Run, tmp_path: Path
) -> None:
    ended = Ended(dag(1, 1), dag(2, 2), dag(3, 2), dag(4, 3))
    service.reply, ended.broken = ended.reply, "d3"
    to = tmp_path / "ended.jsonl"
    assert run("dag", "export", "--to", str(to), "--mark")[0] == 5
    assert ended.marks == [] and to.read_text().count("\n") == 7
    ended.broken = ""
    code, _, err = run("dag", "export", "--to", str(to), "--mark")
    assert (code, blocks(to)) == (0, ["d1", "d2", "d3", "d4"])
    assert "2 DAGs exported" in err and ended.marks == ["2030-01-01T00:00:03+00:00"]
    assert run("dag", "export", "--to", str(to))[0] == 0
    assert blocks(to) == ["d1", "d2", "d3", "d4"]
    ended.dags.append(dag(5, 3))
    run("dag", "export", "--to", str(to))
    assert blocks(to) == ["d1", "d2", "d3", "d4", "d5"]


def test_a_torn_last_line_is_cut_off(service: Service, run: Run, tmp_path: Path) -> None:
    ended = Ended(dag(1, 1), dag(2, 2))
    service.reply = ended.reply
    to = tmp_path / "ended.jsonl"
    run("dag", "export", "--to", str(to))
    whole = to.read_bytes()
    for cut in range(0, len(whole), 37):
        to.write_bytes(whole[:cut])
        assert run("dag", "export", "--to", str(to))[0] == 0
        assert blocks(to) == ["d1", "d2"]


def test_pages_of_one_moment_are_read_to_their_end(
    service: Service, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headgate._cli.dag.export.PAGE_DAGS", 2)
    service.reply = Ended(*[dag(n, 1) for n in range(7)], dag(7, 2)).reply
    to = tmp_path / "ended.jsonl"
    run("dag", "export", "--to", str(to))
    assert blocks(to) == [f"d{n}" for n in range(8)]


def test_a_file_that_is_no_export_is_left_alone(service: Service, run: Run, tmp_path: Path) -> None:
    service.reply = Ended(dag(1, 1)).reply
    to = tmp_path / "notes.txt"
    to.write_text("my notes\n")
    code, _, err = run("dag", "export", "--to", str(to))
    assert (code, to.read_text()) == (2, "my notes\n") and "is no export" in err
    code, _, err = run("dag", "export", "--to", str(to), "--mark", "--since", "2030-01-01")
    assert code == 2 and "--mark" in err
