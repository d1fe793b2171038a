"""DAGs by the key that they were made with: found again, one at most, and never instead of another."""

import asyncio
from typing import Any

import httpx
import pytest

from headgate import AsyncClient, Dag
from tests.contract.test_query_parameters import DAG, named, refusal
from tests.support.dag_world import BASE, DagWorld


async def _listed(world: DagWorld, **query: str) -> list[str]:
    answer = await world.http.get(BASE, params=query)
    assert answer.status_code == 200, answer.text
    assert answer.json()["next_cursor"] is None
    return [dag["key"] for dag in answer.json()["items"]]


async def test_a_key_lists_its_dag_alone(world: DagWorld) -> None:
    for key in ("order/77", "order/7", "order/777", "Order/77"):
        await world.create({"a": []}, key=key, name="order")
    await world.create({"a": []}, name="order")
    assert await _listed(world, key="order/77") == ["order/77"]
    assert await _listed(world, key="order") == []
    assert await _listed(world, key="") == []
    assert await _listed(world, key="order/77", name="order", state="running") == ["order/77"]
    assert await _listed(world, key="order/77", name="other") == []
    assert await _listed(world, key="order/77", state="failed") == []


async def test_a_key_is_found_also_of_an_ended_dag_and_not_in_another_namespace(world: DagWorld) -> None:
    dag = await world.create({"a": []}, key="order/77")
    await world.settle()
    world.queue.ack("a")
    await world.settle()
    assert (await world.dag(dag))["state"] == "succeeded"
    assert await _listed(world, key="order/77") == ["order/77"]
    other = await world.http.get(BASE.replace("default", "other"), params={"key": "order/77"})
    assert other.json()["items"] == []


async def test_a_key_is_one_namespaces(world: DagWorld) -> None:
    """Each tenant's call finds its own DAG, however often it comes."""
    ids = []
    for _ in range(2):
        for namespace in ("default", "other"):
            body = {"key": "order/77", "nodes": [{"key": "a", "topic": "work"}], "on_failure": "cancel"}
            made = await world.http.post(BASE.replace("default", namespace), json=body)
            ids.append(made.json()["id"])
    assert ids[:2] == ids[2:]
    assert len(set(ids)) == 2


@pytest.mark.parametrize("plain", [True, False])
async def test_a_unique_key_is_free_once_its_dag_has_ended(world: DagWorld, plain: bool) -> None:
    fields: dict[str, Any] = {} if plain else {"metadata": {"way": "the long one"}}

    async def made(unique: bool = True) -> tuple[str, bool]:
        body = {"key": "k", "unique": unique, "nodes": [{"key": "a", "topic": "work"}], **fields}
        answer = (await world.http.post(BASE, json=body)).json()
        return answer["id"], answer["existing"]

    first, existing = await made()
    assert not existing
    assert await made() == (first, True)
    await world.settle()
    world.queue.ack("a")
    await world.settle()
    assert (await world.dag(first))["state"] == "succeeded"
    assert await made(unique=False) == (first, True)

    second, existing = await made()
    assert (existing, second == first) == (False, False)
    assert await made() == (second, True)
    assert (await world.dag(first))["key"] is None
    listed = (await world.http.get(BASE, params={"key": "k"})).json()["items"]
    assert [dag["id"] for dag in listed] == [second]


@pytest.mark.parametrize("first", ["retry", "create"])
async def test_a_dag_whose_unique_key_another_has_by_now_is_not_retried(world: DagWorld, first: str) -> None:
    async def create() -> tuple[int, bool]:
        body = {"key": "k", "unique": True, "nodes": [{"key": "a", "topic": "work"}]}
        answer = await world.http.post(BASE, json=body)
        return answer.status_code, answer.json()["existing"]

    failed = await world.create({"a": []}, key="k", unique=True)
    await world.settle()
    world.queue.die("a")
    await world.settle()
    assert (await world.dag(failed))["state"] == "failed"
    if first == "create":
        assert await create() == (201, False)
        answer = await world.http.post(f"{BASE}/{failed}/retry", json={})
        assert (answer.status_code, answer.json()["code"]) == (409, "dag_finished")
        assert (await world.dag(failed))["state"] == "failed"
    else:
        assert (await world.http.post(f"{BASE}/{failed}/retry", json={})).status_code == 200
        assert await create() == (200, True)


