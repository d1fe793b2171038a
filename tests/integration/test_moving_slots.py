"""Slots change their homes with the keys in them: one key is one item, before, during and after."""

import asyncio
from typing import Any

import pytest

from services.queue.duties.far_keys import FarKeys
from shared import ids
from shared.shards.map_file import read, slot_of
from tests.support.queue_host import Api, QueueHost
from tests.support.shard_world import CRASHED, END_S, SHUT, WAITING, World, follow, host, refusals, world

__all__ = ["host", "world"]


def keyed(count: int = 40) -> list[dict[str, Any]]:
    return [{"topic": "t", "idempotency_key": f"k{n}", "payload": n} for n in range(count)]


async def add(world: World, host: QueueHost) -> None:
    """Shard 2 joins; it has no slots."""
    await world.run("add", "2", "--dsn", world.other.dsn, "--yes")
    await follow(host)


async def test_a_shard_that_joins_is_served_and_leaves_keys_where_they_are(world: World, host: QueueHost) -> None:
    api = Api(host, "default")
    first = await api.enqueue(*keyed())
    await add(world, host)

    again = await api.enqueue(*keyed())
    assert [(r["id"], r["status"]) for r in again] == [(r["id"], "duplicate") for r in first]
    item_id = await api.enqueue_one("there", id=api.new_id(2))
    assert [item["id"] for item in await api.dequeue("there", wait_s=5)] == [item_id]
    rows = (await host.client.get("/v1/shards")).json()["items"]
    assert [row["shard"] for row in rows] == [0, 1, 2]
    assert rows[2]["leased"] == 1


async def test_a_shard_that_joins_gets_items_once_every_host_knows_it(world: World, host: QueueHost) -> None:
    """Until then another host would call an item there unknown, and its lease lost."""
    async with world.host(shard_join_s=0.0) as late:
        await world.run("add", "2", "--dsn", world.other.dsn, "--yes")
        await follow(host)
        await follow(late)
        topics = [{"topic": f"t{n}"} for n in range(30)]
        homes = {
            made: {ids.shard_of((await Api(made, "default").enqueue(topic))[0]["id"]) for topic in topics}
            for made in (host, late)
        }
        assert homes == {host: {0, 1}, late: {0, 1, 2}}
        rows = {made: (await made.client.get("/v1/shards")).json()["items"] for made in (host, late)}
        assert (rows[host][2]["state"], rows[late][2]["state"]) == ("draining", "healthy")


async def test_one_key_before_and_after_its_slot_moved_is_one_item(world: World, host: QueueHost) -> None:
    api = Api(host, "default")
    first = await api.enqueue(*keyed())
    await add(world, host)
    output = await world.run("slots", "--rebalance", "--yes")
    await follow(host)
    assert "with 0 keys" not in output
    plan = read(world.map, "queue")
    assert {len(plan.slots_of(number)) for number in range(3)} == {1365, 1366}

    again = await api.enqueue(*keyed())
    assert [(r["id"], r["status"]) for r in again] == [(r["id"], "duplicate") for r in first]
    fresh = await api.enqueue(*({**item, "idempotency_key": f"n{i}"} for i, item in enumerate(keyed())))
    assert {int(r["id"][-3:], 16) for r in fresh} == {0, 1, 2}
    assert len(await api.dequeue("t", 99)) == 80


async def test_a_host_with_the_old_map_takes_no_key_of_a_slot_that_moved(world: World, host: QueueHost) -> None:
    async with world.host() as old:
        api = Api(old)
        await api.enqueue(*keyed())
        await add(world, host)
        await world.run("slots", "--rebalance", "--yes")
        await follow(host)
        plan = read(world.map, "queue")
        items = [{"topic": "t", "idempotency_key": f"n{n}"} for n in range(60)]
        moved = [plan.homes[slot_of(api.namespace, str(item["idempotency_key"]))] == 2 for item in items]
        assert any(moved) and not all(moved)

        for _ in range(2):
            results = await api.enqueue(*items)
            assert refusals([r for r, gone in zip(results, moved, strict=True) if gone]) == SHUT
            assert not [r for r, gone in zip(results, moved, strict=True) if r["status"] == "refused" and not gone]
        assert (await api.topic("t"))["ready"] == len(keyed()) + moved.count(False), (
            "what was refused is not there"
        )
        # Nor does it say of a key that has moved whose it is: that is the new home's to know.
        assert {r["status"] for r in await api.enqueue(*keyed())} == {"duplicate", "refused"}
        assert {r["status"] for r in await api.on(host).enqueue(*keyed())} == {"duplicate"}


