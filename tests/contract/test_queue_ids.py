"""One item per id and per idempotency key, however often the call is repeated."""

import asyncio
import random
import string
from typing import Any

import pytest

from headgate._ids import shard_of
from services.queue.duties.retention import ENDED_SLACK_S, PACKED_AGE_S
from tests.support.queue_host import Api


async def status_of(api: Api, **item: Any) -> dict[str, Any]:
    [result] = await api.enqueue({"topic": "t", **item})
    return result


async def test_the_same_id_again_is_a_duplicate_in_every_state(api: Api) -> None:
    item_id = api.new_id(1)
    assert await status_of(api, id=item_id, payload=1) == {"id": item_id, "status": "enqueued"}
    for act in ("ready", "leased", "dead"):
        if act == "leased":
            leased = await api.dequeue_one("t")
        if act == "dead":
            await api.nack(leased, final=True)
        assert await api.state(item_id) == act
        assert await status_of(api, id=item_id, payload=2) == {"id": item_id, "status": "duplicate"}
    assert (await api.item(item_id))["payload"] == 1
    assert await api.host.count("item", f"id = '{item_id}'") == 1


async def test_of_one_id_twice_in_a_call_the_first_is_taken(api: Api) -> None:
    """Also where the second is of a kind that the flush writes before the first's, by an item ahead of both."""
    first, twice = api.new_id(0), api.new_id(0)

    results = await api.enqueue(
        {"topic": "t", "id": first, "payload": "ahead", "priority": 1},
        {"topic": "t", "id": twice, "payload": "first", "delay_s": 5},
        {"topic": "t", "id": twice, "payload": "second", "priority": 1},
    )

    assert [result["status"] for result in results] == ["enqueued", "enqueued", "duplicate"]
    item = await api.item(twice)
    assert (item["payload"], item["state"], item["priority"]) == ("first", "delayed", 0)
    assert [item["payload"] for item in await api.dequeue("t", 5)] == ["ahead"]


async def test_one_id_twice_in_a_call_for_two_topics_is_the_first_topics(api: Api) -> None:
    item_id = api.new_id(0)

    results = await api.enqueue({"topic": "first", "id": item_id}, {"topic": "second", "id": item_id})

    assert [result["status"] for result in results] == ["enqueued", "duplicate"]
    assert [item["id"] for item in await api.dequeue("first", 2)] == [item_id]
    assert await api.dequeue("second", 2) == []


async def test_a_duplicate_never_runs_again_after_its_end(api: Api) -> None:
    item_id = api.new_id(0)
    await api.enqueue_one("t", id=item_id)
    await api.ack(await api.dequeue_one("t"))

    for _ in range(3):
        assert await status_of(api, id=item_id) == {"id": item_id, "status": "duplicate"}
    assert await api.dequeue("t") == []
    assert await api.topic("t") == {}
    assert await api.host.count("item", f"id = '{item_id}'") == 0


@pytest.mark.parametrize("later", ["at once", "lease over", "rotated"])
async def test_ids_that_are_acked_together_never_run_again(own_api: Api, later: str) -> None:
    """They are remembered many a row; another namespace is not told of them."""
    api, stranger = own_api, Api(own_api.host)
    items = [{"topic": "t", "id": api.new_id(0)} for _ in range(250)]
    await api.enqueue(*items)
    assert set(await api.ack(*await api.dequeue("t", 250, lease_s=5))) == {"acked"}
    if later == "lease over":
        await api.host.pass_time(6)
    elif later == "rotated":
        await api.clock.advance(api.host.settings.id_window_s - 30)
        await api.host.retain()

    known = ("refused", "id_unavailable")
    assert {(r["status"], r.get("code")) for r in await stranger.enqueue(*items)} == {known}
    assert {r["status"] for r in await api.enqueue(*items)} == {"duplicate"}
    assert await api.dequeue("t", 250) == await stranger.dequeue("t", 250) == []
    assert await api.cancel(items[7]["id"]) == ["finished"]
    assert await api.host.count("ended") == 0
    assert 3 <= await api.host.count("acked") < 50, "a row each would be 250"


