"""Items that were leased to a call that is not there to get them: they go back as if they had never been leased.

Of these nobody has been told: no answer that names them was written as a whole. So it costs no attempt. What is
delivered at most once goes back, too, but where a byte of its answer may have left: there its lease runs out. A
shard that refuses is asked again until the leases have ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from services.queue.leases.nack import Nack
from services.queue.model import Result
from services.queue.store.dequeue_encoding import Unused
from shared.again import Again
from shared.clock import Clock
from shared.errors import Unavailable
from shared.ids import ShardNo, shard_of
from shared.log import log

# So many items that were refused are kept for another try. Others come back when their leases have ended.
KEPT_ITEMS_MAX = 10_000
# So many are handed back at once.
ITEMS_AT_ONCE_MAX = 1_000


class HandBacks:
    """Those of this process. `nack` gives items back, `keep` holds on to what goes on behind a call."""

    def __init__(
        self,
        nack: Callable[[str, Sequence[Nack]], Awaitable[list[Result]]],
        keep: Callable[[Awaitable[None]], None],
        clock: Clock,
    ) -> None:
        self._nack = nack
        self.again = Again[tuple[str, ShardNo], Unused](
            self._try,
            keep,
            clock,
            until_s=lambda item: item.until.timestamp(),
            give_up=_give_up,
            kept_max=KEPT_ITEMS_MAX,
        )

    async def hand_back(self, namespace: str, unused: Sequence[Unused]) -> None:
        """Give these back; what is refused is tried again behind the caller."""
        if not unused:
            return
        log.info("nobody waits for these items any more; they are handed back", items=len(unused))
        of_shards: dict[ShardNo, list[Unused]] = {}
        for item in unused:
            of_shards.setdefault(shard_of(item.id), []).append(item)
        await asyncio.gather(*(self.again.do((namespace, shard), part) for shard, part in of_shards.items()))

    async def _try(self, key: tuple[str, ShardNo], unused: Sequence[Unused]) -> Sequence[Unused]:
        """Which of these were refused; once some are, the others are not tried."""
        namespace, _ = key
        for at in range(0, len(unused), ITEMS_AT_ONCE_MAX):
            part = unused[at : at + ITEMS_AT_ONCE_MAX]
            nacks = [
                Nack(item.id, item.token, 0.0, None, None, False, False, is_untold=True, is_begun=item.is_begun)
                for item in part
            ]
            try:
                results = await self._nack(namespace, nacks)
            except Unavailable:
                return unused[at:]
            refused = [item for item, result in zip(part, results, strict=True) if result.status == "refused"]
            if refused:
                return [*refused, *unused[at + len(part) :]]
        return []


def _give_up(unused: Sequence[Unused]) -> None:
    log.warning("items that nobody was told of are not handed back: their leases run out", items=len(unused))
