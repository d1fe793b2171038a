"""Acks that go on with their DAG, beside what else is done to both shards; and what ends say of deliveries."""

import asyncio
import contextlib
from dataclasses import replace
from typing import Any

import asyncpg
import pytest

from tests.integration.queue.test_hung_up_consumer import until_waiting
from tests.support.databases import Databases
from tests.support.folding import Folding, folding_on

ROLE = "folding_narrow"


async def timeline(folding: Folding, dag: str, key: str) -> Any:
    return await folding.dags.call("GET", f"/{dag}/timeline?key={key}")


async def test_an_end_says_since_when_who_held_its_item(folding: Folding) -> None:
    """Folded or told, since the delivery and not since an extension; nobody, where the call did not say who."""
    dag = await folding.dags.create({"a": [], "b": ["a"], "c": ["b"]})
    for key, worker in (("a", 'host "7"'), ("b", None), ("c", "host-8")):
        await folding.dags.loops.relay.idle()
        named = {} if worker is None else {"worker": worker}
        [item] = await folding.queue.dequeue("work", 1, **named)
        [lease] = await folding.host.rows("SELECT * FROM lease WHERE token = $1", item["lease_token"])
        assert await folding.queue.extend(item, lease_s=300) == ["extended"]
        await folding.queue.ack(item)
        await folding.settle()
        [told] = (await timeline(folding, dag, key))["attempts"]
        assert (told["attempt"], told["outcome"], told["worker"]) == (1, "acked", worker)
        assert told["started_at"] == lease["claimed_at"].isoformat().replace("+00:00", "Z")
    assert folding.told.taken == 1, "only the last was told"


async def test_of_several_leases_under_one_token_each_tells_of_its_own_items(folding: Folding) -> None:
    """A claim leaves what is past its TTL under its token, too, as claimed at no time."""
    dag = await folding.dags.create({"a": []})
    item = (await folding.take())["a"]
    connection = await folding.dags.database.connect("queue_000")
    await connection.execute(
        "INSERT INTO lease (token, expires_at, namespace_id, topic_id, ids, claimed_at)"
        " SELECT token, expires_at, namespace_id, topic_id, ARRAY[gen_random_uuid()], 'infinity' FROM lease"
        " WHERE token = $1",
        item["lease_token"],
    )
    await connection.close()
    assert await folding.queue.ack(item) == ["acked"]
    await folding.settle()
    [told] = (await timeline(folding, dag, "a"))["attempts"]
    assert told["outcome"] == "acked" and "20" < told["started_at"] < "21"


async def test_deliveries_that_failed_are_logged_with_who_held_them(folding: Folding) -> None:
    dag = await folding.dags.create([{"key": "a", "topic": "work", "max_attempts": 3}])
    item_id = await folding.item_of(dag, "a")
    await folding.dags.loops.relay.idle()
    [item] = await folding.queue.dequeue("work", 1, worker="first")
    await folding.queue.nack(item, delay_s=0)
    [item] = await folding.queue.dequeue("work", 1, worker="second", lease_s=1)
    await folding.host.pass_time(5)
    answer = await folding.queue.as_dag_service().get(f"items/{item_id}/attempts")
    logged = [(a["attempt"], a["outcome"], a["worker"]) for a in answer.json()["items"]]
    assert logged == [(1, "failed", "first"), (2, "lease_expired", "second")]
    await folding.host.clock.reset()
    await folding.cancel(dag)


async def test_a_callers_own_context_comes_back_as_it_was_given(folding: Folding) -> None:
    await folding.queue.enqueue_one("own", ack_topic="ends", ack_context={"k": 1})
    [item] = await folding.queue.dequeue("own", 1, worker="w")
    await folding.queue.ack(item)
    [end] = await folding.queue.dequeue("ends")
    assert set(end["payload"]) == {"id", "topic", "outcome", "attempt", "finished_at", "ack_context"}
    assert end["payload"]["ack_context"] == {"k": 1}


