"""Each call of the queue at its limits, and many of them at once: no statement, and no answer, passes its bound.

A new call joins by a line in `CALLS`: what it needs to be there, and what it sends. Bounds are lowered by
settings, so that a thousand items at the limit are some megabytes; nothing here is timed.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple

import httpx
import pytest

from headgate import wire
from tests.support.bounded import steps
from tests.support.queue_host import Api, QueueHost, queue_host
from tests.support.traffic import traffic

PAYLOAD = 4_096
BOUND = 64 * 1024
# What a call brings itself is a part of its statement, whole: a thousand elements, each with all that it may have.
COUNT = wire.BATCH_MAX
# Callers at once, of ten elements each: what is shared has a bound of its own.
CALLERS, SMALL = 40, 10
# What stands around texts: ids, times, numbers, topics.
AROUND = 1_000


Make = Callable[[Api, int], Awaitable[Any]]


def text(size: int = PAYLOAD) -> str:
    return "x" * (size - 2)


async def new(api: Api, count: int, **fields: Any) -> list[str]:
    items = [{"topic": "t", "id": api.new_id(0), "payload": text(), **fields} for _ in range(count)]
    return [result["id"] for result in await api.enqueue(*items)]


async def leased(api: Api, count: int, **fields: Any) -> list[dict[str, str]]:
    """So many items under leases: their ids and tokens."""
    await new(api, count, **fields)
    found: list[dict[str, str]] = []
    while len(found) < count:
        some = await api.dequeue("t", count - len(found), lease_s=3_600)
        assert some
        found += [{"id": item["id"], "lease_token": item["lease_token"]} for item in some]
    return found


async def settled(api: Api, count: int) -> dict[str, Any]:
    """What a dequeue may carry: acks with outputs, nacks with errors; and as much that is ready."""
    held = await leased(api, count, ack_topic="done")
    acks = [{**item, "output": text()} for item in held[: count // 2]]
    nacks = [{**item, "error": "e" * PAYLOAD, "metadata": {"m": "y" * 900}} for item in held[count // 2 :]]
    await new(api, count)
    return {"acks": acks, "nacks": nacks}


async def nothing(_api: Api, count: int) -> int:
    return count


def verb(name: str, body: Callable[[Any], Any]) -> Callable[[Api, Any], Awaitable[httpx.Response]]:
    return lambda api, made: api.post(name, body(made))


def each(**fields: Any) -> Callable[[Any], Any]:
    """The body of a call about leased items."""
    return lambda made: {"items": [{**item, **fields} for item in made]}


def plain(count: int) -> Any:
    return {"items": [{"topic": "t", "payload": text()}] * count}


def rich(count: int) -> Any:
    item = {"topic": "t", "payload": text(), "metadata": {"m": "y" * 900}, "headers": {"h": "z" * 900}}
    return {"items": [item] * count}


def keyed(count: int) -> Any:
    keys = [f"{n}{'k' * 1_000}" for n in range(count)]
    return {"items": [{"topic": "t", "payload": text(), "idempotency_key": key} for key in keys]}


def unique(count: int) -> Any:
    return {"items": [{**item, "unique": True} for item in keyed(count)["items"]]}


def logged(made: list[dict[str, str]]) -> Any:
    lines = [{"text": text(PAYLOAD // 2), "logger": "l" * 200}]
    return {"items": [{**item, "attempt": 1, "number": 1, "lines": lines} for item in made]}


async def full_log(api: Api, _count: int) -> str:
    """An item whose log is as long as it may be; its id."""
    [item] = await leased(api, 1)
    for number in range(1, 2 * BOUND // PAYLOAD):
        body = {**item, "attempt": 1, "number": number, "lines": [{"text": text()}]}
        assert (await api.post("logs", {"items": [body]})).status_code == 200
    return item["id"]


async def many_workers(api: Api, count: int) -> None:
    for n in range(count):
        topics = [{"topic": f"{n}.{m}.{'t' * 100}", "slots": 1} for m in range(10)]
        report = {"name": f"worker {n}", "host": "h" * 200, "topics": topics}
        assert (await api.post("workers", report)).status_code == 200
    await api.host.process.workers.step()


def demand(count: int) -> Any:
    return {"topics": [{"topic": "t", "count": count}]}


def named(made: list[str]) -> Any:
    return {"ids": made}


class Case(NamedTuple):
    """What a call needs, and the call."""

    make: Make
    call: Callable[[Api, Any], Awaitable[httpx.Response]]
    is_read: bool = False


CALLS: dict[str, Case] = {
    "enqueue plain items": Case(nothing, verb("enqueue", plain)),
    "enqueue rich items": Case(nothing, verb("enqueue", rich)),
    "enqueue by keys": Case(nothing, verb("enqueue", keyed)),
    "dequeue": Case(new, verb("dequeue", lambda _made: demand(COUNT)), True),
    "settle with the next dequeue": Case(
        settled, verb("dequeue", lambda made: {**demand(COUNT), "settle": made, "wait_s": 0})
    ),
    "ack with outputs": Case(
        lambda api, count: leased(api, count, ack_topic="done"), verb("ack", each(output=text()))
    ),
    "nack with errors": Case(leased, verb("nack", each(error="e" * PAYLOAD, metadata={"m": "y" * 900}))),
    "extend": Case(leased, verb("extend", each(lease_s=60))),
    "extend and tell progress": Case(
        leased, verb("extend", each(lease_s=60, progress={"done": 1, "total": 9, "note": "n" * 200}))
    ),
    "nack and throttle": Case(leased, verb("nack", each(throttle_s=60, throttle_key="k" * 200))),
    "enqueue by unique keys": Case(nothing, verb("enqueue", unique)),
    "write logs": Case(leased, verb("logs", logged)),
    "read a log": Case(full_log, lambda api, made: api.get(f"items/{made}/logs", limit=1_000)),
    "look at attempts": Case(new, verb("items/attempts", named)),
    "list workers": Case(many_workers, lambda api, _made: api.get("workers", limit=1_000), True),
    "revive with inputs": Case(
        lambda api, count: new(api, count, disabled=True),
        verb("revive", lambda made: {"items": [{"id": item, "inputs": text()} for item in made]}),
    ),
    "cancel": Case(new, verb("cancel", named)),
    "look at items": Case(new, verb("items/states", named)),
    "list items": Case(new, lambda api, _made: api.get("items", limit=1_000), True),
    "purge": Case(new, verb("topics/purge", lambda _made: {"topic": "t"})),
    "list topics": Case(new, lambda api, _made: api.get("topics", limit=1_000)),
}


@pytest.fixture
async def bounded(own_host: QueueHost) -> AsyncIterator[QueueHost]:
    """A process whose bounds are low."""
    settings = {
        "answer_bytes_max": BOUND,
        "flush_bytes_max": BOUND,
        "payload_bytes_max": PAYLOAD,
        "output_bytes_max": PAYLOAD,
        "inputs_bytes_max": PAYLOAD,
        "log_item_bytes_max": BOUND,
    }
    async with queue_host(own_host.database, own_host.clock, **settings) as made:
        yield made


@pytest.mark.drawn(7)
@pytest.mark.parametrize("name", CALLS)
async def test_a_call_at_its_limit_keeps_its_bounds(
    bounded: QueueHost, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    case, api = CALLS[name], Api(bounded)
    made = await case.make(api, COUNT)
    sent: list[int] = []
    bounded.client.event_hooks["request"] = [_note(sent)]

    with traffic(monkeypatch) as met:
        answer = await case.call(api, made)

    assert met.statements
    assert answer.status_code in (200, 201, 202), answer.text
    assert len(answer.content) <= (BOUND if case.is_read else COUNT * AROUND // 2)
    assert met.rows[0] <= 2 * COUNT, met.rows
    assert met.told[0] <= BOUND + COUNT * AROUND // 2, met.told
    assert met.given[0] <= sent[-1] + BOUND + COUNT * AROUND // 2, met.given


@pytest.mark.drawn(7)
@pytest.mark.parametrize("name", CALLS)
async def test_many_calls_at_once_share_flushes_of_bounded_size(
    bounded: QueueHost, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    case, api = CALLS[name], Api(bounded)
    made = [await case.make(api, SMALL) for _ in range(CALLERS)]
    sent: list[int] = []
    bounded.client.event_hooks["request"] = [_note(sent)]

    with traffic(monkeypatch) as met:
        answers = await asyncio.gather(*(case.call(api, one) for one in made))

    assert {answer.status_code for answer in answers} <= {200, 201, 202}
    elements = CALLERS * SMALL
    # A flush takes one call at least, and an item for each call of a claim.
    assert met.given[0] <= max(sent) + BOUND + elements * AROUND // 2, met.given
    assert met.told[0] <= BOUND + CALLERS * (PAYLOAD + AROUND) + elements * AROUND // 2, met.told
    if case.is_read:
        assert max(len(answer.content) for answer in answers) <= BOUND


async def test_a_page_of_workers_that_ends_for_its_bytes_is_followed_by_the_rest(bounded: QueueHost) -> None:
    api = Api(bounded)
    await many_workers(api, 150)
    names, pages, after = [], 0, {}
    for _ in steps():
        page = (await api.get("workers", limit=1_000, **after)).json()
        names += [worker["name"] for worker in page["items"]]
        pages += 1
        if page["next_cursor"] is None:
            break
        after = {"cursor": page["next_cursor"]}
    assert names == sorted(f"worker {n}" for n in range(150))
    assert pages > 1


def _note(sent: list[int]) -> Callable[[httpx.Request], Awaitable[None]]:
    async def note(request: httpx.Request) -> None:
        sent.append(len(request.content))

    return note
