"""Workers by name: seen in memory, written to the shards every few seconds, in batches, and listed from there.

A worker that reports itself says what it is, and is there as long as the lease that it names, from its last report
on. Of one that only names itself in dequeues the topics are known; its extensions keep it. No call waits for a
row to be written, but the last report of a worker that leaves. A crash loses a few seconds of looks.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, NamedTuple
from zlib import crc32

from services.queue.operations.cancel_news import CancelNews
from services.queue.operations.listing import Part, cut, merge
from services.queue.settings import QueueSettings
from services.queue.store import workers
from services.queue.store.shard_store import Store, living
from services.queue.store.workers import SeenWorker, WorkerRow
from shared.clock import Clock
from shared.errors import Unavailable
from shared.ids import ShardNo
from shared.shards.asking import Listed, ask_all

# Of one worker.
TOPICS_MAX: Final = 100
# Rows of one statement; and how long one that is seen no more is remembered here.
ROWS_MAX: Final = 500
FORGET_S: Final = 120.0
# One that is killed is not said to be there for longer than its lease; of shorter ones than this it is.
ALIVE_S_MIN: Final = 3.0


class Topic(NamedTuple):
    """A topic that a worker takes items of, and how many of them run."""

    topic: str
    slots: int
    running: int


class Report(NamedTuple):
    """What a worker says of itself."""

    name: str
    host: str | None
    version: str | None
    topics: Sequence[Topic]
    lease_s: float
    age_s: float
    wait_s: float
    leaving: bool


@dataclass(slots=True)
class _Known:
    """A worker, as this process has seen it."""

    namespace: str
    name: str
    begun_s: float
    seen_s: float
    alive_until_s: float
    topics: dict[str, Any] = field(default_factory=dict)
    report: Report | None = None
    written_s: float = float("-inf")
    is_changed: bool = True
    heard: int = 0  # of the news of cancels
    failures: int = 0

    def is_due(self, now_s: float, write_s: float) -> bool:
        """Whether it is to be written: it was seen since the last time, and that is long enough ago."""
        pause_s = min(write_s, max(self.alive_until_s - self.seen_s, ALIVE_S_MIN) / 3)
        return self.is_changed or (self.seen_s > self.written_s and now_s - self.written_s >= pause_s)

    def seen(self, now_s: float) -> SeenWorker:
        """As a row."""
        report = self.report
        return SeenWorker(
            self.namespace,
            self.name,
            report.host if report else None,
            report.version if report else None,
            json.dumps(list(self.topics.values())),
            sum(topic.running for topic in report.topics) if report else None,
            report is not None,
            max(0.0, now_s - self.begun_s),
            max(0.0, now_s - self.seen_s),
            self.alive_until_s - now_s,
        )


class KnownWorkers:
    """Sees workers, writes them down, and lists them."""

    def __init__(
        self, stores: Mapping[ShardNo, Store], news: CancelNews, settings: QueueSettings, clock: Clock
    ) -> None:
        self.news = news
        self._stores = stores
        self._settings = settings
        self._clock = clock
        # By namespace, those seen longest ago first.
        self._known: dict[str, dict[str, _Known]] = {}
        self._writing = asyncio.Lock()

    def note(self, namespace: str, name: str, alive_s: float, topics: Iterable[str] = ()) -> None:
        """A call names a worker. One that reports itself, perhaps to another process by now, is known by that: it
        is not seen by its calls, or what it said here last would be written as if it said so still."""
        before = self._known.get(namespace, {}).get(name)
        if before is not None and before.report is not None:
            return
        known = self._look(namespace, name)
        if known is None:
            return
        known.alive_until_s = max(known.alive_until_s, known.seen_s + max(alive_s, ALIVE_S_MIN))
        for topic in topics:
            if topic not in known.topics and len(known.topics) < TOPICS_MAX:
                known.topics[topic] = {"topic": topic}
                known.is_changed = True

    async def report(self, namespace: str, report: Report) -> list[str]:
        """A worker says what it is and does; which items of the namespace were cancelled under their leases since
        it did so last. Waits for the first, as long as it says."""
        known = self._look(namespace, report.name)
        if known is None:
            found, _ = await self.news.wait(namespace, self.news.last, 0.0 if report.leaving else report.wait_s)
            return found
        before, known.report = known.report, report
        known.is_changed |= before is None or _shape(before) != _shape(report)
        known.begun_s = known.seen_s - report.age_s
        known.topics = {topic.topic: topic._asdict() for topic in report.topics}
        known.alive_until_s = known.seen_s + (0.0 if report.leaving else max(report.lease_s, ALIVE_S_MIN))
        if report.leaving:
            known.is_changed = True
            await self.step()
            return []
        found, known.heard = await self.news.wait(namespace, known.heard, report.wait_s)
        return found

    def _look(self, namespace: str, name: str) -> _Known | None:
        """The worker, seen now; None where there is no room for one more."""
        now_s = self._clock.monotonic_s()
        ours = self._known.get(namespace, {})
        known = ours.pop(name, None)
        if known is None:
            is_full = sum(map(len, self._known.values())) >= self._settings.workers_seen_max
            if is_full and not self._make_room(len(ours)):
                return None
            known = _Known(namespace, name, now_s, now_s, now_s)
        self._known.setdefault(namespace, ours)[name] = known
        known.seen_s = now_s
        return known

    def _make_room(self, ours: int) -> bool:
        """The namespace that has most workers gives one up, if it has more than whoever needs the room: a
        namespace that names thousands keeps nobody else's from being seen."""
        most = max(self._known.values(), key=len, default={})
        if len(most) <= ours + 1:
            return False
        self._forget(next(iter(most.values())))
        return True

    def _forget(self, known: _Known) -> None:
        ours = self._known[known.namespace]
        del ours[known.name]
        if not ours:
            del self._known[known.namespace]

    async def step(self) -> int:
        """Write those that are due; 0: a next step is not needed at once."""
        self.news.forget()
        async with self._writing:
            now_s = self._clock.monotonic_s()
            at: dict[ShardNo, list[_Known]] = {}
            shards = sorted(store.number for store in living(self._stores))
            if not shards:  # none is named any more
                return 0
            for known in [known for ours in self._known.values() for known in ours.values()]:
                if known.is_due(now_s, self._settings.worker_write_s):
                    at.setdefault(_shard(known, shards), []).append(known)
                elif known.seen_s < now_s - FORGET_S:
                    self._forget(known)
            await asyncio.gather(*(self._write(shard, due, now_s) for shard, due in at.items()))
        return 0

    async def _write(self, shard: ShardNo, due: Sequence[_Known], now_s: float) -> None:
        rest = iter(due)
        while part := list(islice(rest, ROWS_MAX)):
            rows = [known.seen(now_s) for known in part]
            for known in part:
                known.is_changed, known.written_s = False, now_s  # before: what is seen meanwhile is written next
            try:
                self._stores[shard].pool.admit()
                await workers.write(self._stores[shard].pool, rows, self._settings.workers_max)
            except Unavailable:
                for known in part:
                    known.is_changed = True
                    known.failures += 1

    async def page(self, namespace: str, limit: int, after: str, *, gone: bool) -> Listed[dict[str, Any], str]:
        """A page of the workers that are there, or of those that were lately, by name.

        A page may hold fewer than `limit`, or none, and have a next.
        """

        # Of what they say of their topics; half of the answer is for the rest.
        bytes_max = max(self._settings.answer_bytes_max // (2 * max(len(self._stores), 1)), 1)

        async def at(store: Store) -> Part[WorkerRow]:
            store.pool.admit()
            rows = await workers.page(store.pool, namespace, after, limit + 1, bytes_max)
            is_cut = len(rows) > limit or sum(len(row.topics) for row in rows) >= bytes_max
            return Part({row.name: row for row in rows}, rows[-1].name if is_cut else None)

        parts, away = await ask_all(living(self._stores), at)
        merged, horizon = await merge(parts)
        names, rest = cut(list(merged), limit, horizon)
        newest = [max(merged[name], key=lambda row: row.seen_at) for name in names]
        return Listed([_view(row) for row in newest if row.is_alive is not gone], rest, away)


def _shape(report: Report) -> tuple[Any, ...]:
    """What of a worker seldom changes."""
    return report.host, report.version, [(topic.topic, topic.slots) for topic in report.topics]


def _view(row: WorkerRow) -> dict[str, Any]:
    topics = json.loads(row.topics)
    slots = [topic["slots"] for topic in topics if "slots" in topic]
    return {
        "name": row.name,
        "state": "alive" if row.is_alive else "gone",
        "host": row.host,
        "version": row.version,
        "topics": topics,
        "slots": sum(slots) if slots else None,
        "running": row.running,
        "since": row.since,
        "last_seen": row.seen_at,
    }


def _shard(known: _Known, shards: Sequence[ShardNo]) -> ShardNo:
    """Where a worker's row is; after failures on the next ones."""
    return shards[(crc32(f"{known.namespace}/{known.name}".encode()) + known.failures) % len(shards)]