async def test_of_many_creates_with_a_unique_key_one_makes_a_dag(world: DagWorld) -> None:
    first = await world.create({"a": []}, key="k", unique=True)
    await world.settle()
    world.queue.ack("a")
    await world.settle()
    body = {"key": "k", "unique": True, "nodes": [{"key": "a", "topic": "work"}]}
    answers = await asyncio.gather(*(world.http.post(BASE, json=body) for _ in range(8)))
    found = [answer.json() for answer in answers]
    assert len({dag["id"] for dag in found} - {first}) == 1
    assert [dag["existing"] for dag in found].count(False) == 1


async def test_only_a_key_is_unique(world: DagWorld) -> None:
    answer = await world.http.post(BASE, json={"unique": True})
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/unique")


async def test_no_call_ignores_a_parameter(world: DagWorld) -> None:
    for app in (world.app, world.app.state.hot):
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            for method, path in named(DAG):
                assert "/surprise" in await refusal(client, method, path, "surprise=1"), (method, path)


async def test_a_misspelt_filter_lists_nothing(world: DagWorld) -> None:
    told = await refusal(world.http, "get", BASE, "stat=failed&nme=x")
    assert told == {
        "/stat": "there is no such query parameter; did you mean `state`?",
        "/nme": "there is no such query parameter; did you mean `name`?",
    }


SPEC: dict[str, Any] = {
    "key": "order/77",
    "name": "order",
    "metadata": {"customer": 1, "country": "x"},
    "nodes": [
        {"key": "pay", "topic": "t", "payload": {"euros": 7}},
        {"key": "pack", "topic": "t", "upstream": ["pay"]},
        {"key": "send", "topic": "t"},
    ],
    "dependencies": [{"upstream": "pack", "downstream": "send"}],
}


async def _made(world: DagWorld, spec: dict[str, Any], *, by_route: bool = False) -> tuple[int, str, bool, bool]:
    client = world.client(world.app if by_route else world.app.state.hot)
    answer = await client.post(BASE, json=spec)
    assert answer.is_success, answer.text
    made = answer.json()
    return answer.status_code, made["id"], made["existing"], made["same"]


def _other(**changes: Any) -> dict[str, Any]:
    return {**SPEC, **changes}


SAME = {
    "itself": SPEC,
    "the nodes in another order": _other(nodes=SPEC["nodes"][::-1]),
    "an edge twice": _other(dependencies=SPEC["dependencies"] * 2),
    "names in another order": _other(metadata={"country": "x", "customer": 1}),
    "defaults said": _other(open=False, hold=False, on_failure="continue", deadline_s=None, priority={}),
    "empty lists": _other(nodes=[SPEC["nodes"][0] | {"upstream": [], "external": []}, *SPEC["nodes"][1:]]),
}
DIFFERENT = {
    "no nodes": {"key": "order/77"},
    "fewer nodes": _other(nodes=SPEC["nodes"][:2], dependencies=[]),
    "more nodes": _other(nodes=[*SPEC["nodes"], {"key": "thank", "topic": "t"}]),
    "another payload": _other(nodes=[SPEC["nodes"][0] | {"payload": {"euros": 8}}, *SPEC["nodes"][1:]]),
    "another key of a node": _other(nodes=[SPEC["nodes"][0], SPEC["nodes"][1], {"key": "ship", "topic": "t"}],
                                    dependencies=[]),
    "no edge": _other(dependencies=[]),
    "another edge": _other(dependencies=[{"upstream": "pay", "downstream": "send"}]),
    "another name": _other(name="other"),
    "other metadata": _other(metadata={"customer": 2}),
    "held": _other(hold=True),
    "open": _other(open=True),
    "another policy": _other(on_failure="cancel"),
    "a deadline": _other(deadline_s=5),
    "a priority": _other(priority={"inherit": 1}),
}  # fmt: skip


