"""What a duty found by its look is asked again where it acts: somebody may have acted in between."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from services.queue.duties.far_keys import FarKeys
from services.queue.duties.retention import ENDED_SLACK_S
from services.queue.store import items, leases
from services.queue.store.names import SQL
from services.queue.store.shard_store import Store
from tests.support.databases import Databases
from tests.support.queue_host import Api, queue_host


async def test_what_was_acked_between_a_sweeps_look_and_its_lock_is_finished(
    own_api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    item_id = await own_api.enqueue_one("t", lease_s=1)
    await own_api.dequeue_one("t")
    await own_api.clock.advance(2)
    take_expired = leases.take_expired

    async def ack_meanwhile(*args: Any) -> Any:
        groups = await take_expired(*args)
        await own_api.host.rows("DELETE FROM item")  # as an ack that had come to its row before
        return groups

    monkeypatch.setattr(leases, "take_expired", ack_meanwhile)
    await own_api.host.reap()
    assert await own_api.host.count("lease") == 0
    assert await own_api.cancel(item_id) == ["finished"]


async def test_a_cancel_before_a_rotation_is_no_ack_for_the_sweep_after_it(own_api: Api) -> None:
    await own_api.clock.advance(own_api.host.settings.id_window_s + 2 * ENDED_SLACK_S)
    item_id = await own_api.enqueue_one("t", id=own_api.new_id(0), lease_s=60)
    await own_api.dequeue_one("t")
    assert await own_api.cancel(item_id) == ["cancelled"]
    await own_api.host.retain()
    assert await own_api.host.counts("ended", "ended_old") == {"ended": 0, "ended_old": 1}

    await own_api.host.pass_time(61)
    assert await own_api.host.counts("lease", "ended", "ended_old") == {"lease": 0, "ended": 0, "ended_old": 1}
    assert await own_api.cancel(item_id) == ["already_cancelled"]


async def test_a_cancel_is_told_until_a_sweep_has_taken_its_lease_however_late(own_api: Api) -> None:
    window_s = own_api.host.settings.id_window_s + 2 * ENDED_SLACK_S
    await own_api.clock.advance(window_s)
    item_id = await own_api.enqueue_one("t", lease_s=60)
    leased = await own_api.dequeue_one("t")
    assert await own_api.cancel(item_id) == ["cancelled"]
    for seconds in (0, window_s):
        await own_api.clock.advance(seconds)
        await own_api.host.retain()
    assert await own_api.host.count("lease") == 1

    assert await own_api.ack(leased) == ["cancelled"]
    assert await own_api.cancel(item_id) == ["already_cancelled"]


async def test_what_ended_just_before_a_rotation_is_remembered_as_long_as_its_id_is_taken(own_api: Api) -> None:
    window_s = own_api.host.settings.id_window_s
    await own_api.clock.advance(window_s + 2 * ENDED_SLACK_S)
    item = {"topic": "t", "id": own_api.new_id(0)}
    assert await own_api.cancel(item["id"]) == ["cancelled"]
    found = []
    for seconds in (0, window_s - 60, 120 + ENDED_SLACK_S):
        await own_api.clock.advance(seconds)
        await own_api.host.retain()
        [result] = await own_api.enqueue(item)
        found.append((result["status"], result.get("code")))
    assert found == [("cancelled", None), ("cancelled", None), ("refused", "id_too_old")]


async def test_an_item_whose_ttl_counts_anew_is_not_ended_by_an_older_look(
    own_api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    item_id = await own_api.enqueue_one("t", id=own_api.new_id(0), ttl_s=5, lease_s=60)
    leased = await own_api.dequeue_one("t")
    await own_api.clock.advance(6)
    expiry, reaper = own_api.host.process.expiry, own_api.host.reapers[0]
    expire = expiry.expire

    async def die_and_return_meanwhile(store: Store, ids: Sequence[str]) -> int:
        assert await own_api.nack(leased, final=True) == ["dead"]
        await own_api.post("topics/redrive", {"topic": "t"})
        ended: int = await expire(store, ids)
        return ended

    monkeypatch.setattr(expiry, "expire", die_and_return_meanwhile)
    await reaper.look()
    assert await reaper.expire_step() == 0
    assert await own_api.state(item_id) == "ready"


async def test_an_operation_is_stopped_where_its_row_is_just_being_written(
    databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One shard was away when it was asked for. The row for it is written while the cancel looks there."""
    database = await databases.create(queue_shards=2, dag_shards=1)
    async with queue_host(database) as host:
        api = Api(host)
        ids = [await api.enqueue_one("t", id=api.new_id(shard)) for shard in (0, 0, 1)]
        away = f"0={database.dsn} 1=postgresql://nobody@127.0.0.1:1/none"
        async with queue_host(database, shards=away, operation_patience_s=0, chunk_items_max=1) as half:
            answer = await Api(half, api.namespace).post("topics/purge", {"topic": "t"})
        operation = f"operations/{answer.json()['operation']['id']}"
        await host.clock.advance(20)
        pool, has_looked = host.stores[1].pool, asyncio.Event()
        fetch, cancels = pool.fetch, []

        async def place_after_the_cancels_look(statement: Any, **values: Any) -> Any:
            if statement is SQL.place_operation:
                cancels.append(asyncio.ensure_future(api.post(f"{operation}/cancel", {})))
                await asyncio.wait_for(has_looked.wait(), 20)
            found = await fetch(statement, **values)
            if statement is SQL.stop_operation:
                has_looked.set()
            return found

        monkeypatch.setattr(pool, "fetch", place_after_the_cancels_look)
        await host.process.operations.step(host.stores[0])
        [cancel] = cancels
        assert (await cancel).json()["state"] == "cancelled"
        for store in host.stores.values():
            await host.process.operations.step(store)
        assert await api.state(ids[-1]) == "ready"
    await databases.drop(database)


async def test_a_key_that_was_given_again_since_a_look_is_kept(
    own_api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key came here with its slot; the item that held it is gone, and by now another one holds it."""
    stores, settings = own_api.host.stores, own_api.host.settings
    before, since = own_api.new_id(1), own_api.new_id(0)
    connection = await own_api.host.database.connect("queue_000")
    await connection.execute(
        "INSERT INTO dedup (namespace_id, key, id, fingerprint, lives_at) VALUES (1, 'k', $1, '', 1)", before
    )
    states = items.states

    async def give_again_meanwhile(asked: Any, ids: Sequence[str]) -> Any:
        found = await states(asked, ids)
        await connection.execute("UPDATE dedup SET id = $1, lives_at = NULL", since)
        return found

    monkeypatch.setattr(items, "states", give_again_meanwhile)
    await FarKeys(stores[0], stores, settings).step()
    assert await connection.fetchval("SELECT until FROM dedup WHERE key = 'k'") is None
    await connection.close()
