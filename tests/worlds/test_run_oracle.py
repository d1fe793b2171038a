"""Runs of workflows are judged: their history is what their code does, and each call of it is one task."""

from collections.abc import Callable
from typing import Any

import pytest

from headgate.workflow.events import Event
from headgate.workflow.replay import Replay
from tests.worlds.facts import Delivery, History, Word
from tests.worlds.run_facts import Move, Retry, Run, RunFacts, Signal, Update, judge, stroll

AT = "2030-01-01T00:00:00+00:00"
ANSWER = {"status": "done", "output": {"got": "what?"}, "error": None}
INPUT = {"tag": "red/r", "topics": ["n"], "signals": 1, "sleep_s": 0.0}


def recorded(*told: dict[str, Any]) -> list[dict[str, Any]]:
    """A history: what the code is told, and what it asks for, written down behind it."""
    core, events = Replay(stroll), []
    for of in told:
        event = {"event": len(events) + 1, "at": AT, "key": "", "generation": 1, **of}
        events.append(event)
        for command in core.feed(Event.parse(event)):
            asked = command.body()
            record = {name: asked[name] for name in ("kind", "key", "after")}
            data = {"fingerprint": asked["fingerprint"]}
            made = {"event": len(events) + 1, "at": AT, "generation": 1, "state": "added", **record, "data": data}
            events.append(made)
            core.feed(Event.parse(made))
    core.close()
    return events


class World:
    """A run that makes one call, is sent one signal, and ends."""

    def __init__(self, output: str = "done", **given: Any) -> None:
        self.facts, self.history = RunFacts(), History()
        wanted = INPUT | given
        self.run = Run("r", "red", wanted, is_promised=True, is_possible=True, dag="D")
        self.facts.all.append(self.run)
        self.run.signals.append(Signal("s", "go!", {"ok"}))
        self.run.updates.append(Update("u", "what?", {"ok"}, [ANSWER, ANSWER]))
        self.deliver("I")
        self.history.said(Word("ack", "red", "I", "token I", "ok", "acked", 2.0, 2.1, {"output": "done"}))
        self.run.events = recorded(
            {
                "kind": "run",
                "state": "started",
                "data": {"id": "r", "run": "D", "type": "stroll", "input": wanted},
            },
            {"kind": "item", "key": "n#1", "state": "succeeded", "output": output},
            {
                "kind": "signal",
                "key": "signal:ask#1",
                "state": "received",
                "data": {"name": "ask", "data": "what?", "id": "u", "asks": True},
            },
            {"kind": "signal", "key": "signal:go#1", "state": "received", "data": {"name": "go", "data": "go!"}},
        )
        self.run.seen = len(self.run.events)
        self.run.shown = {"state": "succeeded", "output": [output, "go!"]}

    def deliver(
        self, item_id: str, key: str = "n#1", dag_id: str = "D", generation: int = 1, at: float = 1.0
    ) -> None:
        of = {"id": dag_id, "node": key, "generation": generation}
        one = Delivery("red/r/0", "red", "n", item_id, f"token {item_id}", 1, 60.0, at, at + 0.1, of)
        self.history.delivered(one)
        self.facts.delivered(one)


def test_a_sound_run_is_sound() -> None:
    world = World()
    assert judge(world.facts, world.history) == []


def retried() -> World:
    """A run that failed with its call, which was done once more by then."""
    world = World("at last", strict="one")
    world.run.retries.append(Retry("n#1", 3.0))
    world.deliver("J", generation=2, at=4.0)
    world.history.said(Word("ack", "red", "J", "token J", "ok", "acked", 5.0, 5.1, {"output": "at last"}))
    end = world.run.events[2]
    world.run.events[2] = end | {"state": "failed", "void": 1, "output": None}
    world.run.events.insert(3, end | {"generation": 2, "reset": 1})
    for number, event in enumerate(world.run.events, 1):
        event["event"] = number
        if event.get("after", 0) >= 3:
            event["after"] += 1  # of what is asked for behind the new end
    return world


def test_a_run_whose_call_was_done_once_more_is_sound() -> None:
    world = retried()
    assert judge(world.facts, world.history) == []


def _retried_by_nobody(world: World) -> None:
    world.run.retries.clear()


def _retried_before_that_was_asked_for(world: World) -> None:
    world.run.retries[0] = Retry("n#1", 4.5)


def _retried_twice(world: World) -> None:
    world.deliver("K", generation=3, at=6.0)


def _retried_though_it_had_succeeded(world: World) -> None:
    world.run.events[2] |= {"state": "succeeded", "output": "done"}


