"""Queue and DAG traffic of several tenants by the SDK, and what each call sent and was answered, with times."""

import asyncio
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from headgate import AsyncClient
from headgate import _ids as ids
from headgate._ids import shard_of
from headgate.errors import HeadgateError
from shared.shards.map_file import SLOTS
from tests.integration.failover.verb import Verb, begun, go_on, let_go, work

LEASE_S = 10.0
SHARDS = 2
PROGRESS_S = 120.0
DAG_S = 20.0
BACKLOG = 200
# Between two calls of a sender: what a fault finds under way counts, not how much the machine can do.
PAUSE_S = 0.25
# A call waits at most 2 s for a connection, 2 s more for a new one and 3 s for its statement.
ANSWER_S = 30.0
# Each node waits for these.
DIAMOND: dict[str, list[str]] = {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"]}

_make = ids.IdMaker().make


@dataclass
class Delivery:
    """An item came; `asked` is when its call was sent, `answered` when it came, by the client's clock."""

    item: str
    tenant: str
    payload: Any
    asked: float
    answered: float
    acked: float | None = None  # when an ack of this delivery was first sent
    confirmed: float | None = None  # when it was answered with `acked`
    is_unknown: bool = False  # an ack was answered by "it may have been done", or not at all


@dataclass
class Sent:
    """What a tenant sent: an item (with its id), or a DAG (with its key); `answered`: when it was promised."""

    tenant: str
    name: str
    answered: float | None = None
    dag: str | None = None
    ended: float | None = None  # when a DAG was first seen to have succeeded
    state: str = ""  # of a DAG, after everything was drained


@dataclass(frozen=True)
class Call:
    """What a call was to do and on which shard, when it was sent, how long its answer took, and whether it says
    that it was done."""

    what: str
    sent: float
    took_s: float
    is_done: bool


@dataclass
class Log:
    """All that was said, what became of each call, and the calls that were not answered in time."""

    items: dict[str, Sent] = field(default_factory=dict)
    dags: dict[str, Sent] = field(default_factory=dict)
    deliveries: list[Delivery] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    verbs: list[Verb] = field(default_factory=list)

    def done(self, what: str, since: float) -> list[Call]:
        """Calls sent since then that were answered as done."""
        return [call for call in self.calls if call.what == what and call.sent >= since and call.is_done]

    def refused(self, what: str, since: float) -> list[Call]:
        """Likewise, those that were not."""
        return [call for call in self.calls if call.what == what and call.sent >= since and not call.is_done]


class Load:
    """Each tenant enqueues and builds DAGs on each shard, does what `verbs` say, and works, until it is stopped.

    Each call is sent once, and to one shard: a shard that is sick holds up what is sent to it alone.
    """

    def __init__(self, clients: dict[str, AsyncClient], verbs: Sequence[type[Verb]]) -> None:
        self.log = Log()
        self._clients = clients
        self._verbs = verbs
        self._is_over = False
        self._confirmed = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._working: list[asyncio.Task[None]] = []

    async def until_more(self, more: int, shards: Collection[int] = range(SHARDS)) -> None:
        """Until so many more items were acked, and DAGs have ended, of each tenant on each of these shards."""
        before = self._counts()
        wanted = {place: number + more for place, number in before.items() if place[1] in shards}

        def missing() -> dict[tuple[str, int, str], int]:
            return {p: n for p, n in self._counts().items() if n < wanted.get(p, 0)}

        try:
            await self._until(lambda: not missing())
        except TimeoutError as error:
            raise AssertionError(
                f"no progress: {missing()} of {wanted} from {before}; late {self.log.late}"
            ) from error

    async def through(self, failover: Awaitable[None]) -> None:
        """A standby takes over; tell what is judged by it when it began, and when it was over."""
        began_s = time.monotonic()
        await failover
        for verb in self.log.verbs:
            verb.fell_s, verb.stood_s = began_s, time.monotonic()

    async def until_done(self, what: str, since: float) -> None:
        """Until a call that was sent since then was answered as done."""
        try:
            await self._until(lambda: bool(self.log.done(what, since)))
        except TimeoutError as error:
            raise AssertionError(f"no {what} was done; late {self.log.late}") from error

    async def until_refused(self, what: str, since: float) -> None:
        """Until a call that was sent since then was answered as not done."""
        try:
            await self._until(lambda: bool(self.log.refused(what, since)))
        except TimeoutError as error:
            raise AssertionError(f"no {what} was refused; late {self.log.late}") from error

    async def _until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(PROGRESS_S):
            while not is_so():
                for task in (*self._tasks, *self._working):
                    if task.done():
                        task.result()
                await asyncio.sleep(0.05)

    def _counts(self) -> dict[tuple[str, int, str], int]:
        found = {
            (tenant, shard, what): 0
            for tenant in self._clients
            for shard in range(SHARDS)
            for what in ("items", "DAGs")
        }
        for delivery in self.log.deliveries:
            if delivery.confirmed is not None:
                found[delivery.tenant, shard_of(delivery.item), "items"] += 1
        for dag in self.log.dags.values():
            if dag.ended is not None and dag.dag is not None:
                found[dag.tenant, shard_of(dag.dag), "DAGs"] += 1
        return found

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Load"]:
        """Send until the block ends; work goes on until `stop`."""
        places = [(tenant, client, shard) for tenant, client in self._clients.items() for shard in range(SHARDS)]
        self.log.verbs = [verb(*place, self._in_time) for place in places for verb in self._verbs]
        await asyncio.gather(*map(begun, self.log.verbs))
        self._tasks += [asyncio.create_task(go_on(verb, lambda: self._is_over)) for verb in self.log.verbs]
        self._working += [asyncio.create_task(work(verb)) for verb in self.log.verbs]
        for tenant, client in self._clients.items():
            for shard in range(SHARDS):
                self._tasks.append(asyncio.create_task(self._send(tenant, client, shard)))
                self._tasks.append(asyncio.create_task(self._build(tenant, client, shard)))
            self._working += [asyncio.create_task(self._work(tenant, client)) for _ in range(2)]
        try:
            yield self
        finally:
            self._is_over = True
            await asyncio.gather(*self._tasks)

    async def let_go(self) -> None:
        """Nothing new comes of what tenants have set."""
        await asyncio.gather(*map(let_go, self.log.verbs))

    async def left(self) -> list[str]:
        """What is not over of any tenant: topics that hold items, and DAGs that run; empty once all is."""
        found = []
        for tenant, client in self._clients.items():
            try:
                topics, dags = await client.topics(), await client.dags()
            except HeadgateError as error:
                return [f"{tenant} is not answered: {error}"]
            for dag in dags:
                if sent := self.log.dags.get(str(dag.key)):
                    sent.state, sent.dag = dag.state, dag.id
            found += [
                f"{tenant}: {topic}"
                for topic in topics
                if topic.ready + topic.delayed + topic.leased + topic.disabled
            ]
            found += [f"{tenant}: {dag}" for dag in dags if dag.state == "running"]
        return found

    async def stop(self) -> None:
        """No more work."""
        for task in self._working:
            task.cancel()
        await asyncio.gather(*self._working, return_exceptions=True)
        await asyncio.gather(*(verb.close() for verb in self.log.verbs))

    @asynccontextmanager
    async def _in_time(self, what: str) -> AsyncIterator[None]:
        """A call that is refused is what may happen; one that has no answer long after its deadline is not."""
        try:
            async with asyncio.timeout(ANSWER_S):
                yield
        except HeadgateError:
            await asyncio.sleep(0.02)
        except TimeoutError:
            self.log.late.append(what)

    def _answered(self, what: str, sent: float, is_done: bool) -> None:
        self.log.calls.append(Call(what, sent, time.monotonic() - sent, is_done))

    async def _send(self, tenant: str, client: AsyncClient, shard: int) -> None:
        while not self._is_over:
            made = [_make(shard)[0] for _ in range(2)]
            for item_id in made:
                self.log.items[item_id] = Sent(tenant, item_id)
            items: Any = [
                {"topic": "work", "id": each, "payload": {"tenant": tenant, "item": each}} for each in made
            ]
            sent, is_done = time.monotonic(), False
            async with self._in_time(f"enqueue on {shard}"):
                for result in await client.enqueue(items):
                    if result.status in ("enqueued", "duplicate"):
                        self.log.items[result.id].answered = time.monotonic()
                        is_done = True
            self._answered(f"enqueue on {shard}", sent, is_done)
            # No more than the workers take: a step of a DAG must not wait behind a backlog.
            await asyncio.sleep(PAUSE_S + 0.2 * (len(self.log.items) > self._confirmed + BACKLOG))

    async def _build(self, tenant: str, client: AsyncClient, shard: int) -> None:
        keys = (key for n in count() if home_of(tenant, key := f"{tenant}/{shard}/{n}") == shard)
        while not self._is_over:
            key = next(keys)
            sent = self.log.dags[key] = Sent(tenant, key)
            began = time.monotonic()
            nodes = []
            for node, ups in DIAMOND.items():
                payload = {"tenant": tenant, "node": [key, node]}
                nodes.append({"key": node, "topic": "nodes", "upstream": ups, "payload": payload})
            async with self._in_time(f"create a DAG on {shard}"):
                made = await client.create_dag({"key": key, "nodes": nodes})
                sent.answered, sent.dag = time.monotonic(), made.id
                self._answered(f"create on {shard}", began, True)
                with suppress(TimeoutError):
                    shown = await client.dag(made.id).wait(timeout_s=DAG_S)
                    if shown.state == "succeeded":
                        sent.ended = time.monotonic()
            if sent.answered is None:
                self._answered(f"create on {shard}", began, False)
            await asyncio.sleep(PAUSE_S)

    async def _work(self, tenant: str, client: AsyncClient) -> None:
        while True:
            came: dict[str, Delivery] = {}
            leased: list[Any] = []
            asked = time.monotonic()
            async with self._in_time("dequeue"):
                leased = await client.dequeue({"work": 10, "nodes": 10}, wait_s=1.0, lease_s=LEASE_S)
            now = time.monotonic()
            came = {item.id: Delivery(item.id, tenant, item.payload, asked, now) for item in leased}
            self.log.deliveries += came.values()
            # Who works on items of two shards settles each by itself.
            for shard in {shard_of(item.id) for item in leased}:
                mine = [item for item in leased if shard_of(item.id) == shard]
                async with self._in_time(f"ack on {shard}"):
                    await self._ack(client, mine, came)

    async def _ack(self, client: AsyncClient, leased: list[Any], came: dict[str, Delivery]) -> None:
        for item in leased:
            came[item.id].acked = time.monotonic()
            came[item.id].is_unknown = True
        try:
            results = await client.ack([item.ack() for item in leased])
        except HeadgateError as error:
            for item in leased:
                came[item.id].is_unknown = error.outcome == "unknown"
            raise
        for result in results:
            came[result.id].is_unknown = result.outcome == "unknown"
            if result.status in ("acked", "already_acked"):
                came[result.id].confirmed = time.monotonic()
                self._confirmed += 1


def home_of(tenant: str, key: str) -> int:
    """The shard on which a DAG of this key lives."""
    return zlib.crc32(f"{tenant}/{key}".encode()) % SLOTS * SHARDS // SLOTS
