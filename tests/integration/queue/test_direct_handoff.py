"""Items that become ready while a call waits are leased to it by the transaction that makes them ready."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime
from typing import Any

import asyncpg
import pytest

from services.queue.dispatch.direct_handoff import HANDED_ENTRIES_MAX, HANDED_TOPICS_MAX
from services.queue.model import Demand
from shared.errors import Invalid, ShardUnavailable
from tests.integration.queue.test_hung_up_consumer import Connection, spy_on_claims, until_waiting, waiters
from tests.integration.queue.test_late_refills import Looks
from tests.support.databases import Databases
from tests.support.interleave import actor_on
from tests.support.queue_host import Api, queue_host
from tests.support.queue_scene import NS, Scene, race

ONE = {"topics": [{"topic": "t", "count": 1}], "wait_s": 20}
FIVE = {"topics": [{"topic": "t", "count": 5}], "wait_s": 20}


@pytest.fixture
async def api(own_api: Api) -> Api:
    """A process that knows that revives and acks make items of `t` ready on the first shard."""
    [worked] = await own_api.enqueue({"topic": "w", "id": own_api.new_id(0), "ack_topic": "t"})
    await own_api.ack(await own_api.dequeue_one("w"))
    disabled = await disable(own_api)
    await own_api.revive(disabled)
    await own_api.ack(*await own_api.dequeue("t", 5))
    assert worked["status"] == "enqueued"
    return own_api


async def disable(api: Api, **fields: Any) -> str:
    return await api.enqueue_one("t", id=api.new_id(0), disabled=True, **fields)


async def waiting(api: Api, body: dict[str, Any] | None = None) -> Connection:
    connection = Connection(api, body or FIVE)
    await until_waiting(api, 1)
    return connection


async def items_of(connection: Connection) -> list[dict[str, Any]]:
    await asyncio.wait_for(connection.task, 5)
    found: list[dict[str, Any]] = json.loads(connection.answer)["items"]
    return found


def during_revive(api: Api, act: Callable[[], Awaitable[Any]]) -> None:
    """Let something happen between the commit of the next revive that has an offer and its answer."""
    store = api.host.stores[0]
    original = store.revive

    async def revive(*args: Any) -> Any:
        rows = await original(*args)
        if args[4]:
            store.revive = original  # type: ignore[method-assign]
            await act()
        return rows

    store.revive = revive  # type: ignore[method-assign]


async def test_a_revived_item_needs_no_claim(api: Api) -> None:
    item_id = await disable(api, metadata={"m": 1}, headers={"h": "x"}, lease_s=30)
    connection = await waiting(api)
    claims = spy_on_claims(api)

    assert await api.revive(item_id, inputs={"in": 2}) == ["revived"]
    [leased] = await items_of(connection)
    assert claims == []
    seen = {name: leased[name] for name in ("id", "attempt", "metadata", "inputs", "headers")}
    assert seen == {"id": item_id, "attempt": 1, "metadata": {"m": 1}, "inputs": {"in": 2}, "headers": {"h": "x"}}
    assert await api.host.counts("ready", "lease") == {"ready": 0, "lease": 3}  # two acked ones are remembered
    assert await api.ack(leased) == ["acked"]


async def test_a_completion_item_needs_no_claim(api: Api) -> None:
    await api.enqueue_one("w", id=api.new_id(0), ack_topic="t", ack_context={"c": 1})
    working = await api.dequeue_one("w")
    connection = await waiting(api, {**FIVE, "lease_s": 45})
    claims = spy_on_claims(api)

    assert await api.ack(working) == ["acked"]
    [leased] = await items_of(connection)
    assert claims == []
    payload = leased["payload"]
    assert (payload["id"], payload["outcome"], payload["ack_context"]) == (working["id"], "acked", {"c": 1})
    assert await api.extend(leased) == ["extended"]
    assert await api.ack(leased) == ["acked"]


async def test_the_counts_of_the_topic_are_those_of_claimed_items(api: Api) -> None:
    ids = [await disable(api) for _ in range(3)]
    connection = await waiting(api, {"topics": [{"topic": "t", "count": 2}], "wait_s": 20})
    await api.revive(*ids)
    assert len(await items_of(connection)) == 2

    await api.host.fold()
    [row] = await api.host.rows(
        "SELECT sum(ready)::int, sum(leased)::int, sum(disabled)::int FROM topic_stat JOIN topic USING (topic_id)"
        " WHERE name = 't' HAVING count(*) > 0"
    )
    assert tuple(row) == (1, 2, 0)
    assert await api.host.count("ready") == 1


async def test_the_best_of_a_flush_are_handed_over_in_their_order(api: Api) -> None:
    ids = {priority: await disable(api, priority=priority) for priority in (3, 1, 2)}
    connection = await waiting(api, {"topics": [{"topic": "t", "count": 2}], "wait_s": 20})
    await api.revive(*ids.values())

    assert [item["id"] for item in await items_of(connection)] == [ids[1], ids[2]]
    assert (await api.dequeue_one("t"))["id"] == ids[3]


async def test_items_of_one_call_are_told_each_its_own_lease(api: Api) -> None:
    lease_ss = [30, 30, 600, 30]
    ids = [
        await disable(api, priority=n, lease_s=lease_s, metadata={"n": n}) for n, lease_s in enumerate(lease_ss)
    ]
    connection = await waiting(api)
    await api.revive(*ids)

    leased = await items_of(connection)
    assert [(item["id"], item["metadata"]["n"]) for item in leased] == list(zip(ids, range(4), strict=True))
    ends = [datetime.fromisoformat(item["lease_expires_at"]) for item in leased]
    assert [round((end - ends[0]).total_seconds(), 6) for end in ends] == [0, 0, 570, 0]
    assert set(await api.ack(*leased)) == {"acked"}


async def test_who_waits_longest_is_served_and_the_rest_wakes_the_next(api: Api) -> None:
    ids = [await disable(api, priority=n) for n in range(2)]
    first = await waiting(api, ONE)
    second = Connection(api, ONE)
    await until_waiting(api, 2)
    await api.revive(*ids)

    assert [item["id"] for item in await items_of(first)] == [ids[0]]
    assert [item["id"] for item in await items_of(second)] == [ids[1]]


@pytest.mark.parametrize("verb", ["revive", "ack"])
async def test_nothing_of_a_paused_topic_is_handed_over(api: Api, verb: str) -> None:
    item_id = await disable(api)
    await api.enqueue_one("w", id=api.new_id(0), ack_topic="t")
    worked = await api.dequeue_one("w")
    connection = await waiting(api)
    # As another process would: this one has not heard of it, and its call waits on.
    await api.host.rows("UPDATE topic SET paused = true WHERE name = 't'")
    await (api.revive(item_id) if verb == "revive" else api.ack(worked))

    assert await api.host.counts("ready") == {"ready": 1}
    assert not connection.task.done()
    await api.post("topics/resume", {"topic": "t"})
    [item] = await items_of(connection)
    assert worked["id"] == item["payload"]["id"] if verb == "ack" else item["id"] == item_id


def offers(api: Api, entries: int = 1) -> list[Any]:
    """What a revive on the first shard would offer now."""
    with api.host.dispatch.handing(0, "revive", entries) as handing:
        return handing.offers


async def test_nothing_is_offered_where_there_is_something_to_choose(api: Api) -> None:
    line = api.host.dispatch._lines[api.namespace, "t"]
    assert offers(api) == []  # nobody waits
    connection = await waiting(api)
    [offer] = offers(api)
    assert (offer.items_max, offer.lease_s) == (5, 0.0)

    line.buffer.takes_turns = True
    assert offers(api) == []
    line.buffer.takes_turns = False
    line.buffer.clear()  # not looked at since: something may lie there
    assert offers(api) == []
    line.buffer.pass_over(0)
    assert len(offers(api)) == (1 if len(api.host.stores) == 1 else 0)
    api.host.dispatch.leave()
    assert offers(api) == []
    assert await items_of(connection) == []


def due(api: Api) -> Any:
    """The line of `t`, at which it is time to look again."""
    line = api.host.dispatch._lines[api.namespace, "t"]
    line.refreshed_s = float("-inf")
    return line


async def test_what_becomes_ready_during_a_look_is_handed_over(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    item_id = await disable(api)
    assert await api.dequeue("t") == []
    line, looks = due(api), Looks(api, monkeypatch)
    connection = await asyncio.wait_for(waiting(api), 5)
    await asyncio.wait_for(looks.begun.wait(), 5)
    claims = spy_on_claims(api)

    assert await api.revive(item_id) == ["revived"]
    assert [item["id"] for item in await items_of(connection)] == [item_id]
    assert claims == []
    looks.open.set()
    async with asyncio.timeout(5), line.filling:
        assert line.is_dry


async def test_a_call_that_does_not_wait_is_answered_after_a_look(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await api.dequeue("t") == []
    due(api)
    looks = Looks(api, monkeypatch)
    call = asyncio.create_task(api.dequeue("t"))
    await asyncio.wait_for(looks.begun.wait(), 5)
    done, _ = await asyncio.wait([call], timeout=0.05)
    assert not done
    looks.open.set()
    assert await call == []


async def test_a_call_that_waits_during_a_look_is_given_what_it_finds(api: Api) -> None:
    """Another process' item, of which nobody told."""
    item_id = await disable(api)
    assert await api.dequeue("t") == []
    async with queue_host(api.host.database) as other:
        assert await Api(other, api.namespace).revive(item_id) == ["revived"]
    due(api)
    assert [item["id"] for item in await items_of(Connection(api, ONE))] == [item_id]


