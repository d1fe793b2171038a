"""What fails once a call has written something is told as perhaps done: `none` says that nothing was."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from services.dag import store
from services.dag.model import Node
from services.dag.queue_client import Answer
from shared.errors import ShardUnavailable
from shared.postgres.connections import Transaction
from tests.support.dag_world import BASE, DagWorld
from tests.support.databases import Database, Databases
from tests.support.ports import free_port
from tests.support.queue_fake import FakeQueue

PLAIN = {"key": "d", "topic": "t"}
OTHER = PLAIN | {"external": ["x"]}


@pytest.fixture
async def two(databases: Databases) -> AsyncIterator[Database]:
    made = await databases.create(queue_shards=1, dag_shards=2)
    yield made
    await databases.drop(made)


@pytest.fixture
async def world_on_two(two: Database) -> AsyncIterator[DagWorld]:
    made = DagWorld(two, FakeQueue())
    yield made
    await made.close()


async def away(*_: Any, **__: Any) -> Any:
    raise ShardUnavailable("it went away")


@pytest.mark.parametrize("nodes", [[PLAIN], [OTHER]], ids=["plain", "the long way"])
async def test_a_dag_that_was_made_and_cannot_be_shown_is_made_nowhere_else(
    world_on_two: DagWorld, nodes: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    world_on_two.queue.refuse["d"] = Answer("refused", "too_large", final=True)  # so it is looked at again
    hold = {"name": "n", "hold": True, "nodes": nodes}
    with monkeypatch.context() as patched:
        patched.setattr(store.reads, "get_dag", away)
        answer = await world_on_two.http.post(BASE, json=hold)
    assert (answer.status_code, answer.json()["outcome"]) == (503, "unknown")
    found = (await world_on_two.http.get(BASE, params={"name": "n"})).json()["items"]
    assert len(found) == 1


@pytest.mark.parametrize("node", [PLAIN, OTHER], ids=["plain", "the long way"])
async def test_nodes_that_were_added_and_cannot_be_shown_are_perhaps_there(
    world: DagWorld, node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    dag = await world.create({"a": []}, hold=True)
    world.queue.refuse["d"] = Answer("refused", "too_large", final=True)
    nodes_between = store.dags.nodes_between

    async def look_away(tx: Transaction, first_no: int, last_no: int, states: list[str]) -> list[Node]:
        return await (away() if len(states) > 1 else nodes_between(tx, first_no, last_no, states))

    monkeypatch.setattr(store.dags, "nodes_between", look_away)
    answer = await world.http.post(f"{BASE}/{dag}/nodes", json={"nodes": [node]})
    assert (answer.status_code, answer.json()["outcome"]) == (503, "unknown")


async def test_what_was_resolved_and_cannot_be_hinted_at_is_perhaps_resolved(
    world: DagWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    dag = await world.create({"a": []})
    monkeypatch.setattr(store.reads, "declared_names", away)
    answer = await world.http.post(f"{BASE}/{dag}/resolve", json={"external": [{"node": "a", "name": "x"}]})
    assert (answer.status_code, answer.json()["outcome"]) == (503, "unknown")


async def test_what_some_shards_have_taken_is_perhaps_done(two: Database) -> None:
    """Of a namespace's quotas, and of the mark of what was exported."""
    half = DagWorld(two, FakeQueue(), shards=f"0={two.dsn} 1=postgresql://postgres@127.0.0.1:{free_port()}/none")
    try:
        namespace = BASE.removesuffix("/dags")
        for method, path, body in (
            ("PUT", namespace, {"dags_max": 5}),
            ("PUT", f"{namespace}/exports/mark", {"until": "2026-01-01T00:00:00Z"}),
        ):
            answer = await half.http.request(method, path, json=body)
            assert (answer.status_code, answer.json()["outcome"]) == (503, "unknown"), path
    finally:
        await half.close()
