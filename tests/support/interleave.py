"""Two or three actors on real Postgres, their statements in every order (as Postgres' isolationtester does).

An actor is a coroutine that uses a pool of its own: a real `shared.pg.Pool` whose one connection stops before
every statement and every COMMIT until the scheduler lets it go on. After each step the scheduler waits until
the actor is at its next statement, at its end, or blocked by another's lock (`pg_blocking_pids`), and chooses
again. `explore` walks the tree of choices depth first, each time from a fresh start, until no choice is left.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import asyncpg

from services.queue.app import create_app
from services.queue.settings import QueueSettings
from shared.pg import PINNED
from tests.support.dag_world import DagWorld
from tests.support.databases import Database
from tests.support.queue_fake import FakeQueue

ORDERS_MAX = 600
_LOOK_S = 0.002
_PATIENCE_S = 10.0


class Gate:
    """Where one actor waits for its turn."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.arrived = asyncio.Event()
        self.passes = True

    async def step(self) -> None:
        """Wait for the next turn, unless the actor runs freely."""
        if self.passes:
            return
        self.open.clear()
        self.arrived.set()
        await self.open.wait()
        self.arrived.clear()


class _Connection:
    """A connection that stops at its gate before every statement and every commit."""

    def __init__(self, connection: Any, gate: Gate) -> None:
        self._connection = connection
        self._gate = gate
        self.generation = 0  # as a connection of a pool that has lost none

    async def fetch(self, *args: Any, **options: Any) -> Any:
        await self._gate.step()
        return await self._connection.fetch(*args, **options)

    async def fetchrow(self, *args: Any, **options: Any) -> Any:
        await self._gate.step()
        return await self._connection.fetchrow(*args, **options)

    async def execute(self, *args: Any, **options: Any) -> Any:
        await self._gate.step()
        return await self._connection.execute(*args, **options)

    def transaction(self) -> "_Transaction":
        return _Transaction(self._connection.transaction(), self._gate)

    def terminate(self) -> None:
        self._connection.terminate()

    def is_closed(self) -> bool:
        return bool(self._connection.is_closed())


class _Transaction:
    """A transaction that stops at the gate before its end."""

    def __init__(self, transaction: Any, gate: Gate) -> None:
        self._transaction = transaction
        self._gate = gate

    async def start(self) -> None:
        await self._transaction.start()

    async def commit(self) -> None:
        await self._gate.step()
        await self._transaction.commit()

    async def rollback(self) -> None:
        await self._transaction.rollback()


class _OneConnection:
    """Stands in for asyncpg's pool: always the same connection."""

    def __init__(self, connection: _Connection) -> None:
        self._one = connection

    async def acquire(self, **_options: Any) -> _Connection:
        return self._one

    async def release(self, _connection: _Connection) -> None:
        pass

    async def close(self) -> None:
        pass


@dataclass
class Actor:
    """One process on the shared shard, slowed down to single statements."""

    process: Any
    connection: Any
    gate: Gate = field(default_factory=Gate)

    @property
    def store(self) -> Any:
        """The store of the one shard."""
        [store] = self.process.broker.stores.values()
        return store


@asynccontextmanager
async def actor_on(database: Database) -> AsyncIterator[Actor]:
    """A queue process on the first shard of a database, with one gated connection."""
    shards = database.queue_shards.replace("#" + database.queue_shards.rpartition("#")[2], "#1")
    process = create_app(QueueSettings(shards=shards)).app.state.process
    connection = await asyncpg.connect(
        database.dsn,
        server_settings={**PINNED, "search_path": "queue_000", "deadlock_timeout": "20ms", "lock_timeout": "5s"},
    )
    actor = Actor(process, connection)
    gated = _OneConnection(_Connection(connection, actor.gate))
    for pool in (actor.store.shard.pool, actor.store.shard.relaxed):
        pool._pool = gated
    try:
        yield actor
    finally:
        await connection.close()


