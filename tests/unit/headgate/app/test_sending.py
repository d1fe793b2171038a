"""A job that is sent in a coroutine goes once, whoever awaits it, when, and how often."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from headgate._app.sending import Sending, repeatable


class Way:
    """What is gone when something is sent."""

    def __init__(self, ends: Callable[[], Any] = lambda: "id") -> None:
        self.by: list[asyncio.Task[Any] | None] = []
        self.opens = asyncio.Event()
        self.tasks: set[asyncio.Task[str]] = set()
        self.was_cancelled = False
        self._ends = ends

    async def go(self) -> str:
        self.by.append(asyncio.current_task())
        try:
            await self.opens.wait()
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise
        found: str = self._ends()
        return found

    def sending(self) -> Sending:
        return Sending(self.go, self.tasks)


def refuses() -> str:
    raise LookupError("refused")


async def waits(sending: Sending) -> str:
    return await sending


def waiting(sending: Sending) -> asyncio.Task[str]:
    made: Coroutine[Any, Any, str] = waits(sending)
    return asyncio.get_running_loop().create_task(made)


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_who_awaits_it_at_once_sends_it_in_its_own_task() -> None:
    way = Way()
    way.opens.set()
    assert await way.sending() == "id"
    await turns()
    assert way.by == [asyncio.current_task()]


async def test_what_nobody_awaits_is_sent_all_the_same_and_kept_until_then() -> None:
    way = Way()
    sending = way.sending()
    await turns()
    assert len(way.by) == 1 and way.by[0] is not asyncio.current_task() and set(way.by) == way.tasks
    way.opens.set()
    assert await sending == "id"
    await turns()
    assert len(way.by) == 1 and not way.tasks


@pytest.mark.parametrize("first", ["at once", "later"])
async def test_several_that_await_it_are_told_the_same_and_it_goes_once(first: str) -> None:
    way = Way()
    sending = way.sending()
    if first == "later":
        await turns()
    else:
        asyncio.get_running_loop().call_soon(way.opens.set)
        others = [waiting(sending) for _ in range(2)]
        assert await sending == "id"
        assert [await other for other in others] == ["id", "id"] and len(way.by) == 1
        return
    others = [waiting(sending) for _ in range(3)]
    await turns()
    way.opens.set()
    assert [await other for other in others] == ["id"] * 3 and len(way.by) == 1


@pytest.mark.parametrize("first", ["at once", "later"])
async def test_each_that_awaits_what_was_refused_is_told_so(first: str) -> None:
    way = Way(refuses)
    way.opens.set()
    sending = way.sending()
    if first == "later":
        await turns()
    for _ in range(2):
        with pytest.raises(LookupError, match="refused"):
            await sending
    assert len(way.by) == 1


@pytest.mark.parametrize("first", ["at once", "later"])
async def test_who_is_cancelled_while_it_waits_ends_the_sending(first: str) -> None:
    way = Way()

    async def sends() -> str:
        sending = way.sending()
        if first == "later":
            await turns()
        return await sending

    task = asyncio.get_running_loop().create_task(sends())
    while not way.by:
        await asyncio.sleep(0)
    await turns()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert way.was_cancelled and not way.tasks


@pytest.mark.parametrize("first", ["at once", "later"])
@pytest.mark.parametrize("cancelled", [0, 1, 2])
async def test_a_cancel_of_one_of_several_that_await_it_is_no_cancel_of_the_others(
    first: str, cancelled: int
) -> None:
    way = Way()

    async def sends() -> str:
        sending.append(way.sending())
        if first == "later":
            await turns()
        return await sending[0]

    sending: list[Sending] = []
    waiters = [asyncio.get_running_loop().create_task(sends())]
    await turns()
    waiters += [waiting(sending[0]) for _ in range(2)]
    await turns()
    waiters[cancelled].cancel()
    await turns()
    way.opens.set()
    found = await asyncio.gather(*waiters, return_exceptions=True)
    assert isinstance(found.pop(cancelled), asyncio.CancelledError) and found == ["id", "id"]
    assert await sending[0] == "id"


@pytest.mark.parametrize("first", ["at once", "later"])
async def test_what_a_cancel_has_ended_is_sent_by_who_awaits_it_next(first: str) -> None:
    way = Way()
    sending = way.sending()
    if first == "later":
        await turns()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await sending
    assert way.was_cancelled
    way.opens.set()
    assert [await sending, await sending] == ["id", "id"] and len(way.by) == 2


def test_a_step_that_nobody_answered_comes_again_and_no_other() -> None:
    def steps() -> Any:
        first = yield "first"
        try:
            yield "second"
        except LookupError as error:
            return first, str(error)

    sent = repeatable(steps())
    assert [next(sent), next(sent), sent.send("answer"), next(sent)] == ["first", "first", "second", "second"]
    with pytest.raises(StopIteration) as ended:
        sent.throw(LookupError("refused"))
    assert ended.value.value == ("answer", "refused")
