"""Leases that nobody was told of, perhaps: the answer to the statement that makes them was lost, or is late.

Its connection was cut, or stands still; it was done, is yet to be done, or never came. Each claim, and each offer
to a call that waits, has a token of its own: what is leased under such a one is nobody's, and is handed back. The
shard is asked for it at once, and again for as long as the statement may come, so often that not even the shortest
lease ends in between. A process that ends leaves the rest to the leases' ends.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import islice

from services.queue.store.dequeue_encoding import Unused
from services.queue.store.leases import leased_under
from services.queue.store.shard_store import Store
from shared.clock import Clock
from shared.errors import Unavailable
from shared.ids import ShardNo
from shared.log import log
from shared.loop import Waker

# For so long a statement may come whose answer was lost: its server stood still, or waited for a lock. Longer than
# any may take (`statement_timeout`).
DOUBT_S = 30.0
# A shard is asked again after so long at most; the shortest lease is a second.
PAUSE_S_MAX = 0.5
# So many tokens of a shard are asked for. Under others, leases run out.
TOKENS_MAX = 10_000
# In one statement.
TOKENS_AT_ONCE_MAX = 100


class Doubts:
    """Those of this process. `hand_back` takes what was leased to nobody, `keep` holds on to what goes on behind a
    call."""

    def __init__(
        self,
        stores: Mapping[ShardNo, Store],
        hand_back: Callable[[str, Sequence[Unused]], Awaitable[None]],
        keep: Callable[[Awaitable[None]], None],
        clock: Clock,
    ) -> None:
        self._stores = stores
        self._hand_back = hand_back
        self._keep = keep
        self._clock = clock
        # By shard and token: whose it is, and until when something may come.
        self._tokens: dict[ShardNo, dict[str, tuple[str, float]]] = {}

    def note(self, shard: ShardNo, namespace: str, token: str) -> None:
        """Something may be leased on this shard under a token that nobody is told."""
        tokens = self._tokens.get(shard)
        if tokens is None:
            tokens = self._tokens[shard] = {}
            self._keep(self._ask(shard, tokens))
        if len(tokens) < TOKENS_MAX or token in tokens:
            tokens[token] = namespace, self._clock.monotonic_s() + DOUBT_S
        else:
            log.warning("what may be leased to nobody is not asked for: it runs out", shard=shard)

    async def _ask(self, shard: ShardNo, tokens: dict[str, tuple[str, float]]) -> None:
        try:
            while tokens and not self._stores[shard].pool.is_retired:
                begun_s = self._clock.monotonic_s()
                try:
                    await self._look(shard, tokens)
                except Unavailable:
                    pass  # of what was done before it went away it says when it is there again
                else:
                    for token in [token for token, (_, until_s) in tokens.items() if until_s <= begun_s]:
                        del tokens[token]
                if tokens:
                    await Waker().wait(PAUSE_S_MAX * random.uniform(0.5, 1.0))  # noqa: S311 - jitter
        finally:
            del self._tokens[shard]

    async def _look(self, shard: ShardNo, tokens: dict[str, tuple[str, float]]) -> None:
        left = iter(list(tokens))
        while part := list(islice(left, TOKENS_AT_ONCE_MAX)):
            namespaces = {token: tokens[token][0] for token in part}
            found: dict[str, list[Unused]] = {}
            for group in await leased_under(self._stores[shard].pool, part):
                # A statement is done once, and all that it has leased is here. What is refused now is tried again.
                tokens.pop(group.token, None)
                unused = [Unused(item_id, group.token, group.expires_at) for item_id in group.ids]
                found.setdefault(namespaces[group.token], []).extend(unused)
            for namespace, items in found.items():
                self._keep(self._hand_back(namespace, items))  # nobody waits here for one that takes long
