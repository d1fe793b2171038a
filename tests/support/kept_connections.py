"""Connections that outlive the process under test: the next test's takes them up, with all they have prepared.

To open one, and to plan on it again what every test asks, costs both sides more than most tests themselves. What
is kept is idle, open, outside a transaction, and answers; a test can tell it from a new one by its age alone.
"""

import asyncio
from collections import defaultdict
from typing import Any, NamedTuple

import asyncpg

from shared.postgres.connections import Pool
from shared.postgres.driver import Connection
from shared.postgres.session import PINNED, session_of
from shared.shards.shard_map import Shard

_STATEMENTS_MAX = 1_000
Connection.statements_max = _STATEMENTS_MAX


class _Kind(NamedTuple):
    """Connections that can stand for one another."""

    dsn: str
    session: tuple[tuple[str, str], ...]
    command_timeout_s: float
    loop: asyncio.AbstractEventLoop


_kept: dict[_Kind, list[Any]] = defaultdict(list)


def keep_connections(shard: Shard) -> None:
    """Let both pools of a shard take kept connections, and leave theirs to the next."""
    for pool in (shard.pool, shard.relaxed):
        pool.open_pool = lambda pool=pool: _opened(pool)  # type: ignore[method-assign, misc]


async def look_through(dsn: str, schema: str) -> Any:
    """A connection to one shard, for `keep`, with plans as the audit's: they are kept with it."""
    return await _take(_looking(dsn, schema), asyncpg.Connection)


def keep(connection: Any, dsn: str, schema: str) -> None:
    """Leave what `look_through` gave to the next."""
    _give(_looking(dsn, schema), connection)


def forget_connections(dsn: str) -> None:
    """Close those to a database that goes."""
    for kind in [kind for kind in _kept if kind.dsn == dsn]:
        for connection in _kept.pop(kind):
            if not kind.loop.is_closed():
                connection.terminate()


class _KeptPool:
    """Stands in for asyncpg's pool. Not more are taken than the pool above lets in."""

    def __init__(self, pool: Pool, kind: _Kind) -> None:
        self._pool = pool
        self._kind = kind
        self._lent: set[Any] = set()
        self._expired: set[Any] = set()
        self._all_back = asyncio.Event()
        self._all_back.set()

    async def acquire(self, *, timeout: float) -> Any:
        async with asyncio.timeout(timeout):
            connection = await _take(self._kind, Connection)
            try:
                await self._pool.opened(connection)
            except BaseException:
                connection.terminate()
                raise
        self._lent.add(connection)
        self._all_back.clear()
        return connection

    async def release(self, connection: Any) -> None:
        self._lent.discard(connection)
        if not self._lent:
            self._all_back.set()
        if connection in self._expired:
            self._expired.discard(connection)
            connection.terminate()
        else:
            _give(self._kind, connection)

    async def expire_connections(self) -> None:
        self._expired |= self._lent
        while _kept[self._kind]:
            _kept[self._kind].pop().terminate()

    async def close(self) -> None:
        await self._all_back.wait()

    def terminate(self) -> None:
        for connection in self._lent:
            connection.terminate()
        self._lent.clear()
        self._all_back.set()


def _looking(dsn: str, schema: str) -> _Kind:
    return _Kind(dsn, tuple({**PINNED, "search_path": schema}.items()), 60.0, asyncio.get_running_loop())


async def _opened(pool: Pool) -> _KeptPool:
    address = pool._address
    session = session_of(address.schema, relaxed=pool._relaxed)
    timeout_s = pool._settings.command_timeout_s
    return _KeptPool(pool, _Kind(address.dsn, tuple(session.items()), timeout_s, asyncio.get_running_loop()))


async def _take(kind: _Kind, connection_class: type) -> Any:
    while _kept[kind]:
        connection = _kept[kind].pop()
        try:
            await connection.execute("SELECT")
            return connection
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            connection.terminate()  # its server went, or was told to end it
        except BaseException:
            connection.terminate()
            raise
    return await asyncpg.connect(
        kind.dsn,
        server_settings=dict(kind.session),
        connection_class=connection_class,
        command_timeout=kind.command_timeout_s,
        statement_cache_size=_STATEMENTS_MAX,
    )


def _give(kind: _Kind, connection: Any) -> None:
    if connection.is_closed() or connection.is_in_transaction():
        connection.terminate()
    else:
        _kept[kind].append(connection)