async def test_ids_that_are_acked_together_are_known_for_the_window_after_their_end(own_api: Api) -> None:
    """Whatever their age was then: what is kept by when it was made was made lately."""
    api, window_s = own_api, own_api.host.settings.id_window_s
    ages_s = [window_s - 60, PACKED_AGE_S + 20, PACKED_AGE_S - 20, 0]
    items = [{"topic": "t", "id": api.new_id(0, age_s=age_s)} for age_s in ages_s for _ in range(5)]
    await api.enqueue(*items)
    await api.ack(*await api.dequeue("t", 20))
    await api.host.retain()

    await api.clock.advance(window_s - 10)
    await api.host.retain()
    assert [r["status"] for r in await api.enqueue(*items)] == ["duplicate"] * 20
    for _ in range(2):
        await api.clock.advance(window_s + PACKED_AGE_S + ENDED_SLACK_S)
        await api.host.retain()
    assert await api.host.counts("acked", "ended", "ended_old") == {"acked": 0, "ended": 0, "ended_old": 0}
    assert {r.get("code") for r in await api.enqueue(*items)} == {"id_too_old"}


@pytest.mark.parametrize("end", ["expired", "final"])
async def test_a_duplicate_of_what_ended_otherwise(api: Api, end: str) -> None:
    item_id = await api.enqueue_one("t", id=api.new_id(0), ttl_s=5)
    if end == "expired":
        await api.host.pass_time(6)
    else:
        await api.nack(await api.dequeue_one("t"), final=True)

    assert (await status_of(api, id=item_id))["status"] == "duplicate"
    assert await api.dequeue("t") == []


async def test_one_id_twice_in_one_call(api: Api) -> None:
    item_id = api.new_id(0)
    results = await api.enqueue(
        {"topic": "t", "id": item_id, "payload": "first"}, {"topic": "t", "id": item_id, "payload": "second"}
    )

    assert [r["status"] for r in results] == ["enqueued", "duplicate"]
    assert [item["payload"] for item in await api.dequeue("t", 5)] == ["first"]


async def test_concurrent_enqueues_of_one_id_make_one_item(api: Api) -> None:
    item_id = api.new_id(0)
    results = await asyncio.gather(*(status_of(api, id=item_id) for _ in range(12)))

    assert sorted(r["status"] for r in results) == ["duplicate"] * 11 + ["enqueued"]
    assert len(await api.dequeue("t", 20)) == 1


async def test_an_upper_case_id_is_the_same_id(api: Api) -> None:
    item_id = api.new_id(0)
    assert (await status_of(api, id=item_id.upper())) == {"id": item_id, "status": "enqueued"}
    assert (await status_of(api, id=item_id)) == {"id": item_id, "status": "duplicate"}


async def test_an_old_id_is_refused_unless_it_is_known(api: Api) -> None:
    window_s = api.host.settings.id_window_s
    known = await api.enqueue_one("t", id=api.new_id(0), delay_s=5000)
    old = api.new_id(0, age_s=window_s + 5)
    result = await status_of(api, id=old)
    assert result == {"id": old, "status": "refused", "code": "id_too_old", "outcome": "none"}
    assert (await status_of(api, id=api.new_id(1, age_s=window_s - 5)))["status"] == "enqueued"
    await api.clock.advance(window_s + 10)

    assert (await status_of(api, id=known))["status"] == "duplicate"
    assert await api.host.count("item", f"id = '{old}'") == 0


async def test_an_id_of_the_future_is_refused(api: Api) -> None:
    ahead = api.new_id(0, age_s=-api.host.settings.id_ahead_s_max - 5)
    result = await status_of(api, id=ahead)
    assert result == {"id": ahead, "status": "refused", "code": "id_in_future", "outcome": "none"}
    assert (await status_of(api, id=api.new_id(0, age_s=-50)))["status"] == "enqueued"
    assert await api.host.count("item", f"id = '{ahead}'") == 0


async def test_an_id_of_an_unknown_shard_is_not_an_items_id(api: Api) -> None:
    before = await api.host.count("item")
    answer = await api.post("enqueue", {"items": [{"topic": "t"}, {"topic": "t", "id": api.new_id(77)}]})

    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "/items/1/id"
    assert await api.host.count("item") == before


