"""What jobs log: who may write it, in which order it comes back, and what bounds it."""

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

import pytest

from tests.support.queue_host import AT_ONCE, Api

TOKEN = "01234567-89ab-4cde-8f01-23456789abcd"


@pytest.fixture
async def limits(api: Api) -> AsyncIterator[dict[str, Any]]:
    """The settings of the host, put right afterwards."""
    settings = api.host.settings.__dict__
    before = dict(settings)
    yield settings
    settings.update(before)


def batch(leased: dict[str, Any], number: int, *texts: str, **line: Any) -> dict[str, Any]:
    lines = [{"text": text, **line} for text in texts]
    named = {name: leased[name] for name in ("id", "lease_token", "attempt")}
    return {**named, "number": number, "lines": lines}


async def write(api: Api, *batches: dict[str, Any]) -> list[str]:
    return [result["status"] for result in await api.results("logs", {"items": list(batches)})]


async def page(api: Api, item: str, **query: Any) -> dict[str, Any]:
    answer = await api.get(f"items/{item}/logs", **query)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def texts(api: Api, item: str) -> list[str]:
    return [entry["text"] for entry in (await page(api, item, limit=1000))["items"]]


async def test_lines_come_in_the_order_of_time_over_the_workers_that_held_the_item(api: Api) -> None:
    item = await api.enqueue_one("t", backoff=AT_ONCE)
    first = await api.dequeue_one("t", worker="host-1")
    assert await write(api, batch(first, 1, "a", "b"), batch(first, 2, "c", level="error", logger="app")) == [
        "written",
        "written",
    ]
    await api.nack(first)
    second = await api.dequeue_one("t", worker="host-2")
    await write(api, batch(second, 1, "d"))

    found = (await page(api, item))["items"]

    assert [(entry["text"], entry["attempt"], entry["worker"]) for entry in found] == [
        ("a", 1, "host-1"),
        ("b", 1, "host-1"),
        ("c", 1, "host-1"),
        ("d", 2, "host-2"),
    ]
    assert [(entry["level"], entry["logger"]) for entry in found[1:3]] == [("info", None), ("error", "app")]
    times = [datetime.fromisoformat(entry["at"]) for entry in found]
    assert times == sorted(times)


async def test_the_time_of_a_line_is_the_shards_less_its_age(api: Api) -> None:
    await api.clock.freeze(2_000_000_000)
    item = api.new_id()
    await api.enqueue_one("t", id=item)
    leased = await api.dequeue_one("t")
    await write(api, batch(leased, 1, "x", age_s=1.5))
    [entry] = (await page(api, item))["items"]
    assert datetime.fromisoformat(entry["at"]).timestamp() == 2_000_000_000 - 1.5


async def test_a_log_is_there_after_the_item_has_ended(api: Api) -> None:
    item = await api.enqueue_one("t")
    leased = await api.dequeue_one("t")
    await write(api, batch(leased, 1, "kept"))
    assert await api.ack(leased) == ["acked"]
    assert await write(api, batch(leased, 2, "sent behind the ack")) == ["written"]
    assert await texts(api, item) == ["kept", "sent behind the ack"]
    await api.clock.advance(3600)
    assert await write(api, batch(leased, 3, "when the lease would have run out")) == ["not_found"]
    await api.host.reap()
    assert await write(api, batch(leased, 4, "and once it is swept")) == ["not_found"]


async def test_only_the_holder_writes(api: Api) -> None:
    """Forged tokens, those of other items and of other tenants, and those of leases that are over."""
    item = await api.enqueue_one("t", id=api.new_id(0), backoff=AT_ONCE)
    other = await api.enqueue_one("u", id=api.new_id(0))
    held, of_other = await api.dequeue_one("t"), await api.dequeue_one("u")
    forged = [held | {"lease_token": token} for token in (TOKEN, "nonsense", of_other["lease_token"])]
    assert await write(api, *(batch(leased, 1, "no") for leased in forged)) == ["lease_lost"] * 3
    unknown = [held | {"id": name} for name in ("nonsense", api.new_id())]
    assert await write(api, *(batch(leased, 1, "no") for leased in unknown)) == ["not_found"] * 2
    assert await write(Api(api.host), batch(held, 1, "no")) == ["not_found"]
    await api.nack(held)
    assert await write(api, batch(held, 1, "no")) == ["lease_lost"]
    again = await api.dequeue_one("t")
    assert await write(api, batch(held, 1, "no")) == ["lease_lost"]
    await api.ack(again)
    assert await write(api, batch(held, 1, "no")) == ["lease_lost"]
    await api.cancel(other)
    assert await write(api, batch(of_other, 1, "no")) == ["cancelled"]
    assert await texts(api, item) == [] and await texts(api, other) == []


