"""The loop, and what workflow code may not do: each refusal says what to use."""

import asyncio
import contextvars
import datetime
import gc
import json
import logging
import os
import random
import re
import secrets
import socket
import subprocess
import sys
import threading
import time
import uuid
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headgate.testing import explore, replay, simulate
from headgate.workflow import Nondeterministic, Refused, Replay, Workflow
from headgate.workflow.errors import NeverYields


async def call_as_completed(wf: Workflow) -> None:
    for each in asyncio.as_completed([wf.call("a"), wf.call("b")]):
        await each


async def call_wait_for(wf: Workflow) -> None:
    await asyncio.wait_for(wf.call("a"), 5)


async def call_wait_for_of_a_task(wf: Workflow) -> None:
    await asyncio.wait_for(asyncio.create_task(wf.call("a")), 5)


async def use_thread(wf: Workflow) -> None:
    await asyncio.to_thread(len, "a")


async def use_executor(wf: Workflow) -> None:
    await asyncio.get_running_loop().run_in_executor(None, len, "a")


async def use_socket(wf: Workflow) -> None:
    await asyncio.open_connection("127.0.0.1", 1)


async def use_process(wf: Workflow) -> None:
    await asyncio.create_subprocess_exec("true")


async def use_another_thread(wf: Workflow) -> None:
    asyncio.get_running_loop().call_soon_threadsafe(print)


async def wait_for_gathered(wf: Workflow) -> None:
    await asyncio.wait([asyncio.gather(wf.call("a")), asyncio.gather(wf.call("b"))])


async def ask_in_a_callback(wf: Workflow) -> None:
    raised: list[Exception] = []

    def publish() -> None:
        try:
            wf.publish("a", 1)
        except Refused as error:
            raised.append(error)

    asyncio.get_running_loop().call_soon(publish)
    await asyncio.sleep(0)
    raise raised[0]


REFUSED: dict[Callable[..., Awaitable[None]], str] = {
    call_as_completed: "make tasks of them first",
    call_wait_for: "asyncio.timeout",
    call_wait_for_of_a_task: "asyncio.timeout",
    use_thread: "a workflow may not use a thread",
    use_executor: "a workflow may not use a thread",
    use_socket: "a workflow may not use a socket",
    use_process: "a workflow may not use a process",
    use_another_thread: "a workflow may not use a thread",
    wait_for_gathered: "wait for its tasks",
    ask_in_a_callback: "this is a callback",
}


@pytest.mark.parametrize("workflow", REFUSED, ids=lambda workflow: workflow.__name__)
def test_what_would_replay_otherwise_is_refused_and_leaves_the_run_stuck_not_failed(
    workflow: Callable[..., Any],
) -> None:
    with pytest.raises(Nondeterministic, match=re.escape(REFUSED[workflow])) as caught:
        simulate(workflow).unguarded().run()
    assert workflow.__name__ in str(caught.value)


@pytest.mark.parametrize("workflow", REFUSED, ids=lambda workflow: workflow.__name__)
def test_what_is_refused_leaves_no_coroutine_that_nobody_awaits(workflow: Callable[..., Any]) -> None:
    """Python warns of each when it is collected: at any time, in any other code."""
    gc.freeze()  # what others have left is not looked through
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with pytest.raises(Nondeterministic):
            simulate(workflow).unguarded().run()
        gc.collect()
    assert [str(each.message) for each in said] == []


def test_tasks_of_runs_are_in_no_set_of_all_tasks() -> None:
    """They hash by their numbers, which are those of every other run: each task of thousands of parked runs would
    be compared with all that have its number."""
    found: list[int] = []

    async def code(wf: Workflow) -> None:
        waiting = [asyncio.ensure_future(wf.sleep(seconds)) for seconds in (1, 2)]
        found.append(len(asyncio.all_tasks()))
        await asyncio.gather(*waiting)
        found.append(len(asyncio.all_tasks()))

    simulate(code).unguarded().run()
    assert set(found) == {0}


