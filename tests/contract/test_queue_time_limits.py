"""Limits in time: `timeout_s` of a delivery, however often its lease is extended, and `deadline_s` of an item."""

import asyncio
from datetime import datetime
from typing import Any

import pytest

from tests.support.queue_host import AT_ONCE, Api

FOR_DAG = {"ack_topic": "_dag:acks/000", "ack_context": {"dag": "d", "node": "n", "generation": 1}}


def lasts_s(leased: dict[str, Any]) -> float:
    """How long a lease goes on from the enqueue, at which nothing stood still."""
    began, ends = (datetime.fromisoformat(leased[name]) for name in ("enqueued_at", "lease_expires_at"))
    return (ends - began).total_seconds()


async def outcomes(api: Api, item_id: str) -> list[tuple[str, str | None]]:
    found = (await api.get(f"items/{item_id}/attempts")).json()["items"]
    return [(entry["outcome"], entry["error"]) for entry in found]


async def test_a_delivery_that_is_extended_for_ever_loses_its_lease_at_its_timeout(api: Api) -> None:
    dag = api.as_dag_service()
    item_id = await dag.enqueue_one("t", timeout_s=60, lease_s=20, backoff={"base_s": 7, "jitter": 0}, **FOR_DAG)
    leased = await api.dequeue_one("t")
    for _ in range(5):
        await api.host.pass_time(11)
        assert await api.extend(leased, lease_s=500) == ["extended"]
    await api.host.pass_time(6)

    assert await api.extend(leased) == ["lease_lost"]
    assert await api.ack(leased) == ["lease_lost"]
    assert await outcomes(api, item_id) == [("timed_out", "timed out: the attempt took longer than 60 s")]
    assert await api.state(item_id) == "delayed"
    await api.host.pass_time(8)
    assert (await api.dequeue_one("t"))["attempt"] == 2


async def test_past_its_timeout_nothing_is_extended_that_nobody_has_taken_back_yet(api: Api) -> None:
    await api.enqueue_one("t", timeout_s=60, lease_s=500)
    leased = await api.dequeue_one("t")
    await api.clock.advance(59)
    assert await api.extend(leased) == ["extended"]
    await api.clock.advance(2)

    assert await api.extend(leased) == ["lease_lost"]


async def test_each_delivery_has_the_whole_timeout_and_the_last_one_is_death(api: Api) -> None:
    item_id = await api.enqueue_one("t", timeout_s=10, lease_s=10, max_attempts=2, backoff=AT_ONCE)
    first = await api.dequeue_one("t")
    await api.host.pass_time(11)
    second = await api.dequeue_one("t")
    await api.host.pass_time(9)
    assert await api.extend(first, second) == ["lease_lost", "extended"]
    await api.host.pass_time(2)

    item = (await api.get(f"items/{item_id}")).json()
    assert item["state"] == "dead"
    assert item["error"] == "timed out: the attempt took longer than 10 s on the last attempt"


async def test_a_lease_that_runs_out_before_its_timeout_has_not_timed_out(api: Api) -> None:
    item_id = await api.as_dag_service().enqueue_one("t", timeout_s=60, lease_s=5, backoff=AT_ONCE, **FOR_DAG)
    await api.dequeue_one("t")
    await api.host.pass_time(6)

    assert await outcomes(api, item_id) == [("lease_expired", None)]


@pytest.mark.parametrize("limit", ["timeout_s", "deadline_s"])
async def test_no_lease_is_given_beyond_a_limit_whatever_the_call_asks_for(api: Api, limit: str) -> None:
    await api.enqueue({"topic": "t", limit: 10}, {"topic": "t"})
    limited, free = await api.dequeue("t", 2, lease_s=500)

    assert lasts_s(limited) < 12
    assert lasts_s(free) > 490


@pytest.mark.parametrize("limit", ["timeout_s", "deadline_s"])
async def test_nor_to_a_call_that_waits_when_the_item_is_revived(api: Api, limit: str) -> None:
    for _ in range(2):  # by the second one it is known who waits for the topic
        item_id = await api.enqueue_one("t", disabled=True, **{limit: 10})
        waiting = asyncio.create_task(api.dequeue("t", 1, lease_s=500, wait_s=20))
        await asyncio.sleep(0.05)
        assert await api.revive(item_id) == ["revived"]
        [leased] = await waiting
        assert leased["id"] == item_id
        assert lasts_s(leased) < 12


async def test_a_deadline_ends_an_item_that_is_leased_and_extended(api: Api) -> None:
    item_id = await api.enqueue_one("t", deadline_s=30, ack_topic="ends", backoff=AT_ONCE)
    leased = await api.dequeue_one("t")
    await api.host.pass_time(25)
    assert await api.extend(leased, lease_s=500) == ["extended"]
    await api.host.pass_time(6)

    assert await api.ack(leased) != ["acked"]
    assert await api.state(item_id) == "gone"
    end = (await api.dequeue_one("ends"))["payload"]
    assert (end["id"], end["outcome"], end["error"]) == (item_id, "expired", "its deadline passed")


async def test_a_deadline_ends_an_item_that_waits_and_counts_from_revive(api: Api) -> None:
    waiting = await api.enqueue_one("t", deadline_s=30, ack_topic="ends")
    disabled = await api.enqueue_one("t", deadline_s=30, disabled=True)
    await api.host.pass_time(31)
    assert await api.state(waiting) == "gone"
    assert (await api.dequeue_one("ends"))["payload"]["error"] == "its deadline passed"
    assert await api.revive(disabled) == ["revived"]
    await api.host.pass_time(20)

    assert await api.state(disabled) == "ready"


@pytest.mark.parametrize(
    ("item", "pointer"),
    [
        ({"deadline_s": 5, "ttl_s": 5}, "/items/0/deadline_s"),
        ({"deadline_s": 5, "delay_s": 6}, "/items/0/deadline_s"),
        ({"deadline_s": 0}, "/items/0/deadline_s"),
        ({"timeout_s": 0}, "/items/0/timeout_s"),
        ({"timeout_s": -1}, "/items/0/timeout_s"),
        ({"timeout_s": "x"}, "/items/0/timeout_s"),
    ],
)
async def test_limits_that_make_no_sense_are_refused(api: Api, item: dict[str, Any], pointer: str) -> None:
    answer = await api.post("enqueue", {"items": [{"topic": "t", **item}]})

    assert answer.status_code == 422
    assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]
