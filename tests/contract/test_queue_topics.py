"""What people and operators ask and do: topics, items, namespaces, shards; pause, purge, redrive."""

from datetime import datetime
from typing import Any

import pytest

from headgate._ids import shard_of
from tests.support.queue_host import AT_ONCE, Api, QueueHost

COUNTS = ("ready", "delayed", "leased", "disabled", "dead")


async def pages(api: Api, path: str, **query: Any) -> list[list[dict[str, Any]]]:
    """Every page of a list."""
    found, cursor = [], None
    while True:
        more = {} if cursor is None else {"cursor": cursor}
        answer = await api.get(path, **query, **more)
        assert answer.status_code == 200, answer.text
        assert set(answer.json()) == {"items", "next_cursor"}
        found.append(answer.json()["items"])
        cursor = answer.json()["next_cursor"]
        if cursor is None:
            return found
        assert len(found) < 100


async def one_in_each_state(api: Api, topic: str = "t") -> dict[str, str]:
    """An item in every state; its ids by state."""
    await api.enqueue_one(topic)
    dead = await api.dequeue_one(topic)
    await api.nack(dead, final=True)
    await api.enqueue_one(topic)
    leased = await api.dequeue_one(topic)
    return {
        "dead": dead["id"],
        "leased": leased["id"],
        "ready": await api.enqueue_one(topic),
        "delayed": await api.enqueue_one(topic, delay_s=1000),
        "disabled": await api.enqueue_one(topic, disabled=True),
    }


async def test_counts_of_a_topic(api: Api) -> None:
    await one_in_each_state(api)
    await api.enqueue_one("other")
    await api.clock.advance(7)
    row = await api.topic("t")

    assert {count: row[count] for count in COUNTS} == dict.fromkeys(COUNTS, 1)
    assert row["topic"] == "t"
    assert row["paused"] is False
    assert 6.5 < row["oldest_ready_age_s"] < 12
    await api.host.fold()
    folded = await api.topic("t")
    assert {count: folded[count] for count in COUNTS} == dict.fromkeys(COUNTS, 1)


async def test_the_oldest_ready_item_counts_whatever_its_priority(api: Api) -> None:
    for priority in (3, 1, 2):
        await api.enqueue_one("t", priority=priority)
        await api.clock.advance(10)

    assert 29.9 < (await api.topic("t"))["oldest_ready_age_s"] < 35
    leased = await api.dequeue("t", 2)
    assert [item["priority"] for item in leased] == [1, 2]
    assert 29.9 < (await api.topic("t"))["oldest_ready_age_s"] < 35


async def test_a_topic_is_active_while_it_holds_items(api: Api) -> None:
    assert await pages(api, "topics") == [[]]
    await api.enqueue_one("t")
    leased = await api.dequeue_one("t")
    assert (await api.topic("t"))["oldest_ready_age_s"] is None
    await api.ack(leased)

    assert await pages(api, "topics") == [[]]


async def test_topics_are_paged(api: Api) -> None:
    names = sorted(f"topic/{number:02}" for number in range(7))
    await api.enqueue(*({"topic": name} for name in names))

    found = await pages(api, "topics", limit=3)
    assert [len(page) for page in found] == [3, 3, 1]
    assert [row["topic"] for page in found for row in page] == names


async def test_one_topic_is_told_whatever_stands_beside_it(api: Api) -> None:
    """And not another one in its place, where it is not active."""
    names = ["mai", "mail", "mail-", "mail.", "mail/a", "maim", "m", "z" * 128]
    await api.enqueue(*({"topic": name, "affinity": str(part)} for name in names for part in range(4)))
    whole = {row["topic"]: row for page in await pages(api, "topics") for row in page}
    for name in names:
        found = (await api.get("topics", topic=name)).json()
        assert (found["next_cursor"], [row["ready"] for row in found["items"]]) == (None, [4])
        assert {**found["items"][0], "oldest_ready_age_s": 0} == {**whole[name], "oldest_ready_age_s": 0}
    for name in ("mailb", "mail/", "a", "-", "z" * 127):
        assert (await api.get("topics", topic=name)).json()["items"] == []
    await api.post("topics/pause", {"topic": "mailb"})
    [paused] = (await api.get("topics", topic="mailb")).json()["items"]
    assert paused["paused"]


