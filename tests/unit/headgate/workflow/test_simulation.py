"""What a test of a workflow can say, and what it is told."""

import asyncio
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from headgate import Dag
from headgate.testing import Stalled, explore, replay, simulate
from headgate.workflow import NodeFailed, Workflow
from headgate.workflow.commands import Command
from tests.support.workflow_cases import CASES


async def order(wf: Workflow, cart: dict[str, Any]) -> dict[str, Any]:
    total = sum(cart["prices"])
    if wf.patched("review-large") and total > 1_000:
        try:
            async with asyncio.timeout(86_400):
                await wf.receive("approval")
        except TimeoutError:
            return {"state": "expired"}
    rate = await wf.run(fetch_rate, cart["currency"])
    receipt = await wf.call("card/charge", total * rate, max_attempts=5, backoff={"base_s": 1})
    pack = Dag("pack")
    boxes = [pack.node(f"box {n}", "ship/pack", payload=i) for n, i in enumerate(cart["items"])]
    pack.node("label", "ship/label", after=boxes, pass_outputs=True)
    shipped, _ = await asyncio.gather(wf.dag(pack), wf.child("loyalty", cart["user"]))
    wf.publish("state", "shipped")
    return {"receipt": receipt, "label": shipped["label"]}


async def fetch_rate(currency: str) -> int:
    return {"EUR": 2}[currency]


CART = {"prices": [600, 500], "currency": "EUR", "items": ["a", "b"], "user": "ada"}


def test_a_day_passes_at_once() -> None:
    done = simulate(order, CART)
    assert (done.output, done.elapsed_s) == ({"state": "expired"}, 86_400)


def test_attempts_pauses_and_signals_take_their_time() -> None:
    done = (
        simulate(order, CART)
        .on("card/charge", lambda amount: f"paid {amount}", fails=2, takes_s=300)
        .on("ship/label", lambda _, boxes: sorted(boxes))
        .signal("approval", at_s=60)
    )
    assert done.output == {"receipt": "paid 2200", "label": ["box 0", "box 1"]}
    assert done.elapsed_s == 60 + 3 * 300 + 1 + 2
    assert done.published == {"state": "shipped"}
    assert done.asked[:3] == ["marker:review-large", "timer#1", "timer#1"]
    assert len(explore(done, seeds=50).outputs) == 2


async def test_a_simulation_may_be_asked_for_in_a_loop() -> None:
    assert simulate(order, CART).state == "succeeded"


def test_what_is_used_up_fails_and_the_message_has_the_workflows_lines() -> None:
    done = simulate(order, CART).on("card/charge", fails=5, error="no funds").signal("approval")
    with pytest.raises(AssertionError, match=r"NodeFailed: card/charge#1 failed: no funds") as caught:
        _ = done.output
    assert "in order" in str(caught.value) and "/replay.py" not in str(caught.value).split("Error")[0][:200]
    assert (done.state, done.asked[-1]) == ("failed", "card/charge#1")


def test_what_is_said_to_have_an_error_fails_at_each_attempt() -> None:
    for attempts in (1, 3, 0):

        async def pays(wf: Workflow, attempts: int) -> str:
            try:
                await wf.call("card/charge", max_attempts=attempts)
            except NodeFailed as error:
                return f"{error.state}: {error.error}"
            return "paid"

        assert simulate(pays, attempts).on("card/charge", error="no funds").output == "failed: no funds"
        assert simulate(pays, attempts).on("card/charge", error="no funds", fails=99).output == "failed: no funds"
    assert simulate(pays, 3).on("card/charge", error="no funds", fails=2).output == "paid"


def test_a_workflow_that_waits_for_what_does_not_come_is_stalled() -> None:
    async def waits(wf: Workflow) -> None:
        await wf.fork("work")
        await wf.receive("go")

    with pytest.raises(Stalled, match=r"waits for a signal at .*in .*waits"):
        simulate(waits).run()


def test_a_graph_fails_by_its_node_and_skips_what_waits_for_it() -> None:
    async def builds(wf: Workflow) -> str:
        try:
            await wf.dag(build_graph())
        except NodeFailed as error:
            return f"{error.key} {error.state}: {error.error}"
        return "built"

    assert simulate(builds).on("compile", fails=99, error="syntax").output == "dag:build#1 failed: compile: syntax"
    assert simulate(builds).output == "built"


def build_graph() -> Dag:
    dag = Dag("build")
    dag.node("link", "link", after=[dag.node("compile", "compile")])
    return dag


def test_a_child_runs_its_own_code_and_a_mock_may_raise() -> None:
    async def parent(wf: Workflow) -> list[Any]:
        first = await wf.child("chain", 3)
        try:
            await wf.child("other")
        except NodeFailed as error:
            return [first, error.error]
        return [first]

    def refuses(_: Any) -> None:
        raise LookupError("no such thing")

    chain = CASES["chain"]().function
    done = (
        simulate(parent)
        .on("chain", workflow=chain)
        .on("add", lambda number: number * 2, takes_s=5)
        .on("other", refuses)
    )
    assert done.output == [6, "LookupError: no such thing"]
    assert done.elapsed_s == 15


def test_the_ends_of_the_cases() -> None:
    def ended(name: str) -> Any:
        return CASES[name]().run().outcome

    assert ended("nested_timeouts")[0] == "succeeded"
    assert ended("shielded") == ("succeeded", "paid")
    assert ended("swallowed") == ("succeeded", "went on")
    assert ended("cleaned_up") == ("cancelled", None)
    assert CASES["cleaned_up"]().published == {"state": "cleaned"}
    assert ended("group_aborted")[0] == "succeeded"
    assert ended("signalled") == ("succeeded", [1, 2, "no more"])
    assert CASES["continued"]().next_input == 2
    assert ended("continued")[0] == "continued"
    assert ended("failing")[0] == "failed"
    everything = CASES["everything"]().output
    assert (everything["path"], everything["took"], everything["taken"]) == ("new", 40, [0, 1, 2])


