"""What one shard is asked: each method binds one statement, or one transaction of a few.

Every method takes and gives sequences. Methods that make items deliverable return their keys, so that the
caller can tell waiting consumers; forgetting to is slow, never wrong.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence, Set
from datetime import datetime
from itertools import accumulate, chain
from typing import Any, NamedTuple, TypeVar

from services.queue.model import EARLIEST, Claim, Fold, Key, Look, Offer, Ready, id_of
from services.queue.settings import QueueSettings
from services.queue.store.dequeue_encoding import Group, moment
from services.queue.store.enqueue import EnqueueStore
from services.queue.store.names import SQL
from services.queue.store.ready_ages import ReadyAges
from shared.admission.connection_priority import current_urgency
from shared.admission.delay import overloaded
from shared.clock import SystemClock
from shared.postgres.connections import Transaction
from shared.shards.shard_map import Shard

# What an ack says of each item that it made ready, the last ten of those that it leased at once.
_NEWS = (
    "topic_ids",
    "priorities",
    "deliver_ats",
    "ids",
    "reviveds",
    "are_ready",
    "handed_to",
    "lease_untils",
    "payloads",
    "metadatas",
    "inputs",
    "headers",
    "attempts",
    "enqueued_ats",
    "at_most_onces",
    "dags",
)

T = TypeVar("T")

_NONE: frozenset[str] = frozenset()


def _once(values: Sequence[T]) -> Sequence[T]:
    """One element where all are the same."""
    return values[:1] if values.count(values[0]) == len(values) else values


class Known(NamedTuple):
    """What the shard knows of an id: `living`, or how it ended."""

    namespace_id: int
    outcome: str


class AckFlush(NamedTuple):
    """One flush of acks: the ids acked and the (id, token) pairs held, None where that is all; completions and
    revived items that are ready, and those that were leased at once, as rows of a claim. `folded` ends were
    applied in the flush itself; `delayed` of what they revived are not ready yet; `ended` are DAGs that ended."""

    acked: set[str] | None
    held: set[str] | None
    ready: list[Ready]
    handed: list[tuple[Key, Any]]
    folded: int = 0
    revived: int = 0
    delayed: int = 0
    ended: Sequence[str] = ()


class Holding(NamedTuple):
    """Since when an item is leased, and to whom, if the call said so; a claim past its TTL is shown to nobody."""

    claimed_at: datetime
    worker: str | None
    was_shown: bool = True


class LeaseGroup(NamedTuple):
    """A locked lease group."""

    namespace_id: int
    topic_id: int
    ids: set[str]
    holding: Holding


class Store(EnqueueStore):
    """The statements of one shard."""

    def __init__(self, shard: Shard, settings: QueueSettings) -> None:
        super().__init__(shard, settings)
        self.ready_ages = ReadyAges(shard, settings.names_max, SystemClock().monotonic_s)

    # -- ids ----------------------------------------------------------------------------------------------

    async def known(self, ids: Sequence[str]) -> dict[str, Known]:
        """What the shard knows of ids; the end of an item counts for more than a row that is going."""
        rows = await self.pool.fetch(SQL.known, ids=list(ids))
        return {row["id"]: Known(row["namespace_id"], row["outcome"]) for row in rows}

    async def acked_lately(self, ids: Sequence[str]) -> dict[str, Known]:
        """Of ids without a row, those acked under a lease that no sweep has taken yet."""
        rows = await self.pool.fetch(SQL.acked_lately, ids=list(ids))
        return {row["id"]: Known(row["namespace_id"], "acked") for row in rows}

    async def time_ms(self) -> int:
        """The shard's clock."""
        row = await self.pool.row(SQL.shard_time_ms)
        return int(row["time_ms"])

    # -- dequeue ------------------------------------------------------------------------------------------

    async def peek(self, look: Look, limit: int) -> list[Key] | None:
        """Keys of a topic, in order; nothing is claimed. None: the number is not the topic's."""
        rows = await self.pool.fetch(
            SQL.peek,
            namespace=look.namespace,
            topic=look.topic,
            topic_id=look.topic_id,
            after_priority=look.after[0],
            after_deliver_at=look.after[1],
            after_id=look.after[2],
            from_priority=look.start[0],
            from_deliver_at=look.start[1],
            from_id=look.start[2],
            limit=limit,
        )
        return None if rows and rows[0]["id"] is None else [Key(*row) for row in rows]

    async def peek_many(self, looks: Sequence[tuple[Look, int]]) -> list[list[Key] | None]:
        """As `peek`, several in one statement, each with its limit; the keys of each."""
        namespaces, topics, topic_ids, afters, starts = zip(*(look for look, _ in looks), strict=True)
        priorities, deliver_ats, ids = zip(*afters, strict=True)
        from_priorities, from_deliver_ats, from_ids = zip(*starts, strict=True)
        rows = await self.pool.fetch(
            SQL.peek_many,
            namespaces=namespaces,
            topics=topics,
            topic_ids=topic_ids,
            after_priorities=priorities,
            after_deliver_ats=deliver_ats,
            after_ids=ids,
            from_priorities=from_priorities,
            from_deliver_ats=from_deliver_ats,
            from_ids=from_ids,
            limits=[limit for _, limit in looks],
        )
        found: list[list[Key] | None] = [[] for _ in looks]
        for nth, *key in rows:
            keys = found[nth - 1]
            if key[2] is None or keys is None:
                found[nth - 1] = None
            else:
                keys.append(Key(*key))
        return found

    async def claim(self, claims: Sequence[Claim], *, relaxed: bool) -> tuple[list[Group], Set[str]]:
        """Lease items: what was got, without those that are not ready any more, expired or paused; and the tokens
        of calls that got less for the bytes that it takes."""
        parts = [(claim.topic_id, first, last) for claim in claims for first, last in claim.stretches()]
        topic_ids, firsts, lasts = zip(*parts, strict=True)
        if len(claims) == 1:
            [(_, keys, token, lease_s, _, bytes_max, _)] = claims
            ids, tokens, lease_ss, maxima = sorted(map(id_of, keys)), [token], [lease_s], [bytes_max]
        else:
            wanted = sorted(
                [(key.id, claim.token, claim.lease_s, claim.bytes_max) for claim in claims for key in claim.keys]
            )
            ids, tokens, lease_ss, maxima = map(list, zip(*wanted, strict=True))
        workers = {claim.token: claim.worker for claim in claims if claim.worker is not None}
        pool = self.shard.relaxed if relaxed else self.pool
        rows = await pool.fetch(
            SQL.claim,
            topic_ids=topic_ids,
            priorities=[key.priority for key in firsts],
            from_ats=[key.deliver_at for key in firsts],
            from_ids=[key.id for key in firsts],
            to_ats=[key.deliver_at for key in lasts],
            to_ids=[key.id for key in lasts],
            ids=ids,
            tokens=_once(tokens),
            lease_ss=[lease_s or 0.0 for lease_s in _once(lease_ss)],
            workers=json.dumps(workers) if workers else None,
            known_at=firsts[0].deliver_at,
            known_at_json=moment(firsts[0].deliver_at),
            bytes_maxima=_once(maxima),
            firsts=[claim.first_id for claim in claims if claim.first_id is not None],
            bytes_max=self._answer_bytes_max,
            bytes_easy=min(self._answer_bytes_max, *maxima),
        )
        groups = [Group(self.number, *row) for row in rows if row["lease_until"] is not None]
        cut = _NONE if len(groups) == len(rows) else {row["token"] for row in rows if row["lease_until"] is None}
        return groups, cut

    # -- settle -------------------------------------------------------------------------------------------

    async def ack(
        self,
        ids: Sequence[str],
        tokens: Sequence[str],
        namespace_ids: Sequence[int],
        outputs: Mapping[str, Mapping[str, str]],
        *,
        relaxed: bool,
        offers: Sequence[Offer] = (),
        folds: Fold = Fold.NOTHING,
    ) -> AckFlush:
        """End items that are held under their tokens, each of one namespace here. Outputs are by token and id.

        Raises:
            Declined: the ids that it names are wide, and `folds` refuses such; nothing was done.
        """
        pool = self.shard.relaxed if relaxed else self.pool
        named = _by_token(ids, tokens, namespace_ids)
        row = await pool.row(
            SQL.ack,
            ids=named.ids,
            tokens=named.tokens,
            namespace_ids=named.namespace_ids,
            lasts=named.lasts,
            outputs=json.dumps(outputs) if outputs else "{}",
            asked=len(ids),
            folds=folds,
            **_offered(offers, self._answer_bytes_max),
        )
        acked = None if row["acked_ids"] is None else set(row["acked_ids"])
        held = None if row["held"] is None else set(row["held"])
        if row["ends"] is None:
            return AckFlush(acked, held, [], [])
        ready: list[Ready] = []
        handed: list[tuple[Key, Any]] = []
        ended: list[str] = []
        told = revived = delayed = 0
        for topic_id, priority, at, item_id, is_revived, is_ready, token, *lease in zip(
            *(row[name] or () for name in _NEWS), strict=True
        ):
            if topic_id is None:
                ended.append(item_id)
                continue
            key = Key(priority, at, item_id)
            told += not is_revived
            revived += is_revived
            if token is not None:
                handed.append((key, _claimed(topic_id, key, token, *lease)))
            elif is_ready:
                ready.append(Ready(topic_id, key))
            else:
                delayed += 1
        return AckFlush(acked, held, ready, handed, row["ends"] - told, revived, delayed, ended)

    async def revive(
        self,
        ids: Sequence[str],
        namespace_ids: Sequence[int],
        inputs: Sequence[str | None],
        may_manage: bool,
        offers: Sequence[Offer] = (),
    ) -> list[Any]:
        """Open disabled items; rows of those that were. One with a `token` is leased, as by a claim."""
        return await self.pool.fetch(
            SQL.revive,
            ids=ids,
            namespace_ids=namespace_ids,
            inputs=inputs,
            may_manage=may_manage,
            **_offered(offers, self._answer_bytes_max),
        )

    async def states(self, ids: Sequence[str]) -> dict[str, Any]:
        """Namespace, managed flag and state (`enabled`, `disabled`, `dead`) of living items."""
        return {row["id"]: row for row in await self.pool.fetch(SQL.states, ids=list(ids))}


