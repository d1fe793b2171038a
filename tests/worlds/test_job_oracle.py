"""The oracle of logs and progress notices what it is for: each history breaks one promise, the sound one none."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.worlds.facts import Delivery, History, Word
from tests.worlds.job_facts import JobFacts, Logged, Shown, Told, judge

HALF = 0.0005


class Scene:
    """An item that was delivered twice; each holder wrote two lines in two calls, and told how far it was."""

    def __init__(self) -> None:
        self.facts, self.history = JobFacts(), History()
        for attempt, at in ((1, 1.0), (2, 10.0)):
            token = f"token {attempt}"
            one = Delivery("a", "red", "a", "A", token, attempt, 5.0, at, at + HALF)
            self.history.delivered(one)
            for number in (1, 2):
                self.wrote(token, number, "ok", "written")
            self.told(token, f"far {attempt}", at + 1)
        self.history.said(Word("nack", "red", "A", "token 1", "ok", "requeued", 3.0, 3.0 + HALF))
        self.facts.logs["A"] = [
            line(f"token {attempt} {number}", at) for attempt, at in ((1, 1), (2, 11)) for number in (1, 2)
        ]
        self.facts.shown = [self.shown(1, "far 1", 2.5), self.shown(2, None, 10.5), self.shown(2, "far 2", 12.0)]

    def wrote(self, token: str, number: int, known: Any, status: str, *, is_own: bool = True) -> Logged:
        one = Logged("A", "red" if is_own else "blue", token, number, [f"{token} {number}"], is_own)
        one.known.add((known, status))
        self.facts.logged.append(one)
        return one

    def told(self, token: str, note: str, at: float, known: Any = "ok", status: str = "extended") -> None:
        self.facts.told.append(Told("A", token, note, known, status, at, at + HALF))

    def shown(self, attempt: int, note: str | None, at: float, state: str = "leased") -> Shown:
        return Shown("A", "red", state, attempt, note, at, at + HALF)


def line(text: str, at: int) -> dict[str, Any]:
    return {"text": text, "at": f"2030-01-01T00:00:{at:02d}Z"}


def test_a_sound_history_is_sound() -> None:
    scene = Scene()
    scene.wrote("token 1", 3, "info", "")
    scene.wrote("token 1", 4, "ok", "lease_lost")
    assert judge(scene.facts, scene.history) == []


def _line_lost(scene: Scene) -> None:
    scene.facts.logs["A"].pop()


def _line_twice(scene: Scene) -> None:
    scene.facts.logs["A"].append(scene.facts.logs["A"][-1])


def _line_of_nobody(scene: Scene) -> None:
    scene.facts.logs["A"].append(line("evil", 12))


def _line_that_was_refused(scene: Scene) -> None:
    scene.wrote("token 2", 3, "ok", "lease_lost")
    scene.facts.logs["A"].append(line("token 2 3", 12))


def _lines_out_of_time(scene: Scene) -> None:
    scene.facts.logs["A"].reverse()


def _lines_out_of_order(scene: Scene) -> None:
    log = scene.facts.logs["A"]
    log[2], log[3] = log[3], log[2]


def _strangers_line(scene: Scene) -> None:
    scene.wrote("token 2", 9, "ok", "written", is_own=False)


def _former_holders_progress(scene: Scene) -> None:
    scene.facts.shown.append(scene.shown(2, "far 1", 10.5))


def _older_progress(scene: Scene) -> None:
    scene.told("token 2", "further", 12.5)
    scene.facts.shown.append(scene.shown(2, "far 2", 13.0))


def _no_progress(scene: Scene) -> None:
    scene.facts.shown.append(scene.shown(2, None, 12.5))


def _refused_progress(scene: Scene) -> None:
    scene.told("token 2", "no", 12.5, "ok", "lease_lost")
    scene.facts.shown.append(scene.shown(2, "no", 13.0))


def _progress_of_nobody(scene: Scene) -> None:
    scene.facts.shown.append(scene.shown(1, "far 1", 9.0, "ready"))


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (_line_lost, "is there 0 times"),
        (_line_twice, "is there 2 times"),
        (_line_of_nobody, "nobody wrote"),
        (_line_that_was_refused, "is there 1 times"),
        (_lines_out_of_time, "order of time"),
        (_lines_out_of_order, "and was sent"),
        (_strangers_line, "not its holder's"),
        (_former_holders_progress, "told nothing of this"),
        (_older_progress, "its holder has told"),
        (_no_progress, "its holder has told"),
        (_refused_progress, "told nothing of this"),
        (_progress_of_nobody, "nobody has it"),
    ],
)
def test_what_no_job_said_is_told(fault: Callable[[Scene], None], says: str) -> None:
    scene = Scene()
    fault(scene)
    found = judge(scene.facts, scene.history)
    assert any(says in fault for fault in found), found


def test_what_was_told_at_the_same_moment_counts_where_it_is_known_to_be_earlier() -> None:
    scene = Scene()
    scene.told("token 2", "now", 12.5)
    shown = replace(scene.shown(2, None, 12.5), sent=12.5)
    scene.facts.told = [one for one in scene.facts.told if one.note == "now"]
    scene.facts.shown = [shown]
    assert judge(scene.facts, scene.history) == []
    scene.facts.shown = [replace(shown, behind="now")]
    assert any("its holder has told" in fault for fault in judge(scene.facts, scene.history))


def test_of_what_was_told_at_once_either_may_stand() -> None:
    scene = Scene()
    scene.told("token 2", "long", 12.5)
    scene.told("token 2", "short", 12.6)
    *before, long, short = scene.facts.told
    shown = [scene.shown(2, note, 14.0) for note in ("long", "short")]
    scene.facts.told, scene.facts.shown = [*before, replace(long, done=13.0), short], shown
    assert judge(scene.facts, scene.history) == []
    scene.facts.told = [*before, replace(long, done=12.55), short]
    assert any("its holder has told" in fault for fault in judge(scene.facts, scene.history))


def test_what_could_be_is_not_told() -> None:
    scene = Scene()
    scene.told("token 2", "perhaps", 12.5, "info", "")
    scene.facts.shown += [scene.shown(2, "far 2", 13.0), scene.shown(2, "perhaps", 13.0)]
    scene.facts.shown.append(scene.shown(2, None, 30.0))  # the lease has run out
    assert judge(scene.facts, scene.history) == []
