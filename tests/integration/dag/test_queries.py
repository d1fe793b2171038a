"""Lists, waits, graphs and health."""

import asyncio
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import pytest

from services.dag import store
from shared.errors import NotFound
from tests.support.bounded import steps
from tests.support.dag_world import BASE, DagWorld


async def pages(world: DagWorld, path: str, **query: Any) -> list[list[Any]]:
    """All pages of a list."""
    found = []
    for _ in steps():
        answer = (await world.http.get(f"{BASE}{path}", params=query)).json()
        found.append(answer["items"])
        if answer["next_cursor"] is None:
            break
        query["cursor"] = answer["next_cursor"]
    return found


async def test_dags_are_listed_newest_first_by_state_and_name(world: DagWorld) -> None:
    made = [await world.create({"a": []}, name=f"n{i % 2}") for i in range(7)]
    await world.settle()
    world.queue.ack("a")
    await world.settle()
    found = await pages(world, "", limit=3)
    assert [[dag["id"] for dag in page] for page in found] == [made[::-1][:3], made[::-1][3:6], made[::-1][6:]]
    assert [dag["id"] for page in await pages(world, "", state="succeeded", limit=1) for dag in page] == [made[0]]
    named = [dag["id"] for page in await pages(world, "", name="n1", limit=2) for dag in page]
    assert named == [made[5], made[3], made[1]]
    both = await pages(world, "", name="n0", state="running", limit=2)
    assert [dag["id"] for page in both for dag in page] == [made[6], made[4], made[2]]


async def test_nodes_are_listed_in_pages_by_state(world: DagWorld) -> None:
    world.settings.__dict__["list_scan_nodes_max"] = 4
    dag = await world.create({f"n{i}": [] for i in range(23)} | {"x": ["n0"]})
    await world.settle()
    world.queue.die("n3")
    world.queue.die("n17")
    await world.settle()
    found = await pages(world, f"/{dag}/nodes", limit=10)
    assert [len(page) for page in found] == [10, 10, 4]
    assert [node["key"] for page in found for node in page] == [f"n{i}" for i in range(23)] + ["x"]
    failed = await pages(world, f"/{dag}/nodes", limit=10, state="failed")
    assert [node["key"] for page in failed for node in page] == ["n3", "n17"]
    blocked = await pages(world, f"/{dag}/nodes", state="blocked")
    [[waiting]] = [page for page in blocked if page]
    since = (await world.node(dag, "n0"))["released_at"]
    assert waiting["blocked_by"] == [{"kind": "node", "key": "n0", "state": "released", "since": since}]


async def test_a_page_is_shorter_where_edges_abound(world: DagWorld) -> None:
    world.settings.__dict__["page_edges_max"] = 5
    dag = await world.create({"a": [], **{f"c{i}": ["a"] for i in range(9)}})
    found = await pages(world, f"/{dag}/nodes", limit=10)
    assert [len(page) for page in found] == [1, 5, 4]
    assert found[0][0]["downstream"] == [f"c{i}" for i in range(9)]


async def test_wait_ends_with_the_dag_or_at_its_timeout(world: DagWorld) -> None:
    dag = await world.create({"a": []})
    await world.settle()
    assert (await world.call("GET", f"/{dag}/wait?timeout_s=0"))["state"] == "running"
    assert (await world.call("GET", f"/{dag}/wait?timeout_s=0.05"))["state"] == "running"
    waiting = asyncio.create_task(world.call("GET", f"/{dag}/wait?timeout_s=20"))
    async with asyncio.timeout(60):
        while not world.duties.context.watches:
            await asyncio.sleep(0.001)
        world.queue.ack("a")
        await world.settle()
        assert (await waiting)["state"] == "succeeded"
    assert len(world.duties.context.watches) == 0


@pytest.mark.parametrize("key", ["a", "//pkg:a&b"])
async def test_a_wait_brings_a_node_along_as_it_stands_then(world: DagWorld, key: str) -> None:
    dag = await world.create({key: [], "b": []})
    asked = f"/{dag}/wait?timeout_s=0&node="
    await world.settle()
    found = await world.call("GET", asked + quote(key, safe=""))
    assert (found["state"], found["node"]["state"]) == ("running", "released")
    world.queue.ack(key, output={"n": 1})
    await world.settle()
    found = await world.call("GET", asked + quote(key, safe=""))
    assert (found["state"], found["node"]["state"], found["node"]["output"]) == ("running", "succeeded", {"n": 1})
    world.queue.end(world.queue.item_of("b"), "dead", error="no room")
    await world.settle()
    found = await world.call("GET", asked + quote(key, safe=""))
    end = await world.call("GET", f"/{dag}/node?key={quote(key, safe='')}")
    assert found["state"] == "failed"
    assert found["node"] == {name: end[name] for name in ("key", "item_id", "state", "output", "error")}
    assert (found["node"]["state"], found["node"]["output"]) == ("succeeded", {"n": 1})
    assert (await world.call("GET", asked + "b"))["node"]["error"] == "no room"
    assert (await world.call("GET", asked + "other"))["node"] is None
    assert "node" not in await world.call("GET", f"/{dag}/wait?timeout_s=0")


