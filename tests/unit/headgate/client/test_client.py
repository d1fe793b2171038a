"""Both clients on a scripted service: ids that make retries harmless, chunks, pages, and what is sent."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

import headgate
from headgate import AsyncClient, Client, errors, wire
from headgate._calls import flows
from headgate._http.transport import RetryPolicy
from headgate._ids import new_id, shard_of
from tests.unit.headgate import unasync
from tests.unit.headgate.fakes import Service, enqueued, problem, shards

HASTY = RetryPolicy(base_s=0)


def client_of(reply: Any, **settings: Any) -> tuple[Client, Service]:
    service = Service(reply)
    return Client(queue_url="http://q", dag_url="http://d", transport=service, retry=HASTY, **settings), service


def queue(method: str, path: str, body: Any) -> Any:
    if path.startswith("/v1/shards"):
        return shards(3, 9)
    return httpx.Response(201, json=enqueued(body))


def leased(item_id: str = "i", **more: Any) -> dict[str, Any]:
    times = {"lease_expires_at": "2030-01-01T00:00:00Z", "enqueued_at": "2030-01-01T00:00:00+00:00"}
    return {"id": item_id, "topic": "t", "attempt": 1, "lease_token": f"token-{item_id}", **times, **more}


def test_items_get_ids_of_one_shard_for_a_while_in_their_order() -> None:
    client, service = client_of(queue)
    now_s = 0.0
    client._shards = flows.Shards(lambda: now_s)
    for call in range(8):
        now_s = call // 2 * flows.SHARD_TURN_S
        client.enqueue([{"topic": "t", "payload": number} for number in range(50)])
    assert len(service.asked("/v1/shards")) == 1
    used = []
    for body in service.asked("/enqueue"):
        ids = [item["id"] for item in body["items"]]
        assert ids == sorted(set(ids))
        assert len({shard_of(item_id) for item_id in ids}) == 1
        used.append(shard_of(ids[0]))
    assert used in ([3, 3, 9, 9] * 2, [9, 9, 3, 3] * 2)


def test_a_call_whose_answer_was_lost_is_sent_again_with_the_same_ids() -> None:
    lost = [httpx.ReadError("reset")]
    client, service = client_of(
        lambda method, path, body: lost.pop() if "enqueue" in path and lost else queue(method, path, body)
    )
    assert client.enqueue_one("t", 1).status == "enqueued"
    first, second = service.asked("/enqueue")
    assert first == second


def test_ids_keys_and_affinities_of_the_caller_are_left_alone() -> None:
    client, service = client_of(queue)
    mine = new_id(5)
    items: list[headgate.Item] = [
        {"topic": "t", "id": mine},
        {"topic": "t", "idempotency_key": "k"},
        {"topic": "t", "affinity": "a"},
    ]
    client.enqueue(items)
    assert service.asked("/enqueue") == [{"items": items}]
    assert service.asked("/v1/shards") == []
    assert "id" not in items[1]


def test_items_without_ids_are_not_sent_again_when_nobody_knows() -> None:
    client, service = client_of(lambda *_: httpx.ReadError("reset"))
    with pytest.raises(errors.ConnectionFailed):
        client.enqueue([{"topic": "t", "affinity": "a"}])
    with pytest.raises(errors.ConnectionFailed):
        client.enqueue([{"topic": "t"}], make_ids=False)
    assert len(service.asked("/enqueue")) == 2


def test_items_that_are_texts_are_sent_as_they_are_and_again_where_that_may_help() -> None:
    mine = [new_id(3) for _ in range(1_001)]
    texts = [f'{{"topic": "t", "payload": "\u00fc {{", "id": "{item_id}"}}' for item_id in mine]
    failures = [
        httpx.ReadError("reset"),
        lambda body: {
            "results": [
                *enqueued(body)["results"][:-1],
                {"status": "refused", "code": "shard_unavailable", "outcome": "none"},
            ]
        },
    ]

    def reply(method: str, path: str, body: Any) -> Any:
        failure = failures.pop(0) if failures else enqueued
        return failure(body) if callable(failure) else failure

    client, service = client_of(reply)
    results = client.enqueue_encoded(texts)
    assert [(result.id, result.status) for result in results] == [(item_id, "enqueued") for item_id in mine]
    sent = service.asked("/enqueue")
    assert [len(body["items"]) for body in sent] == [1_000, 1_000, 1, 1]
    assert sent[0]["items"][:1] == [json.loads(texts[0])]
    assert sent[2]["items"] == [json.loads(texts[999])], "the one that was refused for now"
    assert service.asked("/v1/shards") == []


@pytest.mark.parametrize("status", [403, 404])
def test_where_shards_are_hidden_the_service_makes_the_ids(status: int) -> None:
    hidden = problem(status, "hidden")
    client, service = client_of(lambda m, p, b: hidden if "shards" in p else queue(m, p, b))
    client.enqueue([{"topic": "t"}])
    client.enqueue([{"topic": "t"}])
    assert service.asked("/enqueue") == [{"items": [{"topic": "t"}]}] * 2
    assert len(service.asked("/v1/shards")) == 1


def test_shards_that_are_not_well_are_named_only_where_there_is_no_other() -> None:
    states = {1: "open", 2: "draining", 3: "unowned", 4: "degraded"}
    listed = {"items": [{"shard": number, "state": state} for number, state in states.items()]}
    client, service = client_of(lambda m, p, b: listed if "shards" in p else queue(m, p, b))
    client.enqueue_one("t")
    assert shard_of(service.asked("/enqueue")[0]["items"][0]["id"]) == 4


def test_an_item_refused_for_its_shard_is_tried_on_another_and_keeps_its_place() -> None:
    def reply(method: str, path: str, body: Any) -> Any:
        if "shards" in path:
            return shards(3) if len(service.asked("/v1/shards")) == 1 else shards(9)
        refused = {"status": "refused", "code": "shard_unavailable", "outcome": "none"}
        return {
            "results": [
                {"id": item["id"], **refused} if shard_of(item["id"]) == 3 else {"id": item["id"], "status": "ok"}
                for item in body["items"]
            ]
        }

    client, service = client_of(reply)
    mine = new_id(3)
    first, second = client.enqueue([{"topic": "t", "id": mine}, {"topic": "t"}])
    assert (first.id, first.status) == (mine, "refused")
    assert (second.status, shard_of(second.id or "")) == ("ok", 9)
    assert len(service.asked("/enqueue")[1]["items"]) == 1


def test_large_batches_go_in_calls_of_a_thousand_and_answer_in_order() -> None:
    client, service = client_of(lambda _m, _p, body: {"results": [{"id": i, "status": "x"} for i in body["ids"]]})
    ids = [str(number) for number in range(2_001)]
    assert [result.id for result in client.cancel(ids)] == ids
    assert [len(body["ids"]) for body in service.asked("/cancel")] == [1_000, 1_000, 1]
    assert client.cancel([]) == []
    assert len(service.calls) == 3


def test_heavy_batches_are_split_by_their_size() -> None:
    client, service = client_of(
        lambda _m, _p, body: {"results": [{"id": item["id"], "status": "revived"} for item in body["items"]]}
    )
    heavy = "x" * 250_000
    found = client.revive([{"id": str(number), "inputs": heavy} for number in range(100)])
    assert [result.id for result in found] == [str(number) for number in range(100)]
    assert all(len(json.dumps(body)) < wire.BODY_BYTES_MAX for body in service.asked("/revive"))
    assert len(service.calls) > 1


def test_an_error_half_way_tells_what_was_done_before() -> None:
    def reply(_method: str, _path: str, body: Any) -> Any:
        if len(service.calls) == 2:
            return problem(422, "invalid")
        return {"results": [{"id": i, "status": "cancelled"} for i in body["ids"]]}

    client, service = client_of(reply)
    with pytest.raises(errors.Invalid) as caught:
        client.cancel(["x"] * 1_500)
    assert len(caught.value.results) == 1_000


def test_dequeue_asks_for_what_it_was_told_and_parses_what_came() -> None:
    dag = {"id": "d", "node": "//a:b", "generation": 2}
    client, service = client_of(lambda *_: {"items": [leased(payload={"a": 1}, dag=dag, later=True)]})
    (item,) = client.dequeue({"a": 2, "b": 3}, wait_s=1.5, lease_s=10, worker="w", namespace="_dag")
    assert service.calls == [
        (
            "POST",
            "/v1/namespaces/_dag/dequeue",
            {
                "topics": [{"topic": "a", "count": 2}, {"topic": "b", "count": 3}],
                "wait_s": 1.5,
                "lease_s": 10,
                "worker": "w",
            },
        )
    ]
    assert (item.payload, item.metadata, item.headers) == ({"a": 1}, {}, {})
    assert item.lease_expires_at == datetime(2030, 1, 1, tzinfo=UTC)
    assert item.dag == ("d", "//a:b", 2)


def test_singular_forms_send_batches_of_one() -> None:
    def reply(_method: str, path: str, _body: Any) -> Any:
        return {"items": []} if "dequeue" in path else {"results": [{"id": "i", "status": "done"}]}

    client, service = client_of(reply)
    item = headgate.Leased.parse(leased())
    assert client.dequeue_one("t") is None
    assert client.ack_one(item).status == "done"
    client.ack_one(item, {"n": 1})
    client.nack_one(item, error="no", costs_attempt=False)
    token = {"id": "i", "lease_token": "token-i"}
    assert service.asked("/ack") == [{"items": [token]}, {"items": [{**token, "output": {"n": 1}}]}]
    assert service.asked("/nack") == [{"items": [{**token, "error": "no", "costs_attempt": False}]}]


def test_lists_are_read_to_their_end_or_to_the_limit() -> None:
    def reply(_method: str, path: str, _body: Any) -> Any:
        page = {"items": [{"topic": "a"}], "next_cursor": "c 1"}
        return page if "cursor" not in path else {"items": [{"topic": "b"}], "next_cursor": None}

    client, service = client_of(reply)
    assert [topic.topic for topic in client.topics()] == ["a", "b"]
    assert service.calls[1][1] == "/v1/namespaces/default/topics?limit=1000&cursor=c+1"
    endless, service = client_of(queue)
    service.reply = lambda *_: {
        "items": [{"id": "d", "namespace": "n", "state": "running", "created_at": "2030-01-01T00:00:00Z"}],
        "next_cursor": "x",
    }
    assert len(endless.dags(state="running", limit=3)) == 3
    assert [path.split("?")[1] for _, path, _ in service.calls] == [
        "state=running&limit=3",
        "state=running&limit=2&cursor=x",
        "state=running&limit=1&cursor=x",
    ]


def test_settings_come_from_the_environment_unless_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADGATE_QUEUE_URL", "http://queue.env/")
    monkeypatch.setenv("HEADGATE_NAMESPACE", "env")
    monkeypatch.setenv("HEADGATE_TOKEN", "t")
    client = Client(dag_url="http://dag.given")
    assert client.namespace == "env"
    assert client.endpoints.queue_url == "http://queue.env/"
    assert (client.endpoints.dag_url, client.endpoints.token) == ("http://dag.given", "t")
    assert Client(namespace="given").namespace == "given"


async def test_the_async_client_does_the_same() -> None:
    service = Service(queue)
    async with AsyncClient(queue_url="http://q", transport=service, retry=HASTY) as client:
        results = await client.enqueue([{"topic": "t"}] * 1_001)
    assert len(results) == 1_001
    assert [len(body["items"]) for body in service.asked("/enqueue")] == [1_000, 1]


def test_how_far_a_namespace_is_exported_is_a_time_or_nothing() -> None:
    answers = [{"until": None}, {"until": "2030-01-01T00:00:00Z"}]
    client, service = client_of(lambda _method, _path, _body: answers.pop(0))
    assert client.exported_until() is None
    assert client.exported_until() == datetime(2030, 1, 1, tzinfo=UTC)
    assert [path for _, path, _ in service.calls] == ["/v1/namespaces/default/exports/mark"] * 2


@pytest.mark.parametrize("name", unasync.NAMES)
def test_the_blocking_client_is_made_from_the_async_one(name: str) -> None:
    target = unasync.PACKAGE / "blocking" / name
    assert target.read_text() == unasync.made_from(name), "run tests/unit/headgate/unasync.py"


def test_the_public_names_are_sorted_and_there() -> None:
    assert headgate.__all__ == sorted(headgate.__all__)
    assert all(hasattr(headgate, name) for name in headgate.__all__)
    imported = {
        name
        for name, thing in vars(headgate).items()
        if not name.startswith("_") and getattr(thing, "__module__", "").startswith("headgate")
    }
    assert imported == set(headgate.__all__)


def test_an_operation_whose_answer_was_lost_is_begun_under_the_same_id() -> None:
    lost = [httpx.ReadError("cut")]

    def reply(_method: str, path: str, body: Any) -> Any:
        if "shards" in path:
            return shards(5)
        if lost:
            raise lost.pop()
        return {
            "id": body["id"],
            "namespace": "default",
            "kind": "purge",
            "filter": {},
            "state": "done",
            "total": 0,
            "scanned": 0,
            "changed": 0,
            "skipped": 0,
            "requested_at": "2030-01-01T00:00:00Z",
            "shards": [],
        }

    client, service = client_of(reply)
    begun = client.begin_operation("purge", topic="t")
    first, second = service.asked("/operations")
    assert first == second and first["id"] == begun.id and shard_of(begun.id) == 5


REFUSALS = [
    ("over_quota", headgate.OverQuota),
    ("key_reused", headgate.Conflict),
    ("id_too_old", headgate.Conflict),
    ("id_unavailable", headgate.Conflict),
    ("id_in_future", headgate.Invalid),
    ("storage_full", headgate.Unavailable),
    ("of_tomorrow", headgate.HeadgateError),
]


@pytest.mark.parametrize(("code", "kind"), REFUSALS)
def test_one_item_that_is_refused_is_an_error_and_of_a_batch_a_result(
    code: str, kind: type[headgate.HeadgateError]
) -> None:
    """Who enqueues one item rarely looks at what comes back: a quota must not lose it in silence."""
    refused = {"status": "refused", "code": code, "outcome": "unknown"}

    def reply(_method: str, _path: str, body: Any) -> Any:
        return {"results": [{"id": item.get("id"), **refused} for item in body["items"]]}

    client, _ = client_of(reply)
    item = headgate.Leased.parse(leased("a"))
    for call in (
        lambda: client.enqueue_one("t", 1, idempotency_key="k"),
        lambda: client.ack_one(item),
        lambda: client.nack_one(item),
    ):
        with pytest.raises(kind) as raised:
            call()
        assert (raised.value.code, raised.value.outcome) == (code, "unknown")
        assert type(raised.value) is kind
    assert client.enqueue([{"topic": "t", "idempotency_key": "k"}])[0].status == "refused"


def test_one_element_where_a_list_belongs_is_refused_with_advice() -> None:
    client, service = client_of(queue)
    for call in (
        lambda: client.enqueue({"topic": "t"}),  # type: ignore[arg-type]
        lambda: client.cancel("an id"),
        lambda: client.ack("an item"),  # type: ignore[arg-type]
    ):
        with pytest.raises(TypeError, match="give a list"):
            call()
    assert service.calls == []


def test_a_timedelta_is_told_to_be_seconds() -> None:
    client, _ = client_of(queue)
    with pytest.raises(errors.Invalid, match="durations are seconds, like 90"):
        client.enqueue_one("t", delay_s=timedelta(minutes=1.5))  # type: ignore[arg-type]
