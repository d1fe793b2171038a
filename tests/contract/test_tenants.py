"""No call of one tenant touches or shows what is another's: every route of both services, from their OpenAPI.

Two tenants have tokens for a namespace each and every scope that a token can have. A route that is new fails
here until its calls are written down below.
"""

import json
import re
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest

from shared.http.access import SCOPES, make_token
from tests.support.dag_world import DagWorld
from tests.support.databases import Databases
from tests.support.queue_fake import FakeQueue
from tests.support.queue_host import Api, QueueHost, queue_host

OWNER, STRANGER, NOBODY = "owner", "stranger", "nobody"
OPENAPI = Path(__file__).resolve().parents[2] / "docs" / "openapi"
OPEN = {"/livez", "/readyz", "/metrics", "/openapi.json", "/docs"}
# Of the process, not of a namespace: scope `ops`, and the namespaces that the token may enter.
PROCESS = {
    "/v1/shards",
    "/v1/shards/{shard}",
    "/v1/namespaces",
    "/v1/shards/{shard}/inspection",
    "/v1/history",
    "/v1/audit",
    "/v1/shard-commands",
    "/v1/shards/{shard}/commands",
}
# Tells a caller of the caller alone, whatever its scopes are.
OWN = {"/v1/me"}
TOKEN = "01234567-89ab-4cde-8f01-23456789abcd"

# What is logged of items that may be gone long since: an unknown item's is an empty page.
LOGS = {"/items/{item_id}/attempts", "/items/{item_id}/logs"}

Things = dict[str, Any]
Route = tuple[str, str]

