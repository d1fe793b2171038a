"""`GET /v1/history` of both services: what was sampled, of all processes, and what happened meanwhile."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from headgate._ids import new_id
from tests.support import apps
from tests.support.apps import Service
from tests.support.databases import Database

QUICK = {"history_point_s": 0.1, "metrics_interval_s": 0.1, "history_span_s": 60.0}


@pytest.fixture
async def quick(database: Database, redis_url: str) -> AsyncIterator[Service]:
    async with apps.queue_service(database, redis_url, **QUICK) as service:
        yield service


async def asked(service: Service, **query: Any) -> dict[str, Any]:
    answer = await service.client.get("/v1/history", params=query)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def last(values: list[float | None]) -> float | None:
    return next((value for value in reversed(values) if value is not None), None)


async def seen(service: Service, wanted: Any, **query: Any) -> dict[str, Any]:
    """The answer, once it shows what is wanted: samples are taken beside."""
    async with asyncio.timeout(20):
        while True:
            found = await asked(service, **query)
            if wanted(found):
                return found
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("by", ["all", "shard"])
async def test_lines_of_whole_shards_are_no_namespaces(quick: Service, by: str) -> None:
    answer = await quick.client.get("/v1/history", params={"metrics": "ready", "by": by, "namespace": "default"})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid")
    assert (await asked(quick, metrics="ready", by=by, namespace="default", topic="t"))["series"] == []


async def test_items_of_all_shards_of_each_and_of_topics(quick: Service) -> None:
    # Growth is what a sample has more than the one before it; what came before the first is none.
    await seen(quick, lambda found: bool(found["series"]), metrics="enqueued_per_s", span_s=60, step_s=0.1)
    items = [{"id": new_id(shard), "topic": "mail"} for shard in (0, 1, 1)]
    await quick.client.post("/v1/namespaces/default/enqueue", json={"items": items})
    query = {"metrics": "ready,enqueued_per_s", "span_s": 60, "step_s": 0.1}

    def both(found: dict[str, Any]) -> bool:
        lines = {line["metric"]: line["values"] for line in found["series"]}
        grown = [value for value in lines.get("enqueued_per_s", []) if value]
        return last(lines.get("ready", [])) == 3 and bool(grown)

    found = await seen(quick, both, **query)
    assert {line["shard"] for line in found["series"]} == {None}
    assert found["points"] == 600 and all(len(line["values"]) == 600 for line in found["series"])
    by_shard = await asked(quick, metrics="ready", by="shard", span_s=60, step_s=0.1)
    assert [last(line["values"]) for line in by_shard["series"]] == [1, 2, 0, 0]
    topics = await asked(quick, metrics="ready", by="topic", span_s=60, step_s=0.1)
    assert [(line["namespace"], line["topic"], last(line["values"])) for line in topics["series"]] == [
        ("default", "mail", 3)
    ]


async def test_two_processes_tell_as_one(quick: Service, database: Database, redis_url: str) -> None:
    async with apps.queue_service(database, redis_url, **QUICK) as other:
        for service, topic in ((quick, "a"), (other, "b")):
            items = [{"topic": topic} for _ in range(5)]
            await service.client.post("/v1/namespaces/default/enqueue", json={"items": items})

        def whole(found: dict[str, Any]) -> bool:
            return last(found["series"][0]["values"]) == 10 if found["series"] else False

        found = await seen(quick, whole, metrics="ready", span_s=60, step_s=0.1)
        assert len(found["processes"]) == 2 and found["silent"] == 0
        told = await asked(other, metrics="ready", span_s=60, step_s=0.1)
        [start] = [mark for mark in told["marks"] if mark["kind"] == "start"]
        assert all(name in start["text"] for name in found["processes"]), "a deploy is one mark"


async def test_an_opened_breaker_and_its_end_are_marks(quick: Service) -> None:
    breaker = next(iter(quick.app.app.state.process.shards)).breaker
    breaker._move("open")
    breaker._move("half_open")
    breaker._move("open")
    breaker.succeeded()
    found = await asked(quick, metrics="up", shard=0)
    assert [mark["text"] for mark in found["marks"] if mark["kind"] == "breaker"] == [
        "does not answer: calls are refused at once",
        "answers again",
    ]
    assert [
        mark for mark in (await asked(quick, metrics="up", shard=1))["marks"] if mark["kind"] == "breaker"
    ] == []


async def test_the_dag_service_tells_of_its_shards(dag_service: Service) -> None:
    await dag_service.client.post(
        "/v1/namespaces/default/dags", json={"nodes": [{"key": "a", "topic": "t"}], "hold": True}
    )
    await dag_service.app.state.orchestrator.shard_health.step()
    await dag_service.app.state.watch.sampling.step()
    found = await asked(dag_service, metrics="running_dags,up", step_s=5)
    assert {line["metric"] for line in found["series"]} == {"running_dags", "up"}


async def test_what_cannot_be_asked_is_refused(quick: Service) -> None:
    for query, pointer in (
        ({"metrics": "nothing"}, "/metrics"),
        ({}, "/metrics"),
        ({"metrics": "ready", "by": "item"}, "/by"),
        ({"metrics": "ready", "span_s": "nan"}, "/span_s"),
        ({"metrics": "ready", "step_s": "0"}, "/step_s"),
        ({"metrics": "ready", "shard": "9999"}, "/shard"),
        ({"metrics": "ready", "topic": "a b"}, "/topic"),
        ({"metrics": "ready", "token": "x"}, "/token"),
    ):
        answer = await quick.client.get("/v1/history", params=query)
        assert answer.status_code == 422, query
        assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]


async def test_sampling_asks_no_shard(quick: Service) -> None:
    process = quick.app.app.state.process
    gauges = [loop for loop in quick.app.app.state.loops if loop.name == "gauges"]
    for loop in quick.app.app.state.loops:
        if loop.name != "history":
            await loop.stop()
    assert len(gauges) == 1
    before = [shard.pool.statements for shard in process.shards]
    for _ in range(50):
        await quick.app.app.state.watch.sampling.step()
    assert [shard.pool.statements for shard in process.shards] == before
