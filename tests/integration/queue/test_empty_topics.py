"""Topics that were empty for long go, with all that is known of them; what anybody uses, or has set, stays."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from services.queue.duties.empty_topics import EmptyTopics
from tests.support.queue_host import Api, QueueHost, queue_host

DAY_S = 86_400.0


async def numbers(api: Api) -> dict[str, list[int]]:
    """The numbers of the namespace's topics over all shards, by name."""
    found: dict[str, list[int]] = {}
    for row in await api.host.rows(
        "SELECT t.* FROM topic t JOIN namespace n USING (namespace_id) WHERE n.name = $1 ORDER BY topic_id",
        api.namespace,
    ):
        found.setdefault(row["name"], []).append(row["topic_id"])
    return found


async def use(api: Api, topic: str = "t", **fields: Any) -> None:
    """An item comes and goes, on the first shard."""
    await api.enqueue_one(topic, id=api.new_id(0), **fields)
    assert await api.ack(await api.dequeue_one(topic)) == ["acked"]


async def pass_days(host: QueueHost, days: float = 2) -> None:
    await host.fold()
    await host.pass_time(days * DAY_S)
    await host.delete_topics()


def duty(host: QueueHost) -> EmptyTopics:
    """The duty as another process of the first shard would do it."""
    return EmptyTopics(host.stores[0], host.settings)


async def test_what_was_empty_for_a_day_is_gone_with_its_counts(own_api: Api) -> None:
    await use(own_api)
    await pass_days(own_api.host, 0.9)
    assert await numbers(own_api) == {"t": [1, 1]} or "t" in await numbers(own_api)
    await pass_days(own_api.host)
    assert await numbers(own_api) == {}
    assert await own_api.host.count("topic_stat") == await own_api.host.count("topic")


async def test_a_topic_made_for_nothing_goes_too(own_api: Api) -> None:
    """Its item was a duplicate, say: nothing was ever counted in it."""
    store = own_api.host.stores[0]
    await store.names.make([(own_api.namespace, "never"), (own_api.namespace, "used")])
    await pass_days(own_api.host)
    assert await numbers(own_api) == {}


async def ready(api: Api) -> None:
    await api.enqueue_one("t", id=api.new_id(0))


async def delayed(api: Api) -> None:
    await api.enqueue_one("t", id=api.new_id(0), delay_s=20 * DAY_S)


async def disabled(api: Api) -> None:
    await api.enqueue_one("t", id=api.new_id(0), disabled=True)


async def leased(api: Api) -> None:
    await ready(api)
    await api.extend(await api.dequeue_one("t"), lease_s=43_200)


async def dead(api: Api) -> None:
    await ready(api)
    await api.nack(await api.dequeue_one("t"), final=True)


async def paused(api: Api) -> None:
    await api.post("topics/pause", {"topic": "t"})


async def shared_out(api: Api) -> None:
    await api.post("topics/configure", {"topic": "t", "min_share": [{"priority": 5, "share": 0.1}]})


async def told_of_another(api: Api) -> None:
    await api.enqueue_one("other", id=api.new_id(0), ack_topic="t", delay_s=20 * DAY_S)


async def told_of_another_namespace(api: Api) -> None:
    await Api(api.host).enqueue_one("u", id=api.new_id(0), ack_topic=f"{api.namespace}:t", disabled=True)


@pytest.mark.parametrize(
    "begin",
    [ready, delayed, disabled, leased, dead, paused, shared_out, told_of_another, told_of_another_namespace],
)
async def test_what_is_used_or_set_stays(own_api: Api, begin: Callable[[Api], Awaitable[None]]) -> None:
    await use(own_api)
    await begin(own_api)
    before = (await numbers(own_api))["t"]
    await own_api.host.fold()
    days = 0.45 if begin is leased else 2
    object.__setattr__(own_api.host.settings, "topic_retention_s", days * DAY_S / 2)
    await own_api.host.clock.advance(days * DAY_S)
    await own_api.host.delete_topics()
    after = (await numbers(own_api))["t"]
    assert set(after) <= set(before) and after, "it stays under its number where it is used"
    assert await own_api.host.count("topic", "retiring IS NOT NULL") == 0


