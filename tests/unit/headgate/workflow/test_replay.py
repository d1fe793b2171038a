"""Code against its history: prefixes, interleavings, edits, other processes and interpreters."""

import asyncio
import gc
import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headgate.testing import explore, replay, simulate
from headgate.workflow import Event, Mismatch, Replay, Workflow
from headgate.workflow.errors import TurnFailed, UnknownEvent
from headgate.workflow.events import markers_of
from headgate.workflow.local.memory import MemoryRun
from headgate.workflow.turns import Turn
from tests.support.examples import examples
from tests.support.workflow_cases import CASES

ROOT = Path(__file__).resolve().parents[4]
CASES_FILE = ROOT / "tests" / "support" / "workflow_cases.py"
# Without what the package's clients need: other interpreters have only the standard library.
RUN_CASES = f"""
import runpy, sys, types
package = types.ModuleType("headgate")
package.__path__ = [{str(ROOT / "headgate")!r}]
sys.modules["headgate"] = package
runpy.run_path({str(CASES_FILE)!r}, run_name="__main__")
"""


def recorded(history: list[Event]) -> dict[int, set[tuple[str, str, str | None]]]:
    found: dict[int, set[tuple[str, str, str | None]]] = {}
    for event in history:
        if event.after is not None:
            found.setdefault(event.after, set()).add((event.kind, event.key, event.fingerprint))
    return found


@pytest.mark.parametrize("name", CASES)
def test_every_prefix_of_every_history_replays_to_the_recorded_commands(name: str) -> None:
    simulation = CASES[name]()
    for history in (simulation.history, *explore(simulation, seeds=2).histories):
        lines = [json.dumps(event.body()) for event in history]
        expected, markers = recorded(history), markers_of(history)
        for length in range(1, len(lines) + 1):
            run = Replay(simulation.function, seen=history[-1].event, markers=markers)
            made: dict[int, set[tuple[str, str, str | None]]] = {}
            for event in map(Event.parse, map(json.loads, lines[:length])):
                if commands := run.feed(event):
                    made[event.event] = {command.identity for command in commands}
            assert made == {number: expected[number] for number in expected if number <= length}
            run.close()


def test_an_event_may_be_fed_as_json_has_it() -> None:
    history = CASES["chain"]().history
    run = Replay(CASES["chain"]().function, markers=markers_of(history))
    made = [command.identity for event in history for command in run.feed(json.loads(json.dumps(event.body())))]
    assert set(made) == set().union(*recorded(history).values())
    with pytest.raises(UnknownEvent):
        run.feed({"event": run.last + 1})
    run.close()


@pytest.mark.parametrize("name", CASES)
def test_every_order_of_every_case_replays_after_a_crash_at_each_event(name: str) -> None:
    found = explore(CASES[name](), seeds=(seeds := examples(10, nightly=25)))
    assert sum(found.ends.values()) == seeds


def test_a_question_keeps_its_answer_on_every_replay_in_thousands_of_interleavings() -> None:
    """Answers are noted by event, so a replay of each length must repeat those before it."""
    answers: list[tuple[int, str, bool]] = []

    async def asks(wf: Workflow, tasks: int) -> None:
        forked = [await wf.fork("work", number) for number in range(tasks)]
        while True:
            found = [wf.is_task_finished(task) for task in forked]
            answers.extend((wf._run.told, task, answer) for task, answer in zip(forked, found, strict=True))
            if all(found):
                return
            await wf.receive("look again")

    both: set[tuple[str, bool]] = set()
    for seed in range(examples(2_000, nightly=10_000)):
        chance = random.Random(seed)
        run = MemoryRun("asks", chance.randint(1, 4))
        core = Replay(asks)
        first: dict[tuple[int, str], bool] = {}
        answers.clear()
        take_turn(run, core)
        while not run.is_ended:
            left = [key for key, node in run.nodes.items() if node["state"] == "added"]
            key = chance.choice([*left, None])
            if key is None:
                run.signal("look again")
            else:
                run.finish(key)
                if len(left) == 1:
                    run.signal("look again")
            if chance.random() < 0.5:
                core.close()
                core = Replay(asks, seen=run.seen)
            take_turn(run, core)
            for told, task, answer in answers:
                assert first.setdefault((told, task), answer) == answer, seed
                both.add((task, answer))
            answers.clear()
        core.close()
    assert {answer for task, answer in both if task == "work#1"} == {False, True}


