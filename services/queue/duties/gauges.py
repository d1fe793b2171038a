"""What is sampled for `/metrics`: what the shards that this process owns hold, and how they are."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from services.queue.duties.topic_rates import TopicRates
from services.queue.settings import QueueSettings
from services.queue.store import topics
from services.queue.store.shard_store import Store, living
from services.queue.store.topics import Counts, ServerHealth
from shared.clock import Clock, SystemClock
from shared.console.history import SeriesName
from shared.errors import ShardUnavailable
from shared.ids import ShardNo
from shared.metrics import (
    ITEMS,
    OLDEST_READY_AGE_SECONDS,
    SHARD_BYTES,
    SHARD_DEAD_TUPLES,
    SHARD_OLDEST_TRANSACTION_SECONDS,
    SHARD_UP,
    TOPIC_WORK,
)

STATES = ("ready", "delayed", "leased", "disabled", "dead")
# Where topics beyond the cap are counted together; no tenant's name can begin so.
REST = ("_rest", "_rest")

# To ask for the size of every table takes longer than all the rest, and it changes slowly.
BYTES_LOOK_S = 60.0

Labels = tuple[str, ...]


class _Found(NamedTuple):
    counts: list[tuple[tuple[str, str], Counts]]
    ages: dict[tuple[str, str], float]
    server: ServerHealth
    bytes: int


class Gauges:
    """Samples every shard that this process owns; forgets what it said of one that it owns no more."""

    def __init__(
        self,
        stores: dict[ShardNo, Store],
        owns: Callable[[ShardNo], bool],
        settings: QueueSettings,
        clock: Clock | None = None,
    ) -> None:
        self._stores = stores
        self._owns = owns
        self._topics_max = settings.metrics_topics_max
        self._clock = clock or SystemClock()
        self._rates = TopicRates(settings.metrics_topics_max, self._clock)
        self._items: dict[ShardNo, set[Labels]] = {}
        self._ages: dict[ShardNo, set[Labels]] = {}
        self._work: dict[ShardNo, set[Labels]] = {}
        self._found: dict[ShardNo, _Found] = {}
        # When tables were last asked for their size, and what it was.
        self._sizes: dict[ShardNo, tuple[float, int]] = {}
        # Topics that held something and hold nothing now, those last so in the end: a line of them goes on at 0.
        self._emptied: dict[ShardNo, dict[tuple[str, str], None]] = {}

    def latest(self) -> Iterator[tuple[SeriesName, float]]:
        """What the last samples have found, by shard and by topic."""
        for number, found in self._found.items():
            for state in STATES:
                yield SeriesName(state, number), float(sum(getattr(row, state) for _, row in found.counts))
            yield SeriesName("oldest_ready_age_s", number), max(found.ages.values(), default=0.0)
            for name, value in found.server._asdict().items():
                yield SeriesName(name, number), float(value)
            yield SeriesName("bytes", number), float(found.bytes)
            for pair, row in found.counts:
                if pair != REST:
                    for state in STATES:
                        yield SeriesName(state, number, *pair), float(getattr(row, state))
            for pair, age_s in found.ages.items():
                yield SeriesName("oldest_ready_age_s", number, *pair), age_s
            for pair in self._emptied.get(number, ()):
                for name in (*STATES, "oldest_ready_age_s"):
                    yield SeriesName(name, number, *pair), 0.0
        yield from self._rates.latest()

    async def step(self) -> int:
        """Take one sample; a shard that does not answer keeps its last."""
        stores = living(self._stores)
        for number in self._found.keys() - {store.number for store in stores}:
            self._forget(number)
        for number in self._stores.keys() - {store.number for store in stores}:
            self._rates.forget(number)
        for store in stores:
            number = store.number
            SHARD_UP.labels(number).set(store.shard.breaker.takes_items)
            await self._look_at_flow(store)
            if not self._owns(number):
                self._say(number, [], {})
                self._forget(number)
                continue
            try:
                await self._sample(store)
            except ShardUnavailable:
                SHARD_UP.labels(number).set(0)
                self._forget(number)
        return 0

    async def _look_at_flow(self, store: Store) -> None:
        """What this process has moved there, whoever owns it."""
        moved = dict(islice(store.flow.drain().items(), self._topics_max))
        with contextlib.suppress(ShardUnavailable):
            self._rates.take(store.number, moved, await store.names.name_of(moved))

    async def _sample(self, store: Store) -> None:
        rows = await topics.most_counts(store.pool, self._topics_max)
        shown = {row.topic_id: row for row in rows if row.topic_id is not None}
        ages = await store.ready_ages.read([topic_id for topic_id, row in shown.items() if row.ready])
        names = await store.names.name_of(shown)
        server = await topics.server_health(store.pool)
        counts = [(names[topic_id], row) for topic_id, row in shown.items() if topic_id in names]
        counts += [(REST, row) for row in rows if row.topic_id is None]
        named_ages = {names[topic_id]: age_s for topic_id, age_s in ages.items() if topic_id in names}
        self._say(store.number, counts, named_ages)
        self._note_emptied(store.number, {pair for pair, _ in counts})
        size = await self._size(store)
        self._found[store.number] = _Found(counts, named_ages, server, size)
        SHARD_BYTES.labels(store.number).set(size)
        SHARD_DEAD_TUPLES.labels(store.number).set(server.dead_tuples)
        SHARD_OLDEST_TRANSACTION_SECONDS.labels(store.number).set(server.oldest_transaction_age_s)

    async def _size(self, store: Store) -> int:
        looked_s, size = self._sizes.get(store.number, (-math.inf, 0))
        now_s = self._clock.monotonic_s()
        if now_s - looked_s >= BYTES_LOOK_S:
            size = await topics.shard_bytes(store.pool)
            self._sizes[store.number] = now_s, size
        return size

    def _forget(self, number: ShardNo) -> None:
        self._found.pop(number, None)
        self._sizes.pop(number, None)
        self._emptied.pop(number, None)

    def _note_emptied(self, number: ShardNo, there: set[tuple[str, str]]) -> None:
        """Which topics hold nothing any more; nobody knows where the sample does not name every topic."""
        before = self._found.get(number)
        if REST in there or before is None:
            self._emptied.pop(number, None)
            return
        gone = dict.fromkeys(pair for pair, _ in before.counts if pair not in there)
        kept = {pair: None for pair in self._emptied.get(number, {}) if pair not in there} | gone
        self._emptied[number] = dict.fromkeys(list(kept)[-self._topics_max :])

    def _say(
        self, number: ShardNo, counts: Sequence[tuple[tuple[str, str], Counts]], ages: dict[tuple[str, str], float]
    ) -> None:
        items = {(*pair, str(number), state): getattr(row, state) for pair, row in counts for state in STATES}
        oldest = {(*pair, str(number)): age_s for pair, age_s in ages.items()}
        work = {(*pair, str(number)): row.work for pair, row in counts if pair != REST}
        for gauge, values, said in (
            (ITEMS, items, self._items),
            (OLDEST_READY_AGE_SECONDS, oldest, self._ages),
            (TOPIC_WORK, work, self._work),
        ):
            for labels in said.get(number, set()) - values.keys():
                gauge.remove(*labels)
            for labels, value in values.items():
                gauge.labels(*labels).set(value)
            said[number] = set(values)
