"""A number that is remembered stands for no topic any more: nothing is written under it, and nobody starves."""

import asyncio
from typing import Any

import pytest

from tests.support.queue_host import Api, QueueHost, queue_host

TOPICS = ("t", "told")


async def forget_topics(api: Api) -> None:
    """The topics are gone, as if another process had deleted them; this one remembers their numbers."""
    await api.host.rows(
        "DELETE FROM topic WHERE name = ANY ($2) AND namespace_id = "
        "(SELECT namespace_id FROM namespace WHERE name = $1)",
        api.namespace,
        list(TOPICS),
    )


@pytest.mark.parametrize(
    "fields",
    [{}, {"idempotency_key": "order/1"}, {"id": ""}, {"ack_topic": "told"}, {"fairness_key": "lane"}],
    ids=["plain", "keyed", "named", "told", "lane"],
)
async def test_what_is_taken_in_under_a_void_number_has_a_topic(own_api: Api, fields: dict[str, Any]) -> None:
    for topic in TOPICS:
        for shard in own_api.host.stores:
            await own_api.enqueue_one(topic, id=own_api.new_id(shard))
            assert await own_api.ack(await own_api.dequeue_one(topic)) == ["acked"]
    await forget_topics(own_api)
    given = fields | ({"id": own_api.new_id()} if "id" in fields else {})
    item_id = await own_api.enqueue_one("t", payload="new", **given)
    assert await own_api.state(item_id) == "ready"
    leased = await own_api.dequeue_one("t", wait_s=5)
    assert leased["payload"] == "new"
    assert await own_api.ack(leased) == ["acked"]
    if "ack_topic" in fields:
        assert [told["outcome"] for told in await own_api.completions("told")] == ["acked"]


async def test_a_consumer_that_remembers_a_void_number_gets_what_comes_under_the_new_one(
    own_host: QueueHost,
) -> None:
    async with queue_host(own_host.database, own_host.clock) as other:
        here, there = Api(own_host, "void"), Api(other, "void")
        await here.enqueue_one("t")
        await there.dequeue_one("t", lease_s=1)
        await forget_topics(here)
        waiting = asyncio.ensure_future(there.dequeue("t", wait_s=20))
        await here.enqueue_one("t", payload="new")
        assert [item["payload"] for item in await waiting] == ["new"]
