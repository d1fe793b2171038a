"""What is set for namespaces and topics holds on shards that were not there, or away, when it was set."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from services.queue.operations import agreement
from services.queue.operations.agreement import AGAIN_S, CHECK_S, Given
from services.queue.store.shard_store import Store
from services.queue.store.topics import time_to_give
from tests.support import apps
from tests.support.databases import Databases
from tests.support.ports import free_port
from tests.support.queue_fixtures import own_host
from tests.support.queue_host import Api, QueueHost, queue_host
from tests.support.shard_world import World, follow, host, world

__all__ = ["host", "own_host", "world"]

SHARES = [{"priority": 5, "share": 0.5}]


@pytest.fixture
async def half(own_host: QueueHost) -> AsyncIterator[QueueHost]:
    """A process whose shard 1 is away."""
    dsn = own_host.database.dsn
    away = f"0={dsn} 1=postgresql://postgres@127.0.0.1:{free_port()}/none"
    async with queue_host(own_host.database, own_host.clock, shards=away) as made:
        yield made


async def give(api: Api, code: int = 200, **limits: int) -> None:
    answer = await api.host.client.put(f"/v1/namespaces/{api.namespace}", json=limits)
    assert answer.status_code == code, answer.text
    if code == 503:
        assert answer.json()["outcome"] == "unknown"
        assert "bring it" in answer.json()["detail"]


async def steer(api: Api, verb: str, topic: str = "t", code: int = 200) -> None:
    answer = await api.post(f"topics/{verb}", {"topic": topic})
    assert answer.status_code == code, answer.text


async def share(api: Api, shares: list[dict[str, Any]], topic: str = "t", code: int = 200) -> None:
    answer = await api.post("topics/configure", {"topic": topic, "min_share": shares})
    assert answer.status_code == code, answer.text


async def fill(api: Api, shard: int, count: int = 1, **fields: Any) -> None:
    await api.enqueue(*({"topic": "t", "id": api.new_id(shard), **fields} for _ in range(count)))


async def standing(host: QueueHost, shard: int) -> tuple[dict[str, str], dict[str, bool], dict[str, str | None]]:
    """Settings by namespace, pauses and shares by topic, as the shard has them."""
    connection = await host.database.connect(f"queue_{shard:03}")
    try:
        settings = await connection.fetch("SELECT name, settings FROM namespace WHERE set_at IS NOT NULL")
        topics = await connection.fetch("SELECT name, paused, min_share FROM topic")
    finally:
        await connection.close()
    return (
        {row["name"]: row["settings"] for row in settings},
        {row["name"]: row["paused"] for row in topics if row["paused"]},
        {row["name"]: row["min_share"] for row in topics if row["min_share"]},
    )


# -- a shard that is added later ------------------------------------------------------------------------------


async def add(world: World, host: QueueHost) -> None:
    await world.run("add", "2", "--dsn", world.other.dsn, "--yes")
    await follow(host)


async def test_a_shard_that_joins_keeps_to_quotas_that_were_set_before(world: World, host: QueueHost) -> None:
    api = Api(host)
    await give(api, items_max=10, in_flight_max=3)
    await add(world, host)
    await fill(api, 2, 8)
    await host.process.quotas.step()
    assert [result["status"] for result in await api.enqueue(*[{"topic": "t"}] * 4)] == ["enqueued"] * 2 + [
        "refused"
    ] * 2
    assert len(await api.dequeue("t", 9)) == 3
    await host.process.quotas.step()
    assert await api.dequeue("t", 9) == []


async def test_a_paused_topic_is_paused_on_a_shard_that_joins(world: World, host: QueueHost) -> None:
    api = Api(host)
    await steer(api, "pause")
    await add(world, host)
    await fill(api, 2)
    assert await api.dequeue("t") == []
    await steer(api, "resume")
    assert len(await api.dequeue("t")) == 1


async def test_minimum_shares_hold_with_the_shards_gone_on_which_they_were_set(
    world: World, host: QueueHost
) -> None:
    api = Api(host)
    await share(api, SHARES)
    await add(world, host)
    for number in (0, 1):
        host.stores[number].shard.retire()
    await host.process.topics.read_shares()
    await fill(api, 2, 20, priority=0)
    await fill(api, 2, 20, priority=5)
    assert [item["priority"] for item in await api.dequeue("t", 10)].count(5) == 5


async def test_a_shard_of_which_nobody_knows_what_it_missed_hands_out_nothing(
    world: World, host: QueueHost
) -> None:
    """While it joins the others are away: a pause may be there of which it has not heard."""
    api = Api(host)
    await steer(api, "pause")
    for number in (0, 1):
        host.stores[number].pool.is_retired = True
    await add(world, host)
    await fill(api, 2)
    await fill(api, 2, ack_topic="done")
    assert await api.dequeue("t", 9) == []
    assert host.process.agreement.pause_s() == AGAIN_S
    for number in (0, 1):
        host.stores[number].pool.is_retired = False
    await host.process.agreement.step()
    assert await api.dequeue("t", 9) == []
    assert host.process.agreement.pause_s() == CHECK_S
    await steer(api, "resume")
    assert len(await api.dequeue("t", 9)) == 2


async def test_a_process_that_begins_with_one_shard_more_brings_it_everything(
    databases: Databases, redis_url: str
) -> None:
    database = await databases.create(queue_shards=3, dag_shards=1)
    async with queue_host(database, shards=f"{database.dsn}#2") as before:
        api = Api(before)
        await give(api, items_max=10)
        await steer(api, "pause")
        await share(api, SHARES, "shared")
        async with apps.queue_service(database, redis_url):
            found = await standing(before, 2)
    assert found == ({api.namespace: '{"items_max": 10}'}, {"t": True}, {"shared": "[[5, 0.5]]"})
    await databases.drop(database)


async def test_more_than_a_page_is_brought(databases: Databases) -> None:
    database = await databases.create(queue_shards=2, dag_shards=1)
    async with queue_host(database, shards=f"{database.dsn}#1") as before:
        for number in range(7):
            api = Api(before, f"n{number}")
            await give(api, items_max=number)
            await steer(api, "pause", f"p{number}")
            await share(api, SHARES, f"s{number}")
        async with queue_host(database, before.clock, given_rows_max=2) as after:
            await steer(Api(after, "n3"), "resume", "p3")
            await give(Api(after, "n5"), items_max=55)
            await after.process.agreement.step()
            first, second = [await standing(after, shard) for shard in (0, 1)]
    assert first == second
    assert {name: len(part) for name, part in zip("qps", first, strict=True)} == {"q": 7, "p": 6, "s": 7}
    await databases.drop(database)


# -- a shard that was away ------------------------------------------------------------------------------------


async def test_a_shard_that_was_away_is_brought_what_was_set_meanwhile(
    own_host: QueueHost, half: QueueHost
) -> None:
    api, whole = Api(half), Api(half).on(own_host)
    whole.namespace = api.namespace
    await give(whole, items_max=10)
    await steer(whole, "pause", "opened")
    await share(whole, SHARES, "plain")
    await give(api, 503)
    await steer(api, "resume", "opened", 503)
    await steer(api, "pause", "closed", 503)
    await share(api, [], "plain", 503)
    await share(api, SHARES, "shared", 503)
    assert half.process.agreement.pause_s() == AGAIN_S
    await own_host.process.agreement.step()

    wanted = ({api.namespace: "{}"}, {"closed": True}, {"shared": "[[5, 0.5]]"})
    assert [await standing(own_host, shard) for shard in (0, 1)] == [wanted, wanted]
    await own_host.process.quotas.step()
    assert own_host.process.quotas.of(api.namespace) is None


async def test_the_last_that_was_set_stands_whatever_the_clocks_of_servers_say(
    own_host: QueueHost, half: QueueHost
) -> None:
    """The clock of the shard that was away is an hour ahead."""
    connection = await own_host.database.connect("queue_001")
    await connection.execute(
        "CREATE OR REPLACE FUNCTION shard_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS "
        "'SELECT clock_timestamp() + interval ''1 hour'''"
    )
    await connection.close()
    api, whole = Api(half), Api(own_host)
    whole.namespace = api.namespace
    await give(whole, items_max=10)
    await steer(whole, "pause")
    await give(api, 503, items_max=20)
    await steer(api, "resume", code=503)
    await own_host.process.agreement.step()
    assert [await standing(own_host, shard) for shard in (0, 1)] == [
        ({api.namespace: '{"items_max": 20}'}, {}, {})
    ] * 2


async def test_what_is_set_while_older_settings_are_brought_stands(
    own_host: QueueHost, half: QueueHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The older was read, and is written after the newer."""
    api, whole = Api(half), Api(own_host)
    whole.namespace = api.namespace
    await steer(api, "pause", code=503)
    bring = agreement._give
    was_read, may_write = asyncio.Event(), asyncio.Event()

    async def slowly(store: Store, given: list[Given]) -> None:
        was_read.set()
        await may_write.wait()
        await bring(store, given)

    monkeypatch.setattr(agreement, "_give", slowly)
    bringing = asyncio.create_task(own_host.process.agreement.step())
    async with asyncio.timeout(60):
        await was_read.wait()
    monkeypatch.setattr(agreement, "_give", bring)
    await steer(whole, "resume")
    may_write.set()
    await bringing
    assert [(await standing(own_host, shard))[1] for shard in (0, 1)] == [{}, {}]


