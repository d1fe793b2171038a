"""The worker's side of a run, against rows in memory: each window in which it may die, each race, each limit."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from headgate.workflow import NodeFailed, Workflow
from headgate.workflow.driver import Cores, Driver
from headgate.workflow.memory import MemoryRun
from headgate.workflow.simulation import replay
from headgate.workflow.threads import CoreThreads
from headgate.workflow.turns import Diverged, Lease, Page, Turn, TurnAnswer


class Killed(BaseException):
    """The worker is gone."""


class Service:
    """One run. The test says what happens before a turn is written, after it, and before it is answered."""

    def __init__(self, run: MemoryRun) -> None:
        self.run = run
        self.before_turn: Callable[[], Any] = lambda: None
        self.after_turn: Callable[[], Any] = lambda: None
        self.turns: list[Turn] = []
        self.read_from: list[int] = []
        self.page_max = 1_000
        self.changed = asyncio.Event()

    async def history(self, lease: Lease, after: int, wait_s: float = 0.0) -> Page:
        self.read_from.append(after)
        while wait_s and len(self.run) == after:
            self.changed.clear()
            await self.changed.wait()
        await asyncio.sleep(0)
        return self.run.history(lease, after, self.page_max)

    async def turn(self, lease: Lease, turn: Turn) -> TurnAnswer:
        await asyncio.sleep(0)
        self.before_turn()
        answer = self.run.turn(lease, turn)
        self.turns.append(turn)
        self.after_turn()
        return answer


def once(what: Callable[[], Any]) -> Callable[[], Any]:
    left = [what]
    return lambda: left.pop()() if left else None


def kill() -> None:
    raise Killed


def driver_of(service: Service, function: Callable[..., Any], **settings: Any) -> Driver:
    return Driver({"order": function}, service, **settings)


async def to_the_end(service: Service, driver: Driver, *, deaths_max: int = 0) -> None:
    """Deliver the decider's item and end tasks until the run has ended; another worker follows a dead one."""
    run = service.run
    for _ in range(1_000):
        while run.is_awake:
            try:
                await driver.work("order", run.lease)
            except Killed:
                deaths_max -= 1
                driver.cores = Cores()
                assert deaths_max >= 0
        if run.is_ended:
            return
        waiting = [key for key, node in run.nodes.items() if node["state"] == "added"]
        assert waiting, "nothing to wait for"
        run.finish(waiting[0], output=f"output of {waiting[0]}")
    raise AssertionError("the run does not end")


async def order(wf: Workflow, cart: str) -> list[Any]:
    first = await wf.call("reserve", cart)
    rest = await asyncio.gather(wf.call("charge", first), wf.call("ship", first), wf.run(weigh, cart))
    wf.publish("state", "shipped")
    await wf.sleep(60)
    return [first, *rest]


weighed: list[str] = []


def weigh(cart: str) -> int:
    weighed.append(cart)
    return len(cart)


OUTPUT = ["output of reserve#1", "output of charge#1", "output of ship#1", 5]


@pytest.fixture
def service() -> Service:
    weighed.clear()
    return Service(MemoryRun("order", "books"))


def check_history(service: Service, function: Callable[..., Any] = order) -> None:
    """Whatever happened, each command is there once, and the code agrees with all of it."""
    history = service.run.events()
    keys = [(event.kind, event.key) for event in history if event.is_record]
    assert len(keys) == len(set(keys))
    replay(history, function).close()


async def test_a_run_is_driven_to_its_end(service: Service) -> None:
    await to_the_end(service, driver_of(service, order))
    assert service.run.output == OUTPUT
    assert service.run.published == {"state": "shipped"}
    assert weighed == ["books"]
    check_history(service)


@pytest.mark.parametrize("turn", range(1, 8))
async def test_killed_before_a_turn_is_written(service: Service, turn: int) -> None:
    count = iter(range(1, 100))
    service.before_turn = lambda: kill() if next(count) == turn else None
    await to_the_end(service, driver_of(service, order), deaths_max=1)
    assert service.run.output == OUTPUT
    check_history(service)


@pytest.mark.parametrize("turn", range(1, 8))
async def test_killed_when_a_turn_is_written_and_before_its_answer(service: Service, turn: int) -> None:
    """C1 without an answer. A run that it parked waits for its next event; any other goes to the next worker."""
    count = iter(range(1, 100))
    service.after_turn = lambda: kill() if next(count) == turn else None
    await to_the_end(service, driver_of(service, order), deaths_max=1)
    assert service.run.output == OUTPUT
    check_history(service)


