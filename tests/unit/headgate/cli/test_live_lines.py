"""How far a long command is, on a terminal: one line, drawn anew, gone at the end; elsewhere nothing of it."""

import os
import pty
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headgate._cli.output import LiveLine
from tests.unit.headgate.conftest import Run
from tests.unit.headgate.fakes import Service

_END = "<all that was drawn>"


@contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], str]]:
    """Standard error is a real terminal; what was drawn there. Within a test: pytest sets its own before."""
    ours, theirs = pty.openpty()
    monkeypatch.setenv("COLUMNS", "60")
    with os.fdopen(theirs, "w", encoding="utf-8") as out, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", out)

        def drawn() -> str:
            out.write(_END)
            out.flush()
            found = b""
            while not found.endswith(_END.encode()):
                found += os.read(ours, 65_536)
            return found.decode().removesuffix(_END)

        yield drawn
    os.close(ours)


def left(drawn: str) -> list[str]:
    """What a reader of the terminal sees in the end."""
    lines = [""]
    for part in drawn.replace("\r\n", "\n").split("\n"):
        lines[-1] = part.split("\r\x1b[K")[-1]
        lines.append("")
    return [line for line in lines if line]


def test_a_line_is_drawn_anew_within_the_width_and_gone_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch) as drawn:
        with LiveLine(sys.stderr) as line:
            line.steps(1, 4, "runs")
            line.update("a\x1b[2J" + "x" * 100)
        first, second, end = drawn().split("\r\x1b[K")[1:]
    assert first == f"{'█' * 6}{'░' * 18} 1/4 runs"
    assert second.startswith("a?[2Jx") and len(second) == 59 and end == ""


def test_an_export_tells_how_many_dags_and_nodes(
    service: Service, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    dags = [view(n) for n in range(3)]

    def reply(_method: str, path: str, _body: Any) -> Any:
        if "/exports/dags" in path:
            return {"items": [] if "since" in path else dags, "next_cursor": None}
        return {"items": [node], "next_cursor": None}

    node = {"key": "a", "item_id": "i", "state": "succeeded", "topic": "t", "created_at": "2030-01-01T00:00:00Z"}
    node |= {"item": {}}
    service.reply = reply
    with terminal(monkeypatch) as drawn:
        code, _, _ = run("dag", "export", "--to", str(tmp_path / "all.jsonl"))
        shown = drawn()
    assert code == 0 and "DAG 3: 0 of 1 nodes" in shown
    assert left(shown)[-1].startswith("3 DAGs exported to")


def view(number: int) -> dict[str, Any]:
    return {
        "id": f"01a20a31-8e51-7116-8ffe-76f1a396700{number}",
        "namespace": "default",
        "state": "succeeded",
        "open": False,
        "held": False,
        "paused": False,
        "created_at": "2030-01-01T00:00:00Z",
        "finished_at": f"2030-01-01T00:00:0{number}Z",
        "nodes": {"total": 1, "succeeded": 1},
        "on_failure": "continue",
        "metadata": {},
    }


def test_a_cancel_of_many_runs_tells_how_many_were_asked(
    service: Service, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [{"id": f"o-{n}", "run": f"r{n}", "type": "order", "state": "running"} for n in range(3)]

    def reply(method: str, _path: str, _body: Any) -> Any:
        return {"items": runs, "next_cursor": None} if method == "GET" else runs[0]

    service.reply = reply
    with terminal(monkeypatch) as drawn:
        code, out, _ = run("workflow", "cancel", "--type", "order")
        shown = drawn()
    assert (code, out) == (0, "asked to end: 3\n")
    assert "1/3 runs" in shown and "3/3 runs" in shown and left(shown) == []