async def as_completed_of_tasks(wf: Workflow) -> list[Any]:
    tasks = [asyncio.create_task(wf.call("work", number)) for number in range(5)]
    return [await each for each in asyncio.as_completed(tasks, timeout=100)]


def test_as_completed_of_tasks_replays() -> None:
    found = explore(simulate(as_completed_of_tasks).on("work", lambda number: number), seeds=20)
    assert len(found.outputs) > 1


async def looks_away(wf: Workflow) -> float:
    with wf.unsafe():
        time.monotonic()
    await wf.call("a")
    return 1.0


async def looks_away_over_an_await(wf: Workflow) -> float:
    with wf.unsafe():
        await wf.call("a")
        time.monotonic()
    return time.monotonic()


def test_the_guard_looks_away_where_it_is_told_to_and_no_longer() -> None:
    assert simulate(looks_away).output == 1.0
    with pytest.raises(Nondeterministic, match="the clock"):
        simulate(looks_away_over_an_await).run()


def test_commands_from_another_thread_or_loop_are_refused() -> None:
    kept: list[Workflow] = []

    async def keep(wf: Workflow) -> None:
        kept.append(wf)
        await wf.receive("never")

    run = Replay(keep)
    run.feed(simulate(keep).signal("never").history[0])
    with pytest.raises(Refused, match="not the workflow's loop"):
        kept[-1].publish("a", 1)
    with pytest.raises(Refused, match="not the workflow's loop"):
        asyncio.run(kept[-1].call("a"))


# The guard


GUARDED: dict[str, tuple[Callable[[], Any], str]] = {
    "time.time": (time.time, "wf.now"),
    "monotonic": (time.monotonic_ns, "wf.now"),
    "datetime.now": (lambda: datetime.datetime.now(datetime.UTC), "wf.now"),
    "date.today": (datetime.date.today, "wf.now"),
    "time.sleep": (lambda: time.sleep(0), "wf.sleep"),
    "random.random": (random.random, "wf.random"),
    "random.choice": (lambda: random.choice([1, 2]), "wf.random"),
    "Random()": (lambda: random.Random().random(), "wf.random"),
    "uuid4": (uuid.uuid4, "wf.uuid"),
    "secrets": (secrets.token_hex, "wf.uuid"),
    "open": (lambda: open(os.devnull).close(), "wf.run"),  # noqa: PTH123
    "read_text": (lambda: Path(os.devnull).read_text(), "wf.run"),
    "socket": (lambda: socket.socket().close(), "wf.run"),
    "thread": (lambda: threading.Thread(target=len).start(), "wf.run"),
    "process": (lambda: subprocess.run(["true"], check=False), "wf.run"),
    "id": (lambda: id(object()), "addresses"),
    "hash": (lambda: hash("a"), "hashes"),
}


@pytest.mark.parametrize("name", GUARDED)
def test_the_guard_names_the_line_that_uses_clock_chance_or_files(name: str) -> None:
    use, instead = GUARDED[name]

    async def uses(wf: Workflow) -> None:
        await wf.call("a")
        use()

    with pytest.raises(Nondeterministic, match=re.escape(instead)) as caught:
        simulate(uses).run()
    assert f"{__file__}:" in str(caught.value)


def test_the_guard_tells_also_what_the_code_caught() -> None:
    async def catches(wf: Workflow) -> None:
        try:
            time.time()
        except Exception:
            await wf.call("a")

    with pytest.raises(Nondeterministic, match="the clock"):
        simulate(catches).run()


