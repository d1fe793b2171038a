"""What a connection has prepared is kept, in bounds, and prepared anew once the tables have changed."""

from collections.abc import AsyncIterator

import pytest

from shared.postgres.connections import Pool, Transaction
from shared.postgres.driver import Connection
from shared.postgres.sql import Statement
from shared.settings import EdgeSettings, ShardAddress
from tests.support.databases import Database

ALL = Statement("all", (), "SELECT * FROM seen")
PREPARED = Statement("prepared", (), "SELECT statement FROM pg_prepared_statements")


@pytest.fixture
async def pool(database: Database) -> AsyncIterator[Pool]:
    """A pool of a shard with a table of one row."""
    connection = await database.connect("queue_000")
    await connection.execute("CREATE TABLE seen AS SELECT 1 AS n")
    await connection.close()
    made = Pool(ShardAddress(0, "queue_000", database.dsn), EdgeSettings())
    yield made
    await made.close()


async def changed(database: Database) -> None:
    """The table has another column."""
    connection = await database.connect("queue_000")
    await connection.execute("ALTER TABLE seen ADD COLUMN more int DEFAULT 2")
    await connection.close()


async def prepared(pool: Pool) -> list[str]:
    """What the server holds for the connection that is at hand."""
    return [row["statement"] for row in await pool.fetch(PREPARED)]


async def test_a_statement_is_prepared_once(pool: Pool) -> None:
    for _ in range(3):
        await pool.fetch(ALL)
    assert (await prepared(pool)).count(ALL.text) == 1


async def test_what_was_asked_last_is_kept_and_no_more(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "statements_max", 3)
    for n in range(9):
        await pool.fetch(ALL)
        await pool.fetch(Statement("one", (), f"SELECT {n}"))
    held = await prepared(pool)
    assert ALL.text in held
    assert "SELECT 8" in held
    assert len(held) <= 4, "one more until the next is prepared"


async def test_a_table_that_has_changed_is_read_as_it_is(pool: Pool, database: Database) -> None:
    assert [tuple(row) for row in await pool.fetch(ALL)] == [(1,)]
    await changed(database)
    assert [tuple(row) for row in await pool.fetch(ALL)] == [(1, 2)]


@pytest.mark.parametrize("verb", ["fetch", "row"])
async def test_a_table_that_has_changed_makes_a_transaction_begin_anew(
    pool: Pool, database: Database, verb: str
) -> None:
    begun: list[int] = []

    async def work(tx: Transaction) -> tuple[int, ...]:
        begun.append(len(begun))
        found = await getattr(tx, verb)(ALL)
        return tuple(found if verb == "row" else found[0])

    assert await pool.transaction(work) == (1,)
    await changed(database)
    assert await pool.transaction(work) == (1, 2)
    assert begun == [0, 1, 2]