async def test_a_turn_that_is_sent_twice_is_answered_alike_and_written_once(service: Service) -> None:
    driver = driver_of(service, order)
    lease = service.run.lease
    await driver.work("order", lease)
    (turn,) = service.turns
    length = len(service.run)
    assert service.run.turn(lease, turn).parked
    assert len(service.run) == length
    service.run.finish("reserve#1", output="r")
    assert service.run.turn(lease, turn).parked  # the item of that generation is over, whatever has come since


async def test_an_event_between_the_read_and_the_park_is_answered(service: Service) -> None:
    def sends() -> None:
        service.run.signal("hurry")

    async def hurried(wf: Workflow, _: str) -> str:
        await wf.receive("hurry")
        return "hurried"

    service.before_turn = once(sends)
    await driver_of(service, hurried).work("order", service.run.lease)
    assert service.run.output == "hurried"
    assert len(service.read_from) == 1


async def test_parked_and_not_acked_is_delivered_again_and_acked(service: Service) -> None:
    """C3: the item of the generation that parked comes once more."""
    driver = driver_of(service, order)
    lease = service.run.lease
    await driver.work("order", lease)
    length = len(service.run)
    await driver.work("order", lease)
    assert (len(service.run), len(service.turns)) == (length, 1)
    service.run.finish("reserve#1", output="r")
    await driver.work("order", lease)
    assert len(service.turns) == 1
    await to_the_end(service, driver)
    check_history(service)


async def test_of_two_workers_one_writes_each_turn(service: Service) -> None:
    one, other = driver_of(service, order), driver_of(service, order)
    run = service.run
    while not run.is_ended:
        lease = run.lease
        await asyncio.gather(one.work("order", lease), other.work("order", lease))
        for key in [key for key, node in run.nodes.items() if node["state"] == "added"]:
            if run.nodes[key]["kind"] != "step":
                run.finish(key, output=f"output of {key}")
    assert run.output == OUTPUT
    check_history(service)


async def test_a_decider_whose_item_is_lost_gets_another(service: Service) -> None:
    service.run.lose_item()
    old = Lease("run", 1, service.run.secret(1))
    driver = driver_of(service, order)
    await driver.work("order", old)
    assert service.turns == []
    await to_the_end(service, driver)


async def test_a_forged_secret_changes_nothing(service: Service) -> None:
    await driver_of(service, order).work("order", service.run.lease._replace(secret="guessed"))
    assert service.turns == [] and len(service.run) == 1


async def test_a_parked_run_goes_on_where_its_core_was(service: Service) -> None:
    driver = driver_of(service, order)
    await driver.work("order", service.run.lease)
    service.run.finish("reserve#1", output="r")
    await driver.work("order", service.run.lease)
    assert service.read_from[:2] == [0, 1] and 0 not in service.read_from[1:]
    assert len(driver.cores) == 1


async def test_a_kept_core_learns_what_another_worker_did_meanwhile(service: Service) -> None:
    one, other = driver_of(service, order), driver_of(service, order)
    await one.work("order", service.run.lease)
    service.run.finish("reserve#1", output="output of reserve#1")
    await other.work("order", service.run.lease)
    service.run.finish("charge#1", output="output of charge#1")
    await one.work("order", service.run.lease)
    await to_the_end(service, one)
    assert service.run.output == OUTPUT
    check_history(service)


async def test_kept_cores_are_bounded(service: Service) -> None:
    cores = Cores(bytes_max=1)
    driver = driver_of(service, order, cores=cores)
    await driver.work("order", service.run.lease)
    assert len(cores) == 0
    await to_the_end(service, driver)


# Steps


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
    check_history(service, waits)


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


# Turns that come to nothing


async def test_code_that_parts_from_its_history_writes_nothing_and_goes_on_when_mended(service: Service) -> None:
    async def edited(wf: Workflow, cart: str) -> None:
        await wf.call("reserve", cart.upper())

    await driver_of(service, order).work("order", service.run.lease)
    service.run.finish("reserve#1", output="output of reserve#1")
    length = len(service.run)
    await driver_of(service, edited).work("order", service.run.lease)
    run = service.run
    assert len(run) == length and run.stuck is not None
    assert (run.stuck["code"], run.stuck["event"]) == ("history_mismatch", 1)
    assert "books" in run.stuck["expected"] and "BOOKS" in run.stuck["got"] and "edited" in run.stuck["line"]
    run.resume()
    await to_the_end(service, driver_of(service, order))
    assert run.output == OUTPUT and run.stuck is None