async def test_calls_with_several_topics_look_for_themselves(api: Api) -> None:
    several = await waiting(api, {"topics": [{"topic": "t"}, {"topic": "u"}], "wait_s": 20})
    assert offers(api) == []
    several.hang_up()
    await several.task


async def test_only_small_flushes_and_few_topics_are_handed_over(api: Api) -> None:
    connection = await waiting(api)
    assert len(offers(api, HANDED_ENTRIES_MAX)) == 1
    assert offers(api, HANDED_ENTRIES_MAX + 1) == []

    with api.host.dispatch.handing(0, "revive", 1) as handing:
        handing.saw([1_000_000 + n for n in range(HANDED_TOPICS_MAX - 1)])
    assert len(offers(api)) == 1
    with api.host.dispatch.handing(0, "revive", 1) as handing:
        handing.saw([2_000_000])
    assert offers(api) == []  # the topic that was met longest ago is forgotten
    connection.hang_up()
    await connection.task


async def test_nothing_is_offered_for_a_peer_that_hung_up(api: Api) -> None:
    connection = await waiting(api)
    connection.hang_up()
    await connection.task
    assert offers(api) == []


async def test_a_peer_that_hangs_up_during_the_flush_gives_its_item_back(api: Api) -> None:
    item_id = await disable(api)
    connection = await waiting(api)

    async def hang_up() -> None:
        connection.hang_up()
        await asyncio.sleep(0.01)

    during_revive(api, hang_up)
    assert await api.revive(item_id) == ["revived"]
    assert await items_of(connection) == []
    leased = await api.dequeue_one("t")
    assert (leased["id"], leased["attempt"]) == (item_id, 1)


