"""Steps on a worker: beside turns and events, tried again, given up, and run again where a worker died."""

import asyncio
import gc
import threading
from typing import Any

import pytest

from headgate.workflow import NodeFailed, Workflow
from headgate.workflow.local.memory import MemoryRun
from headgate.workflow.local.simulation import replay
from tests.support.workflow_service import Service, driver_of


@pytest.fixture
def service() -> Service:
    return Service(MemoryRun("order", "books"))


def weigh(cart: str) -> int:
    return len(cart)


async def test_a_short_step_is_one_commit_and_several_are_too(service: Service) -> None:
    async def weighs(wf: Workflow, cart: str) -> list[int]:
        one = await wf.run(weigh, cart)
        return [one, *await asyncio.gather(wf.run(weigh, cart), wf.run(weigh, cart))]

    await driver_of(service, weighs).work("order", service.run.lease)
    assert service.run.output == [5, 5, 5]
    assert [len(turn.results) for turn in service.turns] == [1, 2, 0]


async def test_a_signal_is_told_while_a_step_runs(service: Service) -> None:
    let = asyncio.Event()

    async def long() -> str:
        await let.wait()
        return "done"

    async def waits(wf: Workflow, _: str) -> list[Any]:
        step = asyncio.create_task(wf.run(long))
        found = await wf.receive("go")
        await wf.call("note", found)
        return [found, await step]

    driver = driver_of(service, waits)
    working = asyncio.create_task(driver.work("order", service.run.lease))
    while not service.run.running_steps:
        await asyncio.sleep(0.01)
    service.run.signal("go", 7)
    service.changed.set()
    while "note#1" not in service.run.nodes:
        await asyncio.sleep(0.01)
    let.set()
    await working
    service.run.finish("note#1")
    await driver.work("order", service.run.lease)
    assert service.run.output == [7, "done"]
    replay(service.run.events(), waits).close()


async def test_a_step_whose_worker_died_runs_again_and_counts_once(service: Service) -> None:
    tries: list[str] = []

    async def step() -> int:
        tries.append("")
        if len(tries) == 1:
            await asyncio.Event().wait()
        return len(tries)

    async def steps(wf: Workflow, _: str) -> list[Any]:
        return await asyncio.gather(wf.run(step), wf.call("work"))

    working = asyncio.create_task(driver_of(service, steps).work("order", service.run.lease))
    while not service.run.running_steps:
        await asyncio.sleep(0.01)
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    service.run.finish("work#1")
    await driver_of(service, steps).work("order", service.run.lease)
    assert service.run.output == [2, None]


async def test_a_step_is_tried_again_and_its_last_error_is_told(service: Service) -> None:
    tries = []

    async def step(allowed: int) -> int:
        tries.append(1)
        if len(tries) <= allowed:
            raise LookupError("not yet")
        return len(tries)

    async def steps(wf: Workflow, _: str) -> list[Any]:
        found: list[Any] = [await wf.run(step, 2, max_attempts=3, backoff={"base_s": 0})]
        try:
            await wf.run(step, 99, max_attempts=2, backoff={"base_s": 0})
        except NodeFailed as error:
            found.append(str(error.error).splitlines()[-1])
        return found

    await driver_of(service, steps).work("order", service.run.lease)
    assert service.run.output == [3, "LookupError: not yet"]


async def test_blocking_steps_do_not_wait_for_one_another(service: Service) -> None:
    together = threading.Barrier(40)

    def waits_for_all() -> int:
        return int(together.wait(20) >= 0)

    async def many(wf: Workflow, _: str) -> int:
        return sum(await asyncio.gather(*(wf.run(waits_for_all) for _ in range(40))))

    await driver_of(service, many).work("order", service.run.lease)
    assert service.run.output == 40


async def test_a_step_that_ends_while_an_event_is_told_does_not_cut_that_off(service: Service) -> None:
    told, ended, loop = asyncio.Event(), threading.Event(), asyncio.get_running_loop()

    async def step() -> str:
        await told.wait()
        ended.set()
        return "done"

    async def waits(wf: Workflow, _: str) -> list[Any]:
        running = asyncio.create_task(wf.run(step))
        found = await wf.receive("go")
        loop.call_soon_threadsafe(told.set)
        ended.wait(10)
        return [found, await running]

    working = asyncio.create_task(driver_of(service, waits, event_limit_s=30).work("order", service.run.lease))
    while not service.run.running_steps:
        await asyncio.sleep(0.01)
    service.run.signal("go", 7)
    service.changed.set()
    await working
    assert service.run.output == [7, "done"]


