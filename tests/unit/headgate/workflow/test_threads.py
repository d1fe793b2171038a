"""Threads for workflow code: what ends about when it is given up leaves the pool whole."""

import asyncio
import ctypes
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from headgate.workflow.driving.threads import CoreThreads
from headgate.workflow.errors import NeverYields
from tests.support.traces import raising_after

# An interrupted wait is over soon after its lock's call returns; what hangs is found by this.
SOON_S = 20.0

# Until Python 3.12 traced threads spin until the one to which an exception was sent takes it.
untraced = pytest.mark.skipif(
    sys.version_info < (3, 12) and sys.gettrace() is not None, reason="what measures coverage would spin"
)


class Late(CoreThreads):
    """Work has ended, and its thread does not say so before it was given up."""

    def ended(self, work: Any) -> bool:
        until_s = time.monotonic() + SOON_S
        while not work.given_up and time.monotonic() < until_s:
            time.sleep(0.001)
        while time.monotonic() < until_s:
            time.sleep(0.001)  # what it is given up with arrives here
        return super().ended(work)


class Told(CoreThreads):
    """Says when a thread has said that its work ended."""

    def __init__(self) -> None:
        super().__init__(threads_max=1, hung_max=1)
        self.said = threading.Event()

    def ended(self, work: Any) -> bool:
        found = super().ended(work)
        self.said.set()
        return found


def one(begin: Callable[[], None]) -> int:
    return 1


async def until_none_hangs(threads: CoreThreads) -> None:
    async with asyncio.timeout(SOON_S):
        while threads.hung:
            await asyncio.sleep(0.001)


async def test_given_up_between_its_end_and_saying_so_a_thread_gives_its_place_back() -> None:
    threads = Late(threads_max=1, hung_max=0)
    with pytest.raises(NeverYields):
        await threads.run(one, limit_s=0.01, stop=lambda: None)
    await until_none_hangs(threads)


async def test_work_that_ends_just_before_it_is_given_up_keeps_its_thread() -> None:
    """Else the thread would take the next work with it."""
    threads = Told()
    go = threading.Event()

    def stop() -> None:
        go.set()
        assert threads.said.wait(SOON_S)

    with pytest.raises(NeverYields):
        await threads.run(lambda _: go.wait(), limit_s=0.01, stop=stop)
    assert threads.hung == 0
    async with asyncio.timeout(SOON_S):
        for _ in range(3):
            assert await threads.run(one, limit_s=SOON_S, stop=lambda: None) == 1


async def test_work_that_ends_while_it_is_given_up_a_hundred_times_loses_no_place() -> None:
    threads = CoreThreads(threads_max=1, hung_max=1)
    for number in range(100):

        def sleeps(begin: Callable[[], None], until_s: float = 0.0100 + number * 0.00001) -> None:
            ends_at = time.monotonic() + until_s
            while time.monotonic() < ends_at:
                time.sleep(0.0001)

        async with asyncio.timeout(SOON_S):
            try:
                await threads.run(sleeps, limit_s=0.002, stop=lambda: None)
            except NeverYields:
                await until_none_hangs(threads)


async def test_a_thread_that_hangs_in_work_which_nobody_waits_for_any_more_is_replaced() -> None:
    """The run is cancelled while its code blocks; the next one has a thread."""
    threads, go = CoreThreads(threads_max=1, hung_max=1), threading.Event()
    began = asyncio.Event()
    loop = asyncio.get_running_loop()

    def blocks(_begin: Callable[[], None]) -> None:
        loop.call_soon_threadsafe(began.set)
        go.wait(2 * SOON_S)

    working = asyncio.create_task(threads.run(blocks, limit_s=0.01, stop=lambda: None))
    try:
        await asyncio.wait_for(began.wait(), SOON_S)
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
        async with asyncio.timeout(SOON_S):
            assert await threads.run(one, limit_s=SOON_S, stop=lambda: None) == 1
        assert threads.hung == 1
    finally:
        go.set()
    await until_none_hangs(threads)


async def test_work_that_nobody_waits_for_before_it_has_begun_is_not_done() -> None:
    threads, go, done = CoreThreads(threads_max=1, hung_max=1), threading.Event(), []
    stopped: list[str] = []
    first = asyncio.create_task(threads.run(lambda _: go.wait(SOON_S), limit_s=SOON_S, stop=lambda: None))
    second = asyncio.create_task(
        threads.run(lambda _: done.append(2), limit_s=SOON_S, stop=lambda: stopped.append("2"))
    )
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    go.set()
    await first
    assert await threads.run(one, limit_s=SOON_S, stop=lambda: None) == 1
    assert (done, stopped, threads.hung) == ([], ["2"], 0)


async def test_work_that_waits_for_a_thread_longer_than_it_may_take_is_not_given_up() -> None:
    threads, go = CoreThreads(threads_max=1, hung_max=1), threading.Event()
    first = asyncio.create_task(threads.run(lambda _: go.wait(SOON_S), limit_s=SOON_S, stop=lambda: None))
    second = asyncio.create_task(threads.run(one, limit_s=0.001, stop=lambda: None))
    done, _ = await asyncio.wait([second], timeout=0.1)
    go.set()
    await first
    assert not done
    assert (await second, threads.hung) == (1, 0)


@pytest.mark.parametrize("calls", [0, 1, 2, 5, 9])
async def test_a_trace_function_that_work_leaves_behind_raises_in_no_other(calls: int) -> None:
    """The thread ended of it with the next work in hand, and that run stood still."""
    threads = CoreThreads(threads_max=1)

    def leaves_one(_begin: Callable[[], None]) -> int:
        sys.settrace(raising_after(calls))
        return 0

    async with asyncio.timeout(SOON_S):
        assert await threads.run(leaves_one, limit_s=SOON_S, stop=lambda: None) == 0
        for _ in range(3):
            assert await threads.run(one, limit_s=SOON_S, stop=lambda: None) == 1


@untraced
async def test_an_exception_that_is_sent_too_late_costs_no_work_and_no_thread() -> None:
    threads = CoreThreads(threads_max=1)
    ident = await threads.run(lambda _: threading.get_ident(), limit_s=SOON_S, stop=lambda: None)
    time.sleep(0.01)  # it waits for work by now
    assert ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(SystemExit)) == 1
    async with asyncio.timeout(SOON_S):
        for _ in range(3):
            assert await threads.run(one, limit_s=SOON_S, stop=lambda: None) == 1


async def test_a_thread_that_is_struck_as_it_tells_an_end_fails_that_work_and_goes_on() -> None:
    class Struck(CoreThreads):
        strikes = 1

        def ended(self, work: Any) -> bool:
            if self.strikes:
                self.strikes -= 1
                raise ZeroDivisionError("sent to this thread")
            return super().ended(work)

    threads = Struck(threads_max=1)
    async with asyncio.timeout(SOON_S):
        with pytest.raises(ZeroDivisionError):
            await threads.run(one, limit_s=SOON_S, stop=lambda: None)
        assert await threads.run(one, limit_s=SOON_S, stop=lambda: None) == 1