def take_turn(run: MemoryRun, core: Replay) -> None:
    """The least that a worker does: feed what is new, write what is asked for."""
    core.feed_all(run.events(core.last))
    asked = [command.body() for command in core.unrecorded()]
    lease = run.lease
    turn = Turn(lease.generation, lease.secret, run.turn_number + 1, core.last, core.told, asked)
    if run.is_awake:
        run.turn(lease, turn)
        core.seen = run.seen


KEPT = json.loads((Path(__file__).parent / "histories.json").read_text())


@pytest.mark.parametrize("name", CASES)
def test_histories_that_were_made_before_replay(name: str) -> None:
    """They are kept as they are. What changes the order of anything, or a fingerprint, would strand running code.

    A new case is added by `python -m tests.support.workflow_cases histories`, and only its line is taken.
    """
    replay({"events": KEPT[name]}, CASES[name]().function).close()


def other_pythons() -> list[str]:
    """Every interpreter on this machine that we support, each version once."""
    names = [f"python3.{minor}" for minor in range(11, 20)]
    found = [path for name in names if (path := shutil.which(name))]
    found += map(str, sorted(Path.home().glob(".pyenv/versions/3.*/bin/python")))
    versions = {}
    for path in [*found, sys.executable]:
        asked = subprocess.run(
            [path, "-c", "import sys; print(sys.version_info[:2])"], capture_output=True, text=True, check=False
        )
        if asked.returncode == 0 and tuple(map(int, re.findall(r"\d+", asked.stdout))) >= (3, 11):
            versions[asked.stdout.strip()] = path
    return list(versions.values())


def test_commands_are_the_same_under_three_hash_seeds_and_on_each_python_here() -> None:
    outputs = {}
    for python in other_pythons():
        seeds = ("0", "1", "12345") if python == sys.executable else ("3",)
        for seed in seeds:
            environment = {**os.environ, "PYTHONHASHSEED": seed}
            run = subprocess.run(
                [python, "-c", RUN_CASES], env=environment, capture_output=True, text=True, check=False
            )
            assert run.returncode == 0, run.stderr
            outputs[python, seed] = run.stdout
    assert len(outputs) >= 3
    assert len(set(outputs.values())) == 1
    refused = json.loads(outputs[sys.executable, "0"])["refused"]
    assert len(refused) > 5 and all(told.startswith("refused: ") for told in refused.values())


def test_the_collector_is_paused_while_a_history_is_replayed_and_no_longer() -> None:
    """With many calls at once it would look at all of them, again and again."""
    were: list[bool] = []

    async def code(wf: Workflow) -> None:
        were.append(gc.isenabled())
        await wf.call("work")
        raise AssertionError("not before it is told")

    history = [event for event in simulate(original, "x").run().run.events() if event.kind == "run"]
    assert gc.isenabled()
    Replay(code).feed_all(history)
    assert (were, gc.isenabled()) == ([False], True)
    with pytest.raises(TurnFailed):
        Replay(code).feed_all([*history, *history])
    assert gc.isenabled()


# Edits


async def original(wf: Workflow, name: str) -> list[Any]:
    first = await wf.call("first", name)
    second = await wf.call("second", first, max_attempts=3)
    return [first, second]


async def inserted(wf: Workflow, name: str) -> list[Any]:
    await wf.call("check", name)  # the edit
    first = await wf.call("first", name)
    second = await wf.call("second", first, max_attempts=3)
    return [first, second]


