"""Every public method of a client about items, topics and shards: what it is given, sends, and tells."""

from typing import Any, NamedTuple
from unittest.mock import ANY

from headgate import Leased
from tests.support.documented import TIME, UUID

SHARDS = ("queue GET /v1/shards?limit=1000", None)
HELD = {"id": UUID, "lease_token": "token"}
LEASED = Leased.parse({**HELD, "topic": "t", "attempt": 1, "lease_expires_at": TIME})
LINES = {**HELD, "attempt": 1, "number": 2, "lines": [{"text": "x", "age_s": 0.5}]}
LIMITS = {"rate": 5.5, "burst": 3, "concurrency": 2, "key_rate": 1.5, "key_burst": 4, "key_concurrency": 1}


class Called(NamedTuple):
    """A call of `name`, of the client or of what it holds.

    sent: what goes out, "service METHOD path" and body each; a path without `/v1` is below the namespace.
    told: what comes back; a text that begins with a slash is a part of the last answer.
    changed: what comes in the place of parts of the answers.
    """

    name: str
    given: tuple[Any, ...]
    more: dict[str, Any]
    sent: list[tuple[str, Any]]
    told: Any
    changed: Any = None


def queue(verb: str, body: Any = None) -> tuple[str, Any]:
    return f"queue {verb}", body


