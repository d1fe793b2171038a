"""Signals that a run was sent: first in, first out per name, kept until code receives them."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple


class Told(NamedTuple):
    """A signal, by its event's key; with an `id` whoever sent it waits for an answer."""

    key: str
    name: str
    data: Any
    id: str | None = None


class Mailbox:
    """`received` counts, by name, what the code has taken; the rest is unread."""

    def __init__(self, create_future: Callable[[], "asyncio.Future[Any]"]) -> None:
        self.received: dict[str, int] = {}
        self._create_future = create_future
        self._kept: dict[str, deque[Told]] = {}
        self._receivers: dict[str, deque[asyncio.Future[Any]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._kept.values()))

    def offer(self, told: Told) -> None:
        """To whoever has waited longest and still does, else to be kept.

        It is an event of its own, and a receiver's wake-up is the first that runs because of it: what is given to
        one that is then cancelled has been received.
        """
        receivers = self._receivers.get(told.name)
        while receivers:
            waiter = receivers.popleft()
            if not waiter.done():
                waiter.set_result(told)
                return
        self._kept.setdefault(told.name, deque()).append(told)

    async def receive(self, name: str) -> Told:
        if kept := self._kept.get(name):
            told = kept.popleft()
        else:
            waiter = self._create_future()
            receivers = self._receivers.setdefault(name, deque())
            while receivers and receivers[0].done():  # cancelled, as by a timeout that comes again and again
                receivers.popleft()
            receivers.append(waiter)
            told = await waiter
        self.count(name)
        return told

    def take(self, name: str) -> deque[Told]:
        """All that is kept of a name; it has been received."""
        taken = self._kept.pop(name, deque())
        for _ in taken:
            self.count(name)
        return taken

    def count(self, name: str) -> None:
        """One more of a name has been received."""
        self.received[name] = self.received.get(name, 0) + 1
