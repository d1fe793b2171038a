"""A DAG's items: who may make, revive and cancel them, and which names are the system's."""

import pytest

from tests.support.queue_host import DAG_HEADERS, Api

CONTEXT = {"dag": "d1", "node": "compile //x:y", "generation": 2}


async def managed(api: Api, **fields: object) -> str:
    return await api.as_dag_service().enqueue_one(
        "t", ack_topic="_dag:acks/0", ack_context=CONTEXT, id=api.new_id(0), **fields
    )


async def test_a_consumer_sees_which_node_it_works_for(api: Api) -> None:
    item_id = await managed(api)
    leased = await api.dequeue_one("t")

    assert leased["dag"] == {"id": "d1", "node": "compile //x:y", "generation": 2}
    assert (await api.item(item_id))["dag"] == leased["dag"]
    assert await api.extend(leased) == ["extended"]
    assert await api.nack(leased, delay_s=0) == ["requeued"]
    assert await api.ack(await api.dequeue_one("t"), output=1) == ["acked"]
    system = api.as_dag_service("_dag")
    told = [part for part in await system.completions("acks/0") if part["id"] == item_id]
    [(outcome, context)] = [(part["outcome"], part["ack_context"]) for part in told]
    assert (outcome, context.keys() - CONTEXT.keys()) == ("acked", {"started_at"})
    assert context.items() >= CONTEXT.items()


async def test_a_dags_item_is_changed_through_its_dag_only(api: Api) -> None:
    item_id = await managed(api, disabled=True)

    assert await api.revive(item_id) == ["managed"]
    assert await api.cancel(item_id) == ["managed"]
    assert await api.state(item_id) == "disabled"
    assert await api.as_dag_service().revive(item_id, inputs={"a": 1}) == ["revived"]
    assert await api.revive(item_id) == ["managed"]
    assert await api.cancel(item_id) == ["managed"]
    assert await api.state(item_id) == "ready"
    assert await api.as_dag_service().cancel(item_id) == ["cancelled"]
    assert await api.state(item_id) == "gone"


async def test_purge_and_redrive_leave_a_dags_items_alone(api: Api) -> None:
    dead = await managed(api)
    await api.nack(await api.dequeue_one("t"), final=True)
    ready, disabled = await managed(api), await managed(api, disabled=True)
    await api.enqueue_one("t")

    assert (await api.post("topics/redrive", {"topic": "t"})).json()["items"] == 0
    assert (await api.post("topics/purge", {"topic": "t"})).json()["items"] == 1
    assert [await api.state(i) for i in (dead, ready, disabled)] == ["dead", "ready", "disabled"]
    assert await api.cancel(dead) == ["managed"]


async def test_a_dead_item_that_its_dag_lets_go_of_is_gone_and_its_end_stays(api: Api) -> None:
    service = api.as_dag_service()
    dead = await managed(api)
    await api.nack(await api.dequeue_one("t"), final=True)
    other = await api.enqueue_one("t")
    await api.nack(await api.dequeue_one("t"), final=True)
    assert (await api.topic("t"))["dead"] == 2

    assert await service.cancel(dead) == ["finished"], "it has not been cancelled: its end was told"
    assert await api.state(dead) == "gone"
    assert (await api.topic("t"))["dead"] == 1
    assert await service.cancel(dead) == ["finished"]
    assert await service.cancel(other) == ["finished"]
    assert await api.state(other) == "dead", "only a DAG's own are dropped so"
    told = [part for part in await api.as_dag_service("_dag").completions("acks/0") if part["id"] == dead]
    assert [part["outcome"] for part in told] == ["dead"], "its end is told once"


async def test_the_dead_say_which_of_them_are_items_of_dags(api: Api) -> None:
    await managed(api)
    await api.nack(await api.dequeue_one("t"), final=True, error="boom")
    await api.enqueue_one("t")
    await api.nack(await api.dequeue_one("t"), final=True, error="boom")
    await api.enqueue_one("u")
    await api.nack(await api.dequeue_one("u"), final=True, error="boom")

    found = {group["topic"]: group for group in (await api.get("dead")).json()["items"]}
    assert (found["t"]["count"], found["t"]["managed"]) == (2, 1)
    assert found["t"]["dag"] == {"id": "d1", "node": "compile //x:y", "generation": 2}
    assert (found["u"]["count"], found["u"]["managed"], found["u"]["dag"]) == (1, 0, None)


async def test_one_call_of_two_kinds_of_items(api: Api) -> None:
    theirs, mine = await managed(api, disabled=True), await api.enqueue_one("t", disabled=True)

    assert await api.revive(theirs, mine) == ["managed", "revived"]
    assert await api.cancel(mine, theirs) == ["cancelled", "managed"]


@pytest.mark.parametrize("verb", ["enqueue", "dequeue", "ack", "nack", "extend", "revive", "cancel"])
async def test_system_namespaces_are_closed(api: Api, verb: str) -> None:
    answer = await Api(api.host, "_dag").post(verb, {"items": [{"topic": "t"}]})

    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")


@pytest.mark.parametrize("path", ["topics", "items", "items/x", ""])
async def test_system_namespaces_are_closed_to_queries(api: Api, path: str) -> None:
    assert (await Api(api.host, "_dag").get(path)).status_code == 403


@pytest.mark.parametrize(
    "item",
    [
        {"topic": "_mine"},
        {"topic": "t", "ack_topic": "_acks"},
        {"topic": "t", "ack_topic": "_dag:acks/0"},
        {"topic": "t", "ack_topic": "other:_acks"},
    ],
)
async def test_system_topics_are_closed(api: Api, item: dict[str, str]) -> None:
    before = await api.host.count("item")
    answer = await api.post("enqueue", {"items": [{"topic": "t"}, item]})

    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert await api.host.count("item") == before


@pytest.mark.parametrize("verb", ["pause", "resume", "purge", "redrive"])
async def test_system_topics_are_not_administered(api: Api, verb: str) -> None:
    assert (await api.post(f"topics/{verb}", {"topic": "_x"})).status_code == 403


async def test_system_topics_are_not_consumed(api: Api) -> None:
    answer = await api.post("dequeue", {"topics": [{"topic": "_x"}]})

    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")


async def test_system_namespaces_are_not_listed(api: Api) -> None:
    await managed(api)
    await api.ack(await api.dequeue_one("t"))
    answer = await api.host.client.get("/v1/namespaces", params={"limit": 1000})

    assert not [row for row in answer.json()["items"] if row["namespace"].startswith("_")]


@pytest.mark.parametrize("header", ["Bearer wrong", "Basic abc", "Bearer", "", "Bearer \u00e9"])
async def test_a_token_that_nobody_was_given_is_unauthorized(api: Api, header: str) -> None:
    headers = {"Authorization": header.encode()}
    for request in (
        api.host.client.get("/v1/namespaces/default/topics", headers=headers),
        api.host.client.post("/v1/namespaces/default/enqueue", json={"items": [{"topic": "t"}]}, headers=headers),
    ):
        answer = await request
        assert answer.status_code == 401
        assert answer.json()["code"] == "unauthorized"
        assert answer.headers["www-authenticate"].startswith("Bearer")


async def test_the_scheme_of_a_token_is_read_in_any_case(api: Api) -> None:
    token = DAG_HEADERS["Authorization"].split()[1]
    answer = await api.host.client.get("/v1/namespaces/_dag/topics", headers={"Authorization": f"bearer {token}"})

    assert answer.status_code == 200
