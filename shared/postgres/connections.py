"""One shard's connections: pinned plans, timeouts everywhere, retries only where the database says so."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar, cast

import asyncpg

from shared.admission.breaker import Breaker
from shared.admission.connection_priority import ConnectionLine, Urgency, current_urgency, urgency
from shared.admission.delay import Standing, overloaded
from shared.clock import SystemClock
from shared.errors import Invalid, ShardUnavailable, StorageFull
from shared.metrics import SHARD_ERRORS, SHARD_QUERY_SECONDS, SHARD_REFUSED
from shared.postgres import arrays
from shared.postgres.driver import Connection
from shared.postgres.history import Edition, History, HistoryChanged, Stranger, meet
from shared.postgres.session import session_of
from shared.postgres.sql import Statement
from shared.settings import EdgeSettings, ShardAddress

T = TypeVar("T")
_clock = SystemClock()

RETRIES_MAX = 3
LATENCIES_MAX = 1_000
RETRY_PAUSE_S_MAX = 0.05
CLOSE_S = 2.0
# A row's own fault: the same rows would be refused again.
_REFUSED = (asyncpg.DataError, asyncpg.ProgramLimitExceededError, asyncpg.IntegrityConstraintViolationError)
_CONFLICTS = (asyncpg.SerializationError, asyncpg.DeadlockDetectedError)
_FULL = (asyncpg.InsufficientResourcesError, asyncpg.LockNotAvailableError)
# What functions of ours raise.
_DECLINED = "HG001"
# The shard's tables are not there, or not to be written to: fenced, moved away, a standby.
_CLOSED = (
    asyncpg.UndefinedTableError,
    asyncpg.UndefinedFunctionError,
    asyncpg.ReadOnlySQLTransactionError,
)
_LOST = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # what a connection says that was cut while it was idle
    asyncpg.OperatorInterventionError,  # shut down, crashed, starting
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.PostgresSystemError,
    TimeoutError,
    OSError,
)


class Declined(Exception):
    """A function of ours has refused a statement, in words that its caller knows; nothing was done."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail


class _Lent(NamedTuple):
    """A connection taken from a pool of asyncpg's."""

    pool: Any
    proxy: Any
    connection: Connection


