"""What processes tell one another through the shards: quotas of namespaces, shares and limits of topics, lanes,
cancels.

Most shards hold none of these. So each process asks each shard one question a round, whether there are any, and
reads only what there is, and what it still knows of.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

from services.queue.duties.fairness_keys import FairnessKeys
from services.queue.gates.topic_gates import Gates
from services.queue.operations.cancel_news import CancelNews
from services.queue.operations.topics import Topics
from services.queue.quotas import Quotas
from services.queue.store import topics
from services.queue.store.shard_store import Store, living
from shared.errors import ShardUnavailable
from shared.ids import ShardNo

Kinds = tuple[bool, bool, bool, bool, bool]

ALL: Kinds = (True, True, True, True, True)
NONE: Kinds = (False, False, False, False, False)


class Notices:
    """Follows what is set on the shards."""

    def __init__(
        self,
        stores: Mapping[ShardNo, Store],
        quotas: Quotas,
        topics: Topics,
        lanes: FairnessKeys,
        news: CancelNews,
        gates: Gates,
    ) -> None:
        self._stores = stores
        self._quotas = quotas
        self._topics = topics
        self._lanes = lanes
        self._news = news
        self._gates = gates

    async def step(self) -> int:
        """Read what is there; 0, since nothing is left for a next step at once."""
        found = await asyncio.gather(*map(self._look, living(self._stores)))
        # Where no shard is named any more, there is nothing.
        quotas, shares, lanes, cancels, limits = (any(kind) for kind in zip(NONE, *found, strict=True))
        reads: list[Coroutine[Any, Any, object]] = []
        if quotas or self._quotas.knows_any:
            reads.append(self._quotas.step())
        if shares or self._topics.knows_shares:
            reads.append(self._topics.read_shares())
        if limits or self._gates.limits:
            reads.append(self._gates.read())
        if lanes:
            reads.append(self._lanes.step())
        if cancels and self._news.is_heeded:
            reads.append(self._news.step())
        for end in await asyncio.gather(*reads, return_exceptions=True):
            if isinstance(end, BaseException):
                raise end
        return 0

    async def _look(self, store: Store) -> Kinds:
        try:
            return await topics.notices(store.pool)
        except ShardUnavailable:
            return ALL  # what reads them knows what to do without a shard
