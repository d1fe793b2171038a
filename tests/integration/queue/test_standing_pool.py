"""Every connection is taken and stays so: each verb is answered without joining the line, least urgent first."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from headgate._ids import IdMaker
from services.queue.store.shard_store import Store
from shared.admission.connection_priority import Urgency, set_urgency
from shared.errors import ShardUnavailable
from shared.postgres import batcher, connections
from tests.support.queue_host import Api, QueueHost

TOKEN = "00000000-0000-0000-0000-000000000001"
TARGET_S = 1.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pools' clock, moved by changing its one element. Each call is looked at: on a fast machine several come
    within the moment for which one look lets all in."""
    now_s = [1000.0]
    monkeypatch.setattr(connections._clock, "monotonic_s", lambda: now_s[0])
    monkeypatch.setattr(batcher, "LET_IN_S", 0.0)
    return now_s


class Jam:
    """All connections of a host's shards are taken, and one call of some urgency waits for each pool."""

    def __init__(self, host: QueueHost, *shards: int) -> None:
        found = [host.stores[number].shard for number in shards or host.stores]
        self._pools = [pool for shard in found for pool in (shard.pool, shard.relaxed)]
        self._waiting: list[asyncio.Task[None]] = []

    async def begin(self, level: Urgency) -> None:
        for pool in self._pools:
            set_urgency(Urgency.SETTLE)
            while pool.line.try_enter():
                pass
            set_urgency(level)
            self._waiting.append(asyncio.create_task(pool.line.enter(600)))
        set_urgency(Urgency.DEQUEUE)
        await asyncio.sleep(0)
        assert {pool.line.waiting for pool in self._pools} == {1}

    def counts(self) -> list[int]:
        """How many wait for a connection, pool by pool."""
        return [pool.line.waiting for pool in self._pools]

    async def stand(self, clock: list[float], level: Urgency) -> None:
        """Let the line stand for as long as a call of this urgency puts up with."""
        patience_s = {Urgency.SETTLE: 2.5, Urgency.DEQUEUE: 2.0}.get(level, 1.0) * TARGET_S
        clock[0] += patience_s + 0.1
        set_urgency(level)
        assert not any(pool.is_standing for pool in self._pools), "one look is not enough"
        clock[0] += patience_s + 0.1
        set_urgency(Urgency.DEQUEUE)

    async def end(self) -> None:
        for pool, waiting in zip(self._pools, self._waiting, strict=True):
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            while pool.line.taken:
                pool.line.leave()
        self._waiting.clear()


@pytest.fixture
async def jam(own_host: QueueHost) -> AsyncIterator[Jam]:
    made = Jam(own_host)
    yield made
    await made.end()


