"""Two or three actors on real Postgres, their statements in every order (as Postgres' isolationtester does).

An actor is a coroutine that uses a pool of its own: a real `shared.postgres.connections.Pool` whose one connection
stops before every statement and every COMMIT until the scheduler lets it go on. After each step the scheduler
waits until the actor is at its next statement, at its end, or blocked by another's lock (`pg_blocking_pids`), and
chooses again. `explore` walks the tree of choices depth first, each time from a fresh start, until no choice is
left.
"""

import asyncio
import functools
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import asyncpg

from services.queue.app import create_app
from services.queue.settings import QueueSettings
from shared.postgres.session import PINNED
from tests.support.dag_world import DagWorld
from tests.support.databases import Database
from tests.support.queue_fake import FakeQueue

ORDERS_MAX = 600
_LOOK_S = 0.002
_PATIENCE_S = 60.0
# By one of the actors. Who waits for a vacuum that cuts off a table's end goes on by itself: were it taken for
# blocked, one run would have other choices than the next.
_BLOCKED = "SELECT pid FROM unnest($1::int[]) AS pid WHERE pg_blocking_pids(pid) && $2::int[]"
# Longer than an order takes on a busy machine: an actor that gave up waiting would make its run another one.
_LOCK_TIMEOUT = f"{2 * _PATIENCE_S:.0f}s"


class Step(NamedTuple):
    """What an actor does next, by tables: what it looks at, locks (or lets go), and lets others see.

    A transaction's end has looked at all it will.
    """

    reads: frozenset[str]
    locks: frozenset[str]
    shows: frozenset[str]
    ends: bool = False

    def moves_past(self, other: "Step") -> bool:
        """True when it is all the same which of two actors' steps comes first.

        Under READ COMMITTED a statement sees what is committed as it begins, and waits for locks; nothing else
        of another transaction matters to it.
        """
        if self.ends and other.ends:
            return True
        return not (self.locks & other.locks or self.shows & other.reads or other.shows & self.reads)


_NOTHING: frozenset[str] = frozenset()


# What functions lock and write that a statement calls.
_BEHIND = {
    "complete_here": frozenset({"dag", "node", "edge", "change", "tally"}),
    "take_signal": frozenset(
        {"dag", "node", "change", "outbox", "workflow", "run", "event", "signal_id", "signal_count"}
    ),
    "take_turns": frozenset({"dag", "node", "node_spec", "change", "outbox", "run", "event"}),
}


@functools.cache
def tables_of(sql: str) -> tuple[frozenset[str], bool, bool]:
    """The tables that a statement names; whether it locks any, and whether it writes to any."""
    text = re.sub(r"--.*", "", sql)
    for name, tables in _BEHIND.items():
        if f"{name}(" in text:
            return tables, True, True
    named = set(re.findall(r"\b(?:FROM|JOIN|INTO|UPDATE)\s+(\w+)\b(?!\()", text))
    queries = set(re.findall(r"\b(\w+) AS (?:MATERIALIZED )?\(", text))
    unlocked, locks = re.subn(r"\bFOR (?:NO KEY )?(?:UPDATE|SHARE)\b", "", text)
    writes = re.search(r"\b(?:INSERT|UPDATE|DELETE|TRUNCATE)\b", unlocked) is not None
    return frozenset(named - queries - {"LATERAL", "SET"}), writes or locks > 0, writes


