"""Background duties on a slow or locked shard, or one that refuses a duty: smaller steps, no harm to others."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from services.queue.duties.reaper import Reaper
from shared.errors import ShardUnavailable
from shared.postgres.session import SESSION
from tests.support.databases import Databases
from tests.support.queue_host import AT_ONCE, Api, queue_host

SLOW = """
CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN PERFORM pg_sleep(0.02); RETURN NEW; END$$;
CREATE TRIGGER slow BEFORE {verb} ON {table} FOR EACH ROW EXECUTE FUNCTION slow();
"""
REFUSING = """
CREATE FUNCTION locked() RETURNS trigger LANGUAGE plpgsql AS
$$BEGIN RAISE EXCEPTION 'locked' USING ERRCODE = '55P03'; END$$;
CREATE TRIGGER locked BEFORE DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION locked();
"""


@pytest.fixture
async def hasty(databases: Databases, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Api]:
    """A namespace at a process whose statements are soon too slow, on one shard."""
    monkeypatch.setitem(SESSION, "statement_timeout", "600ms")
    database = await databases.create(queue_shards=1, dag_shards=1)
    async with queue_host(database) as host:
        yield Api(host)
    await databases.drop(database)


async def once(reaper: Reaper) -> int:
    """A round of the duties as their loops run them: none hears of another's failure."""
    done = 0
    for step in (reaper.look, reaper.promote_step, reaper.sweep_step, reaper.expire_step):
        try:
            done += await step()
        except ShardUnavailable:
            continue
    return done


async def break_with(api: Api, sql: str) -> None:
    connection = await api.host.database.connect("queue_000")
    await connection.execute(sql)
    await connection.close()


async def test_a_batch_of_leases_that_takes_too_long_comes_back_in_parts(hasty: Api) -> None:
    """A lease of 60 items, of which 29 at most can be written before the statement is cut off."""
    item = {"topic": "t", "lease_s": 5, "backoff": AT_ONCE}
    await hasty.enqueue(*({**item, "id": hasty.new_id(0)} for _ in range(60)))
    assert len(await hasty.dequeue("t", 60)) == 60
    await break_with(hasty, SLOW.format(verb="UPDATE", table="item"))
    await hasty.clock.advance(6)
    [reaper] = hasty.host.reapers
    for _ in range(3):
        await once(reaper)

    assert await hasty.host.count("ready") > 0
    while await hasty.host.count("ready") < 60:
        await once(reaper)


async def test_delays_that_take_too_long_end_in_parts(hasty: Api) -> None:
    await hasty.enqueue(*({"topic": "t", "id": hasty.new_id(0), "delay_s": 5} for _ in range(60)))
    await break_with(hasty, SLOW.format(verb="UPDATE", table="item"))
    await hasty.clock.advance(6)
    [reaper] = hasty.host.reapers
    for _ in range(3):
        await once(reaper)

    assert await hasty.host.count("ready") > 0


async def test_ttls_whose_ends_take_too_long_end_in_parts(hasty: Api) -> None:
    await hasty.enqueue(*({"topic": "t", "id": hasty.new_id(0), "ttl_s": 5} for _ in range(60)))
    await break_with(hasty, SLOW.format(verb="INSERT", table="ended"))
    await hasty.clock.advance(6)
    [reaper] = hasty.host.reapers
    for _ in range(3):
        await once(reaper)

    assert await hasty.host.count("item") < 60


async def test_an_operation_whose_chunks_take_too_long_goes_on_in_smaller_ones(hasty: Api) -> None:
    await hasty.enqueue(*({"topic": "t", "id": hasty.new_id(0)} for _ in range(60)))
    await break_with(hasty, SLOW.format(verb="INSERT", table="ended"))
    operations = hasty.host.process.operations
    [store] = hasty.host.stores.values()
    operation = await operations.place(hasty.namespace, "purge", {"topic": "t"})
    for _ in range(3):
        with suppress(ShardUnavailable):
            await operations.chunk(store, operation)

    assert await hasty.host.count("item") < 60


@pytest.mark.parametrize(("refused", "others"), [("deferred", "lease"), ("lease", "deferred")])
async def test_a_duty_that_fails_keeps_back_no_other(own_api: Api, refused: str, others: str) -> None:
    await own_api.enqueue(*({"topic": "t", "id": own_api.new_id(0), "lease_s": 5} for _ in range(3)))
    await own_api.dequeue("t", 3)
    await own_api.enqueue(*({"topic": "t", "id": own_api.new_id(0), "delay_s": 5} for _ in range(3)))
    await break_with(own_api, REFUSING.format(table=refused))
    await own_api.clock.advance(6)
    await once(own_api.host.reapers[0])

    left = await own_api.host.counts("deferred", "lease")
    assert left[refused] > 0
    assert left[others] == 0


@pytest.fixture
async def patient(databases: Databases, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Api]:
    """A namespace at a process whose statements wait for locks for ever, on one shard."""
    monkeypatch.setitem(SESSION, "lock_timeout", "0")
    monkeypatch.setitem(SESSION, "statement_timeout", "0")
    database = await databases.create(queue_shards=1, dag_shards=1)
    async with queue_host(database, command_timeout_s=3600.0) as host:
        yield Api(host)
    await databases.drop(database)


@pytest.mark.parametrize("table", ["ended", "ended_old", "unseen_cancel"])
async def test_a_backup_holds_up_neither_traffic_nor_other_duties(patient: Api, table: str) -> None:
    """It reads a table that the rotation wants to lock; what waits behind the rotation waits for a moment only."""
    for n in range(3):
        await patient.enqueue_one("t", id=patient.new_id(0), max_attempts=1)
        await patient.nack(await patient.dequeue_one("t"), error=str(n))
    await patient.clock.advance(patient.host.settings.dead_retention_s + 1)
    backup = await patient.host.database.connect("queue_000")
    transaction = backup.transaction()
    await transaction.start()
    await backup.execute(f"SELECT FROM {table} LIMIT 1")
    async with asyncio.timeout(60):
        await patient.host.retain()
        item_id = await patient.enqueue_one("t", id=patient.new_id(0))
        assert await patient.ack(await patient.dequeue_one("t")) == ["acked"]

    assert await patient.host.count("parked") == 0
    assert await patient.host.count("ended", f"id = '{item_id}'") == 1
    await transaction.rollback()
    await backup.close()
    await patient.host.retain()
    assert await patient.host.count("ended_old", f"id = '{item_id}'") == 1
