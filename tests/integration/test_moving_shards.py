"""Shards move to other servers while the service runs, and commands die on the way: nothing is lost or doubled."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from headgate import AsyncClient
from shared.shards.map_file import read
from tests.support import apps
from tests.support.databases import Databases
from tests.support.queue_host import AT_ONCE, Api, QueueHost, reap_once
from tests.support.shard_world import CRASHED, END_S, SHUT, World, follow, host, in_process, refusals, world

__all__ = ["host", "world"]

# -- under load ---------------------------------------------------------------------------------------------


class Load:
    """Producers and consumers through the SDK; every item is known by its payload."""

    def __init__(self, client: AsyncClient) -> None:
        self.client = client
        self.sent: set[str] = set()
        self.got: Counter[str] = Counter()
        self.acked: set[str] = set()
        self.refused = 0
        self.stopping = False
        self.all_sent = False
        self.tasks: list[asyncio.Task[None]] = []

    async def produce(self, name: str) -> None:
        number = 0
        while not self.stopping:
            number += 1
            payload = f"{name}-{number}"
            item: dict[str, Any] = {"topic": "t", "payload": payload, "lease_s": 300}
            if number % 3 == 0:
                item["idempotency_key"] = payload
            elif number % 3 == 1:
                item["affinity"] = payload
            while True:
                [result] = await self.client.enqueue([item])  # type: ignore[list-item]
                if result.status in ("enqueued", "duplicate"):
                    break
                assert (result.status, result.code) == ("refused", "shard_unavailable"), result
                assert result.outcome == "none", "a fence cuts nobody's transaction"
                self.refused += 1
                await asyncio.sleep(0.02)
            self.sent.add(payload)
            await asyncio.sleep(0.002)

    async def consume(self) -> None:
        while True:
            jobs = await self.client.dequeue({"t": 20}, wait_s=0.2)
            if not jobs and self.all_sent and self.got.keys() >= self.sent:
                return
            self.got.update(job.payload for job in jobs)
            left = {job.id: job for job in jobs}
            while left:
                results = await self.client.ack([job.ack() for job in left.values()])
                for result in results:
                    if result.status == "refused":
                        self.refused += 1
                        await asyncio.sleep(0.02)
                        continue
                    assert result.status in ("acked", "already_acked"), result
                    self.acked.add(left.pop(result.id).payload)

    async def until(self, more: int) -> None:
        wanted = len(self.acked) + more
        async with asyncio.timeout(END_S):
            while len(self.acked) < wanted:
                for task in self.tasks:
                    assert not task.done(), task.result()
                await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def loaded(world: World) -> AsyncIterator[Load]:
    """A whole service on the map, in use."""
    async with (
        apps.queue_service(world.database, "", shards="", shards_file=world.map) as service,
        AsyncClient(queue_url=service.url) as client,
    ):
        load = Load(client)
        tasks = load.tasks = [asyncio.create_task(load.produce(f"p{n}")) for n in range(3)]
        tasks += [asyncio.create_task(load.consume()) for _ in range(2)]
        try:
            yield load
            load.stopping = True
            async with asyncio.timeout(END_S):
                await asyncio.gather(*tasks[:3])
                load.all_sent = True
                await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    assert set(load.got) == load.acked == load.sent
    assert set(load.got.values()) == {1}, "an item was handed out twice"


async def test_a_shard_moves_under_load(world: World) -> None:
    async with loaded(world) as load:
        await load.until(50)
        output = await world.move()
        await load.until(50)
    assert "moved" in output
    connection = await world.other.connect("queue_001")
    assert await connection.fetchval("SELECT state FROM shard") == "open"
    assert await connection.fetchval("SELECT count(*) FROM item") == 0
    await connection.close()
    again = await world.run("move", "1", "--to", world.other.dsn, "--yes")
    assert "nothing to do" in again


async def test_a_shard_is_added_and_another_drained_under_load(world: World) -> None:
    async with loaded(world) as load:
        await load.until(50)
        await world.run("add", "2", "--dsn", world.other.dsn, "--yes")
        await load.until(50)
        await world.run("slots", "--rebalance", "--yes")
        await load.until(50)
        await world.run("drain", "0", "--yes")
        await load.until(50)
    plan = read(world.map, "queue")
    assert {number: len(plan.slots_of(number)) for number in range(3)} == {0: 0, 1: 2048, 2: 2048}


# -- what survives a move -----------------------------------------------------------------------------------


async def test_leases_keys_ends_and_order_survive(world: World, host: QueueHost) -> None:
    api = Api(host)
    ids = [await api.enqueue_one("t", id=api.new_id(1), payload=n, backoff=AT_ONCE) for n in range(6)]
    keyed = await api.enqueue(*({"topic": "k", "idempotency_key": f"k{n}"} for n in range(30)))
    first, second, third = await api.dequeue("t", 3, lease_s=300)
    assert await api.ack(first) == ["acked"]
    await api.cancel(ids[3])
    await world.move()
    await follow(host)

    assert await api.ack(first) == ["already_acked"]
    assert await api.extend(second) == ["extended"]
    assert await api.ack(second) == ["acked"]
    assert await api.nack(third) == ["requeued"]
    assert (await api.enqueue({"topic": "t", "id": ids[0]}))[0]["status"] == "duplicate"
    assert (await api.enqueue({"topic": "t", "id": ids[3]}))[0]["status"] == "cancelled"
    again = await api.enqueue(*({"topic": "k", "idempotency_key": f"k{n}"} for n in range(30)))
    assert [r["id"] for r in again] == [r["id"] for r in keyed]
    assert {r["status"] for r in again} == {"duplicate"}
    assert [item["payload"] for item in await api.dequeue("t", 9)] == [4, 5, 2]
    # Numbers go on where they were: a new topic there does not take another's.
    fresh = await api.enqueue_one("another", id=api.new_id(1))
    assert [item["id"] for item in await api.dequeue("another", 9)] == [fresh]


async def test_a_shard_comes_back_to_where_it_was(world: World, host: QueueHost) -> None:
    api = Api(host)
    item_id = await api.enqueue_one("t", id=api.new_id(1))
    await world.move()
    await world.run("move", "1", "--to", world.database.dsn, "--yes", "--drop-old")
    await follow(host)

    assert await api.state(item_id) == "ready"
    assert read(world.map, "queue").shards[1].epoch == 5
    assert "open" in await world.run("status")


async def test_a_dag_goes_on_while_its_shard_moves(
    databases: Databases, world: World, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    database, path = world.database, world.map.with_name("dag.json")
    monkeypatch.setenv("HEADGATE_DAG_SHARDS", database.dag_shards)
    assert (await in_process("--service", "dag", "--map", str(path), "init", "--yes"))[0] == 0
    async with (
        apps.queue_service(database, redis_url) as queue,
        apps.dag_service(database, redis_url, queue.url, shards="", shards_file=path) as service,
        AsyncClient(queue_url=queue.url, dag_url=service.url) as client,
    ):
        nodes = [{"key": "a", "topic": "t"}, {"key": "b", "topic": "t", "upstream": ["a"]}]
        dag = (await service.client.post("/v1/namespaces/default/dags", json={"nodes": nodes})).json()["id"]
        [first] = await client.dequeue({"t": 1}, wait_s=20)
        code, output = await in_process(
            *("--service", "dag", "--map", str(path), "move", "0", "--to", world.other.dsn, "--yes")
        )
        assert code == 0, output
        await client.ack_one(first)
        [second] = await client.dequeue({"t": 1}, wait_s=20)
        await client.ack_one(second)
        ended = await service.client.get(f"/v1/namespaces/default/dags/{dag}/wait?timeout_s=20")
        assert ended.json()["state"] == "succeeded"


async def test_a_server_is_given_up_by_moving_its_dag_shard_beside_another(
    world: World, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    database, path = world.database, world.map.with_name("dag.json")
    monkeypatch.setenv("HEADGATE_DAG_SHARDS", database.dag_shards)

    async def shards(*argv: str, code: int = 0) -> str:
        found, output = await in_process("--service", "dag", "--map", str(path), *argv, "--yes")
        assert found == code, output
        return output

    await shards("init")
    monkeypatch.delenv("HEADGATE_DAG_SHARDS")
    await shards("add", "1", "--dsn", world.other.dsn)
    async with (
        apps.queue_service(database, redis_url) as queue,
        apps.dag_service(database, redis_url, queue.url, shards="", shards_file=path, shard_join_s=0.0) as service,
        AsyncClient(queue_url=queue.url, dag_url=service.url) as client,
    ):
        nodes = [{"key": "a", "topic": "t"}, {"key": "b", "topic": "t", "upstream": ["a"]}]
        made = [(await client.create_dag({"nodes": nodes})).id for _ in range(4)]
        assert {dag[-3:] for dag in made} == {"000", "001"}
        assert "stays in the map" in await shards("remove", "1", code=1)
        held = await client.dequeue({"t": 4}, wait_s=20)
        await shards("move", "1", "--to", database.dsn)
        for item in held:
            await client.ack_one(item)
        done = 0
        while done < len(made):
            for item in await client.dequeue({"t": 4}, wait_s=20):
                await client.ack_one(item)
                done += 1
        assert {(await client.dag(dag).wait(timeout_s=20)).state for dag in made} == {"succeeded"}
    assert [address.dsn for address in read(path, "dag").shards] == [database.dsn] * 2
    await shards("drop-old", "1", "--at", world.other.dsn)
    connection = await asyncpg.connect(world.other.dsn)
    left = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname LIKE '%dag!_001' ESCAPE '!'")
    assert [row["tablename"] for row in left] == ["shard"], "the row that says that it moved"
    await connection.close()


# -- who may not write --------------------------------------------------------------------------------------


async def test_a_host_with_the_old_map_can_do_nothing(world: World, host: QueueHost) -> None:
    async with world.host() as old:
        api = Api(old)
        await api.enqueue_one("t", id=api.new_id(1))
        leased = await api.dequeue_one("t")
        fresh = api.on(host)
        await world.move()
        await follow(host)

        for _ in range(2):
            # First over the connections that it has, then over new ones.
            assert refusals(await api.enqueue({"topic": "t", "id": api.new_id(1)})) == SHUT
            items = [{"id": leased["id"], "lease_token": leased["lease_token"]}]
            assert refusals(await api.results("ack", {"items": items})) == SHUT
            assert refusals(await api.results("cancel", {"ids": [leased["id"]]})) == SHUT
            assert await api.dequeue("t", 5) == []
            await old.stores[1].shard.close()
        await reap_once(old.reapers[0])
        assert await fresh.ack(leased) == ["acked"]


async def test_calls_and_transactions_that_the_fence_meets(world: World, host: QueueHost) -> None:
    """One is open and commits: it is moved. One waits for the fence's lock: it finds no shard."""
    api = Api(host)
    first = await api.enqueue_one("t", id=api.new_id(1))
    before = await world.database.connect("queue_001")
    watch = await world.database.connect("queue_001")
    transaction = before.transaction()
    await transaction.start()
    await before.execute("UPDATE item SET error = 'written before' WHERE id = $1", first)
    moving = asyncio.ensure_future(world.move())
    async with asyncio.timeout(END_S):
        while not await watch.fetchval(
            "SELECT count(*) FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND NOT granted"
        ):
            assert not moving.done(), moving.result()
            await asyncio.sleep(0.01)
        waiting = asyncio.create_task(api.enqueue({"topic": "t", "id": api.new_id(1)}))
        while (
            await watch.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted AND pid <> pg_backend_pid()") < 2
        ):
            assert not waiting.done(), waiting.result()
            await asyncio.sleep(0.01)
    await transaction.commit()

    assert refusals(await waiting) == SHUT
    await moving
    await follow(host)
    assert (await api.item(first))["error"] == "written before"
    assert len(await api.dequeue("t", 9)) == 1
    await before.close()
    await watch.close()


