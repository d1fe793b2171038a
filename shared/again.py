"""What was refused is tried again behind its caller, until its time is over: of so many things at once."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Generic, TypeVar

from shared.clock import Clock
from shared.loop import Waker

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

# So long after a refusal it is tried again, and after each further one twice as long, up to a bound.
PAUSE_S = 0.25
PAUSE_S_MAX = 1.0


class Again(Generic[K, T]):
    """Things of one kind, of which `kept_max` are kept for another try; those of one key are tried together.

    `attempt` does some of a key, and says what of them was refused. `keep` holds on to what goes on behind a
    caller, `until_s` says by the wall clock when the time of one is over, and `give_up` is told of those that are
    not tried any more.
    """

    def __init__(
        self,
        attempt: Callable[[K, Sequence[T]], Awaitable[Sequence[T]]],
        keep: Callable[[Awaitable[None]], None],
        clock: Clock,
        *,
        until_s: Callable[[T], float],
        give_up: Callable[[Sequence[T]], None],
        kept_max: int,
    ) -> None:
        self._attempt = attempt
        self._keep = keep
        self._clock = clock
        self._until_s = until_s
        self._give_up = give_up
        self.kept_max = kept_max
        self.kept = 0
        self._refused: dict[K, list[T]] = {}

    async def do(self, key: K, things: Sequence[T]) -> None:
        """Do these. What is refused is tried again behind the caller, with what else is left of the key."""
        refused = await self._attempt(key, things)
        kept = refused[: max(self.kept_max - self.kept, 0)]
        self._let_go(refused[len(kept) :])
        if not kept:
            return
        self.kept += len(kept)
        if key in self._refused:
            self._refused[key] += kept
        else:
            self._refused[key] = [*kept]
            self._keep(self._do_again(key))

    async def _do_again(self, key: K) -> None:
        pause_s = PAUSE_S
        try:
            while self._refused[key]:
                await Waker().wait(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 - jitter
                pause_s = min(2 * pause_s, PAUSE_S_MAX)
                await self._try(key)
        finally:
            self.kept -= len(self._refused.pop(key))

    async def _try(self, key: K) -> None:
        # Whether it is over is for the shard to say: this clock ends no more than the trying.
        now_s = self._clock.wall_s()
        things, self._refused[key] = self._refused[key], []
        self._let_go([thing for thing in things if self._until_s(thing) <= now_s])
        left = [thing for thing in things if self._until_s(thing) > now_s]
        refused: Sequence[T] = ()
        try:
            refused = await self._attempt(key, left) if left else ()
        finally:
            self._refused[key] += refused
            self.kept -= len(things) - len(refused)

    def _let_go(self, things: Sequence[T]) -> None:
        if things:
            self._give_up(things)