@pytest.mark.parametrize("by_route", [False, True], ids=["short way", "routes"])
async def test_the_same_key_says_whether_it_was_made_of_the_same(world: DagWorld, by_route: bool) -> None:
    status, dag, existing, same = await _made(world, SPEC, by_route=by_route)
    assert (status, existing, same) == (201, False, True)
    for case, spec in SAME.items():
        assert await _made(world, spec) == (200, dag, True, True), case
        assert await _made(world, spec, by_route=True) == (200, dag, True, True), case
    for case, spec in DIFFERENT.items():
        assert await _made(world, spec) == (200, dag, True, False), case
        assert await _made(world, spec, by_route=True) == (200, dag, True, False), case
    assert (await world.dag(dag))["nodes"]["total"] == 3


PLAIN = {"key": "plain", "nodes": [{"key": "a", "topic": "t"}, {"key": "b", "topic": "t", "upstream": ["a"]}]}


@pytest.mark.parametrize("first", [False, True])
async def test_both_ways_in_make_the_same_of_a_plain_dag(world: DagWorld, first: bool) -> None:
    _, dag, *_ = await _made(world, PLAIN, by_route=first)
    assert await _made(world, PLAIN, by_route=not first) == (200, dag, True, True)
    assert await _made(world, {**PLAIN, "nodes": PLAIN["nodes"][:1]}, by_route=not first) == (
        200,
        dag,
        True,
        False,
    )


async def test_what_became_of_the_dag_does_not_count(world: DagWorld) -> None:
    _, dag, *_ = await _made(world, PLAIN)
    await world.add(dag, {"more": []})
    await world.verb(dag, "cancel", expect=202)
    await world.settle()
    assert await _made(world, PLAIN) == (200, dag, True, True)


async def test_the_longer_way_of_externals_is_no_other(world: DagWorld) -> None:
    spec = {"key": "k", "nodes": [{"key": "a", "topic": "t", "external": [{"name": "go", "deadline_s": 60}]}]}
    _, dag, *_ = await _made(world, spec)
    assert await _made(world, spec) == (200, dag, True, True)
    spec["nodes"] = [{"key": "a", "topic": "t", "external": ["go"]}]
    assert await _made(world, spec) == (200, dag, True, False)


async def test_without_a_key_each_is_a_new_one(world: DagWorld) -> None:
    spec = {"nodes": [{"key": "a", "topic": "t"}]}
    first, second = await _made(world, spec), await _made(world, spec)
    assert first[1] != second[1]
    assert (first[0], *first[2:]) == (second[0], *second[2:]) == (201, False, True)


def _order(euros: int, steps: int) -> Dag:
    dag = Dag("order", key="order/77")
    dag.node("pay", "t", payload={"euros": euros})
    for number in range(steps):
        dag.node(f"step{number}", "t", after=["pay"])
    return dag


async def test_a_handle_says_whether_the_dag_of_its_key_was_made_of_the_same(world: DagWorld) -> None:
    async with AsyncClient(dag_url="http://localhost", transport=httpx.ASGITransport(app=world.app)) as client:
        first = await client.submit(_order(7, 1))
        assert (first.existing, first.same) == (False, True)
        for dag, same in (
            (_order(7, 1), True),
            (_order(8, 1), False),
            (_order(7, 2), False),
            (_order(7, 1_100), False),
        ):
            again = await client.submit(dag)
            assert (again.id, again.existing, again.same) == (first.id, True, same)
        assert (await first.show()).nodes.total == 2, "nothing was added"
        found = await client.dag_by_key("order/77")
        assert (found.id, found.existing, found.same) == (first.id, None, None)


async def test_a_handle_of_a_large_dag_does_not_say_what_it_cannot_know(world: DagWorld) -> None:
    async with AsyncClient(dag_url="http://localhost", transport=httpx.ASGITransport(app=world.app)) as client:
        first, again = await client.submit(_order(7, 1_100)), await client.submit(_order(8, 1_100))
    assert (first.existing, first.same, again.existing, again.same) == (False, True, True, None)
    assert first.id == again.id
