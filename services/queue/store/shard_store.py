"""What one shard is asked: each method binds one statement, or one transaction of a few.

Every method takes and gives sequences. Methods that make items deliverable return their keys, so that the
caller can tell waiting consumers; forgetting to is slow, never wrong.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence, Set
from datetime import datetime
from itertools import accumulate, chain, compress, repeat
from typing import NamedTuple, TypeVar

from services.queue.model import Claim, Fold, Key, KeyLook, NamespaceId, Offer, Ready, TopicId, id_of
from services.queue.settings import QueueSettings
from services.queue.store.dequeue_encoding import Group, Handed, HandedLease, moment
from services.queue.store.enqueue import EnqueueStore
from services.queue.store.names import SQL
from services.queue.store.offers import news_of, offered
from services.queue.store.ready_ages import ReadyAges
from services.queue.store.topic_flow import TopicFlow
from shared.admission.connection_priority import current_urgency
from shared.admission.delay import overloaded
from shared.clock import SystemClock
from shared.ids import ShardNo, shard_of
from shared.postgres.connections import Declined
from shared.postgres.rows import rows_of
from shared.shards.shard_map import Shard

T = TypeVar("T")

_NONE: frozenset[str] = frozenset()

# Topics that are remembered for their large items. To forget one costs a claim that is made twice.
LARGE_TOPICS_MAX = 1_000
# As many ids of a token, on average, are told apart by other means than few.
IDS_OF_A_TOKEN_MANY = 8


def _once(values: Sequence[T]) -> Sequence[T]:
    """One element where all are the same."""
    return values[:1] if values.count(values[0]) == len(values) else values


class Known(NamedTuple):
    """What the shard knows of an id: `living`, or how it ended."""

    namespace_id: NamespaceId
    outcome: str


class AckFlush(NamedTuple):
    """One flush of acks: the ids acked and the (id, token) pairs held, None where that is all; completions and
    revived items that are ready, and those that were leased at once, as rows of a claim. `folded` ends were
    applied in the flush itself; `delayed` of what they revived are not ready yet; `ended` are DAGs that ended,
    `awake` runs whose code is awake and has something to be told."""

    acked: set[str] | None
    held: set[str] | None
    ready: list[Ready]
    handed: list[Handed]
    folded: int = 0
    revived: int = 0
    delayed: int = 0
    ended: Sequence[str] = ()
    awake: Sequence[str] = ()


class Revived(NamedTuple):
    """An item that was disabled; from `token` on None where it was not leased at once."""

    id: str
    namespace_id: NamespaceId
    managed: bool
    topic_id: TopicId
    priority: int
    deliver_at: datetime
    is_ready: bool
    token: str | None
    lease_until: datetime
    payload: str
    metadata: str | None
    inputs: str | None
    headers: str | None
    attempt: int
    enqueued_at: datetime
    at_most_once: bool
    dag: str | None

    @property
    def key(self) -> Key:
        """Its place in its topic."""
        return Key(self.priority, self.deliver_at, self.id)

    @property
    def handed(self) -> Handed | None:
        """What a call is given of it, if it was leased to one."""
        if self.token is None:
            return None
        lease = HandedLease(
            self.topic_id,
            self.token,
            self.lease_until,
            self.payload,
            self.metadata,
            self.inputs,
            self.headers,
            self.attempt,
            self.enqueued_at,
            self.at_most_once,
            self.dag,
        )
        return self.key, lease


class Store(EnqueueStore):
    """The statements of one shard."""

    def __init__(self, shard: Shard, settings: QueueSettings) -> None:
        super().__init__(shard, settings)
        self._large: set[TopicId] = set()  # of which a claim was refused for the bytes that an item takes
        self.ready_ages = ReadyAges(shard, settings.names_max, SystemClock().monotonic_s)
        self.flow = TopicFlow()

    # -- ids ----------------------------------------------------------------------------------------------

    async def known(self, ids: Sequence[str]) -> dict[str, Known]:
        """What the shard knows of ids; the end of an item counts for more than a row that is going."""
        rows = await self.pool.fetch(SQL.known, ids=list(ids))
        return {row["id"]: Known(row["namespace_id"], row["outcome"]) for row in rows}

    async def acked_lately(self, ids: Sequence[str]) -> dict[str, Known]:
        """Of ids without a row, those acked under a lease that no sweep has taken yet."""
        rows = await self.pool.fetch(SQL.acked_lately, ids=list(ids))
        return {row["id"]: Known(row["namespace_id"], "acked") for row in rows}

    # -- dequeue ------------------------------------------------------------------------------------------

    async def peek(self, look: KeyLook, limit: int) -> list[Key] | None:
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

    async def peek_many(self, looks: Sequence[tuple[KeyLook, int]]) -> list[list[Key] | None]:
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
        ids, places = _places(claims)
        workers = {claim.token: claim.worker for claim in claims if claim.worker is not None}
        asked: dict[str, object] = {
            "topic_ids": topic_ids,
            "priorities": [key.priority for key in firsts],
            "from_ats": [key.deliver_at for key in firsts],
            "from_ids": [key.id for key in firsts],
            "to_ats": [key.deliver_at for key in lasts],
            "to_ids": [key.id for key in lasts],
            "ids": ids,
            "tokens": _of_each([claim.token for claim in claims], places),
            "lease_ss": _of_each([claim.lease_s or 0.0 for claim in claims], places),
            "workers": json.dumps(workers) if workers else None,
            "known_at": firsts[0].deliver_at,
            "known_at_json": moment(firsts[0].deliver_at),
        }
        pool = self.shard.relaxed if relaxed else self.pool
        if self._large.isdisjoint(topic_ids):
            try:
                bytes_each = min(self._answer_bytes_max, *(claim.bytes_max for claim in claims)) // len(ids)
                rows = await pool.fetch(SQL.claim, **asked, bytes_each=bytes_each)
                return [Group(self.number, *row) for row in rows], _NONE
            except Declined as refusal:
                if len(self._large) >= LARGE_TOPICS_MAX:
                    self._large.clear()
                self._large.add(TopicId(int(refusal.detail)))
        rows = await pool.fetch(
            SQL.claim_within,
            **asked,
            bytes_maxima=_of_each([claim.bytes_max for claim in claims], places),
            firsts=[claim.first_id for claim in claims if claim.first_id is not None],
            bytes_max=self._answer_bytes_max,
        )
        groups = [Group(self.number, *row) for row in rows if row["lease_until"] is not None]
        cut = _NONE if len(groups) == len(rows) else {row["token"] for row in rows if row["lease_until"] is None}
        return groups, cut

    # -- settle -------------------------------------------------------------------------------------------

    async def ack(
        self,
        ids: Sequence[str],
        tokens: Sequence[str],
        namespace_ids: Sequence[NamespaceId],
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
            **offered(offers, self._answer_bytes_max),
        )
        acked = None if row["acked_ids"] is None else set(row["acked_ids"])
        held = None if row["held"] is None else set(row["held"])
        for topic_id, items in zip(row["topic_ids"] or (), row["counts"] or (), strict=True):
            self.flow.acked(topic_id, items)
        if row["ends"] is None:
            return AckFlush(acked, held, [], [])
        ready: list[Ready] = []
        handed: list[Handed] = []
        ended: list[str] = []
        awake: list[str] = []
        told = revived = delayed = 0
        for topic_id, priority, at, item_id, is_revived, is_ready, token, *lease in news_of(row["news"]):
            if topic_id is None:
                (ended if is_revived else awake).append(item_id)
                continue
            key = Key(priority, at, item_id)
            told += not is_revived
            revived += is_revived
            if token is not None:
                handed.append((key, HandedLease(topic_id, token, *lease)))
            elif is_ready:
                ready.append(Ready(topic_id, key))
            else:
                delayed += 1
        return AckFlush(acked, held, ready, handed, row["ends"] - told, revived, delayed, ended, awake)

    async def revive(
        self,
        ids: Sequence[str],
        namespace_ids: Sequence[NamespaceId],
        inputs: Sequence[str | None],
        may_manage: bool,
        offers: Sequence[Offer] = (),
    ) -> list[Revived]:
        """Open disabled items; those that were. One with a `token` is leased, as by a claim."""
        return await rows_of(
            Revived,
            self.pool,
            SQL.revive,
            ids=ids,
            namespace_ids=namespace_ids,
            inputs=inputs,
            may_manage=may_manage,
            **offered(offers, self._answer_bytes_max),
        )


def _places(claims: Sequence[Claim]) -> tuple[list[str], Sequence[int]]:
    """All ids that are claimed, sorted and once each; of several claims also the place of the one that each is of.
    There is no step of Python for each of many keys."""
    if len(claims) == 1:
        return sorted(set(map(id_of, claims[0].keys))), ()
    place_of = dict(chain.from_iterable(zip(map(id_of, claim.keys), repeat(i)) for i, claim in enumerate(claims)))
    ids = sorted(place_of)
    return ids, list(map(place_of.__getitem__, ids))


def _of_each(values: Sequence[T], places: Sequence[int]) -> Sequence[T]:
    """What claims say, for each id; once where all say the same."""
    once = _once(values)
    return once if len(once) == 1 else list(map(values.__getitem__, places))


class _Named(NamedTuple):
    """What an ack is told of: sorted tokens, and all their ids, those of each sorted, up to its `last`."""

    ids: list[str]
    tokens: Sequence[str]
    namespace_ids: Sequence[NamespaceId]
    lasts: list[int]


def _by_token(ids: Sequence[str], tokens: Sequence[str], namespace_ids: Sequence[NamespaceId]) -> _Named:
    if tokens.count(tokens[0]) == len(tokens):
        mine = sorted(set(ids))
        return _Named(mine, tokens[:1], namespace_ids[:1], [len(mine)])
    namespaces = dict(zip(tokens, namespace_ids, strict=True))
    order = sorted(namespaces)
    if len(order) * IDS_OF_A_TOKEN_MANY <= len(ids):
        # All ids are gone through for each token, but without a step of Python for each.
        parts = [sorted(set(compress(ids, map(token.__eq__, tokens)))) for token in order]
    else:
        groups: dict[str, set[str]] = {token: set() for token in order}
        for item_id, token in zip(ids, tokens, strict=True):
            groups[token].add(item_id)
        parts = [sorted(groups[token]) for token in order]
    lasts = list(accumulate(map(len, parts)))
    return _Named(list(chain.from_iterable(parts)), order, _once([namespaces[token] for token in order]), lasts)


def living(stores: Mapping[ShardNo, Store]) -> list[Store]:
    """Those of the shards that the map names."""
    return [store for store in list(stores.values()) if not store.pool.is_retired]


def is_living(stores: Mapping[ShardNo, Store], number: ShardNo) -> bool:
    """Whether the map names a shard of this number."""
    store = stores.get(number)
    return store is not None and not store.pool.is_retired


def store_of(stores: Mapping[ShardNo, Store], item_id: str | None) -> Store | None:
    """The shard that a canonical id names; None where the map names none: nothing is there."""
    return stores[shard_of(item_id)] if item_id and is_living(stores, shard_of(item_id)) else None


def refuse_if_standing(stores: Iterable[Store]) -> None:
    """For calls that change something on every shard: nothing is done while one could not do its part.

    Raises:
        Overloaded: who waits for a connection waits for too long on one of them.
    """
    if any(store.pool.is_standing for store in stores):
        raise overloaded(current_urgency())