ITEMS = [
    Called(
        "client.enqueue",
        ([{"topic": "t", "payload": 1}, {"topic": "t", "idempotency_key": "k"}],),
        {},
        [
            SHARDS,
            queue(
                "POST /enqueue",
                {"items": [{"topic": "t", "payload": 1, "id": ANY}, {"topic": "t", "idempotency_key": "k"}]},
            ),
        ],
        "/results",
    ),
    Called(
        "client.enqueue",
        ([{"topic": "t"}],),
        {"make_ids": False},
        [queue("POST /enqueue", {"items": [{"topic": "t"}]})],
        "/results",
    ),
    Called(
        "client.enqueue_one",
        ("t", {"a": 1}),
        {"id": UUID, "priority": -3},
        [queue("POST /enqueue", {"items": [{"topic": "t", "payload": {"a": 1}, "id": UUID, "priority": -3}]})],
        "/results/0",
    ),
    Called(
        "client.enqueue_encoded",
        ([f'{{"topic":"t","id":"{UUID}"}}'],),
        {},
        [queue("POST /enqueue", {"items": [{"topic": "t", "id": UUID}]})],
        "/results",
    ),
    Called(
        "client.dequeue",
        ({"a": 2, "b": 3},),
        {"wait_s": 1.5, "lease_s": 10, "worker": "w"},
        [
            queue(
                "POST /dequeue",
                {
                    "topics": [{"topic": "a", "count": 2}, {"topic": "b", "count": 3}],
                    "wait_s": 1.5,
                    "lease_s": 10,
                    "worker": "w",
                },
            )
        ],
        "/items",
    ),
    Called(
        "client.settle_and_dequeue",
        ({"a": 2},),
        {"acks": [HELD], "nacks": [{**HELD, "final": True}], "wait_s": 1.5, "lease_s": 10, "worker": "w"},
        [
            queue(
                "POST /dequeue",
                {
                    "topics": [{"topic": "a", "count": 2}],
                    "wait_s": 1.5,
                    "lease_s": 10,
                    "worker": "w",
                    "settle": {"acks": [HELD], "nacks": [{**HELD, "final": True}]},
                },
            )
        ],
        {"items": "/items", "acks": "/results/acks", "nacks": "/results/nacks"},
    ),
    Called(
        "client.dequeue_one",
        ("t",),
        {"wait_s": 1.5, "lease_s": 10},
        [queue("POST /dequeue", {"topics": [{"topic": "t", "count": 1}], "wait_s": 1.5, "lease_s": 10})],
        "/items/0",
    ),
    Called(
        "client.dequeue_one",
        ("t",),
        {},
        [queue("POST /dequeue", {"topics": [{"topic": "t", "count": 1}]})],
        None,
        {"items": []},
    ),
    Called("client.ack", ([HELD],), {"again": False}, [queue("POST /ack", {"items": [HELD]})], "/results"),
    Called(
        "client.ack_one",
        (LEASED, {"n": 1}),
        {},
        [queue("POST /ack", {"items": [{**HELD, "output": {"n": 1}}]})],
        "/results/0",
    ),
    Called("client.nack", ([HELD],), {"again": False}, [queue("POST /nack", {"items": [HELD]})], "/results"),
    Called(
        "client.nack_one",
        (LEASED,),
        {"error": "no", "delay_s": 2.5, "metadata": {"a": 1}, "final": True, "costs_attempt": False},
        [
            queue(
                "POST /nack",
                {
                    "items": [
                        {
                            **HELD,
                            "error": "no",
                            "delay_s": 2.5,
                            "metadata": {"a": 1},
                            "final": True,
                            "costs_attempt": False,
                        }
                    ]
                },
            )
        ],
        "/results/0",
    ),
    Called(
        "client.extend",
        ([{**HELD, "lease_s": 90}],),
        {"again": False},
        [queue("POST /extend", {"items": [{**HELD, "lease_s": 90}]})],
        "/results",
    ),
    Called(
        "client.revive",
        ([{"id": UUID, "inputs": 1}],),
        {},
        [queue("POST /revive", {"items": [{"id": UUID, "inputs": 1}]})],
        "/results",
    ),
    Called("client.cancel", ([UUID],), {}, [queue("POST /cancel", {"ids": [UUID]})], "/results"),
    Called("client.item", (UUID,), {}, [queue(f"GET /items/{UUID}")], "/"),
    Called(
        "client.items",
        ("a/b", "dead"),
        {"limit": 1},
        [queue("GET /items?topic=a%2Fb&state=dead&limit=1")],
        "/items",
    ),
    Called("client.item_attempts", (UUID,), {}, [queue(f"GET /items/{UUID}/attempts")], "/items"),
    Called("client.items_attempts", ([UUID],), {}, [queue("POST /items/attempts", {"ids": [UUID]})], "/results"),
    Called("client.item_states", ([UUID],), {}, [queue("POST /items/states", {"ids": [UUID]})], "/results"),
    Called("logs.page", (UUID,), {"limit": 3}, [queue(f"GET /items/{UUID}/logs?limit=3")], "/"),
    Called(
        "logs.page",
        (UUID,),
        {"cursor": "c 1", "limit": 3},
        [queue(f"GET /items/{UUID}/logs?cursor=c+1&limit=3")],
        "/",
    ),
    Called("logs.all", (UUID,), {}, [queue(f"GET /items/{UUID}/logs?limit=1000")], "/items"),
    Called(
        "logs.write",
        ([LINES],),
        {},
        [queue("POST /logs", {"items": [LINES]})],
        "/results",
    ),
]

