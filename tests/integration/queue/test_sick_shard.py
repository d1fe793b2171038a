"""A shard that is silent, full or slow costs only itself; it comes back without a restart."""

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

import pytest

from headgate._ids import shard_of
from services.queue.dispatch import claiming, key_refill
from shared.admission import breaker
from shared.errors import ShardUnavailable
from shared.metrics import SHARD_REFUSED
from shared.shards.map_file import SLOTS
from tests.support.clocks import ManualClock
from tests.support.proxy import Proxy
from tests.support.queue_host import Api, QueueHost, queue_host

SILENCE_S = 0.3

Silence = Callable[[], None]


@pytest.fixture
async def proxy(own_host: QueueHost) -> AsyncIterator[Proxy]:
    async with Proxy(own_host.database.dsn) as made:
        yield made


@pytest.fixture
def silence(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> Silence:
    """From the call on no connection says a word any more, and silence is soon taken for an answer."""

    def fall() -> None:
        monkeypatch.setattr(breaker, "SILENCE_S", SILENCE_S)
        monkeypatch.setattr(breaker, "PROBE_S_MAX", 0.3)
        proxy.silent_at_first = True
        proxy.fall_silent()

    return fall


def mend(proxy: Proxy) -> None:
    """New connections work; the old ones are reset."""
    proxy.silent_at_first = False
    proxy.cut()


@pytest.fixture
async def shaky(own_host: QueueHost, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[QueueHost]:
    """A process that reaches shard 1 through a proxy, and passes over a slow shard soon."""
    monkeypatch.setattr(breaker, "PAUSE_S", 0.05)
    monkeypatch.setattr(key_refill, "PEEK_S_MAX", 0.2)
    monkeypatch.setattr(claiming, "CLAIM_S_MAX", 0.2)
    dsn = own_host.database.dsn
    shards = f"0={dsn} 1={proxy.dsn(dsn)}"
    async with queue_host(own_host.database, own_host.clock, shards=shards) as made:
        yield made


def element(result: dict[str, str]) -> tuple[str, str | None, str | None]:
    return result["status"], result.get("code"), result.get("outcome")


async def until_open(host: QueueHost) -> None:
    async with asyncio.timeout(60):
        with suppress(ShardUnavailable):
            while True:
                host.stores[1].shard.pool.check()
                await asyncio.sleep(0.01)


async def until_closed(api: Api) -> None:
    async with asyncio.timeout(60):
        while (await api.enqueue({"topic": "probe", "id": api.new_id(1)}))[0]["status"] != "enqueued":
            await asyncio.sleep(0.05)


async def test_a_silent_shard_costs_only_itself_and_comes_back(
    shaky: QueueHost, proxy: Proxy, silence: Silence
) -> None:
    api = Api(shaky)
    for n in range(6):
        await api.enqueue_one("t", id=api.new_id(n % 2))
    held = await api.dequeue("t", 2)
    silence()
    stuck = asyncio.create_task(api.enqueue({"topic": "t", "id": api.new_id(1)}))

    assert await api.ack(*(item for item in held if shard_of(item["id"]) == 0)) == ["acked"]
    await until_open(shaky)
    refused_before = SHARD_REFUSED.labels("queue_001")._value.get()
    [result] = await api.enqueue({"topic": "t", "id": api.new_id(1)})
    assert element(result) == ("refused", "shard_unavailable", "none")
    assert SHARD_REFUSED.labels("queue_001")._value.get() > refused_before
    assert {
        shard_of(r["id"]) for r in [*(await api.enqueue({"topic": "u"})), *(await api.enqueue({"topic": "u"}))]
    } == {0}
    assert {shard_of(item["id"]) for item in await api.dequeue("t", 9, wait_s=5)} == {0}
    states = [row["state"] for row in (await shaky.client.get("/v1/shards")).json()["items"]]
    assert states == ["healthy", "open"]

    mend(proxy)
    await stuck
    await until_closed(api)
    assert {shard_of(item["id"]) for item in await api.dequeue("t", 9, wait_s=5)} == {1}


async def test_a_refusal_of_a_silent_shard_needs_no_waiting(shaky: QueueHost, silence: Silence) -> None:
    api = Api(shaky)
    await api.enqueue_one("t", id=api.new_id(1))
    silence()
    stuck = asyncio.create_task(api.enqueue({"topic": "t", "id": api.new_id(1)}))
    await until_open(shaky)
    answers = [await api.get(f"items/{api.new_id(1)}") for _ in range(20)]
    assert {(a.status_code, a.json()["code"], a.json()["outcome"]) for a in answers} == {
        (503, "shard_unavailable", "none")
    }
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in answers)
    assert not stuck.done(), "nobody waited for the first call's timeout"
    stuck.cancel()


async def test_a_process_that_stood_still_refuses_no_healthy_shard(
    own_host: QueueHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on long after its calls set out, and has not read their answers."""
    api, shard = Api(own_host), own_host.stores[1].shard
    states: list[str] = []
    shard.breaker.listeners.append(states.append)
    clock = ManualClock()
    monkeypatch.setattr(shard.breaker, "_clock", clock)
    lock = await own_host.database.connect("queue_001")
    transaction = lock.transaction()
    await transaction.start()
    await lock.execute("LOCK TABLE item IN ACCESS EXCLUSIVE MODE")
    under_way = asyncio.create_task(api.enqueue({"topic": "t", "id": api.new_id(1)}))
    async with asyncio.timeout(60):
        while not shard.breaker._under_way:
            await asyncio.sleep(0.001)
    clock.advance(3600)
    came_later = asyncio.create_task(api.enqueue({"topic": "t", "id": api.new_id(1)}))
    assert (await api.get("topics")).status_code == 200
    await transaction.rollback()
    await lock.close()
    for call in (under_way, came_later):
        assert [result["status"] for result in await call] == ["enqueued"]
    assert states == []


async def test_keys_of_a_shard_that_falls_silent_hold_up_no_others(shaky: QueueHost, silence: Silence) -> None:
    """Its keys are known from before; the claim of them must not keep back what others gave."""
    api = Api(shaky)
    await api.dequeue("t")  # somebody wants the topic, so keys are kept
    for n in range(4):
        await api.enqueue_one("t", id=api.new_id(n % 2))
    silence()

    assert {shard_of(item["id"]) for item in await api.dequeue("t", 4, wait_s=20)} == {0}


async def test_what_a_slow_shard_leased_for_nobody_is_handed_back(
    shaky: QueueHost,
) -> None:
    api = Api(shaky)
    await api.dequeue("t")
    for n in range(4):
        await api.enqueue_one("t", id=api.new_id(n % 2))
    lock = await shaky.database.connect("queue_001")
    transaction = lock.transaction()
    await transaction.start()
    await lock.execute("SELECT FROM ready FOR UPDATE")
    first = await api.dequeue("t", 4)
    assert {shard_of(item["id"]) for item in first} == {0}
    await transaction.rollback()
    await lock.close()
    rest = []
    async with asyncio.timeout(60):
        while len(rest) < 2:
            rest += await api.dequeue("t", 4, wait_s=1)
    assert {(shard_of(item["id"]), item["attempt"]) for item in rest} == {(1, 1)}


FULL = """
CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS
$$BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = '53100'; END$$;
CREATE TRIGGER full_disk BEFORE INSERT ON item EXECUTE FUNCTION full_disk();
"""


async def test_a_full_disk_refuses_enqueues_by_its_name_and_still_takes_acks(own_host: QueueHost) -> None:
    api = Api(own_host)
    for shard in (0, 1):
        await api.enqueue_one("t", id=api.new_id(shard))
    held = await api.dequeue("t", 2)
    connection = await own_host.database.connect("queue_001")
    await connection.execute(FULL)

    [result] = await api.enqueue({"topic": "t", "id": api.new_id(1)})
    assert element(result) == ("refused", "storage_full", "none")
    states = [row["state"] for row in (await own_host.client.get("/v1/shards")).json()["items"]]
    assert states == ["healthy", "degraded"]
    assert await api.ack(*held) == ["acked", "acked"]
    found = [await api.enqueue({"topic": "t"}) for _ in range(4)]
    assert {(r["status"], shard_of(r["id"])) for [r] in found} == {("enqueued", 0)}

    await connection.execute("DROP TRIGGER full_disk ON item")
    await connection.close()
    [result] = await api.enqueue({"topic": "t", "id": api.new_id(1)})
    assert result["status"] == "enqueued"


async def test_keyless_items_go_elsewhere_when_their_first_shard_refuses(own_host: QueueHost) -> None:
    """Also before anything is known of it: half of these calls would have gone to the full shard."""
    api = Api(own_host)
    connection = await own_host.database.connect("queue_001")
    await connection.execute(FULL)
    breaker_1 = own_host.stores[1].shard.breaker
    for _ in range(4):
        breaker_1._full_until_s = 0.0
        results = await api.enqueue(*({"topic": "t", "payload": n} for n in range(3)))
        assert [(r["status"], shard_of(r["id"])) for r in results] == [("enqueued", 0)] * 3
    assert [item["payload"] for item in await api.dequeue("t", 12)] == [0, 1, 2] * 4
    await connection.close()


def key_at(namespace: str, shard: int) -> str:
    """An idempotency key whose home is this one of two shards."""
    return next(
        key
        for key in map("k{}".format, range(100))
        if zlib.crc32(f"{namespace}\0{key}".encode()) % SLOTS * 2 // SLOTS == shard
    )


async def test_acks_find_a_connection_when_slow_enqueues_have_taken_all_they_may(own_host: QueueHost) -> None:
    async with queue_host(own_host.database, own_host.clock, pool_connections_max=2) as small:
        api = Api(small)
        for _ in range(2):
            await api.enqueue_one("t", id=api.new_id(0))
        held = await api.dequeue("t", 2)
        key = key_at(api.namespace, 0)
        [row] = await small.rows("SELECT namespace_id FROM namespace WHERE name = $1", api.namespace)
        other = await small.database.connect("queue_000")
        transaction = other.transaction()
        await transaction.start()
        take = "INSERT INTO dedup (namespace_id, key, id, fingerprint) VALUES ($1, $2, $3, '')"
        await other.execute(take, row["namespace_id"], key, api.new_id(0))

        slow = [asyncio.create_task(api.enqueue({"topic": "t", "idempotency_key": key})) for _ in range(6)]
        lists = [asyncio.create_task(api.get("items")) for _ in range(6)]
        async with asyncio.timeout(60):
            while small.stores[0].pool.line.waiting < 6:
                await asyncio.sleep(0.005)
        assert await api.ack(*held) == ["acked", "acked"]
        assert not any(task.done() for task in slow)

        await transaction.rollback()
        await other.close()
        assert [r["status"] for [r] in await asyncio.gather(*slow)].count("enqueued") == 1
        assert {answer.status_code for answer in await asyncio.gather(*lists)} == {200}
