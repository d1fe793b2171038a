"""Limits of topics: so many items a second, so many in flight, whoever takes them."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from headgate import AsyncClient
from tests.support.queue_host import AT_ONCE, Api
from tests.support.traffic import traffic

Leased = dict[str, Any]


async def put_limits(api: Api, body: dict[str, Any]) -> httpx.Response:
    path = f"/v1/namespaces/{api.namespace}/topics/limits"
    return await api.host.client.put(path, json=body, headers=api.headers)


async def limit(api: Api, topic: str = "t", **limits: Any) -> dict[str, Any]:
    answer = await put_limits(api, {"topic": topic, **limits})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def filled(api: Api, count: int, **options: Any) -> list[str]:
    results = await api.enqueue(*({"topic": "t", **options} for _ in range(count)))
    return [result["id"] for result in results]


async def acked(api: Api, held: Leased) -> None:
    assert await api.ack(held) == ["acked"]


async def requeued_later(api: Api, held: Leased) -> None:
    assert await api.nack(held, delay_s=500) == ["requeued"]


async def failed(api: Api, held: Leased) -> None:
    assert await api.nack(held, final=True) == ["dead"]


async def cancelled(api: Api, held: Leased) -> None:
    assert await api.cancel(held["id"]) == ["cancelled"]


async def expired(api: Api, _held: Leased) -> None:
    await api.host.pass_time(61)


async def timed_out(api: Api, held: Leased) -> None:
    await api.host.pass_time(20)
    assert await api.extend(held, lease_s=500) == ["extended"]
    await api.host.pass_time(20)


async def settled_with_the_next_dequeue(api: Api, held: Leased) -> None:
    acks = [{"id": held["id"], "lease_token": held["lease_token"]}]
    answer = await api.post("dequeue", {"topics": [{"topic": "other"}], "settle": {"acks": acks}})
    assert answer.json()["results"]["acks"][0]["status"] == "acked"


ENDS = [acked, requeued_later, failed, cancelled, expired, timed_out, settled_with_the_next_dequeue]


@pytest.mark.parametrize("end", ENDS)
async def test_a_room_comes_back_whichever_way_a_lease_ends(
    api: Api, end: Callable[[Api, Leased], Awaitable[None]]
) -> None:
    await limit(api, concurrency=1)
    backoff = {"base_s": 5_000, "max_s": 5_000}
    first, second, _third = await filled(api, 3, timeout_s=30 if end is timed_out else 600, backoff=backoff)
    [held] = await api.dequeue("t", 10)
    assert held["id"] == first
    assert await api.dequeue("t", 10) == []

    await end(api, held)

    assert [item["id"] for item in await api.dequeue("t", 10, wait_s=2)] == [second]
    assert await api.dequeue("t", 10) == []


async def test_as_many_as_the_limit_are_in_flight_and_none_more(api: Api) -> None:
    sent = await filled(api, 5)
    assert await limit(api, concurrency=3) == {
        "topic": "t",
        "rate": None,
        "burst": 1,
        "concurrency": 3,
        "key_rate": None,
        "key_burst": 1,
        "key_concurrency": None,
        "in_flight": 0,
        "throttled_until": None,
        "throttled_keys": [],
    }
    held = await api.dequeue("t", 2)
    held += await api.dequeue("t", 10)
    assert [item["id"] for item in held] == sent[:3]
    assert await api.dequeue("t", 1) == []
    [shown] = (await api.get("topics/limits")).json()["items"]
    assert (shown["topic"], shown["concurrency"], shown["in_flight"]) == ("t", 3, 3)

    assert await api.ack(held[0], held[2]) == ["acked", "acked"]
    assert [item["id"] for item in await api.dequeue("t", 10)] == sent[3:]


async def test_a_call_that_waits_is_given_the_best_item_as_soon_as_there_is_room(api: Api) -> None:
    await limit(api, concurrency=1)
    await filled(api, 2, priority=5)
    [held] = await api.dequeue("t", 1)
    waiting = asyncio.create_task(api.dequeue("t", 5, wait_s=25))
    await asyncio.sleep(0.05)
    [best] = await filled(api, 1, priority=1)
    assert await api.ack(held) == ["acked"]

    assert [item["id"] for item in await waiting] == [best]


async def test_what_is_revived_while_a_call_waits_keeps_to_the_limit(api: Api) -> None:
    await limit(api, concurrency=1)
    disabled = await filled(api, 4, disabled=True)
    got = []
    for item_id in disabled:
        waiting = asyncio.create_task(api.dequeue("t", 5, wait_s=1))
        await asyncio.sleep(0.05)
        assert await api.revive(item_id) == ["revived"]
        got += await waiting

    assert [item["id"] for item in got] == disabled[:1]


async def test_a_rate_gives_a_burst_and_then_so_many_a_second(api: Api) -> None:
    await limit(api, rate=2, burst=3)
    sent = await filled(api, 20)
    await api.clock.freeze()
    got = [item["id"] for item in await api.dequeue("t", 10)]
    assert got == sent[:3]
    assert await api.dequeue("t", 10) == []
    for seconds, more in ((0.25, 0), (0.25, 1), (1, 2), (3600, 3)):
        await api.clock.advance(seconds)
        took = await api.dequeue("t", 10, wait_s=1.2)
        took += await api.dequeue("t", 10)
        assert len(took) == more
        got += [item["id"] for item in took]

    assert got == sent[: len(got)]


async def test_a_call_waits_for_the_next_token_and_not_for_a_poll(api: Api) -> None:
    await limit(api, rate=20, burst=1)
    await filled(api, 8)
    got = 0
    async with asyncio.timeout(5):  # 8 polls would take longer
        while got < 8:
            got += len(await api.dequeue("t", 8, wait_s=20))


async def test_limits_are_of_one_namespace(api: Api) -> None:
    other = Api(api.host, f"{api.namespace}-other")
    await limit(api, concurrency=1)
    await filled(api, 3)
    await filled(other, 3)

    assert len(await api.dequeue("t", 10)) == 1
    assert len(await other.dequeue("t", 10)) == 3
    assert (await other.get("topics/limits")).json()["items"] == []


async def test_limits_that_are_taken_away_hold_nothing_back(api: Api) -> None:
    await limit(api, concurrency=1, rate=0.001)
    await filled(api, 3)
    assert len(await api.dequeue("t", 10)) == 1
    waiting = asyncio.create_task(api.dequeue("t", 10, wait_s=20))
    await asyncio.sleep(0.05)
    await limit(api)

    assert len(await waiting) == 2
    assert (await api.get("topics/limits")).json()["items"] == []


async def test_a_call_that_waited_when_a_limit_was_set_keeps_to_it(api: Api) -> None:
    waiting = [asyncio.create_task(api.dequeue("t", 5, wait_s=1)) for _ in range(3)]
    await asyncio.sleep(0.05)
    await limit(api, concurrency=2)
    await filled(api, 6)

    assert sum(map(len, await asyncio.gather(*waiting))) == 2


async def test_a_call_for_several_topics_keeps_to_the_limit_of_each(api: Api) -> None:
    await limit(api, concurrency=2)
    await filled(api, 5)
    await api.enqueue(*({"topic": "free"} for _ in range(5)))
    wanted = {"topics": [{"topic": "t", "count": 4}, {"topic": "free", "count": 4}]}

    found = (await api.post("dequeue", wanted)).json()["items"]

    assert [item["topic"] for item in found] == ["t"] * 2 + ["free"] * 4


async def test_a_topic_without_limits_asks_the_database_no_more_than_before(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def statements() -> int:
        with traffic(monkeypatch) as found:
            await api.enqueue({"topic": "free"}, {"topic": "free"})
            held = await api.dequeue("free", 2)
            await api.nack(held[0], delay_s=0)
            await api.ack(*held[1:])
            await api.ack(*await api.dequeue("free", 2))
        return found.statements

    await statements()
    before = await statements()
    await limit(api, concurrency=1, rate=1, key_concurrency=1)

    assert await statements() == before


async def test_a_delivery_again_takes_a_room_like_a_first_one(api: Api) -> None:
    await limit(api, concurrency=2)
    await filled(api, 3, backoff=AT_ONCE)
    held = await api.dequeue("t", 10)
    assert await api.nack(held[0], delay_s=0) == ["requeued"]
    [again] = await api.dequeue("t", 10)
    assert await api.dequeue("t", 10) == []
    assert await api.ack(held[1], again) == ["acked", "acked"]


@pytest.mark.parametrize(
    ("limits", "pointer"),
    [
        ({"rate": 0}, "/rate"),
        ({"rate": -1}, "/rate"),
        ({"rate": "fast"}, "/rate"),
        ({"burst": 2}, "/burst"),
        ({"rate": 1, "burst": 0}, "/burst"),
        ({"concurrency": 0}, "/concurrency"),
        ({"concurrency": 1.5}, "/concurrency"),
        ({"concurency": 1}, "/concurency"),
    ],
)
async def test_limits_that_make_no_sense_are_refused(api: Api, limits: dict[str, Any], pointer: str) -> None:
    answer = await put_limits(api, {"topic": "t", **limits})

    assert answer.status_code == 422
    assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]


async def test_a_system_topic_has_no_limits(api: Api) -> None:
    assert (await put_limits(api, {"topic": "_acks", "rate": 1})).status_code == 403


@pytest.mark.parametrize("limits", [{}, {"concurrency": 5}], ids=["without limits", "with limits"])
@pytest.mark.parametrize("settles", [False, True], ids=["nack", "settle"])
async def test_a_throttled_topic_hands_out_nothing_until_its_time_is_over(
    api: Api, limits: dict[str, Any], settles: bool
) -> None:
    await limit(api, **limits)
    await filled(api, 3)
    await api.clock.freeze()
    [held] = await api.dequeue("t", 1)
    said = {"delay_s": 0, "costs_attempt": False, "throttle_s": 30}
    if settles:
        nack = {"id": held["id"], "lease_token": held["lease_token"], **said}
        answer = await api.post("dequeue", {"topics": [{"topic": "t", "count": 5}], "settle": {"nacks": [nack]}})
        found = answer.json()
        assert (found["items"], found["results"]["nacks"][0]["status"]) == ([], "requeued")
    else:
        assert await api.nack(held, **said) == ["requeued"]

    for seconds, more in ((0, 0), (29.9, 0), (0.1, 3)):
        await api.clock.advance(seconds)
        await api.host.process.gates.read()
        api.host.process.gates.opened(api.namespace)
        got = await api.dequeue("t", 5)
        assert len(got) == more
    assert {item["attempt"] for item in got} == {1}
    assert len((await api.get("topics/limits")).json()["items"]) == len(limits)


async def test_a_call_that_waited_when_its_topic_was_throttled_keeps_to_it(api: Api) -> None:
    await filled(api, 1)
    [held] = await api.dequeue("t", 1)
    waiting = asyncio.create_task(api.dequeue("t", 5, wait_s=0.5))
    await asyncio.sleep(0.05)
    assert await api.nack(held, delay_s=0, throttle_s=60) == ["requeued"]
    await filled(api, 2)

    assert await waiting == []


async def test_the_longest_throttle_stands_and_is_of_its_topic_alone(api: Api) -> None:
    await filled(api, 3)
    await api.enqueue({"topic": "free"})
    await api.clock.freeze()
    first, second = await api.dequeue("t", 2)
    assert await api.nack(first, delay_s=0, throttle_s=60) == ["requeued"]
    assert await api.nack(second, delay_s=0, throttle_s=5) == ["requeued"]
    await api.clock.advance(30)
    api.host.process.gates.opened(api.namespace)

    assert await api.dequeue("t", 5) == []
    assert len(await api.dequeue("free", 5)) == 1


async def test_only_who_holds_an_item_throttles_its_topic(api: Api) -> None:
    await filled(api, 2, backoff=AT_ONCE)
    [held] = await api.dequeue("t", 1)
    assert await api.nack(held, delay_s=0) == ["requeued"]
    assert await api.nack(held, delay_s=0, throttle_s=60) == ["lease_lost"]

    assert len(await api.dequeue("t", 5)) == 2


@pytest.mark.parametrize("throttle_s", [-1, 3_601, "long"])
async def test_a_time_to_throttle_for_is_bounded(api: Api, throttle_s: Any) -> None:
    nack = {"id": api.new_id(), "lease_token": "x", "throttle_s": throttle_s}
    plain = await api.post("nack", {"items": [nack]})
    settled = await api.post("dequeue", {"topics": [], "settle": {"nacks": [nack]}})

    assert [error["pointer"] for error in plain.json()["errors"]] == ["/items/0/throttle_s"]
    assert [error["pointer"] for error in settled.json()["errors"]] == ["/settle/nacks/0/throttle_s"]


async def test_the_client_sets_limits_and_reads_them(api: Api) -> None:
    async with AsyncClient(transport=api.host.client._transport, namespace=api.namespace) as client:
        assert await client.limits.get("t") is None
        await client.limits.put("t", rate=2.5, concurrency=4)
        await client.limits.put("s", concurrency=1)
        found = await client.limits.get("t")
        assert found is not None
        assert (found.rate, found.burst, found.concurrency, found.in_flight) == (2.5, 3, 4, 0)
        assert [one.topic for one in await client.limits.all()] == ["s", "t"]
        await client.limits.put("t")
        assert [one.topic for one in await client.limits.all(limit=5)] == ["s"]