async def test_the_id_of_another_namespace_is_refused_and_left_alone(api: Api) -> None:
    other = Api(api.host)
    item_id = await api.enqueue_one("t", id=api.new_id(0), payload="mine")
    result = await status_of(other, id=item_id)

    assert (result["status"], result["code"]) == ("refused", "id_unavailable")
    assert await other.dequeue("t") == []
    assert (await api.dequeue_one("t"))["payload"] == "mine"


async def test_a_cancel_before_the_enqueue_wins(api: Api) -> None:
    item_id = api.new_id(1)
    assert await api.cancel(item_id) == ["cancelled"]

    for _ in range(2):
        assert await status_of(api, id=item_id) == {"id": item_id, "status": "cancelled"}
    assert await api.cancel(item_id) == ["already_cancelled"]
    assert await api.dequeue("t") == []
    assert await api.host.count("item", f"id = '{item_id}'") == 0
    assert await api.host.count("ready", f"id = '{item_id}'") == 0
    assert (await api.topic("t")) == {}


async def test_a_cancelled_item_enqueued_again_is_cancelled(api: Api) -> None:
    item_id = await api.enqueue_one("t", id=api.new_id(1), ack_topic="done")
    assert await api.cancel(item_id) == ["cancelled"]

    assert await status_of(api, id=item_id) == {"id": item_id, "status": "cancelled"}
    assert len(await api.completions("done")) == 1


async def test_cancelled_among_taken_elements_of_one_call(api: Api) -> None:
    dead, living = api.new_id(1), api.new_id(1)
    await api.cancel(dead)
    results = await api.enqueue({"topic": "t", "id": dead}, {"topic": "t", "id": living}, {"topic": "t"})

    assert [r["status"] for r in results] == ["cancelled", "enqueued", "enqueued"]
    assert (await api.topic("t"))["ready"] == 2


# -- idempotency keys ---------------------------------------------------------------------------------------


async def test_the_same_key_again_answers_the_first_item(api: Api) -> None:
    first = await status_of(api, idempotency_key="k", payload={"a": [1]})
    for _ in range(2):
        again = await status_of(api, idempotency_key="k", payload={"a": [1]}, priority=9)
        assert again == {"id": first["id"], "status": "duplicate"}
    assert len(await api.dequeue("t", 5)) == 1


async def test_a_key_means_its_payload_however_it_is_written(api: Api) -> None:
    await status_of(api, idempotency_key="k", payload={"a": 1, "b": "é"})
    bodies = [
        b'{"items":[{"topic":"t","idempotency_key":"k","payload":{ "a" : 1, "b": "\\u00e9" }}]}',
        b'{"items":[{"payload":{"b":"\\u00e9","a":1},"idempotency_key":"k","topic":"t"}]}',
    ]
    for body in bodies:
        answer = await api.host.client.post(
            f"/v1/namespaces/{api.namespace}/enqueue", content=body, headers={"Content-Type": "application/json"}
        )
        assert answer.json()["results"][0]["status"] == "duplicate"


async def test_a_key_with_other_content_is_refused(api: Api) -> None:
    await status_of(api, idempotency_key="k", payload=1)

    for changed in ({"payload": 2}, {"payload": 1, "topic": "u"}, {"payload": "1"}, {"payload": None}):
        result = await status_of(api, idempotency_key="k", **changed)
        assert (result["status"], result["code"], result["outcome"]) == ("refused", "key_reused", "none")
    assert len(await api.dequeue("t", 5)) == 1
    assert await api.dequeue("u", 5) == []


async def test_keys_are_of_one_namespace(api: Api) -> None:
    other = Api(api.host)
    first = await status_of(api, idempotency_key="k", payload=1)
    second = await status_of(other, idempotency_key="k", payload=2)

    assert first["status"] == second["status"] == "enqueued"
    assert first["id"] != second["id"]


@pytest.mark.parametrize("end", ["acked", "cancelled"])
async def test_an_end_frees_no_key_of_another_namespace(api: Api, end: str) -> None:
    """Both items live on one shard, and their keys have one text."""
    other = Api(api.host)
    for number in range(1_000):
        keyed = {"idempotency_key": str(number**5), "priority": -number}
        mine, theirs = await status_of(api, **keyed), await status_of(other, **keyed)
        if shard_of(mine["id"]) == shard_of(theirs["id"]):
            break
    if end == "acked":
        [first, *_] = await api.dequeue("t")
        assert (first["id"], await api.ack(first)) == (mine["id"], ["acked"])
    else:
        assert await api.cancel(mine["id"]) == ["cancelled"]
    await api.clock.advance(24 * 3600 + 60)

    assert await status_of(other, **keyed) == {"id": theirs["id"], "status": "duplicate"}
    assert (await status_of(api, **keyed))["status"] == "enqueued", "its own was freed"


