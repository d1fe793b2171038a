"""A drained shard leaves the map: never while anything lives or is remembered there, and nobody misses it."""

import asyncio
import json
from typing import Any

import pytest
from structlog.testing import capture_logs

from headgate._ids import new_id
from services.dag.queue_client import HeadgateQueue
from shared.clock import SystemClock
from shared.errors import ShardUnavailable
from shared.shards.map_file import read
from tests.integration.test_moving_shards import loaded
from tests.support import apps
from tests.support.queue_host import Api, QueueHost
from tests.support.shard_world import CRASHED, END_S, World, follow, host, world

__all__ = ["host", "world"]

REMOVE = ("remove", "0", "--yes")


async def test_a_shard_on_which_anything_lives_or_is_remembered_stays_in_the_map(
    world: World, host: QueueHost
) -> None:
    api = Api(host)
    mine = api.new_id(0)
    await api.enqueue_one("t", id=mine)
    assert "`drain 0` first" in await world.run(*REMOVE, code=1)
    await world.run("drain", "0", "--keep-slots", "--yes")
    assert "slots call shard 0 home" in await world.run(*REMOVE, code=1)
    await world.run("slots", "--rebalance", "--yes")
    await follow(host)
    assert "still holds items" in await world.run(*REMOVE, code=1)
    assert await api.ack(await api.dequeue_one("t")) == ["acked"]
    assert "still holds" in await world.run(*REMOVE, code=1)
    assert [r["status"] for r in await api.enqueue({"topic": "t", "id": mine})] == ["duplicate"]
    for _ in range(2):
        await host.pass_time(host.settings.id_window_s + 200)
        assert read(world.map, "queue").shards[0].number == 0
        await host.retain()
    assert "nothing was done" in await world.run("remove", "0")
    assert "removed" in await world.run(*REMOVE)

    assert [address.number for address in read(world.map, "queue").shards] == [1]
    await follow(host)
    results = await api.enqueue({"topic": "t", "id": api.new_id(0)}, {"topic": "t", "id": api.new_id(1)})
    assert [(r["status"], r.get("code"), r.get("outcome")) for r in results] == [
        ("refused", "shard_unavailable", "none"),
        ("enqueued", None, None),
    ]
    with pytest.raises(ShardUnavailable):
        host.stores[0].pool.check()
    assert (await host.client.get("/readyz")).json()["shards"] == {"queue_001": "up"}
    assert len(await api.dequeue("t", 9)) == 1
    async with world.host(clock=host.clock) as fresh:
        answer = await Api(fresh).post("enqueue", {"items": [{"topic": "t", "id": api.new_id(0)}]})
        assert answer.status_code == 422
        assert [row["shard"] for row in (await fresh.client.get("/v1/shards")).json()["items"]] == [1]


async def test_a_host_with_the_old_map_puts_nothing_on_a_shard_that_was_removed(
    world: World, host: QueueHost
) -> None:
    api = Api(host)
    await api.enqueue_one("t", id=api.new_id(0))
    await api.ack(await api.dequeue_one("t"))
    await world.run("drain", "0", "--yes")
    connection = await world.database.connect("queue_000")
    await connection.execute("TRUNCATE ended, ended_old, lease")
    await connection.close()
    await world.run(*REMOVE)
    [result] = await api.enqueue({"topic": "t", "id": api.new_id(0)})
    assert (result["status"], result["code"], result["outcome"]) == ("refused", "shard_unavailable", "none")


async def test_a_shard_that_was_removed_is_asked_nothing_and_has_no_metrics(world: World, host: QueueHost) -> None:
    api, loops = Api(host), host.app.app.state.loops
    for number in (0, 1):
        await api.enqueue_one("t", id=api.new_id(number))
        await api.ack(await api.dequeue_one("t"))
    metrics = ('shard="0"', 'shard="queue_000"')
    await _round(host)
    told = (await host.client.get("/metrics")).text
    assert all(label in told for label in metrics)
    assert any(loop.shard == 0 for loop in loops)
    await world.run("drain", "0", "--yes")
    connection = await world.database.connect("queue_000")
    await connection.execute("TRUNCATE ended, ended_old, lease")
    await connection.close()
    await world.run(*REMOVE)
    await api.enqueue_one("t", id=api.new_id(1))
    await follow(host)
    asked = host.stores[0].pool.errors._value.get(), host.stores[0].pool.statements

    with capture_logs() as lines:
        await _round(host)
        assert len(await api.dequeue("t", 9)) == 1
        assert await api.dequeue("t", 9) == []
        await _round(host)
    assert [line for line in lines if line["log_level"] not in ("debug", "info")] == []
    assert (host.stores[0].pool.errors._value.get(), host.stores[0].pool.statements) == asked
    assert not any(loop.shard == 0 for loop in loops)
    told = (await host.client.get("/metrics")).text
    assert not any(label in told for label in metrics)


