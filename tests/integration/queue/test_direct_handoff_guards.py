"""What a revive or an ack may not do, it may not do where a call waits for what it makes ready either."""

import pytest

from headgate._ids import shard_of
from tests.contract.test_queue_managed import managed
from tests.integration.queue.test_direct_handoff import FIVE, ONE, api, disable, items_of, waiting
from tests.support.queue_host import Api

__all__ = ["api"]

DAY_S = 24 * 3600


async def test_another_namespace_opens_nothing(api: Api) -> None:
    item_id = await disable(api)
    connection = await waiting(api)
    stranger = Api(api.host)
    await stranger.enqueue_one("t", id=stranger.new_id(0))

    assert await stranger.revive(item_id) == ["not_found"]
    assert await api.state(item_id) == "disabled"
    assert await api.revive(item_id) == ["revived"]
    assert [item["id"] for item in await items_of(connection)] == [item_id]


async def test_the_dead_stay_dead(api: Api) -> None:
    item_id = await api.enqueue_one("t", id=api.new_id(0))
    assert await api.nack(await api.dequeue_one("t"), final=True) == ["dead"]
    connection = await waiting(api)

    assert await api.revive(item_id) == ["finished"]
    assert await api.state(item_id) == "dead"
    connection.hang_up()
    await connection.task


async def test_an_item_of_a_dag_is_opened_by_the_dag_service_only(api: Api) -> None:
    item_id = await managed(api, disabled=True)
    connection = await waiting(api)

    assert await api.revive(item_id) == ["managed"]
    assert await api.state(item_id) == "disabled"
    assert await api.as_dag_service().revive(item_id) == ["revived"]
    assert [item["id"] for item in await items_of(connection)] == [item_id]


async def test_what_is_opened_with_a_delay_waits_for_its_end(api: Api) -> None:
    late, now = await disable(api, delay_s=30), await disable(api, priority=1)
    connection = await waiting(api, ONE)

    assert await api.revive(late, now) == ["revived", "revived"]
    assert [item["id"] for item in await items_of(connection)] == [now]
    assert await api.state(late) == "delayed"
    assert await api.host.count("lease", f"'{late}' = ANY (ids)") == 0
    await api.host.pass_time(31)
    assert (await api.dequeue_one("t"))["id"] == late


async def test_another_namespace_acks_nothing(api: Api) -> None:
    item_id = await api.enqueue_one("w", id=api.new_id(0), ack_topic="t")
    working = await api.dequeue_one("w")
    connection = await waiting(api)
    stranger = Api(api.host)
    await stranger.enqueue_one("t", id=stranger.new_id(0))

    assert await stranger.ack(working) == ["not_found"]
    assert await api.state(item_id) == "leased"
    assert await api.ack(working) == ["acked"]
    assert [item["payload"]["id"] for item in await items_of(connection)] == [item_id]


async def test_an_ack_frees_no_key_of_another_namespace(api: Api) -> None:
    """Both items live on one shard, and their keys have one text."""
    other = Api(api.host)
    for number in range(1_000):
        keyed = {"topic": "w", "idempotency_key": str(number**5)}
        [[mine], [theirs]] = [await each.enqueue(keyed) for each in (api, other)]
        if shard_of(mine["id"]) == shard_of(theirs["id"]) == 0:
            break
    worked = [item for item in await api.dequeue("w", 1_000) if item["id"] == mine["id"]]
    connection = await waiting(api)

    assert await api.ack(*worked) == ["acked"]
    await api.clock.advance(DAY_S + 60)
    assert await other.enqueue(keyed) == [{"id": theirs["id"], "status": "duplicate"}]
    connection.hang_up()
    await connection.task


@pytest.mark.parametrize("verb", ["revive", "ack"])
async def test_a_call_takes_no_more_than_it_asks_for(api: Api, verb: str) -> None:
    if verb == "revive":
        ids = [await disable(api) for _ in range(7)]
        connection = await waiting(api)
        await api.revive(*ids)
    else:
        for _ in range(7):
            await api.enqueue_one("w", id=api.new_id(0), ack_topic="t")
        worked = await api.dequeue("w", 7)
        connection = await waiting(api, FIVE)
        await api.ack(*worked)
    assert len(await items_of(connection)) == 5
    assert (await api.topic("t"))["ready"] == 2