async def test_an_open_transaction_of_an_old_host_cannot_go_on(world: World, host: QueueHost) -> None:
    """It has touched nothing yet, so the fence does not wait for it."""
    connection = await world.database.connect("queue_001")
    transaction = connection.transaction()
    await transaction.start()
    await connection.fetch("SELECT 1")
    await world.move()

    with pytest.raises(asyncpg.UndefinedTableError):
        await connection.fetch("DELETE FROM item")
    await connection.close()


async def test_migrations_make_no_second_shard_where_one_was(world: World) -> None:
    from migrations.shard import MigrationFailed, upgrade

    old = read(world.map, "queue").shards[1]
    await world.move()
    with pytest.raises(MigrationFailed, match="moved away"):
        await upgrade(old)
    await world.run("drop-old", "1", "--at", world.database.dsn, "--yes")
    with pytest.raises(MigrationFailed, match="moved away"):
        await upgrade(old)


async def test_an_empty_shard_of_the_same_number_is_not_taken_for_the_one_meant(
    world: World, host: QueueHost, databases: Databases
) -> None:
    """Somebody pointed the map's entry at a server where the migrations made the schema anew."""
    stranger = await databases.create(queue_shards=2)
    try:
        connection = await stranger.connect("queue_001")
        await connection.execute("UPDATE shard SET incarnation = gen_random_uuid()")
        await connection.close()
        text = (
            world.map.read_text()
            .replace(world.database.name, stranger.name)
            .replace('"version": 1', '"version": 2')
        )
        world.map.write_text(text)
        await follow(host)
        api = Api(host)

        assert refusals(await api.enqueue({"topic": "t", "id": api.new_id(1)})) == SHUT
        assert "not the shard of the map" in await world.run("status")
    finally:
        await host.close()
        await databases.drop(stranger)


