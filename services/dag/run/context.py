"""What every duty of one process shares: the shards, the queue, and who is to be told after a commit."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, Protocol, TypeVar

from services.dag import store
from services.dag.model import Dag, DagNo, Send
from services.dag.queue_client import Queue, pick_shard
from services.dag.run.decisions import Home, Settlement
from services.dag.run.watches import Watch, Watches
from services.dag.settings import DagSettings
from shared import ids
from shared.admission.delay import LoopLag
from shared.clock import Clock
from shared.crash import crash_point
from shared.dag_notify import Voice, ended_channel, of_run
from shared.errors import NotFound, ShuttingDown, Unavailable
from shared.ids import ShardNo
from shared.loop import Waker
from shared.metrics import DAG_SECONDS, RELEASED
from shared.postgres.connections import Transaction
from shared.settings import ShardAddress
from shared.shards.ownership import Ownership
from shared.shards.shard_map import Shard, ShardMap

T = TypeVar("T")

_SAMPLES_MAX = 512
# How far ahead timers are looked for, as a multiple of the time between two looks of the owner.
_LOOKS_AHEAD: Final = 2.5


class Samples:
    """The last values of something, for percentiles."""

    def __init__(self) -> None:
        self._values: deque[float] = deque(maxlen=_SAMPLES_MAX)

    def add(self, value: float) -> None:
        """One more value."""
        self._values.append(value)

    def percentile(self, share: float) -> float | None:
        """The value below which `share` of the samples lie; None without samples."""
        if not self._values:
            return None
        ordered = sorted(self._values)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class ShardGauges:
    """What a process remembers of one shard's speed."""

    def __init__(self) -> None:
        self.ack_lag_s = Samples()
        self.release_lag_s = Samples()
        self.db_latency_s = Samples()


class ShardWakers:
    """What ends the pauses of one shard's duties."""

    def __init__(self) -> None:
        self.walks, self.timers, self.slots = Waker(), Waker(), Waker()


class Sender(Protocol):
    """Sends outbox rows to the queue as soon as they are committed; what it misses is sent when it is overdue."""

    def dispatch(self, shard: Shard, sends: Sequence[Send]) -> None:
        """Send rows now."""

    def forget(self, shard: Shard, sends: list[Send], added: list[int]) -> None:
        """Delete rows that are done, and those of adds that begin at `added`."""


class ShortTimers:
    """Timers that this process has released, and that are due before the shard's owner is sure to look."""

    def __init__(self, wakers: Mapping[ShardNo, ShardWakers], settings: DagSettings, clock: Clock) -> None:
        self._wakers = wakers
        self._settings = settings
        self._clock = clock
        self._due_s: dict[ShardNo, list[float]] = {}

    @property
    def ahead_s(self) -> float:
        """What is due within this time is waited for."""
        return self._settings.sweep_s * _LOOKS_AHEAD

    def arm(self, shard: Shard, in_s: Sequence[float]) -> None:
        """This process has released timers that are due in so many seconds."""
        short = [each for each in in_s if each <= self.ahead_s]
        if short:
            now_s = self._clock.monotonic_s()
            waiting = self._due_s.setdefault(shard.number, [])
            for each in short:
                heapq.heappush(waiting, now_s + each)
            self._wakers[shard.number].timers.kick_in(min(short))

    def wake_again(self, shard: Shard, next_s: float | None) -> None:
        """What was due by now has been looked at; the first timer of the shard is due in `next_s`."""
        now_s = self._clock.monotonic_s()
        waiting = self._due_s.get(shard.number, [])
        waker = self._wakers[shard.number].timers
        while waiting and waiting[0] <= now_s:
            # Some are over, others a moment away, by the shard's clock.
            heapq.heappop(waiting)
            if next_s is not None:
                waker.kick_in(next_s)
        if waiting:
            waker.kick_in(waiting[0] - now_s)


class _Beside(NamedTuple):
    """Which queue shards were found beside a DAG shard, until when that holds, and where it lived then."""

    numbers: frozenset[ShardNo]
    until_s: float
    at: ShardAddress


