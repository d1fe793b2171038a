"""Two processes of each service inside this loop, on shards of two databases and a clock that is moved by hand.

DAG shard 0 lives beside the queue's shards, so acks go on with its DAGs by themselves; DAG shard 1 lives alone.
The queue's shard map is a file. Duties are steps that the world takes, with the processes' memory as they have it.
"""

import asyncio
import contextlib
import io
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import Context
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from random import Random
from typing import Any, Literal

import httpx

from headgate import AsyncClient, RetryPolicy
from migrations.shard import upgrade
from services.dag.queue_client import HeadgateQueue
from shards import moving
from shards.__main__ import run as shards_command
from shards.growing import write_first
from shards.held import hold
from shared.clock import SystemClock
from shared.errors import Unavailable
from shared.loop import Loop
from shared.settings import ShardAddress, parse_shards
from shared.shards.map_file import load, read
from shared.shards.shard_map import Shard
from tests.support.apps import DAG_TOKEN
from tests.support.dag_world import DagWorld
from tests.support.databases import Database, Databases
from tests.support.described import described
from tests.support.queue_host import QueueHost, ShardClock
from tests.worlds.machines import machine, machines
from tests.worlds.tokens import Tokens
from tests.worlds.wire import Cut
from tests.worlds.world_names import NAMESPACES

QUEUE_SHARDS = 2
SHARDS_MAX = 4  # of the queue, with those that join later
_STEPS_MAX = 30  # of one duty, until it has nothing more to do
_RETRY = RetryPolicy(attempts_max=2, base_s=0.01, delay_s_max=0.02, retry_after_s_max=0.02, elements=False)

Step = Callable[[], Coroutine[Any, Any, Any]]


class WorldClock:
    """The time of all shards, of the tenants, and of the processes' machines; stands still between `advance`s."""

    def __init__(self, clocks: list[ShardClock]) -> None:
        self.clocks = clocks

    @classmethod
    async def install(cls, *databases: Database, empty: Database) -> "WorldClock":
        clocks = [await ShardClock.install(database) for database in databases]
        clocks.append(await ShardClock.beside(empty))
        made = cls(clocks)
        begin_s = float(round(clocks[0].now_s()))
        for clock in clocks:
            await clock.freeze(begin_s)
        return made

    def now_s(self) -> float:
        return self.clocks[0].now_s()

    def latest_s(self) -> float:
        return self.now_s()

    async def advance(self, seconds: float) -> None:
        for clock in self.clocks:
            await clock.advance(seconds)

    async def close(self) -> None:
        for clock in self.clocks:
            await clock.close()


class Process:
    """One process: what leads to it, the machine that it runs on, its duties by name, and how it is killed."""

    def __init__(self, service: str, name: str, app: Any, on: Context) -> None:
        self.service, self.name, self.machine = service, name, on
        self.wire = Cut(app, on)
        self.client = self.client_by(self.wire)

    def client_by(self, transport: httpx.AsyncBaseTransport) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            transport=transport,
            base_url="http://localhost",
            timeout=30.0,
            event_hooks={"response": [described(self.service)]},
        )

    @property
    def shards(self) -> list[Shard]:
        raise NotImplementedError

    async def begin(self) -> None:
        """What is done before anything is served."""

    def loops(self) -> list[Loop]:
        """What it does in the background."""
        raise NotImplementedError

    def duties(self) -> dict[str, Step]:
        """A step of each of its loops."""
        # How late the event loop is cannot be told by who looks now and then.
        return {loop.name: loop._step for loop in self.loops() if loop.name != "lag"}

    def woken(self) -> list[str]:
        """The duties that something has woken since this was last asked."""
        return [loop.name for loop in self.loops() if loop.waker.take()]

    async def close(self) -> None:
        raise NotImplementedError

    async def kill(self) -> None:
        """End it at once: what its servers have not committed is lost, and nobody is answered."""
        ending = self.wire.cut()
        for shard in self.shards:
            shard.retire()
            for pool in (shard.pool, shard.relaxed):
                if pool._pool is not None:
                    pool._pool.terminate()
        if ending:
            await asyncio.wait(ending, timeout=30)
        with suppress(Exception):
            await self.close()


class QueueProcess(Process):
    """A queue process whose loops take no step by themselves."""

    def __init__(self, name: str, database: Database, clock: WorldClock, on: Context, **settings: Any) -> None:
        self.host = QueueHost(database, clock.clocks[0], **settings)
        super().__init__("queue", name, self.host.app, on)

    @property
    def shards(self) -> list[Shard]:
        return [store.shard for store in self.host.stores.values()]

    async def begin(self) -> None:
        """What is done before anything is served."""
        parts = self.host.process
        for step in (parts.agreement.step, parts.quotas.step, parts.topics.read_shares, parts.gates.read):
            await step()

    def loops(self) -> list[Loop]:
        return list(self.host.app.app.state.loops)

    async def close(self) -> None:
        await self.client.aclose()
        await self.host.close()


