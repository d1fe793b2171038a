"""A graph of each other system runs to its end."""

import json
from typing import Any

import httpx
import pytest

from headgate._client.aio.client import AsyncClient
from headgate.importing import READERS, Options
from tests.support.dag_world import DagWorld

MAKE = "all: a.o b.o | out\na.o: a.c h\nb.o: h\nh:\n\tgenerate\nout:\n"
WFFORMAT = {
    "name": "w",
    "schemaVersion": "1.5",
    "workflow": {
        "specification": {
            "tasks": [
                {"name": "split", "id": "s1", "parents": [], "children": ["w1", "w2"]},
                {"name": "work", "id": "w1", "parents": ["s1"], "children": ["m1"]},
                {"name": "work", "id": "w2", "parents": ["s1"], "children": []},
                {"name": "merge", "id": "m1", "parents": ["w1", "w2"], "children": []},
            ]
        }
    },
}
AIRFLOW = {
    "dag": {
        "_dag_id": "etl",
        "tasks": [
            {"__type": "operator", "__var": {"task_id": "extract", "downstream_task_ids": ["load", "clean"]}},
            {"__type": "operator", "__var": {"task_id": "load", "downstream_task_ids": ["report"], "retries": 1}},
            {"__type": "operator", "__var": {"task_id": "clean", "trigger_rule": "all_done"}},
            {"__type": "operator", "__var": {"task_id": "report", "trigger_rule": "one_success"}},
        ],
    }
}
STATES = {
    "StartAt": "Fetch",
    "States": {
        "Fetch": {"Type": "Task", "Resource": "f", "Next": "Both"},
        "Both": {
            "Type": "Parallel",
            "Branches": [
                {"StartAt": "L", "States": {"L": {"Type": "Task", "Resource": "l", "End": True}}},
                {"StartAt": "R", "States": {"R": {"Type": "Task", "Resource": "r", "End": True}}},
            ],
            "Next": "Which",
        },
        "Which": {"Type": "Choice", "Choices": [{"Next": "Yes"}], "Default": "Store"},
        "Yes": {"Type": "Task", "Resource": "y", "Next": "Store"},
        "Store": {"Type": "Task", "Resource": "s", "End": True},
    },
}


@pytest.mark.parametrize(
    ("form", "source", "levels"),
    [
        ("make", MAKE, [{"h", "out"}, {"a.o", "b.o"}, {"all"}]),
        ("wfformat", WFFORMAT, [{"s1"}, {"w1", "w2"}, {"m1"}]),
        ("airflow", AIRFLOW, [{"extract"}, {"load", "clean"}, {"report"}]),
        ("states", STATES, [{"Fetch"}, {"L", "R"}, {"Which"}, {"Yes"}, {"Store"}]),
    ],
)
async def test_an_imported_graph_runs_to_its_end(
    world: DagWorld, form: str, source: Any, levels: list[set[str]]
) -> None:
    text = source if isinstance(source, str) else json.dumps(source)
    found = READERS[form](text, Options(topic="work"))
    transport = httpx.ASGITransport(app=world.app)
    async with AsyncClient(dag_url="http://localhost", transport=transport) as client:
        handle = await client.submit(found.dag)
        for level in levels:
            await world.settle()
            assert set(world.queue.deliverable()) == level
            for key in level:
                world.queue.ack(key, output=key)
        await world.settle()
        assert (await handle.show()).state == "succeeded"
        assert (await client.submit(READERS[form](text, Options(topic="work")).dag)).id != handle.id
        assert (await client.submit(found.dag)).id == handle.id


async def test_a_way_that_a_choice_did_not_take_is_skipped(world: DagWorld) -> None:
    found = READERS["states"](json.dumps(STATES), Options())
    transport = httpx.ASGITransport(app=world.app)
    async with AsyncClient(dag_url="http://localhost", transport=transport) as client:
        handle = await client.submit(found.dag)
        for level in (["Fetch"], ["L", "R"]):
            await world.settle()
            for key in level:
                world.queue.ack(key)
        await world.settle()
        await handle.skip(["Yes"])
        world.queue.ack("Which")
        await world.settle()
        world.queue.ack("Store")
        await world.settle()
        assert (await handle.show()).state == "succeeded"
