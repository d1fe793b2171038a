"""A waiting line that is fair between tenants when not all of it can be served at once.

While everything fits, it is first come, first served. When it does not, the next call is always one of the tenant
that was given least since it began to wait (start-time fair queueing, Goyal and others 1996; unlike deficit round
robin it also shares evenly what is left beside calls too large for the rest of a flush). Each tenant is served in
its own order. One that sends a hundred times as much waits a hundred times as long; the others do not notice.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

import msgspec

C = TypeVar("C")


class Waiting(msgspec.Struct, Generic[C]):
    """One call in the line."""

    call: C
    tenant: Hashable
    size: int
    since_s: float


class FairLine(Generic[C]):
    """Calls that wait, with their sizes."""

    def __init__(self) -> None:
        self.calls: list[Waiting[C]] = []  # by arrival; to be looked at
        self._given: dict[Hashable, int] = {}
        self.size = 0

    def __len__(self) -> int:
        return len(self.calls)

    def __iter__(self) -> Iterator[C]:
        return (waiting.call for waiting in self.calls)

    def push(self, call: C, tenant: Hashable, size: int, since_s: float) -> None:
        """A call joins the line."""
        self.calls.append(Waiting(call, tenant, size, since_s))
        self.size += size

    def take(self, room: int) -> list[C]:
        """The calls to serve now: no more than `room` in all, but one at least."""
        if self.size <= room or len(self.calls) == 1:
            taken, self.calls, self.size = self.calls, [], 0
            self._given.clear()
        else:
            taken = self._share(room)
            gone = set(map(id, taken))
            self.calls = [waiting for waiting in self.calls if id(waiting) not in gone]
            self.size -= sum(waiting.size for waiting in taken)
        return [waiting.call for waiting in taken]

    def clear(self) -> list[C]:
        """Everybody leaves."""
        return self.take(self.size)

    def _share(self, room: int) -> list[Waiting[C]]:
        queues: dict[Hashable, deque[Waiting[C]]] = {}
        for waiting in self.calls:
            queues.setdefault(waiting.tenant, deque()).append(waiting)
        # A newcomer begins where the one that was given least stands: nobody saves up while he has nothing to do.
        least = min((self._given[tenant] for tenant in queues if tenant in self._given), default=0)
        self._given = {tenant: self._given.get(tenant, least) for tenant in queues}
        turns = [(given, place, tenant) for place, (tenant, given) in enumerate(self._given.items())]
        heapq.heapify(turns)
        taken: list[Waiting[C]] = []
        while turns:
            given, place, tenant = heapq.heappop(turns)
            queue = queues[tenant]
            if taken and queue[0].size > room:
                continue  # its turn comes first in the next round: it will still have been given least
            waiting = queue.popleft()
            room -= waiting.size
            taken.append(waiting)
            if queue:
                self._given[tenant] = given + waiting.size
                heapq.heappush(turns, (given + waiting.size, place, tenant))
            else:
                del self._given[tenant]
        return taken
