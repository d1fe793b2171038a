"""Signals that a run was sent: first in, first out per name, kept until code receives them."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any


class Mailbox:
    """`received` counts, by name, what the code has taken; the rest is unread."""

    def __init__(self, create_future: Callable[[], "asyncio.Future[Any]"]) -> None:
        self.received: dict[str, int] = {}
        self._create_future = create_future
        self._kept: dict[str, deque[Any]] = {}
        self._receivers: dict[str, deque[asyncio.Future[Any]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._kept.values()))

    def offer(self, name: str, data: Any) -> None:
        """To whoever has waited longest and still does, else to be kept.

        It is an event of its own, and a receiver's wake-up is the first that runs because of it: what is given to
        one that is then cancelled has been received.
        """
        receivers = self._receivers.get(name)
        while receivers:
            waiter = receivers.popleft()
            if not waiter.done():
                waiter.set_result(data)
                return
        self._kept.setdefault(name, deque()).append(data)

    async def receive(self, name: str) -> Any:
        if kept := self._kept.get(name):
            data = kept.popleft()
        else:
            waiter = self._create_future()
            receivers = self._receivers.setdefault(name, deque())
            while receivers and receivers[0].done():  # cancelled, as by a timeout that comes again and again
                receivers.popleft()
            receivers.append(waiter)
            data = await waiter
        self.received[name] = self.received.get(name, 0) + 1
        return data
