"""Keys and claims of many calls, brought together for a shard and told apart again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from services.queue.model import Claim, Key, KeyLook, id_of
from services.queue.store.dequeue_encoding import Claimed, Group
from services.queue.store.shard_store import Store
from shared.ids import ShardNo, one_shard_of, shard_of


def by_shard(keys: Sequence[Key]) -> dict[ShardNo, list[Key]]:
    """Keys by their shards, in their order."""
    shard = one_shard_of(list(map(id_of, keys)))
    if shard is not None:
        return {shard: list(keys)}
    found: dict[ShardNo, list[Key]] = {}
    for key in keys:
        found.setdefault(shard_of(key.id), []).append(key)
    return found


def looker(store: Store) -> Callable[[list[tuple[KeyLook, int]]], Awaitable[list[list[Key] | None]]]:
    """A flush of looks, each with its limit: the keys of each, None where its number is not the topic's."""

    async def flush(looks: list[tuple[KeyLook, int]]) -> list[list[Key] | None]:
        if len(looks) == 1:
            return [await store.peek(*looks[0])]
        return await store.peek_many(looks)

    return flush


def claimer(store: Store, relaxed: bool) -> Callable[[list[Claim]], Awaitable[list[Claimed]]]:
    """A flush of claims: what was got for each."""

    async def flush(claims: list[Claim]) -> list[Claimed]:
        groups: dict[str, list[Group]] = {}
        found, cut = await store.claim(claims, relaxed=relaxed)
        for group in found:
            groups.setdefault(group.token, []).append(group)
        # A call's claims have one token: the first of them is given all that was got.
        return [Claimed(groups.pop(claim.token, []), claim.token in cut) for claim in claims]

    return flush
