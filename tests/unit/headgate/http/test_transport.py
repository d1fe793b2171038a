"""What is sent again, when, and what never is."""

import random
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from headgate import errors
from headgate._calls import verbs
from headgate._http.transport import AsyncTransport, Endpoints, Exchange, RetryPolicy, SyncTransport
from tests.unit.headgate.fakes import Service, problem

SAFE = verbs.batch(verbs.ACK, "default", [{"id": "a", "lease_token": "b"}])
UNSAFE = verbs.batch(verbs.NACK, "default", [{"id": "a", "lease_token": "b"}])
FINE = {"results": [{"id": "a", "status": "acked"}]}


def sending(
    *answers: Any, retry: RetryPolicy | None = None, token: str | None = None
) -> tuple[SyncTransport, Service, list[float]]:
    left = list(answers)
    service = Service(lambda _method, _path, _body: left.pop(0) if left else FINE)
    slept: list[float] = []
    endpoints = Endpoints("http://queue.test", "http://dag.test/prefix/", token)
    exchange = Exchange(endpoints, retry or RetryPolicy(), random.Random(1))
    return SyncTransport(exchange, service, slept.append), service, slept


@pytest.mark.parametrize(
    "answer",
    [
        lambda: problem(503, "unavailable"),
        lambda: problem(429, "over_quota"),
        lambda: httpx.ConnectError("refused"),
        lambda: httpx.ConnectTimeout("slow"),
        lambda: httpx.PoolTimeout("full"),
    ],
)
@pytest.mark.parametrize("call", [SAFE, UNSAFE])
def test_what_did_nothing_is_sent_again(answer: Callable[[], Any], call: verbs.Call[Any]) -> None:
    transport, service, slept = sending(answer(), answer())
    assert transport.send(call)[0].status == "acked"
    assert len(service.calls) == 3
    assert len(slept) == 2


@pytest.mark.parametrize(
    "answer",
    [
        lambda: problem(503, "unavailable", outcome="unknown"),
        lambda: httpx.Response(502),
        lambda: httpx.Response(503, text="no problem body"),
        lambda: httpx.ReadTimeout("silence"),
        lambda: httpx.ReadError("reset"),
        lambda: httpx.RemoteProtocolError("garbage"),
    ],
)
def test_what_may_have_happened_is_sent_again_only_where_that_is_safe(answer: Callable[[], Any]) -> None:
    transport, service, _ = sending(answer())
    assert transport.send(SAFE)[0].status == "acked"
    transport, service, slept = sending(answer())
    with pytest.raises(errors.HeadgateError) as caught:
        transport.send(UNSAFE)
    assert caught.value.outcome == "unknown"
    assert (len(service.calls), slept) == (1, [])


def test_a_policy_may_leave_what_was_not_answered_in_time() -> None:
    policy = RetryPolicy(timeouts=False)
    transport, service, _ = sending(httpx.ReadTimeout("silence"), retry=policy)
    with pytest.raises(errors.TimedOut):
        transport.send(SAFE)
    assert len(service.calls) == 1
    transport, service, _ = sending(httpx.ReadError("reset"), retry=policy)
    assert transport.send(SAFE)[0].status == "acked"


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 422, 500])
def test_what_another_try_cannot_help_is_not_sent_again(status: int) -> None:
    transport, service, _ = sending(problem(status, "code"))
    with pytest.raises(errors.HeadgateError):
        transport.send(SAFE)
    assert len(service.calls) == 1


def test_waits_grow_are_random_and_bounded() -> None:
    policy = RetryPolicy(attempts_max=7, base_s=1, delay_s_max=4)
    transport, service, slept = sending(*[problem(503, "unavailable")] * 10, retry=policy)
    with pytest.raises(errors.Unavailable):
        transport.send(SAFE)
    assert len(service.calls) == 7
    assert all(0 <= wait <= ceiling for wait, ceiling in zip(slept, [1, 2, 4, 4, 4, 4], strict=True))
    assert len(set(slept)) == 6