async def test_a_call_that_is_cancelled_during_the_flush_gives_its_item_back(api: Api) -> None:
    item_id = await disable(api)
    waiting_call = asyncio.create_task(
        api.host.process.dequeues.dequeue(api.namespace, [Demand("t", 5)], wait_s=20.0)
    )
    await until_waiting(api, 1)

    async def cancel() -> None:
        waiting_call.cancel()
        await asyncio.gather(waiting_call, return_exceptions=True)

    during_revive(api, cancel)
    await api.revive(item_id)
    await asyncio.gather(*api.host.dispatch._late)
    leased = await api.dequeue_one("t")
    assert (leased["id"], leased["attempt"]) == (item_id, 1)


@pytest.mark.parametrize("opens", [True, False], ids=["handed", "nothing"])
async def test_a_call_whose_time_ends_during_the_flush_is_answered_after_it(api: Api, opens: bool) -> None:
    item_id = await disable(api)
    connection = await waiting(api, {**FIVE, "wait_s": 0.3})
    place = api.host.dispatch._lines[api.namespace, "t"].waiting[0]

    async def outlast() -> None:
        while not place.is_awaited:
            await asyncio.sleep(0.001)

    during_revive(api, outlast)
    await api.revive(item_id if opens else api.new_id(0))
    assert [item["id"] for item in await items_of(connection)] == ([item_id] if opens else [])


