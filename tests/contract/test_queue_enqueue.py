"""Enqueue: what an item is when it was taken in."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headgate._ids import shard_of
from services.queue.store.enqueue import EARLY_S_MAX, EnqueueStore
from tests.support.queue_host import Api


async def test_an_item_comes_out_as_it_went_in(api: Api) -> None:
    payload = {"text": "héllo \U0001f600", "list": [1, 2.5, None, True, {"deep": []}], "big": 2**53}
    item_id = await api.enqueue_one(
        "t",
        payload=payload,
        metadata={"trace": "a"},
        inputs={"up": [1]},
        priority=-7,
        headers={"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
    )

    leased = await api.dequeue_one("t", lease_s=30)

    assert leased["id"] == item_id
    assert leased["topic"] == "t"
    assert leased["payload"] == payload
    assert leased["metadata"] == {"trace": "a"}
    assert leased["inputs"] == {"up": [1]}
    assert leased["priority"] == -7
    assert leased["attempt"] == 1
    assert leased["headers"]["traceparent"].startswith("00-")
    assert "dag" not in leased or leased["dag"] is None
    enqueued_at = datetime.fromisoformat(leased["enqueued_at"])
    lease_expires_at = datetime.fromisoformat(leased["lease_expires_at"])
    assert enqueued_at.utcoffset() == timedelta(0)
    assert timedelta(seconds=29.9) < lease_expires_at - enqueued_at < timedelta(seconds=35)


async def test_defaults(api: Api) -> None:
    item_id = await api.enqueue_one("t")

    item = await api.item(item_id)

    assert item["state"] == "ready"
    assert item["payload"] is None
    assert item["metadata"] is None
    assert item["priority"] == 0
    assert item["attempt"] == 0
    assert item["max_attempts"] == 0
    assert item["delivery"] == "at_least_once"
    assert item["lease_s"] == 60
    assert item["expires_at"] is None


@pytest.mark.parametrize("payload", [None, False, 0, "", [], {}, 1.5, "x", -0.25, 10**18, -(2**63)])
async def test_any_json_is_a_payload(api: Api, payload: object) -> None:
    await api.enqueue_one("t", payload=payload)

    assert (await api.dequeue_one("t"))["payload"] == payload


async def test_an_integer_beyond_64_bits_is_kept_to_the_digit(api: Api) -> None:
    for number in (2**64, 10**30, -(10**30)):
        await api.enqueue_one("t", payload={"n": number})

    assert [item["payload"]["n"] for item in await api.dequeue("t", 3)] == [2**64, 10**30, -(10**30)]


@pytest.mark.parametrize("topic", ["a", "a/b", "a.b_c-d/E", "x" * 128, "//", "..", "0"])
async def test_topics_may_be_named(api: Api, topic: str) -> None:
    item_id = await api.enqueue_one(topic)

    assert (await api.dequeue_one(topic))["id"] == item_id
    assert (await api.topic(topic))["leased"] == 1


async def test_results_are_in_the_order_of_the_call(api: Api) -> None:
    known = await api.enqueue_one("t", id=api.new_id(1))
    ids = [api.new_id(2), known, api.new_id(0, age_s=3600)]

    results = await api.enqueue(
        {"topic": "t"},
        {"topic": "t", "id": ids[0]},
        {"topic": "t", "id": ids[1]},
        {"topic": "t", "id": ids[2]},
        {"topic": "t", "affinity": "a"},
        {"topic": "t", "idempotency_key": "k"},
    )

    assert [r["status"] for r in results] == [
        "enqueued",
        "enqueued",
        "duplicate",
        "refused",
        "enqueued",
        "enqueued",
    ]
    assert [results[i]["id"] for i in (1, 2, 3)] == ids
    assert (results[3]["code"], results[3]["outcome"]) == ("id_too_old", "none")
    assert (await api.topic("t"))["ready"] == 5


def _key(n: int) -> str:
    return f"k{n * 7919}"  # of keys that follow one another, the slots may leave out a shard


@pytest.mark.parametrize(
    "given",
    [
        lambda n: {"idempotency_key": _key(n)},
        lambda n: {"affinity": _key(n)},
        lambda n: {"idempotency_key": _key(n)} if n % 2 else {},
        lambda n: {"affinity": _key(n)} if n % 3 else {"idempotency_key": _key(n)},
    ],
    ids=["keys", "affinities", "some keys", "keys and affinities"],
)
async def test_items_of_a_call_that_goes_to_several_shards_keep_their_order(
    api: Api, given: Callable[[int], dict[str, Any]]
) -> None:
    before = [await api.enqueue_one("t", payload=-2, id=api.new_id(shard)) for shard in range(3)]
    results = await api.enqueue(*({"topic": "t", "payload": n, **given(n)} for n in range(30)))
    assert {shard_of(result["id"]) for result in results} == {0, 1, 2}
    after = [await api.enqueue_one("t", payload=99, id=api.new_id(shard)) for shard in range(3)]

    found = await api.dequeue("t", 100)
    assert [item["payload"] for item in found[3:-3]] == list(range(30))
    assert ({item["id"] for item in found[:3]}, {item["id"] for item in found[-3:]}) == (set(before), set(after))


async def test_items_whose_ids_their_caller_made_come_in_the_order_of_the_ids_from_whatever_shards(
    api: Api,
) -> None:
    ids = [api.new_id(n % 3) for n in range(30)]
    await api.enqueue(*({"topic": "t", "id": item_id} for item_id in reversed(ids)))

    assert [item["id"] for item in await api.dequeue("t", 100)] == ids


async def test_a_shard_that_tells_an_old_time_moves_a_call_ahead_of_little_else(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scans of what lives begin 10 s before what they found last: nothing may come to lie before that."""

    async def an_hour_ago(store: EnqueueStore) -> datetime:
        return datetime.now(UTC) - timedelta(hours=1)

    monkeypatch.setattr(EnqueueStore, "time", an_hour_ago)
    await api.enqueue(*({"topic": "t", "payload": n, "affinity": f"a{n}"} for n in range(20)))

    rows = await api.host.rows(
        "SELECT extract(epoch FROM enqueued_at - deliver_at)::float8 AS early_s"
        " FROM item JOIN namespace USING (namespace_id) WHERE name = $1",
        api.namespace,
    )
    assert {row["early_s"] for row in rows} == {EARLY_S_MAX}
    assert len(await api.dequeue("t", 100)) == 20