async def test_a_cancelled_step_is_stopped(service: Service) -> None:
    stopped = asyncio.Event()

    async def long() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            stopped.set()
            raise

    async def gives_up(wf: Workflow, _: str) -> str:
        try:
            async with asyncio.timeout(60):
                await wf.run(long)
        except TimeoutError:
            await wf.call("note")
        return "gave up"

    driver = driver_of(service, gives_up)
    working = asyncio.create_task(driver.work("order", service.run.lease))
    while not service.run.running_steps:
        await asyncio.sleep(0.01)
    service.run.finish("timer#1")
    service.changed.set()
    await working
    assert stopped.is_set()
    service.run.finish("note#1")
    await driver.work("order", service.run.lease)
    assert service.run.output == "gave up"


def test_of_a_long_error_the_end_is_shown() -> None:
    error = NodeFailed("charge", "failed", "Traceback ...\n" + "  File ...\n" * 200 + "ValueError: no funds")
    assert str(error).startswith("charge failed: ") and str(error).endswith("ValueError: no funds")


class Panic(BaseException):
    """As an extension in Rust raises it."""


class Unlooked(Exception):
    def __str__(self) -> str:
        raise Panic("as it is looked at")

    __repr__ = __str__


class Untraced(Exception):
    def __getattribute__(self, name: str) -> Any:
        if name == "__traceback__":
            raise SystemExit("nobody may ask")
        return super().__getattribute__(name)


ENDS = [
    Untraced("of which nobody may ask for the traceback"),
    Panic("a panic"),
    SystemExit(3),
    KeyboardInterrupt(),
    GeneratorExit("closed"),
    asyncio.CancelledError("by itself"),
    BaseExceptionGroup("several", [SystemExit(3)]),
    Unlooked(),
]


@pytest.mark.parametrize("threaded", [False, True])
@pytest.mark.parametrize("error", ENDS, ids=lambda error: type(error).__name__)
async def test_whatever_a_step_raises_is_its_failure(
    error: BaseException, threaded: bool, service: Service
) -> None:
    """A panic had the step called for ever, and `sys.exit` ended the worker with all that it held."""
    tries = []

    def function() -> None:
        tries.append(1)
        raise error

    async def coroutine() -> None:
        function()

    async def steps(wf: Workflow, _: str) -> str:
        try:
            await wf.run(function if threaded else coroutine, max_attempts=2, backoff={"base_s": 0})
        except NodeFailed as failure:
            return str(failure.error)
        return "no failure"

    await driver_of(service, steps).work("order", service.run.lease)
    assert len(tries) == 2
    assert type(error).__name__ in service.run.output


@pytest.mark.parametrize("awaits", [True, False])
async def test_a_step_that_cancels_itself_has_failed(awaits: bool, service: Service) -> None:
    """It was taken for cancelled by its run, and called anew, for ever; one that returns is cancelled then."""
    tries = []

    async def step() -> None:
        tries.append(1)
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        if awaits:
            await asyncio.sleep(0)

    async def steps(wf: Workflow, _: str) -> str:
        try:
            await wf.run(step, max_attempts=2, backoff={"base_s": 0})
        except NodeFailed as failure:
            return str(failure.error)
        return "no failure"

    await driver_of(service, steps).work("order", service.run.lease)
    assert len(tries) == 2 and "CancelledError" in service.run.output


async def test_what_a_step_makes_of_its_cancel_is_not_logged_by_asyncio(service: Service) -> None:
    async def step() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ValueError("made of a cancel") from None

    async def steps(wf: Workflow, _: str) -> None:
        await wf.run(step)

    logged: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, found: logged.append(found))
    working = asyncio.create_task(driver_of(service, steps).work("order", service.run.lease))
    while not service.run.running_steps:
        await asyncio.sleep(0.01)
    working.cancel()
    await asyncio.wait([working])
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    del working
    gc.collect()
    assert logged == []


def who_awaits(task: "asyncio.Task[Any] | None") -> "asyncio.Task[Any]":
    (found,) = (each for each in asyncio.all_tasks() if task and getattr(each, "_fut_waiter", None) is task)
    return found


@pytest.mark.parametrize("later", [False, True])
async def test_a_step_that_cancels_the_task_that_awaits_it_has_failed(later: bool, service: Service) -> None:
    """Nobody had given it up, and it was called anew, for ever; `later`: as it waits for its next attempt."""
    tries = []

    async def step() -> None:
        tries.append(1)
        awaiting = who_awaits(asyncio.current_task())
        if later:
            asyncio.get_running_loop().call_later(0.01, awaiting.cancel)
            raise LookupError
        awaiting.cancel()
        await asyncio.sleep(0.01)

    async def steps(wf: Workflow, _: str) -> str:
        try:
            await wf.run(step, max_attempts=2, backoff={"base_s": 60 if later else 0})
        except NodeFailed as failure:
            return str(failure.error)
        return "no failure"

    async with asyncio.timeout(20):
        await driver_of(service, steps).work("order", service.run.lease)
    assert len(tries) == (1 if later else 2)
    assert "CancelledError" in service.run.output
