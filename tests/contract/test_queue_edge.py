"""The edge of the service: health, metrics, unknown routes, and an OpenAPI document that is true."""

import re
from typing import Any

import pytest

from headgate import wire
from tests.support.databases import Database
from tests.support.ports import free_port
from tests.support.queue_host import Api, QueueHost, ShardClock

TABLE = {
    ("put", "/v1/namespaces/{ns}"),
    ("get", "/v1/namespaces"),
    ("get", "/v1/namespaces/{ns}"),
    ("get", "/v1/namespaces/{ns}/topics"),
    ("post", "/v1/namespaces/{ns}/enqueue"),
    ("post", "/v1/namespaces/{ns}/dequeue"),
    ("post", "/v1/namespaces/{ns}/ack"),
    ("post", "/v1/namespaces/{ns}/nack"),
    ("post", "/v1/namespaces/{ns}/extend"),
    ("post", "/v1/namespaces/{ns}/revive"),
    ("post", "/v1/namespaces/{ns}/cancel"),
    ("get", "/v1/namespaces/{ns}/items/{}"),
    ("get", "/v1/namespaces/{ns}/items"),
    ("post", "/v1/namespaces/{ns}/topics/pause"),
    ("post", "/v1/namespaces/{ns}/topics/resume"),
    ("post", "/v1/namespaces/{ns}/topics/purge"),
    ("post", "/v1/namespaces/{ns}/topics/redrive"),
    ("get", "/v1/shards"),
    ("get", "/v1/shards/{}"),
    ("get", "/livez"),
    ("get", "/readyz"),
    ("get", "/metrics"),
}


async def document(host: QueueHost) -> dict[str, Any]:
    answer = await host.client.get("/openapi.json")
    assert answer.status_code == 200
    found: dict[str, Any] = answer.json()
    return found


def operations(found: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [(method, path, op) for path, item in found["paths"].items() for method, op in item.items()]


def references(value: Any) -> set[str]:
    if isinstance(value, dict):
        own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*(references(part) for part in value.values()))
    return set().union(*(references(part) for part in value)) if isinstance(value, list) else set()


async def test_the_document_holds_every_call_of_the_contract(host: QueueHost) -> None:
    found = await document(host)
    listed = {(method, re.sub(r"\{(?!ns\})\w+\}", "{}", path)) for method, path, _ in operations(found)}

    assert found["openapi"].startswith("3.1")
    assert found["info"]["title"]
    assert listed >= TABLE


async def test_the_document_is_sound(host: QueueHost) -> None:
    found = await document(host)
    for reference in references(found):
        place: Any = found
        for part in reference.removeprefix("#/").split("/"):
            place = place[part.replace("~1", "/").replace("~0", "~")]
    names = [op["operationId"] for _, _, op in operations(found)]
    assert len(set(names)) == len(names)
    for method, path, op in operations(found):
        declared = {part["name"] for part in op.get("parameters", []) if part["in"] == "path"}
        assert declared == set(re.findall(r"\{(\w+)\}", path)), path
        assert op["description"], path
        assert all(code == "default" or code.isdigit() for code in op["responses"]), path
        assert "application/problem+json" in op["responses"]["default"]["content"], path
        if method in ("post", "put"):
            assert "$ref" in op["requestBody"]["content"]["application/json"]["schema"], path
        for code, response in op["responses"].items():
            if code.isdigit() and path not in ("/metrics",):
                assert response["content"]["application/json"]["schema"], path


async def test_the_document_shows_the_wire_models(host: QueueHost) -> None:
    schemas = (await document(host))["components"]["schemas"]

    assert set(wire.Item.model_fields) == set(schemas["Item"]["properties"])
    assert schemas["Item"]["additionalProperties"] is False
    assert schemas["Item"]["required"] == ["topic"]
    for name, model in (("Problem", wire.Problem), ("NackRequest", wire.NackRequest), ("Leased", wire.Leased)):
        assert set(model.model_fields) == set(schemas[name]["properties"])


