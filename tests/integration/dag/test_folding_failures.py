"""Nodes that fail for good end in the transaction that gives their items up, where at most releases come of it."""

from typing import Any

import pytest

from tests.integration.dag.test_folding_ends import Heard, create, heard
from tests.support.folding import Folding

__all__ = ["heard"]

NODES = (
    "SELECT node.key, node.state, error, output, attempts, up_left, up_ok, up_failed "
    "FROM node JOIN dag ON dag.no = dag_no WHERE id = $1"
)


async def fail(folding: Folding, *keys: str, error: str | None = "broken") -> None:
    taken = await folding.take()
    items = [
        {"id": i["id"], "lease_token": i["lease_token"], "final": True, "error": error}
        for i in map(taken.get, keys)
        if i
    ]
    if error is None:
        for item in items:
            del item["error"]
    assert [one["status"] for one in await folding.queue.results("nack", {"items": items})] == ["dead"] * len(keys)


async def test_what_waits_for_a_failure_is_released_with_it(folding: Folding, heard: Heard) -> None:
    dag = await create(
        folding,
        [
            {"key": "a"},
            {"key": "mends", "upstream": ["a"], "trigger": "any_failed"},
            {"key": "after", "upstream": ["a", "mends"], "trigger": "all_done", "pass_outputs": True},
        ],
    )
    await fail(folding, "a")
    assert await folding.completions() == 0
    assert await folding.states(dag) == {"a": "failed", "mends": "released", "after": "blocked"}
    await folding.dags.audit(dag)
    await folding.queue.ack((await folding.take())["mends"], output=1)
    last = (await folding.take())["after"]
    assert last["inputs"] == {"mends": 1}
    await folding.queue.ack(last)

    assert heard.ended == [dag]
    assert folding.told.taken == 0
    found = await folding.dags.dag(dag)
    assert (found["state"], found["nodes"]["failed"], found["nodes"]["succeeded"]) == ("failed", 1, 2)
    assert [tuple(row)[1:] for row in await folding.dags.rows(NODES, dag) if row["key"] == "a"] == [
        ("failed", "broken", None, 1, 0, 0, 0)
    ]


@pytest.mark.parametrize("error", ["broken", None, 'q"\\/ é \n'])
async def test_a_dag_ends_with_the_failure_of_its_last_node(
    folding: Folding, heard: Heard, error: str | None
) -> None:
    dag = await create(folding, [{"key": "a"}, {"key": "b"}])
    await folding.queue.ack((await folding.take())["a"])
    assert not heard.ended
    # The lease of `b` is this test's since `take`.
    await folding.host.rows("UPDATE lease SET expires_at = shard_now() + interval '60 s'")
    [row] = await folding.dags.rows(
        "SELECT item_id::text AS id FROM node JOIN dag ON dag.no = dag_no WHERE dag.id = $1 AND node.key = 'b'",
        dag,
    )
    [lease] = await folding.host.rows("SELECT token::text FROM lease WHERE $1 = ANY (ids)", row["id"])
    body = {"id": row["id"], "lease_token": lease["token"], "final": True} | ({"error": error} if error else {})
    await folding.queue.results("nack", {"items": [body]})

    assert heard.ended == [dag]
    assert await folding.completions() == 0
    assert (await folding.dags.dag(dag))["state"] == "failed"
    [found] = [row for row in await folding.dags.rows(NODES, dag) if row["key"] == "b"]
    assert (found["state"], found["error"]) == ("failed", error)
    await folding.dags.audit(dag)


TOLD: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "a node that is skipped": ([{"key": "a"}, {"key": "b", "upstream": ["a"]}], {}),
    "a DAG that is cancelled": ([{"key": "a"}, {"key": "b"}], {"on_failure": "cancel"}),
    "a tolerated failure": ([{"key": "a", "tolerate": True}, {"key": "b"}], {}),
}


@pytest.mark.parametrize(("nodes", "more"), TOLD.values(), ids=TOLD)
async def test_a_failure_that_something_else_comes_of_is_told(
    folding: Folding, heard: Heard, nodes: list[dict[str, Any]], more: dict[str, Any]
) -> None:
    dag = await create(folding, nodes, **{"on_failure": "continue"} | more)
    await fail(folding, "a")
    assert await folding.completions() == 1
    assert (await folding.states(dag))["a"] == "released"
    await folding.settle()
    assert (await folding.states(dag))["a"] == "failed"
    await folding.cancel(dag)


async def test_a_lease_that_runs_out_for_the_last_time_goes_on_with_its_dag(
    folding: Folding, heard: Heard
) -> None:
    nodes = [{"key": "a", "max_attempts": 1}, {"key": "b", "upstream": ["a"], "trigger": "all_done"}]
    dag = await create(folding, nodes)
    await folding.take()
    await folding.host.rows("UPDATE lease SET expires_at = shard_now() - interval '1 s'")
    await folding.host.reap()
    assert await folding.completions() == 0
    assert await folding.states(dag) == {"a": "failed", "b": "released"}
    assert heard.ended == []
    await folding.queue.ack((await folding.take())["b"])
    assert heard.ended == [dag]


async def test_failures_and_what_cannot_be_folded_share_a_call(folding: Folding, heard: Heard) -> None:
    """Of two DAGs in one call the one goes on, the other is told."""
    simple = await create(folding, [{"key": "a"}, {"key": "b", "upstream": ["a"], "trigger": "all_done"}])
    other = await create(folding, [{"key": "x"}, {"key": "y", "upstream": ["x"]}])
    await fail(folding, "a", "x")
    assert await folding.completions() == 1
    assert (await folding.states(simple), await folding.states(other)) == (
        {"a": "failed", "b": "released"},
        {"x": "released", "y": "blocked"},
    )
    await folding.settle()
    assert await folding.states(other) == {"x": "failed", "y": "skipped"}
    await folding.cancel(simple)