@pytest.mark.parametrize(
    "refused",
    [
        "REVOKE USAGE ON SCHEMA dag_000 FROM public",
        "REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA dag_000 FROM public",
        "REVOKE UPDATE ON dag_000.node FROM public",
    ],
)
async def test_what_the_queue_may_not_do_to_a_dag_is_told(databases: Databases, refused: str) -> None:
    """A role that has the queue's schema, and all of the DAG's but one thing."""
    made = await databases.create(queue_shards=1, dag_shards=1)
    connection = await made.connect("public")
    with contextlib.suppress(asyncpg.DuplicateObjectError):
        await connection.execute(f"CREATE ROLE {ROLE}")
    for schema in ("queue_000", "dag_000"):
        await connection.execute(
            f"GRANT USAGE ON SCHEMA {schema} TO public; GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO public"
        )
    # The tests' clock, which is made with the process.
    await connection.execute("ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT ALL ON TABLES TO public")
    narrow = replace(made, queue_shards=made.queue_shards.replace("#", f"?role={ROLE}#"))
    async with folding_on(narrow) as folding:
        [row] = await folding.host.rows("SELECT current_user AS name")
        assert row["name"] == ROLE
        dag = await folding.dags.create({"a": [], "b": ["a"], "c": ["b"]})
        assert await folding.queue.ack((await folding.take())["a"]) == ["acked"]
        assert (await folding.completions(), (await folding.states(dag))["b"]) == (0, "released")
        await connection.execute(refused)
        assert await folding.queue.ack((await folding.take())["b"]) == ["acked"]
        assert (await folding.completions(), (await folding.states(dag))["b"]) == (1, "released")
        await folding.finish(dag)
    await connection.execute(f"DROP OWNED BY {ROLE}; DROP ROLE {ROLE}")
    await connection.close()
    await databases.drop(made)


async def test_one_waiting_call_is_handed_several(folding: Folding) -> None:
    """As many as it takes, in their order; the rest is ready for the next."""

    def fan(*ranks: int) -> list[dict[str, Any]]:
        below = [{"key": f"b{rank}", "topic": "t", "upstream": ["a"], "priority": rank} for rank in ranks]
        return [{"key": "a", "topic": "work"}, *below]

    first = await folding.dags.create(fan(0))
    await folding.queue.ack((await folding.take())["a"])
    await folding.queue.ack(*await folding.queue.dequeue("t"))  # by now the process has met the topic
    await folding.settle()
    dag = await folding.dags.create(fan(3, 1, 2))
    item = (await folding.take())["a"]
    waiting = asyncio.create_task(folding.queue.dequeue("t", 2, wait_s=20))
    await until_waiting(folding.queue, 1)
    await folding.queue.ack(item)

    handed = await waiting

    assert [one["dag"]["node"] for one in handed] == ["b1", "b2"]
    assert len({one["lease_token"] for one in handed}) == 1
    [left] = await folding.queue.dequeue("t", 5)
    assert left["dag"]["node"] == "b3"
    assert await folding.queue.ack(*handed, left) == ["acked"] * 3
    await folding.settle()
    for one in (first, dag):
        assert (await folding.dags.dag(one))["state"] == "succeeded"


async def test_a_fence_waits_for_an_ack_that_is_folding(folding: Folding) -> None:
    """What it has written goes with the shard; the next finds nothing of that name, and is told."""
    dag = await folding.dags.create({"a": [], "b": ["a"], "c": ["b"]})
    item = (await folding.take())["a"]
    acking = await folding.dags.database.connect("queue_000")
    mover = await folding.dags.connect()
    transaction = acking.transaction()
    await transaction.start()
    told = await acking.fetch(
        "SELECT * FROM tell_acked(ARRAY[$1::uuid], (SELECT array_agg(topic_id) FROM item WHERE id = $1),"
        " (SELECT array_agg(ack_topic_id) FROM item WHERE id = $1), '{1}', ARRAY[NULL],"
        " (SELECT array_agg(ack_context) FROM item WHERE id = $1), '{}', '{}', 1,"
        " '{}', '{}', '{}', '{}', '{}', 0)",
        item["id"],
    )
    assert [row["revived"] for row in told] == [True]
    await mover.execute("SET lock_timeout = '50ms'")
    with pytest.raises(asyncpg.LockNotAvailableError):
        async with mover.transaction():
            await mover.execute("LOCK TABLE dag IN ACCESS EXCLUSIVE MODE")
    await transaction.rollback()
    async with mover.transaction():
        await mover.execute("LOCK TABLE dag, node, edge, change IN ACCESS EXCLUSIVE MODE")
        await mover.execute("ALTER SCHEMA dag_000 RENAME TO fenced_dag_000")
        assert await folding.queue.ack(item) == ["acked"]
        assert await folding.completions() == 1
    await mover.execute("ALTER SCHEMA fenced_dag_000 RENAME TO dag_000")
    await acking.close()
    await mover.close()
    await folding.finish(dag)
