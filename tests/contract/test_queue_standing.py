"""Where many items stand, asked at once."""

from datetime import datetime
from typing import Any

import pytest

from tests.contract.test_queue_topics import one_in_each_state
from tests.support.queue_host import AT_ONCE, Api


async def test_every_state_is_told_since_when(api: Api) -> None:
    ids = await one_in_each_state(api)
    gone = await api.enqueue_one("gone")
    await api.ack(await api.dequeue_one("gone"))
    answer = await api.post("items/states", {"ids": [*ids.values(), gone, "nonsense"]})
    assert answer.status_code == 200, answer.text
    results = answer.json()["results"]
    assert [result["id"] for result in results] == [*ids.values(), gone, "nonsense"]
    assert [result["status"] for result in results] == ["found"] * len(ids) + ["not_found"] * 2
    found = {result["state"]: result for result in results if result["status"] == "found"}
    assert {state: result["id"] for state, result in found.items()} == ids
    assert found["leased"]["attempt"] == 1 and found["ready"]["attempt"] == 0
    assert found["leased"]["lease_expires_at"] is not None
    assert all(found[state]["since"] is not None for state in ("ready", "disabled", "dead"))
    assert found["delayed"]["deliver_at"] is not None


async def test_another_namespace_is_told_nothing(api: Api) -> None:
    item = await api.enqueue_one("t")
    answer = await Api(api.host).post("items/states", {"ids": [item]})
    assert [result["status"] for result in answer.json()["results"]] == ["not_found"]


async def test_a_batch_of_ids_is_bounded(api: Api) -> None:
    assert (await api.post("items/states", {"ids": []})).status_code == 422
    assert (await api.post("items/states", {"ids": ["x"] * 1001})).status_code == 422
    assert (await api.post("items/states", {"ids": ["x"] * 1000})).status_code == 200


async def standing(api: Api, item: str) -> dict[str, Any]:
    [found] = (await api.post("items/states", {"ids": [item]})).json()["results"]
    return dict(found)


async def test_an_item_says_who_has_it_or_for_how_long_nobody_has_asked_for_its_topic(api: Api) -> None:
    item, asked = await api.enqueue_one("lonely"), await api.enqueue_one("busy")
    both = await api.enqueue_one("busy")
    [leased] = await api.dequeue("busy", worker="host-7")
    assert leased["id"] == asked
    found = await standing(api, asked)
    assert (found["worker"], found["unasked_s"]) == ("host-7", None)
    lonely, busy = await standing(api, item), await standing(api, both)
    assert lonely["worker"] is None
    assert lonely["unasked_s"] > busy["unasked_s"] >= 0, "of the one nobody has asked since the process began"


async def test_a_running_item_says_since_when_also_after_an_extend(api: Api) -> None:
    item = await api.enqueue_one("t")
    leased = await api.dequeue_one("t")
    [before] = (await api.post("items/states", {"ids": [item]})).json()["results"]
    await api.clock.advance(5)
    await api.post("extend", {"items": [{"id": item, "lease_token": leased["lease_token"], "lease_s": 100}]})
    [after] = (await api.post("items/states", {"ids": [item]})).json()["results"]
    assert after["since"] == before["since"] and after["lease_expires_at"] > before["lease_expires_at"]


async def logged(api: Api, item: str) -> list[dict[str, Any]]:
    answer = await api.get(f"items/{item}/attempts")
    assert answer.status_code == 200, answer.text
    return [{name: entry[name] for name in ("attempt", "outcome", "error")} for entry in answer.json()["items"]]


async def test_deliveries_of_a_dags_item_that_failed_are_logged_and_others_are_not(api: Api) -> None:
    dag = api.as_dag_service()
    context = {"ack_topic": "_dag:acks/000", "ack_context": {"dag": "d", "node": "n", "generation": 1}}
    item = await dag.enqueue_one("t", max_attempts=3, backoff=AT_ONCE, **context)
    plain = await api.enqueue_one("plain")
    await api.nack(await api.dequeue_one("plain"), error="no")
    first = await api.dequeue_one("t")
    await api.clock.advance(5)
    await api.nack(first, error="no room", delay_s=0)
    await api.nack(await api.dequeue_one("t"), costs_attempt=False)
    await api.dequeue_one("t", lease_s=1)
    await api.clock.advance(10)
    await api.host.reap()
    await api.nack(await api.dequeue_one("t"), error="gave up")
    assert await logged(api, item) == [
        {"attempt": 1, "outcome": "failed", "error": "no room"},
        {"attempt": 2, "outcome": "lease_expired", "error": None},
        {"attempt": 3, "outcome": "dead", "error": "gave up"},
    ]
    entry = (await api.get(f"items/{item}/attempts")).json()["items"][0]
    took = datetime.fromisoformat(entry["ended_at"]) - datetime.fromisoformat(entry["started_at"])
    assert 4.9 < took.total_seconds() < 60
    first = (await api.get(f"items/{item}/attempts", limit=2)).json()
    rest = (await api.get(f"items/{item}/attempts", limit=2, cursor=first["next_cursor"])).json()
    assert [entry["attempt"] for entry in first["items"] + rest["items"]] == [1, 2, 3]
    assert rest["next_cursor"] is None
    assert await logged(api, plain) == [] and await logged(Api(api.host), item) == []
    assert await logged(api, "nonsense") == []


async def test_the_log_of_an_item_is_bounded(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(api.host.settings.__dict__, "logged_attempts_max", 2)
    dag = api.as_dag_service()
    context = {"ack_topic": "_dag:acks/000", "ack_context": {"dag": "d", "node": "n", "generation": 1}}
    item = await dag.enqueue_one("bounded", **context)
    for _ in range(4):
        await api.nack(await api.dequeue_one("bounded"), delay_s=0)
    assert [entry["attempt"] for entry in await logged(api, item)] == [1, 2]


async def test_attempts_of_many_items_are_told_at_once_the_fewer_of_each_the_more_items(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    dag = api.as_dag_service()
    context = {"ack_topic": "_dag:acks/000", "ack_context": {"dag": "d", "node": "n", "generation": 1}}
    many = [await dag.enqueue_one(topic, **context) for topic in ("one", "other")]
    for topic, number in ((topic, number) for number in range(3) for topic in ("one", "other")):
        await api.nack(await api.dequeue_one(topic), delay_s=0, error=f"{'x' * 500} {number}")
    untried = await dag.enqueue_one("one", **context)
    asked = [*many, untried, "nonsense"]
    found = (await api.post("items/attempts", {"ids": asked})).json()["results"]
    assert [each["id"] for each in found] == asked
    assert [each["status"] for each in found] == ["found", "found", "not_found", "not_found"]
    assert [[entry["attempt"] for entry in each["attempts"]] for each in found[:2]] == [[1, 2, 3]] * 2
    error = found[0]["attempts"][2]["error"]
    assert len(error) == 200 and error.endswith("x 2"), "of an error the end"
    monkeypatch.setitem(api.host.settings.__dict__, "attempts_shown_max", 8)
    found = (await api.post("items/attempts", {"ids": asked})).json()["results"]
    assert [[entry["attempt"] for entry in each["attempts"]] for each in found[:2]] == [[2, 3]] * 2
    stranger = await Api(api.host).post("items/attempts", {"ids": many})
    assert {each["status"] for each in stranger.json()["results"]} == {"not_found"}
    for ids, status in (([], 422), (["x"] * 1001, 422), (["x"] * 1000, 200)):
        assert (await api.post("items/attempts", {"ids": ids})).status_code == status