async def test_a_flush_that_is_refused_with_an_offer_is_made_without(api: Api) -> None:
    item_id = await disable(api)
    connection = await waiting(api)
    store = api.host.stores[0]
    original = store.revive

    async def revive(*args: Any) -> Any:
        if args[4]:
            raise Invalid("no")
        return await original(*args)

    store.revive = revive  # type: ignore[method-assign]
    assert await api.revive(item_id) == ["revived"]
    assert [item["id"] for item in await items_of(connection)] == [item_id]


async def test_a_flush_that_fails_leaves_the_call_waiting(api: Api) -> None:
    item_id = await disable(api)
    connection = await waiting(api)
    store = api.host.stores[0]
    original = store.revive

    async def revive(*_: Any) -> Any:
        raise ShardUnavailable("away")

    store.revive = revive  # type: ignore[method-assign]
    answer = await api.post("revive", {"items": [{"id": item_id}]})
    store.revive = original  # type: ignore[method-assign]
    assert answer.json()["results"][0]["status"] == "refused"
    assert waiters(api, "t") == 1
    assert await api.revive(item_id) == ["revived"]
    assert [item["id"] for item in await items_of(connection)] == [item_id]


async def test_a_wake_up_that_comes_during_a_flush_is_not_lost(api: Api) -> None:
    """The flush opens nothing of the topic; an item that came meanwhile is taken at once."""
    connection = await waiting(api)
    came: list[str] = []

    async def enqueue() -> None:
        came.append(await api.enqueue_one("t", id=api.new_id(0)))

    during_revive(api, enqueue)
    await api.revive(api.new_id(0))
    assert waiters(api, "t") == 0
    assert [item["id"] for item in await items_of(connection)] == came


async def test_an_idle_line_is_kept_while_its_call_is_offered_to(api: Api) -> None:
    connection = await waiting(api)
    line = api.host.dispatch._lines[api.namespace, "t"]
    line.used_s = float("-inf")
    with api.host.dispatch.handing(0, "revive", 1) as handing:
        assert len(handing.offers) == 1
        api.host.dispatch.forget_idle()
    assert api.host.dispatch._lines[api.namespace, "t"] is line
    connection.hang_up()
    await connection.task


@pytest.fixture(scope="module")
async def scene(databases: Databases) -> AsyncIterator[Scene]:
    database = await databases.create(queue_shards=1, dag_shards=1)
    watcher = await asyncpg.connect(database.dsn, server_settings={"search_path": "queue_000"})
    reader = await asyncpg.connect(database.dsn, server_settings={"search_path": "queue_000"})
    async with actor_on(database) as a, actor_on(database) as b:
        made = Scene(a, b, watcher, reader)
        for actor in (a, b):
            await actor.store.names.make([(NS, "t"), (NS, "told")])
            await actor.store.names.make_namespace(NS)
        yield made
    await watcher.close()
    await reader.close()
    await databases.drop(database)


async def test_a_revive_that_hands_over_against_a_cancel(scene: Scene) -> None:
    async def begin() -> None:
        await scene.enqueue(disabled=True)

    await race(
        scene,
        begin,
        (scene.revive_for_a_waiter, scene.cancel),
        {("handed", "cancelled"): "cancelled", ("nothing", "cancelled"): "cancelled"},
    )


async def test_two_revives_with_offers_hand_an_item_over_once(scene: Scene) -> None:
    async def begin() -> None:
        await scene.enqueue(disabled=True)

    await race(
        scene,
        begin,
        (scene.revive_for_a_waiter, scene.revive_for_a_waiter),
        {("handed", "nothing"): "lease", ("nothing", "handed"): "lease"},
    )


async def test_two_processes_with_waiters_share_what_is_revived(databases: Databases) -> None:
    """Each process offers its own waiter; an item goes to one of them."""
    database = await databases.create(queue_shards=1, dag_shards=1)
    async with queue_host(database) as one, queue_host(database, one.clock) as two:
        first = Api(one)
        second = first.on(two)
        for api in (first, second):
            await api.revive(await disable(api))
            await api.ack(await api.dequeue_one("t"))
        ids = [await disable(first) for _ in range(2)]
        waits = [await waiting(first, ONE), await waiting(second, ONE)]
        await asyncio.gather(first.revive(*ids), second.revive(*ids))
        # What the process that opened both keeps ready is found by the other's next look.
        found = [item["id"] for connection in waits for item in await items_of(connection)]
        assert sorted(found) == sorted(ids)
    await databases.drop(database)
