"""Items with ids of their callers, as those of DAGs, are leased to a call that waits by the statement that takes
them in."""

from datetime import datetime
from typing import Any

import pytest

from shared.errors import ShardUnavailable
from tests.contract.test_queue_managed import managed
from tests.integration.queue.test_direct_handoff import FIVE, ONE, items_of, scene, waiting
from tests.integration.queue.test_hung_up_consumer import Connection, spy_on_claims, until_waiting, waiters
from tests.support.queue_host import Api
from tests.support.queue_scene import Scene, race

__all__ = ["scene"]


@pytest.fixture
async def api(own_api: Api) -> Api:
    """A process that has met the topic on its first shard, and knows that nothing of it is there."""
    await own_api.enqueue_one("t", id=own_api.new_id(0))
    await own_api.ack(await own_api.dequeue_one("t"))
    return own_api


async def arrive(api: Api, **fields: Any) -> str:
    return await api.enqueue_one("t", id=api.new_id(0), **fields)


async def test_an_item_that_comes_while_a_call_waits_needs_no_claim(api: Api) -> None:
    connection = await waiting(api, {**FIVE, "worker": "press-7"})
    claims = spy_on_claims(api)
    item_id = await managed(api, metadata={"m": 1}, headers={"h": "x"}, lease_s=30, payload={"p": 1})
    [leased] = await items_of(connection)

    assert claims == []
    seen = {name: leased[name] for name in ("id", "attempt", "payload", "metadata", "headers")}
    assert seen == {"id": item_id, "attempt": 1, "payload": {"p": 1}, "metadata": {"m": 1}, "headers": {"h": "x"}}
    [state] = await api.results("items/states", {"ids": [item_id]})
    assert (state["state"], state["worker"]) == ("leased", "press-7")
    assert await api.host.counts("ready") == {"ready": 0}
    assert await api.ack(leased) == ["acked"]
    assert await arrive_again(api, item_id) == "duplicate"


async def arrive_again(api: Api, item_id: str) -> str:
    [result] = await api.enqueue({"topic": "t", "id": item_id})
    return str(result["status"])


async def test_the_counts_of_the_topic_are_those_of_claimed_items(api: Api) -> None:
    connection = await waiting(api, {"topics": [{"topic": "t", "count": 2}], "wait_s": 20})
    await api.enqueue(*({"topic": "t", "id": api.new_id(0)} for _ in range(3)))
    assert len(await items_of(connection)) == 2

    await api.host.fold()
    [row] = await api.host.rows(
        "SELECT sum(ready)::int, sum(leased)::int FROM topic_stat JOIN topic USING (topic_id)"
        " WHERE name = 't' HAVING count(*) > 0"
    )
    assert tuple(row) == (1, 2)
    assert (await api.dequeue_one("t"))["attempt"] == 1


async def test_the_best_of_a_call_are_handed_over_and_the_rest_wakes_the_next(api: Api) -> None:
    first = await waiting(api, ONE)
    second = Connection(api, ONE)
    await until_waiting(api, 2)
    ids = {priority: api.new_id(0) for priority in (2, 1)}
    await api.enqueue(*({"topic": "t", "id": item_id, "priority": n} for n, item_id in ids.items()))

    assert [item["id"] for item in await items_of(first)] == [ids[1]]
    assert [item["id"] for item in await items_of(second)] == [ids[2]]


@pytest.mark.parametrize("fields", [{"disabled": True}, {"delay_s": 30}], ids=["disabled", "delayed"])
async def test_what_is_not_ready_is_not_handed_over(api: Api, fields: dict[str, Any]) -> None:
    connection = await waiting(api, ONE)
    late = api.new_id(0)
    now = api.new_id(0)
    await api.enqueue({"topic": "t", "id": late, **fields}, {"topic": "t", "id": now, "priority": 1})

    assert [item["id"] for item in await items_of(connection)] == [now]
    assert await api.host.count("lease", f"'{late}' = ANY (ids)") == 0


async def test_nothing_of_a_paused_topic_is_handed_over(api: Api) -> None:
    connection = await waiting(api)
    # As another process would: this one has not heard of it, and its call waits on.
    await api.host.rows("UPDATE topic SET paused = true WHERE name = 't'")
    item_id = await arrive(api)

    assert await api.host.counts("ready") == {"ready": 1}
    assert not connection.task.done()
    await api.post("topics/resume", {"topic": "t"})
    assert [item["id"] for item in await items_of(connection)] == [item_id]


async def test_an_id_that_has_ended_is_not_handed_over(api: Api) -> None:
    item_id = await arrive(api)
    await api.ack(await api.dequeue_one("t"))
    connection = await waiting(api)

    assert await arrive_again(api, item_id) == "duplicate"
    assert waiters(api, "t") == 1
    fresh = await arrive(api)
    assert [item["id"] for item in await items_of(connection)] == [fresh]


async def test_an_items_own_bounds_end_its_lease(api: Api) -> None:
    """Its `timeout_s`, and its deadline."""
    ends = []
    for fields in ({"timeout_s": 7}, {"deadline_s": 5}):
        connection = await waiting(api, {**ONE, "lease_s": 600})
        await arrive(api, **fields)
        [leased] = await items_of(connection)
        moments = [datetime.fromisoformat(leased[name]) for name in ("enqueued_at", "lease_expires_at")]
        ends.append((moments[1] - moments[0]).total_seconds())
    assert ends == [pytest.approx(7, abs=0.5), pytest.approx(5, abs=0.5)]


async def test_a_flush_that_fails_leaves_the_call_waiting(api: Api) -> None:
    connection = await waiting(api)
    store = api.host.stores[0]
    original = store.enqueue

    async def enqueue(*_: Any) -> Any:
        raise ShardUnavailable("away")

    store.enqueue = enqueue  # type: ignore[method-assign]
    [result] = await api.enqueue({"topic": "t", "id": api.new_id(0)})
    store.enqueue = original  # type: ignore[method-assign]
    assert result["status"] == "refused"
    assert waiters(api, "t") == 1
    item_id = await arrive(api)
    assert [item["id"] for item in await items_of(connection)] == [item_id]


async def test_two_enqueues_of_one_id_with_offers_hand_it_over_once(scene: Scene) -> None:
    await race(
        scene,
        scene.clear,
        (scene.enqueue_for_a_waiter, scene.enqueue_for_a_waiter),
        {("handed", "nothing"): "lease", ("nothing", "handed"): "lease"},
    )