def test_a_signal_goes_past_a_cancelled_receiver_to_the_next() -> None:
    async def gives_up(wf: Workflow) -> list[Any]:
        first, second = asyncio.create_task(wf.receive("go")), asyncio.create_task(wf.receive("go"))
        await wf.receive("stop")
        first.cancel()
        await asyncio.wait([first])
        found = [first.cancelled(), await second]
        try:
            async with asyncio.timeout(10):
                await wf.receive("go")
        except TimeoutError:
            found.append("nothing")
        await wf.sleep(60)
        return [*found, await wf.receive("go"), await wf.receive("go")]

    done = (
        simulate(gives_up).signal("stop").signal("go", 7, at_s=1).signal("go", 8, at_s=30).signal("go", 9, at_s=31)
    )
    assert done.output == [True, 7, "nothing", 8, 9]
    assert done.run().run.received == {"stop": 1, "go": 3}


def test_payloads_are_taken_as_they_were_and_outputs_are_ones_own() -> None:
    async def mutates(wf: Workflow) -> Any:
        payload = {"n": 1}
        task = await wf.fork("work", payload)
        payload["n"] = 2
        found = await wf.join(task)
        found["seen"] = True
        await wf.call("note", found)
        return found

    done = simulate(mutates).on("work", lambda payload: payload)
    assert done.output == {"n": 1, "seen": True}
    explore(done, seeds=5)


def test_what_has_no_json_form_and_unknown_options_are_told_where_they_are_asked_for() -> None:
    async def sends(wf: Workflow, what: str) -> None:
        match what:
            case "set":
                await wf.call("work", {1, 2})
            case "nan":
                await wf.call("work", float("nan"))
            case "option":
                await wf.call("work", max_attemps=3)  # type: ignore[call-arg]
            case "step":
                await wf.run(fetch_rate, object())

    for what, told in {
        "set": "payload of 'work' has no JSON form",
        "nan": "has no JSON form",
        "option": "there is no option 'max_attemps'",
        "step": "an argument of the step fetch_rate",
    }.items():
        assert told in str(simulate(sends, what).error)


def test_a_forked_task_is_cancelled_by_name_and_a_cancelled_join_leaves_it() -> None:
    async def forks(wf: Workflow) -> list[Any]:
        task = await wf.fork("work")
        try:
            async with asyncio.timeout(5):
                await wf.join(task)
        except TimeoutError:
            pass
        found = [wf.is_task_finished(task), await wf.join(task)]
        other = await wf.fork("work")
        await wf.sleep(1)
        await wf.cancel_task(other)
        try:
            await wf.join(other)
        except NodeFailed as error:
            found.append(error.state)
        never = await wf.fork("never told")
        await wf.cancel_task(never)
        found.append(wf.is_task_finished(never))
        try:
            wf.is_task_finished("work#7")
        except KeyError:
            found.append("unknown")
        return found

    done = simulate(forks).on("work", "done", takes_s=20)
    assert done.output == [False, "done", "cancelled", True, "unknown"]
    assert "never told#1" not in done.asked


def test_what_is_asked_for_and_dropped_within_one_event_is_not_told() -> None:
    async def drops(wf: Workflow) -> None:
        task = asyncio.create_task(wf.call("work"))
        async with asyncio.timeout(5):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        wf.publish("a", 1)
        wf.publish("a", 2)
        await wf.call("last")

    done = simulate(drops)
    assert done.asked == ["a", "last#1"]
    assert done.published == {"a": 2}


def test_a_history_is_saved_and_replayed(tmp_path: Path) -> None:
    done = CASES["everything"]()
    done.save(tmp_path / "run.json")
    run = replay(tmp_path / "run.json", done.function)
    assert run.end is not None and run.end.spec["output"] == done.output
    replay(done.history, done.function)
    replay([event.body() for event in done.history], done.function)


def test_a_long_command_is_shown_short() -> None:
    command = Command("item", "a#1", '{"payload":"' + "x" * 500 + '"}', 1, None)
    assert len(command.shown) == 120
    assert command.body()["spec"] == {"payload": "x" * 500}


def test_an_exit_ends_the_run_and_nothing_else() -> None:
    async def exits(wf: Workflow) -> None:
        wf.publish("a", 1)
        sys.exit(3)

    done = simulate(exits)
    assert (done.state, done.published) == ("failed", {"a": 1})
    assert str(done.error).endswith("SystemExit: 3\n")


def test_a_ctrl_c_ends_the_test_and_not_the_run() -> None:
    async def waits(wf: Workflow) -> None:
        signal.raise_signal(signal.SIGINT)

    # Where the suite is run in the background of a shell, it was started deaf to it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            simulate(waits).run()
    finally:
        signal.signal(signal.SIGINT, before)


def test_continuing_is_for_the_first_task_only() -> None:
    async def goes_on_elsewhere(wf: Workflow) -> None:
        async def go_on() -> None:
            wf.continue_as_new(1)

        await asyncio.create_task(go_on())

    with pytest.raises(Exception, match="only the run's first task may continue as new"):
        simulate(goes_on_elsewhere).run()


def test_a_long_history_says_that_the_run_should_continue_as_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.workflow.context.CONTINUE_AT_EVENTS", 10)

    async def polls(wf: Workflow, rounds: int) -> None:
        while not wf.should_continue:
            await wf.sleep(60)
            rounds += 1
        wf.continue_as_new(rounds)

    done = simulate(polls, 0)
    assert done.state == "continued"
    assert done.elapsed_s < 10 * 60
