"""Why something does not go on: the sentence names the cause, and the chain leads to its root."""

import time
from typing import Any

import pytest

from tests.support.apps import Service

NS = "/v1/namespaces/default"
MISSING = "01a20a31-8e51-7116-8ffe-76f1a3967000"


async def why(service: Service, path: str = "/why", **query: str) -> dict[str, Any]:
    answer = await service.client.get(f"{NS}{path}", params=query)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def post(service: Service, path: str, body: dict[str, Any]) -> Any:
    answer = await service.client.post(f"{NS}/{path}", json=body)
    assert answer.status_code < 300, answer.text
    return answer.json()


def kinds(found: dict[str, Any]) -> list[str]:
    return [cause["kind"] for cause in found["causes"]]


def long_ago(service: Service) -> None:
    """As if the process had been there for an hour, and nobody had asked for anything since."""
    service.app.app.state.process.dispatch.asked._since_s = time.monotonic() - 3_600


async def test_a_mistyped_topic_is_said_to_be_asked_for_by_nobody_and_names_are_near(
    queue_service: Service,
) -> None:
    long_ago(queue_service)
    await post(queue_service, "enqueue", {"items": [{"topic": "emial"}, {"topic": "email"}]})
    await post(queue_service, "dequeue", {"topics": [{"topic": "email", "count": 1}]})
    found = await why(queue_service, topic="emial")
    assert kinds(found) == ["unasked"] and found["causes"][0]["near"] == ["email"]
    assert found["sentence"] == "No consumer has asked for it in 60 minutes. Did you mean email?"
    assert kinds(await why(queue_service, topic="email")) == ["working"]
    await post(queue_service, "enqueue", {"items": [{"topic": "reports"}]})
    alone = await why(queue_service, topic="reports")
    assert "has asked for it in 60 minutes: start one (`headgate worker`)" in alone["sentence"]
    empty = await why(queue_service, topic="emali")
    assert kinds(empty)[0] == "empty" and "email" in empty["causes"][0]["near"]
    await post(queue_service, "dequeue", {"topics": [{"topic": "emial", "count": 1}]})
    await post(queue_service, "dequeue", {"topics": [{"topic": "emali", "count": 1}]})
    known = await why(queue_service, topic="emali")
    assert kinds(known) == ["empty"] and known["causes"][0]["near"] == [], "somebody asks for it, so it is meant"
    await post(queue_service, "enqueue", {"items": [{"topic": "emall"}]})
    found = await why(queue_service, topic="emall")
    assert "emali" in found["causes"][0]["near"], "that one is asked for, and holds nothing now"


async def test_names_that_are_near_are_the_tenants_own(queue_service: Service) -> None:
    long_ago(queue_service)
    asked = {"topics": [{"topic": "payroll", "count": 1}], "wait_s": 0}
    await queue_service.client.post("/v1/namespaces/other/dequeue", json=asked)
    await post(queue_service, "enqueue", {"items": [{"topic": "payrol"}]})
    assert (await why(queue_service, topic="payrol"))["causes"][0]["near"] == []


async def test_topics_that_are_paused_or_over_their_limit_say_so(queue_service: Service) -> None:
    await queue_service.client.put(NS, json={"in_flight_max": 1})
    await post(queue_service, "enqueue", {"items": [{"topic": "mail"}] * 3})
    await post(queue_service, "dequeue", {"topics": [{"topic": "mail", "count": 1}]})
    found = await why(queue_service, topic="mail")
    assert "in_flight_max" in kinds(found) and "1 leased, of 1" in found["sentence"]
    await post(queue_service, "topics/pause", {"topic": "mail"})
    assert (await why(queue_service, topic="mail"))["sentence"] == "It is paused; 2 are ready."


async def test_a_namespace_says_what_holds_it_up_the_worst_first(queue_service: Service) -> None:
    assert (await why(queue_service))["sentence"] == "It holds nothing."
    await queue_service.client.put(NS, json={"in_flight_max": 1, "items_max": 6})
    topics = ["mail", "mail", "mail", "paused", "lonely", "lonely"]
    await post(queue_service, "enqueue", {"items": [{"topic": topic} for topic in topics]})
    [leased] = (await post(queue_service, "dequeue", {"topics": [{"topic": "mail", "count": 1}]}))["items"]
    await post(queue_service, "topics/pause", {"topic": "paused"})
    long_ago(queue_service)
    await post(queue_service, "dequeue", {"topics": [{"topic": "mail", "count": 1}]})
    found = await why(queue_service)
    assert found["about"] == "namespace" and found["name"] == "default"
    assert kinds(found) == ["in_flight_max", "items_max", "unasked", "paused"]
    assert "no consumer has asked for lonely in 60 minutes; 2 are ready" in found["sentence"]
    nack = {"id": leased["id"], "lease_token": leased["lease_token"], "final": True}
    await post(queue_service, "nack", {"items": [nack]})
    await post(queue_service, "topics/resume", {"topic": "paused"})
    found = await why(queue_service)
    assert kinds(found)[-1] == "dead" and "1 has died, most of them of mail" in found["causes"][-1]["text"]
    assert (await queue_service.client.get("/v1/namespaces/other/why")).json()["sentence"] == "It holds nothing."


