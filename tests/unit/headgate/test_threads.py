"""Threads that are used again: never by two at once, never lost, and gone when nothing comes."""

import asyncio
import contextlib
import ctypes
import gc
import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from itertools import product
from types import FrameType
from typing import Any
from unittest.mock import Mock

import pytest

from headgate import _threads
from headgate._threads import Ends, Threads, Work, in_thread, leaving_no_trace
from tests.support.traces import raising_after

# Until Python 3.12 traced threads spin until the one to which an exception was sent takes it.
untraced = pytest.mark.skipif(
    sys.version_info < (3, 12) and sys.gettrace() is not None, reason="what measures coverage would spin"
)


def run(threads: Threads, done: threading.Event, seen: list[threading.Thread]) -> None:
    def work(is_done: Work) -> None:
        seen.append(threading.current_thread())
        is_done()
        done.set()

    threads.run("headgate-t", work)


def test_one_after_another_runs_in_one_thread() -> None:
    threads, seen = Threads(), list[threading.Thread]()
    for _ in range(20):
        done = threading.Event()
        run(threads, done, seen)
        assert done.wait(5)
    assert len(set(seen)) == 1
    assert (seen[0].name, seen[0].daemon) == ("headgate-t", True)


def test_as_many_run_at_once_as_are_given() -> None:
    threads, barrier, used = Threads(), threading.Barrier(9, timeout=5), set[threading.Thread]()

    def work(is_done: Work) -> None:
        used.add(threading.current_thread())
        barrier.wait()
        is_done()

    for _ in range(2):
        for _ in range(8):
            threads.run("t", work)
        barrier.wait()
    assert len(used) >= 8


def test_nothing_waits_behind_one_that_goes_on() -> None:
    """However many threads are free: each that is given work has a thread of its own."""
    threads, goes_on, done = Threads(), threading.Event(), threading.Event()
    run(threads, done, [])
    assert done.wait(5)

    def work(is_done: Work) -> None:
        goes_on.wait(60)
        is_done()

    threads.run("t", work)
    for _ in range(20):
        done = threading.Event()
        run(threads, done, [])
        waits_behind = not done.wait(5)
        if waits_behind:
            break
    goes_on.set()
    assert not waits_behind


def test_idle_ones_end_and_nothing_that_is_given_meanwhile_is_lost() -> None:
    """Each end meets, at some time, somebody who gives the thread work."""
    threads, seen = Threads(idle_s_max=0.0001), list[threading.Thread]()
    for turn in range(300):
        done = threading.Event()
        run(threads, done, seen)
        assert done.wait(5)
        if turn % 60 == 59:
            seen[-1].join(5)
    assert len(seen) == 300
    assert len(set(seen)) >= 5
    assert not any(thread.is_alive() for thread in seen)
    assert threads._idle == 0


def test_an_idle_thread_keeps_nothing_of_what_it_did() -> None:
    class Big:
        pass

    threads, done = Threads(), threading.Event()
    big = Big()
    kept = weakref.ref(big)

    def work(is_done: Work, held: Big = big) -> None:
        assert held is not None
        is_done()
        done.set()

    threads.run("t", work)
    del big, work
    assert done.wait(5)
    ends_by = time.monotonic() + 5
    while kept() is not None and time.monotonic() < ends_by:
        time.sleep(0.001)
    assert kept() is None


def test_the_child_of_a_fork_begins_with_none() -> None:
    threads, seen = Threads(), list[threading.Thread]()
    for _ in range(2):
        done = threading.Event()
        run(threads, done, seen)
        assert done.wait(5)
        threads.forget()
    assert seen[0] is not seen[1]


async def test_all_that_ends_in_one_turn_of_the_loop_is_told_by_one_call() -> None:
    loop, ended, wakes = asyncio.get_running_loop(), list[int](), list[Any]()
    ends = Ends(loop)
    with pytest.MonkeyPatch.context() as patch:
        wake = loop.call_soon_threadsafe
        patch.setattr(loop, "call_soon_threadsafe", lambda *call: (wakes.append(call), wake(*call)))
        for n in range(10):
            ends.tell(partial(ended.append, n))
        assert not ended, "the loop calls them"
        await asyncio.sleep(0)
        assert ended == list(range(10))
        assert len(wakes) == 1
        ends.tell(partial(ended.append, 10))
        await asyncio.sleep(0)
    assert (ended[-1], len(wakes)) == (10, 2)