class Context:
    """The process, as its duties see it. `senders` are told of outbox rows; they add themselves."""

    def __init__(
        self, shards: ShardMap, queue: Queue, settings: DagSettings, clock: Clock, ownership: Ownership
    ) -> None:
        self.ownership = ownership
        self.shards = shards
        self.queue = queue
        self.settings = settings
        self.clock = clock
        self.watches = Watches()
        # To other DAG processes, and heard by this one, too, while it listens.
        self.news = Voice(settings.redis_url, ended_channel(settings.redis_prefix))
        self.lag = LoopLag(settings.standing_wait_s_max)
        self._beside: dict[ShardNo, _Beside] = {}
        self._homes: dict[ShardNo, Home] = {}
        self._settled: list[tuple[int, int, float]] = [(-1, -1, 0.0), (-1, -1, 0.0)]
        self.gauges = {shard.number: ShardGauges() for shard in shards}
        self.wakers = {shard.number: ShardWakers() for shard in shards}
        self.short_timers = ShortTimers(self.wakers, settings, clock)
        self.senders: list[Sender] = []

    async def queue_shard(self, shard: Shard) -> ShardNo:
        """The queue's shard for new items of a DAG shard."""
        numbers = await self.queue.shards()
        now_s = self.clock.monotonic_s()
        known = self._beside.get(shard.number)
        if known is None or known.until_s <= now_s or known.at != shard.address:
            until_s = now_s + self.settings.shards_refresh_s
            if known is not None and known.at == shard.address:
                # Who comes meanwhile goes by what was found before.
                self._beside[shard.number] = known._replace(until_s=until_s)
            known = _Beside(await store.duties.queue_shards_beside(shard), until_s, shard.address)
            self._beside[shard.number] = known
        number = pick_shard(numbers, shard.number, known.numbers)
        self._homes[shard.number] = Home(number, frozenset(numbers))
        return number

    def home(self, shard: Shard) -> Home | None:
        """Where new items of a DAG shard go, by what was last seen; for transactions, which wait for nobody."""
        return self._homes.get(shard.number)

    async def look_for_homes(self) -> int:
        """See anew which of the queue's shards take items; a queue that is away changes nothing."""
        for shard in self.shards:
            with suppress(Unavailable):
                await self.queue_shard(shard)
        return 0

    def join(self, shard: Shard) -> None:
        """A shard is new in the map."""
        self.gauges[shard.number] = ShardGauges()
        self.wakers[shard.number] = ShardWakers()

    def dispatch(self, shard: Shard, sends: list[Send]) -> None:
        """Outbox rows are committed: they are sent now, not when they are overdue."""
        for sender in self.senders:
            sender.dispatch(shard, sends)

    def forget(self, shard: Shard, sends: list[Send], added: list[int]) -> None:
        """Outbox rows are done, and so are the adds that begin at these nodes."""
        for sender in self.senders:
            sender.forget(shard, sends, added)

    def shard_of(self, dag_id: str) -> tuple[Shard, str]:
        """The shard of a DAG's id, and the id in its canonical form.

        Raises:
            NotFound: no DAG can have this id.
        """
        canonical = ids.canonical(dag_id)
        shard = self.shards.get(ids.shard_of(canonical)) if canonical else None
        if shard is None or canonical is None:
            raise NotFound("there is no such DAG in this namespace")
        return shard, canonical

    def neighbour_s(self, shard: Shard, dag_no: DagNo) -> float:
        """When a transaction about any other DAG last ended here, on the clock's monotonic scale."""
        latest, before = self._settled
        return before[2] if latest[:2] == (shard.number, dag_no) else latest[2]

    async def settle(
        self, shard: Shard, work: Callable[[Transaction], Awaitable[tuple[Settlement | None, T]]]
    ) -> T:
        """Run a transaction that ends with a settlement; after its commit tell everybody what it decided."""
        begun_s = self.clock.monotonic_s()
        settlement, result = await shard.pool.transaction(work)
        self.gauges[shard.number].db_latency_s.add(self.clock.monotonic_s() - begun_s)
        if settlement is not None:
            self._tell(shard, settlement)
        return result

    def turned(self, shard: Shard, dag_id: str, watch: Watch | None = None) -> None:
        """A statement has written a run's events: who follows it is told, but for who has sent them."""
        if self.news.hearers > 1:
            self.news.tell([of_run(dag_id)])
        self.watches.told(shard.number, dag_id, but=watch)

    def _tell(self, shard: Shard, settlement: Settlement) -> None:
        if settlement.sends:
            crash_point("after_commit_before_relay")
            self.dispatch(shard, settlement.sends)
        if settlement.walking:
            self.wakers[shard.number].walks.kick()
        if settlement.timers_s:
            self.short_timers.arm(shard, settlement.timers_s)
        if settlement.released:
            RELEASED.labels(shard.number).inc(settlement.released)
        for dag in settlement.finished:
            if dag.finished_at is not None:
                DAG_SECONDS.observe((dag.finished_at - dag.created_at).total_seconds())
        if self.news.hearers > 1:
            self.news.tell(_news(settlement.written))
        now_s = self.clock.monotonic_s()
        for dag in settlement.written:
            self.watches.tell(shard, dag)
            if self._settled[0][:2] != (shard.number, dag.no):
                self._settled[1] = self._settled[0]
            self._settled[0] = (shard.number, dag.no, now_s)


def _news(written: Sequence[Dag]) -> Iterator[str]:
    """What others are told of DAGs that are written: which have ended, and which are runs that have news."""
    for dag in written:
        if dag.over or dag.ends_as is not None:
            yield dag.id
        if dag.workflow is not None:
            yield of_run(dag.id)


def own(dags: list[Dag], namespace: str) -> Dag:
    """The one DAG that was asked for.

    Raises:
        NotFound: it does not exist, or is another tenant's.
    """
    if not dags or dags[0].namespace != namespace:
        raise NotFound("there is no such DAG in this namespace")
    return dags[0]


def shutting_down() -> ShuttingDown:
    """What a call is told that would have gone on waiting: it is to be sent again, to another process."""
    return ShuttingDown("this process shuts down; send the call again", retry_after_s=1.0)