async def test_another_tenant_reads_nothing(api: Api) -> None:
    item = await api.enqueue_one("t", id=api.new_id(0))
    await write(api, batch(await api.dequeue_one("t"), 1, "secret"))
    other = Api(api.host)
    await other.enqueue_one("t", id=other.new_id(0))
    assert await texts(other, item) == []


async def test_an_old_lease_logs_nothing_for_a_later_item_of_the_same_id(api: Api) -> None:
    item = await api.enqueue_one("t")
    old = await api.dequeue_one("t", lease_s=3600)
    await api.ack(old)
    await api.clock.advance(api.host.settings.id_window_s + 300)
    await api.host.retain()
    await api.clock.advance(api.host.settings.id_window_s + 300)
    await api.host.retain()
    [result] = await api.enqueue({"topic": "t", "id": item})
    if result["status"] == "enqueued":
        assert await write(api, batch(old, 1, "no")) == ["lease_lost"]
    assert await texts(api, item) == []


async def test_a_repeated_call_writes_nothing_twice(api: Api) -> None:
    item = await api.enqueue_one("t", backoff=AT_ONCE)
    first = await api.dequeue_one("t")
    for _ in range(2):
        assert await write(api, batch(first, 1, "a"), batch(first, 2, "b")) == ["written", "written"]
    assert await write(api, batch(first, 1, "a")) == ["written"]
    await api.nack(first, costs_attempt=False)
    second = await api.dequeue_one("t")
    assert await write(api, batch(second, 1, "c")) == ["written"], "each lease counts its own calls"
    assert await texts(api, item) == ["a", "b", "c"]


async def test_who_goes_on_behind_the_tail_sees_each_line_once(api: Api) -> None:
    item = await api.enqueue_one("t")
    leased = await api.dequeue_one("t")
    empty = await page(api, item)
    assert (empty["items"], empty["next_cursor"]) == ([], None)
    await write(api, batch(leased, 1, "a", "b", "c"), batch(leased, 2, "d"))
    seen: list[str] = []
    cursor = empty["tail"]
    while True:
        found = await page(api, item, limit=2, cursor=cursor)
        seen += [entry["text"] for entry in found["items"]]
        assert len(found["items"]) <= 2
        cursor = found["tail"]
        if found["next_cursor"] is None:
            break
        assert found["next_cursor"] == cursor
    assert seen == ["a", "b", "c", "d"]
    await write(api, batch(leased, 3, "e"))
    found = await page(api, item, cursor=cursor)
    assert [entry["text"] for entry in found["items"]] == ["e"]


async def test_the_log_of_an_item_is_bounded_and_says_so(api: Api, limits: dict[str, Any]) -> None:
    limits["log_item_bytes_max"] = 1_000
    item = await api.enqueue_one("t", backoff=AT_ONCE)
    leased = await api.dequeue_one("t")
    statuses = await write(api, *(batch(leased, number, "x" * 300) for number in range(1, 5)))
    assert statuses == ["written", "written", "full", "full"]
    assert await write(api, batch(leased, 3, "x")) == ["full"]
    await api.nack(leased)
    assert await write(api, batch(await api.dequeue_one("t"), 1, "of another attempt")) == ["full"]
    kept = await texts(api, item)
    assert len(kept) == 3 and "1000 bytes" in kept[-1]