def _retried_and_told_of_the_old_end(world: World) -> None:
    del world.run.events[2]["void"]


def _output_of_the_first_time(world: World) -> None:
    world.run.events[3]["output"] = "done"


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (_retried_by_nobody, "which was asked for at []"),
        (_retried_before_that_was_asked_for, "which was asked for at [4.5]"),
        (_retried_twice, "came in generation 3"),
        (_retried_though_it_had_succeeded, "had succeeded"),
        (_retried_and_told_of_the_old_end, "told to have ended twice"),
        (_output_of_the_first_time, "gave done"),
    ],
)
def test_a_broken_retry_is_told(fault: Callable[[World], None], says: str) -> None:
    world = retried()
    fault(world)
    found = judge(world.facts, world.history)
    assert any(says in line for line in found), found


def test_a_strict_run_may_fail_with_a_call_and_with_nothing_else() -> None:
    world = World(strict="one")
    world.run.events = [*world.run.events[:2], world.run.events[2] | {"state": "failed", "output": None}]
    world.run.shown = {"state": "failed", "output": None}
    world.run.signals.clear()
    world.run.updates.clear()
    found = judge(world.facts, world.history)
    assert not any("nobody had asked" in line for line in found), found
    world.run.is_mended = True
    assert any("nobody had asked" in line for line in judge(world.facts, world.history))


def _two_items(world: World) -> None:
    world.deliver("J")


def _asked_by_nobody(world: World) -> None:
    world.deliver("J", "n#2")


def _of_no_run(world: World) -> None:
    world.deliver("J", dag_id="E")


def _another_call(world: World) -> None:
    world.run.events[1]["key"] = world.run.events[2]["key"] = "m#1"


def _another_output(world: World) -> None:
    world.run.shown["output"] = ["evil"]


def _output_of_nobody(world: World) -> None:
    world.run.events[2]["output"] = "evil"


def _told_twice(world: World) -> None:
    world.run.events.append(dict(world.run.events[2]))


def _signal_lost(world: World) -> None:
    world.run.signals.append(Signal("t", "on!", {"ok"}))


def _signal_of_nobody(world: World) -> None:
    world.run.signals.clear()


def _failed(world: World) -> None:
    world.run.shown["state"] = "failed"


def _cancelled(world: World) -> None:
    world.run.shown["state"] = "cancelled"


def _another_input(world: World) -> None:
    world.run.input = {**INPUT, "tag": "blue/r"}


def _update_lost(world: World) -> None:
    world.run.updates.append(Update("v", "and?", {"ok"}, [ANSWER]))


def _update_of_nobody(world: World) -> None:
    world.run.updates.clear()


def _update_answered_twice(world: World) -> None:
    world.run.updates[0].answers.append({**ANSWER, "output": "evil"})


def _update_answered_otherwise(world: World) -> None:
    world.run.updates[0].answers = [{**ANSWER, "output": "evil"}]


def _update_not_answered(world: World) -> None:
    world.run.updates[0].answers.clear()


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (_two_items, "is 2 items"),
        (_asked_by_nobody, "which its code has not asked for"),
        (_of_no_run, "of a run that nobody began"),
        (_another_call, "does not replay"),
        (_another_output, "its history tells"),
        (_output_of_nobody, "gave evil"),
        (_told_twice, "ended twice"),
        (_signal_lost, "came 0 times"),
        (_signal_of_nobody, "that nobody sent"),
        (_failed, "nobody had asked for it"),
        (_cancelled, "nobody had asked for it"),
        (_another_input, "it began with"),
        (_update_lost, "came 0 times"),
        (_update_of_nobody, "updates that nobody sent"),
        (_update_answered_twice, "was answered"),
        (_update_answered_otherwise, "was answered"),
        (_update_not_answered, "is not answered"),
    ],
)
def test_a_broken_run_is_told(fault: Callable[[World], None], says: str) -> None:
    world = World()
    fault(world)
    found = judge(world.facts, world.history)
    assert any(says in line for line in found), found


def test_a_run_is_for_the_version_that_it_was_moved_to() -> None:
    run = Run("r", "red", INPUT, moves=[Move(None, 1.0, 1.1), Move("1", 2.0, 2.1), Move("2", 3.0, None)])
    assert run.versions(1.05) == {None, "1", "2"}, "what is under way may have been done"
    assert run.versions(2.5) == {"1", "2"}
    run.moves.append(Move(None, 4.0, 4.1))
    assert run.versions(4.2) == {None}