async def test_an_id_of_a_shard_that_was_removed_is_not_found(world: World, host: QueueHost) -> None:
    api = Api(host)
    mine = api.new_id(0)
    await world.run("drain", "0", "--yes")
    await world.run(*REMOVE)
    await follow(host)
    assert (await api.get(f"items/{mine}")).status_code == 404
    logged = await api.get(f"items/{mine}/logs")
    assert (logged.status_code, logged.json()["items"]) == (200, [])
    assert (await api.get("why", item=mine)).status_code == 404
    assert (await api.get("why")).json()["sentence"] == "It holds nothing."
    assert [found["status"] for found in await api.results("items/states", {"ids": [mine]})] == ["not_found"]
    assert await api.ack({"id": mine, "lease_token": new_id(0)}) == ["not_found"]
    assert await api.cancel(mine) == ["not_found"]
    for listing in ("items", "dead", "topics", "workers", "operations"):
        assert (await api.get(listing)).status_code == 200, listing
    await api.enqueue_one("t")
    purged = await api.post("topics/purge", {"topic": "t"})
    assert purged.json()["operation"]["state"] == "done", purged.text


async def _round(host: QueueHost) -> None:
    """A step of each duty."""
    await host.process.ownership.step()
    for loop in list(host.app.app.state.loops):
        await loop._round()


async def set_limits(api: Api, **limits: Any) -> None:
    path = f"/v1/namespaces/{api.namespace}/topics/limits"
    answer = await api.host.client.put(path, json={"topic": "t", **limits}, headers=api.headers)
    assert answer.status_code == 200, answer.text