# -- items --------------------------------------------------------------------------------------------------


async def test_an_item_shows_its_state_until_it_is_gone(api: Api) -> None:
    ids = await one_in_each_state(api)
    for state, item_id in ids.items():
        item = await api.item(item_id)
        assert (item["id"], item["state"], item["topic"]) == (item_id, state, "t")
        assert datetime.fromisoformat(item["enqueued_at"]).tzinfo is not None


async def test_an_item_shows_what_it_was_given(api: Api) -> None:
    item_id = await api.enqueue_one(
        "t",
        payload=[1],
        metadata={"a": 1},
        priority=3,
        max_attempts=4,
        lease_s=9,
        delivery="at_most_once",
        ack_topic="other:done",
        ack_context={"b": 2},
        headers={"traceparent": "x"},
    )
    item = await api.item(item_id)

    assert item["payload"] == [1]
    assert item["metadata"] == {"a": 1}
    assert item["ack_context"] == {"b": 2}
    assert item["headers"] == {"traceparent": "x"}
    assert (item["priority"], item["max_attempts"], item["lease_s"]) == (3, 4, 9)
    assert (item["delivery"], item["ack_topic"]) == ("at_most_once", "other:done")


@pytest.mark.parametrize("item_id", ["x", "%00", "00000000-0000-4000-8000-000000000000", "a" * 3000])
async def test_a_malformed_id_is_not_found(api: Api, item_id: str) -> None:
    answer = await api.get(f"items/{item_id}")

    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


async def test_items_by_topic_and_state(api: Api) -> None:
    ids = await one_in_each_state(api)
    other = await api.enqueue_one("u")
    for state, item_id in ids.items():
        [page] = await pages(api, "items", topic="t", state=state)
        assert [item["id"] for item in page] == [item_id]
        assert page[0]["state"] == state
    [everything] = await pages(api, "items")
    assert {item["id"] for item in everything} == {*ids.values(), other}
    [ready] = await pages(api, "items", state="ready")
    assert {item["id"] for item in ready} == {ids["ready"], other}
    assert await pages(api, "items", topic="never-seen") == [[]]


async def test_items_are_paged_over_all_shards_without_gap_or_repeat(own_api: Api) -> None:
    await Api(own_api.host).enqueue(*({"topic": "t"} for _ in range(7)))
    ids = [await own_api.enqueue_one("t", id=own_api.new_id(n % 2)) for n in range(11)]

    for limit in (1, 3, 4, 11, 12, 1000):
        found = await pages(own_api, "items", topic="t", limit=limit)
        listed = [item["id"] for page in found for item in page]
        assert len(listed) == len(ids)
        assert set(listed) == set(ids)
        assert all(len(page) <= limit for page in found)
        assert {shard_of(item_id) for item_id in listed} == {0, 1}


async def test_a_rare_state_is_found_behind_a_long_scan(own_api: Api) -> None:
    object.__setattr__(own_api.host.settings, "page_scan_max", 10)
    await own_api.enqueue(*({"topic": "t"} for _ in range(35)))
    last = await own_api.enqueue_one("t", disabled=True, id=own_api.new_id(1))
    found = await pages(own_api, "items", state="disabled", limit=5)

    assert [item["id"] for page in found for item in page] == [last]