async def test_items_say_what_they_wait_for(queue_service: Service) -> None:
    long_ago(queue_service)
    made = await post(
        queue_service,
        "enqueue",
        {
            "items": [
                {"topic": "a"},
                {"topic": "b", "delay_s": 300},
                {"topic": "c", "disabled": True},
                {"topic": "d"},
            ]
        },
    )
    ready, delayed, disabled, dying = [each["id"] for each in made["results"]]
    assert kinds(await why(queue_service, item=ready)) == ["ready", "unasked"]
    assert (await why(queue_service, item=delayed))["sentence"].startswith("It is due in ")
    assert kinds(await why(queue_service, item=disabled)) == ["disabled"]
    [leased] = (await post(queue_service, "dequeue", {"topics": [{"topic": "d", "count": 1}]}))["items"]
    assert kinds(await why(queue_service, item=dying)) == ["leased"]
    nack = {"id": dying, "lease_token": leased["lease_token"], "final": True, "error": "a\nno <b>address</b>"}
    await post(queue_service, "nack", {"items": [nack]})
    found = await why(queue_service, item=dying)
    assert kinds(found) == ["dead", "redrive"] and "no <b>address</b>" in found["sentence"]


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ({"topic": "a", "item": MISSING}, 422),
        ({"item": MISSING}, 404),
        ({"item": "x"}, 404),
        ({"topic": " "}, 422),
    ],
)
async def test_what_cannot_be_asked(queue_service: Service, query: dict[str, str], status: int) -> None:
    assert (await queue_service.client.get(f"{NS}/why", params=query)).status_code == status


async def test_a_shard_that_is_away_is_the_first_cause(
    queue_service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = next(iter(queue_service.app.app.state.process.shards)).breaker
    refuses = property(lambda breaker: breaker is away or breaker.state != "closed")
    monkeypatch.setattr(type(away), "refuses", refuses)
    found = await why(queue_service, topic="mail")
    assert kinds(found)[0] == "shards_away" and found["sentence"].startswith("Shard 0 does not answer")


async def test_a_node_leads_to_the_root_of_it(dag_service: Service) -> None:
    nodes: list[dict[str, Any]] = [{"key": "a", "topic": "t", "external": ["approval"]}]
    nodes += [{"key": key, "topic": "t", "upstream": [above]} for above, key in ("ab", "bc", "cd")]
    dag = (await post(dag_service, "dags", {"name": "release", "nodes": nodes}))["id"]
    found = await why(dag_service, f"/dags/{dag}/why", key="d")
    assert [(cause["kind"], cause["node"]) for cause in found["causes"]] == [
        ("node", "d"),
        ("node", "c"),
        ("node", "b"),
        ("external", "a"),
    ]
    said = f"a waits for the external approval (`headgate dag resolve {dag} a approval`)"
    assert found["sentence"] == f"d waits because {said}; 4 nodes of the DAG are blocked."
    whole = await why(dag_service, f"/dags/{dag}/why")
    assert kinds(whole) == ["kept"] and said in whole["sentence"]
    assert whole["sentence"].startswith("1 node is kept by something outside of the graph")
    await post(dag_service, f"dags/{dag}/resolve", {"external": [{"node": "a", "name": "approval"}]})
    assert kinds(await why(dag_service, f"/dags/{dag}/why", key="a")) in (["queued"], ["released"])
    await post(dag_service, f"dags/{dag}/pause", {})
    assert "pause" in kinds(await why(dag_service, f"/dags/{dag}/why"))
    await post(dag_service, f"dags/{dag}/cancel", {})
    assert (await dag_service.client.get(f"{NS}/dags/{dag}/why", params={"key": "none"})).status_code == 404
    assert (await dag_service.client.get(f"{NS}/dags/{MISSING}/why")).status_code == 404


async def test_a_held_dag_and_one_that_has_ended(dag_service: Service) -> None:
    dag = (await post(dag_service, "dags", {"hold": True, "nodes": [{"key": "a", "topic": "t"}]}))["id"]
    assert "held" in (await why(dag_service, f"/dags/{dag}/why"))["sentence"]
    assert kinds(await why(dag_service, f"/dags/{dag}/why", key="a")) == ["hold"]
    await post(dag_service, f"dags/{dag}/skip", {"nodes": ["a"]})
    await post(dag_service, f"dags/{dag}/release", {})
    found = await why(dag_service, f"/dags/{dag}/why")
    assert kinds(found) == ["succeeded"] and found["sentence"] == "It has ended: succeeded."
    assert kinds(await why(dag_service, f"/dags/{dag}/why", key="a")) == ["skipped"]
