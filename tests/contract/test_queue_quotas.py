"""Quotas of a namespace: at the limit and one past it; what they answer, and to whom they do not apply."""

import asyncio
from typing import Any

import pytest

from shared.errors import Overloaded
from shared.metrics import RATE_LIMITED
from tests.support.queue_host import Api, QueueHost, queue_host


async def put(api: Api, **quotas: Any) -> dict[str, Any]:
    answer = await api.host.client.put(f"/v1/namespaces/{api.namespace}", json=quotas)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def statuses(results: list[dict[str, Any]]) -> list[tuple[str, str | None, str | None]]:
    return [(r["status"], r.get("code"), r.get("outcome")) for r in results]


TAKEN = ("enqueued", None, None)
OVER = ("refused", "over_quota", "none")


async def test_elements_over_the_quota_are_refused_one_by_one(api: Api) -> None:
    await put(api, enqueues_per_minute=5)
    answer = await api.post("enqueue", {"items": [{"topic": "t", "payload": n} for n in range(7)]})

    assert answer.status_code == 201
    assert statuses(answer.json()["results"]) == [TAKEN] * 5 + [OVER] * 2
    assert int(answer.headers["retry-after"]) == 12
    assert [item["payload"] for item in await api.dequeue("t", 10)] == [0, 1, 2, 3, 4]
    before = RATE_LIMITED.labels("enqueues_per_minute")._value.get()
    again = await api.post("enqueue", {"items": [{"topic": "t", "id": (own := api.new_id())}]})
    assert again.json()["results"] == [{"id": own, "status": "refused", "code": "over_quota", "outcome": "none"}]
    assert RATE_LIMITED.labels("enqueues_per_minute")._value.get() == before + 1


async def test_what_stays_within_the_quota_is_told_nothing(api: Api) -> None:
    await put(api, enqueues_per_minute=5)
    answer = await api.post("enqueue", {"items": [{"topic": "t"}] * 5})

    assert statuses(answer.json()["results"]) == [TAKEN] * 5
    assert "retry-after" not in answer.headers


async def test_a_quota_of_nothing_takes_nothing(api: Api) -> None:
    await put(api, enqueues_per_minute=0)
    assert statuses(await api.enqueue({"topic": "t"})) == [OVER]


async def test_a_quota_is_lifted_by_leaving_it_out(api: Api) -> None:
    await put(api, enqueues_per_minute=0)
    await put(api)
    assert statuses(await api.enqueue({"topic": "t"})) == [TAKEN]


async def test_other_namespaces_go_on(api: Api) -> None:
    await put(api, enqueues_per_minute=0)
    other = Api(api.host)
    assert statuses(await other.enqueue({"topic": "t"})) == [TAKEN]


async def test_the_dag_service_is_not_refused_for_quota(api: Api) -> None:
    await put(api, enqueues_per_minute=0, items_max=0, stored_bytes_max=0)
    assert statuses(await api.as_dag_service().enqueue({"topic": "t"})) == [TAKEN]


async def test_items_in_flight_are_never_over_their_limit(own_api: Api) -> None:
    api = own_api
    await put(api, in_flight_max=3)
    await api.enqueue(*({"topic": "t", "payload": n} for n in range(8)))
    calls = await asyncio.gather(*(api.dequeue("t", 2) for _ in range(5)))
    held = [item for items in calls for item in items]
    assert len(held) == 3
    assert await api.dequeue("t", 5) == []

    assert await api.ack(held[0]) == ["acked"]
    assert await api.nack(held[1], delay_s=100) == ["requeued"]
    assert len(await api.dequeue("t", 5)) == 2
    await api.host.process.quotas.step()
    assert await api.dequeue("t", 5) == []


async def test_items_in_flight_are_never_over_their_limit_where_topics_have_limits_too(own_api: Api) -> None:
    api = own_api
    await put(api, in_flight_max=3)
    path = f"/v1/namespaces/{api.namespace}/topics/limits"
    await api.host.client.put(path, json={"topic": "t", "concurrency": 100})
    await api.enqueue(*({"topic": topic} for topic in ("t", "u") for _ in range(20)))
    asked = {"topics": [{"topic": "t", "count": 2}, {"topic": "u", "count": 2}]}

    answers = await asyncio.gather(*(api.post("dequeue", asked) for _ in range(10)))
    assert sum(len(answer.json()["items"]) for answer in answers) == 3
    assert (await api.host.client.get(path.removesuffix("/topics/limits"))).json()["in_flight"] == 3