async def dropped(wf: Workflow, name: str) -> list[Any]:
    first = await wf.call("first", name)
    return [first, None]


async def swapped(wf: Workflow, name: str) -> list[Any]:
    second = await wf.call("second", "f", max_attempts=3)  # the edit
    first = await wf.call("first", name)
    return [first, second]


async def renamed(wf: Workflow, name: str) -> list[Any]:
    first = await wf.call("first", name)
    second = await wf.call("2nd", first, max_attempts=3)  # the edit
    return [first, second]


async def other_argument(wf: Workflow, name: str) -> list[Any]:
    first = await wf.call("first", name.upper())  # the edit
    second = await wf.call("second", first, max_attempts=3)
    return [first, second]


async def other_option(wf: Workflow, name: str) -> list[Any]:
    first = await wf.call("first", name)
    second = await wf.call("second", first, max_attempts=4)  # the edit
    return [first, second]


async def other_kind(wf: Workflow, name: str) -> list[Any]:
    first = await wf.call("first", name)
    await wf.sleep(5)  # the edit
    second = await wf.call("second", first, max_attempts=3)
    return [first, second]


async def inserted_last(wf: Workflow, name: str) -> list[Any]:
    first = await wf.call("first", name)
    second = await wf.call("second", first, max_attempts=3)
    await wf.call("tell", second)  # the edit
    return [first, second]


async def raises(wf: Workflow, name: str) -> list[Any]:
    first = await wf.call("first", name)
    raise KeyError(first)  # the edit


EDITS: dict[Callable[..., Any], tuple[str | None, str | None]] = {
    inserted: ("item first#1", "item check#1"),
    dropped: ("item second#1", "end"),
    swapped: ("item first#1", "item second#1"),
    renamed: ("item second#1", "item 2nd#1"),
    other_argument: ('item first#1 {"payload":"ada"', 'item first#1 {"payload":"ADA"'),
    other_option: ('item second#1 {"max_attempts":3', 'item second#1 {"max_attempts":4'),
    other_kind: ("item second#1", "timer timer#1"),
    inserted_last: ('end {"output":["f","s"]', "item tell#1"),
    raises: ("item second#1", 'end {"error":'),
}


@pytest.mark.parametrize("edited", EDITS, ids=lambda edited: edited.__name__)
def test_each_kind_of_edit_is_a_mismatch_that_names_both_sides_and_the_line(
    edited: Callable[..., Any], tmp_path: Path
) -> None:
    done = simulate(original, "ada").on("first", "f").on("second", "s")
    done.save(tmp_path / "run.json")
    replay(tmp_path / "run.json", original)
    with pytest.raises(Mismatch) as caught:
        replay(tmp_path / "run.json", edited)
    expected, got = EDITS[edited]
    assert str(caught.value.expected).startswith(str(expected))
    assert str(caught.value.got).startswith(str(got))
    source = Path(__file__).read_text().splitlines()
    file, line, function = re.fullmatch(r"(.*):(\d+) in (\w+)", caught.value.line).groups()
    assert (file, function) == (__file__, edited.__name__)
    if any("# the edit" in text for text in source[edited.__code__.co_firstlineno : int(line)]):
        assert "# the edit" in source[int(line) - 1]


def test_what_the_history_lacks_is_found_at_its_end() -> None:
    """Beyond `seen` it is new; up to `seen` it must be there."""
    history = simulate(original, "ada").history
    cut = [event for event in history if event.key != "second#1"][:3]
    fresh = Replay(original, seen=2)
    assert [command.key for command in fresh.feed_all(cut)] == ["second#1"]
    with pytest.raises(Mismatch, match="the history has nothing more, but the code asks for item second#1"):
        Replay(original, seen=3).feed_all(cut)