@pytest.mark.parametrize("crash_at", ["", "slots_given_up", "slots_brought", "slots_flipped"])
async def test_the_gate_of_a_topic_goes_where_its_slot_goes(world: World, host: QueueHost, crash_at: str) -> None:
    """What a topic was granted, and for how long it is throttled, is known at its new home."""
    api = Api(host)
    await add(world, host)
    plan = read(world.map, "queue")
    at_one = [topic for n in range(99) if plan.homes[slot_of(api.namespace, topic := f"t{n}")] == 1]
    limited, throttled = at_one[:2]
    path = f"/v1/namespaces/{api.namespace}/topics/limits"
    body = {"topic": limited, "rate": 0.001, "burst": 2}
    assert (await host.client.put(path, json=body, headers=api.headers)).status_code == 200
    await api.enqueue(*({"topic": topic} for topic in (limited, throttled) for _ in range(6)))
    assert len(await api.dequeue(limited, 9)) == 2
    [held] = await api.dequeue(throttled)
    assert await api.nack(held, throttle_s=600) == ["requeued"]
    token = "00000000-0000-4000-8000-000000000001"

    if crash_at:
        await world.run("drain", "1", "--yes", crash_at=crash_at, code=CRASHED)
    await world.run("drain", "1", "--yes")
    await follow(host)
    await host.process.gates.read()
    for topic in (limited, throttled):
        host.process.gates.opened(api.namespace)
        assert not (await host.process.gates.enter(api.namespace, topic, token, 3)).items
    gates = {row["topic"]: row for row in await host.rows("SELECT * FROM topic_gate")}
    assert gates.keys() == {limited, throttled}, "one each"


async def test_a_key_that_waits_while_its_slot_goes_is_not_taken(world: World, host: QueueHost) -> None:
    api = Api(host, "default")
    await add(world, host)
    connection = await world.database.connect("queue_001")
    watch = await world.database.connect("queue_001")
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute(
        "INSERT INTO dedup (namespace_id, key, id, fingerprint) VALUES (1, 'x', $1, '')", api.new_id(1)
    )
    moving = asyncio.ensure_future(world.run("drain", "1", "--yes"))
    async with asyncio.timeout(END_S):
        while not await watch.fetchval(f"{WAITING} AND mode = 'ShareRowExclusiveLock'"):
            await asyncio.sleep(0.01)
        key = next(n for n in range(99) if host.process.enqueues.general._at(api.namespace, f"k{n}").number == 1)
        waiting = asyncio.create_task(api.enqueue({"topic": "t", "idempotency_key": f"k{key}"}))
        while await watch.fetchval(WAITING) < 2:
            await asyncio.sleep(0.01)
    await transaction.commit()

    assert refusals(await waiting) == SHUT
    await moving
    await follow(host)
    assert [r["status"] for r in await api.enqueue({"topic": "t", "idempotency_key": f"k{key}"})] == ["enqueued"]
    assert await host.count("dedup", "key = 'x'") == 1
    await connection.close()
    await watch.close()


@pytest.mark.parametrize("step", ["slots_given_up", "slots_brought", "slots_flipped"])
async def test_a_rebalance_that_dies_is_finished_by_the_same_command(
    world: World, host: QueueHost, step: str
) -> None:
    api = Api(host, "default")
    first = await api.enqueue(*keyed())
    await add(world, host)
    await world.run("slots", "--rebalance", "--yes", crash_at=step, code=CRASHED)
    await follow(host)
    between = await api.enqueue(*keyed())
    assert {r["status"] for r in between} <= {"duplicate", "refused"}
    await world.run("slots", "--rebalance", "--yes")
    await follow(host)

    again = await api.enqueue(*keyed())
    assert [(r["id"], r["status"]) for r in again] == [(r["id"], "duplicate") for r in first]
    assert await host.count("dedup") == 40, "each key is at its home and nowhere else"
    assert await host.count("shard", "move IS NOT NULL") == 0


async def test_a_key_whose_item_stayed_is_kept_until_that_has_ended_and_a_day_more(
    world: World, host: QueueHost
) -> None:
    api = Api(host, "default")
    await api.enqueue(*keyed())
    await world.run("add", "2", "--dsn", world.other.dsn, "--yes")
    await world.run("drain", "0", "--yes")
    await follow(host)
    duties = [FarKeys(store, host.stores, host.settings) for store in host.stores.values()]

    async def step() -> None:
        for duty in duties:
            await duty.step()

    await step()
    far = await host.count("dedup", "lives_at IS NOT NULL")
    assert far > 0
    assert await host.count("dedup", "until IS NOT NULL") == 0
    leased = await api.dequeue("t", 99)
    assert set(await api.ack(*leased)) == {"acked"}
    await step()

    assert await host.count("dedup", "lives_at IS NOT NULL") == 0
    assert await host.count("dedup", "until > now() + interval '23 hours'") == 40
    assert {r["status"] for r in await api.enqueue(*keyed())} == {"duplicate"}