async def test_two_that_set_at_one_time_agree(own_host: QueueHost) -> None:
    """Each reached another shard first, under the same time."""
    await own_host.clock.freeze()
    await Api(own_host, "n").enqueue_one("t")
    at = await time_to_give(own_host.stores[0].pool, "n", "t")
    values = {"settings": ('{"items_max": 10}', '{"items_max": 9}'), "paused": (True, False)}
    values["min_share"] = ("[[5, 0.5]]", "")
    for shard, order in ((0, (0, 1)), (1, (1, 0))):
        for kind, pair in values.items():
            for one in order:
                place = (kind, "n", "" if kind == "settings" else "t")
                await agreement._give(own_host.stores[shard], [Given(place, at, pair[one])])
    wanted = ({"n": '{"items_max": 9}'}, {"t": True}, {"t": "[[5, 0.5]]"})
    assert [await standing(own_host, shard) for shard in (0, 1)] == [wanted, wanted]


async def test_quotas_go_by_what_the_shards_that_answer_say(own_host: QueueHost, half: QueueHost) -> None:
    """A namespace that enqueued on one shard alone has not been given anything there."""
    api = Api(own_host)
    await fill(api, 1, 3)
    await give(api, items_max=5)
    await own_host.process.quotas.step()
    assert (await own_host.client.get(f"/v1/namespaces/{api.namespace}")).json()["items_max"] == 5


async def test_settings_can_be_set_after_a_shard_was_removed(own_host: QueueHost) -> None:
    api = Api(own_host)
    own_host.stores[1].shard.retire()
    await give(api, items_max=10)
    await steer(api, "pause")
    await share(api, SHARES)
    await own_host.process.agreement.step()
    assert own_host.process.agreement.pause_s() == CHECK_S
