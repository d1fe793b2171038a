"""What a pool does when its server is silent, cut off or restarted: every call ends, and says what is known."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

from shared.admission.connection_priority import Urgency, urgency
from shared.errors import ShardUnavailable
from shared.postgres import connections
from shared.postgres.connections import Pool, Transaction
from shared.postgres.sql import Statement
from shared.settings import EdgeSettings, ShardAddress
from tests.support.databases import Database
from tests.support.proxy import Proxy

SETTINGS = EdgeSettings(command_timeout_s=1.0, connect_timeout_s=1.0, acquire_timeout_s=1.0)
# No call may take longer than connecting, its statement and one more wait; "not for ever" is what counts.
END_S = 30.0

ONE = Statement("one", (), "SELECT 1 AS n")
SLOW = Statement("slow", (), "SELECT pg_sleep(0.05)")
ADD = Statement("add", ("n",), "INSERT INTO seen VALUES ($1::int) ON CONFLICT (n) DO NOTHING")
LOCK = Statement("lock", (), "SELECT pg_advisory_lock(1)")
COUNT = Statement("count", (), "SELECT count(*) AS n FROM seen")


@pytest.fixture
async def proxy(database: Database) -> AsyncIterator[Proxy]:
    """A proxy before the run's server."""
    connection = await database.connect("queue_000")
    await connection.execute("CREATE TABLE seen (n int PRIMARY KEY)")
    await connection.close()
    async with Proxy(database.dsn) as made:
        yield made


@pytest.fixture
async def pool(database: Database, proxy: Proxy) -> AsyncIterator[Pool]:
    """A pool that reaches its shard by way of the proxy."""
    made = Pool(ShardAddress(0, "queue_000", proxy.dsn(database.dsn)), SETTINGS)
    yield made
    await made.close()


async def refused(pool: Pool, outcome: str, call: Any = None) -> None:
    """The call (or a plain read) ends as an unavailable shard."""
    async with asyncio.timeout(END_S):
        with pytest.raises(ShardUnavailable) as caught:
            await (call() if call else pool.fetch(ONE))
    assert caught.value.outcome == outcome


async def fill(pool: Pool) -> None:
    """Open every connection that the pool may have, and leave them idle."""
    with urgency(Urgency.SETTLE):
        await asyncio.gather(*(pool.fetch(SLOW) for _ in range(SETTINGS.pool_connections_max)))
    assert len(pool._idle) == SETTINGS.pool_connections_max


async def test_idle_connections_that_died_unseen_cost_one_refusal(pool: Pool, proxy: Proxy) -> None:
    await fill(pool)
    proxy.fall_silent()

    await refused(pool, "unknown")
    for _ in range(SETTINGS.pool_connections_max):
        await pool.fetch(ONE)


@pytest.mark.parametrize("is_transaction", [False, True])
async def test_a_connection_that_is_lost_within_a_statement_is_a_shard_that_is_away(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, is_transaction: bool
) -> None:
    """Between two messages of it asyncpg does not look whether the connection is still there, and stumbles."""
    await pool.fetch(ONE)
    original = connections.Connection._get_statement

    async def lost(self: Any, *args: Any, **options: Any) -> Any:
        self.terminate()
        return await original(self, *args, **options)

    with monkeypatch.context() as patched:
        patched.setattr(connections.Connection, "_get_statement", lost)
        call = (
            (lambda: pool.transaction(lambda tx: tx.row(COUNT))) if is_transaction else (lambda: pool.row(COUNT))
        )
        await refused(pool, "unknown", call)
    assert (await pool.row(COUNT))["n"] == 0


async def test_a_pool_is_closed_once_its_last_statement_has_ended(
    database: Database, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "CLOSE_S", 10 * END_S)
    holder = await database.connect("queue_000")
    await holder.execute("SELECT pg_advisory_lock(1)")
    waiting = asyncio.create_task(pool.fetch(LOCK))
    async with asyncio.timeout(END_S):
        while not await holder.fetchval("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)"):
            await asyncio.sleep(0)
        closing = asyncio.create_task(pool.close())
        await asyncio.sleep(0)
        assert not closing.done()
        await holder.close()
        await asyncio.gather(waiting, closing)


async def test_calls_that_fail_together_do_not_cost_what_was_opened_since(pool: Pool, proxy: Proxy) -> None:
    await fill(pool)
    calls = [asyncio.create_task(refused(pool, "unknown", lambda: pool.fetch(SLOW))) for _ in range(3)]
    await asyncio.sleep(0.01)
    proxy.fall_silent()
    await calls[0]
    await pool.fetch(ONE)
    kept = pool._idle[-1]
    await asyncio.gather(*calls)

    assert kept in pool._idle and not kept.connection.is_closed()