def test_retry_after_is_the_least_wait_and_a_long_one_is_the_callers_to_keep() -> None:
    transport, _, slept = sending(problem(429, "over_quota", retry_after=7))
    transport.send(SAFE)
    assert 7 <= slept[0] <= 7.1
    transport, _, slept = sending(problem(429, "over_quota", retry_after=3_600))
    with pytest.raises(errors.OverQuota) as caught:
        transport.send(SAFE)
    assert (caught.value.retry_after_s, slept) == (3_600, [])


def test_a_spent_budget_stops_retries_of_all_calls_until_calls_succeed() -> None:
    down = [problem(503, "unavailable") for _ in range(4)]
    transport, service, _ = sending(*down, retry=RetryPolicy(budget=2))
    for _ in range(2):
        with pytest.raises(errors.Unavailable):
            transport.send(SAFE)
    assert len(service.calls) == 4
    for _ in range(5):
        transport.send(SAFE)
    service.reply = lambda *_: problem(503, "unavailable")
    with pytest.raises(errors.Unavailable):
        transport.send(SAFE)
    assert len(service.calls) == 4 + 5 + 2


@pytest.mark.parametrize(
    "answer",
    [
        lambda: httpx.Response(200, text="<html>"),
        lambda: httpx.Response(200, json=[]),
        lambda: httpx.Response(200, json={"results": [{}]}),
        lambda: httpx.Response(302, headers={"location": "/elsewhere"}),
        lambda: httpx.Response(404, text="nginx"),
    ],
)
def test_an_answer_from_something_else_is_a_bad_answer(answer: Callable[[], httpx.Response]) -> None:
    transport, _, _ = sending(answer())
    with pytest.raises(errors.BadAnswer):
        transport.send(SAFE)


def test_requests_carry_host_token_length_and_an_encoded_path() -> None:
    transport, _, _ = sending(token="secret")
    call = verbs.call(verbs.DAG_NODE, verbs.as_is, ns="n", dag="a/b?", query={"key": "g++ &", "x": None})
    request = transport.exchange.request(call)
    assert str(request.url) == "http://dag.test/prefix/v1/namespaces/n/dags/a%2Fb%3F/node?key=g%2B%2B+%26"
    assert request.headers["host"] == "dag.test"
    assert request.headers["authorization"] == "Bearer secret"
    assert request.headers["content-length"] == "0"
    assert transport.exchange.request(SAFE).headers["content-length"] == str(len(SAFE.body or b""))


def test_the_service_may_hold_an_answer_back_as_long_as_the_call_allows() -> None:
    transport, _, _ = sending()
    call = verbs.dequeue("n", {"t": 1}, wait_s=30, lease_s=None, worker=None)
    assert transport.exchange.request(call).extensions["timeout"]["read"] == 50


@pytest.mark.parametrize(
    ("url", "token"), [("localhost:8080", None), ("http://x", "a\nb"), ("http://x", "\u00e9")]
)
def test_settings_that_cannot_work_are_refused_at_once(url: str, token: str | None) -> None:
    with pytest.raises(ValueError, match=r"URL|token"):
        Endpoints(url, "http://x", token)


@pytest.mark.parametrize("value", [float("nan"), {1}, "\ud800", object()])
def test_what_has_no_json_form_is_refused_before_it_is_sent(value: Any) -> None:
    with pytest.raises(errors.Invalid, match="cannot be sent as JSON"):
        verbs.encode({"payload": value})


def test_the_verbs_are_those_of_the_contract() -> None:
    told = {
        (verb.service, verb.method, verb.path) for verb in vars(verbs).values() if isinstance(verb, verbs.Verb)
    }
    names = sum(isinstance(thing, verbs.Verb) for thing in vars(verbs).values())
    assert len(told) == names > 0
    unsafe = {name for name, verb in vars(verbs).items() if isinstance(verb, verbs.Verb) and not verb.safe}
    queue = {"ENQUEUE", "DEQUEUE", "NACK", "TOPIC_PURGE", "TOPIC_REDRIVE", "OPERATION_BEGIN"}
    assert unsafe == queue | {"DAG_CREATE", "DAG_RETRY"}


def refused(item: str, code: str = "overloaded", outcome: str = "none") -> dict[str, str]:
    return {"id": item, "status": "refused", "code": code, "outcome": outcome}


def ids_of(service: Any) -> list[list[str]]:
    return [[item["id"] for item in body["items"]] for _, _, body in service.calls]


