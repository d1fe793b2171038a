"""`headgate watch`, as its users meet it."""

import re
import time
from typing import Any

import pytest

from tests.unit.headgate.conftest import Run
from tests.unit.headgate.fakes import Service, problem

TOPIC = {
    **dict.fromkeys(("ready", "delayed", "leased", "disabled", "dead"), 0),
    "topic": "mail",
    "oldest_ready_age_s": None,
    "paused": False,
}


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses between looks; the third is where somebody interrupts."""
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", sleep)
    return slept


def test_it_looks_again_until_it_is_interrupted(service: Service, run: Run, pauses: list[float]) -> None:
    asked: list[str] = []

    def reply(_method: str, path: str, _body: Any) -> Any:
        asked.append(path)
        return {"items": [{**TOPIC, "ready": len(asked)}], "next_cursor": None}

    service.reply = reply
    code, out, _ = run("watch", "--every", "5", "topics")
    assert code == 130 and pauses == [5.0, 5.0, 5.0]
    assert [line.split()[1] for line in out.splitlines() if line.startswith("mail")] == ["1", "2", "3"]
    pauses.clear()
    code, out, _ = run("-o", "json", "watch", "topics")
    assert code == 130 and pauses == [2.0, 2.0, 2.0]
    assert re.findall(r'"ready": (\d)', out) == ["4", "5", "6"], "what stands before `watch` holds"


def test_it_waits_for_a_service_that_is_away_and_ends_at_what_stays(
    service: Service, run: Run, pauses: list[float]
) -> None:
    answers = [problem(503, "overloaded"), problem(503, "overloaded"), problem(404, "not_found")]
    service.reply = lambda _m, _p, _b: answers.pop(0) if len(answers) > 1 else answers[0]
    code, _, said = run("watch", "item", "01a20a31-8e51-7116-8ffe-76f1a3967000")
    assert code == 3 and said


@pytest.mark.parametrize(
    "words", [["enqueue", "mail", "1"], ["dag", "cancel", "x"], [], ["watch", "topics"], ["dead\x1b[2J"]]
)
def test_what_changes_something_is_not_repeated(
    service: Service, run: Run, pauses: list[float], words: list[str]
) -> None:
    asked: list[str] = []
    service.reply = lambda _m, path, _b: asked.append(path)
    code, _, said = run("watch", *words)
    assert (code, asked, pauses) == (2, [], [])
    assert "watch repeats what only looks" in said


def test_a_pause_is_more_than_nothing(run: Run, pauses: list[float]) -> None:
    assert run("watch", "--every", "0", "topics")[0] == 2