async def test_one_key_twice_in_one_call(api: Api) -> None:
    same = {"topic": "t", "idempotency_key": "k", "payload": 1}
    results = await api.enqueue(same, {**same, "payload": 2}, same, {**same, "idempotency_key": "l"})

    assert [r["status"] for r in results] == ["enqueued", "refused", "duplicate", "enqueued"]
    assert results[2]["id"] == results[0]["id"]
    assert results[1]["code"] == "key_reused"
    assert (await api.topic("t"))["ready"] == 2


async def test_concurrent_enqueues_of_one_key_make_one_item(api: Api) -> None:
    results = await asyncio.gather(*(status_of(api, idempotency_key="k") for _ in range(12)))

    assert sorted(r["status"] for r in results) == ["duplicate"] * 11 + ["enqueued"]
    assert len({r["id"] for r in results}) == 1
    assert len(await api.dequeue("t", 20)) == 1


async def test_one_key_has_one_home(api: Api) -> None:
    homes = set()
    for number in range(30):
        key = str(number**5)  # keys that differ in a digit alone may have slots that lie side by side
        first = await status_of(api, idempotency_key=key)
        again = await status_of(api, idempotency_key=key)
        assert (again["status"], again["id"]) == ("duplicate", first["id"])
        homes.add(shard_of(first["id"]))
    assert homes == {0, 1, 2}


@pytest.mark.parametrize("end", ["acked", "cancelled", "expired"])
async def test_a_key_is_held_while_the_item_lives_and_a_day_more(api: Api, end: str) -> None:
    first = await status_of(api, idempotency_key="k", lease_s=43_200, ttl_s=40 * 3600)
    await api.host.pass_time(30 * 3600)
    await api.host.retain()
    assert (await status_of(api, idempotency_key="k"))["status"] == "duplicate"
    if end == "acked":
        await api.ack(await api.dequeue_one("t"))
    elif end == "cancelled":
        await api.cancel(first["id"])
    else:
        await api.host.pass_time(11 * 3600)
    assert await api.state(first["id"]) == "gone"
    await api.clock.advance(24 * 3600 - 60)
    await api.host.retain()
    assert await status_of(api, idempotency_key="k") == {"id": first["id"], "status": "duplicate"}
    await api.clock.advance(120)

    again = await status_of(api, idempotency_key="k", payload="new content")
    assert (again["status"], again["id"] != first["id"]) == ("enqueued", True)
    same = {"id": again["id"], "status": "duplicate"}
    assert await status_of(api, idempotency_key="k", payload="new content") == same


async def test_retention_frees_keys(api: Api) -> None:
    await status_of(api, idempotency_key="k")
    await api.ack(await api.dequeue_one("t"))
    await api.clock.advance(24 * 3600 + 60)
    await api.host.retain()

    assert await api.host.count("dedup", "key = 'k' AND until IS NOT NULL AND until <= shard_now()") == 0
    assert (await status_of(api, idempotency_key="k"))["status"] == "enqueued"


def unlike(chars: str, count: int) -> str:
    """Text that no index can compress."""
    return "".join(random.Random(7).choices(chars, k=count))


@pytest.mark.parametrize(
    "key",
    [
        "x",
        " ",
        "~" * 1_024,
        unlike(string.ascii_letters + string.digits, 1_024),
        unlike("äöüßéèêçñø", 512),
        unlike("".join(map(chr, range(0x1F300, 0x1F5FF))), 256),
        "a/b:c?d#e",
        "'; DROP TABLE dedup; --",
    ],
)
async def test_any_text_of_1024_bytes_is_a_key(api: Api, key: str) -> None:
    assert (await status_of(api, idempotency_key=key))["status"] == "enqueued"
    assert (await status_of(api, idempotency_key=key))["status"] == "duplicate"
