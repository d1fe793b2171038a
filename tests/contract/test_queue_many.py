"""Calls of many equal elements, which are read as a whole, say of each element what they say of one alone."""

import asyncio
from typing import Any

import pytest

from services.queue.api import uniform_bodies
from shared.fallback import Fallback
from tests.support.queue_host import Api

MANY = 30


@pytest.fixture(autouse=True)
def read_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was read so."""
    read: list[Any] = []
    for name in ("items", "acks"):
        real = getattr(uniform_bodies, name)

        def look(*args: Any, real: Any = real) -> Any:
            found = real(*args)
            if not isinstance(found, Fallback):
                read.append(found)
            return found

        monkeypatch.setattr(uniform_bodies, name, look)
    return read


async def leased(api: Api) -> list[dict[str, Any]]:
    results = await api.enqueue(*({"topic": "t", "payload": f"payload {n}"} for n in range(MANY)))
    assert [result["status"] for result in results] == ["enqueued"] * MANY
    items = await api.dequeue("t", MANY)
    assert [item["payload"] for item in items] == [f"payload {n}" for n in range(MANY)]
    assert [item["id"] for item in items] == [result["id"] for result in results]
    return items


async def test_each_is_acked_once(api: Api, read_as_a_whole: list[Any]) -> None:
    items = await leased(api)
    assert await api.ack(*items) == ["acked"] * MANY
    assert await api.ack(*items) == ["already_acked"] * MANY
    assert len(read_as_a_whole) == 3


async def test_some_were_acked_given_back_or_cancelled_before(api: Api, read_as_a_whole: list[Any]) -> None:
    items = await leased(api)
    assert await api.ack(items[3]) == ["acked"]
    assert await api.nack(items[5]) == ["requeued"]
    assert await api.cancel(items[7]["id"]) == ["cancelled"]

    expected = ["acked"] * MANY
    expected[3], expected[5], expected[7] = "already_acked", "lease_lost", "cancelled"
    assert await api.ack(*items) == expected
    assert len(read_as_a_whole) == 2


async def test_an_item_that_is_named_twice_is_acked_once(api: Api) -> None:
    items = await leased(api)
    assert await api.ack(*items, items[4]) == ["acked"] * MANY + ["already_acked"]


async def test_strangers_are_told_nothing(api: Api) -> None:
    items = await leased(api)
    other = Api(api.host)
    assert await other.ack(*items) == ["not_found"] * MANY
    assert await other.enqueue_one("t")
    assert await other.ack(*items) == ["not_found"] * MANY
    wrong = [{**item, "lease_token": items[0]["id"]} for item in items]
    assert await api.ack(*wrong) == ["lease_lost"] * MANY
    assert await api.ack(*items) == ["acked"] * MANY


async def test_calls_that_share_a_flush_are_each_told_of_their_own(own_api: Api) -> None:
    first, second = await leased(own_api), await leased(own_api)
    assert await own_api.nack(second[2]) == ["requeued"]

    found = await asyncio.gather(
        own_api.ack(*first), own_api.ack(*second), own_api.ack(*first), own_api.ack(*reversed(second))
    )

    both = [sorted(pair) for pair in zip(found[0], found[2], strict=True)]
    assert both == [["acked", "already_acked"]] * MANY
    both = [sorted(pair) for pair in zip(found[1], reversed(found[3]), strict=True)]
    assert both == [["lease_lost"] * 2 if n == 2 else ["acked", "already_acked"] for n in range(MANY)]


async def test_items_of_several_shards_under_one_token(api: Api, read_as_a_whole: list[Any]) -> None:
    ids = [api.new_id(n % 2) for n in range(MANY)]
    await api.enqueue(*({"topic": "t", "id": item_id} for item_id in ids))
    items = await api.dequeue("t", MANY)
    assert {item["id"] for item in items} == set(ids)

    assert await api.ack(*items) == ["acked"] * MANY
    assert len(read_as_a_whole) == 1


async def test_system_topics_are_the_systems(api: Api) -> None:
    response = await api.post("enqueue", {"items": [{"topic": "_t", "payload": "x"}] * 60})
    assert (response.status_code, response.json()["code"]) == (403, "forbidden")