def test_forged_and_shuffled_histories_are_refused() -> None:
    history = simulate(original, "ada").history
    with pytest.raises(UnknownEvent, match="came after"):
        Replay(original).feed_all([history[0], history[1], history[1]])
    with pytest.raises(UnknownEvent, match="lacks its beginning"):
        Replay(original).feed_all([history[2]._replace(after=None)])
    with pytest.raises(UnknownEvent, match="does not say which event"):
        Replay(original).feed_all([history[0], history[1]._replace(after=None)])
    with pytest.raises(UnknownEvent, match="use a newer SDK"):
        Replay(original).feed_all([history[0], history[1]._replace(after=None, kind="aliens", state="landed")])
    with pytest.raises(Mismatch, match="an end of item third#1"):
        Replay(original).feed_all([history[0], history[2]._replace(key="third#1")])
    signal = history[0]._replace(event=2, kind="signal", state="received", data=None)
    for forged in ([history[0]._replace(data=None)], [history[0], signal]):
        with pytest.raises(UnknownEvent, match="has no `data`"):
            Replay(original).feed_all(forged)
    with pytest.raises(UnknownEvent, match="is not an event"):
        Event.parse({"event": 1})


# Patches


async def before(wf: Workflow) -> str:
    await wf.call("old")
    await wf.sleep(10)
    return str(await wf.call("ship"))


async def patched(wf: Workflow) -> str:
    if wf.patched("new way"):
        await wf.call("new")
    else:
        await wf.call("old")
    await wf.sleep(10)
    if wf.patched("new way"):
        await wf.call("label")
    return str(await wf.call("ship"))


async def patch_only_later(wf: Workflow) -> str:
    await wf.call("old")
    await wf.sleep(10)
    if wf.patched("later"):
        await wf.call("label")
    return str(await wf.call("ship"))


async def removed(wf: Workflow) -> str:
    await wf.call("new")
    await wf.sleep(10)
    await wf.call("label")
    return str(await wf.call("ship"))


def test_a_patch_is_off_for_runs_that_have_passed_it_and_its_first_answer_holds() -> None:
    old = simulate(before).history
    replay(old, patched)
    # A run that is half-way goes on in the old way, also at the calls to come.
    part, seen = old[:5], 3
    run = Replay(patched, seen=seen)
    assert [command.key for command in run.feed_all(part)] == ["ship#1"]
    # Where it has not passed yet, it is new, and marked.
    run = Replay(patch_only_later, seen=seen)
    assert [command.key for command in run.feed_all(part)] == ["marker:later", "label#1"]


def test_a_patch_is_replayed_by_its_marker_and_may_be_removed() -> None:
    new = simulate(patched).history
    replay(new, patched)
    replay(new, removed)
    with pytest.raises(Mismatch):
        replay(simulate(before).history, removed)
    with pytest.raises(Mismatch):
        replay(new, before)


def test_a_marker_counts_only_from_its_event_on() -> None:
    async def asked_earlier_too(wf: Workflow) -> str:
        first = wf.patched("later")
        await wf.call("old")
        await wf.sleep(10)
        if wf.patched("later"):
            await wf.call("label")
        return f"{first} {await wf.call('ship')}"

    history = simulate(patch_only_later).history
    run = Replay(asked_earlier_too, seen=history[-3].event, markers=markers_of(history))
    run.feed_all(history[:-1])
    assert run.end is not None and json.loads(run.end.text)["output"] == "False None"


def test_an_event_may_make_more_than_one_turn_takes() -> None:
    """`seen` stays before it until its last command is written; a part of them is no mismatch then."""

    async def many(wf: Workflow) -> None:
        await asyncio.gather(*(wf.call("work", number) for number in range(3_000)))

    run = MemoryRun("many")
    core = Replay(many)
    for number in range(1, 4):
        asked = [command.body() for command in core.feed_all(run.events(core.last))][:1_000]
        seen = 1 if number == 3 else 0
        run.turn(run.lease, Turn(1, run.secret(1), number, core.last, seen, asked))
        core.close()
        core = Replay(many, seen=run.seen)
    assert core.feed_all(run.events()) == []
    assert len(run.nodes) == 3_000 and run.parked
