"""A dequeue's answer is bounded in bytes: it hands out fewer items, and the others stay where they are."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from services.queue.model import Claim, Key
from tests.integration.queue.test_hung_up_consumer import until_waiting
from tests.support.queue_host import Api, QueueHost, queue_host

# Of each item, so many bytes beside what its caller gave are allowed for.
AROUND = 500
SIZE = 2_000
LIMIT = 4 * (SIZE + AROUND)


@pytest.fixture
async def small(own_host: QueueHost) -> AsyncIterator[Api]:
    """A process whose answers have room for four items."""
    async with queue_host(own_host.database, own_host.clock, answer_bytes_max=LIMIT) as made:
        yield Api(made)


def text(size: int) -> str:
    """A payload of so many bytes as JSON."""
    return "x" * (size - 2)


async def fill(api: Api, shard: int, *sizes: int, **fields: Any) -> list[str]:
    items = [{"topic": "t", "id": api.new_id(shard), "payload": text(size), **fields} for size in sizes]
    await api.enqueue(*items)
    return [item["id"] for item in items]


async def taken(api: Api, count: int, **fields: Any) -> list[str]:
    """The ids of one answer, which is no longer than it may be."""
    answer = await api.post("dequeue", {"topics": [{"topic": "t", "count": count}], **fields})
    assert answer.status_code == 200
    assert len(answer.content) <= LIMIT
    items = answer.json()["items"]
    assert {item["attempt"] for item in items} <= {1}
    return [item["id"] for item in items]


async def test_an_answer_has_what_there_is_room_for_and_the_next_one_goes_on(small: Api) -> None:
    ids = await fill(small, 0, *[SIZE] * 10)

    found = [await taken(small, 10) for _ in range(4)]

    assert found == [ids[:4], ids[4:8], ids[8:], []]


@pytest.mark.parametrize(("over", "expected"), [(0, 4), (1, 3)])
async def test_the_limit_is_reached_to_the_byte_and_not_passed(small: Api, over: int, expected: int) -> None:
    await fill(small, 0, SIZE, SIZE, SIZE, SIZE + over)

    assert len(await taken(small, 10)) == expected


@pytest.mark.parametrize("field", ["metadata", "inputs", "headers"])
async def test_all_that_is_told_of_an_item_counts(small: Api, field: str) -> None:
    part = {"a": "y" * 900}
    whole = len(json.dumps(part, separators=(",", ":")))
    await fill(small, 0, *[SIZE - whole] * 3, SIZE - whole + 1, **{field: part})

    assert len(await taken(small, 10)) == 3


async def test_what_stays_is_ready_and_nothing_says_that_it_was_looked_at(small: Api) -> None:
    ids = await fill(small, 0, *[SIZE] * 6)
    await taken(small, 6)

    assert [await small.state(item_id) for item_id in ids] == ["leased"] * 4 + ["ready"] * 2
    assert [len(row["ids"]) for row in await small.host.rows("SELECT ids FROM lease")] == [4]
    counts = await small.topic("t")
    assert (counts["ready"], counts["leased"]) == (2, 4)
    assert await small.host.count("item", "attempts = 0") == 6


async def test_one_item_is_given_whatever_its_size(small: Api) -> None:
    ids = await fill(small, 0, 3 * LIMIT, SIZE, 3 * LIMIT)

    found = [[item["id"] for item in await small.dequeue("t", 9)] for _ in range(4)]

    assert found == [ids[:1], ids[1:2], ids[2:], []]


async def test_shards_share_the_room_of_an_answer(small: Api) -> None:
    ids = await fill(small, 0, *[SIZE] * 6) + await fill(small, 1, *[SIZE] * 6)

    found: list[str] = []
    for _ in range(len(ids)):
        if not (some := await taken(small, 12)):
            break
        found += some

    assert sorted(found) == sorted(ids)


async def test_where_a_shards_part_has_no_room_for_an_item_the_best_one_is_given(small: Api) -> None:
    first = await fill(small, 0, 3 * SIZE)
    other = await fill(small, 1, 3 * SIZE, priority=1)

    assert [await taken(small, 9) for _ in range(3)] == [first, other, []]


async def test_calls_that_share_a_flush_share_its_room_and_each_gets_its_first(small: Api) -> None:
    """One with large items must not have all of it, nor may all answers together be longer than one may be."""
    large = await fill(small, 0, *[3 * SIZE] * 5)
    await small.enqueue(*({"topic": "u", "id": small.new_id(0), "payload": n} for n in range(4)))
    store = small.host.stores[0]
    claims = [await claim_of(small, topic, token(n)) for n, topic in enumerate("tu")]

    groups, cut = await store.claim(claims, relaxed=False)

    assert {group.token: group.items for group in groups} == {token(0): 1, token(1): 4}
    assert cut == {token(0)}
    assert await small.state(large[0]) == "leased"
    assert await small.host.count("ready") == 4


async def claim_of(api: Api, topic: str, token: str) -> Claim:
    """A call for all of a topic."""
    rows = await api.host.rows(
        "SELECT r.* FROM ready r JOIN topic t USING (topic_id) WHERE t.name = $1 ORDER BY r.id", topic
    )
    keys = [Key(row["priority"], row["deliver_at"], str(row["id"])) for row in rows]
    return Claim(rows[0]["topic_id"], keys, token, None, None, LIMIT, keys[0].id)


def token(number: int) -> str:
    return f"00000000-0000-4000-8000-00000000000{number}"


async def test_what_is_handed_to_a_call_that_waits_fits_too(small: Api) -> None:
    ids = await fill(small, 0, *[SIZE] * 10, disabled=True)
    warm = await fill(small, 0, 10, disabled=True)
    for wanted in (warm, ids):  # the first revive shows that the topic becomes ready by this verb
        waiting = asyncio.create_task(taken(small, 10, wait_s=20))
        await until_waiting(small, 1)
        await small.revive(*wanted)
        found = await waiting
        assert found == wanted[:4]

    assert await taken(small, 10) == ids[4:8]
    assert await taken(small, 10) == ids[8:]


async def test_what_is_handed_to_a_call_as_it_comes_fits_too(small: Api) -> None:
    assert await taken(small, 10) == []
    await fill(small, 0, 10)
    await small.ack(await small.dequeue_one("t"))
    waiting = asyncio.create_task(taken(small, 10, wait_s=20))
    await until_waiting(small, 1)
    ids = await fill(small, 0, *[SIZE] * 10)

    assert await waiting == ids[:4]
    assert await taken(small, 10) == ids[4:8]


async def test_a_quota_counts_what_was_given(small: Api) -> None:
    await small.host.client.put(f"/v1/namespaces/{small.namespace}", json={"in_flight_max": 8})
    ids = await fill(small, 0, *[SIZE] * 10)

    assert [await taken(small, 10) for _ in range(3)] == [ids[:4], ids[4:8], []]


async def test_completions_that_are_handed_to_a_call_fit_too(small: Api) -> None:
    ids = await fill(small, 0, *[100] * 11, ack_topic="done")
    first, *leased = [item for _ in range(2) for item in await small.dequeue("t", 100)]
    for acked, expected in (
        ([first], 1),
        (leased, 3),
    ):  # the first ack shows that the topic becomes ready by this verb
        waiting = asyncio.create_task(small.dequeue("done", 100, wait_s=20))
        while (line := small.host.dispatch._lines.get((small.namespace, "done"))) is None or not line.waiting:
            await asyncio.sleep(0)
        await small.ack(*acked, output=text(SIZE))
        assert len(await waiting) == expected

    counts = await small.topic("done")
    assert (counts["ready"], counts["leased"]) == (len(ids) - 4, 4)


async def test_nothing_of_a_paused_topic_is_claimed_within_bounds(small: Api) -> None:
    """A process that has met large items of a topic claims by another statement from then on."""
    await fill(small, 0, *[SIZE] * 6)
    store = small.host.stores[0]
    groups, _ = await store.claim([await claim_of(small, "t", token(0))], relaxed=False)
    assert [group.items for group in groups] == [4]
    await small.host.rows("UPDATE topic SET paused = true WHERE name = 't'")

    groups, _ = await store.claim([await claim_of(small, "t", token(1))], relaxed=False)

    assert groups == []
    assert await small.host.count("ready") == 2