def calls(api: Api, item: str) -> dict[str, tuple[Urgency, str, str, Any]]:
    """Every call of the service that needs a shard: its urgency, method, path and body."""
    ns = f"/v1/namespaces/{api.namespace}"
    held = {"items": [{"id": item, "lease_token": TOKEN}]}
    settle, enqueue, look = Urgency.SETTLE, Urgency.ENQUEUE, Urgency.LIST
    return {
        "ack": (settle, "POST", f"{ns}/ack", held),
        "nack": (settle, "POST", f"{ns}/nack", held),
        "extend": (settle, "POST", f"{ns}/extend", held),
        "revive": (settle, "POST", f"{ns}/revive", {"items": [{"id": item}]}),
        "cancel": (settle, "POST", f"{ns}/cancel", {"ids": [item]}),
        "put namespace": (settle, "PUT", ns, {}),
        "pause": (settle, "POST", f"{ns}/topics/pause", {"topic": "t"}),
        "resume": (settle, "POST", f"{ns}/topics/resume", {"topic": "t"}),
        "configure": (settle, "POST", f"{ns}/topics/configure", {"topic": "t"}),
        "limit": (settle, "PUT", f"{ns}/topics/limits", {"topic": "t"}),
        "unthrottle": (settle, "POST", f"{ns}/topics/unthrottle", {"topic": "t"}),
        "stop operation": (settle, "POST", f"{ns}/operations/{item}/cancel", {}),
        "dequeue": (Urgency.DEQUEUE, "POST", f"{ns}/dequeue", {"topics": [{"topic": "t", "count": 1}]}),
        "plain": (enqueue, "POST", f"{ns}/enqueue", {"items": [{"topic": "t"}]}),
        "new topic": (enqueue, "POST", f"{ns}/enqueue", {"items": [{"topic": "never-seen"}]}),
        "general": (enqueue, "POST", f"{ns}/enqueue", {"items": [{"topic": "t", "max_attempts": 2}]}),
        "by id": (enqueue, "POST", f"{ns}/enqueue", {"items": [{"topic": "t", "id": item}]}),
        "keyed": (enqueue, "POST", f"{ns}/enqueue", {"items": [{"topic": "t", "idempotency_key": "k"}]}),
        "affine": (enqueue, "POST", f"{ns}/enqueue", {"items": [{"topic": "t", "affinity": "a"}]}),
        "item": (look, "GET", f"{ns}/items/{item}", None),
        "items": (look, "GET", f"{ns}/items", None),
        "states": (look, "POST", f"{ns}/items/states", {"ids": [item]}),
        "attempts": (look, "GET", f"{ns}/items/{item}/attempts", None),
        "attempts of many": (look, "POST", f"{ns}/items/attempts", {"ids": [item]}),
        "logs": (look, "GET", f"{ns}/items/{item}/logs", None),
        "log": (
            look,
            "POST",
            f"{ns}/logs",
            {"items": [{"id": item, "lease_token": item, "attempt": 1, "number": 1, "lines": [{"text": "x"}]}]},
        ),
        "topics": (look, "GET", f"{ns}/topics", None),
        "workers": (look, "GET", f"{ns}/workers", None),
        "namespace": (look, "GET", ns, None),
        "namespaces": (look, "GET", "/v1/namespaces", None),
        "dead": (look, "GET", f"{ns}/dead", None),
        "purge": (look, "POST", f"{ns}/topics/purge", {"topic": "t"}),
        "redrive": (look, "POST", f"{ns}/topics/redrive", {"topic": "t"}),
        "operate": (look, "POST", f"{ns}/operations", {"kind": "purge", "filter": {"topic": "t"}}),
        "preview": (
            look,
            "POST",
            f"{ns}/operations",
            {"kind": "purge", "filter": {"topic": "t"}, "dry_run": True},
        ),
        "operations": (look, "GET", f"{ns}/operations", None),
        "operation": (look, "GET", f"{ns}/operations/{item}", None),
    }


async def send(api: Api, call: tuple[Urgency, str, str, Any]) -> httpx.Response:
    _, method, path, body = call
    return await api.host.client.request(method, path, json=body)


def test_every_call_is_looked_at(own_host: QueueHost) -> None:
    remembered = {
        ("POST", "/v1/namespaces/{ns}/workers"),  # and written later
        ("GET", "/v1/namespaces/{ns}/topics/limits"),  # what is leased of those that have some is asked for
    }
    made = {
        (method, path) for _, method, path, _ in calls(Api(own_host, "{ns}"), "{item_id}").values()
    } | remembered
    without_shards = {"/livez", "/readyz", "/metrics", "/v1/shards", "/v1/shards/{shard}", "/v1/history", "/v1/me"}
    without_shards |= {
        "/v1/shards/{shard}/inspection",  # says how each process sees the shard
        "/v1/namespaces/{ns}/why",  # says that a shard does not answer
        "/v1/audit",  # what other shards keep
        "/v1/shard-commands",  # what runs beside the service
        "/v1/shards/{shard}/commands",
    }
    for path, methods in own_host.app.app.openapi()["paths"].items():
        for method in methods:
            known = path.replace("{operation}", "{item_id}")
            assert path in without_shards or (method.upper(), known) in made, (method, path)


@pytest.mark.parametrize("level", Urgency)
async def test_a_refused_call_does_not_wait_in_the_line_it_is_refused_for(
    own_host: QueueHost, clock: list[float], jam: Jam, level: Urgency
) -> None:
    api, stranger = Api(own_host), Api(own_host)
    item = await api.enqueue_one("t", id=api.new_id(0))
    await jam.begin(level)
    await jam.stand(clock, level)
    for name, call in (*calls(api, item).items(), *calls(stranger, item).items()):
        if call[0] is not level:
            continue
        sent = asyncio.create_task(send(api, call))
        while not sent.done():
            assert jam.counts() == [1] * 4, f"{name} waits"
            await asyncio.sleep(0)
        answer = sent.result()
        problem = answer.json()
        told = answer.status_code, problem.get("code"), problem.get("outcome")
        assert told == (503, "overloaded", "none"), (name, problem)
        assert int(answer.headers["retry-after"]) >= 1


