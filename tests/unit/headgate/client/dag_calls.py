"""Every public method of a client about DAGs, schedules and workflows: what it is given, sends, and tells."""

import json
from datetime import UTC, datetime
from typing import Any
from unittest.mock import ANY

from headgate import Dag
from headgate._calls.dag import Node
from tests.support.documented import TIME
from tests.unit.headgate.client.calls import Called

DAY = datetime(2020, 1, 1, tzinfo=UTC)
DAY_TEXT = "2020-01-01T00:00:00+00:00"
NEXT_DAY_TEXT = "2020-01-02T00:00:00+00:00"
DAY_ASKED = "2020-01-01T00%3A00%3A00%2B00%3A00"
DAG = {"type": "DagHandle", "id": "id", "ns": "{ns}", "existing": None, "same": None}
RUN = {"type": "WorkflowHandle", "id": "order-1", "ns": "{ns}", "run": None, "existing": None}
NAMED = {"name": "nightly", "on_failure": "continue"}
NODE = {"key": "a", "topic": "t"}
ENDED = {"state": "succeeded", "node": ...}


def graph() -> Dag:
    made = Dag("nightly", key="k")
    made.node("a", "t", payload=1)
    made.node("b", "t", after=["a"])
    return made


NODES: list[dict[str, Any]] = [{**NODE, "payload": 1}, {"key": "b", "topic": "t", "upstream": ["a"]}]


def dag(verb: str, body: Any = None) -> tuple[str, Any]:
    return f"dag {verb}", body


def added(**node: Any) -> list[tuple[str, Any]]:
    """The call that adds one node."""
    return [dag("POST /dags/d/nodes", {"nodes": [node]})]


DAGS = [
    Called(
        "client.submit",
        (graph(),),
        {},
        [dag("POST /dags", {"key": "k", **NAMED, "nodes": NODES})],
        {**DAG, "existing": True, "same": True},
    ),
    Called("client.create_dag", ({"nodes": [NODE]},), {}, [dag("POST /dags", {"nodes": [NODE]})], "/"),
    Called("client.dag", ("id",), {}, [], DAG),
    Called("client.dag_by_key", ("k",), {}, [dag("GET /dags?key=k&limit=1000")], DAG),
    Called(
        "client.dags",
        (),
        {"state": "failed", "name": "n", "key": "k", "limit": 1},
        [dag("GET /dags?state=failed&name=n&key=k&limit=1")],
        "/items",
    ),
    Called(
        "client.ended_dags",
        (),
        {"since": DAY, "until": DAY.replace(day=2), "limit": 1},
        [dag(f"GET /exports/dags?since={DAY_ASKED}&until={DAY_ASKED.replace('-01T', '-02T')}&limit=1")],
        "/items",
    ),
    Called("client.mark_exported", (DAY,), {}, [dag("PUT /exports/mark", {"until": DAY_TEXT})], "/"),
    Called("client.exported_until", (), {}, [dag("GET /exports/mark")], "/until"),
]

GROWING = [
    Called(
        "dag.add",
        ("b", "t"),
        {"after": ["a"], "external": ["e"], "payload": 1},
        added(key="b", topic="t", payload=1, upstream=["a"], external=["e"]),
        "/nodes/0",
    ),
    Called(
        "dag.add_subdag",
        ("b", graph()),
        {"after": ["a"], "external": ["e"]},
        added(key="b", dag={**NAMED, "nodes": NODES}, upstream=["a"], external=["e"]),
        "/nodes/0",
    ),
    Called(
        "dag.add_timer",
        ("b",),
        {"delay_s": 5, "after": ["a"], "external": ["e"], "tolerate": True},
        added(key="b", timer={"delay_s": 5}, tolerate=True, upstream=["a"], external=["e"]),
        "/nodes/0",
    ),
    Called(
        "dag.add_timer",
        ("b",),
        {"at": DAY},
        added(key="b", timer={"at": DAY_TEXT}),
        "/nodes/0",
    ),
    Called("dag.add_nodes", ([Node("a", "t")],), {}, [dag("POST /dags/d/nodes", {"nodes": [NODE]})], "/nodes"),
    Called(
        "dag.expand",
        ("n", graph()),
        {"generation": 2},
        [dag("POST /dags/d/expand", {"node": "n", "generation": 2, "nodes": NODES})],
        "/nodes",
    ),
    Called(
        "dag.expand",
        (Node("n", "t"), [Node("a", "t")]),
        {},
        [dag("POST /dags/d/expand", {"node": "n", "nodes": [NODE]})],
        "/nodes",
    ),
    Called(
        "dag.depend",
        ("a", Node("b", "t")),
        {},
        [dag("POST /dags/d/dependencies", {"dependencies": [{"upstream": "a", "downstream": "b"}]})],
        None,
    ),
    Called(
        "dag.add_dependencies",
        ([("a", "b"), ("b", "c")],),
        {},
        [
            dag(
                "POST /dags/d/dependencies",
                {
                    "dependencies": [
                        {"upstream": "a", "downstream": "b"},
                        {"upstream": "b", "downstream": "c"},
                    ]
                },
            )
        ],
        None,
    ),
]