async def test_no_end_is_lost_between_a_thread_and_its_loop() -> None:
    """Ends come while the loop looks, too; `told` counts down to the event."""
    loop = asyncio.get_running_loop()
    ends, left, done = Ends(loop), 4 * 5_000, asyncio.Event()

    def told() -> None:
        nonlocal left
        left -= 1
        if not left:
            done.set()

    def tell() -> None:
        for _ in range(5_000):
            ends.tell(told)

    tellers = [threading.Thread(target=tell) for _ in range(4)]
    for teller in tellers:
        teller.start()
    await asyncio.wait_for(done.wait(), 10)
    for teller in tellers:
        teller.join(5)


async def test_what_ends_when_its_loop_is_closed_is_nobodys() -> None:
    ended = list[int]()

    async def make() -> Ends:
        return Ends(asyncio.get_running_loop())

    ends = await asyncio.to_thread(asyncio.run, make())
    gc.collect()
    ends.tell(partial(ended.append, 1))
    assert not ended


def test_a_thread_whose_loop_is_closed_as_it_tells_it_takes_what_comes_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else it would count as idle, and be dead: what is given to it would wait for ever."""
    threads, loop, told, done = Threads(), asyncio.new_event_loop(), threading.Event(), threading.Event()
    loop.close()
    monkeypatch.setattr(loop, "is_closed", lambda: False)  # as it was a moment ago
    ends = Ends(loop)
    monkeypatch.setattr(loop, "call_soon_threadsafe", Mock(side_effect=RuntimeError("Event loop is closed")))

    def work(is_done: Work) -> None:
        is_done()
        try:
            ends.tell(told.set)
        finally:
            told.set()

    threads.run("t", work)
    assert told.wait(5)
    run(threads, done, [])
    assert done.wait(5)


class Untellable:
    def __repr__(self) -> str:
        raise LookupError("no session")


async def test_a_stop_iteration_that_holds_what_has_no_repr_ends_its_function() -> None:
    def unlooped() -> None:
        raise StopIteration(Untellable())

    with pytest.raises(RuntimeError, match="the function raised StopIteration") as raised:
        await asyncio.wait_for(in_thread("t", unlooped), 5)
    assert isinstance(raised.value.__cause__, StopIteration)


async def test_a_function_in_a_thread_ends_as_it_ends_and_sees_what_its_caller_sees() -> None:
    told: ContextVar[str] = ContextVar("told")
    told.set("here")
    assert await in_thread("t", told.get) == "here"
    with pytest.raises(LookupError):
        await in_thread("t", partial(dict[str, int]().__getitem__, "nothing"))
    with pytest.raises(RuntimeError, match=r"the function raised StopIteration"):
        await in_thread("t", partial(next, iter(())))
    with pytest.raises(SystemExit):
        await in_thread("t", partial(sys.exit, 3))
    go = threading.Event()
    in_thread("t", go.wait).cancel()  # nobody is told of its end
    go.set()
    assert await in_thread("t", threading.current_thread) is not threading.main_thread()


@untraced
async def test_an_exception_that_is_sent_too_late_costs_nobody_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by libraries that limit the time of functions: it came as the next call was taken, which never ended."""
    monkeypatch.setattr(_threads, "threads", Threads())  # so that the same thread is given the next call
    ident = await in_thread("t", threading.get_ident)
    time.sleep(0.01)  # it waits for the next call by now
    assert ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(SystemExit)) == 1
    async with asyncio.timeout(10):
        for number in range(3):
            assert await in_thread("t", partial(int, number)) == number


@untraced
def test_nor_does_one_that_comes_as_a_thread_has_been_idle_for_long_enough() -> None:
    """It ended the thread, which counted as idle: what was given to it next waited for ever."""
    threads, seen = Threads(idle_s_max=0.1), list[threading.Thread]()
    for _ in range(2):
        done = threading.Event()
        run(threads, done, seen)
        assert done.wait(5)
        ident = ctypes.c_ulong(seen[-1].ident or 0)
        time.sleep(0.01)  # it waits by now, and takes the exception as that time is over
        assert ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(ZeroDivisionError)) == 1
        time.sleep(0.15)


