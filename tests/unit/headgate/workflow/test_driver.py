"""The worker's side of a run, against rows in memory: each window in which it may die, each race, each limit."""

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from headgate.workflow import Workflow
from headgate.workflow.commands import canonical
from headgate.workflow.driving import threads as threads_module
from headgate.workflow.driving.driver import Cores, Driver
from headgate.workflow.driving.threads import CoreThreads
from headgate.workflow.local.memory import MemoryRun
from headgate.workflow.local.simulation import replay
from headgate.workflow.turns import Diverged, Lease
from tests.support.traces import raising_after
from tests.support.workflow_service import Killed, Service, driver_of, kill, once, to_the_end


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


async def test_a_kept_core_does_not_say_again_what_another_worker_said(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    async def says(wf: Workflow, _: str) -> None:
        await wf.call("a")
        wf.log.warning("a is done")
        await wf.call("b")
        wf.log.warning("b is done")

    one, other = driver_of(service, says), driver_of(service, says)
    await one.work("order", service.run.lease)
    service.run.finish("a#1")
    await other.work("order", service.run.lease)
    service.run.finish("b#1")
    await one.work("order", service.run.lease)
    said = [record.getMessage() for record in caplog.records if record.name != "asyncio"]  # which tells of others
    assert said == ["run: a is done", "run: b is done"]


async def test_kept_cores_are_bounded(service: Service) -> None:
    cores = Cores(bytes_max=1)
    driver = driver_of(service, order, cores=cores)
    await driver.work("order", service.run.lease)
    assert len(cores) == 0
    await to_the_end(service, driver)


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


async def test_an_interrupt_that_code_raises_ends_its_run_and_not_the_worker(service: Service) -> None:
    async def interrupts(wf: Workflow, cart: str) -> None:
        raise KeyboardInterrupt

    await to_the_end(service, driver_of(service, interrupts))
    assert (service.run.state, str(service.run.error).splitlines()[-1]) == ("failed", "KeyboardInterrupt")


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


async def test_what_counts_is_processor_time_and_on_a_busy_machine_a_few_times_that() -> None:
    """Code that waits for its turn at the processor is not taken for code that never ends."""
    work = threads_module._Work(lambda _: None, asyncio.get_running_loop())
    work.clock = threads_module._processor_clock()
    work.begin()
    assert 0 < work.left_s(100.0) <= 100.0
    work.began_at -= 300.0
    assert work.left_s(100.0) > 0
    work.began_used_s -= 100.0
    assert work.left_s(100.0) <= 0
    work.begin()
    work.began_at -= 100.0 * threads_module.IDLE_FACTOR
    assert work.left_s(100.0) <= 0
    work.begin()
    work.clock = None  # a system that does not tell
    work.began_at -= 100.0
    assert work.left_s(100.0) <= 0


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


async def test_what_is_asked_for_at_one_event_goes_in_turns_of_bounded_bytes(service: Service) -> None:
    async def asks(wf: Workflow, cart: str) -> int:
        tasks = [await wf.fork("store", cart * 200) for _ in range(10)]
        return len([await wf.join(task) for task in tasks])

    await to_the_end(service, driver_of(service, asks, part_bytes_max=5_000))
    assert service.run.output == 10
    first, *_ = service.turns
    assert [command["key"] for command in first.commands] == ["store#1", "store#2", "store#3"]
    assert max(len(canonical(turn.body())) for turn in service.turns) < 6_000
    check_history(service, asks)


async def test_a_command_that_is_larger_than_a_turn_is_to_be_goes_alone(service: Service) -> None:
    async def asks(wf: Workflow, cart: str) -> None:
        for task in [await wf.fork("store", cart) for _ in range(3)]:
            await wf.join(task)

    await to_the_end(service, driver_of(service, asks, part_bytes_max=1))
    assert [len(turn.commands) for turn in service.turns[:3]] == [1, 1, 1]
    check_history(service, asks)


async def test_results_of_steps_go_in_turns_of_bounded_bytes_and_no_step_runs_twice(service: Service) -> None:
    async def weighs(wf: Workflow, cart: str) -> int:
        return len(await asyncio.gather(*(wf.run(large, cart) for _ in range(10))))

    def large(cart: str) -> str:
        weighed.append(cart)
        return cart * 300

    await to_the_end(service, driver_of(service, weighs, part_bytes_max=6_400))
    assert (service.run.output, len(weighed)) == (10, 10)
    assert [len(turn.results) for turn in service.turns if turn.results] == [4, 4, 2]
    check_history(service, weighs)


class Lazy(dict[str, Any]):
    def items(self) -> Any:
        raise KeyError("the file is gone")


class Panics(dict[str, Any]):
    def items(self) -> Any:
        raise Panic("as it is written")


class Panic(BaseException):
    """As an extension in Rust raises it."""


class Proxy(Exception):
    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise LookupError("not bound to anything")


class Silent(Exception):
    def __getattribute__(self, name: str) -> Any:
        raise Panic(name)


@pytest.mark.parametrize(
    ("end", "told"),
    [
        (Lazy(a=1), "what the workflow returned has no JSON form: 'the file is gone'"),
        (Panics(a=1), "what the workflow returned has no JSON form: as it is written"),
        (Proxy(), "Proxy"),
        (Silent(), "Silent"),
    ],
    ids=["lazy", "panics", "proxy", "silent"],
)
async def test_a_run_whose_end_cannot_be_written_or_looked_at_has_failed(
    end: Any, told: str, service: Service
) -> None:
    """It was neither over nor stuck, and its code was run anew each time."""

    async def ends(wf: Workflow, _: str) -> Any:
        if issubclass(type(end), Exception):
            raise end
        return end

    await driver_of(service, ends).work("order", service.run.lease)
    assert service.run.state == "failed"
    assert told in str(service.run.error)


@pytest.mark.parametrize("calls", [0, 1, 3, 9, 20, 40])
async def test_a_trace_function_that_code_leaves_behind_raises_in_nothing_of_the_run(
    calls: int, service: Service
) -> None:
    async def traced(wf: Workflow, _: str) -> str:
        sys.settrace(raising_after(calls))
        return "done"

    await driver_of(service, traced).work("order", service.run.lease)
    assert service.run.output == "done"
