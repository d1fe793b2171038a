"""How the asyncio tasks of a worker end, and its process where one of them does not."""

import asyncio
import contextlib
import contextvars
import inspect
import logging
import os
import sys
import traceback
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from typing import Any, Final, NoReturn, Protocol

from headgate._worker.program_log import log

# What is cancelled may still do something for so long.
CUT_OFF_S_MAX: Final = 10.0
# So often work is begun anew that is cut off: by who cancelled the worker, and by the end of the loop behind that.
CUTS_MAX: Final = 3


class Keeper(Protocol):
    """A part of a worker that is at work until it is cancelled."""

    async def run(self) -> None: ...


async def none_left(jobs: Collection[asyncio.Task[Any]]) -> None:
    """Wait until no job is left, also of those that come meanwhile."""
    while jobs:
        await asyncio.wait(list(jobs))


async def first(tasks: Sequence[asyncio.Task[Any]], timeout_s: float) -> None:
    """Wait for one of them, so long at most."""
    await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)


async def end(tasks: Iterable[asyncio.Task[Any]], s_max: float | None = None) -> set[asyncio.Task[Any]]:
    """Cancel them, and wait until they have ended, whatever with; those that have not by then."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    if not tasks:
        return set()
    done, left = await asyncio.wait(tasks, timeout=s_max)
    for task in done:
        if not task.cancelled():
            task.exception()  # else asyncio logs that nobody has looked at it
    return left


async def again(keepers: Sequence[Keeper], tasks: Sequence[asyncio.Task[None]]) -> list[asyncio.Task[None]]:
    """The keepers' tasks, anew for those that somebody has cancelled."""
    cancelled = [task for task in tasks if task.cancelling()]
    await end(cancelled)
    return [
        asyncio.create_task(keeper.run()) if task in cancelled else task
        for keeper, task in zip(keepers, tasks, strict=True)
    ]


async def outlive(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Do it to its end, whatever is cancelled meanwhile: this task, by each that waits for it, or all of them."""
    for _ in range(CUTS_MAX):
        working = asyncio.create_task(work())
        while not working.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([working])
        if not working.cancelled():
            working.result()
            return


def cancels_from_here() -> Callable[[], bool]:
    """Whether this task is asked to end from here on; true at once, while the task itself hears of it later."""
    task = asyncio.current_task()
    assert task is not None, "coroutines run in tasks"
    before = task.cancelling()
    return lambda: task.cancelling() > before


def was_cancelled() -> bool:
    """Whether somebody has asked this task to end."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def takes_cancel() -> bool:
    """Whether this task was to be cancelled where it awaits next. It is here, and goes on: else it would be amid
    what comes, or ended in the place of what it returns."""
    if not was_cancelled():
        return False
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        return True
    return False


def exit_beside() -> tuple[BaseException, contextvars.Context] | None:
    """What `asyncio.run` has all tasks end for, as after `sys.exit` in one, and the context of what raised it.

    asyncio tells nobody. But it is on the stack: whoever awaits that task gives the error a shorter traceback, and
    a cancel in its place, so it is taken from where the loop is closed.
    """
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not asyncio.Runner.__exit__.__code__:
        frame = frame.f_back
    given = {} if frame is None else frame.f_locals
    error, trace = given.get("exc_val"), given.get("exc_tb")
    while trace is not None:
        called = trace.tb_frame.f_locals.get("self")
        context = getattr(called, "_context", None) if isinstance(called, asyncio.Handle) else None
        if error is not None and context is not None:
            return error, context
        trace = trace.tb_next
    return None


async def in_process(run: Callable[[], Coroutine[Any, Any, None]], left: Collection[asyncio.Task[Any]]) -> None:
    """Run it where nothing else is to be done: neither what it has `left`, as it takes no cancel, nor what others
    have, keeps the process from its end."""
    try:
        await run()
    finally:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        try:
            kept = others if left else await end(others, CUT_OFF_S_MAX)
        except asyncio.CancelledError:  # a second signal
            kept = others
        if kept:
            log.error("the process ends beside %d tasks that have not ended, like %r", len(kept), next(iter(kept)))
            end_process(sys.exception())


def end_process(error: BaseException | None) -> NoReturn:
    """End this process at once, beside a task that does not end: asyncio and the interpreter would wait for it."""
    if error is not None and not isinstance(error, asyncio.CancelledError):
        traceback.print_exception(error)
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(1)