class _MachineClock:
    """A process' own clock: real time goes on for timeouts, and the world's leaps come on top."""

    def __init__(self, clock: WorldClock) -> None:
        self._clock = clock

    def monotonic_s(self) -> float:
        return time.monotonic() + self._clock.now_s()

    wall_s = staticmethod(time.time)


class DagProcess(Process):
    """A DAG process without its loops, whose calls to the queue go to any process of it."""

    def __init__(
        self,
        name: str,
        database: Database,
        queues: httpx.AsyncBaseTransport,
        clock: WorldClock,
        on: Context,
        **settings: Any,
    ) -> None:
        queue = HeadgateQueue("http://localhost", DAG_TOKEN, clock=SystemClock(), shards_refresh_s=0.0)
        self._out = _Out(queues)
        queue._client = AsyncClient(
            queue_url="http://localhost", token=DAG_TOKEN, timeout_s=10.0, retry=_RETRY, transport=self._out
        )
        self.dags = DagWorld(database, queue, **settings)  # type: ignore[arg-type]
        self.dags.duties.context.clock = _MachineClock(clock)
        # As if there were a Redis, whose messages are all lost.
        self.dags.duties.context.news.hearers = 1
        super().__init__("dag", name, self.dags.app.state.hot, on)

    @property
    def shards(self) -> list[Shard]:
        return list(self.dags.duties.context.shards)

    def loops(self) -> list[Loop]:
        return [*self.dags.loops._walks.values(), *self.dags.loops._others]

    def duties(self) -> dict[str, Step]:
        results = self.dags.loops.results
        return super().duties() | {f"results {number}": each.drain for number, each in results.items()}

    async def kill(self) -> None:
        self._out.is_cut = True
        await super().kill()

    async def close(self) -> None:
        await self.client.aclose()
        await self.dags.close()


class _Out(httpx.AsyncBaseTransport):
    """The way out of a process, which ends with it."""

    def __init__(self, inner: httpx.AsyncBaseTransport) -> None:
        self._inner = inner
        self.is_cut = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self.is_cut:
            raise httpx.ConnectError("this process is dead", request=request)
        response = await self._inner.handle_async_request(request)
        if self.is_cut:
            raise httpx.ReadError("this process died", request=request)
        return response


class _Any(httpx.AsyncBaseTransport):
    """Any process of the queue that lives."""

    def __init__(self, processes: list[QueueProcess], rng: Random) -> None:
        self._processes, self._rng = processes, rng

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await self._rng.choice(self._processes).wire.handle_async_request(request)


@dataclass
class Limits:
    """The processes' settings in this world, by how much the clocks of their machines are ahead, whose namespaces
    tokens are for (everybody's, or each tenant's own; none: nobody needs one), and whether somebody hears of DAGs
    that end with an ack, as without a Redis nobody does."""

    queue: dict[str, Any]
    dag: dict[str, Any]
    ahead_s: dict[str, float] = field(default_factory=dict)
    tokens: Literal["none", "all", "own"] = "none"
    hears_ends: bool = False


