"""Ack: items end as done, under their leases. Each call is brought to its shards; `ack_flushes` ends the items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from services.queue.errors import unless_overloaded
from services.queue.leases.ack_flushes import AckFlushes
from services.queue.leases.shard_groups import at_each_shard, by_shard
from services.queue.model import NO_OUTPUT, Even, PlainAcks, Result, Settled, refused, settled
from services.queue.store.shard_store import Store, is_living
from shared.admission.connection_priority import Urgency
from shared.errors import Unavailable
from shared.ids import ShardNo, are_canonical, canonical_token, canonicals, new_token, one_shard_of


class Acks:
    """Calls of the verb."""

    def __init__(self, stores: Mapping[ShardNo, Store], flushes: AckFlushes) -> None:
        self._stores = stores
        self._flushes = flushes

    async def ack(self, namespace: str, items: Sequence[Settled]) -> list[Result]:
        """End items under their leases; one result per item, in order."""
        ids = canonicals([item.id for item in items])
        tokens = {token: canonical_token(token) or new_token() for token in {item.lease_token for item in items}}
        results = [Result(item.id, "not_found") for item in items]

        async def at(shard: ShardNo, places: Sequence[int]) -> None:
            outputs = [_output(items[i]) for i in places]
            statuses = await self._flushes.submit(
                shard,
                namespace,
                [ids[i] or "" for i in places],
                [tokens[items[i].lease_token] for i in places],
                outputs if any(outputs) else (),
            )
            for nth, i in enumerate(places):
                results[i] = settled(items[i].id, "acked" if statuses is None else statuses[nth])

        return await at_each_shard(by_shard(ids, self._stores), results, at)

    async def ack_plain(self, namespace: str, acks: PlainAcks) -> Even | list[Result]:
        """As `ack`, for a call under one token."""
        ids, token = acks
        shard = one_shard_of(ids)
        if shard is None or not is_living(self._stores, shard):
            return await self.ack(namespace, [Settled(item_id, token) for item_id in ids])
        try:
            statuses = await self._flushes.submit(shard, namespace, ids, [token] * len(ids))
        except Unavailable as error:
            results = [refused(item_id, error.code, error.outcome) for item_id in ids]
        else:
            if statuses is None:
                return Even(ids, "acked")
            results = list(map(settled, ids, statuses))
        return unless_overloaded(results, Urgency.SETTLE)


def plain_acks(items: Sequence[Settled]) -> PlainAcks | None:
    """Acks under one token and without outputs, as most calls are."""
    token = items[0].lease_token
    if canonical_token(token) != token:
        return None
    for item in items:
        if item.output is not NO_OUTPUT or item.lease_token != token:
            return None
    ids = [item.id for item in items]
    return PlainAcks(ids, token) if are_canonical(ids) else None


def _output(item: Settled) -> str | None:
    return None if item.output is NO_OUTPUT else bytes(item.output).decode()