# A valid body for every route that takes one, aimed at the owner's things.
QUEUE_BODIES: dict[Route, Callable[[Things], Any]] = {
    ("post", "/v1/shards/{shard}/commands"): lambda _: {"kind": "drain"},
    ("put", ""): lambda _: {"enqueues_per_minute": 7},
    ("post", "/enqueue"): lambda t: {"items": [{"topic": "t", "id": t["ready"]}]},
    ("post", "/dequeue"): lambda t: {
        "topics": [{"topic": "t", "count": 5}],
        "settle": {verb: [{"id": t["leased"], "lease_token": t["token"]}] for verb in ("acks", "nacks")},
    },
    ("post", "/ack"): lambda t: {"items": [{"id": t["leased"], "lease_token": t["token"]}]},
    ("post", "/nack"): lambda t: {"items": [{"id": t["leased"], "lease_token": t["token"]}]},
    ("post", "/extend"): lambda t: {"items": [{"id": t["leased"], "lease_token": t["token"]}]},
    ("post", "/logs"): lambda t: {
        "items": [
            {
                "id": t["leased"],
                "lease_token": t["token"],
                "attempt": 1,
                "number": 1,
                "lines": [{"text": "theirs"}],
            }
        ]
    },
    ("post", "/workers"): lambda _: {"name": "theirs", "leaving": True},
    ("post", "/revive"): lambda t: {"items": [{"id": t["disabled"]}]},
    ("post", "/cancel"): lambda t: {"ids": [t["ready"], t["leased"], t["disabled"], t["dead"]]},
    ("post", "/items/states"): lambda t: {"ids": [t["ready"], t["dead"]]},
    ("post", "/items/attempts"): lambda t: {"ids": [t["ready"], t["dead"]]},
    ("post", "/operations"): lambda _: {"kind": "purge", "filter": {"topic": "t"}},
    ("post", "/operations/{operation}/cancel"): lambda _: {},
    ("post", "/topics/pause"): lambda _: {"topic": "t"},
    ("post", "/topics/resume"): lambda _: {"topic": "t"},
    ("post", "/topics/unthrottle"): lambda _: {"topic": "t"},
    ("post", "/topics/purge"): lambda _: {"topic": "t"},
    ("post", "/topics/redrive"): lambda _: {"topic": "t"},
    ("post", "/topics/configure"): lambda _: {"topic": "t"},
    ("put", "/topics/limits"): lambda _: {"topic": "t", "concurrency": 1},
}
SCHEDULE = {"spec": {"interval_s": 3600}, "action": {"item": {"topic": "t"}}, "paused": True}
_NODES = {"nodes": [{"key": "new", "topic": "t", "upstream": ["a"]}]}
DAG_BODIES: dict[Route, Callable[[Things], Any]] = {
    ("post", "/v1/shards/{shard}/commands"): lambda _: {"kind": "drain"},
    ("put", ""): lambda _: {"dags_max": 7},
    ("post", "/dags"): lambda _: {"key": "theirs", "nodes": []},
    ("post", "/dags/{dag}/nodes"): lambda _: _NODES,
    ("post", "/dags/{dag}/dependencies"): lambda _: {"dependencies": [{"upstream": "a", "downstream": "b"}]},
    ("post", "/dags/{dag}/resolve"): lambda _: {"external": [{"node": "b", "name": "go"}]},
    ("post", "/dags/{dag}/retry"): lambda _: {},
    ("post", "/dags/{dag}/skip"): lambda _: {"nodes": ["b"]},
    ("post", "/dags/{dag}/nodes/cancel"): lambda _: {"nodes": ["b"]},
    ("post", "/dags/{dag}/expand"): lambda _: {"node": "a", "nodes": [{"key": "c", "topic": "t"}]},
    ("post", "/dags/{dag}/cancel"): lambda _: {},
    ("post", "/dags/{dag}/close"): lambda _: {},
    ("post", "/dags/{dag}/pause"): lambda _: {},
    ("post", "/dags/{dag}/resume"): lambda _: {},
    ("post", "/dags/{dag}/release"): lambda _: {},
    ("put", "/exports/mark"): lambda _: {},
    ("put", "/dags/{dag}/values/{key}"): lambda _: {"value": 7},
    ("put", "/schedules/{schedule}"): lambda _: SCHEDULE,
    ("post", "/dags/{dag}/turn"): lambda _: {"generation": 1, "secret": "s", "turn": 1, "last": 1},
    ("post", "/workflows"): lambda _: {"type": "order", "id": "order-18"},
    ("post", "/workflows/{workflow}/signals"): lambda _: {"name": "go"},
    ("post", "/workflows/{workflow}/updates"): lambda _: {"name": "go", "id": "theirs"},
    ("post", "/workflows/{workflow}/cancel"): lambda _: {},
    ("post", "/workflows/{workflow}/terminate"): lambda _: {},
    ("post", "/workflows/{workflow}/pause"): lambda _: {},
    ("post", "/workflows/{workflow}/resume"): lambda _: {},
    ("post", "/workflows/{workflow}/reset"): lambda _: {"event": 1},
    ("post", "/workflows/{workflow}/move"): lambda _: {"version": "2"},
    ("post", "/schedules/{schedule}/pause"): lambda _: {},
    ("post", "/schedules/{schedule}/resume"): lambda _: {},
    ("post", "/schedules/{schedule}/trigger"): lambda _: {},
    ("post", "/schedules/{schedule}/backfill"): lambda _: {
        "start": "2020-01-01T00:00:00Z",
        "end": "2020-01-01T03:00:00Z",
    },
}
# Under a name of one's own choice: it is made, or is not there.
NAMED = {("put", "/schedules/{schedule}"), ("delete", "/schedules/{schedule}")}
QUERIES = {"/items": "?topic=t", "/dead": "?topic=t", "/dags/{dag}/node": "?key=a"}
QUERIES |= {
    "/dags/{dag}/node/inputs": "?key=b",
    "/dags/{dag}/node/output": "?key=a",
    "/dags/{dag}/timeline": "?key=a",
    "/why": "?topic=t",
    "/v1/history": "?metrics=ready",
}


def routes(service: str) -> list[Route]:
    """Method and path of every documented call that is behind a token."""
    document = json.loads((OPENAPI / f"{service}.json").read_text())
    found = [(method, path) for path, methods in document["paths"].items() for method in methods]
    return [(method, path) for method, path in found if path not in OPEN]


def tail(path: str) -> str:
    """A path without the namespace."""
    return path.removeprefix("/v1/namespaces/{ns}")


TENANT = [
    (service, method, path)
    for service in ("queue", "dag")
    for method, path in routes(service)
    if path not in PROCESS | OWN
]
OBJECT = [
    (service, method, path)
    for service, method, path in TENANT
    if re.search(r"\{(?!ns)", path) and (method, tail(path)) not in NAMED
]
EVERY = [(service, method, path) for service in ("queue", "dag") for method, path in routes(service)]
BATCH = ["enqueue", "ack", "nack", "extend", "revive", "cancel", "items/states", "items/attempts"]


