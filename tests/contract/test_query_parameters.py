"""Query parameters that a call does not know: refused like unknown fields, by every call of both services."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI

from services.dag.app import create_app as dag_app
from services.dag.settings import DagSettings
from services.queue.app import create_app as queue_app
from services.queue.settings import QueueSettings
from tests.support.queue_host import Api

SHARDS = "postgresql://nobody@127.0.0.1:1/none#1"
QUEUE: FastAPI = queue_app(QueueSettings(shards=SHARDS)).app
DAG: FastAPI = dag_app(DagSettings(shards=SHARDS))


def calls(app: FastAPI) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Method, path and description of every call below /v1."""
    for path, methods in app.openapi()["paths"].items():
        if path.startswith("/v1/"):
            yield from ((method, path, described) for method, described in methods.items())


def named(app: FastAPI) -> list[tuple[str, str]]:
    return [(method, path) for method, path, _ in calls(app)]


async def refusal(client: Any, method: str, path: str, query: str) -> dict[str, Any]:
    url = re.sub(r"\{[a-z_]+\}", "default", path)
    body = None if method == "get" else {}
    answer = await client.request(method.upper(), f"{url}?{query}", **({} if body is None else {"json": body}))
    problem: dict[str, Any] = answer.json()
    assert (answer.status_code, problem["code"], problem["outcome"]) == (422, "invalid", "none"), answer.text
    return {error["pointer"]: error["detail"] for error in problem["errors"]}


@pytest.mark.parametrize(("method", "path"), named(QUEUE))
async def test_no_call_of_the_queue_ignores_a_parameter(api: Api, method: str, path: str) -> None:
    assert "/surprise" in await refusal(api.host.client, method, path, "surprise=1")


async def test_a_misspelt_parameter_is_told_the_nearest_one(api: Api) -> None:
    told = await refusal(api.host.client, "get", "/v1/namespaces/default/items", "topc=t&stat=dead")
    assert told == {
        "/topc": "there is no such query parameter; did you mean `topic`?",
        "/stat": "there is no such query parameter; did you mean `state`?",
    }


async def test_a_parameter_given_twice_is_refused(api: Api) -> None:
    told = await refusal(api.host.client, "get", "/v1/namespaces/default/items", "topic=a&topic=b")
    assert told == {"/topic": "it is given more than once"}


async def test_an_enqueue_with_a_query_takes_nothing_in(api: Api) -> None:
    path = f"/v1/namespaces/{api.namespace}/enqueue"
    answer = await api.host.client.post(f"{path}?dry_run=1", json={"items": [{"topic": "t"}]})
    assert answer.status_code == 422
    assert (await api.host.client.post(f"{path}?", json={"items": [{"topic": "t"}]})).status_code == 201


@pytest.mark.parametrize("app", [QUEUE, DAG], ids=["queue", "dag"])
def test_every_list_takes_a_limit_and_a_cursor(app: FastAPI) -> None:
    for method, path, described in calls(app):
        content = described["responses"].get("200", {}).get("content", {}).get("application/json", {})
        name = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
        schema = app.openapi()["components"]["schemas"].get(name, {})
        if method == "get" and {"items", "next_cursor"} <= schema.get("properties", {}).keys():
            taken = {parameter["name"] for parameter in described["parameters"] if parameter["in"] == "query"}
            assert {"limit", "cursor"} <= taken, path


@pytest.mark.parametrize("path", ["items", "dead"])
@pytest.mark.parametrize("topic", ["", "a%20b", "%00", "%ff", "x" * 129, "[]"])
async def test_a_topic_that_cannot_be_is_refused_not_answered_as_empty(api: Api, path: str, topic: str) -> None:
    answer = await api.host.client.get(f"/v1/namespaces/default/{path}?topic={topic}")
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid"), answer.text
    assert [error["pointer"] for error in answer.json()["errors"]] == ["/topic"]
