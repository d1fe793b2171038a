"""Answers get lost: a call that is sent again, or never heard of again, does no harm."""

import asyncio

import pytest

from tests.support.locks import WAITING
from tests.support.queue_host import AT_ONCE, Api


@pytest.mark.parametrize("rotations", [0, 1])
async def test_a_retried_enqueue_of_an_item_that_was_acked_meanwhile(own_api: Api, rotations: int) -> None:
    """The first answer was lost, the item ran and is deleted; the retry must not run it again."""
    host = own_api.host
    item_id = own_api.new_id(1)
    await own_api.enqueue_one("t", id=item_id)
    await own_api.ack(await own_api.dequeue_one("t"))
    if rotations:
        await host.rows("UPDATE ended_rotation SET rotated_at = shard_now() - interval '1 day'")
        await host.retain()
        assert await host.count("ended") == 0
        assert await host.count("ended_old") == 1

    assert await own_api.enqueue({"topic": "t", "id": item_id}) == [{"id": item_id, "status": "duplicate"}]
    assert await own_api.dequeue("t") == []


async def test_a_retry_that_waits_for_the_ack_of_several_sees_what_it_leaves(own_api: Api) -> None:
    """The ack has deleted the items and is not committed when the retry meets them."""
    host = own_api.host
    items = [{"topic": "t", "id": own_api.new_id(0)} for _ in range(20)]
    await own_api.enqueue(*items)
    leased = await own_api.dequeue("t", 20)
    between, watcher = await host.database.connect("queue_000"), await host.database.connect("queue_000")
    transaction = between.transaction()
    await transaction.start()
    await between.execute("LOCK TABLE acked IN EXCLUSIVE MODE")

    async def until_waiting(count: int) -> None:
        async with asyncio.timeout(60):
            while await watcher.fetchval(WAITING) < count:
                await asyncio.sleep(0.005)

    ack = asyncio.create_task(own_api.ack(*leased))
    await until_waiting(1)
    retry = asyncio.create_task(own_api.enqueue(*items))
    await until_waiting(2)
    await transaction.rollback()

    assert set(await ack) == {"acked"}
    assert {result["status"] for result in await retry} == {"duplicate"}
    assert await own_api.dequeue("t", 20) == []
    await between.close()
    await watcher.close()


async def test_what_was_forgotten_is_too_old_to_come_back(own_api: Api) -> None:
    """`ended` is emptied by age: by then the id's own time refuses it."""
    host = own_api.host
    window_s = host.settings.id_window_s
    await host.retain()
    ids = [own_api.new_id(shard, age_s=-59) for shard in (0, 1)]
    for item_id in ids:
        await own_api.enqueue_one("t", id=item_id)
        await own_api.ack(await own_api.dequeue_one("t"))
    cancelled = own_api.new_id(0, age_s=-59)
    await own_api.cancel(cancelled)

    async def answers() -> set[str]:
        results = await own_api.enqueue(*({"topic": "t", "id": i} for i in (*ids, cancelled)))
        return {result.get("code", result["status"]) for result in results}

    while await host.count("ended") + await host.count("ended_old"):
        assert await answers() <= {"duplicate", "cancelled", "id_too_old"}
        assert own_api.clock.ahead_s < 4 * window_s
        await own_api.clock.advance(60)
        await host.retain()
    assert own_api.clock.ahead_s > window_s
    assert await answers() == {"id_too_old"}
    assert await own_api.dequeue("t") == []


async def test_ended_rotates_once_however_many_hosts_see_to_it(own_api: Api) -> None:
    host = own_api.host
    await own_api.enqueue_one("t", id=own_api.new_id(0))
    await own_api.ack(await own_api.dequeue_one("t"))
    await own_api.clock.advance(host.settings.id_window_s + 130)
    await asyncio.gather(*(host.retain() for _ in range(4)))

    assert (await host.count("ended"), await host.count("ended_old")) == (0, 1)


async def test_traffic_goes_on_while_ended_rotates(own_api: Api) -> None:
    """Statements keep the same text and find the swapped tables; nobody's answer is an error or a lie."""
    host = own_api.host
    rotating = True

    async def rotate() -> None:
        while rotating:
            for store in host.stores.values():
                schema = store.shard.address.schema
                await host.clock.connection.execute(
                    f"UPDATE {schema}.ended_rotation SET rotated_at = clock_timestamp() - interval '1 day'"
                )
            await host.retain()

    async def work(number: int) -> None:
        topic = f"t{number}"
        for turn in range(8):
            item_id = own_api.new_id(turn % 2)
            await own_api.enqueue_one(topic, id=item_id)
            leased = await own_api.dequeue_one(topic)
            assert await own_api.ack(leased) == ["acked"]
            assert await own_api.ack(leased) == ["already_acked"]

    rotator = asyncio.create_task(rotate())
    await asyncio.gather(*(work(number) for number in range(4)))
    rotating = False
    await rotator
    assert await host.count("item") == 0


async def test_a_lost_dequeue_answer_costs_one_lease(own_api: Api) -> None:
    item_id = await own_api.enqueue_one("t", lease_s=5, backoff=AT_ONCE)
    await own_api.dequeue_one("t")  # and nobody heard the answer
    assert await own_api.dequeue("t") == []
    await own_api.host.pass_time(6)

    again = await own_api.dequeue_one("t")
    assert (again["id"], again["attempt"]) == (item_id, 2)


@pytest.mark.parametrize("verb", ["ack", "nack", "extend"])
async def test_a_settling_call_sent_twice(own_api: Api, verb: str) -> None:
    await own_api.enqueue_one("t", ack_topic="done")
    leased = await own_api.dequeue_one("t")
    first, second = [await own_api._settle(verb, [leased], {}) for _ in range(2)]

    expected = {"ack": ("acked", "already_acked"), "nack": ("requeued", "lease_lost"), "extend": ("extended",) * 2}
    assert (first[0], second[0]) == expected[verb]
    assert len(await own_api.completions("done")) == (verb == "ack")


async def test_a_handler_cut_off_at_any_moment_leaks_nothing(own_api: Api) -> None:
    """Cancelled between any two steps, also between commit and answer: the item is whole, no connection lost."""
    for turn in range(30):
        item_id = own_api.new_id(turn % 2)
        task = asyncio.create_task(own_api.post("enqueue", {"items": [{"topic": "t", "id": item_id}]}))
        for _ in range(turn):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        [result] = await own_api.enqueue({"topic": "t", "id": item_id})
        assert result["status"] in ("enqueued", "duplicate")
        leased = await own_api.dequeue_one("t")
        assert leased["id"] == item_id
        task = asyncio.create_task(own_api.nack(leased, delay_s=0))
        for _ in range(turn):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert await own_api.cancel(item_id) == ["cancelled"]
    assert await own_api.host.count("item") == 0
    assert await own_api.topic("t") == {}
    assert (await own_api.host.client.get("/readyz")).status_code == 200