async def test_logs_of_a_namespace_are_bounded_exactly_and_age_makes_room(
    own_api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = own_api
    settings = api.host.settings.__dict__
    monkeypatch.setitem(settings, "log_namespace_bytes_max", 2_000)
    ids = [api.new_id(shard=0) for _ in range(8)]
    await api.enqueue(*({"topic": "t", "id": item} for item in ids))
    leased = await api.dequeue("t", 8)
    statuses = await asyncio.gather(*(write(api, batch(one, 1, "x" * 300)) for one in leased))
    assert sorted(statuses) == [["full"]] * 4 + [["written"]] * 4
    other = Api(api.host)
    await other.enqueue_one("t", id=other.new_id(shard=0))
    assert await write(other, batch(await other.dequeue_one("t"), 1, "x" * 300)) == ["written"], "another's room"

    await api.clock.advance(settings["log_retention_s"] + 1)
    await api.host.retain()

    assert [await texts(api, item) for item in ids] == [[]] * 8
    used = await api.host.rows("SELECT bytes FROM queue_000.job_log_use")
    assert {row["bytes"] for row in used} == {0}
    [status] = await write(api, batch(leased[0], 2, "y"))
    assert status in ("written", "lease_lost")


async def test_lines_of_several_shards_are_one_call(api: Api) -> None:
    ids = [api.new_id(shard=shard) for shard in (0, 1, 2)]
    await api.enqueue(*({"topic": "t", "id": item} for item in ids))
    leased = await api.dequeue("t", 3)
    assert await write(api, *(batch(one, 1, one["id"]) for one in leased)) == ["written"] * 3
    assert [await texts(api, item) for item in ids] == [[item] for item in ids]


LINE = {"text": "x"}
BAD = {
    "no lines": ({"lines": []}, 422, "/items/0/lines"),
    "too many lines": ({"lines": [LINE] * 1_001}, 422, "/items/0/lines"),
    "attempt 0": ({"attempt": 0}, 422, "/items/0/attempt"),
    "number 0": ({"number": 0}, 422, "/items/0/number"),
    "a number as text": ({"number": "1"}, 422, "/items/0/number"),
    "an unknown field": ({"line": "x"}, 422, "/items/0/line"),
    "an age before time": ({"lines": [{"text": "x", "age_s": -1}]}, 422, "/items/0/lines/0/age_s"),
    "an age of days": ({"lines": [{"text": "x", "age_s": 1e6}]}, 422, "/items/0/lines/0/age_s"),
    "an unknown level": ({"lines": [{"text": "x", "level": "loud"}]}, 422, "/items/0/lines/0/level"),
    "a line without text": ({"lines": [{}]}, 422, "/items/0/lines/0/text"),
    "a NUL": ({"lines": [{"text": "a\x00b"}]}, 422, "/items/0/lines/0/text"),
    "a long text": ({"lines": [{"text": "x" * 8_193}]}, 422, "/items/0/lines/0/text"),
    "a logger of control characters": (
        {"lines": [{"text": "x", "logger": "a\nb"}]},
        422,
        "/items/0/lines/0/logger",
    ),
    "too much at once": ({"lines": [{"text": "x" * 8_000}] * 9}, 413, "/items/0/lines"),
}


@pytest.mark.parametrize("case", BAD)
async def test_bodies_that_are_refused_write_nothing(api: Api, case: str) -> None:
    given, status, pointer = BAD[case]
    item = await api.enqueue_one("t")
    leased = await api.dequeue_one("t")
    good = batch(leased, 1, "good")
    answer = await api.post("logs", {"items": [good | {"number": 2, **given}, good]})
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (status, pointer)
    assert await texts(api, item) == []


@pytest.mark.parametrize(
    "query", [{"cursor": "x"}, {"cursor": "bm9uZQ"}, {"limit": 0}, {"limit": 1001}, {"tail": "x"}]
)
async def test_pages_that_cannot_be_are_refused(api: Api, query: dict[str, Any]) -> None:
    answer = await api.get(f"items/{api.new_id()}/logs", **query)
    assert answer.status_code == 422, answer.text


async def test_a_cursor_is_good_for_its_item_alone(api: Api) -> None:
    one, other = api.new_id(), api.new_id()
    cursor = (await page(api, one))["tail"]
    assert (await api.get(f"items/{other}/logs", cursor=cursor)).status_code == 422