async def test_a_server_that_takes_connections_and_says_nothing(pool: Pool, proxy: Proxy) -> None:
    proxy.silent_at_first = True
    async with asyncio.timeout(END_S):
        # Many more than the pool has room for: none waits for the turn of another.
        answers = await asyncio.gather(*(pool.fetch(ONE) for _ in range(60)), return_exceptions=True)
    assert {(type(answer), answer.outcome) for answer in answers} == {(ShardUnavailable, "none")}  # type: ignore[union-attr]

    proxy.silent_at_first = False
    async with asyncio.timeout(END_S):
        while True:  # until a probe has found that it speaks again
            with suppress(ShardUnavailable):
                await pool.fetch(ONE)
                break
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("new_ones_too", [False, True])
async def test_silence_in_a_transaction(pool: Pool, proxy: Proxy, new_ones_too: bool) -> None:
    """Also where the request to cancel gets no answer either."""

    async def work(tx: Transaction) -> None:
        await tx.fetch(ADD, n=1)
        proxy.fall_silent()
        proxy.silent_at_first = new_ones_too
        await tx.fetch(ADD, n=2)

    await refused(pool, "unknown", lambda: pool.transaction(work))
    proxy.silent_at_first = False
    assert (await pool.row(COUNT))["n"] == 0


async def test_silence_in_a_savepoint(pool: Pool, proxy: Proxy) -> None:
    async def work(tx: Transaction) -> None:
        async def part() -> None:
            proxy.fall_silent()
            proxy.silent_at_first = True
            await tx.fetch(ADD, n=1)

        await tx.attempt(part)

    await refused(pool, "unknown", lambda: pool.transaction(work))


async def test_a_caller_that_gives_up_on_a_silent_server_waits_for_nothing(pool: Pool, proxy: Proxy) -> None:
    async def work(tx: Transaction) -> None:
        await tx.fetch(ADD, n=1)
        proxy.fall_silent()
        proxy.silent_at_first = True
        running.set()
        await tx.fetch(ADD, n=2)

    running = asyncio.Event()
    call = asyncio.create_task(pool.transaction(work))
    await running.wait()
    call.cancel()
    async with asyncio.timeout(END_S):
        with pytest.raises(asyncio.CancelledError):
            await call


async def test_closing_does_not_wait_for_a_silent_server(pool: Pool, proxy: Proxy) -> None:
    await fill(pool)
    proxy.fall_silent()
    async with asyncio.timeout(END_S):
        await pool.close()


@pytest.mark.parametrize("count", [0, 1, 7, 30, 60, 90, 120, 200])
async def test_an_answer_that_is_cut_short_is_unknown_and_may_be_repeated(
    pool: Pool, proxy: Proxy, count: int
) -> None:
    """Wherever the cut falls, the reply to COMMIT included, sending again leaves one row."""

    async def work(tx: Transaction) -> None:
        await tx.fetch(ADD, n=1)

    await pool.fetch(ONE)
    proxy.cut_after(count)
    try:
        await pool.transaction(work)
        assert proxy.bytes_left is not None
    except ShardUnavailable as error:
        assert error.outcome == "unknown"
    proxy.bytes_left = None
    await pool.transaction(work)

    assert (await pool.row(COUNT))["n"] == 1


async def test_a_shard_that_is_not_there_is_unavailable_and_nothing_was_done(database: Database) -> None:
    """Its schema was fenced or dropped under this process."""
    pool = Pool(database.addresses[0], SETTINGS)
    await pool.fetch(ONE)
    connection = await database.connect("queue_000")
    await connection.execute("ALTER SCHEMA queue_000 RENAME TO elsewhere")
    try:
        await refused(pool, "none", lambda: pool.fetch(Statement("now", (), "SELECT shard_now()")))
        await refused(pool, "none", lambda: pool.fetch(Statement("items", (), "SELECT FROM item")))
    finally:
        await connection.close()
        await pool.close()


async def test_a_plan_that_a_migration_made_void_is_made_again_and_costs_no_call(database: Database) -> None:
    """A column joins a table while this process holds prepared statements that answer all of its columns."""
    pool = Pool(database.addresses[0], SETTINGS)
    every = Statement("every", (), "SELECT * FROM seen")
    connection = await database.connect("queue_000")
    try:
        await connection.execute("CREATE TABLE seen (n int PRIMARY KEY); INSERT INTO seen VALUES (1)")
        for column in ("", "a", "b"):
            if column:
                await connection.execute(f"ALTER TABLE seen ADD COLUMN {column} int")
            # In a transaction the driver cannot help itself.
            assert (await pool.transaction(lambda tx: tx.row(every)))["n"] == 1
            assert (await pool.row(every))["n"] == 1
    finally:
        await connection.close()
        await pool.close()


async def test_an_answer_is_given_also_where_its_connection_has_to_go_and_its_server_is_silent(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one was lost meanwhile. To close this one in good order would wait for the server."""

    async def never(*_: Any, **__: Any) -> None:
        await asyncio.Event().wait()

    async def run(connection: Any) -> Any:
        answer = await connection.fetch("SELECT 1 AS n")
        await pool._forget(connection.generation)
        monkeypatch.setattr(connections.Connection, "close", never)
        return answer

    async with asyncio.timeout(END_S):
        [row] = await pool._retrying(run)
    assert (row["n"], pool._idle, pool.line.taken) == (1, [], 0)
    monkeypatch.undo()
    assert (await pool.row(ONE))["n"] == 1
