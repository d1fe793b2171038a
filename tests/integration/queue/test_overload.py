"""More comes than can be done: what is refused, how, and who is still served."""

import asyncio
from typing import Any

import pytest

from services.queue.model import SEPARATOR, NewRow
from shared.admission.connection_priority import Urgency
from shared.postgres import batcher
from tests.support.queue_host import Api, QueueHost


class Stuck:
    """Every enqueue flush of a host waits until it is let go on."""

    def __init__(self, host: QueueHost) -> None:
        self.go_on = asyncio.Event()
        self.seen: list[list[str]] = []
        enqueues = host.process.enqueues
        self.lines = (*enqueues.general.flushes.values(), *enqueues.named.flushes.values())
        for one in self.lines:
            flush: Any = one._flush

            async def wait(entries: Any, _flush: Any = flush) -> Any:
                self.seen.append([payload for entry in entries for payload in payloads_of(entry)])
                await self.go_on.wait()
                return await _flush(entries)

            one._flush = wait


def payloads_of(entry: Any) -> list[str]:
    """Those of an entry of the general way, a row, or of one with ids by callers."""
    return [entry.payload] if isinstance(entry, NewRow) else entry[2].split(SEPARATOR)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The batchers' clock, moved by changing its one element."""
    now_s = [1000.0]
    monkeypatch.setattr(batcher._clock, "monotonic_s", lambda: now_s[0])
    return now_s


def waiting_in(line: Any) -> int:
    """Entries that wait for a flush."""
    return int(line._light.line.size + line._heavy.line.size)


async def begun(stuck: Stuck, calls: int) -> None:
    async with asyncio.timeout(60):
        while len(stuck.seen) < calls:
            await asyncio.sleep(0.005)


async def test_enqueues_behind_a_line_that_stands_are_refused_and_acks_are_not(
    own_host: QueueHost, clock: list[float]
) -> None:
    api = Api(own_host)
    for shard in (0, 1):
        await api.enqueue_one("t", id=api.new_id(shard))
    held = await api.dequeue("t", 2)
    stuck = Stuck(own_host)
    both = [{"topic": "t", "id": api.new_id(shard)} for shard in (0, 1)]
    calls = [asyncio.create_task(api.enqueue(both[0], both[1]))]
    await begun(stuck, 2)
    for behind in (1, 2):
        fresh = [{"topic": "t", "id": api.new_id(shard)} for shard in (0, 1)]
        calls.append(asyncio.create_task(api.enqueue(*fresh)))
        async with asyncio.timeout(60):
            while sum(map(waiting_in, stuck.lines)) < 2 * behind:
                await asyncio.sleep(0.005)
        clock[0] += 1.1

    async with asyncio.timeout(60):
        answer = await api.post("enqueue", {"items": [{"topic": "t", "id": api.new_id(n)} for n in (0, 1)]})
    assert answer.status_code == 503
    assert answer.headers["content-type"] == "application/problem+json"
    assert (answer.json()["code"], answer.json()["outcome"]) == ("overloaded", "none")
    assert int(answer.headers["retry-after"]) >= 1
    assert await api.ack(*held) == ["acked", "acked"]

    stuck.go_on.set()
    for results in await asyncio.gather(*calls):
        assert {r["status"] for r in results} == {"enqueued"}
    assert [r["status"] for r in await api.enqueue({"topic": "t"})] == ["enqueued"]