def test_the_guard_raises_no_false_alarm() -> None:
    """What looks at the clock or at files for itself, and code that only computes."""

    async def computes(wf: Workflow, text: str) -> Any:
        from concurrent.futures import ProcessPoolExecutor  # noqa: F401 (an import within reads files)

        logging.getLogger("tests").warning("said %s", text)
        wf.log.info("said once")
        found = json.loads(json.dumps({"a": [1, 2.5, None], "re": re.findall(r"\w+", text)}))
        found["drawn"] = random.Random(7).randint(1, 6) + wf.random.randint(1, 6)
        found["day"] = datetime.date(2030, 1, 31).isoformat()
        found["sorted"] = sorted({"b": 1, "a": 2}.items(), key=lambda pair: pair[1])
        try:
            raise ValueError(text)
        except ValueError as error:
            logging.getLogger("tests").info("with a trace", exc_info=error)
        await wf.call("a", found)
        return found

    assert simulate(computes, "to be or not").output["re"] == ["to", "be", "or", "not"]


def test_the_guard_raises_no_alarm_for_who_measures_collections_of_garbage() -> None:
    told = []

    def measure(phase: str, _info: dict[str, int]) -> None:
        told.append((phase, time.perf_counter()))

    async def collects(wf: Workflow) -> Any:
        gc.collect()
        return await wf.call("a")

    gc.callbacks.append(measure)
    try:
        assert simulate(collects).on("a", lambda: 1).output == 1
    finally:
        gc.callbacks.remove(measure)
    assert told


def test_the_guard_misses_what_is_called_by_c_and_replays_find_it() -> None:
    async def hidden(wf: Workflow) -> None:
        await wf.call("a", partial(time.perf_counter)())

    with pytest.raises(Exception, match="the history has item a#1"):
        simulate(hidden).run()


# Hazards


def test_globals_that_change_between_replays_are_found() -> None:
    calls = 0

    async def counts(wf: Workflow) -> None:
        nonlocal calls
        calls += 1
        await wf.call("a", calls)

    with pytest.raises(Exception, match=r'a#1 \{"payload":1.*a#1 \{"payload":2'):
        simulate(counts).run()


def test_a_set_of_text_is_found_under_another_hash_seed(tmp_path: Path) -> None:
    module = tmp_path / "colours.py"
    module.write_text(
        "async def paint(wf, _):\n"
        "    for colour in {'red', 'green', 'blue', 'black', 'white', 'grey'}:\n"
        "        await wf.call('paint', colour)\n"
    )
    code = (
        "import sys; from headgate.testing import simulate, replay; from colours import paint\n"
        "simulate(paint).save('run.json') if sys.argv[1:] else replay('run.json', paint)"
    )
    root = Path(__file__).resolve().parents[4]
    environment = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{tmp_path}"}
    answers = []
    for seed, arguments in (("0", ["save"]), ("0", []), ("1", []), ("2", [])):
        run = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            env={**environment, "PYTHONHASHSEED": seed},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        answers.append((run.returncode, run.stderr))
    assert [code for code, _ in answers[:2]] == [0, 0]
    assert any(code != 0 and "Mismatch: at event" in text for code, text in answers[2:])


def test_code_that_runs_on_and_on_is_ended() -> None:
    async def spins(wf: Workflow) -> None:
        while True:
            await asyncio.sleep(0)

    run = Replay(spins)
    run.loop.handles_max = 1_000
    with pytest.raises(NeverYields):
        run.feed(simulate(spins_not).history[0])


async def spins_not(wf: Workflow) -> None:
    pass


def test_now_after_a_race_is_the_events_time_and_never_goes_back() -> None:
    async def races(wf: Workflow) -> list[str]:
        times = [wf.now()]
        tasks = [asyncio.create_task(wf.sleep(5)), asyncio.create_task(wf.call("a"))]
        while tasks:
            _, left = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            tasks = list(left)
            times.append(wf.now())
            await wf.call("note", str(wf.now()))
        assert times == sorted(times)
        return [str((each - times[0]).total_seconds()) for each in times]

    found = explore(simulate(races).on("a", takes_s=3), seeds=30)
    assert len(found.outputs) > 10
    assert simulate(races).on("a", takes_s=3).output == ["0.0", "3.0", "5.0"]