async def test_a_thousand_items_are_one_batch(api: Api) -> None:
    results = await api.enqueue(*({"topic": "t", "payload": i} for i in range(1000)))

    assert [r["status"] for r in results] == ["enqueued"] * 1000
    assert len({r["id"] for r in results}) == 1000
    assert (await api.topic("t"))["ready"] == 1000


async def test_delay_and_deliver_after(api: Api) -> None:
    later = (datetime.now(UTC) + timedelta(seconds=50)).isoformat()
    past = (datetime.now(UTC) - timedelta(days=1)).isoformat()
    await api.enqueue(
        {"topic": "t", "payload": 1, "delay_s": 100}, {"topic": "t", "payload": 2, "deliver_after": later}
    )
    await api.enqueue(
        {"topic": "t", "payload": 3, "deliver_after": past}, {"topic": "t", "payload": 4, "delay_s": 0}
    )

    assert [item["payload"] for item in await api.dequeue("t", 9, lease_s=1000)] == [3, 4]
    assert (await api.topic("t"))["delayed"] == 2
    await api.host.pass_time(49)
    assert await api.dequeue("t", 9) == []
    await api.host.pass_time(2)
    assert [item["payload"] for item in await api.dequeue("t", 9, lease_s=1000)] == [2]
    await api.host.pass_time(50)
    assert [item["payload"] for item in await api.dequeue("t", 9)] == [1]


@pytest.mark.parametrize(
    "text", ["2020-01-31T12:00:00Z", "2020-01-31t12:00:00.123456789z", "2020-01-31T23:59:59+14:00"]
)
async def test_forms_of_a_time(api: Api, text: str) -> None:
    await api.enqueue_one("t", deliver_after=text)

    assert len(await api.dequeue("t")) == 1


async def test_affinity_keeps_items_on_one_shard_and_an_id_wins(api: Api) -> None:
    results = await api.enqueue(*({"topic": "t", "affinity": "one"} for _ in range(6)))
    results += await api.enqueue({"topic": "t", "affinity": "one"})
    [homeless] = {shard_of(r["id"]) for r in results}
    other = (homeless + 1) % 3

    assert await api.enqueue_one("t", affinity="one", id=api.new_id(other))
    spread = {
        shard_of(r["id"]) for r in await api.enqueue(*({"topic": "t", "affinity": f"a{i}"} for i in range(40)))
    }
    assert spread == {0, 1, 2}


async def test_topics_spread_over_shards_and_a_call_stays_on_one(api: Api) -> None:
    calls = [await api.enqueue(*({"topic": f"t{n}"} for _ in range(5))) for n in range(32)]

    homes = [{shard_of(r["id"]) for r in call} for call in calls]
    assert all(len(home) == 1 for home in homes)
    assert set.union(*homes) == {0, 1, 2}


async def test_a_quiet_topic_stays_on_one_shard(api: Api) -> None:
    homes = {shard_of((await api.enqueue({"topic": "t"}))[0]["id"]) for _ in range(6)}

    assert len(homes) == 1


async def test_limits_are_on_compact_json(api: Api) -> None:
    limit = api.host.settings.payload_bytes_max
    text = "x" * (limit - 2)
    await api.enqueue_one("t", payload=text)
    spaced = b'{"items": [{"topic": "t", "payload": [' + b" " * 3000 + b'"' + b"\\u00e9" * 5000 + b'"]}]}'
    answer = await api.host.client.post(
        f"/v1/namespaces/{api.namespace}/enqueue", content=spaced, headers={"Content-Type": "application/json"}
    )

    assert answer.status_code == 201, answer.text
    assert [len(item["payload"][0]) for item in (await api.dequeue("t", 2))[1:]] == [5000]


async def test_a_namespace_begins_with_its_first_item(api: Api) -> None:
    before = await api.host.client.get("/v1/namespaces", params={"limit": 1000})
    await api.enqueue_one("t")
    after = await api.host.client.get("/v1/namespaces", params={"limit": 1000})

    assert api.namespace not in {row["namespace"] for row in before.json()["items"]}
    assert api.namespace in {row["namespace"] for row in after.json()["items"]}
