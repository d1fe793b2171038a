"""What was refused is tried again behind its caller, until its time is over: of so many things at once."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from shared.clock import Clock
from shared.loop import Waker

T = TypeVar("T")

# So long after a refusal it is tried again, and after each further one twice as long, up to a bound.
PAUSE_S = 0.25
PAUSE_S_MAX = 15.0


class Again(Generic[T]):
    """Things of one kind, of which `kept_max` are kept for another try. `keep` holds on to what goes on behind a
    caller, `until_s` says by the wall clock when the time of one is over, and `give_up` is told of those that are
    not tried any more."""

    def __init__(
        self,
        keep: Callable[[Awaitable[None]], None],
        clock: Clock,
        *,
        until_s: Callable[[T], float],
        give_up: Callable[[Sequence[T]], None],
        kept_max: int,
    ) -> None:
        self._keep = keep
        self._clock = clock
        self._until_s = until_s
        self._give_up = give_up
        self.kept_max = kept_max
        self.kept = 0

    async def do(self, things: Sequence[T], attempt: Callable[[Sequence[T]], Awaitable[Sequence[T]]]) -> None:
        """Do these by `attempt`, which says what of them was refused. That is tried again behind the caller."""
        refused = await attempt(things)
        kept = refused[: max(self.kept_max - self.kept, 0)]
        self._let_go(refused[len(kept) :])
        if kept:
            self.kept += len(kept)
            self._keep(self._do_again(kept, attempt))

    async def _do_again(self, kept: Sequence[T], attempt: Callable[[Sequence[T]], Awaitable[Sequence[T]]]) -> None:
        left, pause_s = kept, PAUSE_S
        try:
            while left:
                await Waker().wait(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 - jitter
                pause_s = min(2 * pause_s, PAUSE_S_MAX)
                # Whether it is over is for the shard to say: this clock ends no more than the trying.
                now_s = self._clock.wall_s()
                self._let_go([thing for thing in left if self._until_s(thing) <= now_s])
                left = [thing for thing in left if self._until_s(thing) > now_s]
                left = await attempt(left) if left else left
        finally:
            self.kept -= len(kept)

    def _let_go(self, things: Sequence[T]) -> None:
        if things:
            self._give_up(things)
