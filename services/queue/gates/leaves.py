"""What a gate has granted is given back to it: tried again where its home refuses that, until the grant has ended.

A grant is given back in the transaction that finds it in the gate's row, so it is once, also where an answer was
lost and the same is tried a second time: by then it is not there, and what is there is another call's. Tokens of a
key that nothing else limits are in no row by name: those are not given back a second time where it is not known
whether the first one was.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from services.queue.gates.limits import GRANT_S, Pair
from services.queue.store.shard_store import Store
from shared.again import Again
from shared.clock import Clock
from shared.errors import Unavailable
from shared.log import log
from shared.postgres.connections import Transaction

# So many grants that could not be given back are kept for another try. Others end by themselves.
KEPT_GRANTS_MAX = 1_000


class _Leave(NamedTuple):
    """What is done at the home of a topic, until then."""

    pair: Pair
    work: Callable[[Transaction], Awaitable[None]]
    until_s: float
    is_known: bool


class Leaves:
    """Those of this process; `home` is where the gates of a topic are."""

    def __init__(
        self, home: Callable[[Pair], Store], keep: Callable[[Awaitable[None]], None], clock: Clock
    ) -> None:
        self._home = home
        self._clock = clock
        self.again = Again[Pair, _Leave](
            self._try, keep, clock, until_s=lambda leave: leave.until_s, give_up=_give_up, kept_max=KEPT_GRANTS_MAX
        )

    async def leave(
        self, pair: Pair, work: Callable[[Transaction], Awaitable[None]], *, is_known: bool = True
    ) -> None:
        """Give a grant back by `work`; what is refused is tried again behind the caller. `is_known`: the row knows
        the grant, so that nothing is done where it was given back before."""
        await self.again.do(pair, [_Leave(pair, work, self._clock.wall_s() + GRANT_S, is_known)])

    async def _try(self, pair: Pair, leaves: Sequence[_Leave]) -> Sequence[_Leave]:
        for at, leave in enumerate(leaves):
            try:
                await self._home(pair).pool.transaction(leave.work)
            except Unavailable as error:
                if leave.is_known or error.outcome == "none":
                    return leaves[at:]
                _give_up([leave])
                return leaves[at + 1 :]
        return []


def _give_up(leaves: Sequence[_Leave]) -> None:
    log.warning("grants are left to run out", topics=sorted({leave.pair[1] for leave in leaves}))