TOPICS = [
    Called("client.topics", (), {}, [queue("GET /topics?limit=1000")], "/items"),
    Called("client.pause_topic", ("t",), {}, [queue("POST /topics/pause", {"topic": "t"})], None),
    Called("client.resume_topic", ("t",), {}, [queue("POST /topics/resume", {"topic": "t"})], None),
    Called("client.purge_topic", ("t",), {}, [queue("POST /topics/purge", {"topic": "t"})], "/items"),
    Called("client.redrive_topic", ("t",), {}, [queue("POST /topics/redrive", {"topic": "t"})], "/items"),
    Called(
        "client.configure_topic",
        ("t",),
        {"min_share": {9: 0.25, 5: 0.1}},
        [
            queue(
                "POST /topics/configure",
                {"topic": "t", "min_share": [{"priority": 5, "share": 0.1}, {"priority": 9, "share": 0.25}]},
            )
        ],
        None,
    ),
    Called("client.dead", ("t",), {}, [queue("GET /dead?topic=t&limit=1000")], "/items"),
    Called("limits.put", ("t",), LIMITS, [queue("PUT /topics/limits", {"topic": "t", **LIMITS})], "/"),
    Called("limits.get", ("t",), {}, [queue("GET /topics/limits?topic=t")], "/items/0"),
    Called("limits.get", ("t",), {}, [queue("GET /topics/limits?topic=t")], None, {"items": []}),
    Called("limits.all", (), {"limit": 1}, [queue("GET /topics/limits?limit=1")], "/items"),
    Called(
        "limits.unthrottle",
        ("t",),
        {"key": "k"},
        [queue("POST /topics/unthrottle", {"topic": "t", "key": "k"})],
        "/",
    ),
    Called("why.topic", ("t",), {}, [queue("GET /why?topic=t")], "/"),
    Called("why.item", (UUID,), {}, [queue(f"GET /why?item={UUID}")], "/"),
    Called("why.namespace", (), {}, [queue("GET /why")], "/"),
    Called("why.externals", (), {"limit": 1}, [("dag GET /externals?limit=1", None)], "/items"),
    Called("workers.all", (), {}, [queue("GET /workers?limit=1000")], "/items"),
    Called("workers.all", (), {"gone": True, "limit": 1}, [queue("GET /workers?limit=1&gone=true")], "/items"),
    Called(
        "workers.report",
        ("w",),
        {"wait_s": 1.5, "version": "2", "host": "h"},
        [queue("POST /workers", {"name": "w", "wait_s": 1.5, "version": "2", "host": "h"})],
        "/cancelled",
    ),
]

WANTED = {"topic": "t", "state": "dead", "error": "x", "priority_min": 1, "enqueued_before": TIME}
OPERATIONS = [
    Called(
        "client.begin_operation",
        ("purge",),
        WANTED,
        [SHARDS, queue("POST /operations", {"kind": "purge", "filter": WANTED, "dry_run": False, "id": ANY})],
        "/",
    ),
    Called(
        "client.preview_operation",
        ("cancel",),
        WANTED,
        [queue("POST /operations", {"kind": "cancel", "filter": WANTED, "dry_run": True})],
        "/",
    ),
    Called("client.operation", ("o",), {}, [queue("GET /operations/o")], "/"),
    Called("client.cancel_operation", ("o",), {}, [queue("POST /operations/o/cancel", {})], "/"),
    Called("client.operations", (), {"limit": 1}, [queue("GET /operations?limit=1")], "/items"),
]

QUOTAS = {"enqueues_per_minute": 1, "in_flight_max": 2, "items_max": 3, "stored_bytes_max": 4}
DAG_QUOTAS = {"dags_max": 1, "nodes_max": 2, "edges_max": 3}
NAMESPACES = [
    Called("client.put_namespace", ("n",), QUOTAS, [queue("PUT /v1/namespaces/n", QUOTAS)], "/"),
    Called("client.put_dag_quota", ("n",), DAG_QUOTAS, [("dag PUT /v1/namespaces/n", DAG_QUOTAS)], "/"),
    Called("client.get_namespace", ("n",), {}, [queue("GET /v1/namespaces/n")], "/"),
    Called("client.dag_quota", ("n",), {}, [("dag GET /v1/namespaces/n", None)], "/"),
    Called("client.namespaces", (), {}, [queue("GET /v1/namespaces?limit=1000")], "/items"),
    Called("client.shards", (), {}, [SHARDS], "/items"),
    Called("client.shard", (7,), {}, [queue("GET /v1/shards/7")], "/"),
    Called("client.dag_shards", (), {}, [("dag GET /v1/shards?limit=1000", None)], "/items"),
]

CALLS = [*ITEMS, *TOPICS, *OPERATIONS, *NAMESPACES]