async def test_an_unknown_type_is_stuck_not_lost(service: Service) -> None:
    await Driver({}, service).work("order", service.run.lease)
    assert service.run.stuck is not None and service.run.stuck["code"] == "unknown_workflow"


async def test_doubled_replay_finds_globals_before_a_turn_is_sent(service: Service) -> None:
    calls = 0

    async def counts(wf: Workflow, _: str) -> None:
        nonlocal calls
        calls += 1
        await wf.call("work", calls)

    await driver_of(service, counts, replay_rate=1).work("order", service.run.lease)
    assert service.run.nodes == {}
    assert service.run.stuck is not None and service.run.stuck["code"] == "nondeterministic"


async def test_doubled_replay_agrees_with_good_code(service: Service) -> None:
    await to_the_end(service, driver_of(service, order, replay_rate=1))
    assert service.run.output == OUTPUT


async def test_code_that_never_yields_is_stuck_and_its_thread_replaced(service: Service) -> None:
    """In Python's own code the thread comes back; asleep in C it does not, and another takes its place."""
    sleeping = 30.0

    async def spins(wf: Workflow, _: str) -> None:
        while True:
            pass

    async def sleeps(wf: Workflow, _: str) -> None:
        time.sleep(sleeping)

    threads = CoreThreads(threads_max=1, hung_max=2)
    for function in (spins, sleeps):
        await driver_of(service, function, threads=threads, event_limit_s=0.05).work("order", service.run.lease)
        assert service.run.stuck is not None and service.run.stuck["code"] == "never_yields"
        service.run.resume()
    await to_the_end(service, driver_of(service, order, threads=threads))
    assert service.run.output == OUTPUT
    assert threads.hung <= 2


async def test_threads_that_do_not_come_back_are_replaced_up_to_a_cap(service: Service) -> None:
    """Beyond it the run is left to other workers, until one comes back."""
    release = threading.Event()

    async def hangs(wf: Workflow, _: str) -> None:
        release.wait()

    threads = CoreThreads(threads_max=1, hung_max=1)
    for hung in (1, 2):
        await driver_of(service, hangs, threads=threads, event_limit_s=0.05).work("order", service.run.lease)
        assert service.run.stuck is not None and service.run.stuck["code"] == "never_yields"
        assert threads.hung == hung
        service.run.resume()
    with pytest.raises(RuntimeError, match="all 1 threads for workflows hang"):
        await driver_of(service, order, threads=threads).work("order", service.run.lease)
    release.set()
    while threads.hung:
        await asyncio.sleep(0.01)
    await to_the_end(service, driver_of(service, order, threads=threads))
    assert service.run.output == OUTPUT


async def test_a_refused_turn_is_tried_once_more_from_the_beginning(service: Service) -> None:
    driver = driver_of(service, order)
    await driver.work("order", service.run.lease)
    service.run.finish("reserve#1", output="output of reserve#1")

    def refuse() -> None:
        raise Diverged("as the test says")

    service.before_turn = once(refuse)
    await driver.work("order", service.run.lease)
    assert service.run.stuck is None and "charge#1" in service.run.nodes
    assert 0 in service.read_from[1:]


# Size


async def test_an_event_that_makes_3000_commands_takes_several_turns_also_with_a_death_between(
    service: Service,
) -> None:
    async def many(wf: Workflow, _: str) -> int:
        return len(await asyncio.gather(*(wf.call("work", number) for number in range(3_000))))

    count = iter(range(1, 100))
    service.after_turn = lambda: kill() if next(count) == 2 else None
    driver = driver_of(service, many)
    with pytest.raises(Killed):
        await driver.work("order", service.run.lease)
    assert len(service.run.nodes) == 2_000
    service.page_max = 700
    await driver_of(service, many).work("order", service.run.lease)
    assert [turn.seen for turn in service.turns] == [0, 0, 1]
    for key in list(service.run.nodes):
        service.run.finish(key)
    await driver_of(service, many).work("order", service.run.lease)
    assert service.run.output == 3_000