async def test_wait_sees_an_end_that_another_process_brought(world: DagWorld) -> None:
    other = DagWorld(world.database, world.queue)
    dag = await world.create({"a": []})
    await world.settle()
    waiting = asyncio.create_task(world.call("GET", f"/{dag}/wait?timeout_s=20"))
    world.queue.ack("a")
    await other.settle()
    async with asyncio.timeout(60):
        while not waiting.done():
            await world.duties.context.watches.step(world.shard)
            await asyncio.sleep(0)
        assert (await waiting)["state"] == "succeeded"
    await other.close()


async def test_a_graph_has_every_node_and_edge_in_each_format(world: DagWorld) -> None:
    dag = await world.create({"a": [], 'q"x': ["a"], "c": ["a", 'q"x']}, name="pic")
    found = await world.call("GET", f"/{dag}/graph")
    assert [node["key"] for node in found["nodes"]] == ["a", 'q"x', "c"]
    assert {(edge["upstream"], edge["downstream"]) for edge in found["edges"]} == {
        ("a", 'q"x'),
        ("a", "c"),
        ('q"x', "c"),
    }
    assert found["nodes"][0] == {"key": "a", "state": "released", "topic": "work", "generation": 1}
    mermaid = await world.http.get(f"{BASE}/{dag}/graph?format=mermaid")
    assert mermaid.text.startswith("flowchart TD") and mermaid.text.count("-->") == 3
    dot = await world.http.get(f"{BASE}/{dag}/graph?format=dot")
    assert dot.text.startswith('digraph "pic" {') and dot.text.count("->") == 3
    world.settings.__dict__.update(graph_text_nodes_max=2, graph_json_nodes_max=2)
    for form in ("json", "mermaid", "dot"):
        answer = await world.http.get(f"{BASE}/{dag}/graph?format={form}")
        assert (answer.status_code, answer.json()["code"]) == (422, "limit_exceeded")


async def test_shard_health_counts_dags_and_nodes_over_ends_and_retries(world: DagWorld) -> None:
    world.settings.__dict__["health_refresh_s"] = 0.0
    done = await world.create({"a": []})
    await world.settle()
    world.queue.die("a")
    await world.settle()
    await world.create({"b": [], "c": ["b"]})
    await world.settle()

    async def counts() -> tuple[Any, Any]:
        [shard] = (await world.http.get("/v1/shards")).json()["items"]
        return (
            {state: count for state, count in shard["dags"].items() if count},
            {state: count for state, count in shard["nodes"].items() if count},
        )

    assert await counts() == ({"running": 1, "failed": 1}, {"blocked": 1, "released": 1, "failed": 1})
    await world.verb(done, "retry")
    assert await counts() == ({"running": 2}, {"blocked": 1, "released": 2})
    await world.settle()
    world.queue.ack("a")
    await world.settle()
    expected = ({"running": 1, "succeeded": 1}, {"blocked": 1, "released": 1, "succeeded": 1})
    assert await counts() == expected
    from services.dag import store

    assert await store.duties.fold_tally(world.shard, rows_min=1, rows_max=100) == 3
    assert await counts() == expected
    [shard] = (await world.http.get("/v1/shards")).json()["items"]
    assert (shard["state"], shard["outbox"]) == ("healthy", 0)
    assert shard["ack_lag_s"] is not None and shard["db_latency_ms_p50"] > 0


def counted_looks(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The ids of each statement that looks for DAGs, from now on."""
    looks: list[list[str]] = []
    get_dags = store.reads.get_dags

    async def counted(shard: Any, ids: Sequence[str]) -> Any:
        looks.append(sorted(ids))
        return await get_dags(shard, ids)

    monkeypatch.setattr(store.reads, "get_dags", counted)
    return looks


async def test_calls_that_look_for_dags_at_once_share_a_statement_and_see_only_their_own(
    world: DagWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    dags = [await world.create({"a": []}) for _ in range(3)]
    nobody = f"{dags[0][:8]}-0000-7000-8000-{dags[0][-12:]}"
    looks = counted_looks(monkeypatch)
    ours = "default"
    asked = [(ours, dags[0]), ("other", dags[1]), (ours, nobody), (ours, dags[2].upper()), (ours, dags[0])]
    calls = (world.duties.queries.dag(namespace, dag) for namespace, dag in asked)
    first, others, missing, last, again = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(others, NotFound) and isinstance(missing, NotFound)
    assert [found.id for found in (first, last, again)] == [dags[0], dags[2], dags[0]]
    assert looks == [sorted({*dags, nobody})]


async def test_a_wait_is_told_the_end_by_its_commit_and_reads_the_dag_once(
    world: DagWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    dag = await world.create({"a": []})
    await world.settle()
    reads = counted_looks(monkeypatch)
    waiting = asyncio.create_task(world.call("GET", f"/{dag}/wait?timeout_s=30", expect=200))
    async with asyncio.timeout(60):
        while not reads:
            await asyncio.sleep(0)
        world.queue.ack("a")
        await world.settle()
        told = await waiting
    assert reads == [[dag]]
    assert told == await world.dag(dag), "what was told is what is kept"
