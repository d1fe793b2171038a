"""Tasks that are to end, end."""

import asyncio

import pytest

from shared import vital


async def test_a_task_that_a_cancel_missed_is_cancelled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cancel meets the very answer that the task waits for: `asyncio.wait_for` gives that, and forgets it."""
    monkeypatch.setattr(vital, "CANCELLED_AGAIN_S", 0.001)
    answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    told: list[str] = []

    async def speak() -> None:
        told.append(await asyncio.wait_for(answer, 60))
        await asyncio.Event().wait()

    speaking = asyncio.create_task(speak())
    await asyncio.sleep(0)
    answer.set_result("heard")
    async with asyncio.timeout(30):
        await vital.end([speaking, None])
    assert speaking.cancelled() and told in ([], ["heard"])


async def test_what_a_task_ends_by_when_it_is_cancelled_is_nobodys_error() -> None:
    async def fail() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise OSError("the connection is gone")

    failing = asyncio.create_task(fail())
    await asyncio.sleep(0)
    await vital.end([failing])
    assert failing.done()
