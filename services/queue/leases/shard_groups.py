"""A call's ids by the shards that they are of, and its results put together again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias

from services.queue.errors import unless_overloaded
from services.queue.model import Result, refused
from services.queue.store.shard_store import Store, is_living
from shared.admission.connection_priority import Urgency
from shared.errors import Unavailable
from shared.ids import ShardNo, one_shard_of, shard_of

# Places in a call, by shard.
Groups: TypeAlias = Mapping[ShardNo, Sequence[int]]


def by_shard(ids: Sequence[str | None], stores: Mapping[ShardNo, Store]) -> Groups:
    """The places of ids by their shards, without those that are of no shard of the map; mostly all are of one."""
    shard = None if None in ids else one_shard_of([item_id or "" for item_id in ids])
    if shard is not None:
        return {shard: range(len(ids))} if is_living(stores, shard) else {}
    groups: dict[ShardNo, list[int]] = {}
    for i, item_id in enumerate(ids):
        if item_id is not None and is_living(stores, shard_of(item_id)):
            groups.setdefault(shard_of(item_id), []).append(i)
    return groups


async def at_each_shard(
    groups: Groups, results: list[Result], work: Callable[[ShardNo, Sequence[int]], Awaitable[None]]
) -> list[Result]:
    """Let `work` fill in the results of each shard's places; those of a shard that cannot be asked are refused."""

    async def at(shard: ShardNo, places: Sequence[int]) -> None:
        try:
            await work(shard, places)
        except Unavailable as error:
            for i in places:
                results[i] = refused(results[i].id, error.code, error.outcome)

    if len(groups) == 1:
        [group] = groups.items()
        await at(*group)
    else:
        await asyncio.gather(*(at(shard, places) for shard, places in groups.items()))
    return unless_overloaded(results, Urgency.SETTLE)