@pytest.mark.parametrize(
    "query",
    [
        {"limit": 0},
        {"limit": 1001},
        {"limit": -1},
        {"limit": "x"},
        {"limit": "1.5"},
        {"limit": 2**70},
        {"state": "acked"},
        {"state": ""},
        {"cursor": "x"},
        {"cursor": "%%%"},
        {"cursor": "é"},
        {"cursor": "AAAA"},
        {"cursor": "A" * 5000},
        {"cursor": "LS0t" + "LS0t" * 12},
    ],
)
async def test_queries_out_of_shape_are_refused(api: Api, query: dict[str, Any]) -> None:
    answer = await api.get("items", **query)

    assert (answer.status_code, answer.json()["code"]) == (422, "invalid"), answer.text
    assert answer.json()["errors"]


async def test_a_cursor_is_good_for_the_list_that_gave_it(api: Api) -> None:
    for topic in ("a", "b", "c"):
        await api.enqueue_one(topic)
    page = (await api.get("topics", limit=1)).json()
    assert [row["topic"] for row in page["items"]] == ["a"]

    for path in ("", "/default/topics", f"/{api.namespace}/items", f"/{api.namespace}/dead"):
        for cursor in (page["next_cursor"], "", "AAAA", "\u0000", "é", "-1", "3", "A" * 3000):
            answer = await api.host.client.get(f"/v1/namespaces{path}", params={"cursor": cursor})
            assert (answer.status_code, answer.json().get("code")) == (422, "invalid"), (path, cursor, answer.text)
            assert answer.json()["errors"][0]["pointer"] == "/cursor"


@pytest.mark.parametrize("topic", ["\u0000", "é", "a b", "x" * 5000, "'; DROP TABLE item; --"])
async def test_a_topic_that_cannot_be_is_no_servers_fault(api: Api, topic: str) -> None:
    answer = await api.get("items", topic=topic)

    assert answer.status_code in (200, 422)
    if answer.status_code == 200:
        assert answer.json() == {"items": [], "next_cursor": None}


# -- pause, resume, purge, redrive --------------------------------------------------------------------------


async def test_a_paused_topic_hands_out_nothing_and_takes_everything(api: Api) -> None:
    await api.enqueue(*({"topic": "t", "payload": n} for n in range(3)))
    [leased] = await api.dequeue("t")
    answer = await api.post("topics/pause", {"topic": "t"})
    assert (answer.status_code, answer.json()["topic"]) == (200, "t")
    await api.enqueue_one("t", payload=3)

    assert await api.dequeue("t", 9) == []
    assert (await api.topic("t"))["paused"] is True
    assert (await api.topic("t"))["ready"] == 3
    assert await api.ack(leased) == ["acked"]
    assert (await api.post("topics/pause", {"topic": "t"})).status_code == 200
    assert (await api.post("topics/resume", {"topic": "t"})).status_code == 200
    assert (await api.topic("t"))["paused"] is False
    assert [item["payload"] for item in await api.dequeue("t", 9)] == [1, 2, 3]


async def test_pausing_one_topic_leaves_the_others_and_other_namespaces(api: Api) -> None:
    other = Api(api.host)
    for target, topic in ((api, "t"), (api, "u"), (other, "t")):
        await target.enqueue_one(topic)
    await api.post("topics/pause", {"topic": "t"})

    assert await api.dequeue("t") == []
    assert len(await api.dequeue("u")) == 1
    assert len(await other.dequeue("t")) == 1


async def test_a_topic_may_be_paused_before_its_first_item(api: Api) -> None:
    await api.post("topics/pause", {"topic": "t"})
    assert (await api.topic("t"))["paused"] is True
    await api.enqueue(*({"topic": "t", "affinity": str(n)} for n in range(20)))

    assert await api.dequeue("t", 9) == []
    await api.post("topics/resume", {"topic": "t"})
    assert len(await api.dequeue("t", 30)) == 20


