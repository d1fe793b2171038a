"""What is awaited in the order of its ends."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Generator, Iterable, Iterator
from typing import Any, Generic, TypeVar

from headgate.workflow.errors import Refused

T = TypeVar("T")


class AsCompleted(Generic[T]):
    """As `asyncio.as_completed` of Python 3.13: `async for` gives each task as it ends, `for` what is to be
    awaited for the next end. Tasks are made in the order in which they were given, so every replay is the same.
    """

    def __init__(self, awaitables: Iterable[Awaitable[T]]) -> None:
        given = list(awaitables)
        if isinstance(awaitables, set | frozenset) and not all(isinstance(each, asyncio.Task) for each in given):
            for each in given:
                if asyncio.iscoroutine(each):
                    each.close()
            raise Refused("wf.as_completed of a set takes it in the order of addresses: give it a list")
        self._ended: deque[asyncio.Future[T]] = deque()
        self._waiting: deque[asyncio.Future[None]] = deque()
        tasks = dict.fromkeys(asyncio.ensure_future(each) for each in given)
        self._left = len(tasks)
        for task in tasks:
            task.add_done_callback(self._end)

    def __iter__(self) -> Iterator[Awaitable[T]]:
        while self._left:
            self._left -= 1
            yield _Next(self)

    async def __aiter__(self) -> AsyncIterator[asyncio.Future[T]]:
        while self._left:
            self._left -= 1
            yield await self.take()

    async def take(self) -> asyncio.Future[T]:
        """The next that ends, once it has."""
        while not self._ended:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            await waiter
        return self._ended.popleft()

    def _end(self, task: asyncio.Future[T]) -> None:
        self._ended.append(task)
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return


class _Next(Generic[T]):
    """The result of the next that ends; an object, so that nothing is left unawaited where a loop breaks off."""

    def __init__(self, of: AsCompleted[T]) -> None:
        self._of = of

    def __await__(self) -> Generator[Any, None, T]:
        return _result(self._of).__await__()


async def _result(of: AsCompleted[T]) -> T:
    return (await of.take()).result()
