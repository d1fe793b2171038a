"""The line in front of the hot verbs: what is begun next when the processor is short.

Every other line of a process is behind work that costs processor time: parsing, binding, answering. Begun as they
come, enqueues would take all of it long before any of those lines stands, and acks would crawl between them.

A call is begun at once while little is worked on, and also when much is, as long as the event loop is in time:
then what is worked on waits for something else, a slow disk or shard, and holding others back would help nobody.
Else it stands here. Acks go before dequeues before enqueues, and may fill more of the process; among calls of one
urgency the namespaces take turns by the bytes they send (start-time fair queueing, as in
`shared.admission.fairness`).

A burst may stand for a while. Where a namespace has had calls standing all through that while, and the first of
them for a fifth of it, its next ones are refused at once, unread (after Maurer, Fail at Scale); how long the while
is goes by urgency (`shared.admission.delay`). Nobody stands for longer than twice of it. A call that waits for
items to come is not worked on meanwhile, nor later: its turn has been.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Hashable
from typing import Protocol

from shared.admission.connection_priority import Urgency
from shared.admission.delay import PATIENCE
from shared.clock import Clock, SystemClock
from shared.metrics import CALLS_STANDING, SHED

# A timer every so often says whether the loop is in time. It runs only while calls stand, or much is worked on.
TICK_S = 0.005
LATE_S = 0.005
# Parts of what a call puts up with: how long the first may stand in a line that is never empty, and anybody.
STEADY, ENDS = 0.2, 2.0
# By level of urgency: how much of the room of enqueues may be in work before a call of this level stands. What is
# let in has to be handed out and acked, too, by fewer calls, which get the processor when enqueues leave it.
_SHARES = (4.0, 3.25, 1.0, 1.0)
# What may be begun over the room, between two timers that were in time, as a part of it.
_OVER = 1 / 8


class Entrant(Protocol):
    """A call, as the line sees it."""

    @property
    def level(self) -> Urgency:
        """How urgent it is."""
        ...

    @property
    def tenant(self) -> Hashable:
        """Whose turn it takes."""
        ...

    @property
    def kib(self) -> int:
        """What it counts for, see `weigh`."""
        ...

    @property
    def disconnected(self) -> bool:
        """Nobody waits for it any more."""
        ...

    def start(self) -> None:
        """It is its turn."""
        ...

    def refuse(self) -> None:
        """Answer that there is too much; it was not begun."""
        ...


def weigh(body_bytes: int) -> int:
    """What a call counts for: a KiB for itself, and those of its body."""
    return 1 + (body_bytes >> 10)


class _Tenant:
    """The calls of one namespace that stand, first come first served."""

    __slots__ = ("calls", "name", "since_s")

    def __init__(self, name: Hashable, since_s: float) -> None:
        self.name = name
        self.calls: deque[tuple[float, Entrant]] = deque()
        self.since_s = since_s  # when the first of a row came behind whom there was always another


class _Line:
    """Calls of one urgency."""

    def __init__(self, level: Urgency, wait_s_max: float, clock: Clock) -> None:
        self.level = level
        self._patience_s = wait_s_max * PATIENCE[level]
        self._clock = clock
        self._tenants: dict[Hashable, _Tenant] = {}
        self._turns: list[tuple[float, int, _Tenant]] = []
        self._given = 0.0  # what the tenant whose turn was last had been given
        self._joined = 0

    def __bool__(self) -> bool:
        return bool(self._tenants)

    def sheds(self, name: Hashable) -> bool:
        """Whether this namespace's calls stand for too long for one more."""
        tenant = self._tenants.get(name)
        if tenant is None:
            return False
        now_s = self._clock.monotonic_s()
        is_burst = now_s - tenant.since_s < self._patience_s
        return not is_burst and now_s - tenant.calls[0][0] >= self._patience_s * STEADY

    def push(self, call: Entrant) -> None:
        now_s = self._clock.monotonic_s()
        tenant = self._tenants.get(call.tenant)
        if tenant is None:
            tenant = self._tenants[call.tenant] = _Tenant(call.tenant, now_s)
            self._take_turn(self._given, tenant)
        tenant.calls.append((now_s, call))

    def pop(self) -> tuple[float, Entrant]:
        """The next call, and since when it stands."""
        while True:
            given, _, tenant = heapq.heappop(self._turns)
            if tenant.calls:
                break
        self._given = given
        since_s, call = tenant.calls.popleft()
        if tenant.calls:
            self._take_turn(given + call.kib, tenant)
        else:
            self._drop(tenant)
        return since_s, call

    def expire(self, now_s: float) -> list[Entrant]:
        """Those who have stood too long, whoever's turn it is, or have gone."""
        ended = []
        for tenant in list(self._tenants.values()):
            while tenant.calls and self.is_over(now_s, *tenant.calls[0]):
                ended.append(tenant.calls.popleft()[1])
            if not tenant.calls:
                self._drop(tenant)
        return ended

    def is_over(self, now_s: float, since_s: float, call: Entrant) -> bool:
        """Whether a call has stood for longer than it puts up with, or nobody waits for it."""
        return call.disconnected or now_s - since_s >= self._patience_s * ENDS

    def _drop(self, tenant: _Tenant) -> None:
        del self._tenants[tenant.name]
        if not self._tenants:
            self._turns.clear()

    def _take_turn(self, given: float, tenant: _Tenant) -> None:
        self._joined += 1
        heapq.heappush(self._turns, (given, self._joined, tenant))