async def test_lanes_keep_their_topic(own_api: Api) -> None:
    await own_api.enqueue_one("t", id=own_api.new_id(0), fairness_key="a")
    assert await own_api.ack(await own_api.dequeue_one("t", wait_s=5)) == ["acked"]
    assert await own_api.host.count("lane_clock") == 1
    await pass_days(own_api.host)
    assert "t" in await numbers(own_api)
    await own_api.host.rows("DELETE FROM lane")
    await own_api.host.rows("DELETE FROM lane_clock")
    await own_api.host.delete_topics()
    assert await numbers(own_api) == {}


async def test_the_dag_services_topics_stay(own_api: Api) -> None:
    dag = own_api.as_dag_service("_dag")
    await use(dag, "acks/0")
    await pass_days(own_api.host)
    assert "acks/0" in await numbers(dag)


async def test_counts_that_are_not_folded_keep_their_topic(own_api: Api) -> None:
    await use(own_api)
    await own_api.host.fold()
    await own_api.host.clock.advance(2 * DAY_S)
    await own_api.enqueue_one("t", id=own_api.new_id(0), payload="new")
    await own_api.host.delete_topics()
    assert (await own_api.dequeue_one("t"))["payload"] == "new"


async def test_a_topic_that_comes_again_has_another_number_and_everybody_finds_it(own_host: QueueHost) -> None:
    """Also processes that remember the old one, for every verb and list that begins with a topic's name."""
    async with queue_host(own_host.database, own_host.clock) as other:
        here, there = Api(own_host, "comes"), Api(other, "comes")
        for api in (here, there):
            await use(api)
            await api.get("dead", topic="t")
        before = (await numbers(here))["t"]
        await pass_days(own_host)
        assert await numbers(here) == {}
        await Api(own_host, "stranger").enqueue_one("t", payload="not yours")
        item = await here.enqueue_one("t", payload="new", id=here.new_id(0))
        assert not set(before) & set((await numbers(here))["t"])
        assert await there.state(item) == "ready"
        held = await there.dequeue_one("t", wait_s=5)
        assert (held["id"], held["payload"]) == (item, "new")
        await there.nack(held, final=True)
        for api in (here, there):
            groups = (await api.get("dead", topic="t")).json()["items"]
            assert [group["count"] for group in groups] == [1]
        assert (await there.post("topics/redrive", {"topic": "t"})).json()["items"] == 1
        await there.enqueue_one("t", payload="also", id=there.new_id(0))
        assert {held["payload"] for held in await here.dequeue("t", 5, wait_s=5)} == {"new", "also"}


@pytest.mark.parametrize("ends", ["commit", "rollback"])
async def test_a_transaction_that_saw_the_topic_unmarked_is_waited_for(own_api: Api, ends: str) -> None:
    """It may write under the number at any time, however long ago it looked."""
    host = own_api.host
    await use(own_api)
    await host.fold()
    await host.clock.advance(2 * DAY_S)
    [number] = (await numbers(own_api))["t"]
    writer = await host.database.connect("queue_000")
    old = writer.transaction(isolation="repeatable_read")  # its snapshot stays, as a slow statement's does
    await old.start()
    [topic] = await writer.fetch("SELECT * FROM topic WHERE topic_id = $1", number)
    assert topic["retiring"] is None
    first = duty(host)
    for _ in range(3):
        await first.step()
    await writer.execute(
        """WITH made AS (INSERT INTO item (id, namespace_id, topic_id, priority, max_attempts, enqueued_at,
            deliver_at, lease_s, at_most_once, managed, remembered, payload)
            SELECT $1, namespace_id, topic_id, 0, 0, shard_now(), shard_now(), 60, false, false, false, '"late"'
            FROM topic WHERE topic_id = $2 AND retiring IS NULL RETURNING *),
        counted AS (INSERT INTO stat_delta SELECT topic_id, 1, 0, 0, 0, 0, 6 FROM made)
        INSERT INTO ready SELECT topic_id, priority, deliver_at, id FROM made""",
        own_api.new_id(0),
        number,
    )
    for _ in range(3):
        await first.step()
    assert (await numbers(own_api))["t"] == [number]
    await (old.commit() if ends == "commit" else old.rollback())
    await writer.close()
    for _ in range(3):
        await first.step()
    if ends == "rollback":
        assert await numbers(own_api) == {}
        return
    assert (await numbers(own_api))["t"] == [number]
    assert (await own_api.dequeue_one("t", wait_s=5))["payload"] == "late"
    assert await host.count("topic", "retiring IS NOT NULL") == 0