class Gate:
    """Where one actor waits for its turn."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.arrived = asyncio.Event()
        self.passes = True
        self.next = Step(_NOTHING, _NOTHING, _NOTHING)
        self.ends = 0  # of transactions, and of statements without one
        self._locked = self._written = _NOTHING

    def statement(self, sql: str, in_transaction: bool) -> Step:
        """The step that a statement is; alone, it is its own commit."""
        tables, locks, writes = tables_of(sql)
        if in_transaction:
            self._locked |= tables if locks else _NOTHING
            self._written |= tables if writes else _NOTHING
        return Step(tables, tables if locks else _NOTHING, tables if writes and not in_transaction else _NOTHING)

    def commit(self) -> Step:
        """The step that the end of the transaction is."""
        return Step(_NOTHING, self._locked, self._written, ends=True)

    def ended(self) -> None:
        """The transaction, or a statement without one, is over."""
        self.ends += 1
        self._locked = self._written = _NOTHING

    async def step(self, coming: Step) -> None:
        """Wait for the next turn, unless the actor runs freely."""
        if self.passes:
            return
        self.next = coming
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
        self.itself = self

    async def fetch(self, sql: str, *args: Any, **options: Any) -> Any:
        return await self._run(self._connection.fetch, sql, args, options)

    async def fetchrow(self, sql: str, *args: Any, **options: Any) -> Any:
        return await self._run(self._connection.fetchrow, sql, args, options)

    async def execute(self, sql: str, *args: Any, **options: Any) -> Any:
        return await self._run(self._connection.execute, sql, args, options)

    async def _run(self, verb: Any, sql: str, args: Any, options: Any) -> Any:
        inside = self._connection.is_in_transaction()
        await self._gate.step(self._gate.statement(sql, inside))
        try:
            return await verb(sql, *args, **options)
        finally:
            if not inside:
                self._gate.ended()

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
        await self._gate.step(self._gate.commit())
        try:
            await self._transaction.commit()
        finally:
            self._gate.ended()

    async def rollback(self) -> None:
        try:
            await self._transaction.rollback()
        finally:
            self._gate.ended()


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
        [store] = self.process.stores.values()
        return store


@asynccontextmanager
async def actor_on(database: Database) -> AsyncIterator[Actor]:
    """A queue process on the first shard of a database, with one gated connection."""
    shards = database.queue_shards.replace("#" + database.queue_shards.rpartition("#")[2], "#1")
    process = create_app(QueueSettings(shards=shards)).app.state.process
    connection = await asyncpg.connect(
        database.dsn,
        server_settings={
            **PINNED,
            "search_path": "queue_000",
            "deadlock_timeout": "20ms",
            "lock_timeout": _LOCK_TIMEOUT,
        },
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
        server_settings={
            **PINNED,
            "search_path": "dag_000",
            "deadlock_timeout": "20ms",
            "lock_timeout": _LOCK_TIMEOUT,
        },
    )
    actor = Actor(world, connection)
    gated = _OneConnection(_Connection(connection, actor.gate))
    for pool in (world.shard.pool, world.shard.relaxed):
        pool._pool = gated
    world.duties.context.dispatch = lambda _shard, _sends: None
    # What is done is deleted a moment later, by the clock: on this connection that would meet a verb's statements.
    # The rows stay, as after a crash, for whoever sweeps.
    world.duties.context.forget = lambda _shard, _sends, _added: None

    async def first_shard(_shard: Any) -> int:
        return 0  # it is looked up once in a while, which would make one run differ from the next

    world.duties.context.queue_shard = first_shard  # type: ignore[method-assign]

    async def no_quotas(_namespace: str) -> None:
        return None  # the same

    world.duties.builder.quotas.look = no_quotas  # type: ignore[method-assign]
    try:
        yield actor
    finally:
        await world.close()
        await connection.close()


Work = Callable[[], Awaitable[Any]]


class _Choice(NamedTuple):
    """Where several actors could go on: who did, who did in earlier runs, and who may in later ones."""

    taken: int
    done: frozenset[int]
    left: tuple[int, ...]


async def explore(
    watcher: Any,
    actors: list[Actor],
    begin: Callable[[], Awaitable[list[Work]]],
    check: Callable[[list[Any]], Awaitable[None]],
    *,
    whole: bool = False,
    interruptions_max: int | None = None,
) -> int:
    """Run the actors' work in every order of their statements; how many orders there were.

    `begin` sets the scene (gates are open) and gives one piece of work per actor; `check` gets their results,
    and looks at what is left. A failed check names the order. Of orders that differ only in steps which may
    change places one is run, unless `whole` (Godefroid's sleep sets). Where there are too many orders, with
    `interruptions_max` an actor that could go on is so often interrupted at most (Musuvathi and Qadeer's bound).
    """
    prefix: list[_Choice] = []
    orders = 0
    while True:
        works = await begin()
        choices, results = await _run(watcher, actors, works, prefix, whole, interruptions_max)
        if results is not None:
            orders += 1
            try:
                await check(results)
            except AssertionError as error:
                order = "".join("ABC"[choice.taken] for choice in choices)
                raise AssertionError(f"in the order {order} the results were {results}: {error}") from error
        while choices and not choices[-1].left:
            choices.pop()
        if not choices:
            return orders
        assert orders < ORDERS_MAX, "too many orders; make the scene smaller"
        taken, done, left = choices.pop()
        prefix = [*choices, _Choice(left[0], done | {taken}, left[1:])]


async def _run(
    watcher: Any,
    actors: list[Actor],
    works: list[Work],
    prefix: list[_Choice],
    whole: bool,
    interruptions_max: int | None,
) -> tuple[list[_Choice], list[Any] | None]:
    """One order. Its results are None when it comes to the same as one that was run before."""
    for actor in actors:
        actor.gate.passes = False
        actor.gate.arrived.clear()
    tasks = [asyncio.ensure_future(work()) for work in works]
    choices: list[_Choice] = []
    asleep: frozenset[int] = frozenset()  # their next step was taken in an earlier run, and comes to the same
    blocked: dict[int, int] = {}
    last, interruptions = -1, 0
    try:
        while True:
            await _settle(watcher, actors, tasks, blocked)
            able = [n for n, actor in enumerate(actors) if actor.gate.arrived.is_set() and not tasks[n].done()]
            if not able and all(task.done() for task in tasks):
                return choices, list(await asyncio.gather(*tasks))
            if not able:
                # Who waited waits for nobody any more, and was not seen to go on. Look again.
                blocked.clear()
                continue
            if len(choices) < len(prefix):
                choice = prefix[len(choices)]
                assert choice.taken in able, _other_scene(tasks, choice.taken)
            else:
                awake = [n for n in able if n not in asleep]
                if interruptions == interruptions_max and last in able:
                    awake = [last]
                if not awake:
                    return choices, None
                choice = _Choice(awake[0], frozenset(), tuple(awake[1:]))
            choices.append(choice)
            interruptions += last in able and choice.taken != last
            last = choice.taken
            step = actors[choice.taken].gate.next
            if not whole and interruptions_max is None:
                others = (asleep | choice.done) - {choice.taken}
                asleep = frozenset(n for n in others if actors[n].gate.next.moves_past(step))
            actors[choice.taken].gate.arrived.clear()
            actors[choice.taken].gate.open.set()
    finally:
        for actor in actors:
            actor.gate.passes = True
            actor.gate.open.set()
        await asyncio.gather(*tasks, return_exceptions=True)


def _other_scene(tasks: list[Any], wanted: int) -> str:
    """What is told where an actor that went on here in an earlier run cannot."""
    task = tasks[wanted]
    how = "is blocked" if not task.done() else f"ended with {task.exception()!r}"
    return f"the scene is not the same from run to run: {'ABC'[wanted]} went on here before, and now {how}"


async def _settle(watcher: Any, actors: list[Actor], tasks: list[Any], blocked: dict[int, int]) -> None:
    """Wait until every actor is at its gate, at its end, or blocked by another's lock.

    `blocked` remembers those by how many transactions had ended then: before the next one ends they stay so.
    """

    def moving() -> list[int]:
        return [n for n, actor in enumerate(actors) if not actor.gate.arrived.is_set() and not tasks[n].done()]

    everybody = [actor.connection.get_server_pid() for actor in actors]
    async with asyncio.timeout(_PATIENCE_S):
        while True:
            await asyncio.sleep(0)
            ends = sum(actor.gate.ends for actor in actors)
            free = [n for n in moving() if blocked.get(n) != ends]
            if not free:
                return
            waits = [asyncio.ensure_future(actors[n].gate.arrived.wait()) for n in free]
            await asyncio.wait(
                [*waits, *(tasks[n] for n in free)], timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED
            )
            for wait in waits:
                wait.cancel()
            free = [n for n in moving() if blocked.get(n) != ends]
            pids = [everybody[n] for n in free]
            found = await watcher.fetch(_BLOCKED, pids, everybody) if free else []
            # A deadlock of all is the database's to end.
            if len(moving()) < len(actors):
                blocked.update((n, ends) for n, pid in zip(free, pids, strict=True) if (pid,) in found)
