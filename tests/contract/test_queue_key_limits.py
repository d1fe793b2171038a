"""Limits of the fairness keys of a topic, and throttles of single keys."""

import asyncio
from typing import Any

import pytest

from headgate import AsyncClient
from tests.contract.test_queue_limits import ENDS, Leased, limit, put_limits
from tests.support.queue_host import AT_ONCE, Api


async def filled(api: Api, **counts: int) -> None:
    """So many items of each key, the last call's behind the first one's."""
    for key, count in counts.items():
        await api.enqueue(*({"topic": "t", "fairness_key": key, "payload": key} for _ in range(count)))


def keys_of(items: list[Leased]) -> dict[str, int]:
    found: dict[str, int] = {}
    for item in items:
        found[item["payload"]] = found.get(item["payload"], 0) + 1
    return found


async def test_so_many_of_each_key_are_in_flight_and_no_key_holds_up_another(api: Api) -> None:
    await limit(api, key_concurrency=2)
    await filled(api, a=50, b=3, c=1)

    held = await api.dequeue("t", 100)
    assert keys_of(held) == {"a": 2, "b": 2, "c": 1}
    assert await api.dequeue("t", 100) == []
    of_b = next(item for item in held if item["payload"] == "b")
    assert await api.ack(of_b) == ["acked"]
    assert keys_of(await api.dequeue("t", 100)) == {"b": 1}


@pytest.mark.parametrize("end", ENDS)
async def test_a_room_of_a_key_comes_back_whichever_way_a_lease_ends(api: Api, end: Any) -> None:
    await limit(api, key_concurrency=1)
    fields = {"timeout_s": 30 if "timed" in end.__name__ else 600, "backoff": {"base_s": 5_000, "max_s": 5_000}}
    ids = [await api.enqueue_one("t", fairness_key="a", **fields) for _ in range(3)]
    [held] = await api.dequeue("t", 10)
    assert held["id"] == ids[0]
    assert await api.dequeue("t", 10) == []

    await end(api, held)

    assert [item["id"] for item in await api.dequeue("t", 10, wait_s=3)] == [ids[1]]
    assert await api.dequeue("t", 10) == []


async def test_a_rate_is_one_for_each_key(api: Api) -> None:
    await limit(api, key_rate=2, key_burst=3)
    await filled(api, a=20, b=20)
    await api.clock.freeze()

    assert keys_of(await api.dequeue("t", 100)) == {"a": 3, "b": 3}
    assert await api.dequeue("t", 100) == []
    await api.clock.advance(1)
    assert keys_of(await api.dequeue("t", 100, wait_s=2)) == {"a": 2, "b": 2}


async def test_the_items_of_a_key_keep_their_order_and_others_are_not_limited(api: Api) -> None:
    await limit(api, key_concurrency=1)
    ids = [await api.enqueue_one("t", fairness_key="a") for _ in range(4)]
    await api.enqueue(*({"topic": "t"} for _ in range(5)))
    got = []
    for _ in ids:
        items = await api.dequeue("t", 20, wait_s=2)
        mine = [item for item in items if item["id"] in ids]
        assert len(mine) == 1
        got += mine
        assert set(await api.ack(*items)) == {"acked"}

    assert [item["id"] for item in got] == ids


async def test_limits_of_the_topic_and_of_its_keys_hold_both(api: Api) -> None:
    await limit(api, concurrency=5, key_concurrency=2)
    await filled(api, a=10, b=10, c=10, d=10)

    held = await api.dequeue("t", 100)
    held += await api.dequeue("t", 100)
    assert len(held) == 5
    assert max(keys_of(held).values()) <= 2


async def test_a_call_that_waits_is_woken_by_the_room_of_its_key(api: Api) -> None:
    await limit(api, key_concurrency=1)
    await filled(api, a=2)
    [held] = await api.dequeue("t", 1)
    waiting = asyncio.create_task(api.dequeue("t", 5, wait_s=20))
    await asyncio.sleep(0.05)
    assert await api.ack(held) == ["acked"]

    assert keys_of(await asyncio.wait_for(waiting, 10)) == {"a": 1}


async def test_thousands_of_items_of_a_full_key_hide_no_other(api: Api) -> None:
    await limit(api, key_concurrency=1)
    for _ in range(3):
        await filled(api, a=1_000)
    await filled(api, b=2)
    held = await api.dequeue("t", 10)
    assert keys_of(held) == {"a": 1, "b": 1}
    await api.ack(next(item for item in held if item["payload"] == "b"))

    assert keys_of(await api.dequeue("t", 1, wait_s=5)) == {"b": 1}


@pytest.mark.parametrize("limits", [{}, {"key_concurrency": 5}, {"concurrency": 5}], ids=str)
@pytest.mark.parametrize("settles", [False, True], ids=["nack", "settle"])
async def test_a_throttled_key_is_handed_out_to_nobody_until_its_time_is_over(
    api: Api, limits: dict[str, Any], settles: bool
) -> None:
    await limit(api, **limits)
    await filled(api, a=3, b=2)
    await api.clock.freeze()
    held = await api.dequeue("t", 1)
    assert keys_of(held) == {"a": 1}
    said = {"delay_s": 0, "costs_attempt": False, "throttle_s": 30, "throttle_key": "a"}
    if settles:
        nack = {"id": held[0]["id"], "lease_token": held[0]["lease_token"], **said}
        answer = await api.post("dequeue", {"topics": [{"topic": "t", "count": 5}], "settle": {"nacks": [nack]}})
        assert keys_of(answer.json()["items"]) == {"b": 2}
    else:
        assert await api.nack(held[0], **said) == ["requeued"]
        assert keys_of(await api.dequeue("t", 5)) == {"b": 2}

    for seconds, expected in ((29.9, {}), (0.2, {"a": 3})):
        await api.clock.advance(seconds)
        await api.host.process.gates.read()
        api.host.process.gates.of_keys.forget((api.namespace, "t"))
        assert keys_of(await api.dequeue("t", 3)) == expected


