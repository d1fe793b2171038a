"""The text of leased items, which the database makes: the same by every way to a lease, in order, whole."""

import asyncio
from datetime import datetime
from typing import Any

import pytest

from headgate import wire
from tests.support.queue_host import Api

PAYLOADS: list[Any] = [
    None,
    'a "quoted" \\ string\n\t\u001e\u001f\u0000 with € and 𝄞',
    {"id": '"},{"id":"', "items": [1.5, -0, 1e300, True, [], {}]},
    ["\u001e", {"\u001f": "},{"}],
]
RARE = {
    "metadata": {"k": "\u001e"},
    "inputs": {"a": [1, None]},
    "headers": {"traceparent": "00-1"},
    "priority": -7,
    "delivery": "at_most_once",
    "lease_s": 90,
}
CONTEXT = {"dag": "d1", "node": "compile //x:y \u001f €", "generation": 2}
MANAGED = {"ack_topic": "_dag:acks/0", "ack_context": CONTEXT}


def lasting(item: dict[str, Any]) -> dict[str, Any]:
    """What does not depend on the lease."""
    wire.Leased.model_validate(item)
    return {name: item[name] for name in item.keys() - {"id", "lease_token", "lease_expires_at", "enqueued_at"}}


async def by_stretch(api: Api, item: dict[str, Any]) -> list[dict[str, Any]]:
    await api.as_dag_service().enqueue(item, item)
    return await api.dequeue("t", 2)


async def by_topics(api: Api, item: dict[str, Any]) -> list[dict[str, Any]]:
    await api.as_dag_service().enqueue(item, {**item, "topic": "u"})
    demands = [{"topic": "t", "count": 1}, {"topic": "u", "count": 1}]
    first, second = (await api.post("dequeue", {"topics": demands})).json()["items"]
    assert second.pop("topic") == "u"
    return [first, {**second, "topic": "t"}]


async def by_hand(api: Api, item: dict[str, Any]) -> list[dict[str, Any]]:
    """Leased in the transaction that makes it ready, twice."""
    found = []
    service = api.as_dag_service()
    await service.enqueue_one("t", payload="so that the topic is looked at")
    await api.ack(await api.dequeue_one("t"))
    ids = [await service.enqueue_one(**{**item, "disabled": True}) for _ in range(3)]
    for item_id in ids:
        waits = asyncio.create_task(api.dequeue("t", 1, wait_s=20))
        await asyncio.sleep(0.05)
        assert (await service.results("revive", {"items": [{"id": item_id}]}))[0]["status"] == "revived"
        found += await waits
    return found[1:]


@pytest.mark.parametrize("rare", [{}, RARE, MANAGED], ids=["plain", "rare", "managed"])
@pytest.mark.parametrize("payload", PAYLOADS, ids=["null", "escapes", "object", "separators"])
async def test_an_item_reads_the_same_however_it_was_leased(api: Api, payload: Any, rare: dict[str, Any]) -> None:
    item = {"topic": "t", "payload": payload, **rare}
    expected = {
        "topic": "t",
        "payload": payload,
        "metadata": rare.get("metadata"),
        "inputs": rare.get("inputs"),
        "headers": rare.get("headers"),
        "priority": rare.get("priority", 0),
        "attempt": 1,
    }
    if "ack_context" in rare:
        expected["dag"] = {"id": "d1", "node": CONTEXT["node"], "generation": 2}
    for way in (by_stretch, by_topics, by_hand):
        assert list(map(lasting, await way(api, item))) == [expected, expected], way


async def test_items_of_several_leases_keep_their_order_of_service(api: Api) -> None:
    lengths_s = [60, 120, 60, 180, 120]
    await api.enqueue(*({"topic": "t", "payload": n, "lease_s": s} for n, s in enumerate(lengths_s)))

    items = await api.dequeue("t", 9)

    assert [item["payload"] for item in items] == list(range(5))
    ends = [datetime.fromisoformat(item["lease_expires_at"]) for item in items]
    assert [round((end - ends[0]).total_seconds()) for end in ends] == [0, 60, 0, 120, 60]
    assert await api.ack(*items) == ["acked"] * 5


async def test_items_of_several_calls_tell_when_each_was_enqueued(api: Api) -> None:
    for n in range(3):
        await api.enqueue(
            {"topic": "t", "payload": n, "affinity": "x"}, {"topic": "t", "affinity": "x", "delay_s": 0}
        )

    leased = await api.dequeue("t", 6)

    for item in leased:
        written = (await api.item(item["id"]))["enqueued_at"]
        assert datetime.fromisoformat(item["enqueued_at"]) == datetime.fromisoformat(written)
    assert len({item["enqueued_at"] for item in leased}) == 3


async def test_a_key_whose_item_was_cancelled_leaves_no_gap(own_api: Api) -> None:
    results = await own_api.enqueue(*({"topic": "t", "payload": n} for n in range(6)))
    await own_api.cancel(results[0]["id"], results[3]["id"])

    assert [item["payload"] for item in await own_api.dequeue("t", 3)] == [1, 2, 4]
    assert [item["payload"] for item in await own_api.dequeue("t", 3)] == [5]
