"""A worker's process ends, beside whatever its handlers have left in the event loop."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from headgate import Job
from headgate._worker.ends import in_process
from tests.unit.headgate.client.test_client import leased
from tests.unit.headgate.worker.test_worker import Queue, worker_on


class Process:
    """A worker's process, in an event loop of its own. `ended` is beside which errors it was ended at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cut_off_s: float = 0.01) -> None:
        for module in ("ends", "worker"):
            monkeypatch.setattr(f"headgate._worker.{module}.CUT_OFF_S_MAX", cut_off_s)
        monkeypatch.setattr("headgate._worker.ends.end_process", self._end)
        self.ended: list[BaseException | None] = []
        self.over = asyncio.Event()
        self.loose: list[asyncio.Task[Any]] = []
        self.cancelled: Callable[[], Any] = lambda: None

    def _end(self, error: BaseException | None) -> None:
        self.ended.append(error)
        self.over.set()

    async def outlive(self) -> None:
        """Take no cancel for an end, while the process is there."""
        while not self.over.is_set():
            try:
                await self.over.wait()
            except asyncio.CancelledError:
                self.cancelled()

    def run(self, handler: Callable[[Job], Any]) -> list[BaseException | None]:
        async def main() -> None:
            worker = worker_on(Queue(leased("a")), drain_s=0.0)

            @worker.task("t")
            async def work(job: Job) -> None:
                worker.stop()
                await handler(job)

            # A process that is not ended would be waited for by nothing else.
            asyncio.get_running_loop().call_later(5, self.over.set)
            await in_process(partial(worker.run, signals=False), worker._left)

        asyncio.run(main())
        return self.ended


def test_a_process_does_not_wait_for_a_handler_that_takes_no_cancel(monkeypatch: pytest.MonkeyPatch) -> None:
    """`asyncio.run` would: it cancels once more what is left, and waits for it."""
    process = Process(monkeypatch)

    async def handler(_job: Job) -> None:
        await process.outlive()

    assert process.run(handler) == [None]


def test_nor_for_a_task_that_a_handler_has_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(monkeypatch)

    async def handler(_job: Job) -> None:
        process.loose.append(asyncio.create_task(process.outlive()))
        await asyncio.sleep(0)

    assert process.run(handler) == [None]


def test_a_second_signal_does_not_wait_for_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """asyncio makes a cancel of the main task out of an interrupt, once the worker has ended."""
    process = Process(monkeypatch, cut_off_s=3_600)

    async def handler(_job: Job) -> None:
        main = next(task for task in asyncio.all_tasks() if "main" in repr(task.get_coro()))
        process.cancelled = main.cancel
        process.loose.append(asyncio.create_task(process.outlive()))
        await asyncio.sleep(0)

    assert process.run(handler) == [None]


def test_a_process_in_which_nothing_is_left_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(monkeypatch)

    async def handler(_job: Job) -> None:
        process.loose.append(asyncio.create_task(asyncio.Event().wait()))  # type: ignore[arg-type]
        await asyncio.sleep(0)

    assert process.run(handler) == []
    assert process.loose[0].cancelled()
