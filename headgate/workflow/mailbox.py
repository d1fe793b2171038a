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

    def offer(self, name: str, data: Any, *, first: bool = False) -> None:
        """To whoever waits longest, else to be kept; `first` before what is kept already."""
        receivers = self._receivers.get(name)
        while receivers:
            waiter = receivers.popleft()
            if not waiter.done():
                waiter.set_result(data)
                return
        kept = self._kept.setdefault(name, deque())
        if first:
            kept.appendleft(data)
        else:
            kept.append(data)

    async def receive(self, name: str) -> Any:
        if kept := self._kept.get(name):
            data = kept.popleft()
        else:
            waiter = self._create_future()
            self._receivers.setdefault(name, deque()).append(waiter)
            try:
                data = await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    # Given at the very event that cancelled the receiver: the next one gets it.
                    self.offer(name, waiter.result(), first=True)
                raise
        self.received[name] = self.received.get(name, 0) + 1
        return data