async def test_what_a_limited_topic_had_leased_on_a_shard_that_was_removed_takes_no_room(
    world: World, host: QueueHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.host(clock=host.clock) as behind:
        api, late = Api(host), Api(host).on(behind)
        await set_limits(api, concurrency=1)
        await behind.process.gates.read()
        await world.run("drain", "0", "--yes")
        await follow(host)
        await api.enqueue(*({"topic": "t", "id": api.new_id(1)} for _ in range(4)))
        leave = host.process.gates.leave

        async def not_known_where(*args: Any, **_: Any) -> None:  # as behind a claim that was late
            await leave(*args)

        with monkeypatch.context() as patch:
            patch.setattr(host.process.gates, "leave", not_known_where)
            [held] = await api.dequeue("t", 10)  # while shard 0 might have leased it, too
        connection = await world.database.connect("queue_000")
        await connection.execute("TRUNCATE ended, ended_old, lease")
        await connection.close()
        await world.run(*REMOVE)
        await follow(host)

        assert await api.ack(held) == ["acked"]
        [held] = await api.dequeue("t", 10)
        assert await late.dequeue("t", 10) == []  # whose map still has shard 0
        assert await api.ack(held) == ["acked"]
        assert len(await api.dequeue("t", 10)) == 1


async def test_what_a_key_had_leased_on_a_shard_that_was_removed_takes_no_room(
    world: World, host: QueueHost
) -> None:
    api = Api(host)
    await set_limits(api, key_concurrency=1)
    await world.run("drain", "0", "--yes")
    await follow(host)
    await api.enqueue({"topic": "t", "fairness_key": "a", "id": api.new_id(0)})
    assert await api.ack((await api.dequeue("t", 10))[0]) == ["acked"]  # its gate has not asked what became of it
    await api.enqueue(*({"topic": "t", "fairness_key": "a", "id": api.new_id(1)} for _ in range(3)))
    connection = await world.database.connect("queue_000")
    await connection.execute("TRUNCATE ended, ended_old, lease")
    await connection.close()
    await world.run(*REMOVE)
    await follow(host)
    home = await world.database.connect("queue_001")
    by_map = (
        "UPDATE topic_gate SET held = (held::jsonb || jsonb_build_object('map', $1::int))::text WHERE held <> '{}'"
    )
    await home.execute(by_map, 99)  # let through by who follows a newer map, of which shard 0 may be
    assert await api.dequeue("t", 10) == []
    await home.execute(by_map, 1)
    await home.close()
    host.process.gates.opened(api.namespace)
    assert len(await api.dequeue("t", 10)) == 1


async def test_limits_and_quotas_that_are_lifted_once_a_shard_was_removed_are_lifted(
    world: World, host: QueueHost
) -> None:
    api = Api(host)
    await set_limits(api, concurrency=1)
    quotas = f"/v1/namespaces/{api.namespace}"
    assert (await host.client.put(quotas, json={"items_max": 1})).status_code == 200
    await world.run("drain", "0", "--yes")
    await world.run(*REMOVE)
    await follow(host)

    await set_limits(api)
    assert (await host.client.put(quotas, json={})).status_code == 200
    await host.process.quotas.step()
    await host.process.gates.read()
    assert {r["status"] for r in await api.enqueue({"topic": "t"}, {"topic": "t"})} == {"enqueued"}
    assert len(await api.dequeue("t", 10)) == 2


async def test_a_shard_that_was_drained_and_then_moved_can_be_removed(world: World) -> None:
    """The note of its move travels with it."""
    await world.run("drain", "1", "--yes")
    await world.move()
    assert "removed" in await world.run("remove", "1", "--yes")
    assert [address.number for address in read(world.map, "queue").shards] == [0]


async def test_a_removal_that_dies_is_finished_by_the_same_command(world: World) -> None:
    await world.run("drain", "0", "--yes")
    await world.run(*REMOVE, crash_at="shard_closed", code=CRASHED)
    assert [address.number for address in read(world.map, "queue").shards] == [0, 1]
    await world.run(*REMOVE)
    assert [address.number for address in read(world.map, "queue").shards] == [1]


async def test_the_last_shard_and_dag_shards_stay(world: World) -> None:
    await world.run("drain", "0", "--yes")
    await world.run(*REMOVE)
    await world.run("drain", "1", "--yes", code=1)
    await world.run("remove", "1", "--yes", code=1)
    assert "no shard 0" in await world.run(*REMOVE, code=1)


async def test_a_shard_is_drained_and_removed_under_load(world: World) -> None:
    async with loaded(world) as load:
        await load.until(50)
        await world.run("drain", "0", "--yes")
        async with asyncio.timeout(END_S):
            while True:
                load.client._shards.forget()  # within a minute it would by itself
                await load.until(20)
                # What ended there shall be long ago.
                connection = await world.database.connect("queue_000")
                await connection.execute("TRUNCATE ended, ended_old")
                await connection.execute(
                    "DELETE FROM lease l WHERE NOT EXISTS (SELECT FROM item i WHERE i.id = ANY(l.ids))"
                )
                await connection.close()
                try:
                    await world.run(*REMOVE)
                except AssertionError as error:
                    assert "still holds" in str(error)
                else:
                    break
        await load.until(50)
    assert [address.number for address in read(world.map, "queue").shards] == [1]


async def test_the_dag_service_is_told_what_is_gone_by_processes_old_and_new(world: World, redis_url: str) -> None:
    """One has seen the shard leave; one began later and never knew it. One that is only away is not gone."""
    item = {"topic": "t", "ack_context": {}}

    async def answers(queue: HeadgateQueue) -> list[list[str | None]]:
        await queue.shards()
        mine = [new_id(number) for number in (0, 1)]
        found = [
            await queue.enqueue("default", [json.dumps({**item, "id": each}) for each in mine]),
            await queue.revive("default", [(each, None) for each in mine]),
            await queue.cancel("default", mine),
        ]
        return [[answer.code or answer.status for answer in each] for each in found]

    def service() -> Any:
        return apps.queue_service(world.database, redis_url, shards="", shards_file=world.map, shard_join_s=0.0)

    def asking(url: str) -> HeadgateQueue:
        return HeadgateQueue(url, apps.DAG_TOKEN, clock=SystemClock(), shards_refresh_s=0.0)

    async with service() as old:
        queue = asking(old.url)
        await world.run("drain", "0", "--yes")
        await world.run(*REMOVE)
        while [row["shard"] for row in (await old.client.get("/v1/shards")).json()["items"]] != [1]:
            await asyncio.sleep(0.01)
        assert (await old.client.get("/v1/shards/0")).status_code == 404
        gone = [
            ["shard_removed", "enqueued"],
            ["not_found", "already_enabled"],
            ["not_found", "cancelled"],
        ]
        assert await answers(queue) == gone
        await queue.close()
    async with service() as fresh:
        queue = asking(fresh.url)
        assert await answers(queue) == gone
        await queue.close()