CONTROL = [
    Called(
        "dag.resolve",
        ("a", "e"),
        {"data": 1, "failed": True},
        [dag("POST /dags/d/resolve", {"external": [{"node": "a", "name": "e", "data": 1, "failed": True}]})],
        "/results/0",
    ),
    Called(
        "dag.resolve_many",
        ([{"node": "a", "name": "e"}],),
        {},
        [dag("POST /dags/d/resolve", {"external": [{"node": "a", "name": "e"}]})],
        "/results",
    ),
    Called("dag.release", (), {}, [dag("POST /dags/d/release", {})], "/"),
    Called("dag.close", (), {}, [dag("POST /dags/d/close", {})], "/"),
    Called("dag.pause", (), {}, [dag("POST /dags/d/pause", {})], "/"),
    Called("dag.resume", (), {}, [dag("POST /dags/d/resume", {})], "/"),
    Called("dag.cancel", ("why",), {}, [dag("POST /dags/d/cancel", {"reason": "why"})], "/"),
    Called(
        "dag.cancel_nodes",
        (["a"], "why"),
        {},
        [dag("POST /dags/d/nodes/cancel", {"nodes": ["a"], "reason": "why"})],
        "/results",
    ),
    Called("dag.retry", (), {}, [dag("POST /dags/d/retry", {})], "/"),
    Called(
        "dag.retry",
        ([Node("a", "t")],),
        {"payloads": {"a": 1}},
        [dag("POST /dags/d/retry", {"nodes": ["a"], "payloads": {"a": 1}})],
        "/",
    ),
    Called("dag.retry", (), {"down_from": ["a"]}, [dag("POST /dags/d/retry", {"from": ["a"]})], "/"),
    Called("dag.retry", (), {"everything": True}, [dag("POST /dags/d/retry", {"all": True})], "/"),
    Called("dag.skip", (["a"],), {}, [dag("POST /dags/d/skip", {"nodes": ["a"]})], "/"),
]