@pytest.mark.parametrize("code", ["overloaded", "shard_unavailable"])
def test_elements_that_were_refused_for_now_are_sent_again_by_themselves(code: str) -> None:
    answers = [
        {"results": [{"id": "a", "status": "acked"}, refused("b", code), refused("c", code)]},
        {"results": [refused("b", code), {"id": "c", "status": "acked"}]},
        {"results": [{"id": "b", "status": "lease_lost"}]},
    ]
    transport, service, slept = sending(*(httpx.Response(200, json=answer) for answer in answers))
    found = transport.send(verbs.batch(verbs.NACK, "default", [{"id": one} for one in "abc"]))
    assert [(one.id, one.status) for one in found] == [("a", "acked"), ("b", "lease_lost"), ("c", "acked")]
    assert ids_of(service) == [["a", "b", "c"], ["b", "c"], ["b"]]
    assert len(slept) == 2


@pytest.mark.parametrize("code", ["key_reused", "over_quota", "id_too_old", "storage_full"])
def test_elements_that_another_try_cannot_help_stay_refused(code: str) -> None:
    transport, service, _ = sending(httpx.Response(200, json={"results": [refused("a", code)]}))
    assert transport.send(verbs.batch(verbs.ACK, "default", [{"id": "a"}]))[0].code == code
    assert len(service.calls) == 1


def test_elements_of_which_nobody_knows_are_sent_again_only_where_that_is_safe() -> None:
    for verb, calls in ((verbs.ACK, 2), (verbs.NACK, 1)):
        unknown = httpx.Response(200, json={"results": [refused("a", "shard_unavailable", "unknown")]})
        done = httpx.Response(200, json={"results": [{"id": "a", "status": "acked"}]})
        transport, service, _ = sending(unknown, done)
        transport.send(verbs.batch(verb, "default", [{"id": "a"}]))
        assert len(service.calls) == calls


def test_only_items_that_are_known_by_an_id_or_key_are_enqueued_again() -> None:
    items = [{"id": "a"}, {"idempotency_key": "k"}, {"topic": "t"}, {"id": "m"}]
    first = {"results": [refused(one) for one in ("a", "k", "n", "m")]}
    then = {"results": [{"id": one, "status": "enqueued"} for one in ("a", "k")]}
    transport, service, _ = sending(httpx.Response(200, json=first), httpx.Response(200, json=then))
    found = transport.send(verbs.enqueue("default", items, movable={"m"}))
    assert [one.status for one in found] == ["enqueued", "enqueued", "refused", "refused"]
    assert [body["items"] for _, _, body in service.calls][1] == items[:2]


def test_refused_elements_are_given_up_within_the_policy() -> None:
    never = [httpx.Response(200, json={"results": [refused("a")]}) for _ in range(20)]
    for policy, calls in (
        (RetryPolicy(attempts_max=3), 3),
        (RetryPolicy(budget=0.5), 1),
        (RetryPolicy(elements=False), 1),
    ):
        transport, service, _ = sending(*never, retry=policy)
        assert transport.send(verbs.batch(verbs.ACK, "default", [{"id": "a"}]))[0].status == "refused"
        assert len(service.calls) == calls


def test_an_element_whose_second_answer_was_lost_is_not_called_undone() -> None:
    first = httpx.Response(200, json={"results": [refused("a"), {"id": "b", "status": "requeued"}]})
    transport, _, _ = sending(first, httpx.ReadError("cut"))
    found = transport.send(verbs.batch(verbs.NACK, "default", [{"id": "a"}, {"id": "b"}]))
    assert [(one.status, one.outcome) for one in found] == [("refused", "unknown"), ("requeued", None)]


async def test_coroutines_send_refused_elements_again_too() -> None:
    answers = [{"results": [refused("a")]}, {"results": [{"id": "a", "status": "acked"}]}]
    service = Service(lambda *_: answers.pop(0))
    slept: list[float] = []

    async def sleep(delay_s: float) -> None:
        slept.append(delay_s)

    exchange = Exchange(Endpoints("http://queue.test", "http://dag.test"), RetryPolicy(), random.Random(1))
    found = await AsyncTransport(exchange, service, sleep).send(SAFE)
    assert (found[0].status, len(service.calls), len(slept)) == ("acked", 2, 1)