class Stage:
    """All processes; one that was killed is followed by a new one of its name."""

    is_inside = True
    leaps_s_max = inf  # all in all

    def __init__(
        self,
        database: Database,
        other: Database,
        map_file: Path,
        clock: WorldClock,
        limits: Limits,
        rng: Random,
    ) -> None:
        self.database, self.other = database, other
        self.map_file, self.clock, self._limits = map_file, clock, limits
        self.tokens = None
        if limits.tokens != "none":
            path = map_file.with_suffix(".tokens")
            self.tokens = Tokens(path, NAMESPACES, is_confined=limits.tokens == "own")
        self._machines = {
            name: machine(clock.now_s, limits.ahead_s.get(name, 0.0)) for name in ("q1", "q2", "d1", "d2")
        }
        self.queues: list[QueueProcess] = []
        self._any_queue = _Any(self.queues, rng)
        self.queues += [self._queue(name) for name in ("q1", "q2")]
        self.dags = [self._dag(name) for name in ("d1", "d2")]
        self.unused_shards = list(range(QUEUE_SHARDS, SHARDS_MAX))
        self.begun = self.ended = 0  # replacements of processes
        # One at a time looks through the clock's connections, or changes the map.
        self.watching, self._changing = asyncio.Lock(), asyncio.Lock()

    def _queue(self, name: str) -> QueueProcess:
        settings = {"shards": "", "shards_file": self.map_file, "shard_join_s": 0.0, **self._limits.queue}
        made = QueueProcess(name, self.database, self.clock, self._machines[name], **self._edge(), **settings)
        # As if there were a Redis, whose messages are all lost.
        made.host.process.dag_news.endings.hearers = int(self._limits.hears_ends)
        return made

    def _dag(self, name: str) -> DagProcess:
        settings = {"HEADGATE_DAG_TOKEN": DAG_TOKEN, "shards_refresh_s": 0.01, **self._limits.dag}
        on = self._machines[name]
        return DagProcess(name, self.database, self._any_queue, self.clock, on, **self._edge(), **settings)

    def _edge(self) -> dict[str, Any]:
        return {} if self.tokens is None else {"HEADGATE_TOKENS_FILE": self.tokens.path}

    @property
    def processes(self) -> list[Process]:
        return [*self.queues, *self.dags]

    def shard_numbers(self) -> list[int]:
        """Of the queue's shards, as its processes know them."""
        return [shard.number for shard in self.queues[0].shards if not shard.pool.is_retired]

    def addresses(self) -> dict[str, list[ShardAddress]]:
        """Where all shards are, by service."""
        dag_shards = parse_shards(self.database.dag_shards, "dag")
        return {"queue": list(read(self.map_file, "queue").shards), "dag": dag_shards}

    async def rest(self, number: int) -> list[str]:
        """Every duty, by one process of each service; what could not be done."""
        said = []
        for processes in (self.queues, self.dags):
            process = processes[number % len(processes)]
            for name in sorted(process.duties()):
                for _ in range(_STEPS_MAX):
                    done, what = await self.step(process, name)
                    said += [f"{process.name} {name}: {what}"] if what else []
                    if not done:
                        break
        return said

    async def replace(self, process: Process) -> None:
        """Kill a process; another is in its place at once."""
        self.begun += 1
        try:
            await self._replace(process)
        finally:
            self.ended += 1

    async def _replace(self, process: Process) -> None:
        made = self._queue(process.name) if isinstance(process, QueueProcess) else self._dag(process.name)
        with suppress(Unavailable):
            await made.begin()
        there: list[Any] = self.queues if isinstance(process, QueueProcess) else self.dags
        if process in there:
            there[there.index(process)] = made
            await process.kill()
        else:
            await made.close()  # somebody else has killed it

    async def shards(self, *argv: str) -> tuple[int, str]:
        """`python -m shards` on the queue's map; its exit code and what it said."""
        said = io.StringIO()
        async with self._changing:
            with self._moved_under_the_clock(), contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                code = await shards_command(["--map", str(self.map_file), *argv])
        return code, said.getvalue()

    @contextmanager
    def _moved_under_the_clock(self) -> Iterator[None]:
        """A schema that a move makes has the world's clock before anything is in it."""

        async def make(address: ShardAddress) -> None:
            await upgrade(address)
            async with self.watching:
                await self._clock_at(address.dsn).rule(address.schema)

        moving.upgrade = make
        try:
            yield
        finally:
            moving.upgrade = upgrade

    def _clock_at(self, dsn: str) -> ShardClock:
        return self.clock.clocks[-1 if dsn == self.other.dsn else 0]

    async def step(self, process: Process, name: str) -> tuple[int, str]:
        """A step of a duty of one process: how much it did, and what it could not do."""
        try:
            step = asyncio.get_running_loop().create_task(process.duties()[name](), context=process.machine.copy())
            return await step or 0, ""
        except Unavailable as error:
            return 0, error.detail

    async def close(self) -> None:
        for process in self.processes:
            await process.close()


@asynccontextmanager
async def stage_on(databases: Databases, directory: Path, limits: Limits, rng: Random) -> AsyncIterator[Stage]:
    """A stage on fresh shards."""
    beside = await databases.create(queue_shards=SHARDS_MAX, dag_shards=1)
    alone = await databases.create(queue_shards=1, dag_shards=2)
    # Shards that join later are there, so that they have the world's clock.
    queue_shards = f"{beside.dsn}#{QUEUE_SHARDS}"
    database = Database("world", beside.dsn, queue_shards, f"0={beside.dsn} 1={alone.dsn}")
    other = await databases.create_empty(queue_shards=SHARDS_MAX)
    clock = await WorldClock.install(beside, alone, empty=other)
    map_file = directory / f"{beside.name}.json"
    try:
        with hold(map_file, "queue", fresh=load(queue_shards, None, "queue")) as held:
            await write_first(held)
        with machines(clock.now_s):
            stage = Stage(database, other, map_file, clock, limits, rng)
            for process in stage.processes:
                await process.begin()
            try:
                yield stage
            finally:
                await stage.close()
    finally:
        await clock.close()
        await databases.drop(beside)
        await databases.drop(alone)
        await databases.drop(other)