async def test_a_unique_key_of_a_dead_item_is_free_also_where_its_slot_has_moved(
    world: World, host: QueueHost
) -> None:
    """And held again where that item is put back. A key that is not unique is held meanwhile."""
    api = Api(host, "default")
    unique = [{**item, "unique": True} for item in keyed()]
    await api.enqueue(*unique)
    assert set(await api.nack(*await api.dequeue("t", 99), final=True)) == {"dead"}
    await world.run("add", "2", "--dsn", world.other.dsn, "--yes")
    await world.run("drain", "0", "--yes")
    await follow(host)

    async def step() -> None:
        for store in host.stores.values():
            await FarKeys(store, host.stores, host.settings).step()

    await step()
    far = await host.count("dedup", "until = 'infinity'")
    assert 0 < far == await host.count("dedup", "lives_at IS NOT NULL")
    assert {r["status"] for r in await api.enqueue(*keyed())} == {"duplicate"}
    assert (await api.post("topics/redrive", {"topic": "t"})).status_code == 200
    await step()
    assert await host.count("dedup", "until IS NOT NULL") == 0
    assert {r["status"] for r in await api.enqueue(*unique)} == {"duplicate"}
    assert set(await api.nack(*await api.dequeue("t", 99), final=True)) == {"dead"}
    await step()
    assert {r["status"] for r in await api.enqueue(*unique)} == {"enqueued"}
    assert await host.count("dedup", "until IS NOT NULL OR lives_at IS NOT NULL") == 0


async def test_a_draining_shard_runs_empty_and_says_so(world: World, host: QueueHost) -> None:
    api = Api(host, "default")
    there = [await api.enqueue_one("t", id=api.new_id(0)) for _ in range(5)]
    await world.run("drain", "0", "--yes")
    await follow(host)

    states = [row["state"] for row in (await host.client.get("/v1/shards")).json()["items"]]
    assert states[0] == "draining" != states[1]
    results = await api.enqueue(*({"topic": f"t{n}"} for n in range(20)))
    results += await api.enqueue(*({"topic": "a", "affinity": f"a{n}"} for n in range(20)), *keyed(20))
    assert {int(r["id"][-3:], 16) for r in results} == {1}
    leased = [item for item in await api.dequeue("t", 99) if item["id"] in there]
    assert set(await api.ack(*leased)) == {"acked"} and len(leased) == 5
    status = await world.run("status")
    assert next(line for line in status.splitlines() if line.startswith("queue_000")).split()[-2:] == ["0", "0"]
    await world.run("drain", "1", "--yes", code=1)
    await world.run("undrain", "0", "--yes")
    await follow(host)
    assert {int(r["id"][-3:], 16) for n in range(9) for r in await api.enqueue({"topic": f"u{n}"})} == {0, 1}


async def test_what_the_new_home_has_decided_is_not_overwritten_by_finishing(
    world: World, host: QueueHost
) -> None:
    """The command died after the map's flip: a key ran out at its new home and was taken anew."""
    api = Api(host, "default")
    await api.enqueue(*keyed())
    await add(world, host)
    await world.run("slots", "--rebalance", "--yes", crash_at="slots_flipped", code=CRASHED)
    await follow(host)
    connection = await world.other.connect("queue_002")
    await connection.execute("UPDATE dedup SET until = now() - interval '1 second', lives_at = NULL")
    await connection.close()
    anew = [r for r in await api.enqueue(*keyed()) if r["status"] == "enqueued"]
    assert anew
    await world.run("slots", "--rebalance", "--yes")
    await follow(host)

    ids = {r["id"] for r in await api.enqueue(*keyed())}
    assert {r["id"] for r in anew} <= ids


async def test_a_topic_whose_slot_moves_keeps_what_its_gate_holds_back(world: World, host: QueueHost) -> None:
    api = Api(host, "default")
    await add(world, host)
    topics = [f"t{n}" for n in range(12)]
    for topic in topics:
        body = {"topic": topic, "rate": 0.001, "burst": 1, "key_concurrency": 2}
        await host.client.put("/v1/namespaces/default/topics/limits", json=body)
        await api.enqueue(*({"topic": topic, "fairness_key": "a"} for _ in range(3)))
        assert len(await api.dequeue(topic, 5)) == 1
    [held] = await api.enqueue({"topic": "slow"})
    leased = await api.dequeue_one("slow")
    assert (held["id"], await api.nack(leased, delay_s=0, throttle_s=600)) == (leased["id"], ["requeued"])
    before = {topic: host.process.gates._home(("default", topic)).number for topic in [*topics, "slow"]}

    await world.run("drain", "1", "--yes")
    await world.run("slots", "--rebalance", "--yes")
    await follow(host)
    await host.process.gates.read()
    moved = [topic for topic in topics if host.process.gates._home(("default", topic)).number != before[topic]]
    assert len(moved) >= 3
    for topic in [*topics, "slow"]:
        assert await api.dequeue(topic, 5) == []
    rows = [(row["topic"], row["key"]) for row in await host.rows("SELECT topic, key FROM topic_gate")]
    assert sorted(rows) == sorted([*((topic, key) for topic in topics for key in ("", "a")), ("slow", "")])