async def test_a_shard_whose_line_stands_costs_only_its_own_elements(
    own_host: QueueHost, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    api = Api(own_host)
    await api.enqueue_one("t")
    process = own_host.process
    ways = (process.enqueues.general, process.enqueues.simple, process.enqueues.named)
    slow = tuple(way.flushes[1] for way in ways)
    monkeypatch.setattr(batcher.Batcher, "_is_overloaded", property(lambda self: self in slow))
    clock[0] += 2 * batcher.LET_IN_S

    results = await api.enqueue(*({"topic": "t", "id": api.new_id(shard)} for shard in (0, 1)))
    assert [(r["status"], r.get("code"), r.get("outcome")) for r in results] == [
        ("enqueued", None, None),
        ("refused", "overloaded", "none"),
    ]
    for n in range(3):
        for plain in ({}, {"max_attempts": 3}):
            results = await api.enqueue({"topic": f"t{n}", **plain})
            assert [r["status"] for r in results] == ["enqueued"], "it goes elsewhere"
    slow = (*process.enqueues.general.flushes.values(), *process.enqueues.simple.flushes.values())
    clock[0] += 2 * batcher.LET_IN_S
    for plain in ({}, {"max_attempts": 3}):
        answer = await api.post("enqueue", {"items": [{"topic": "t", **plain}]})
        assert (answer.status_code, answer.json()["code"]) == (503, "overloaded")


async def test_a_hot_namespace_leaves_room_in_every_flush(own_host: QueueHost) -> None:
    hot, calm = Api(own_host), Api(own_host)
    for api in (hot, calm):
        await api.enqueue_one("t", id=api.new_id(0))
    stuck = Stuck(own_host)
    line = own_host.process.enqueues.named.flushes[0]
    line._limits = line._limits._replace(items_max=10)

    def call(api: Api, count: int, name: str) -> asyncio.Task[Any]:
        items = [{"topic": "t", "id": api.new_id(0), "payload": name} for _ in range(count)]
        return asyncio.create_task(api.enqueue(*items))

    calls = [call(hot, 1, "hot")]
    await begun(stuck, 1)
    calls += [call(hot, 5, "hot") for _ in range(20)]
    async with asyncio.timeout(60):
        while waiting_in(line) < 100:
            await asyncio.sleep(0.005)
    calls.append(call(calm, 5, "calm"))
    async with asyncio.timeout(60):
        while waiting_in(line) < 105:
            await asyncio.sleep(0.005)
    stuck.go_on.set()
    await asyncio.gather(*calls)
    assert stuck.seen[1].count('"calm"') == 5


async def test_a_hot_namespace_leaves_room_for_acks_of_others(own_host: QueueHost) -> None:
    """A hundred times as many acks of one namespace cost another's one flush."""
    hot, calm = Api(own_host), Api(own_host)
    for api, count in ((hot, 101), (calm, 1)):
        await api.enqueue(*({"topic": "t", "id": api.new_id(0)} for _ in range(count)))
    [first, *rest] = await hot.dequeue("t", 101)
    [other] = await calm.dequeue("t")
    line = own_host.process.ack_flushes.flushes[0, False]
    line._limits = line._limits._replace(items_max=10)
    flush, go_on = line._flush, asyncio.Event()
    seen: list[list[str]] = []

    async def wait(entries: Any) -> Any:
        seen.append([item_id for entry in entries for item_id in entry.ids])
        await go_on.wait()
        return await flush(entries)

    line._flush = wait
    calls = [asyncio.create_task(hot.ack(first))]
    async with asyncio.timeout(60):
        while not seen:
            await asyncio.sleep(0.005)
        for start in range(0, 100, 10):
            calls.append(asyncio.create_task(hot.ack(*rest[start : start + 10])))
        while waiting_in(line) < 100:
            await asyncio.sleep(0.005)
        calls.append(asyncio.create_task(calm.ack(other)))
        while waiting_in(line) < 101:
            await asyncio.sleep(0.005)
    go_on.set()
    assert {status for statuses in await asyncio.gather(*calls) for status in statuses} == {"acked"}
    assert other["id"] in [*seen[1], *seen[2]]


async def test_a_late_event_loop_turns_away_lists_and_enqueues_before_dequeues_before_acks(
    own_host: QueueHost,
) -> None:
    api = Api(own_host)
    await api.enqueue_one("t")
    [held] = await api.dequeue("t")
    lag = own_host.app.app.state.lag
    for _ in range(20):
        lag.sample(1.5)

    for answer in (await api.post("enqueue", {"items": [{"topic": "t"}]}), await api.get("topics")):
        assert (answer.status_code, answer.json()["code"]) == (503, "overloaded")
        assert int(answer.headers["retry-after"]) >= 1
    assert await api.dequeue("t") == []
    for _ in range(20):
        lag.sample(3.0)
    answer = await api.post("dequeue", {"topics": [{"topic": "t"}]})
    assert (answer.status_code, answer.json()["code"]) == (503, "overloaded")
    assert await api.ack(held) == ["acked"]
    assert (await own_host.client.get("/livez")).status_code == 200
    assert (await own_host.client.get("/readyz")).status_code == 200


async def test_dequeues_are_refused_when_claims_wait_too_long_everywhere(
    own_host: QueueHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = Api(own_host)
    claims = own_host.dispatch.claims._flushes
    assert {one._level for one in claims.values()} == {Urgency.DEQUEUE}
    slow = set(map(id, claims.values()))
    monkeypatch.setattr(batcher.Batcher, "is_overloaded", property(lambda self: id(self) in slow))
    answer = await api.post("dequeue", {"topics": [{"topic": "t"}]})
    assert (answer.status_code, answer.json()["code"], answer.json()["outcome"]) == (503, "overloaded", "none")
    slow.remove(id(claims[0, False]))
    assert (await api.post("dequeue", {"topics": [{"topic": "t"}]})).status_code == 200
