"""Threads that are used again: never by two at once, never lost, and gone when nothing comes."""

import threading
import time
import weakref

from headgate._threads import Threads, Work


def run(threads: Threads, done: threading.Event, seen: list[threading.Thread]) -> threading.Thread:
    def work(is_done: Work) -> None:
        seen.append(threading.current_thread())
        is_done()
        done.set()

    return threads.run("headgate-t", work)


def test_one_after_another_runs_in_one_thread() -> None:
    threads, seen = Threads(), list[threading.Thread]()
    for _ in range(20):
        done = threading.Event()
        run(threads, done, seen)
        assert done.wait(5)
    assert len(set(seen)) == 1
    assert (seen[0].name, seen[0].daemon) == ("headgate-t", True)


def test_as_many_run_at_once_as_are_given() -> None:
    threads, barrier = Threads(), threading.Barrier(9, timeout=5)

    def work(is_done: Work) -> None:
        barrier.wait()
        is_done()

    used = {threads.run("t", work) for _ in range(8)}
    barrier.wait()
    assert len(used) == 8


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
    assert threads._idle == []


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
    threads, seen, done = Threads(), list[threading.Thread](), threading.Event()
    first = run(threads, done, seen)
    assert done.wait(5)
    threads.forget()
    assert run(threads, threading.Event(), seen) is not first
