"""Under whose name, within which quotas, and to which of several calls items are handed that become ready."""

from typing import Any

import pytest

from shared.errors import ShardUnavailable
from tests.integration.queue.test_direct_handoff import FIVE, api, disable, items_of, waiting
from tests.integration.queue.test_hung_up_consumer import Connection, spy_on_claims, until_waiting, waiters
from tests.support.queue_host import Api

__all__ = ["api"]


@pytest.mark.parametrize("by", ["revive", "ack"])
async def test_what_a_named_call_is_handed_is_leased_in_its_name(api: Api, by: str) -> None:
    if by == "revive":
        item_id = await disable(api)
    else:
        await api.enqueue_one("w", id=api.new_id(0), ack_topic="t")
        working = await api.dequeue_one("w")
    connection = await waiting(api, {**FIVE, "worker": "press-7"})
    claims = spy_on_claims(api)
    if by == "revive":
        await api.revive(item_id)
    else:
        await api.ack(working)
    [leased] = await items_of(connection)

    assert claims == []
    [state] = await api.results("items/states", {"ids": [leased["id"]]})
    assert (state["state"], state["worker"]) == ("leased", "press-7")


def settling(*leased: dict[str, Any], **fields: Any) -> dict[str, Any]:
    acks = [{name: item[name] for name in ("id", "lease_token")} for item in leased]
    return {"topics": [{"topic": "t", "count": 5}], "settle": {"acks": acks}, **fields}


async def in_work(api: Api) -> dict[str, Any]:
    """A leased item whose end is told in `t`, of which nothing else is in sight."""
    await api.enqueue_one("w", id=api.new_id(0), ack_topic="t")
    assert await api.dequeue("t") == []
    return await api.dequeue_one("w")


@pytest.mark.parametrize("worker", [None, "press-7"])
async def test_a_call_that_settles_is_handed_what_its_own_acks_make_ready(api: Api, worker: str | None) -> None:
    """One transaction a step: no claim follows."""
    working = await in_work(api)
    claims = spy_on_claims(api)
    answer = (await api.post("dequeue", settling(working, worker=worker, wait_s=20))).json()

    assert [result["status"] for result in answer["results"]["acks"]] == ["acked"]
    [leased] = answer["items"]
    assert (leased["payload"]["id"], claims) == (working["id"], [])
    assert waiters(api, "t") == 0
    [state] = await api.results("items/states", {"ids": [leased["id"]]})
    assert (state["state"], state["worker"]) == ("leased", worker)


async def test_who_waits_longer_is_handed_it_before_the_call_that_settles(api: Api) -> None:
    working = await in_work(api)
    first = await waiting(api)
    answer = (await api.post("dequeue", settling(working))).json()

    assert [item["payload"]["id"] for item in await items_of(first)] == [working["id"]]
    assert answer["items"] == []
    assert waiters(api, "t") == 0


async def test_a_call_that_cannot_settle_leaves_the_line_and_passes_on_what_it_was_woken_for(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    working = await in_work(api)

    async def ack(*_: Any) -> Any:
        assert waiters(api, "t") == 1
        other = await waiting_beside(api)
        others.append(other)
        await api.enqueue_one("t", payload="fresh", id=api.new_id(0))
        raise ShardUnavailable("away")

    others: list[Connection] = []
    monkeypatch.setattr(api.host.process.acks, "ack", ack)
    assert (await api.post("dequeue", settling(working))).status_code == 503
    assert [item["payload"] for item in await items_of(others[0])] == ["fresh"]
    assert waiters(api, "t") == 0


async def waiting_beside(api: Api) -> Connection:
    connection = Connection(api, FIVE)
    await until_waiting(api, 2)
    return connection


async def limit(api: Api, in_flight_max: int) -> None:
    path = f"/v1/namespaces/{api.namespace}"
    await api.host.client.put(path, json={"in_flight_max": in_flight_max}, headers=api.headers)
    await api.host.process.quotas.step()


async def test_a_call_of_a_namespace_with_quotas_is_handed_what_there_is_room_for(api: Api) -> None:
    await limit(api, 2)
    ids = [await disable(api) for _ in range(3)]
    connection = await waiting(api)
    claims = spy_on_claims(api)
    await api.revive(*ids)
    leased = await items_of(connection)

    assert [item["id"] for item in leased] == ids[:2]
    assert claims == []
    tenant = api.host.process.quotas.of(api.namespace)
    assert tenant is not None
    assert tenant.use().leased == 2
    assert await api.dequeue("t") == [], "the quota is used up"
    await api.ack(leased[0])
    assert [item["id"] for item in await api.dequeue("t", 5)] == ids[2:]


async def test_an_offer_that_is_not_taken_up_leaves_the_quota_as_it_was(api: Api) -> None:
    await limit(api, 5)
    connection = await waiting(api)
    tenant = api.host.process.quotas.of(api.namespace)
    assert tenant is not None
    with api.host.dispatch.handing(0, "revive", 1) as handing:
        assert [offer.items_max for offer in handing.offers] == [5]
        assert tenant.use().leased == 5
    assert tenant.use().leased == 0
    connection.hang_up()
    await connection.task
