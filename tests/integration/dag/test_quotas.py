"""Quotas of a namespace for unfinished DAGs, nodes and edges: at the limit and one past it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from services.dag import store
from services.dag.build import quotas
from tests.support.dag_world import BASE, DagWorld
from tests.support.databases import Database
from tests.support.queue_fake import FakeQueue


@asynccontextmanager
async def limited(database: Database, **limits: int) -> AsyncIterator[DagWorld]:
    made = DagWorld(database, FakeQueue(), **limits)
    try:
        yield made
        await made.audit()
    finally:
        await made.close()


def node(key: str, *upstream: str) -> dict[str, Any]:
    return {"key": key, "topic": "t", **({"upstream": list(upstream)} if upstream else {})}


async def over(world: DagWorld, path: str, body: Any) -> None:
    problem = await world.call("POST", path, body, expect=429)
    assert (problem["code"], problem["outcome"]) == ("over_quota", "none")


async def test_dags_over_the_quota_are_refused_and_leave_nothing(world: DagWorld, dag_database: Database) -> None:
    async with limited(dag_database, namespace_dags_max=2) as small:
        first = await small.create([node("a")], key="one")
        await small.create([node("a")])
        await over(small, "", {"nodes": [node("a")]})
        again = await small.call("POST", "", {"key": "one", "nodes": [node("a")]}, expect=200)
        assert again["id"] == first, "what exists is recognised first"
        assert len(await small.rows("SELECT FROM dag")) == 2


async def test_nodes_and_edges_over_the_quota_are_refused_all_or_nothing(
    world: DagWorld, dag_database: Database
) -> None:
    async with limited(dag_database, namespace_nodes_max=3, namespace_edges_max=2) as small:
        dag = await small.create([node("a"), node("b", "a")])
        await over(small, f"/{dag}/nodes", {"nodes": [node("c"), node("d")]})
        await over(small, f"/{dag}/nodes", {"nodes": [node("c", "a", "b")]})
        await small.add(dag, [node("c", "b")])
        await small.add(dag, [node("c", "b")])
        await over(small, "", {"nodes": [node("a")]})
        assert (await small.dag(dag))["nodes"]["total"] == 3


async def test_uses_are_remembered_of_so_many_namespaces_whoever_asks_for_them(
    dag_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quotas, "_NAMESPACES_MAX", 4)
    async with limited(dag_database, namespace_dags_max=2) as small:
        mine = "/v1/namespaces/mine/dags"
        assert (await small.http.post(mine, json={"nodes": [node("a")]})).status_code == 201
        for n in range(12):
            await small.http.get(f"/v1/namespaces/nobody{n}")
            answer = await small.http.post(f"/v1/namespaces/some{n}/dags", json={"nodes": [node("a")]})
            assert answer.status_code == 201
        known = small.duties.builder.quotas
        assert max(map(len, (known._tenants, known._looked_s, known._seen))) <= 4
        assert (await small.http.post(mine, json={"nodes": [node("a")]})).status_code == 201
        assert (await small.http.post(mine, json={"nodes": [node("a")]})).status_code == 429


async def test_another_namespace_has_its_own(world: DagWorld, dag_database: Database) -> None:
    async with limited(dag_database, namespace_dags_max=1) as small:
        await small.create([node("a")])
        answer = await small.http.post("/v1/namespaces/other/dags", json={"nodes": [node("a")]})
        assert answer.status_code == 201


async def give(world: DagWorld, namespace: str, **quotas: int) -> Any:
    answer = await world.http.put(f"/v1/namespaces/{namespace}", json=quotas)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_namespace_is_given_quotas_of_its_own(world: DagWorld, dag_database: Database) -> None:
    async with limited(dag_database, namespace_dags_max=1) as small:
        given = await give(small, "default", dags_max=2, nodes_max=3)
        assert given == {
            "namespace": "default",
            "dags_max": 2,
            "nodes_max": 3,
            "edges_max": None,
            "default": {"dags_max": 1, "nodes_max": None, "edges_max": None},
            "dags": 0,
            "nodes": 0,
            "edges": 0,
        }
        await small.create([node("a")])
        dag = await small.create([node("a")])
        await over(small, "", {"nodes": [node("a")]})
        await over(small, f"/{dag}/nodes", {"nodes": [node("b"), node("c")]})
        await small.add(dag, [node("b", "a")])
        seen = (await small.http.get("/v1/namespaces/default")).json()
        assert (seen["dags"], seen["nodes"], seen["edges"]) == (2, 3, 1)
        for expect in (201, 429):
            answer = await small.http.post("/v1/namespaces/other/dags", json={"nodes": [node("a")]})
            assert answer.status_code == expect, "another namespace has the default"


async def test_quotas_are_known_to_every_process_and_taken_away_again(
    world: DagWorld, dag_database: Database
) -> None:
    await give(world, "default", dags_max=1)
    await world.create([node("a")])
    async with limited(dag_database) as other:
        await over(other, "", {"nodes": [node("a")]})
        await give(other, "default")
        await other.create([node("a")])


async def test_what_is_being_added_while_the_use_is_read_counts(
    world: DagWorld, dag_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The read does not see it, and is not believed beside it."""
    added, read = asyncio.Event(), asyncio.Event()
    insert = store.dags.insert_nodes

    async def held(tx: Any, *args: Any) -> Any:
        added.set()
        await read.wait()
        return await insert(tx, *args)

    async with limited(dag_database, namespace_dags_max=1) as small:
        with monkeypatch.context() as patched:
            patched.setattr(store.dags, "insert_nodes", held)
            first = asyncio.create_task(small.create([node("a")]))
            async with asyncio.timeout(30):
                await added.wait()
            seen = (await small.http.get("/v1/namespaces/default")).json()
            assert seen["dags"] == 0
        answer = await small.http.post(BASE, json={"nodes": [node("a")]})
        read.set()
        dag = await first
        assert answer.status_code == 429
        seen = (await small.http.get("/v1/namespaces/default")).json()
        assert seen["dags"] == 1
        await small.verb(dag, "cancel", expect=202)
        await small.settle()
        await small.http.get("/v1/namespaces/default")
        await small.create([node("a")])


async def test_calls_at_once_read_the_use_once_and_take_what_there_is_room_for(
    world: DagWorld, dag_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, use = [], store.reads.namespace_use

    async def counted(*args: Any) -> Any:
        reads.append(args)
        return await use(*args)

    async with limited(dag_database, namespace_dags_max=3, namespace_edges_max=4) as small:
        monkeypatch.setattr(store.reads, "namespace_use", counted)
        body = {"nodes": [node("a"), node("b", "a")]}
        answers = await asyncio.gather(*(small.http.post(BASE, json=body) for _ in range(12)))
        assert sorted(answer.status_code for answer in answers) == [201] * 3 + [429] * 9
        assert len(reads) == len(small.duties.context.shards)


async def test_a_quota_of_nothing_takes_nothing(world: DagWorld) -> None:
    await give(world, "default", dags_max=0)
    await over(world, "", {"nodes": [node("a")]})
    await over(world, "", {"nodes": [node("a")], "key": "k"})


async def test_quotas_that_cannot_be_are_refused(world: DagWorld) -> None:
    for body in ({"dags_max": -1}, {"dags_max": "1"}, {"nodes_max": 2**60}, {"other": 1}):
        assert (await world.http.put("/v1/namespaces/default", json=body)).status_code == 422
    assert (await world.http.put("/v1/namespaces/a b", json={})).status_code == 422
    assert (await world.http.get("/v1/namespaces/_dag")).status_code == 403