@pytest.mark.parametrize(
    "fields",
    [{}, {"idempotency_key": "order/1"}, {"id": ""}, {"fairness_key": "lane"}, {"ack_topic": "t"}],
    ids=["plain", "keyed", "named", "lane", "told"],
)
async def test_a_marked_topic_is_taken_back_by_who_uses_it(own_api: Api, fields: dict[str, Any]) -> None:
    host = own_api.host
    for shard in (0, 1):  # on both, and known to this process
        await own_api.enqueue_one("t", id=own_api.new_id(shard))
        await own_api.ack(await own_api.dequeue_one("t"))
    await host.fold()
    await host.clock.advance(2 * DAY_S)
    before = await numbers(own_api)
    duties = [EmptyTopics(store, host.settings) for store in host.stores.values()]
    for each in duties:
        await each.step()
    assert await host.count("topic", "retiring IS NOT NULL") == 2
    given = fields | ({"id": own_api.new_id()} if "id" in fields else {})
    await own_api.enqueue_one("other" if "ack_topic" in fields else "t", payload="new", **given)
    assert await host.count("topic", "retiring IS NOT NULL") == 1
    for each in duties:
        while not each.is_idle:
            await each.step()
    left = (await numbers(own_api))["t"]
    assert len(left) == 1 and left[0] in before["t"]
    if "ack_topic" in fields:
        await own_api.ack(await own_api.dequeue_one("other"))
        assert [told["outcome"] for told in await own_api.completions("t")] == ["acked"]
    else:
        assert (await own_api.dequeue_one("t", wait_s=5))["payload"] == "new"


async def test_what_a_process_marked_and_left_another_deletes(own_api: Api) -> None:
    await use(own_api)
    await own_api.host.fold()
    await own_api.host.clock.advance(2 * DAY_S)
    await duty(own_api.host).step()
    assert await own_api.host.count("topic", "retiring IS NOT NULL") == 1
    await own_api.host.delete_topics()
    assert await numbers(own_api) == {}


async def test_an_older_mark_deletes_nothing(own_api: Api) -> None:
    """The topic was taken back, used, emptied and marked again, since this process looked at what ran."""
    host = own_api.host
    await use(own_api)
    await host.fold()
    await host.clock.advance(2 * DAY_S)
    late, other = duty(host), duty(host)
    await late.step()
    await use(own_api)
    await host.fold()
    await host.clock.advance(2 * DAY_S)
    await other.step()
    assert await host.count("topic", "retiring IS NOT NULL") == 1
    assert await late.step() == 1
    assert "t" in await numbers(own_api)
    assert await other.step() == 1
    assert await numbers(own_api) == {}


async def test_many_empty_topics_go_a_bounded_number_a_step(own_api: Api) -> None:
    host = own_api.host
    await own_api.enqueue_one("kept", id=own_api.new_id(0))
    await host.rows(
        """WITH made AS (
            INSERT INTO topic (namespace_id, name) SELECT namespace_id, 'job/' || i
            FROM namespace, generate_series(1, 12000) AS i WHERE name = $1 RETURNING topic_id)
        INSERT INTO topic_stat (topic_id, ready, delayed, leased, disabled, dead)
        SELECT topic_id, 0, 0, 0, 0, 0 FROM made""",
        own_api.namespace,
    )
    await host.clock.advance(2 * DAY_S)
    each, left, steps = duty(host), 12_000 * 2, 0
    while left > 12_000:
        assert steps < 400
        deleted = await each.step()
        assert deleted <= host.settings.chunk_items_max
        left, steps = left - deleted, steps + 1
    assert "kept" in await numbers(own_api)
    assert (await own_api.dequeue_one("kept"))["topic"] == "kept"
