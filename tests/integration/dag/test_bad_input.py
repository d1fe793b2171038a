"""Input that must be refused: with the right status and code, nothing written, and never a 500.

The numbers are those of the bad-input matrix in docs/errors.md. All of it by the routes, and again by
the short way of the hot verbs.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.contract.bad_bodies import NOT_JSON
from tests.support.dag_world import BASE, DagWorld, specs

UNKNOWN = "01890000-0000-7000-8000-000000000000"
VERBS = (
    "nodes",
    "nodes/cancel",
    "dependencies",
    "resolve",
    "release",
    "close",
    "pause",
    "resume",
    "cancel",
    "retry",
    "skip",
)
READS = (
    "",
    "/nodes",
    "/node?key=a",
    "/node/inputs?key=a",
    "/node/output?key=a",
    "/wait?timeout_s=0",
    "/events",
    "/graph",
)
GOOD: dict[str, dict[str, Any]] = {
    "nodes": {"nodes": [{"key": "n", "topic": "t"}]},
    "dependencies": {"dependencies": [{"upstream": "a", "downstream": "b"}]},
    "resolve": {"external": [{"node": "a", "name": "x"}]},
    "skip": {"nodes": ["b"]},
    "nodes/cancel": {"nodes": ["b"]},
}
NESTED: Any = 0
for _ in range(40):
    NESTED = [NESTED]


@pytest.fixture(params=["routes", "short way"])
async def world(world: DagWorld, request: pytest.FixtureRequest) -> DagWorld:
    """The service behind one of its two ways in."""
    if request.param == "short way":
        transport = httpx.ASGITransport(app=world.app.state.hot, raise_app_exceptions=False)
        world.http = httpx.AsyncClient(transport=transport, base_url="http://localhost")
    return world


@pytest.fixture
async def dag(world: DagWorld) -> AsyncIterator[str]:
    """A DAG of two nodes, which must be unchanged after the test."""
    made = await world.create({"a": [], "b": ["a"]}, name="untouched")
    await world.loops.relay.idle()
    before = await _everything(world)
    yield made
    assert await _everything(world) == before


async def _everything(world: DagWorld) -> list[Any]:
    return [
        await world.rows(f"SELECT count(*) FROM {table}")
        for table in ("dag", "node", "node_spec", "edge", "external", "adding", "spread", "scan")
    ] + [await world.rows("SELECT * FROM dag"), await world.rows("SELECT no, state, generation FROM node")]


async def post(world: DagWorld, path: str, body: Any, **headers: str) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers.setdefault("Content-Type", "application/json")
    return await world.http.post(f"{BASE}{path}", content=content, headers=headers)


def refused(answer: httpx.Response, status: int, code: str, pointer: str | None = None) -> None:
    asked = (answer.request.url, answer.request.content[:300])
    assert answer.status_code == status, (asked, answer.text)
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert (problem["code"], problem["status"], problem["outcome"]) == (code, status, "none"), (asked, problem)
    if pointer is not None:
        assert pointer in [error["pointer"] for error in problem["errors"]], (asked, problem)


async def test_b14_what_is_not_json_is_400(world: DagWorld, dag: str) -> None:
    for body in NOT_JSON.values():
        refused(await post(world, "", body), 400, "not_json")
        refused(await post(world, f"/{dag}/pause", body), 400, "not_json")


async def test_b13_an_absent_body_is_an_empty_object(world: DagWorld, dag: str) -> None:
    for verb in ("nodes", "nodes/cancel", "dependencies", "resolve", "skip"):
        answer = await world.http.post(f"{BASE}/{dag}/{verb}")
        refused(answer, 422, "invalid")
    assert (await world.http.post(f"{BASE}/{dag}/resume")).status_code == 200


async def test_b15_deep_json_is_400(world: DagWorld, dag: str) -> None:
    body = {"nodes": [{"key": "n", "topic": "t", "payload": NESTED}]}
    refused(await post(world, f"/{dag}/nodes", body), 400, "too_deep")
    refused(await post(world, "", b"[" * 100_000), 400, "too_deep")


async def test_b19_duplicate_names_are_400(world: DagWorld, dag: str) -> None:
    refused(await post(world, f"/{dag}/skip", b'{"nodes": ["a"], "nodes": ["b"]}'), 400, "duplicate_name")


async def test_b28_sizes(world: DagWorld, dag: str) -> None:
    large = {"nodes": [{"key": "ok", "topic": "t"}, {"key": "n", "topic": "t", "payload": "x" * 65_536}]}
    refused(await post(world, f"/{dag}/nodes", large), 413, "too_large", "/nodes/1/payload")
    large["nodes"][1]["payload"] = "ü" * 32_768
    refused(await post(world, f"/{dag}/nodes", large), 413, "too_large", "/nodes/1/payload")
    meta = {"nodes": [{"key": "n", "topic": "t", "metadata": {"m": "x" * 1_024}}]}
    refused(await post(world, f"/{dag}/nodes", meta), 413, "too_large", "/nodes/0/metadata")
    refused(await post(world, "", {"metadata": {"m": "x" * 1_024}}), 413, "too_large", "/metadata")
    data = {"external": [{"node": "a", "name": "x", "data": "x" * 65_536}]}
    refused(await post(world, f"/{dag}/resolve", data), 413, "too_large", "/external/0/data")
    refused(await post(world, "", b'{"name": "' + b"x" * 17_000_000 + b'"}'), 413, "too_large")


async def test_b30_encodings_and_media_types(world: DagWorld, dag: str) -> None:
    encoded = await post(world, f"/{dag}/pause", {}, **{"Content-Encoding": "gzip"})
    refused(encoded, 415, "unsupported_media_type")
    for media in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        answer = await post(world, f"/{dag}/pause", {}, **{"Content-Type": media})
        refused(answer, 415, "unsupported_media_type")


NODE = {"key": "n", "topic": "t"}
BAD_NODES: list[tuple[dict[str, Any], str]] = [
    *(
        ({**NODE, "key": key}, "/nodes/0/key")
        for key in ("", "x" * 1_025, "ü" * 513, "a\nb", "a\x00", "\x7f", 7, None)
    ),
    *(({**NODE, "topic": topic}, "/nodes/0/topic") for topic in ("", "x" * 129, "a b", "é", "../\n", 7)),
    *(({**NODE, "priority": value}, "/nodes/0/priority") for value in (2**31, -(2**31) - 1, True, "7", 7.0)),
    *(({**NODE, "upstream": value}, "/nodes/0/upstream") for value in (["x"] * 1_001, "a")),
    *(({**NODE, "external": value}, "/nodes/0/external") for value in (["x"] * 1_001, "a")),
    ({**NODE, "external": [""]}, "/nodes/0/external/0"),
    ({**NODE, "upstream": ["a\u0000"]}, "/nodes/0/upstream/0"),
    *(
        ({**NODE, "trigger": value}, "/nodes/0/trigger")
        for value in ("", "all", None, "any_succeeded", "any_failed")
    ),
    *(({**NODE, "max_attempts": value}, "/nodes/0/max_attempts") for value in (-1, 2**31, True)),
    *(({**NODE, "lease_s": value}, "/nodes/0/lease_s") for value in (0, 0.5, 43_201, "60")),
    *(({**NODE, "delay_s": value}, "/nodes/0/delay_s") for value in (-1, 1e12, "5")),
    *(({**NODE, "ttl_s": value}, "/nodes/0/ttl_s") for value in (0, -1, 1e18)),
    ({**NODE, "ttl_s": 5, "delay_s": 10}, "/nodes/0/ttl_s"),
    ({**NODE, "backoff": {"jitter": 2.0}}, "/nodes/0/backoff/jitter"),
    ({**NODE, "pass_outputs": 1}, "/nodes/0/pass_outputs"),
    ({**NODE, "metadata": []}, "/nodes/0/metadata"),
    ({**NODE, "prioirty": 1}, "/nodes/0/prioirty"),
    ({**NODE, "id": UNKNOWN}, "/nodes/0/id"),
]


async def test_b21_to_b27_nodes_that_cannot_be(world: DagWorld, dag: str) -> None:
    for node, pointer in BAD_NODES:
        refused(await post(world, f"/{dag}/nodes", {"nodes": [node]}), 422, "invalid", pointer)
        refused(await post(world, "", {"nodes": [node]}), 422, "invalid", pointer)


async def test_b21_half_a_surrogate_pair_is_422(world: DagWorld, dag: str) -> None:
    body = b'{"nodes": [{"key": "n", "topic": "t", "payload": "\\ud800"}]}'
    refused(await post(world, f"/{dag}/nodes", body), 422, "invalid")


async def test_b23_dags_that_cannot_be(world: DagWorld, dag: str) -> None:
    for body, pointer in (
        ({"name": ""}, "/name"),
        ({"key": "x" * 1_025}, "/key"),
        ({"name": "x" * 201}, "/name"),
        ({"open": "yes"}, "/open"),
        ({"on_failure": "stop"}, "/on_failure"),
        ({"deadline_s": 0}, "/deadline_s"),
        ({"deadline_s": "5"}, "/deadline_s"),
        ({"deadline_s": 1e300}, "/deadline_s"),
        ({"metadata": "x"}, "/metadata"),
        ({"state": "running"}, "/state"),
        ({"nodes": [NODE] * 1_001}, "/nodes"),
        ({"dependencies": [{"upstream": "a", "downstream": "b"}] * 1_001}, "/dependencies"),
    ):
        refused(await post(world, "", body), 422, "invalid", pointer)


async def test_b43_empty_and_overlong_batches(world: DagWorld, dag: str) -> None:
    for verb, field in (
        ("nodes", "nodes"),
        ("dependencies", "dependencies"),
        ("resolve", "external"),
        ("skip", "nodes"),
    ):
        [element] = GOOD[verb][field]
        refused(await post(world, f"/{dag}/{verb}", {field: []}), 422, "invalid", f"/{field}")
        refused(await post(world, f"/{dag}/{verb}", {field: [element] * 1_001}), 422, "invalid", f"/{field}")


async def test_b53_cycles_of_any_length_are_422(world: DagWorld, dag: str) -> None:
    long = {f"k{i}": [f"k{(i - 1) % 1_000}"] for i in range(1_000)}
    for nodes in ({"s": ["s"]}, long):
        refused(await post(world, "", {"nodes": specs(nodes)}), 422, "cycle")
    refused(
        await post(world, f"/{dag}/dependencies", {"dependencies": [{"upstream": "b", "downstream": "b"}]}),
        422,
        "cycle",
    )


async def test_b54_repeats_are_no_ops_and_conflicts_409(world: DagWorld) -> None:
    dag = await world.create({"a": [], "b": ["a"]})
    again = await world.add(dag, {"a": [], "b": ["a"]})
    assert [node["state"] for node in again["nodes"]] == ["released", "blocked"]
    await world.link(dag, ("a", "b"), ("a", "b"))
    body = {"nodes": [{"key": "b", "topic": "other"}]}
    refused(await post(world, f"/{dag}/nodes", body), 409, "node_exists", "/nodes/0/key")


async def test_b55_unknown_and_foreign_nodes(world: DagWorld, dag: str) -> None:
    edge = {"dependencies": [{"upstream": "zz", "downstream": "b"}]}
    refused(await post(world, f"/{dag}/dependencies", edge), 422, "unknown_node", "/dependencies/0/upstream")
    refused(await post(world, f"/{dag}/skip", {"nodes": ["zz"]}), 422, "unknown_node", "/nodes/0")
    refused(await post(world, f"/{dag}/retry", {"nodes": ["zz"]}), 422, "unknown_node", "/nodes/0")


@pytest.mark.parametrize("dag_id", [UNKNOWN, UNKNOWN[:-3] + "fff", "x", "7", "%00", "a" * 300, UNKNOWN.upper()])
async def test_dags_that_are_not_there_are_404(world: DagWorld, dag: str, dag_id: str) -> None:
    for verb in VERBS:
        refused(await post(world, f"/{dag_id}/{verb}", GOOD.get(verb, {})), 404, "not_found")
    for path in READS:
        refused(await world.http.get(f"{BASE}/{dag_id}{path}"), 404, "not_found")


async def test_b6_another_namespaces_dag_is_404(world: DagWorld, dag: str) -> None:
    theirs = f"/v1/namespaces/other/dags/{dag}"
    for verb in VERBS:
        refused(await world.http.post(f"{theirs}/{verb}", json=GOOD.get(verb, {})), 404, "not_found")
    for path in READS:
        async with asyncio.timeout(30):  # one that is not refused may be a stream
            refused(await world.http.get(f"{theirs}{path}"), 404, "not_found")
    assert (await world.http.get("/v1/namespaces/other/dags")).json() == {"items": [], "next_cursor": None}


async def test_b10_system_names_are_closed(world: DagWorld, dag: str) -> None:
    refused(await world.http.post("/v1/namespaces/_dag/dags", json={}), 403, "forbidden")
    refused(await post(world, f"/{dag}/nodes", {"nodes": [{"key": "n", "topic": "_acks"}]}), 403, "forbidden")
    refused(await world.http.get("/v1/namespaces/a%20b/dags"), 422, "invalid")


async def test_b11_cursors_of_other_lists_are_422(world: DagWorld, dag: str) -> None:
    page = (await world.http.get(f"{BASE}/{dag}/nodes?limit=1")).json()
    assert page["next_cursor"]
    for path in (
        f"/{dag}/nodes?state=blocked&cursor={page['next_cursor']}",
        f"/{dag}/nodes?cursor=junk",
        f"/{dag}/nodes?cursor=%00",
        f"?cursor={page['next_cursor']}",
        "?cursor=",
    ):
        refused(await world.http.get(BASE + path), 422, "invalid", "/cursor")


async def test_b11_b45_the_list_of_shards_is_a_list_like_others(world: DagWorld) -> None:
    for query in ("limit=0", "limit=1001", "limit=x", "cursor=", "cursor=-1", "cursor=AAAA"):
        refused(await world.http.get(f"/v1/shards?{query}"), 422, "invalid")


async def test_b45_parameters_that_cannot_be(world: DagWorld, dag: str) -> None:
    for path in (
        "?limit=0",
        "?limit=1001",
        "?limit=x",
        "?state=blocked",
        "?name=%00",
        "/{dag}/nodes?state=intent",
        "/{dag}/wait?timeout_s=31",
        "/{dag}/wait?timeout_s=-1",
        "/{dag}/wait?timeout_s=nan",
        "/{dag}/graph?format=svg",
        "/{dag}/node",
        "/{dag}/node?key=",
        "/{dag}/node?key=a%00",
        "/{dag}/node/inputs?key=%00",
        "/{dag}/events?after=x",
    ):
        refused(await world.http.get(BASE + path.replace("{dag}", dag)), 422, "invalid")


async def test_a_node_that_is_not_there_is_404(world: DagWorld, dag: str) -> None:
    refused(await world.http.get(f"{BASE}/{dag}/node?key=zz"), 404, "not_found")
    refused(await world.http.get(f"{BASE}/{dag}/node/inputs?key=zz"), 404, "not_found")


async def test_b62_keys_and_values_are_data(world: DagWorld) -> None:
    keys = [
        "'; DROP TABLE node;--",
        "$1 %s \\",
        "//pkg/tcpip:stack",
        "g++",
        "\u202eabc",
        "\U0001f600",
        "a\u0301",
        "á",
    ]
    dag = await world.create([{"key": key, "payload": key, "external": [key]} for key in keys], name=keys[0])
    assert set(await world.states(dag)) == set(keys)
    for key in keys:
        assert (await world.node(dag, key))["external"] == [{"name": key, "resolved": False, "failed": False}]
    found = await world.http.get(BASE, params={"name": keys[0]})
    assert [item["id"] for item in found.json()["items"]] == [dag]


async def test_payloads_of_any_kind_survive(world: DagWorld) -> None:
    payload = ["nul \x00", 2**70, -(2**63), 1e308, 0.1, 12345678901234567890123]
    await world.create([{"key": "a", "payload": payload}])
    await world.settle()
    assert world.queue.item_of("a").body["payload"] == payload