async def test_purge_cancels_everything_that_the_topic_holds(api: Api) -> None:
    ids = await one_in_each_state(api)
    keyed = await api.enqueue_one("t", id=api.new_id(1))
    other = await api.enqueue_one("u")
    answer = await api.post("topics/purge", {"topic": "t"})

    assert (answer.status_code, answer.json()["items"]) == (200, 6)
    assert [await api.state(item_id) for item_id in ids.values()] == ["gone"] * 5
    assert await api.topic("t") == {}
    assert await api.state(other) == "ready"
    assert await api.cancel(keyed) == ["already_cancelled"]
    [result] = await api.enqueue({"topic": "t", "id": keyed})
    assert result["status"] == "cancelled"


async def test_purge_in_chunks_takes_all(own_api: Api) -> None:
    object.__setattr__(own_api.host.settings, "chunk_items_max", 10)
    await own_api.enqueue(*({"topic": "t", "affinity": str(n)} for n in range(57)))

    assert (await own_api.post("topics/purge", {"topic": "t"})).json()["items"] == 57
    assert await own_api.host.count("item") == 0
    assert await own_api.host.count("ready") == 0


async def test_the_holder_of_a_purged_item_is_told(api: Api) -> None:
    await api.enqueue_one("t")
    leased = await api.dequeue_one("t")
    await api.post("topics/purge", {"topic": "t"})

    assert await api.extend(leased) == ["cancelled"]
    assert await api.ack(leased) == ["cancelled"]


async def test_redrive_puts_dead_items_back_with_fresh_attempts(api: Api) -> None:
    ids = [await api.enqueue_one("t", max_attempts=2, ttl_s=100, backoff=AT_ONCE) for _ in range(3)]
    for _ in range(2):
        await api.nack(*await api.dequeue("t", 3), error="broken")
    await api.host.pass_time(1000)
    assert [await api.state(item_id) for item_id in ids] == ["dead"] * 3
    answer = await api.post("topics/redrive", {"topic": "t"})

    assert answer.json()["items"] == 3
    row = await api.topic("t")
    assert (row["ready"], row["dead"]) == (3, 0)
    again = await api.dequeue("t", 9)
    assert {item["id"] for item in again} == set(ids)
    assert {item["attempt"] for item in again} == {1}
    assert (await api.post("topics/redrive", {"topic": "t"})).json()["items"] == 0


@pytest.mark.parametrize("verb", ["purge", "redrive", "pause", "resume"])
async def test_a_topic_verb_on_an_unknown_topic_does_nothing(api: Api, verb: str) -> None:
    answer = await api.post(f"topics/{verb}", {"topic": "never-seen"})

    assert (answer.status_code, answer.json()["items"]) == (200, 0)


# -- namespaces ---------------------------------------------------------------------------------------------


async def test_a_namespace_is_made_by_put(api: Api) -> None:
    path = f"/v1/namespaces/{api.namespace}"
    answer = await api.host.client.put(path, json={"enqueues_per_minute": 600, "in_flight_max": 10})
    assert answer.status_code == 200
    assert answer.json()["namespace"] == api.namespace
    assert (answer.json()["enqueues_per_minute"], answer.json()["in_flight_max"]) == (600, 10)
    assert (await api.host.client.get(path)).json()["enqueues_per_minute"] == 600
    assert (await api.host.client.put(path, json={})).status_code == 200
    assert (await api.host.client.get(path)).json().get("enqueues_per_minute") is None


async def test_use_of_a_namespace(api: Api) -> None:
    await api.enqueue(*({"topic": "t"} for _ in range(3)))
    await api.dequeue("t", 2)

    assert (await api.get("")).json()["in_flight"] == 2


async def test_an_unknown_namespace_is_empty(api: Api) -> None:
    assert (await api.get("")).json()["in_flight"] == 0
    assert await pages(api, "topics") == [[]]
    assert await pages(api, "items") == [[]]
    assert await api.dequeue("t") == []