def test_the_clock_is_at_least_a_fired_timers_due() -> None:
    """A service whose clock went back still tells code no earlier time than it waited for."""

    async def waits(wf: Workflow) -> str:
        begun = wf.now()
        await wf.sleep(100)
        return str(wf.now() - begun)

    history = simulate(waits).history
    early = [event._replace(at=history[0].at) for event in history[:3]]
    run = Replay(waits)
    run.feed_all(early)
    assert run.end is not None and '"0:01:40"' in run.end.text


def test_a_delay_of_next_to_nothing_ends() -> None:
    async def waits(wf: Workflow) -> int:
        loop = asyncio.get_running_loop()
        until, rounds = loop.time() + 0.1 + 5e-8, 0
        while (left := until - loop.time()) > 0:
            await asyncio.sleep(left)
            rounds += 1
        return rounds

    assert simulate(waits).output == 1
    with pytest.raises(AssertionError, match="is no time to wait for"):
        _ = simulate(endless).output


async def endless(wf: Workflow) -> None:
    await wf.sleep(1e30)


def test_a_dropped_run_asks_for_nothing_and_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """Its coroutines are closed, and whatever they hold for cleanup runs into the end."""
    reached: list[str] = []

    async def generates(wf: Workflow) -> AsyncIterator[int]:
        try:
            yield 1
            await wf.call("a")
        finally:
            reached.append("generator")
            await wf.call("from a generator")

    async def holds(wf: Workflow) -> None:
        try:
            async for _ in generates(wf):
                await wf.call("a")
        finally:
            reached.append("workflow")
            try:
                await wf.call("clean up")
            except Exception:
                reached.append("an error that is none")

    run = Replay(holds)
    assert [command.key for command in run.feed(simulate(spins_not).history[0])] == ["a#1"]
    run.close()
    del run
    gc.collect()
    assert reached == ["workflow"]
    assert capfd.readouterr().err == ""


def test_tasks_that_nobody_holds_are_not_collected_while_they_wait() -> None:
    async def background(wf: Workflow) -> None:
        event = asyncio.Event()

        async def waits() -> None:
            try:
                await event.wait()
            finally:
                await wf.call("collected")

        asyncio.create_task(waits())  # noqa: RUF006 (nobody holds it)
        await asyncio.sleep(0)

    async def begins(wf: Workflow) -> None:
        await background(wf)
        gc.collect()
        await wf.call("a")

    assert simulate(begins).unguarded().asked == ["a#1"]


def test_names_of_tasks_are_the_runs_own() -> None:
    async def named(wf: Workflow) -> list[str]:
        tasks = [asyncio.create_task(wf.call("a")) for _ in range(2)]
        await asyncio.gather(*tasks)
        return [task.get_name() for task in tasks]

    assert simulate(named).output == simulate(named).output


def test_context_variables_are_the_runs_own() -> None:
    level: contextvars.ContextVar[str] = contextvars.ContextVar("level", default="none")
    level.set("the test's")

    async def inner(wf: Workflow) -> str:
        level.set("inner")
        return str(await wf.call("a", level.get()))

    async def reads(wf: Workflow) -> list[Any]:
        first = level.get()
        level.set("outer")
        await asyncio.create_task(inner(wf))
        return [first, level.get()]

    assert simulate(reads).output == ["none", "outer"]


def test_logs_are_written_once_however_often_the_run_is_replayed(caplog: pytest.LogCaptureFixture) -> None:
    async def says(wf: Workflow) -> None:
        wf.log.warning("begun")
        await wf.call("a")
        wf.log.warning("done %d", 1)

    done = simulate(says)
    done.run()
    replay(done.history, says)
    explore(done, seeds=1)
    texts = [record.getMessage() for record in caplog.records]
    assert texts == ["simulated: begun", "simulated: done 1"] * 2
