"""A dequeue that settles what its caller has done: results as by ack and nack, before anything is handed out."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from services.queue.model import Result
from shared.admission.connection_priority import Urgency, current_urgency
from shared.admission.delay import overloaded
from shared.errors import ShardUnavailable
from tests.contract.bad_bodies import TOKEN
from tests.support.queue_host import AT_ONCE, Api

TABLES = ("item", "ready", "deferred", "parked", "lease", "ended", "dedup")


def held(leased: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """The element that acks or nacks an item."""
    return {"id": leased["id"], "lease_token": leased["lease_token"], **fields}


async def settle(
    api: Api, topic: str = "t", count: int = 10, *, acks: Any = None, nacks: Any = None, **fields: Any
) -> dict[str, Any]:
    """The answer of a dequeue that settles."""
    body = {"topics": [{"topic": topic, "count": count}], "settle": {"acks": acks, "nacks": nacks}, **fields}
    answer = await api.post("dequeue", body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def leases(api: Api, count: int, topic: str = "t", **fields: Any) -> list[dict[str, Any]]:
    """So many items, over all shards, leased one by one: a token each."""
    for number in range(count):
        await api.enqueue_one(topic, id=api.new_id(number % 3), **fields)
    return [(await api.dequeue(topic))[0] for _ in range(count)]


def statuses(answer: dict[str, Any]) -> tuple[list[str], list[str]]:
    results = answer["results"]
    return [one["status"] for one in results["acks"]], [one["status"] for one in results["nacks"]]


async def test_acks_and_nacks_are_answered_and_items_handed_out(api: Api) -> None:
    done, back, dead = await leases(api, 3, ack_topic="done")
    fresh = await api.enqueue_one("t")

    answer = await settle(
        api,
        acks=[held(done, output={"n": 1})],
        nacks=[held(back, delay_s=50, metadata={"try": 2}), held(dead, final=True, error="no")],
    )

    assert answer["results"] == {
        "acks": [{"id": done["id"], "status": "acked"}],
        "nacks": [{"id": back["id"], "status": "requeued"}, {"id": dead["id"], "status": "dead"}],
    }
    assert [item["id"] for item in answer["items"]] == [fresh]
    told = {payload["id"]: payload for payload in await api.completions("done")}
    assert (told[done["id"]]["outcome"], told[done["id"]]["output"]) == ("acked", {"n": 1})
    assert (told[dead["id"]]["outcome"], told[dead["id"]]["error"]) == ("dead", "no")
    assert (await api.item(back["id"]))["metadata"] == {"try": 2}
    assert await api.state(back["id"]) == "delayed"


@pytest.mark.parametrize("fast", [True, False], ids=["judged quickly", "by its model"])
async def test_each_element_is_answered_as_by_ack_and_nack(api: Api, fast: bool) -> None:
    """Whatever became of an item; a second topic has the body judged by its documented model."""
    acked, cancelled, expired, other = await leases(api, 4, lease_s=100, backoff={"base_s": 1000})
    [strange] = await leases(api, 1, "elsewhere", lease_s=2, backoff=AT_ONCE)
    await api.ack(acked)
    await api.cancel(cancelled["id"])
    await api.host.pass_time(3)
    foreign = Api(api.host)
    await foreign.enqueue_one("t")
    not_ours = await foreign.dequeue_one("t")
    acks = [held(one) for one in (acked, cancelled, strange, expired, expired, not_ours)]
    acks += [{"id": "x", "lease_token": ""}, {"id": api.new_id(1), "lease_token": TOKEN}]
    acks.append({**held(other), "lease_token": TOKEN})
    topics = [{"topic": "none", "count": 1}, *([] if fast else [{"topic": "none2", "count": 1}])]

    answer = (await api.post("dequeue", {"topics": topics, "settle": {"acks": acks}})).json()

    expected = [
        "already_acked",
        "cancelled",
        "lease_lost",
        "acked",
        "already_acked",
        *["not_found"] * 3,
        "lease_lost",
    ]
    assert [one["status"] for one in answer["results"]["acks"]] == expected
    assert [one["id"] for one in answer["results"]["acks"]] == [ack["id"] for ack in acks]
    assert answer["results"]["nacks"] == []
    again = await settle(api, "none", nacks=[held(other, final=True), *acks])
    nacked = ["dead", "lease_lost", "cancelled", "lease_lost", "lease_lost", "lease_lost", *["not_found"] * 3]
    assert statuses(again) == ([], [*nacked, "lease_lost"])
    assert await api.state(strange["id"]) == "ready"
    assert await foreign.state(not_ours["id"]) == "leased"


async def test_what_was_nacked_may_be_handed_out_by_the_same_call(api: Api) -> None:
    [leased] = await leases(api, 1)

    answer = await settle(api, nacks=[held(leased, costs_attempt=False)])

    assert statuses(answer) == ([], ["requeued"])
    [again] = answer["items"]
    assert (again["id"], again["attempt"]) == (leased["id"], 1)
    assert again["lease_token"] != leased["lease_token"]


async def test_what_an_ack_makes_ready_may_be_handed_out_by_the_same_call(api: Api) -> None:
    [leased] = await leases(api, 1, ack_topic="done")

    answer = await settle(api, "done", acks=[held(leased)])

    assert [item["payload"]["id"] for item in answer["items"]] == [leased["id"]]


async def test_an_item_in_both_lists_is_acked(api: Api) -> None:
    [leased] = await leases(api, 1)

    assert statuses(await settle(api, acks=[held(leased)], nacks=[held(leased)])) == (["acked"], ["lease_lost"])


async def test_sent_again_it_settles_nothing_twice(api: Api) -> None:
    done, back = await leases(api, 2, ack_topic="done")
    wanted = {"acks": [held(done)], "nacks": [held(back, delay_s=50)]}

    first, second = [await settle(api, "none", **wanted) for _ in range(2)]

    assert statuses(first) == (["acked"], ["requeued"])
    assert statuses(second) == (["already_acked"], ["lease_lost"])
    assert len(await api.completions("done")) == 1


async def test_results_are_there_where_settle_was(api: Api) -> None:
    body = {"topics": [{"topic": "none"}]}

    assert (await api.post("dequeue", body)).json() == {"items": []}
    assert (await api.post("dequeue", {**body, "settle": None})).json() == {"items": []}
    for nothing in ({}, {"acks": []}, {"acks": None, "nacks": []}):
        answer = (await api.post("dequeue", {**body, "settle": nothing})).json()
        assert answer == {"items": [], "results": {"acks": [], "nacks": []}}


async def test_without_topics_it_only_settles(api: Api) -> None:
    done, back = await leases(api, 2)

    body = {"topics": [], "wait_s": 20, "settle": {"acks": [held(done)], "nacks": [held(back)]}}
    answer = (await api.post("dequeue", body)).json()

    assert answer["items"] == []
    assert statuses(answer) == (["acked"], ["requeued"])


@pytest.mark.parametrize("settling", [None, {}, {"acks": []}, {"acks": None, "nacks": []}])
async def test_without_topics_there_must_be_something_to_settle(api: Api, settling: Any) -> None:
    answer = await api.post("dequeue", {"topics": [], "settle": settling})

    assert answer.status_code == 422
    assert [error["pointer"] for error in answer.json()["errors"]] == ["/topics"]


# -- bad input ----------------------------------------------------------------------------------------------


@pytest.fixture
async def leased(api: Api) -> AsyncIterator[dict[str, Any]]:
    """A leased item that must be as it is after the test, as must all tables."""
    [item] = await leases(api, 1, ack_topic="done")
    await api.enqueue_one("t")
    before = await api.host.counts(*TABLES)
    yield item
    assert await api.host.counts(*TABLES) == before
    assert await api.state(item["id"]) == "leased"


GOOD = {"id": "x", "lease_token": TOKEN}
FAULTS: list[tuple[Any, str]] = [
    *((value, "/settle") for value in (7, "x", [], True)),
    ({"ackss": []}, "/settle/ackss"),
    ({"acks": {}}, "/settle/acks"),
    ({"nacks": "x"}, "/settle/nacks"),
    ({"acks": [GOOD] * 1001}, "/settle/acks"),
    ({"nacks": [GOOD] * 1001}, "/settle/nacks"),
    ({"acks": [GOOD, {"id": "x"}]}, "/settle/acks/1/lease_token"),
    ({"acks": [GOOD, {**GOOD, "id": 7}]}, "/settle/acks/1/id"),
    ({"acks": [GOOD, {**GOOD, "outptu": 1}]}, "/settle/acks/1/outptu"),
    ({"acks": [GOOD, {**GOOD, "delay_s": 1}]}, "/settle/acks/1/delay_s"),
    ({"nacks": [GOOD, {**GOOD, "output": 1}]}, "/settle/nacks/1/output"),
    ({"nacks": [GOOD, {**GOOD, "delay_s": -1}]}, "/settle/nacks/1/delay_s"),
    ({"nacks": [GOOD, {**GOOD, "metadata": []}]}, "/settle/nacks/1/metadata"),
    ({"nacks": [GOOD, {**GOOD, "metadata": {"a": "\u0000"}}]}, "/settle/nacks/1/metadata"),
    ({"nacks": [GOOD, {**GOOD, "error": "x" * 8193}]}, "/settle/nacks/1/error"),
    ({"nacks": [GOOD, {**GOOD, "error": "\u0000"}]}, "/settle/nacks/1/error"),
    ({"nacks": [GOOD, {**GOOD, "final": 1}]}, "/settle/nacks/1/final"),
    ({"nacks": [GOOD, {**GOOD, "costs_attempt": "no"}]}, "/settle/nacks/1/costs_attempt"),
]


@pytest.mark.parametrize(("settling", "pointer"), FAULTS, ids=lambda part: str(part)[:40])
async def test_a_settle_at_fault_refuses_the_call_before_anything_is_written(
    api: Api, leased: dict[str, Any], settling: Any, pointer: str
) -> None:
    if isinstance(settling, dict):
        lists = [value for value in settling.values() if isinstance(value, list) and len(value) < 1000]
        for elements in lists:
            elements[:1] = [held(leased)]

    answer = await api.post("dequeue", {"topics": [{"topic": "t"}], "settle": settling})

    assert answer.status_code == 422, answer.text
    assert answer.json()["outcome"] == "none"
    assert pointer in [error["pointer"] for error in answer.json()["errors"]]


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"topics": [{"topic": "a b"}]}, 422),
        ({"topics": [{"topic": "t", "count": 0}]}, 422),
        ({"topics": [{"topic": "_system"}]}, 403),
        ({"wait_s": 31}, 422),
        ({"lease_s": 0.5}, 422),
        ({"worker": ""}, 422),
        ({"extra": 1}, 422),
    ],
)
async def test_a_dequeue_at_fault_settles_nothing(
    api: Api, leased: dict[str, Any], fields: dict[str, Any], status: int
) -> None:
    body = {"topics": [{"topic": "t"}], "settle": {"acks": [held(leased)]}, **fields}

    assert (await api.post("dequeue", body)).status_code == status


async def test_sizes_are_limited_as_in_ack_and_nack(api: Api, leased: dict[str, Any]) -> None:
    settings = api.host.settings
    for settling, pointer in (
        ({"acks": [GOOD, held(leased, output="x" * settings.output_bytes_max)]}, "/settle/acks/1/output"),
        ({"nacks": [held(leased, metadata={"a": "x" * settings.metadata_bytes_max})]}, "/settle/nacks/0/metadata"),
    ):
        answer = await api.post("dequeue", {"topics": [{"topic": "t"}], "settle": settling})
        assert answer.status_code == 413, answer.text
        assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]


async def test_values_at_their_limits_are_taken(api: Api) -> None:
    done, back = await leases(api, 2, ack_topic="done")
    output = "x" * (api.host.settings.output_bytes_max - 2)
    metadata = {"a": "x" * (api.host.settings.metadata_bytes_max - len('{"a":""}'))}

    answer = await settle(api, "none", acks=[held(done, output=output)], nacks=[held(back, metadata=metadata)])

    assert statuses(answer) == (["acked"], ["requeued"])
    assert (await api.item(back["id"]))["metadata"] == metadata
    assert (await api.completions("done"))[0]["output"] == output


async def test_a_thousand_of_each_are_settled(api: Api) -> None:
    for _ in range(2):
        await api.enqueue(*({"topic": "t"} for _ in range(1000)))
    done, back = [await api.dequeue("t", 1000) for _ in range(2)]

    nacks = [held(item, delay_s=0) for item in back]
    answer = await settle(api, "none", acks=list(map(held, done)), nacks=nacks)

    assert {*statuses(answer)[0]} == {"acked"} and {*statuses(answer)[1]} == {"requeued"}
    assert [one["id"] for one in answer["results"]["acks"]] == [item["id"] for item in done]
    assert (await api.topic("t"))["ready"] == 1000


async def test_a_name_twice_is_refused(api: Api, leased: dict[str, Any]) -> None:
    ack = f'{{"id":"{leased["id"]}","lease_token":"{leased["lease_token"]}"}}'
    for settling in (f'{{"acks":[{ack}],"acks":[]}}', f'{{"acks":[{ack[:-1]},"id":"x"}}]}}'):
        answer = await api.host.client.post(
            f"/v1/namespaces/{api.namespace}/dequeue",
            content=f'{{"topics":[{{"topic":"t"}}],"settle":{settling}}}',
            headers={"Content-Type": "application/json"},
        )
        assert (answer.status_code, answer.json()["code"]) == (400, "duplicate_name")


# -- waiting ------------------------------------------------------------------------------------------------


async def wait_of(api: Api, monkeypatch: pytest.MonkeyPatch, **fields: Any) -> float:
    """For how long a dequeue would wait."""
    waits: list[float] = []

    async def lease(namespace: str, demands: Any, holder: Any, wait_s: float, *others: Any) -> Any:
        waits.append(wait_s)
        return await original(namespace, demands, holder, 0.0, *others)

    with monkeypatch.context() as patch:
        original = api.host.process.dequeues._lease
        patch.setattr(api.host.process.dequeues, "_lease", lease)
        await settle(api, "none", **fields)
    return waits[0]


async def test_who_has_settled_something_waits_as_long_as_it_asks(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, back, third = await leases(api, 3)

    assert await wait_of(api, monkeypatch, acks=[held(done)], wait_s=20) == 20
    assert await wait_of(api, monkeypatch, nacks=[held(back)], wait_s=20) == 20
    assert await wait_of(api, monkeypatch, acks=[held(third)], wait_s=0.25) == 0.25
    assert await wait_of(api, monkeypatch, acks=[held(third)], wait_s=20) == 20, "also where it had been told"
    assert await wait_of(api, monkeypatch, acks=[], wait_s=20) == 20


async def test_who_is_refused_an_element_does_not_wait(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    [leased] = await leases(api, 1)

    async def at(*_: Any) -> Any:
        raise ShardUnavailable("away")

    monkeypatch.setattr(api.host.process.ack_flushes, "submit", at)

    assert await wait_of(api, monkeypatch, acks=[held(leased)], wait_s=20) == 0.0
    answer = await settle(api, "none", acks=[held(leased)])
    assert answer["results"]["acks"] == [
        {"id": leased["id"], "status": "refused", "code": "shard_unavailable", "outcome": "none"}
    ]


async def test_a_waiting_call_that_has_settled_is_handed_what_comes(api: Api) -> None:
    [leased] = await leases(api, 1)
    call = asyncio.create_task(settle(api, acks=[held(leased)], wait_s=20))
    while await api.state(leased["id"]) != "gone" or not api.host.dispatch._lines[api.namespace, "t"].waiting:
        await asyncio.sleep(0.001)
    started = time.monotonic()
    item_id = await api.enqueue_one("t")
    answer = await call

    assert [item["id"] for item in answer["items"]] == [item_id]
    assert statuses(answer) == (["acked"], [])
    assert time.monotonic() - started < 0.9


# -- quotas, load, priorities -------------------------------------------------------------------------------


async def test_what_is_settled_makes_room_in_the_namespaces_quota(api: Api) -> None:
    await api.host.client.put(f"/v1/namespaces/{api.namespace}", json={"in_flight_max": 1})
    await api.host.process.quotas.step()
    first = await api.enqueue_one("t")
    second = await api.enqueue_one("t")
    [leased] = await api.dequeue("t", 5)
    assert leased["id"] == first
    assert await api.dequeue("t", 5) == []

    answer = await settle(api, acks=[held(leased)])

    assert [item["id"] for item in answer["items"]] == [second]


async def test_results_are_told_also_where_the_dequeue_is_refused(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, back = await leases(api, 2)

    def check(_: str) -> None:
        raise overloaded(Urgency.DEQUEUE)

    monkeypatch.setattr(api.host.dispatch.claims, "check", check)
    answer = await settle(api, acks=[held(done)], nacks=[held(back, delay_s=50)])

    assert answer["items"] == []
    assert statuses(answer) == (["acked"], ["requeued"])
    assert (await api.post("dequeue", {"topics": [{"topic": "t"}]})).status_code == 503
    empty = {"topics": [{"topic": "t"}], "settle": {}}
    assert (await api.post("dequeue", empty)).status_code == 503, "nothing was settled"


async def test_where_no_ack_can_be_taken_the_call_is_refused(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    [leased] = await leases(api, 1)
    await api.enqueue_one("t")

    async def at(*_: Any) -> Any:
        raise overloaded(Urgency.SETTLE)

    monkeypatch.setattr(api.host.process.ack_flushes, "submit", at)
    answer = await api.post("dequeue", {"topics": [{"topic": "t"}], "settle": {"acks": [held(leased)]}})

    assert (answer.status_code, answer.json()["outcome"]) == (503, "none")
    assert await api.state(leased["id"]) == "leased"
    assert (await api.topic("t"))["ready"] == 1


async def test_acks_are_told_where_no_nack_can_be_taken(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    done, back = await leases(api, 2)

    async def nack(*_: Any) -> list[Result]:
        raise overloaded(Urgency.SETTLE)

    monkeypatch.setattr(api.host.process.nacks, "nack", nack)
    answer = await settle(api, "none", acks=[held(done)], nacks=[held(back)])

    assert answer["results"] == {
        "acks": [{"id": done["id"], "status": "acked"}],
        "nacks": [{"id": back["id"], "status": "refused", "code": "overloaded", "outcome": "none"}],
    }
    assert await api.state(back["id"]) == "leased"


async def test_it_settles_as_urgently_as_an_ack_and_dequeues_as_a_dequeue(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    [leased] = await leases(api, 1)
    process, seen = api.host.process, {}
    nack, dequeue = process.nacks.nack, process.dequeues.dequeue

    async def nacking(*args: Any) -> Any:
        seen["nack"] = current_urgency()
        return await nack(*args)

    async def dequeuing(*args: Any, **options: Any) -> Any:
        seen["dequeue"] = current_urgency()
        return await dequeue(*args, **options)

    monkeypatch.setattr(process.nacks, "nack", nacking)
    monkeypatch.setattr(process.dequeues, "dequeue", dequeuing)
    await settle(api, "none", nacks=[held(leased)])

    assert seen == {"nack": Urgency.SETTLE, "dequeue": Urgency.DEQUEUE}
