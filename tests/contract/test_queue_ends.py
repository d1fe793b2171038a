"""Every end of an item tells its ack topic exactly once, in the transaction that ends it."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headgate._ids import shard_of
from services.queue.leases import expiry
from services.queue.store.leases import SweepBounds
from tests.support.queue_host import AT_ONCE, Api

End = Callable[[Api, str], Awaitable[None]]


async def acked(api: Api, _item_id: str) -> None:
    assert await api.ack(await api.dequeue_one("t")) == ["acked"]


async def acked_twice(api: Api, _item_id: str) -> None:
    leased = await api.dequeue_one("t")
    assert await api.ack(leased, leased) == ["acked", "already_acked"]
    assert await api.ack(leased) == ["already_acked"]


async def nacked_for_good(api: Api, _item_id: str) -> None:
    assert await api.nack(await api.dequeue_one("t"), final=True, error="broken") == ["dead"]


async def nacked_to_death(api: Api, _item_id: str) -> None:
    assert await api.nack(await api.dequeue_one("t"), error="first") == ["requeued"]
    assert await api.nack(await api.dequeue_one("t"), error="broken") == ["dead"]


async def timed_out_to_death(api: Api, _item_id: str) -> None:
    for _ in range(2):
        await api.dequeue_one("t", lease_s=1)
        await api.host.pass_time(2)


async def past_ttl(api: Api, _item_id: str) -> None:
    await api.host.pass_time(101)


async def past_ttl_at_a_dequeue(api: Api, _item_id: str) -> None:
    await api.clock.advance(101)
    assert await api.dequeue("t") == []
    await api.host.reap()


async def past_ttl_after_an_error(api: Api, _item_id: str) -> None:
    assert await api.nack(await api.dequeue_one("t"), error="broken") == ["requeued"]
    await api.host.pass_time(101)


async def cancelled_ready(api: Api, item_id: str) -> None:
    assert await api.cancel(item_id, item_id) == ["cancelled", "already_cancelled"]
    assert await api.cancel(item_id) == ["already_cancelled"]


async def cancelled_leased(api: Api, item_id: str) -> None:
    leased = await api.dequeue_one("t")
    assert await api.cancel(item_id) == ["cancelled"]
    assert await api.ack(leased) == ["cancelled"]


async def cancelled_after_a_claim_past_its_ttl(api: Api, item_id: str) -> None:
    await api.clock.advance(101)
    assert await api.dequeue("t") == []
    assert await api.cancel(item_id) == ["cancelled"]


async def cancelled_delayed(api: Api, item_id: str) -> None:
    assert await api.nack(await api.dequeue_one("t"), delay_s=50) == ["requeued"]
    assert await api.cancel(item_id) == ["cancelled"]


async def purged(api: Api, _item_id: str) -> None:
    assert (await api.post("topics/purge", {"topic": "t"})).json()["items"] == 1


async def purged_leased(api: Api, _item_id: str) -> None:
    await api.dequeue_one("t")
    await purged(api, _item_id)


ENDS: list[tuple[End, dict[str, Any]]] = [
    (acked, {"outcome": "acked", "attempt": 1}),
    (acked_twice, {"outcome": "acked", "attempt": 1}),
    (nacked_for_good, {"outcome": "dead", "attempt": 1, "error": "broken"}),
    (nacked_to_death, {"outcome": "dead", "attempt": 2, "error": "broken"}),
    (timed_out_to_death, {"outcome": "dead", "attempt": 2, "error": "the lease ran out on the last attempt"}),
    (past_ttl, {"outcome": "expired", "error": "its time to live passed"}),
    (past_ttl_at_a_dequeue, {"outcome": "expired", "error": "its time to live passed"}),
    (past_ttl_after_an_error, {"outcome": "expired", "error": "its time to live passed; before: broken"}),
    (cancelled_ready, {"outcome": "cancelled", "attempt": 0}),
    (cancelled_leased, {"outcome": "cancelled", "attempt": 1}),
    (cancelled_after_a_claim_past_its_ttl, {"outcome": "cancelled", "attempt": 0}),
    (cancelled_delayed, {"outcome": "cancelled"}),
    (purged, {"outcome": "cancelled"}),
    (purged_leased, {"outcome": "cancelled", "attempt": 1}),
]


@pytest.mark.parametrize("keyed", [False, True], ids=["made here", "id of the caller"])
@pytest.mark.parametrize(("end", "expected"), ENDS, ids=lambda part: getattr(part, "__name__", ""))
async def test_an_end_is_told_once(api: Api, end: End, expected: dict[str, Any], keyed: bool) -> None:
    item_id = await api.enqueue_one(
        "t",
        ack_topic="done",
        ack_context={"run": 7, "näme": 'ü"\\'},
        max_attempts=2,
        backoff=AT_ONCE,
        ttl_s=100,
        **({"id": api.new_id(1)} if keyed else {}),
    )

    await end(api, item_id)

    [told] = await api.completions("done")
    assert told["id"] == item_id
    assert told["topic"] == "t"
    assert told["ack_context"] == {"run": 7, "näme": 'ü"\\'}
    assert expected.items() <= told.items()
    finished_at = datetime.fromisoformat(told["finished_at"])
    assert abs(finished_at - datetime.now(UTC)) < timedelta(seconds=api.clock.ahead_s + 5)
    await api.host.pass_time(1000)
    assert await api.completions("done") == []


async def test_an_at_most_once_lease_that_ran_out_is_told_as_expired(api: Api) -> None:
    await api.enqueue_one("t", delivery="at_most_once", ack_topic="done", lease_s=5)
    await api.dequeue_one("t")
    await api.host.pass_time(6)

    [told] = await api.completions("done")
    assert (told["outcome"], told["attempt"]) == ("expired", 1)
    assert told["error"] == "the lease of its only delivery ran out"


@pytest.mark.parametrize("delivery", ["at_least_once", "at_most_once"])
@pytest.mark.parametrize("is_delivered", [False, True])
async def test_an_item_past_its_ttl_counts_the_deliveries_that_there_were(
    own_api: Api, delivery: str, is_delivered: bool
) -> None:
    """Also where a claim meets it before the sweep does, and where it could not be taken back the first time."""
    api = own_api
    await api.enqueue_one("t", delivery=delivery, ack_topic="done", ttl_s=5, lease_s=10)
    await api.clock.advance(0 if is_delivered else 6)
    assert len(await api.dequeue("t")) == is_delivered
    if not is_delivered:
        for store in api.host.stores.values():
            await store.pool.transaction(lambda tx: expiry._put_off(tx, SweepBounds(1)))
        assert await api.host.count("lease") == 1
    await api.host.pass_time(100)

    [told] = await api.completions("done")
    why = "its time to live passed"
    if is_delivered and delivery == "at_most_once":
        why = "the lease of its only delivery ran out"
    assert (told["outcome"], told["attempt"], told["error"]) == ("expired", int(is_delivered), why)


async def test_a_nack_of_an_at_most_once_item_is_told_as_dead(api: Api) -> None:
    await api.enqueue_one("t", delivery="at_most_once", ack_topic="done")
    await api.nack(await api.dequeue_one("t"), error="broken")

    [told] = await api.completions("done")
    assert (told["outcome"], told["attempt"], told["error"]) == ("dead", 1, "broken")


async def test_a_disabled_item_tells_its_cancel_and_purge(api: Api) -> None:
    first = await api.enqueue_one("t", disabled=True, ack_topic="done")
    second = await api.enqueue_one("t", disabled=True, ack_topic="done")
    await api.cancel(first)
    await api.post("topics/purge", {"topic": "t"})

    told = await api.completions("done")
    assert {(part["id"], part["outcome"]) for part in told} == {(first, "cancelled"), (second, "cancelled")}


@pytest.mark.parametrize(
    "output", [None, 0, "", 'a"b\\c\nd\u2028é\U0001f600', [], {"a": {"b": [1, 2.5]}}, 2**53, False]
)
async def test_the_output_travels_with_the_completion(api: Api, output: object) -> None:
    await api.enqueue_one("t", ack_topic="done")
    await api.ack(await api.dequeue_one("t"), output=output)

    [told] = await api.completions("done")
    assert told["output"] == output


async def test_outputs_of_a_batch_are_not_mixed_up(api: Api) -> None:
    await api.enqueue(*({"topic": "t", "payload": n, "ack_topic": "done"} for n in range(20)))
    leased = await api.dequeue("t", 20)
    items = [
        {"id": item["id"], "lease_token": item["lease_token"], "output": item["payload"]} for item in leased[:15]
    ] + [{"id": item["id"], "lease_token": item["lease_token"]} for item in leased[15:]]
    await api.results("ack", {"items": items})

    told = {part["id"]: part.get("output") for part in await api.completions("done")}
    assert told == {item["id"]: item["payload"] if item["payload"] < 15 else None for item in leased}


async def test_without_ack_context_or_output_the_fields_are_left_out(api: Api) -> None:
    await api.enqueue_one("t", ack_topic="done")
    await api.ack(await api.dequeue_one("t"))

    [told] = await api.completions("done")
    assert set(told) == {"id", "topic", "outcome", "attempt", "finished_at"}


async def test_a_completion_goes_to_another_namespace(api: Api) -> None:
    other = Api(api.host)
    await api.enqueue_one("t", ack_topic=f"{other.namespace}:a/b")
    await api.ack(await api.dequeue_one("t"))

    assert await api.completions("a/b") == []
    assert [part["outcome"] for part in await other.completions("a/b")] == ["acked"]


async def test_a_completion_is_on_its_items_shard_and_is_an_ordinary_item(api: Api) -> None:
    item_id = await api.enqueue_one("t", ack_topic="done", id=api.new_id(2))
    await api.ack(await api.dequeue_one("t"))

    leased = await api.dequeue_one("done")
    assert shard_of(leased["id"]) == shard_of(item_id) == 2
    assert await api.nack(leased, delay_s=0) == ["requeued"]
    again = await api.dequeue_one("done", lease_s=1)
    assert (again["id"], again["attempt"], again["payload"]) == (leased["id"], 2, leased["payload"])
    await api.host.pass_time(2)
    await api.host.pass_time(3)  # its backoff
    assert await api.ack(await api.dequeue_one("done")) == ["acked"]


async def test_completions_are_ready_at_once_and_counted(api: Api) -> None:
    await api.enqueue(*({"topic": "t", "ack_topic": "done"} for _ in range(3)))
    await api.ack(*await api.dequeue("t", 3))

    assert (await api.topic("done"))["ready"] == 3


async def test_dead_items_leave_without_a_second_completion(api: Api) -> None:
    ids = [await api.enqueue_one("t", ack_topic="done", max_attempts=1) for _ in range(2)]
    await api.nack(*await api.dequeue("t", 2))
    assert len(await api.completions("done")) == 2
    assert await api.cancel(ids[0]) == ["finished"]
    assert [await api.state(i) for i in ids] == ["dead", "dead"]

    assert (await api.post("topics/purge", {"topic": "t"})).json()["items"] == 2
    assert [await api.state(i) for i in ids] == ["gone", "gone"]
    assert await api.completions("done") == []


async def test_a_redriven_item_may_end_again(api: Api) -> None:
    await api.enqueue_one("t", ack_topic="done", max_attempts=1)
    await api.nack(await api.dequeue_one("t"))
    await api.post("topics/redrive", {"topic": "t"})
    leased = await api.dequeue_one("t")
    assert leased["attempt"] == 1
    await api.ack(leased)

    assert [part["outcome"] for part in await api.completions("done")] == ["dead", "acked"]


async def test_dead_items_past_retention_leave_silently(own_api: Api) -> None:
    item_id = await own_api.enqueue_one("t", ack_topic="done", id=own_api.new_id(1))
    await own_api.nack(await own_api.dequeue_one("t"), final=True)
    assert len(await own_api.completions("done")) == 1
    await own_api.clock.advance(own_api.host.settings.dead_retention_s - 5)
    await own_api.host.retain()
    assert await own_api.state(item_id) == "dead"
    await own_api.clock.advance(10)
    await own_api.host.retain()

    assert await own_api.state(item_id) == "gone"
    assert await own_api.topic("t") == {}
    assert await own_api.completions("done") == []
    assert await own_api.host.count("item") == 0
