"""Items that were leased to a call that is not there to get them: they go back as if they had never been leased.

Of these nobody has been told anything: no answer that names them was begun. So it costs no attempt, and what is
delivered at most once goes back, too. A shard that refuses is asked again until the leases have ended.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence

from services.queue.leases.nack import Nack
from services.queue.model import Result
from services.queue.store.dequeue_encoding import Unused
from shared.clock import Clock
from shared.errors import Unavailable
from shared.log import log
from shared.loop import Waker

# So long after a refusal it is tried again, and after each further one twice as long, up to a bound.
PAUSE_S = 0.25
PAUSE_S_MAX = 15.0
# So many items that were refused are kept for another try. Others come back when their leases have ended.
KEPT_ITEMS_MAX = 10_000


class HandBacks:
    """Those of this process. `nack` gives items back, `keep` holds on to what goes on behind a call."""

    def __init__(
        self,
        nack: Callable[[str, Sequence[Nack]], Awaitable[list[Result]]],
        keep: Callable[[Awaitable[None]], None],
        clock: Clock,
    ) -> None:
        self._nack = nack
        self._keep = keep
        self._clock = clock
        self._kept = 0

    async def hand_back(self, namespace: str, unused: Sequence[Unused]) -> None:
        """Give these back; what is refused is tried again behind the caller."""
        if not unused:
            return
        log.info("nobody waits for these items any more; they are handed back", items=len(unused))
        refused = await self._try(namespace, unused)
        kept = refused[: max(KEPT_ITEMS_MAX - self._kept, 0)]
        _give_up(refused[len(kept) :])
        if kept:
            self._kept += len(kept)
            self._keep(self._try_again(namespace, kept))

    async def _try_again(self, namespace: str, kept: Sequence[Unused]) -> None:
        left, pause_s = kept, PAUSE_S
        try:
            while left:
                await Waker().wait(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 - jitter
                pause_s = min(2 * pause_s, PAUSE_S_MAX)
                # Whether a lease has ended is for the shard to say: this clock ends no more than the trying.
                now_s = self._clock.wall_s()
                _give_up([item for item in left if item.until.timestamp() <= now_s])
                left = await self._try(namespace, [item for item in left if item.until.timestamp() > now_s])
        finally:
            self._kept -= len(kept)

    async def _try(self, namespace: str, unused: Sequence[Unused]) -> list[Unused]:
        """Which of these were refused."""
        nacks = [Nack(item.id, item.token, 0.0, None, None, False, False, is_untold=True) for item in unused]
        try:
            results = await self._nack(namespace, nacks) if nacks else []
        except Unavailable:
            return list(unused)
        return [item for item, result in zip(unused, results, strict=True) if result.status == "refused"]


def _give_up(unused: Sequence[Unused]) -> None:
    if unused:
        log.warning("items that nobody was told of are not handed back: their leases run out", items=len(unused))