@pytest.mark.parametrize("first", ["empty", "paused", "limited"])
async def test_a_topic_that_gives_nothing_leaves_its_room_to_the_next(own_api: Api, first: str) -> None:
    api = own_api
    await put(api, in_flight_max=3)
    await api.enqueue(*({"topic": topic} for topic in ("paused", "limited", "m") for _ in range(4)))
    await api.post("topics/pause", {"topic": "paused"})
    path = f"/v1/namespaces/{api.namespace}/topics/limits"
    await api.host.client.put(path, json={"topic": "limited", "concurrency": 1})

    asked = {"topics": [{"topic": first, "count": 4}, {"topic": "m", "count": 4}]}
    given = (await api.post("dequeue", asked)).json()["items"]
    of_first = 1 if first == "limited" else 0
    assert [item["topic"] for item in given] == [first] * of_first + ["m"] * (3 - of_first)
    assert (await api.post("dequeue", asked)).json()["items"] == []


async def test_a_waiting_dequeue_goes_on_when_there_is_room_again(own_api: Api) -> None:
    api = own_api
    await put(api, in_flight_max=1)
    await api.enqueue({"topic": "t"}, {"topic": "u"})
    [held] = await api.dequeue("t")
    waiting = [asyncio.create_task(api.dequeue("u", wait_s=20)) for _ in range(2)]
    await asyncio.sleep(0.05)
    assert not any(task.done() for task in waiting)
    assert await api.ack(held) == ["acked"]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    assert sum(task.done() for task in waiting) == 1
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_leases_that_ran_out_make_room(own_api: Api) -> None:
    api = own_api
    await put(api, in_flight_max=1)
    await api.enqueue({"topic": "t", "lease_s": 5}, {"topic": "t"})
    await api.dequeue("t")
    await api.host.pass_time(6)
    assert await api.dequeue("t") == []
    await api.host.process.quotas.step()
    assert len(await api.dequeue("t", 5)) == 1


async def test_what_a_namespace_stores_is_limited_by_items_and_by_bytes(own_api: Api) -> None:
    api = own_api
    await put(api, items_max=3)
    first = await api.post("enqueue", {"items": [{"topic": "t"}] * 4})
    assert statuses(first.json()["results"]) == [TAKEN] * 3 + [OVER]
    assert first.headers["retry-after"].isdigit()
    await api.ack(*await api.dequeue("t", 1))
    assert statuses(await api.enqueue({"topic": "t"}, {"topic": "t"})) == [TAKEN, OVER]

    await put(api, stored_bytes_max=30)
    assert (await put(api, stored_bytes_max=30))["stored_bytes"] == 3 * len("null")
    results = await api.enqueue(*({"topic": "t", "payload": "x" * size} for size in (7, 8, 1)))
    assert statuses(results) == [TAKEN, OVER, OVER], (
        "12 bytes are there, 9 are added, and then 10 would be one too many"
    )
    assert statuses(await api.enqueue({"topic": "t", "payload": "x" * 7})) == [TAKEN]
    assert statuses(await api.enqueue({"topic": "t", "payload": 0})) == [OVER]


async def test_what_was_not_taken_in_leaves_room(own_api: Api) -> None:
    api = own_api
    await put(api, items_max=3, stored_bytes_max=3 * len("null"))
    again = {"topic": "t", "id": api.new_id(0)}
    keyed = {"topic": "t", "idempotency_key": "k"}
    for taken in ("enqueued", "duplicate", "duplicate"):
        assert {r["status"] for r in await api.enqueue(again) + await api.enqueue(keyed)} == {taken}
    too_old = await api.enqueue({"topic": "t", "id": api.new_id(0, age_s=100 * 24 * 3600)})
    assert statuses(too_old) == [("refused", "id_too_old", "none")]

    assert statuses(await api.enqueue({"topic": "t"})) == [TAKEN]
    assert statuses(await api.enqueue({"topic": "t"})) == [OVER]


