"""Where many items stand, asked at once."""

from tests.contract.test_queue_topics import one_in_each_state
from tests.support.queue_host import Api


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