class Entrance:
    """Says of each call when it begins. `later` is the loop's `call_later`, for tests."""

    def __init__(
        self,
        kib_max: int,
        wait_s_max: float,
        clock: Clock | None = None,
        later: Callable[[float, Callable[[], None]], object] | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._later = later
        self._limits = [kib_max * share for share in _SHARES]
        self._lines = [_Line(level, wait_s_max, self._clock) for level in Urgency]
        self._look_s = wait_s_max / 4
        self._looked_s = 0.0
        self._shed = [SHED.labels(level.name.lower()) for level in Urgency]
        self._working = 0
        self.standing = 0
        self._over_max = self._over = max(1, int(kib_max * _OVER))
        self._due_s = 0.0
        self._ticks = False

    def enter(self, call: Entrant) -> None:
        """A call has come: it starts now, or when its turn comes, or is refused."""
        level = call.level
        if not self.standing and self._working < self._limits[level]:
            self._working += call.kib
            call.start()
            return
        if (not self.standing or not any(self._lines[: level + 1])) and self._has_room(level):
            self._start(call)
            return
        line = self._lines[level]
        if line.sheds(call.tenant):
            self._refuse(call)
            return
        line.push(call)
        self.standing += 1
        if not self._ticks:
            self._arm()

    def leave(self, kib: int) -> None:
        """A call that was started has ended, or waits for something that is not work."""
        self._working -= kib
        if self.standing:
            self._serve()

    def tick(self) -> None:
        """Look whether the loop is in time, and go on."""
        now_s = self._clock.monotonic_s()
        self._over = self._over_max if now_s - self._due_s < LATE_S else 0
        if self.standing:
            if now_s - self._looked_s >= self._look_s:
                self._looked_s = now_s
                for line in self._lines:
                    for call in line.expire(now_s):
                        self._end(call)
            self._serve()
        CALLS_STANDING.set(self.standing)
        if self.standing or self._working >= self._limits[-1]:
            self._arm()
        else:
            self._ticks, self._over = False, self._over_max

    def _arm(self) -> None:
        later = self._later or asyncio.get_running_loop().call_later
        self._due_s = self._clock.monotonic_s() + TICK_S
        self._ticks = True
        later(TICK_S, self.tick)

    def _has_room(self, level: Urgency) -> bool:
        if self._working < self._limits[level]:
            return True
        if not self._ticks:
            self._arm()
        return self._over > 0

    def _start(self, call: Entrant) -> None:
        if self._working >= self._limits[call.level]:
            self._over -= call.kib
        self._working += call.kib
        call.start()

    def _serve(self) -> None:
        for line in self._lines:
            while line:
                if not self._has_room(line.level):
                    return
                since_s, call = line.pop()
                if line.is_over(self._clock.monotonic_s(), since_s, call):
                    self._end(call)
                else:
                    self.standing -= 1
                    self._start(call)

    def _end(self, call: Entrant) -> None:
        self.standing -= 1
        self._refuse(call)

    def _refuse(self, call: Entrant) -> None:
        if not call.disconnected:
            self._shed[call.level].inc()
        call.refuse()