# -- commands that die --------------------------------------------------------------------------------------

STEPS = ["move_prepared", "move_fenced", "move_copied", "move_opened", "move_flipped"]


@pytest.mark.parametrize("step", STEPS)
async def test_a_move_that_dies_is_finished_by_the_same_command(world: World, host: QueueHost, step: str) -> None:
    api = Api(host)
    ids = {await api.enqueue_one("t", id=api.new_id(1)) for _ in range(20)}
    await world.move(crash_at=step, code=CRASHED)
    await follow(host)
    results = await api.enqueue({"topic": "t", "id": api.new_id(1)})
    if step in ("move_prepared", "move_flipped"):
        assert results[0]["status"] == "enqueued"
        ids.add(results[0]["id"])
    else:
        assert refusals(results) == SHUT
    await world.move()
    await follow(host)

    assert {item["id"] for item in await api.dequeue("t", 99)} == ids
    assert world.other.name in read(world.map, "queue").shards[1].dsn
    await world.run("drop-old", "1", "--at", world.database.dsn, "--yes")


@pytest.mark.parametrize("step", ["move_fenced", "move_copied", "move_opened"])
async def test_a_move_that_died_may_be_undone(world: World, host: QueueHost, step: str) -> None:
    api = Api(host)
    ids = {await api.enqueue_one("t", id=api.new_id(1)) for _ in range(5)}
    await world.move(crash_at=step, code=CRASHED)
    await world.run("move", "1", "--to", world.other.dsn, "--abort", "--yes")
    await follow(host)
    ids.add(await api.enqueue_one("t", id=api.new_id(1)))
    await world.move()
    await follow(host)

    assert {item["id"] for item in await api.dequeue("t", 99)} == ids


async def test_nothing_is_done_without_yes(world: World) -> None:
    before = world.map.read_text()
    for command in (
        ("move", "1", "--to", world.other.dsn),
        ("add", "2", "--dsn", world.other.dsn),
        ("drain", "1"),
        ("slots", "--rebalance"),
    ):
        assert "nothing was done" in await world.run(*command)
    assert world.map.read_text() == before
    connection = await asyncpg.connect(world.other.dsn)
    assert await connection.fetchval("SELECT count(*) FROM pg_namespace WHERE nspname LIKE '%queue%'") == 0
    await connection.close()


async def test_what_cannot_be_moved_is_refused_in_one_line(world: World) -> None:
    for command, why in (
        (("move", "7", "--to", world.other.dsn), "no shard 7"),
        (("move", "1", "--to", "postgresql://nobody@127.0.0.1:1/x"), "cannot be reached"),
        (("move", "1", "--to", world.other.dsn, "--abort", "--yes"), "not being moved"),
        (("drop-old", "1", "--at", world.other.dsn, "--yes"), "nothing that a finished move"),
        (("add", "1", "--dsn", world.other.dsn, "--yes"), "already"),
    ):
        assert why in await world.run(*command, code=1)