class _Named(NamedTuple):
    """What an ack is told of: sorted tokens, and all their ids, those of each sorted, up to its `last`."""

    ids: list[str]
    tokens: Sequence[str]
    namespace_ids: Sequence[int]
    lasts: list[int]


def _by_token(ids: Sequence[str], tokens: Sequence[str], namespace_ids: Sequence[int]) -> _Named:
    if tokens.count(tokens[0]) == len(tokens):
        mine = sorted(set(ids))
        return _Named(mine, tokens[:1], namespace_ids[:1], [len(mine)])
    groups: dict[str, set[str]] = {}
    for item_id, token in zip(ids, tokens, strict=True):
        groups.setdefault(token, set()).add(item_id)
    namespaces = dict(zip(tokens, namespace_ids, strict=True))
    order = sorted(groups)
    parts = [sorted(groups[token]) for token in order]
    lasts = list(accumulate(map(len, parts)))
    return _Named(list(chain.from_iterable(parts)), order, _once([namespaces[token] for token in order]), lasts)


def _offered(offers: Sequence[Offer], bytes_max: int) -> dict[str, Any]:
    """Offers as arguments. All of them together are given so many bytes at most."""
    topic_ids, tokens, lease_ss, maxima = zip(*offers, strict=True) if offers else ((), (), (), ())
    return {
        "offer_topic_ids": topic_ids,
        "offer_tokens": tokens,
        "offer_lease_ss": lease_ss,
        "offer_maxima": maxima,
        "offer_bytes_max": bytes_max // max(len(offers), 1),
    }