class Transaction:
    """An open transaction on one connection; statements see fresh snapshots, one after another."""

    __slots__ = ("_connection", "at_end")

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        # Called once it is over, whatever came of it.
        self.at_end: list[Callable[[], None]] = []

    async def fetch(self, statement: Statement, **values: Any) -> list[Any]:
        """All rows of a statement."""
        return cast(list[Any], await self._connection.fetch(statement.text, *statement.args(**values)))

    async def row(self, statement: Statement, **values: Any) -> Any:
        """The first row of a statement, or None."""
        return await self._connection.fetchrow(statement.text, *statement.args(**values))

    async def attempt(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run a part of the transaction that may fail alone.

        Raises:
            Invalid: the database refused a value; what `work` did is undone, the transaction goes on.
        """
        try:
            return await _within(self._connection, work)
        except _REFUSED as error:
            raise Invalid("the database refused a value of this request") from error


class Pool:
    """Connections to one schema. `relaxed` commits do not wait for the disk (their effects must be repeatable).

    Calls to a shard that does not answer are refused at once (`breaker`, shared by the pools of one shard), and so
    are those that began before its server was replaced (`history`, shared as well). Connections are given by
    urgency (`shared.admission.connection_priority`). What waits for one has been let in: a call asks `admit`
    before its first statement, so that it is turned away without waiting, and with nothing done.
    """

    def __init__(
        self,
        address: ShardAddress,
        settings: EdgeSettings,
        *,
        relaxed: bool = False,
        breaker: Breaker | None = None,
        history: History | None = None,
    ) -> None:
        self._address = address
        self._settings = settings
        self._relaxed = relaxed
        self.breaker = breaker or Breaker()
        self.history = history or History(address.number)
        self.history.listeners.append(self._start_anew)
        self.line = ConnectionLine(settings.pool_connections_max, _clock)
        self._standings = [
            Standing(settings.standing_wait_s_max, _clock, settings.acquire_timeout_s) for _ in Urgency
        ]
        self._probing: asyncio.Task[None] | None = None
        self._pool: Any = None
        self.latencies_s: deque[float] = deque(maxlen=LATENCIES_MAX)
        self.statements = 0
        self._seconds = SHARD_QUERY_SECONDS.labels(address.schema)
        self.errors = SHARD_ERRORS.labels(address.schema)
        self._refused = SHARD_REFUSED.labels(address.schema)
        self._idle: list[_Lent] = []
        self._generation = 0
        self.is_retired = False
        self._closing: set[asyncio.Task[None]] = set()

    async def fetch(self, statement: Statement, **values: Any) -> list[Any]:
        """All rows of one statement in its own transaction; conflicts are retried."""
        text, args = statement.text, statement.args(**values)
        return await self._retrying(lambda connection: connection.fetch(text, *args))

    async def row(self, statement: Statement, **values: Any) -> Any:
        """The first row of one statement in its own transaction, or None."""
        text, args = statement.text, statement.args(**values)
        rows = await self._retrying(lambda connection: connection.fetch(text, *args))
        return rows[0] if rows else None

    async def transaction(self, work: Callable[[Transaction], Awaitable[T]]) -> T:
        """Run `work` in a READ COMMITTED transaction; the whole of it again after a conflict.

        Raises:
            ShardUnavailable: the server did not answer; `outcome` is `unknown` once COMMIT may have been sent.
        """

        async def run(connection: Any) -> T:
            tx = Transaction(connection)
            try:
                return await _within(connection, lambda: work(tx))
            finally:
                for told in tx.at_end:
                    told()

        return await self._retrying(run)

    def relocate(self, address: ShardAddress) -> None:
        """From now on the shard is elsewhere; what runs on the old connections ends there, or fails."""
        old, self._pool = self._pool, None
        idle, self._idle = self._idle, []
        self._address = address
        self._generation += 1
        if old is not None:
            closing = asyncio.create_task(_close(old, idle, self._settings.command_timeout_s))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close all connections, by force after a short grace."""
        self._generation += 1  # what is on its way is not kept at hand after its end
        if self._probing is not None:
            self._probing.cancel()
        if self._pool is not None:
            await _close(self._pool, self._idle, CLOSE_S)
            self._pool = None
        for closing in list(self._closing):
            closing.cancel()
            await asyncio.gather(closing, return_exceptions=True)

    async def _retrying(self, run: Callable[[Any], Awaitable[T]]) -> T:
        edition = self.history.edition
        for attempt in range(RETRIES_MAX + 1):
            self.check()
            try:
                return await self._once(edition, run)
            except ShardUnavailable:
                self.errors.inc()
                raise
            except (*_CONFLICTS, asyncpg.FeatureNotSupportedError) as error:
                # A deadlock, a serialization failure, or "cached plan must not change result type".
                if attempt == RETRIES_MAX:
                    raise ShardUnavailable(f"shard {self._address.number} is contended; try again") from error
                await asyncio.sleep(random.uniform(0, RETRY_PAUSE_S_MAX * 2**attempt))  # noqa: S311
        raise AssertionError("unreachable")

    async def _once(self, edition: Edition, run: Callable[[Any], Awaitable[T]]) -> T:
        """On one connection; what goes wrong there is told as our own errors."""
        lent = self._take_at_hand(edition) or await self._take(edition)
        started_s = _clock.monotonic_s()
        try:
            answer = await run(lent.connection)
            self.history.check(edition, outcome="unknown")
        except BaseException as error:
            try:
                await self._failed(lent.connection, error)
            finally:
                await self._give_back(lent)
            raise
        ended_s = _clock.monotonic_s()
        self.breaker.succeeded()
        taken_s = ended_s - started_s
        self.latencies_s.append(taken_s)
        self.statements += 1
        self._seconds.observe(taken_s)
        if not self._keeps(lent):
            await self._give_back(lent)
        return answer

    def check(self) -> None:
        """Refuse while the shard does not answer; see to it that somebody asks it again, or looks before that.

        Raises:
            ShardUnavailable: it does not answer; nothing was done.
        """
        if self.is_retired:
            raise self.away()
        if self.breaker.take_probe():
            self._probing = asyncio.create_task(self._probe())
        if self.breaker.refuses:
            self._refused.inc()
            raise self.away(self.breaker.retry_after_s)

    @property
    def is_standing(self) -> bool:
        """Whether the line for a connection, as far as the running task would wait in it, does not move."""
        level = current_urgency()
        oldest_since_s = self.line.oldest_since_s(level) if self.line.waiting else None
        if oldest_since_s is None:
            self._standings[level].served(None)
            return False
        return self._standings[level].sheds(oldest_since_s, level)

    def admit(self) -> None:
        """Refuse a call that would wait for nothing. To be asked before anything is done for it.

        Raises:
            ShardUnavailable: the shard does not answer.
            Overloaded: who waits for a connection waits for too long.
        """
        self.check()
        if self.is_standing:
            raise overloaded(current_urgency())

    async def _probe(self) -> None:
        try:
            with urgency(Urgency.SETTLE):
                async with asyncio.timeout(self.breaker.probe_s_max):
                    await self._once(self.history.edition, lambda connection: connection.fetch("SELECT 1"))
        except (ShardUnavailable, TimeoutError):
            pass
        finally:
            self.breaker.probe_ended()

    def _take_at_hand(self, edition: Edition) -> _Lent | None:
        """As `_take`, where nothing is to be waited for: mostly."""
        idle = self._idle
        if not idle or self.history.edition is not edition or idle[-1].connection.is_closed():
            return None
        if not self.line.try_enter():
            return None
        self.breaker.begin()
        return idle.pop()

    async def _take(self, edition: Edition) -> _Lent:
        """A connection for what began in `edition`, to be given back."""
        if not self.line.try_enter():
            await self._enter()
        self.breaker.begin()
        try:
            lent = await self._acquire()
        except BaseException:
            self._leave()
            raise
        if self.history.edition is not edition:
            await self._give_back(lent)
            self.history.check(edition)
        return lent

    def _keeps(self, lent: _Lent) -> bool:
        """Whether what was taken, and is done with, stays at hand."""
        if lent.pool is not self._pool or lent.connection.generation != self._generation:
            return False
        self._idle.append(lent)  # whether it is open is looked at when it is taken again
        self._leave()
        return True

    async def _give_back(self, lent: _Lent) -> None:
        """What was taken is done with."""
        if self._keeps(lent):
            return
        try:
            # Not closed in good order, which waits for a server that may have fallen silent.
            _cut(lent.connection)
            await _let_go(lent)
        finally:
            self._leave()

    async def _failed(self, connection: Connection, error: BaseException) -> None:
        """What was done with a connection that was taken ended so.

        Raises:
            ServiceError, Declined: what `error` was, as our own.
        """
        # asyncpg stumbles over a connection that was lost between two messages of one statement.
        stumbled = isinstance(error, AttributeError) and connection.is_closed()
        if isinstance(error, asyncio.CancelledError):
            # A half-used connection must not go back: closing it rolls back what was not committed.
            _cut(connection)
        elif stumbled or (isinstance(error, _LOST) and not isinstance(error, asyncpg.QueryCanceledError)):
            _cut(connection)
            await self._forget(connection.generation)
            detail = f"shard {self._address.number} did not answer"
            raise ShardUnavailable(detail, outcome="unknown", retry_after_s=1.0) from error
        elif isinstance(error, asyncpg.PostgresError):
            self.breaker.succeeded()
            if isinstance(error, _CLOSED):
                _cut(connection)
            told = self._told(error)
            if told is not error:
                raise told from error

    def _leave(self) -> None:
        self.breaker.end()
        self.line.leave()

    def _told(self, error: Exception) -> Exception:
        """What a server that answers refused, as our error."""
        number = self._address.number
        match error:
            case asyncpg.DiskFullError():
                self.breaker.had_no_room()
                return StorageFull(f"shard {number} has no room on its disk", retry_after_s=5.0)
            case asyncpg.QueryCanceledError():
                return ShardUnavailable(f"shard {number} was too slow", retry_after_s=1.0)
        if isinstance(error, _REFUSED):
            return Invalid("the database refused a value of this request")
        if getattr(error, "sqlstate", None) == _DECLINED:
            return Declined(str(getattr(error, "detail", "")))
        for kinds, what in ((_FULL, "has no room or is locked"), (_CLOSED, "is not open here")):
            if isinstance(error, kinds):
                return ShardUnavailable(f"shard {number} {what}", retry_after_s=1.0)
        return error

    async def _enter(self) -> None:
        try:
            await self.line.enter(self._settings.acquire_timeout_s)
        except TimeoutError as error:
            number = self._address.number
            raise ShardUnavailable(f"shard {number} has no connection to spare", retry_after_s=1.0) from error
        if self.breaker.state == "open":
            self.line.leave()
            raise self.away()  # it was found away while this call waited

    async def _acquire(self) -> _Lent:
        while self._idle:  # a connection that was used before spares the pool's own bookkeeping
            lent = self._idle.pop()
            if not lent.connection.is_closed():
                return lent
            await _let_go(lent)
        try:
            if self._pool is None:
                # No connection is opened by this: whoever waits for one waits for itself.
                made = await self.open_pool()
                self._pool = self._pool or made
            pool = self._pool
            proxy = await pool.acquire(timeout=self._settings.acquire_timeout_s)
            return _Lent(pool, proxy, proxy.itself)
        except (Stranger, HistoryChanged) as error:
            raise ShardUnavailable(str(error), retry_after_s=1.0) from error
        except (*_LOST, asyncpg.PostgresError) as error:
            self.breaker.failed()
            raise self.away() from error

    def away(self, retry_after_s: float = 1.0) -> ShardUnavailable:
        """The error for a call that did not reach the server."""
        return ShardUnavailable(f"shard {self._address.number} cannot be reached", retry_after_s=retry_after_s)

    async def _forget(self, generation: int) -> None:
        """A connection of this generation was lost: those at hand are most likely dead too.

        Without this a restart of the server costs each of them a request. One loss ends a generation; what was
        opened since is left alone when the others of its time are found dead.
        """
        if generation != self._generation or self._pool is None:
            return
        self._generation += 1
        self.breaker.failed()
        await self._pool.expire_connections()
        while self._idle:
            lent = self._idle.pop()
            _cut(lent.connection)
            await _let_go(lent)

    def _start_anew(self) -> None:
        """The server was replaced: nothing that was begun on the former one goes on."""
        old, self._pool = self._pool, None
        self._idle.clear()
        self._generation += 1
        self.breaker.succeeded()  # it answers
        if old is not None:
            old.terminate()

    async def open_pool(self) -> Any:
        """A pool of asyncpg's, or what stands in for one; it opens connections when they are asked for."""
        return await asyncpg.create_pool(
            self._address.dsn,
            min_size=0,
            max_size=self._settings.pool_connections_max,
            timeout=self._settings.connect_timeout_s,
            command_timeout=self._settings.command_timeout_s,
            max_inactive_connection_lifetime=300.0,
            server_settings=session_of(self._address.schema, relaxed=self._relaxed),
            connection_class=Connection,
            init=self.opened,
            reset=_keep,
        )

    async def opened(self, connection: Any) -> None:
        """Make a new connection one of this pool's."""
        connection.generation = self._generation
        arrays.use(connection)
        with suppress(asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError):
            await meet(connection, self._address, self.history)  # else every statement says so by itself


async def _let_go(lent: _Lent) -> None:
    with suppress(asyncpg.InterfaceError):  # its pool was terminated
        await lent.pool.release(lent.proxy)


async def _close(pool: Any, idle: list[_Lent], grace_s: float) -> None:
    try:
        async with asyncio.timeout(grace_s):
            while idle:
                await pool.release(idle.pop().proxy)
            await pool.close()
    except (asyncio.CancelledError, *_LOST):
        pool.terminate()


async def _within(connection: Any, work: Callable[[], Awaitable[T]]) -> T:
    """Run `work` in a transaction, or a savepoint of the one that is open.

    A connection that fell silent, or whose request was cancelled, is not asked to roll back: that would wait
    again. Whoever holds it cuts it, which rolls back.
    """
    transaction = connection.transaction()
    await transaction.start()
    try:
        answer = await work()
    except BaseException as error:
        if isinstance(error, (asyncio.CancelledError, *_LOST)) and not isinstance(
            error, asyncpg.QueryCanceledError
        ):
            raise
        await transaction.rollback()
        raise
    await transaction.commit()
    return answer


def _cut(connection: Connection) -> None:
    with suppress(asyncpg.InterfaceError):
        connection.terminate()


async def _keep(_connection: Any) -> None:
    """Skip asyncpg's RESET ALL round trip: nothing here changes a session after it was opened."""