@pytest.mark.parametrize("calls", [0, 1, 2, 3, 5, 9, 10, 12, 14])
async def test_a_trace_function_that_a_call_leaves_behind_raises_in_no_code_but_its_own(calls: int) -> None:
    """It raised as the end was told, after which no thread's end was heard, or as the thread took the next call,
    which was lost with the thread."""

    def leaves_one() -> str:
        trace = raising_after(calls)
        sys.settrace(trace)
        return "done"

    async with asyncio.timeout(10):
        assert await in_thread("t", leaves_one) == "done"
        for number in range(3):
            assert await in_thread("t", partial(int, number)) == number


def leave(trace: Callable[..., Any], profile: Callable[..., Any], callers: int) -> None:
    """Both, of which the first watches so many callers, too, as that of `pdb.set_trace` does."""
    frame: FrameType | None = sys._getframe()
    for _ in range(callers + 1):
        assert frame is not None
        frame.f_trace, frame = trace, frame.f_back
    sys.settrace(trace)
    sys.setprofile(profile)


@pytest.mark.parametrize("callers", [0, 1])
def test_whatever_a_call_leaves_behind_to_watch_its_thread_is_removed(callers: int) -> None:
    """Each raises at any of its calls: also in the lines that remove it, and then the other is to go, too."""
    found = list[Any]()

    def calls_it() -> None:
        for traced, profiled in product(range(20), range(20)):
            trace, profile = raising_after(traced), raising_after(profiled)
            with contextlib.suppress(ZeroDivisionError):
                leaving_no_trace(partial(leave, trace, profile, callers))
            # Which raises, too, where one is left.
            found.append(sys.gettrace() is not trace and sys.getprofile() is not profile)

    thread = threading.Thread(target=calls_it)
    thread.start()
    thread.join(30)
    assert found == [True] * 400


def test_a_trace_function_that_a_thread_had_before_a_call_stays() -> None:
    """Of a debugger, or of what measures which lines are run."""
    seen = list[Any]()

    def own(*_: Any) -> None: ...

    def leaves_others() -> None:
        sys.settrace(lambda *_: None)
        sys.setprofile(lambda *_: None)

    def traced() -> None:
        sys.settrace(own)
        sys.setprofile(own)
        leaving_no_trace(leaves_others)
        seen.extend([sys.gettrace(), sys.getprofile()])

    thread = threading.Thread(target=traced)
    thread.start()
    thread.join(5)
    assert seen == [own, own]


@pytest.mark.parametrize("has_said", [False, True])
def test_a_thread_that_is_struck_with_work_in_hand_fails_it_and_goes_on(has_said: bool) -> None:
    """An exception may be sent to it where nothing of the work is there to catch it."""
    threads, failures, seen = Threads(), list[BaseException](), list[threading.Thread]()
    failed = threading.Event()

    def work(is_done: Work) -> None:
        seen.append(threading.current_thread())
        if has_said:
            is_done()
        raise ZeroDivisionError

    def fail(error: BaseException) -> None:
        failures.append(error)
        failed.set()
        raise LookupError("nobody to tell")

    threads.run("t", work, fail)
    assert failed.wait(5)
    ends_by = time.monotonic() + 5
    while threads._idle != 1 and time.monotonic() < ends_by:
        time.sleep(0.001)
    assert threads._idle == 1
    done = threading.Event()
    run(threads, done, seen)
    assert done.wait(5)
    assert [type(failure) for failure in failures] == [ZeroDivisionError]
    assert len(set(seen)) == 1


async def test_an_end_that_could_not_be_told_keeps_no_later_one_back(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, ended = asyncio.get_running_loop(), list[int]()
    ends = Ends(loop)
    with monkeypatch.context() as patch:
        patch.setattr(loop, "call_soon_threadsafe", Mock(side_effect=ZeroDivisionError))
        with pytest.raises(ZeroDivisionError):
            ends.tell(partial(ended.append, 1))
    ends.tell(partial(ended.append, 2))
    await asyncio.sleep(0)
    assert ended == [1, 2]