def _claimed(topic_id: int, key: Key, token: str, until: datetime, payload: str, *rest: Any) -> dict[str, Any]:
    """What an ack has leased, as the row of its claim."""
    metadata, inputs, headers, attempt, enqueued_at, at_most_once, dag = rest
    return {
        "id": key.id,
        "topic_id": topic_id,
        "token": token,
        "payload": payload,
        "metadata": metadata,
        "inputs": inputs,
        "headers": headers,
        "priority": key.priority,
        "attempt": attempt,
        "lease_until": until,
        "enqueued_at": enqueued_at,
        "at_most_once": at_most_once,
        "dag": dag,
    }


def refuse_if_standing(stores: Iterable[Store]) -> None:
    """For calls that change something on every shard: nothing is done while one could not do its part.

    Raises:
        Overloaded: who waits for a connection waits for too long on one of them.
    """
    if any(store.pool.is_standing for store in stores):
        raise overloaded(current_urgency())


async def lock_groups(tx: Transaction, tokens: Sequence[str]) -> dict[str, list[LeaseGroup]]:
    """Lock the lease groups of tokens."""
    groups: dict[str, list[LeaseGroup]] = {}
    for row in await tx.fetch(SQL.lock_leases, tokens=sorted(set(tokens))):
        holding = Holding(row["claimed_at"], row["worker"])
        group = LeaseGroup(row["namespace_id"], row["topic_id"], set(row["ids"]), holding)
        groups.setdefault(row["token"], []).append(group)
    return groups