class Tenancy:
    """Both services with the tokens of two tenants, and what the owner has."""

    def __init__(self, tokens: dict[str, str], queue: QueueHost, dag: DagWorld, watcher: Any, dump: str) -> None:
        self.tokens = tokens
        self.clients = {"queue": queue.client, "dag": dag.http}
        self._watcher = watcher
        self._dump = dump
        self.things: Things = {}

    async def call(self, who: str | None, service: str, method: str, path: str, namespace: str) -> httpx.Response:
        """One documented call, aimed at the owner's things through a namespace."""
        bodies = QUEUE_BODIES if service == "queue" else DAG_BODIES
        short = tail(path)
        made = bodies.get((method, short))
        if made is None and method in ("post", "put"):
            raise AssertionError(f"write down a body for {method} {path} of the {service} service")
        for name in ("dag", "operation", "shard", "key", "schedule", "workflow", "update"):
            path = path.replace(f"{{{name}}}", str(self.things.get(name, 0)))
        path = path.replace("{ns}", namespace).replace("{item_id}", self.things["ready"]) + QUERIES.get(short, "")
        headers = {} if who is None else {"Authorization": f"Bearer {self.tokens[who]}"}
        body = None if made is None else made(self.things)
        return await self.clients[service].request(method, path, json=body, headers=headers)

    async def dump(self) -> dict[str, list[str]]:
        """Every row of every shard that says what exists and how it stands, in one round trip."""
        found: dict[str, list[str]] = {}
        for table, row in await self._watcher.fetch(self._dump):
            found.setdefault(table, []).append(row)
        return {table: sorted(rows) for table, rows in found.items()}


async def _dump_of(watcher: Any) -> str:
    """A statement that finds every row of every shard; who owns a shard is no tenant's."""
    tables = await watcher.fetch(
        "SELECT format('%I.%I', schemaname, relname) FROM pg_stat_user_tables "
        "WHERE schemaname ~ '^(queue|dag)_' AND relname NOT IN ('shard_owner', 'owner')"
    )
    assert len(tables) > 50
    return " UNION ALL ".join(f"SELECT '{table}', t::text FROM {table} AS t" for (table,) in tables)


@pytest.fixture(scope="module")
async def tenancy(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Tenancy]:
    """The owner's items in every state, an operation and a DAG; the stranger has nothing."""
    file = tmp_path_factory.mktemp("tenants") / "tokens"
    tokens = {}
    lines = []
    scopes = sorted(SCOPES - {"dag"})
    for who, allowed in ((OWNER, scopes), (STRANGER, scopes), (NOBODY, [])):
        namespace = STRANGER if who == NOBODY else who
        tokens[who], line = make_token([namespace], allowed, None)
        lines.append(line)
    file.write_text("\n".join(lines))
    database = await databases.create(queue_shards=2, dag_shards=1)
    async with queue_host(database, HEADGATE_TOKENS_FILE=file) as queue:
        dag = DagWorld(database, FakeQueue(), HEADGATE_TOKENS_FILE=file)
        watcher = await asyncpg.connect(database.dsn)
        made = Tenancy(tokens, queue, dag, watcher, await _dump_of(watcher))
        await _furnish(made, queue)
        # What is on its way to the queue would leave while a test looks.
        await dag.settle()
        yield made
        await watcher.close()
        await dag.close()
    await databases.drop(database)


async def _furnish(made: Tenancy, queue: QueueHost) -> None:
    headers = {"Authorization": f"Bearer {made.tokens[OWNER]}"}
    for who in (OWNER, STRANGER):
        admin = {"Authorization": f"Bearer {made.tokens[who]}"}
        answer = await queue.client.put(f"/v1/namespaces/{who}", json={}, headers=admin)
        assert answer.is_success, answer.text
    api = Api(queue, OWNER)
    api.headers = headers
    things = made.things
    things["leased"] = await api.enqueue_one("t")
    things["token"] = (await api.dequeue_one("t"))["lease_token"]
    dying = await api.enqueue_one("t")
    held = await api.dequeue_one("t")
    await api.results("nack", {"items": [{"id": dying, "lease_token": held["lease_token"], "final": True}]})
    things["dead"] = dying
    things["ready"] = await api.enqueue_one("t")
    things["disabled"] = await api.enqueue_one("t", disabled=True)
    answer = await api.post("operations", {"kind": "cancel", "filter": {"topic": "none"}, "dry_run": False})
    assert answer.is_success, answer.text
    things["operation"] = answer.json()["id"]
    body = {
        "nodes": [{"key": "a", "topic": "t"}, {"key": "b", "topic": "t", "upstream": ["a"], "external": ["go"]}]
    }
    answer = await made.clients["dag"].post(f"/v1/namespaces/{OWNER}/dags", json=body, headers=headers)
    assert answer.is_success, answer.text
    things["dag"], things["key"], things["schedule"] = answer.json()["id"], "seen", "nightly"
    for path, body in ((f"dags/{things['dag']}/values/seen", {"value": 1}), ("schedules/nightly", SCHEDULE)):
        answer = await made.clients["dag"].put(f"/v1/namespaces/{OWNER}/{path}", json=body, headers=headers)
        assert answer.is_success, answer.text
    body = {"type": "order", "id": "order-17"}
    answer = await made.clients["dag"].post(f"/v1/namespaces/{OWNER}/workflows", json=body, headers=headers)
    assert answer.is_success, answer.text
    things["workflow"] = "order-17"


