"""When to turn calls away: by how long those who wait have waited, as CoDel does, not by how many they are.

A queue that is emptied again and again is good however full it gets. One whose oldest call has waited over a
target, all through an interval as long as the target, is standing: whoever joins it now would wait for nothing.
Then calls are refused at once, least urgent first, with `outcome: none` and Retry-After. Source: Nichols and
Jacobson, Controlling Delay; its use for servers: Maurer, Fail at Scale.
"""

from __future__ import annotations

import asyncio
from collections import deque
from math import inf

from shared.admission.connection_priority import Urgency, set_urgency
from shared.clock import Clock, SystemClock
from shared.errors import Overloaded
from shared.metrics import LOOP_LAG_SECONDS, LOOP_STALL_SECONDS, SHED

# How many times the target a call of this urgency puts up with: acks are refused last.
PATIENCE = {Urgency.SETTLE: 10.0, Urgency.DEQUEUE: 2.0, Urgency.ENQUEUE: 1.0, Urgency.LIST: 1.0}
RETRY_S = 1.0
TOO_MUCH = "more work waits than can be done in time; come back later"

SAMPLE_S = 0.1
# What counts as a stall: well over the jitter of the pause between two samples.
STALL_S = 0.05


def overloaded(level: Urgency) -> Overloaded:
    """The refusal of a call; counted."""
    SHED.labels(level.name.lower()).inc()
    return Overloaded(TOO_MUCH, retry_after_s=RETRY_S)


class Standing:
    """Whether one queue is standing. Asked only by calls that would have to wait in it.

    Where nobody waits for longer than `wait_s_max`, patience ends at half of that.
    """

    def __init__(self, target_s: float, clock: Clock, wait_s_max: float = inf) -> None:
        self._target_s = target_s
        self._clock = clock
        self._patience_s_max = wait_s_max / 2
        self._above_since_s: float | None = None

    def sheds(self, oldest_since_s: float, level: Urgency) -> bool:
        """Whether a call of this urgency is to be refused while the oldest waits since `oldest_since_s`."""
        now_s = self._clock.monotonic_s()
        if now_s - oldest_since_s < self._target_s:
            self._above_since_s = None
            return False
        if self._above_since_s is None:
            self._above_since_s = now_s
        patience_s = min(self._target_s * PATIENCE[level], self._patience_s_max)
        return now_s - oldest_since_s >= patience_s and now_s - self._above_since_s >= patience_s

    def served(self, oldest_since_s: float | None) -> None:
        """Some of the queue was taken; the oldest that is left (None: nobody) waits since then."""
        if oldest_since_s is None or self._clock.monotonic_s() - oldest_since_s < self._target_s:
            self._above_since_s = None


class LoopLag:
    """How late the event loop is: the queue in front of all others, when the processor is what is short."""

    def __init__(self, target_s: float, clock: Clock | None = None) -> None:
        self._target_s = target_s
        self._clock = clock or SystemClock()
        self._lags_s: deque[float] = deque(maxlen=max(1, round(target_s / SAMPLE_S)))
        self._standing_s = 0.0
        self._ended_s: float | None = None  # the last step

    def check(self, level: Urgency) -> None:
        """Raises Overloaded while the loop has been late, for a whole interval, by more than this may wait."""
        if self._standing_s >= self._target_s and self._standing_s >= self._target_s * PATIENCE[level]:
            raise overloaded(level)

    def let_in(self, level: Urgency) -> None:
        """The running task begins a call of this urgency: what it asks of shards is as urgent.

        Raises:
            Overloaded: as `check`.
        """
        if self._standing_s >= self._target_s:
            self.check(level)
        set_urgency(level)

    def sample(self, lag_s: float) -> None:
        """A round of the loop took so long."""
        LOOP_LAG_SECONDS.set(lag_s)
        self._lags_s.append(lag_s)
        full = len(self._lags_s) == self._lags_s.maxlen
        self._standing_s = min(self._lags_s) if full else 0.0

    async def step(self) -> int:
        """Look how long one round of the loop takes: what comes now waits for as long. See `SAMPLE_S`."""
        begun_s = self._clock.monotonic_s()
        await asyncio.sleep(0)
        ended_s = self._clock.monotonic_s()
        self.sample(ended_s - begun_s)
        if self._ended_s is not None:
            # Whatever stood in the way of this step, before it or within its round.
            stall_s = ended_s - self._ended_s - SAMPLE_S
            if stall_s >= STALL_S:
                LOOP_STALL_SECONDS.observe(stall_s)
        self._ended_s = ended_s
        return 0