async def leave_groups(tx: Transaction, pairs: Sequence[tuple[str, str]]) -> None:
    """Take (token, id) pairs out of groups that the transaction has locked."""
    await tx.fetch(SQL.leave_leases, tokens=[token for token, _ in pairs], ids=[item for _, item in pairs])


async def lease_again(tx: Transaction, rows: Sequence[tuple[str, float, int, int, str, Holding]]) -> None:
    """New groups for (token, lease_s, namespace_id, topic_id, id, holding), ending from now."""
    tokens, lease_ss, namespace_ids, topic_ids, ids, holdings = zip(*rows, strict=True)
    await tx.fetch(
        SQL.lease_again,
        tokens=tokens,
        lease_ss=lease_ss,
        namespace_ids=namespace_ids,
        topic_ids=topic_ids,
        ids=ids,
        claimed_ats=[holding.claimed_at for holding in holdings],
        workers=[holding.worker for holding in holdings],
    )


class SweepBounds(NamedTuple):
    """What one sweep takes of leases that ran out, and for how long it remembers acks; see `take_expired`."""

    items_max: int
    ids_max: int = 10_000
    groups_max: int = 200
    look_max: int = 1_000
    expired_from: datetime = EARLIEST
    after_namespace_id: int = 0
    window_ms: int = 0


async def take_expired(tx: Transaction, bounds: SweepBounds) -> list[Any]:
    """Take groups that ran out, or a part of one: rows of token, namespace_id, topic_id, claimed_at, worker, the
    `ids` of items that have not ended, and how many `ids_taken` the group gave."""
    return await tx.fetch(SQL.take_expired, **bounds._asdict())


async def remember_acked(tx: Transaction, ids: Sequence[str], namespace_ids: Sequence[int]) -> None:
    """These have ended while `take_expired` took their groups."""
    await tx.fetch(SQL.remember_acked, ids=list(ids), namespace_ids=list(namespace_ids))


async def lock_items(tx: Transaction, ids: Sequence[str]) -> dict[str, Any]:
    """Lock item rows, in id order; those that are gone are missing from the answer."""
    return {row["id"]: row for row in await tx.fetch(SQL.lock_items, ids=list(ids))}


async def leave_queues(tx: Transaction, ids: Sequence[str]) -> dict[str, str]:
    """Take the ready, deferred or parked rows of items; the state that each left."""
    return {row["id"]: row["state"] for row in await tx.fetch(SQL.leave_queues, ids=list(ids))}


class Requeue(NamedTuple):
    """An item to give back: what it costs, when it is due again, and what to note on it."""

    id: str
    cost: int
    delay_s: float
    error: str | None = None
    metadata: str | None = None


async def requeue(tx: Transaction, rows: Sequence[Requeue]) -> list[Ready]:
    """Put items back into ready or deferred."""
    if not rows:
        return []
    ids, costs, delay_ss, errors, metadatas = zip(*rows, strict=True)
    back = await tx.fetch(SQL.requeue, ids=ids, costs=costs, delay_ss=delay_ss, errors=errors, metadatas=metadatas)
    return [Ready(row["topic_id"], Key(row["priority"], row["deliver_at"], row["id"])) for row in back]


async def bury(tx: Transaction, rows: Sequence[Requeue]) -> list[Ready]:
    """Park items as dead; their completions."""
    if not rows:
        return []
    ids, costs, _, errors, metadatas = zip(*rows, strict=True)
    return _completions(await tx.fetch(SQL.bury, ids=ids, costs=costs, errors=errors, metadatas=metadatas))


class Removal(NamedTuple):
    """An item to end: as `expired` or `cancelled`, out of which state, whether the end was a delivery, and why."""

    id: str
    outcome: str
    state: str
    charge: int = 0
    why: str | None = None


async def remove(tx: Transaction, rows: Sequence[Removal]) -> list[Ready]:
    """End items whose membership the transaction has taken; their completions."""
    if not rows:
        return []
    ids, outcomes, states, charges, whys = zip(*rows, strict=True)
    return _completions(
        await tx.fetch(SQL.remove, ids=ids, outcomes=outcomes, states=states, charges=charges, whys=whys)
    )


def _completions(rows: list[Any]) -> list[Ready]:
    return [Ready(row["o_topic_id"], Key(0, row["o_deliver_at"], row["o_id"])) for row in rows]
