"""Items that were leased to a call that is not there to get them: they go back as if they had never been leased.

Of these nobody has been told anything: no answer that names them was begun. So it costs no attempt, and what is
delivered at most once goes back, too. A shard that refuses is asked again until the leases have ended.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from services.queue.leases.nack import Nack
from services.queue.model import Result
from services.queue.store.dequeue_encoding import Unused
from shared.again import Again
from shared.clock import Clock
from shared.errors import Unavailable
from shared.log import log

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
        self.again = Again[Unused](
            keep,
            clock,
            until_s=lambda item: item.until.timestamp(),
            give_up=_give_up,
            kept_max=KEPT_ITEMS_MAX,
        )

    async def hand_back(self, namespace: str, unused: Sequence[Unused]) -> None:
        """Give these back; what is refused is tried again behind the caller."""
        if unused:
            log.info("nobody waits for these items any more; they are handed back", items=len(unused))
            await self.again.do(unused, partial(self._try, namespace))

    async def _try(self, namespace: str, unused: Sequence[Unused]) -> Sequence[Unused]:
        """Which of these were refused."""
        nacks = [Nack(item.id, item.token, 0.0, None, None, False, False, is_untold=True) for item in unused]
        try:
            results = await self._nack(namespace, nacks)
        except Unavailable:
            return unused
        return [item for item, result in zip(unused, results, strict=True) if result.status == "refused"]


def _give_up(unused: Sequence[Unused]) -> None:
    log.warning("items that nobody was told of are not handed back: their leases run out", items=len(unused))
