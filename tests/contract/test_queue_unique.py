"""Items that are unique: of one key one at a time is queued or running."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from shared.postgres.sql import Statement
from tests.support.queue_host import Api

KEY = {"topic": "t", "idempotency_key": "k", "unique": True}
Leased = dict[str, Any]


async def acked(api: Api, held: Leased) -> None:
    assert await api.ack(held) == ["acked"]


async def dead(api: Api, held: Leased) -> None:
    assert await api.nack(held, final=True) == ["dead"]


async def cancelled(api: Api, held: Leased) -> None:
    assert await api.cancel(held["id"]) == ["cancelled"]


async def expired(api: Api, held: Leased) -> None:
    assert await api.nack(held, delay_s=100) == ["requeued"]
    await api.host.pass_time(1_000)


async def enqueued(api: Api, **fields: Any) -> tuple[str, str]:
    [result] = await api.enqueue({**KEY, "ttl_s": 500, **fields})
    return result["id"], result["status"]


@pytest.mark.parametrize("end", [acked, dead, cancelled, expired])
async def test_a_unique_key_is_free_once_its_item_is_neither_queued_nor_running(
    api: Api, end: Callable[[Api, Leased], Awaitable[None]]
) -> None:
    first, status = await enqueued(api)
    assert status == "enqueued"
    assert await enqueued(api) == (first, "duplicate")
    held = await api.dequeue_one("t")
    assert await enqueued(api) == (first, "duplicate")
    await end(api, held)

    second, status = await enqueued(api)
    assert (status, second == first) == ("enqueued", False)
    assert await enqueued(api) == (second, "duplicate")


async def test_one_with_other_content_is_refused_while_the_first_is_there(api: Api) -> None:
    await enqueued(api, payload=1)
    [result] = await api.enqueue({**KEY, "payload": 2})
    assert (result["status"], result["code"]) == ("refused", "key_reused")
    await api.ack(await api.dequeue_one("t"))
    assert (await enqueued(api, payload=2))[1] == "enqueued"


async def test_a_key_that_is_not_unique_is_held_for_a_day_as_ever(api: Api) -> None:
    first, _ = await enqueued(api)
    await api.ack(await api.dequeue_one("t"))
    assert await enqueued(api, unique=False) == (first, "duplicate")


async def test_a_dead_item_whose_key_another_has_by_now_is_not_put_back(api: Api) -> None:
    first, _ = await enqueued(api)
    await dead(api, await api.dequeue_one("t"))
    second, _ = await enqueued(api)
    redriven = await api.post("topics/redrive", {"topic": "t"})
    assert redriven.json()["items"] == 0
    assert [item["id"] for item in await api.dequeue("t", 5)] == [second]
    assert await api.state(first) == "dead"
    assert await enqueued(api) == (second, "duplicate")


async def test_a_dead_item_that_has_its_key_still_is_put_back_and_holds_it(api: Api) -> None:
    first, _ = await enqueued(api)
    await dead(api, await api.dequeue_one("t"))
    assert (await api.post("topics/redrive", {"topic": "t"})).json()["items"] == 1
    assert await enqueued(api) == (first, "duplicate")


async def test_the_end_of_an_item_frees_no_key_that_another_has_by_now(api: Api) -> None:
    """As where the key's slot was elsewhere while the first one was put back."""
    await enqueued(api)
    held = await api.dequeue_one("t")
    second = api.new_id(0)
    for store in api.host.stores.values():
        await store.pool.fetch(Statement("lose", ("id",), "UPDATE dedup SET id = $1"), id=second)
    await acked(api, held)
    assert await enqueued(api) == (second, "duplicate")


async def test_the_purge_of_a_dead_item_frees_no_key_that_another_has_by_now(api: Api) -> None:
    first, _ = await enqueued(api)
    await dead(api, await api.dequeue_one("t"))
    second, status = await enqueued(api, topic="u")
    assert status == "enqueued"
    assert (await api.post("topics/purge", {"topic": "t"})).json()["items"] == 1

    assert await api.state(first) == "gone"
    assert await enqueued(api, topic="u") == (second, "duplicate")


async def test_of_many_at_once_one_is_taken(api: Api) -> None:
    await enqueued(api)
    await api.ack(await api.dequeue_one("t"))
    found = await asyncio.gather(*(enqueued(api) for _ in range(10)))
    assert [status for _, status in found].count("enqueued") == 1
    assert len({item_id for item_id, _ in found}) == 1


async def test_only_a_key_is_unique(api: Api) -> None:
    answer = await api.post("enqueue", {"items": [{"topic": "t", "unique": True}]})
    assert answer.status_code == 422
    assert [error["pointer"] for error in answer.json()["errors"]] == ["/items/0/unique"]
