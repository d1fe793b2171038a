"""DAGs with a priority go on by acks alone, where what their items are served by was known ahead."""

from typing import Any

import pytest

from tests.support.databases import Database
from tests.support.folding import Folding, folding_on

# Two ways from `a`: the longer one goes first.
GRAPH: dict[str, list[str]] = {
    "a": [],
    "short": ["a"],
    "long": ["a"],
    "l1": ["long"],
    "l2": ["l1"],
    "end": ["l2", "short"],
}


@pytest.mark.parametrize(
    "priority", [{"inherit": 10}, {"critical_path": 2}, {"inherit": 10, "critical_path": 2}], ids=str
)
async def test_a_dag_with_a_priority_goes_on_by_acks_alone(folding: Folding, priority: dict[str, int]) -> None:
    started, per_level = priority.get("inherit", 0), priority.get("critical_path", 0)
    dag = await folding.dags.create(GRAPH, priority=priority)
    served: dict[str, Any] = {}
    while set(served) != set(GRAPH):
        await folding.dags.loops.relay.idle()
        [item] = await folding.queue.dequeue("work", 1)
        served[item["dag"]["node"]] = item["priority"]
        await folding.queue.ack(item)
        assert await folding.completions() == (len(served) == len(GRAPH)), "only the DAG's end is told"

    behind = {"a": 4, "long": 3, "l1": 2, "l2": 1, "short": 1, "end": 0}
    assert served == {key: -per_level * behind[key] - started * (key != "a") for key in GRAPH}
    assert not per_level or list(served)[:2] == ["a", "long"]
    await folding.settle()
    assert (await folding.dags.dag(dag))["state"] == "succeeded"


async def test_what_is_added_to_a_started_dag_is_released_by_acks(folding: Folding) -> None:
    dag = await folding.dags.create({"a": [], "b": ["a"], "z": ["b"]}, priority={"inherit": 10})
    await folding.queue.ack((await folding.take())["a"])
    await folding.dags.add(dag, {"c": ["b"]})
    await folding.queue.ack((await folding.take())["b"])
    assert await folding.completions() == 0
    assert {key: item["priority"] for key, item in (await folding.take()).items()} == {"c": -10, "z": -10}
    await folding.cancel(dag)


async def test_a_dag_whose_nodes_cannot_be_ranked_yet_takes_the_ordinary_way(folding_database: Database) -> None:
    """Those of an open DAG: what comes behind `b` when it is released counts, also what was added since."""
    async with folding_on(folding_database, dag_settings={"priority_refresh_s": 0.0}) as folding:
        dag = await folding.dags.create({"a": [], "b": ["a"]}, open=True, priority={"critical_path": 5})
        await folding.dags.add(dag, {"c": ["b"], "d": ["c"]})
        await folding.queue.ack((await folding.take())["a"])
        assert await folding.completions() == 1
        await folding.settle()
        assert (await folding.take())["b"]["priority"] == -10
        await folding.cancel(dag)
