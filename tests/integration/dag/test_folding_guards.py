"""What an ack that goes on with its DAG leaves alone: what is paused or delayed, and what is not its own."""

import asyncio
from typing import Any

import pytest

from tests.integration.queue.test_hung_up_consumer import until_waiting
from tests.support.folding import Folding


async def second_and_who_waits(
    folding: Folding, others: int, **third: Any
) -> tuple[dict[str, Any], asyncio.Task[Any], str]:
    """A chain on one topic: its second item, handed over by the ack of the first, a call that waits for the third,
    and that one's id. Beside the third so many others are released."""
    nodes = [{"key": f"n{i}", "topic": "t"} | ({"upstream": [f"n{i - 1}"]} if i else {}) for i in range(3)]
    nodes[2] |= third
    nodes += [{"key": f"o{i}", "topic": "others", "upstream": ["n1"]} for i in range(others)]
    dag = await folding.dags.create(nodes)
    await folding.dags.loops.relay.idle()
    [item] = await folding.queue.dequeue("t")
    waiting = asyncio.create_task(folding.queue.dequeue("t", wait_s=20))
    await until_waiting(folding.queue, 1)
    await folding.queue.ack(item)
    [item] = await waiting
    waiting = asyncio.create_task(folding.queue.dequeue("t", wait_s=20))
    await until_waiting(folding.queue, 1)
    return item, waiting, await folding.item_of(dag, "n2")


async def end(folding: Folding, waiting: asyncio.Task[Any]) -> None:
    for item in [*await waiting, *await folding.queue.dequeue("others", 9)]:
        assert await folding.queue.ack(item) == ["acked"]
    await folding.settle()


@pytest.mark.parametrize("others", [0, 1])
async def test_an_item_of_a_paused_topic_is_not_handed_over(folding: Folding, others: int) -> None:
    """Another process has paused it, and this one has not heard of that."""
    second, waiting, third_id = await second_and_who_waits(folding, others)
    await folding.host.rows("UPDATE topic SET paused = true WHERE name = 't'")

    assert await folding.queue.ack(second) == ["acked"]
    assert await folding.queue.state(third_id) == "ready"
    await folding.queue.post("topics/resume", {"topic": "t"})
    await end(folding, waiting)


@pytest.mark.parametrize("others", [0, 1])
async def test_a_delayed_item_is_not_handed_over_before_its_time(folding: Folding, others: int) -> None:
    second, waiting, third_id = await second_and_who_waits(folding, others, delay_s=600)

    assert await folding.queue.ack(second) == ["acked"]
    assert await folding.queue.state(third_id) == "delayed"
    assert await folding.host.count("lease", f"'{third_id}' = ANY (ids)") == 0
    await folding.host.pass_time(601)
    await end(folding, waiting)
    await folding.host.clock.reset()


async def test_a_tenants_own_topic_of_an_ack_topics_name_leads_to_no_dag(folding: Folding) -> None:
    dag = await folding.dags.create({"a": [], "b": ["a"]})
    await folding.queue.enqueue_one(
        "own", ack_topic="acks/000", ack_context={"dag": "no id", "generation": "none"}
    )
    [own] = await folding.queue.dequeue("own")

    assert await folding.queue.ack(own, (await folding.take())["a"]) == ["acked", "acked"]
    assert await folding.states(dag) == {"a": "succeeded", "b": "released"}
    assert [told["id"] for told in await folding.queue.completions("acks/000")] == [own["id"]]
    await folding.finish(dag)


async def test_of_two_ends_in_one_ack_only_the_one_that_was_not_applied_is_told(folding: Folding) -> None:
    dags = [await folding.dags.create([{"key": key, "topic": "work"}], open=True) for key in ("a", "b")]
    taken = await folding.take()
    await folding.dags.verb(dags[1], "pause")

    assert await folding.queue.ack(*taken.values()) == ["acked", "acked"]
    assert [await folding.states(dag) for dag in dags] == [{"a": "succeeded"}, {"b": "released"}]
    assert await folding.completions() == 1
    await folding.dags.verb(dags[1], "resume")
    for dag in dags:
        await folding.dags.verb(dag, "close")
    await folding.settle()


@pytest.mark.parametrize("other", ["generation", "item"])
async def test_an_end_of_another_generation_or_item_ends_no_node(folding: Folding, other: str) -> None:
    dag = await folding.dags.create({"a": [], "b": ["a"]})
    item_id = await folding.item_of(dag, "a")
    given = (2, item_id) if other == "generation" else (1, await folding.item_of(dag, "b"))
    [row] = await folding.dags.rows(
        "SELECT o_taken FROM complete_here(ARRAY[$1::uuid], ARRAY['a'], ARRAY[$2::int], ARRAY[$3::uuid], ARRAY[1],"
        " ARRAY[NULL::text], ARRAY[NULL::timestamptz], ARRAY[NULL::text], ARRAY[NULL::text], 0, 3)",
        dag,
        *given,
    )
    assert row["o_taken"] is None
    assert await folding.states(dag) == {"a": "released", "b": "blocked"}
    await folding.finish(dag)