async def changing_nothing(tenancy: Tenancy, routes: Iterable[tuple[str, str, str]]) -> AsyncIterator[Any]:
    """Each route in turn. No call of theirs may have changed a row; where it is one that could, it is named."""
    before = await tenancy.dump()
    for route in routes:
        yield route
        if route[1] != "get":
            assert await tenancy.dump() == before, route
    assert await tenancy.dump() == before


async def test_another_tenants_namespace_is_not_there(tenancy: Tenancy) -> None:
    async for service, method, path in changing_nothing(tenancy, TENANT):
        answer = await tenancy.call(STRANGER, service, method, path, OWNER)
        unknown = await tenancy.call(STRANGER, service, method, path, "never-made")

        assert answer.status_code == unknown.status_code == 404, (method, path, answer.text)
        assert answer.json() == unknown.json()


async def test_another_tenants_object_is_not_there_in_ones_own_namespace(tenancy: Tenancy) -> None:
    async for service, method, path in changing_nothing(tenancy, OBJECT):
        answer = await tenancy.call(STRANGER, service, method, path, STRANGER)

        if tail(path) in LOGS:
            assert answer.json()["items"] == [], path
        else:
            assert answer.status_code == 404, (method, path, answer.text)
        assert OWNER not in answer.text, (method, path)


@pytest.mark.parametrize("verb", BATCH)
async def test_another_tenants_ids_in_a_batch_are_unknown(tenancy: Tenancy, verb: str) -> None:
    kept = ("item", "ready", "deferred", "parked", "lease", "dedup", "ended")
    before = {name: rows for name, rows in (await tenancy.dump()).items() if name.endswith(kept)}

    answer = await tenancy.call(STRANGER, "queue", "post", f"/v1/namespaces/{{ns}}/{verb}", STRANGER)

    assert answer.status_code in (200, 201), answer.text
    found = answer.json().get("results", answer.json().get("items"))
    assert all(entry["status"] in ("not_found", "refused") for entry in found), found
    after = {name: rows for name, rows in (await tenancy.dump()).items() if name.endswith(kept)}
    assert after == before


async def test_without_a_token_nothing_is_answered(tenancy: Tenancy) -> None:
    async for service, method, path in changing_nothing(tenancy, EVERY):
        answer = await tenancy.call(None, service, method, path, OWNER)

        assert answer.status_code == 401, (method, path, answer.text)
        assert "www-authenticate" in answer.headers


async def test_a_token_without_the_scope_is_refused(tenancy: Tenancy) -> None:
    async for service, method, path in changing_nothing(
        tenancy, [route for route in EVERY if route[2] not in OWN]
    ):
        answer = await tenancy.call(NOBODY, service, method, path, STRANGER)

        assert answer.status_code == 403, (method, path, answer.text)


async def test_the_list_of_namespaces_holds_ones_own(tenancy: Tenancy) -> None:
    answer = await tenancy.call(STRANGER, "queue", "get", "/v1/namespaces", STRANGER)

    assert [entry["namespace"] for entry in answer.json()["items"]] == [STRANGER]


async def test_another_tenants_schedule_stays_beside_ones_own_of_that_name(tenancy: Tenancy) -> None:
    path = "/v1/namespaces/{ns}/schedules/{schedule}"
    before = (await tenancy.call(OWNER, "dag", "get", path, OWNER)).json()

    made = await tenancy.call(STRANGER, "dag", "put", path, STRANGER)
    deleted = await tenancy.call(STRANGER, "dag", "delete", path, STRANGER)
    again = await tenancy.call(STRANGER, "dag", "delete", path, STRANGER)

    assert (made.status_code, deleted.json()["deleted"], again.json()["deleted"]) == (201, True, False)
    assert (await tenancy.call(OWNER, "dag", "get", path, OWNER)).json() == before