async def test_default_always_exists_and_namespaces_are_paged(own_host: QueueHost) -> None:
    async def listed(limit: int) -> list[str]:
        names, cursor = [], None
        while True:
            query = {"limit": limit} | ({"cursor": cursor} if cursor else {})
            answer = (await own_host.client.get("/v1/namespaces", params=query)).json()
            names += [row["namespace"] for row in answer["items"]]
            cursor = answer["next_cursor"]
            if cursor is None:
                return names

    assert await listed(10) == ["default"]
    for name in ("b", "A.1", "z_-"):
        await own_host.client.put(f"/v1/namespaces/{name}", json={})
    assert await listed(2) == sorted(["A.1", "b", "default", "z_-"])


@pytest.mark.parametrize("name", ["a%20b", "é", "x" * 65, "a:b", "a%0A", "%00"])
async def test_a_namespace_that_cannot_be_is_refused(api: Api, name: str) -> None:
    for answer in (
        await api.host.client.put(f"/v1/namespaces/{name}", json={}),
        await api.host.client.get(f"/v1/namespaces/{name}/topics"),
        await api.host.client.post(f"/v1/namespaces/{name}/enqueue", json={"items": [{"topic": "t"}]}),
        await api.host.client.post(f"/v1/namespaces/{name}/topics/purge", json={"topic": "t"}),
    ):
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid")


# -- shards -------------------------------------------------------------------------------------------------

HEALTH = {
    "shard", "state", "owner", "epoch", "ready", "delayed", "leased", "disabled", "dead", "oldest_ready_age_s",
    "enqueued_per_s", "dequeued_per_s", "acked_per_s", "errors_per_s", "db_latency_ms_p50", "db_latency_ms_p99",
    "dead_tuples", "oldest_transaction_age_s", "bytes",
}  # fmt: skip


async def test_shards_are_listed_with_their_health(own_api: Api) -> None:
    for shard in (0, 1, 1):
        await own_api.enqueue_one("t", id=own_api.new_id(shard))
    await own_api.dequeue("t")
    answer = await own_api.host.client.get("/v1/shards")

    rows = answer.json()["items"]
    assert [row["shard"] for row in rows] == [0, 1]
    assert all(set(row) >= HEALTH for row in rows)
    assert {row["state"] for row in rows} == {"healthy"}
    assert sum(row["ready"] for row in rows) == 2
    assert sum(row["leased"] for row in rows) == 1
    assert all(row["bytes"] > 0 and row["db_latency_ms_p99"] > 0 for row in rows)
    one = await own_api.host.client.get("/v1/shards/1")
    assert one.json()["ready"] == rows[1]["ready"]


async def test_rates_of_a_shard(own_api: Api) -> None:
    health = own_api.host.process.health
    await health.step()
    await own_api.enqueue(*({"topic": "t", "id": own_api.new_id(1)} for _ in range(4)))
    await own_api.ack(*await own_api.dequeue("t", 3))
    await health.step()
    row = (await own_api.host.client.get("/v1/shards/1")).json()

    assert row["enqueued_per_s"] > row["dequeued_per_s"] == row["acked_per_s"] > 0
    assert row["errors_per_s"] == 0


@pytest.mark.parametrize("shard", ["9", "-1", "x", "4096", "99999", "\u0661", "1.0"])
async def test_a_shard_that_is_not_there(api: Api, shard: str) -> None:
    answer = await api.host.client.get(f"/v1/shards/{shard}")

    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


async def test_shards_are_paged(api: Api) -> None:
    first = (await api.host.client.get("/v1/shards", params={"limit": 2})).json()
    rest = (await api.host.client.get("/v1/shards", params={"cursor": first["next_cursor"]})).json()

    assert [row["shard"] for row in first["items"] + rest["items"]] == [0, 1, 2]
    assert rest["next_cursor"] is None
    for cursor in ("-1", "1", "x", "", "9" * 5000):
        answer = await api.host.client.get("/v1/shards", params={"cursor": cursor})
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid"), answer.text