async def test_a_line_of_lists_turns_away_nobody_more_urgent(
    own_host: QueueHost, clock: list[float], jam: Jam
) -> None:
    api = Api(own_host)
    item = await api.enqueue_one("t", id=api.new_id(0))
    await jam.begin(Urgency.LIST)
    await jam.stand(clock, Urgency.LIST)
    for level in (Urgency.SETTLE, Urgency.DEQUEUE, Urgency.ENQUEUE) * 2:
        clock[0] += 60
        set_urgency(level)
        assert not own_host.stores[0].pool.is_standing, "before it stands nobody"
    set_urgency(Urgency.DEQUEUE)
    for name in ("keyed", "nack", "revive"):
        waits = asyncio.create_task(send(api, calls(api, item)[name]))
        async with asyncio.timeout(60):
            while sum(jam.counts()) == 4:
                await asyncio.sleep(0)
        waits.cancel()
        await asyncio.gather(waits, return_exceptions=True)


async def test_a_line_that_moves_turns_away_nobody(own_host: QueueHost, clock: list[float], jam: Jam) -> None:
    api = Api(own_host)
    await api.enqueue_one("t", id=api.new_id(0))
    await jam.begin(Urgency.ENQUEUE)
    await jam.stand(clock, Urgency.ENQUEUE)
    await jam.end()
    # Of the general way, which asks for each call; calls of the common shape are let in for a moment by one look.
    moved = {"topic": "t", "id": api.new_id(0), "delay_s": 1}
    assert [r["status"] for r in await api.enqueue(moved)] == ["enqueued"]
    await jam.begin(Urgency.ENQUEUE)
    clock[0] += 60
    set_urgency(Urgency.ENQUEUE)
    assert not own_host.stores[0].pool.is_standing, "what stood before does not count"


async def test_a_shard_whose_connections_are_taken_costs_only_its_own_elements(
    own_host: QueueHost, clock: list[float]
) -> None:
    api = Api(own_host)
    ids = [await api.enqueue_one("t", id=api.new_id(shard)) for shard in (0, 1)]
    held = sorted(await api.dequeue("t", 2), key=lambda item: ids.index(item["id"]))
    jam = Jam(own_host, 1)
    await jam.begin(Urgency.SETTLE)
    await jam.stand(clock, Urgency.SETTLE)
    wanted = [{"id": item["id"], "lease_token": item["lease_token"]} for item in held]

    for verb, status in (("extend", "extended"), ("nack", "requeued")):
        results = await api.results(verb, {"items": wanted})
        assert [(r["status"], r.get("code"), r.get("outcome")) for r in results] == [
            (status, None, None),
            ("refused", "overloaded", "none"),
        ]
    results = (await api.post("items/states", {"ids": ids})).json()["results"]
    assert [r["status"] for r in results] == ["found", "refused"]
    await jam.end()


async def test_what_was_let_in_is_not_turned_away_half_way(
    own_host: QueueHost, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    api = Api(own_host)
    ids = [await api.enqueue_one("t", id=api.new_id(0)) for _ in range(2)]
    jam = Jam(own_host, 0)
    wait = Store.known

    async def look(store: Store, wanted: Any) -> Any:
        await jam.begin(Urgency.SETTLE)
        await jam.stand(clock, Urgency.SETTLE)
        await jam.end()
        return await wait(store, wanted)

    monkeypatch.setattr(Store, "known", look)
    results = await api.results("nack", {"items": [{"id": ids[0], "lease_token": TOKEN}]})
    assert [r["status"] for r in results] == ["lease_lost"]


@pytest.mark.parametrize("verb", ["nack", "extend", "ack", "enqueue"])
async def test_a_call_that_fails_after_its_commit_does_not_say_that_nothing_was_done(
    own_api: Api, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    item = await own_api.enqueue_one("t", id=own_api.new_id(0))
    [held] = await own_api.dequeue("t")

    async def away(_store: Store, _ids: Any) -> Any:
        raise ShardUnavailable("no connection to spare")

    monkeypatch.setattr(Store, "known", away)
    pair = {"id": item, "lease_token": held["lease_token"]}
    fresh = IdMaker().make(0)[0]
    bodies = {"enqueue": [{"topic": "t", "id": fresh}, {"topic": "t", "id": item}]}
    results = await own_api.results(verb, {"items": bodies.get(verb, [pair, pair | {"lease_token": TOKEN}])})
    told = [(r["status"], r.get("code"), r.get("outcome")) for r in results]
    if verb == "ack":
        # What was acked is known, and so is that nothing was done with the other.
        assert told == [("acked", None, None), ("refused", "shard_unavailable", "none")]
    else:
        assert set(told) == {("refused", "shard_unavailable", "unknown")}