async def test_answers_have_the_documented_shape(api: Api) -> None:
    """What the service sends is read back by the models that the document shows."""
    for fields in ({"ack_topic": "d", "metadata": {"a": 1}}, {"disabled": True}, {"delay_s": 9}):
        answer = await api.post("enqueue", {"items": [{"topic": "t", **fields}]})
        wire.Results[wire.EnqueueResult].model_validate(answer.json())
    reply = wire.DequeueReply.model_validate((await api.post("dequeue", {"topics": [{"topic": "t"}]})).json())
    held = [{"id": item.id, "lease_token": item.lease_token} for item in reply.items]
    for verb, model in (("extend", wire.ExtendResult), ("nack", wire.NackResult), ("ack", wire.AckResult)):
        answer = await api.post(verb, {"items": held})
        wire.Results[model].model_validate(answer.json())  # type: ignore[valid-type]
    wire.Page[wire.ItemView].model_validate((await api.get("items")).json())
    wire.Page[wire.TopicStats].model_validate((await api.get("topics")).json())
    wire.Page[wire.Namespace].model_validate((await api.host.client.get("/v1/namespaces")).json())
    wire.Page[wire.ShardHealth].model_validate((await api.host.client.get("/v1/shards")).json())


async def test_health_routes(host: QueueHost) -> None:
    assert (await host.client.get("/livez")).status_code == 200
    ready = await host.client.get("/readyz")
    assert ready.status_code == 200
    assert set(ready.json()["shards"].values()) == {"up"}
    for path in ("/livez", "/readyz"):  # balancers ask with HEAD
        head = await host.client.head(path)
        assert (head.status_code, head.headers["content-type"]) == (200, "application/json")


async def test_the_documentation_needs_no_other_server(host: QueueHost) -> None:
    docs = await host.client.get("/docs")
    assert (docs.status_code, docs.headers["content-type"].split(";")[0]) == (200, "text/html")
    assert "https://" not in docs.text
    parts = re.findall(r'(?:src|href)="([^"]+)"', docs.text)
    assert len(parts) == 3
    for part in parts:
        assert (await host.client.get(part)).status_code == 200


async def test_metrics_name_no_tenant(api: Api) -> None:
    await api.enqueue_one("very-secret-topic", payload="very-secret-payload")
    answer = await api.host.client.get("/metrics")

    assert answer.headers["content-type"].startswith("text/plain")
    assert "headgate_enqueued_total{" in answer.text
    assert "very-secret" not in answer.text
    assert api.namespace not in answer.text.replace("namespace", "")


async def test_no_shard_is_not_ready_but_alive(own_host: QueueHost, database: Database) -> None:
    away = f"postgresql://postgres@127.0.0.1:{free_port()}/none#1"
    lost = QueueHost(database, ShardClock(None), shards=away)
    try:
        answer = await lost.client.get("/readyz")
        assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
        assert answer.headers["retry-after"].isdigit()
        assert (await lost.client.get("/livez")).status_code == 200
    finally:
        await lost.close()


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "not_found"),
        ("GET", "/v1/namespaces/a/b/c", 404, "not_found"),
        ("POST", "/v1/namespaces/a%2Fb/enqueue", 404, "not_found"),
        ("POST", "/v1/namespaces/default/explode", 404, "not_found"),
        ("GET", "/v1/namespaces/default/enqueue", 405, "method_not_allowed"),
        ("DELETE", "/v1/namespaces/default", 405, "method_not_allowed"),
        ("POST", "/v1/shards", 405, "method_not_allowed"),
        ("TRACE", "/v1/shards", 405, "method_not_allowed"),
        ("BREW", "/v1/namespaces/default/topics", 405, "method_not_allowed"),
    ],
)
async def test_what_is_not_there_is_a_problem_too(
    host: QueueHost, method: str, path: str, status: int, code: str
) -> None:
    answer = await host.client.request(method, path)

    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["code"] == code
    assert answer.json()["outcome"] == "none"
    assert answer.json()["status"] == status
    if status == 405:
        assert answer.headers["allow"]


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("default", "GET, PUT"),
        ("default/enqueue", "POST"),
        ("default/items", "GET"),
        ("default/operations", "GET, POST"),
    ],
)
async def test_a_refused_method_is_told_all_that_are_allowed(host: QueueHost, path: str, methods: str) -> None:
    for method in ("DELETE", "OPTIONS", "HEAD"):
        answer = await host.client.request(method, f"/v1/namespaces/{path}")
        assert (answer.status_code, answer.headers["allow"]) == (405, methods)