@asynccontextmanager
async def dag_actor_on(database: Database, queue: FakeQueue) -> AsyncIterator[Actor]:
    """A DAG service on the first shard, with one gated connection; what it decides is told by somebody else."""
    world = DagWorld(database, queue)
    connection = await asyncpg.connect(
        database.dsn,
        server_settings={**PINNED, "search_path": "dag_000", "deadlock_timeout": "20ms", "lock_timeout": "5s"},
    )
    actor = Actor(world, connection)
    gated = _OneConnection(_Connection(connection, actor.gate))
    for pool in (world.shard.pool, world.shard.relaxed):
        pool._pool = gated
    world.duties.context.dispatch = lambda _shard, _sends: None
    try:
        yield actor
    finally:
        await world.close()
        await connection.close()


Work = Callable[[], Awaitable[Any]]


async def explore(
    watcher: Any,
    actors: list[Actor],
    begin: Callable[[], Awaitable[list[Work]]],
    check: Callable[[list[Any]], Awaitable[None]],
) -> int:
    """Run the actors' work in every order of their statements; how many orders there were.

    `begin` sets the scene (gates are open) and gives one piece of work per actor; `check` gets their results,
    and looks at what is left. A failed check names the order.
    """
    prefix: list[int] = []
    orders = 0
    while True:
        works = await begin()
        choices, results = await _run(watcher, actors, works, prefix)
        orders += 1
        try:
            await check(results)
        except AssertionError as error:
            order = "".join("ABC"[taken] for taken, _ in choices)
            raise AssertionError(f"in the order {order} the results were {results}: {error}") from error
        while choices and choices[-1][1] == []:
            choices.pop()
        if not choices:
            return orders
        assert orders < ORDERS_MAX, "too many orders; make the scene smaller"
        prefix = [taken for taken, _ in choices[:-1]] + [choices[-1][1][0]]


async def _run(
    watcher: Any, actors: list[Actor], works: list[Work], prefix: list[int]
) -> tuple[list[tuple[int, list[int]]], list[Any]]:
    for actor in actors:
        actor.gate.passes = False
        actor.gate.arrived.clear()
    tasks = [asyncio.ensure_future(work()) for work in works]
    choices: list[tuple[int, list[int]]] = []
    try:
        while True:
            await _settle(watcher, actors, tasks)
            able = [n for n, actor in enumerate(actors) if actor.gate.arrived.is_set() and not tasks[n].done()]
            if not able:
                break
            depth = len(choices)
            taken = prefix[depth] if depth < len(prefix) else able[0]
            assert taken in able, "the scene is not the same from run to run"
            choices.append((taken, [n for n in able if n > taken]))
            actors[taken].gate.arrived.clear()
            actors[taken].gate.open.set()
        return choices, list(await asyncio.gather(*tasks))
    finally:
        for actor in actors:
            actor.gate.passes = True
            actor.gate.open.set()


async def _settle(watcher: Any, actors: list[Actor], tasks: list[Any]) -> None:
    """Wait until every actor is at its gate, at its end, or blocked by another's lock."""
    async with asyncio.timeout(_PATIENCE_S):
        while True:
            await asyncio.sleep(0)
            moving = [
                n for n, actor in enumerate(actors) if not actor.gate.arrived.is_set() and not tasks[n].done()
            ]
            if not moving:
                return
            waits = [asyncio.ensure_future(actors[n].gate.arrived.wait()) for n in moving]
            await asyncio.wait(
                [*waits, *(tasks[n] for n in moving)], timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED
            )
            for wait in waits:
                wait.cancel()
            moving = [n for n in moving if not actors[n].gate.arrived.is_set() and not tasks[n].done()]
            pids = [actors[n].connection.get_server_pid() for n in moving]
            blocked = await watcher.fetchval(
                "SELECT count(*) FROM unnest($1::int[]) AS pid WHERE cardinality(pg_blocking_pids(pid)) > 0", pids
            )
            if moving and blocked == len(moving) < len(actors):
                return
