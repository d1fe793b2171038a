"""How far a job has come: told with an extension by whoever holds the item, shown with it until the lease ends."""

from datetime import datetime
from typing import Any

import pytest

from tests.support.queue_host import AT_ONCE, Api
from tests.support.traffic import traffic

TOKEN = "01234567-89ab-4cde-8f01-23456789abcd"


async def shown(api: Api, item: str) -> dict[str, Any] | None:
    """The progress of an item without its time, by both ways to ask for it."""
    found = (await api.item(item))["progress"]
    [standing] = await api.results("items/states", {"ids": [item]})
    assert standing["progress"] == found
    return None if found is None else {name: value for name, value in found.items() if name != "at"}


async def test_what_the_holder_told_last_is_shown_with_the_item(api: Api) -> None:
    await api.clock.freeze(2_000_000_000)
    item = await api.enqueue_one("t", id=api.new_id())
    assert await shown(api, item) is None
    leased = await api.dequeue_one("t")
    assert await shown(api, item) is None
    assert await api.extend(leased, progress={"done": 3, "total": 12.5, "note": "page \u00e9\u4e2d"}) == [
        "extended"
    ]
    assert await shown(api, item) == {"done": 3, "total": 12.5, "note": "page \u00e9\u4e2d"}
    found = (await api.item(item))["progress"]["at"]
    assert datetime.fromisoformat(found).timestamp() == 2_000_000_000

    await api.clock.advance(10)
    assert await api.extend(leased) == ["extended"]
    assert (await api.item(item))["progress"]["at"] == found, "an extension that tells nothing changes nothing"
    assert await api.extend(leased, progress={"done": 4}) == ["extended"]
    assert await shown(api, item) == {"done": 4, "total": None, "note": None}
    assert (await api.item(item))["progress"]["at"] > found


async def test_items_of_one_lease_have_each_their_own(api: Api) -> None:
    ids = [api.new_id(0) for _ in range(4)]
    await api.enqueue(*({"topic": "t", "id": item} for item in ids))
    held = await api.dequeue("t", 4)
    told = [{**leased, "progress": {"done": i}} for i, leased in enumerate(held[:3])]
    elements = [{name: one[name] for name in ("id", "lease_token", "progress")} for one in told]
    assert [result["status"] for result in await api.results("extend", {"items": elements})] == ["extended"] * 3
    assert [found and found["done"] for found in [await shown(api, item) for item in ids]] == [0, 1, 2, None]
    assert await api.ack(*held) == ["acked"] * 4


async def test_of_two_words_in_one_call_the_last_counts(api: Api) -> None:
    item = await api.enqueue_one("t")
    leased = await api.dequeue_one("t")
    element = {name: leased[name] for name in ("id", "lease_token")}
    await api.results("extend", {"items": [{**element, "progress": {"done": n}} for n in (2, 1)]})
    assert await shown(api, item) == {"done": 1, "total": None, "note": None}


async def test_the_next_attempt_begins_anew(api: Api) -> None:
    item = await api.enqueue_one("t", backoff=AT_ONCE)
    leased = await api.dequeue_one("t")
    await api.extend(leased, progress={"done": 9})
    await api.nack(leased)
    assert await shown(api, item) is None
    leased = await api.dequeue_one("t", lease_s=1)
    assert await shown(api, item) is None
    await api.extend(leased, progress={"done": 2}, lease_s=1)
    await api.host.pass_time(2)
    assert await api.dequeue_one("t")
    assert await shown(api, item) is None, "the lease ran out, and what was told of it went along"


async def test_only_the_holder_tells(api: Api) -> None:
    """Forged tokens, those of other items and of other tenants, and those of leases that are over."""
    item = await api.enqueue_one("t", id=api.new_id(0), backoff=AT_ONCE)
    await api.enqueue_one("u", id=api.new_id(0))
    held, of_other = await api.dequeue_one("t"), await api.dequeue_one("u")
    told = {"done": 1}
    for token in (TOKEN, "nonsense", of_other["lease_token"]):
        assert await api.extend(held | {"lease_token": token}, progress=told) == ["lease_lost"]
    other = Api(api.host)
    await other.enqueue_one("t", id=other.new_id(0))
    assert await other.extend(held, progress=told) == ["not_found"]
    await api.nack(held)
    assert await api.extend(held, progress=told) == ["lease_lost"]
    again = await api.dequeue_one("t")
    assert await api.extend(held, progress=told) == ["lease_lost"]
    assert await shown(api, item) is None
    await api.cancel(item)
    assert await api.extend(again, progress=told) == ["cancelled"]


@pytest.mark.parametrize(
    ("progress", "pointer"),
    [
        ({"done": -1}, "/done"),
        ({"done": 1e16}, "/done"),
        ({"done": "1"}, "/done"),
        ({"done": True}, "/done"),
        ({"done": None}, "/done"),
        ({}, "/done"),
        ({"done": 1, "total": -0.5}, "/total"),
        ({"done": 1, "note": "x" * 10_240}, "/note"),
        ({"done": 1, "note": "\0"}, "/note"),
        ({"done": 1, "notes": "x"}, "/notes"),
        ("half", ""),
        ([1, 2], ""),
    ],
)
async def test_bad_progress_refuses_the_whole_call(api: Api, progress: Any, pointer: str) -> None:
    await api.enqueue({"topic": "t"}, {"topic": "t"})
    held = await api.dequeue("t", 2)
    ends = [(await api.item(leased["id"]))["lease_expires_at"] for leased in held]
    elements = [{name: leased[name] for name in ("id", "lease_token")} for leased in held]
    answer = await api.post("extend", {"items": [elements[0], {**elements[1], "progress": progress}]})
    assert answer.status_code in (400, 422)
    if answer.status_code == 422:
        assert answer.json()["errors"][0]["pointer"].startswith(f"/items/1/progress{pointer}")
    assert [(await api.item(leased["id"]))["lease_expires_at"] for leased in held] == ends


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
async def test_what_is_no_number_is_refused(api: Api, number: str) -> None:
    await api.enqueue_one("t")
    leased = await api.dequeue_one("t")
    element = f'{{"id":"{leased["id"]}","lease_token":"{leased["lease_token"]}","progress":{{"done":{number}}}}}'
    answer = await api.host.client.post(
        f"/v1/namespaces/{api.namespace}/extend",
        content=f'{{"items":[{element}]}}',
        headers={"content-type": "application/json"},
    )
    assert answer.status_code in (400, 422), answer.text
    assert await shown(api, leased["id"]) is None


async def test_progress_costs_no_statement_of_its_own(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    await api.enqueue_one("t")
    leased = await api.dequeue_one("t")
    with traffic(monkeypatch) as silent:
        await api.extend(leased)
    rows = await api.host.count("lease")
    with traffic(monkeypatch) as telling:
        await api.extend(leased, progress={"done": 1})
    assert telling.statements == silent.statements
    assert await api.host.count("lease") == rows
