"""Calls that wait for one topic share what becomes ready: nobody takes all that others could work on."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from services.queue.dispatch.direct_handoff import SHARED_COUNT_MAX
from tests.integration.queue.test_direct_handoff import disable
from tests.integration.queue.test_hung_up_consumer import until_waiting
from tests.support.queue_host import Api

Leased = list[dict[str, Any]]
Fill = Callable[[Api, int], Awaitable[list[str]]]


async def plain(api: Api, count: int) -> list[str]:
    return [result["id"] for result in await api.enqueue(*({"topic": "t"} for _ in range(count)))]


async def on_every_shard(api: Api, count: int) -> list[str]:
    """Flushes of their own, which end one after another."""
    ids = [api.new_id(list(api.host.stores)[n % len(api.host.stores)]) for n in range(count)]
    await api.enqueue(*({"topic": "t", "id": item_id} for item_id in ids))
    return ids


async def in_calls_of_one(api: Api, count: int) -> list[str]:
    return list(await asyncio.gather(*(api.enqueue_one("t") for _ in range(count))))


async def revived(api: Api, count: int) -> list[str]:
    """By a flush that leases to a call that waits."""
    first = await disable(api)
    await api.revive(first)
    await api.ack(*await api.dequeue("t", 5))
    return [await disable(api) for _ in range(count)]


async def waiting(api: Api, *counts: int) -> list[asyncio.Task[Leased]]:
    calls = []
    for count in counts:
        calls.append(asyncio.create_task(api.dequeue("t", count, wait_s=20)))
        await until_waiting(api, len(calls))
    return calls


async def shares(calls: list[asyncio.Task[Leased]]) -> list[int]:
    """How many items each call was answered with; a call that goes on waiting is cut off."""
    await asyncio.wait(calls, timeout=10, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.sleep(0.3)
    for call in calls:
        call.cancel()
    found = await asyncio.gather(*calls, return_exceptions=True)
    return [len(items) if isinstance(items, list) else 0 for items in found]


@pytest.mark.parametrize("fill", [plain, on_every_shard, in_calls_of_one])
async def test_five_items_for_five_calls_of_five_are_one_each(own_api: Api, fill: Fill) -> None:
    calls = await waiting(own_api, 5, 5, 5, 5, 5)
    await fill(own_api, 5)

    found = await asyncio.wait_for(asyncio.gather(*calls), 10)
    assert [len(items) for items in found] == [1] * 5


async def test_five_items_that_are_revived_together_are_one_each(own_api: Api) -> None:
    ids = await revived(own_api, 5)
    calls = await waiting(own_api, 5, 5, 5, 5, 5)
    assert await own_api.revive(*ids) == ["revived"] * 5

    found = await asyncio.wait_for(asyncio.gather(*calls), 10)
    assert [len(items) for items in found] == [1] * 5


@pytest.mark.parametrize(
    ("counts", "items", "expected"),
    [((5, 5, 5), 7, [3, 2, 2]), ((1, 5, 5), 7, [1, 3, 3]), ((5,), 7, [5]), ((5, 5, 5), 2, [1, 1, 0])],
)
async def test_what_does_not_divide_is_shared_as_evenly_as_may_be(
    own_api: Api, counts: tuple[int, ...], items: int, expected: list[int]
) -> None:
    calls = await waiting(own_api, *counts)
    await plain(own_api, items)

    assert await shares(calls) == expected


@pytest.mark.parametrize(
    ("counts", "expected"),
    [((SHARED_COUNT_MAX,) * 2, [5, 5]), ((SHARED_COUNT_MAX + 1,) * 2, [10, 0])],
)
async def test_a_call_for_many_is_filled(own_api: Api, counts: tuple[int, ...], expected: list[int]) -> None:
    calls = await waiting(own_api, *counts)
    await plain(own_api, sum(expected))

    assert await shares(calls) == expected


async def test_the_best_go_to_who_has_waited_longest(own_api: Api) -> None:
    calls = await waiting(own_api, 5, 5)
    await own_api.enqueue(*({"topic": "t", "priority": priority} for priority in (3, 1, 2, 0)))

    found = await asyncio.gather(*calls)
    assert [[item["priority"] for item in items] for items in found] == [[0, 1], [2, 3]]


async def test_a_call_that_finds_items_while_nobody_waits_takes_all_it_wants(own_api: Api) -> None:
    calls = await waiting(own_api, 5, 5, 5)
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    await plain(own_api, 10)

    assert len(await own_api.dequeue("t", 8)) == 8


async def test_calls_of_a_limited_topic_share_too(own_api: Api) -> None:
    path = f"/v1/namespaces/{own_api.namespace}/topics/limits"
    await own_api.host.client.put(path, json={"topic": "t", "concurrency": 3}, headers=own_api.headers)
    calls = await waiting(own_api, 5, 5, 5)
    await plain(own_api, 5)

    found = await asyncio.wait_for(asyncio.gather(*calls), 10)
    assert [len(items) for items in found] == [1] * 3