async def test_an_enqueue_that_fails_leaves_room(own_api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    api = own_api
    await put(api, items_max=1)

    async def refuse(*_: Any, **__: Any) -> None:
        raise Overloaded("too much", retry_after_s=1.0)

    with monkeypatch.context() as patch:
        patch.setattr(api.host.process.enqueues, "enqueue", refuse)
        assert (await api.post("enqueue", {"items": [{"topic": "t"}]})).status_code == 503
    assert statuses(await api.enqueue({"topic": "t"})) == [TAKEN]
    assert statuses(await api.enqueue({"topic": "t"})) == [OVER]


async def test_a_claim_in_vain_leaves_room(own_api: Api) -> None:
    """What this process knows of was cancelled, so the claim finds nothing, and the call goes on to the next."""
    api = own_api
    await put(api, in_flight_max=1)
    assert await api.dequeue("t") == []
    ids = [await api.enqueue_one("t", id=api.new_id(0)) for _ in range(2)]
    assert await api.cancel(ids[0]) == ["cancelled"]

    assert [item["id"] for item in await api.dequeue("t")] == ids[1:]


async def test_bytes_are_given_back_by_every_end(own_api: Api) -> None:
    api = own_api
    await put(api, stored_bytes_max=1_000_000)
    ids = [await api.enqueue_one("t", payload="x" * 98, ack_topic="done") for _ in range(4)]
    [a, b] = await api.dequeue("t", 2)
    assert (await api.get("")).json()["stored_bytes"] == 400
    await api.ack(a, output=1)
    await api.nack(b, final=True)
    await api.cancel(ids[2])
    assert (await api.get("")).json()["stored_bytes"] > 200, "completions have payloads too"
    assert len(await api.completions("done")) == 3
    found = (await api.get("")).json()
    assert (found["stored_bytes"], found["items"]) == (200, 2)
    await api.host.fold()
    assert (await api.get("")).json()["stored_bytes"] == 200
    assert (await api.post("topics/purge", {"topic": "t"})).json()["items"] == 2
    assert len(await api.completions("done")) == 1, "the dead one told its end when it died"
    assert (await api.get("")).json()["stored_bytes"] == 0


async def test_what_has_no_quota_says_so(own_api: Api) -> None:
    await own_api.enqueue({"topic": "t"})
    unlimited = {"enqueues_per_minute": None, "in_flight_max": None, "items_max": None, "stored_bytes_max": None}
    assert (await own_api.get("")).json().items() >= unlimited.items()
    assert (await put(own_api, in_flight_max=5)).items() >= (unlimited | {"in_flight_max": 5}).items()


async def test_quota_and_use_are_shown(own_api: Api) -> None:
    api = own_api
    put_answer = await put(api, enqueues_per_minute=100, in_flight_max=10, items_max=20, stored_bytes_max=3000)
    await api.enqueue({"topic": "t", "payload": 1}, {"topic": "t", "payload": 22})
    await api.dequeue("t")
    shown = (await api.get("")).json()
    quotas = {"enqueues_per_minute": 100, "in_flight_max": 10, "items_max": 20, "stored_bytes_max": 3000}
    assert put_answer.items() >= quotas.items()
    assert shown == {
        "namespace": api.namespace,
        **quotas,
        "enqueued_last_minute": 2,
        "in_flight": 1,
        "items": 2,
        "stored_bytes": 3,
    }
    [listed] = [
        row
        for row in (await api.host.client.get("/v1/namespaces")).json()["items"]
        if row["namespace"] == api.namespace
    ]
    assert listed == shown


@pytest.mark.parametrize(
    "bad", [{"enqueues_per_minute": -1}, {"in_flight_max": 1.5}, {"stored_bytes_max": 2**53 + 1}]
)
async def test_a_quota_that_is_none_is_refused(api: Api, bad: dict[str, Any]) -> None:
    answer = await api.host.client.put(f"/v1/namespaces/{api.namespace}", json=bad)
    assert answer.status_code == 422


async def test_another_host_hears_of_a_quota_with_its_next_look(own_host: QueueHost) -> None:
    api = Api(own_host)
    async with queue_host(own_host.database, own_host.clock) as other:
        await put(api, enqueues_per_minute=0, in_flight_max=1)
        await other.process.quotas.step()
        there = api.on(other)
        assert statuses(await there.enqueue({"topic": "t"})) == [OVER]
        await put(api, in_flight_max=1)
        await other.process.quotas.step()
        await api.enqueue({"topic": "t"}, {"topic": "t"})
        assert len(await api.dequeue("t", 2)) == 1
        await other.process.quotas.step()
        assert await there.dequeue("t", 2) == []


async def test_use_is_known_while_a_shard_is_away(own_host: QueueHost, monkeypatch: pytest.MonkeyPatch) -> None:
    api = Api(own_host)
    await put(api, items_max=2)
    for shard in (0, 1):
        await api.enqueue_one("t", id=api.new_id(shard))
    await own_host.process.quotas.step()
    monkeypatch.setattr(own_host.stores[1].shard.breaker, "state", "open")
    monkeypatch.setattr(own_host.stores[1].shard.breaker, "_retry_at_s", float("inf"))
    await own_host.process.quotas.step()
    assert statuses(await api.enqueue({"topic": "t"})) == [OVER]


async def test_quotas_that_are_lifted_while_a_shard_is_away_are_lifted(
    own_host: QueueHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever remembers what that shard had knows by the others that it is over."""
    api = Api(own_host)
    async with queue_host(own_host.database, own_host.clock) as other:
        there, quotas = api.on(other), other.process.quotas
        await put(api, items_max=1)
        await quotas.step()
        monkeypatch.setattr(other.stores[1].shard.breaker, "state", "open")
        monkeypatch.setattr(other.stores[1].shard.breaker, "_retry_at_s", float("inf"))
        await quotas.step()
        assert quotas.of(api.namespace) is not None
        await put(api)
        await quotas.step()
        assert quotas.of(api.namespace) is None
        ids = [there.new_id(0) for _ in range(2)]
        assert statuses(await there.enqueue(*({"topic": "t", "id": item_id} for item_id in ids))) == [TAKEN, TAKEN]
        await put(api, items_max=1)
        await quotas.step()
        assert quotas.of(api.namespace) is not None