async def test_a_throttle_is_shown_and_can_be_lifted(api: Api) -> None:
    await filled(api, a=1, b=1)
    first, second = await api.dequeue("t", 2)
    await filled(api, a=1, b=1)
    await api.clock.freeze()
    assert (first["payload"], second["payload"]) == ("a", "b")
    assert await api.nack(first, delay_s=0, throttle_s=600, throttle_key="a") == ["requeued"]
    assert await api.nack(second, delay_s=0, throttle_s=60) == ["requeued"]
    async with AsyncClient(transport=api.host.client._transport, namespace=api.namespace) as client:
        found = await client.limits.get("t")
        assert found is not None
        assert found.throttled_until is not None
        assert [
            (one.key, (one.until - found.throttled_until).total_seconds()) for one in found.throttled_keys
        ] == [("a", 540)]
        assert [one.topic for one in await client.limits.all()] == ["t"]
        assert await api.dequeue("t", 5) == []

        lifted = await client.limits.unthrottle("t", key="a")
        assert (lifted.throttled_keys, lifted.throttled_until) == ([], found.throttled_until)
        waiting = asyncio.create_task(api.dequeue("t", 5, wait_s=20))
        await asyncio.sleep(0.05)
        await client.limits.unthrottle("t")

        assert keys_of(await asyncio.wait_for(waiting, 10)) == {"a": 2, "b": 2}
        assert await client.limits.get("t") is None
        assert await client.limits.all() == []


async def test_one_key_is_lifted_and_the_others_stay_throttled(api: Api) -> None:
    await filled(api, a=1, b=1)
    first, second = await api.dequeue("t", 2)
    await filled(api, a=1, b=1)
    for held in (first, second):
        await api.nack(held, delay_s=0, throttle_s=600, throttle_key=held["payload"])
    answer = await api.post("topics/unthrottle", {"topic": "t", "key": "b"})

    assert [one["key"] for one in answer.json()["throttled_keys"]] == ["a"]
    assert keys_of(await api.dequeue("t", 5)) == {"b": 2}


async def test_nothing_is_kept_of_topics_that_are_not_throttled_when_somebody_lifts_them(api: Api) -> None:
    for n in range(5):
        answer = await api.post("topics/unthrottle", {"topic": f"t{n}"})
        assert answer.status_code == 200
    gates = api.host.process.gates
    assert not [pair for pair in gates.of_keys._turns if pair[0] == api.namespace]


async def test_only_who_holds_an_item_throttles_a_key(api: Api) -> None:
    await api.enqueue(*({"topic": "t", "fairness_key": "a", "payload": "a", "backoff": AT_ONCE} for _ in range(2)))
    [held] = await api.dequeue("t", 1)
    assert await api.nack(held, delay_s=0) == ["requeued"]
    assert await api.nack(held, delay_s=0, throttle_s=60, throttle_key="a") == ["lease_lost"]

    assert keys_of(await api.dequeue("t", 5)) == {"a": 2}


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"key_burst": 2}, "/key_burst"),
        ({"key_rate": 0}, "/key_rate"),
        ({"key_concurrency": 0}, "/key_concurrency"),
        ({"key_concurrency": 101}, "/key_concurrency"),
    ],
)
async def test_limits_of_keys_that_make_no_sense_are_refused(api: Api, body: dict[str, Any], pointer: str) -> None:
    answer = await put_limits(api, {"topic": "t", **body})

    assert answer.status_code == 422
    assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]


@pytest.mark.parametrize("key", ["", "x" * 201, 5])
async def test_a_key_to_throttle_is_a_fairness_key(api: Api, key: Any) -> None:
    nack = {"id": api.new_id(), "lease_token": "x", "throttle_s": 1, "throttle_key": key}
    plain = await api.post("nack", {"items": [nack]})
    settled = await api.post("dequeue", {"topics": [], "settle": {"nacks": [nack]}})
    alone = await api.post("nack", {"items": [{**nack, "throttle_s": None, "throttle_key": "a"}]})

    assert [error["pointer"] for error in plain.json()["errors"]] == ["/items/0/throttle_key"]
    assert [error["pointer"] for error in settled.json()["errors"]] == ["/settle/nacks/0/throttle_key"]
    assert [error["pointer"] for error in alone.json()["errors"]] == ["/items/0/throttle_key"]


async def test_the_client_sets_limits_of_keys(api: Api) -> None:
    async with AsyncClient(transport=api.host.client._transport, namespace=api.namespace) as client:
        await client.limits.put("t", key_rate=2.5, key_concurrency=4)
        found = await client.limits.get("t")
        assert found is not None
        assert (found.key_rate, found.key_burst, found.key_concurrency, found.rate) == (2.5, 3, 4, None)
