"""A breaker per shard: while a shard does not answer, calls to it are refused at once instead of waiting.

    closed ──> open ──> half-open ──> closed
      ^          ^          │
      │          └──────────┘ the probe failed: a longer pause

It doubts after `FAILURES_MAX` failures in a row, or when calls are under way and nothing at all was heard for
`SILENCE_S`: a stopped server, or one behind a silent network, gives no errors to count. It opens when a look at
the shard, a probe with a timer of its own, then fails too: a process that itself stood still (it was stopped, or
its machine was) finds all its timers run out at once, and the answers a moment later. A probe that ended late
says that it stands still even now, and counts for nothing. While it is open one probe at a time is due, after a
jittered pause that doubles; callers are never used as probes. Whatever still succeeds meanwhile closes it too.
Pattern: Nygard, Release It!.

A full disk is no reason to open, since reads, and most acks, go on: it only makes the shard take no new
items for a while.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Literal, TypeAlias

from shared.clock import Clock, SystemClock

State: TypeAlias = Literal["closed", "open", "half_open"]

FAILURES_MAX = 5
# All it costs when a shard is only slow, or waits for a lock, is a probe.
SILENCE_S = 1.0
PROBE_S_MAX = 2.0
# A probe that took so much longer than it may says nothing of the shard. A processor that is always late must not
# hide a shard that is away: some such probes in a row are believed.
LATE_S = 0.5
LATE_MAX = 3
PAUSE_S = 0.5
PAUSE_S_MAX = 5.0
FULL_S = 1.0


class Breaker:
    """What is known of one shard's server. Costs a few comparisons per call."""

    def __init__(
        self,
        clock: Clock | None = None,
        *,
        jitter: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._clock = clock or SystemClock()
        self._jitter = jitter
        self.listeners: list[Callable[[State], None]] = []
        self.state: State = "closed"
        self._failures = 0
        self._under_way = 0
        self._heard_s = 0.0
        self._doubts = False
        self._probe_since_s: float | None = None
        self._late = 0
        self._pause_s = PAUSE_S
        self._retry_at_s = 0.0
        self._full_until_s = 0.0

    @property
    def refuses(self) -> bool:
        """True while calls are refused."""
        return self.state != "closed"

    @property
    def probe_s_max(self) -> float:
        """How long a probe waits for its answer."""
        return PROBE_S_MAX

    @property
    def is_full(self) -> bool:
        """True for a while after the server had no room for a write."""
        return self._full_until_s > 0.0 and self._clock.monotonic_s() < self._full_until_s

    @property
    def takes_items(self) -> bool:
        """Whether what may live anywhere should live here."""
        return self.state == "closed" and not (self._full_until_s and self.is_full)

    @property
    def retry_after_s(self) -> float:
        """How long until the shard is tried again."""
        return max(self._retry_at_s - self._clock.monotonic_s(), PAUSE_S)

    def begin(self) -> None:
        """A call, or a probe, sets out."""
        if not self._under_way:
            self._heard_s = self._clock.monotonic_s()
        self._under_way += 1

    def end(self) -> None:
        """It is over, however it went."""
        self._under_way -= 1

    def succeeded(self) -> None:
        """The server answered, if only with a refusal."""
        self._heard_s = self._clock.monotonic_s()
        self._failures = 0
        self._doubts = False
        if self.state != "closed":
            self._pause_s = PAUSE_S
            self._move("closed")

    def failed(self) -> None:
        """No connection, a lost one, or no answer in time. What set out before it opened tells nothing new."""
        self._failures += 1
        if self._failures >= FAILURES_MAX or self._is_silent:
            self._doubts = True

    def had_no_room(self) -> None:
        """The server's disk is full."""
        self._full_until_s = self._clock.monotonic_s() + FULL_S

    def take_probe(self) -> bool:
        """True when a probe is due; who is told so makes it, and nobody else until it has ended."""
        if self.state == "closed":
            if not self._doubts and (not self._under_way or not self._is_silent):
                return False
            if self._probe_since_s is not None:
                return False
            self._doubts = True
        elif self.state == "half_open" or self._clock.monotonic_s() < self._retry_at_s:
            return False
        else:
            self._move("half_open")
        self._probe_since_s = self._clock.monotonic_s()
        return True

    def probe_ended(self) -> None:
        """The probe is over; unless something succeeded meanwhile the shard is away."""
        assert self._probe_since_s is not None
        taken_s = self._clock.monotonic_s() - self._probe_since_s
        self._probe_since_s = None
        if self.state == "closed" and not self._doubts:
            self._late = 0
        elif taken_s >= PROBE_S_MAX + LATE_S and self._late < LATE_MAX:
            self._late += 1
            if self.state == "half_open":
                self._retry_at_s = 0.0
                self._move("open")
        else:
            self._late = 0
            self._open()

    @property
    def _is_silent(self) -> bool:
        return self._under_way > 0 and self._clock.monotonic_s() - self._heard_s >= SILENCE_S

    def _open(self) -> None:
        pause_s = self._pause_s
        self._pause_s = min(pause_s * 2, PAUSE_S_MAX)
        self._retry_at_s = self._clock.monotonic_s() + self._jitter(pause_s / 2, pause_s)
        self._move("open")

    def _move(self, state: State) -> None:
        self.state = state
        for listener in self.listeners:
            listener(state)