EVENT = {"id": "7", "at": TIME, "dag": "d", "kind": "dag", "state": "succeeded"}
LOOKING = [
    Called("dag.show", (), {}, [dag("GET /dags/d")], "/"),
    Called("dag.wait", (), {}, [dag("GET /dags/d/wait?timeout_s=30")], "/", ENDED),
    Called("dag.wait", (0,), {}, [dag("GET /dags/d/wait?timeout_s=0.0")], "/", {"node": ...}),
    Called(
        "dag.events", ("6",), {}, [dag("GET /dags/d/events?after=6")], [EVENT], f"data: {json.dumps(EVENT)}\n\n"
    ),
    Called("dag.nodes", ("failed",), {"limit": 1}, [dag("GET /dags/d/nodes?state=failed&limit=1")], "/items"),
    Called("dag.node", ("a b",), {}, [dag("GET /dags/d/node?key=a+b")], "/"),
    Called("dag.export", (), {}, [dag("GET /dags/d/export?limit=1000")], "/items"),
    Called("dag.why", (), {}, [dag("GET /dags/d/why")], "/"),
    Called("dag.why", ("a",), {}, [dag("GET /dags/d/why?key=a")], "/"),
    Called("dag.timelines", (), {"limit": 1}, [dag("GET /dags/d/timelines?limit=1")], "/items"),
    Called("dag.timeline", ("a",), {}, [dag("GET /dags/d/timeline?key=a")], "/"),
    Called("dag.frontier", (), {"limit": 3, "cursor": "c"}, [dag("GET /dags/d/frontier?limit=3&cursor=c")], "/"),
    Called("dag.outputs", (), {"limit": 1}, [dag("GET /dags/d/outputs?limit=1")], "/items"),
    Called("dag.inputs", ("a",), {}, [dag("GET /dags/d/node/inputs?key=a")], "/"),
    Called("dag.output", ("a",), {}, [dag("GET /dags/d/node/output?key=a")], "/"),
    Called("dag.graph", (), {}, [dag("GET /dags/d/graph?format=json")], "/"),
    Called("dag.graph_text", ("dot",), {}, [dag("GET /dags/d/graph?format=dot")], "digraph {}", "digraph {}"),
    Called("values.get", ("k/1",), {}, [dag("GET /dags/d/values/k%2F1")], "/value"),
    Called("values.read", ("k",), {}, [dag("GET /dags/d/values/k")], "/"),
    Called(
        "values.put",
        ("k", 1),
        {"version": 0},
        [dag("PUT /dags/d/values/k", {"value": 1, "write_id": ANY, "version": 0})],
        "/",
    ),
    Called(
        "values.update",
        ("k", lambda value: value + 1),
        {},
        [dag("GET /dags/d/values/k"), dag("PUT /dags/d/values/k", {"value": 42, "write_id": ANY, "version": 1})],
        42,
        {"value": 41, "version": 1},
    ),
    Called("values.all", (), {}, [dag("GET /dags/d/values?limit=1000")], "/items"),
]

SCHEDULES = [
    Called(
        "schedules.put",
        ("s",),
        {"cron": "0 3 * * *", "tz": "Europe/Bern", "topic": "t", "payload": 1, "overlap": "allow", "priority": 2},
        [
            dag(
                "PUT /schedules/s",
                {
                    "spec": {"cron": "0 3 * * *", "tz": "Europe/Bern"},
                    "action": {"item": {"topic": "t", "payload": 1, "priority": 2}},
                    "overlap": "allow",
                },
            )
        ],
        "/",
    ),
    Called(
        "schedules.put",
        ("s",),
        {"interval_s": 60, "workflow": "order", "input": 1, "overlap": "terminate_other"},
        [
            dag(
                "PUT /schedules/s",
                {
                    "spec": {"interval_s": 60},
                    "action": {
                        "dag": {
                            "name": "order",
                            "on_failure": "continue",
                            "nodes": [
                                {
                                    "key": "workflow",
                                    "workflow": {"type": "order", "input": 1, "parent_close": "terminate"},
                                }
                            ],
                        }
                    },
                    "overlap": "terminate_other",
                },
            )
        ],
        "/",
    ),
    Called("schedules.get", ("s",), {}, [dag("GET /schedules/s")], "/"),
    Called("schedules.all", (), {"limit": 1}, [dag("GET /schedules?limit=1")], "/items"),
    Called("schedules.delete", ("s",), {}, [dag("DELETE /schedules/s")], "/deleted"),
    Called("schedules.pause", ("s", "why"), {}, [dag("POST /schedules/s/pause", {"reason": "why"})], "/"),
    Called("schedules.resume", ("s",), {}, [dag("POST /schedules/s/resume", {})], "/"),
    Called(
        "schedules.trigger",
        ("s",),
        {"at": DAY},
        [dag("POST /schedules/s/trigger", {"request_id": ANY, "at": DAY_TEXT})],
        "/",
    ),
    Called(
        "schedules.backfill",
        ("s", DAY, DAY.replace(day=2)),
        {"overlap": "allow"},
        [
            dag(
                "POST /schedules/s/backfill",
                {"start": DAY_TEXT, "end": NEXT_DAY_TEXT, "request_id": ANY, "overlap": "allow"},
            )
        ],
        "/slots",
    ),
    Called("schedules.ticks", ("s",), {"limit": 1}, [dag("GET /schedules/s/ticks?limit=1")], "/items"),
]

CALLS = [*DAGS, *GROWING, *CONTROL, *LOOKING, *SCHEDULES]
