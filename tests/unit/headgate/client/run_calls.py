"""Every public method of a client about runs of workflows: what it is given, sends, and tells."""

from unittest.mock import ANY

from tests.unit.headgate.client.calls import Called
from tests.unit.headgate.client.dag_calls import ENDED, RUN, dag

ONE = "/workflows/order-1"
STARTED = {**RUN, "id": "id", "run": "run", "existing": True}

CALLS = [
    Called(
        "workflows.start",
        ("order", {"items": 1}),
        {
            "id": "order-1",
            "version": "2",
            "deadline_s": 60,
            "priority": 1,
            "metadata": {"a": 1},
            "reuse": "always",
            "signal": ("go", 1),
        },
        [
            dag(
                "POST /workflows",
                {
                    "type": "order",
                    "input": {"items": 1},
                    "id": "order-1",
                    "request_id": ANY,
                    "version": "2",
                    "deadline_s": 60,
                    "priority": 1,
                    "metadata": {"a": 1},
                    "reuse": "always",
                    "signal": {"name": "go", "data": 1, "id": ANY},
                },
            )
        ],
        STARTED,
    ),
    Called(
        "workflows.start",
        ("order",),
        {},
        [dag("POST /workflows", {"type": "order", "input": None, "id": ANY, "request_id": ANY})],
        STARTED,
    ),
    Called("workflows.get", ("order-1",), {}, [], RUN),
    Called(
        "workflows.list",
        (),
        {"type": "order", "state": "running", "stuck": False, "version": "2", "limit": 1},
        [dag("GET /workflows?type=order&state=running&version=2&stuck=false&limit=1")],
        "/items",
    ),
    Called(
        "workflows.cancel_all",
        (),
        {"type": "order", "version": "2", "stuck": True, "reason": "why"},
        [
            dag("GET /workflows?type=order&state=running&version=2&stuck=true&limit=1000"),
            dag("POST /workflows/id/cancel", {"id": ANY, "reason": "why"}),
        ],
        1,
        {"away": []},
    ),
    Called("run.show", (), {}, [dag(f"GET {ONE}")], "/"),
    Called("run.wait", (), {}, [dag(f"GET {ONE}/wait?timeout_s=30")], "/", ENDED),
    Called("run.wait", (0,), {}, [dag(f"GET {ONE}/wait?timeout_s=0.0")], "/"),
    Called(
        "run.signal",
        ("go", 1),
        {"id": "s"},
        [dag(f"POST {ONE}/signals", {"name": "go", "data": 1, "id": "s"})],
        "/",
    ),
    Called(
        "run.update",
        ("ask", 1),
        {"id": "u", "wait_s": 99},
        [dag(f"POST {ONE}/updates", {"name": "ask", "data": 1, "id": "u", "wait_s": 30})],
        "/",
    ),
    Called("run.update_state", ("u/1",), {"wait_s": 2}, [dag(f"GET {ONE}/updates/u%2F1?wait_s=2")], "/"),
    Called("run.cancel", ("why",), {}, [dag(f"POST {ONE}/cancel", {"id": ANY, "reason": "why"})], "/"),
    Called("run.terminate", ("why",), {}, [dag(f"POST {ONE}/terminate", {"id": ANY, "reason": "why"})], "/"),
    Called("run.pause", (), {}, [dag(f"POST {ONE}/pause", {"id": ANY})], "/"),
    Called(
        "run.resume",
        ("why",),
        {"outputs": {"a": 1}, "retry": ["b"], "id": "r"},
        [dag(f"POST {ONE}/resume", {"id": "r", "reason": "why", "outputs": {"a": 1}, "retry": ["b"]})],
        "/",
    ),
    Called(
        "run.reset",
        (3, "why"),
        {"id": "r"},
        [dag(f"POST {ONE}/reset", {"id": "r", "event": 3, "reason": "why"})],
        "/",
    ),
    Called("run.move", ("2",), {}, [dag(f"POST {ONE}/move", {"id": ANY, "version": "2"})], "/"),
    Called("run.move", (None,), {}, [dag(f"POST {ONE}/move", {"id": ANY, "version": None})], "/"),
    Called(
        "run.history",
        (),
        {},
        [dag(f"GET {ONE}/history?after=0")],
        {"id": "order-1", "events": "/events", "seen": "/seen"},
        {"more": False},
    ),
]
