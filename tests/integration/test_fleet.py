"""Several processes of each service: restarted one after another, killed, stopped; Redis taken away."""

import asyncio
import itertools
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from headgate import AsyncClient
from services.local.valkey import Valkey, ValkeySettings
from tests.support.databases import Database
from tests.support.fleet import Fleet, fleet_on
from tests.support.ports import free_port

TTL_S = 1.5
LONG_TTL_S = 60.0
DRAIN_S = 4.2
# Between two DAGs of a builder: what meets a restart counts, not how many there are.
PAUSE_S = 0.05


@pytest.fixture
async def valkey(tmp_path: Path) -> AsyncIterator[Valkey]:
    """A Valkey of the test's own."""
    server = Valkey(ValkeySettings(port=free_port(), run_dir=tmp_path))
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def fleet(database: Database, valkey: Valkey, tmp_path: Path) -> AsyncIterator[Fleet]:
    """An installation without processes yet; leases of owners are short."""
    async with fleet_on(database, valkey.url, tmp_path, owner_ttl_s=TTL_S, drain_s=DRAIN_S) as made:
        yield made


class Load:
    """Producers and consumers over the SDK, and what became of everything they sent."""

    def __init__(self, client: AsyncClient, topic: str = "work") -> None:
        self.client = client
        self.topic = topic
        self.sent: set[str] = set()
        self.delivered: Counter[str] = Counter()
        self.acked: Counter[str] = Counter()
        self.failures: list[str] = []
        self._producing = True

    @asynccontextmanager
    async def running(self, producers: int = 2, consumers: int = 4) -> AsyncIterator["Load"]:
        """Load while the block runs; afterwards everything is drained."""
        made = [asyncio.create_task(self._produce()) for _ in range(producers)]
        took = [asyncio.create_task(self._consume()) for _ in range(consumers)]
        try:
            yield self
            self._producing = False
            await asyncio.gather(*made)
            async with asyncio.timeout(120):
                while len(self.acked) < len(self.sent):
                    await asyncio.sleep(0.02)
        finally:
            for task in (*made, *took):
                task.cancel()
            await asyncio.gather(*made, *took, return_exceptions=True)

    async def until(self, more: int) -> None:
        """Wait until so many more items were acked."""
        wanted = sum(self.acked.values()) + more
        async with asyncio.timeout(120):
            while sum(self.acked.values()) < wanted:
                await asyncio.sleep(0.01)

    async def _produce(self) -> None:
        while self._producing:
            try:
                results = await self.client.enqueue([{"topic": self.topic, "lease_s": 30} for _ in range(5)])
                assert {result.status for result in results} <= {"enqueued", "duplicate"}, results
                self.sent.update(result.id for result in results)
            except Exception as error:
                self.failures.append(f"enqueue: {error!r}")
            await asyncio.sleep(0.03)

    async def _consume(self) -> None:
        while True:
            try:
                leased = await self.client.dequeue({self.topic: 5}, wait_s=2)
                self.delivered.update(item.id for item in leased)
                if leased:
                    results = await self.client.ack([item.ack() for item in leased])
                    assert {result.status for result in results} <= {"acked", "already_acked"}, results
                    self.acked.update(result.id for result in results)
            except Exception as error:
                self.failures.append(f"consume: {error!r}")
                await asyncio.sleep(0.05)


async def test_rolling_restart_fails_no_call_and_loses_or_doubles_no_item(
    database: Database, valkey: Valkey, tmp_path: Path
) -> None:
    """Leases of owners last so long that shards are handed over, or not had within the test's patience."""
    async with (
        fleet_on(database, valkey.url, tmp_path, owner_ttl_s=LONG_TTL_S, drain_s=DRAIN_S) as fleet,
        AsyncExitStack() as stack,
    ):
        processes = await fleet.add("queue", "q1", "q2")
        url = await fleet.balance(processes)
        await processes[0].until_owned("q1", "q2")
        client = await stack.enter_async_context(AsyncClient(queue_url=url))
        load = await stack.enter_async_context(Load(client).running())
        await load.until(50)
        for process, other in (processes, processes[::-1]):
            process.signal(signal.SIGTERM)
            async with asyncio.timeout(LONG_TTL_S / 2):  # a lease has two thirds left at least
                await other.until_owned(other.name)
            assert await process.child.wait() == -signal.SIGTERM, "it ends by the signal, not by force"
            await load.until(30)
            await process.start()
            await other.until_owned("q1", "q2")
            await load.until(30)

    assert load.failures == []
    assert load.acked == Counter(load.sent)
    assert load.delivered == Counter(load.sent)


async def test_a_killed_owners_shards_are_taken_over(fleet: Fleet) -> None:
    first, second = await fleet.add("queue", "q1", "q2")
    before = await second.until_owned("q1", "q2")
    shard = next(number for number, (owner, _) in before.items() if owner == "q1")
    async with AsyncClient(queue_url=second.url) as client:
        await client.enqueue([{"topic": "leased", "lease_s": 1, "affinity": str(n)} for n in range(40)])
        assert len(await client.dequeue({"leased": 40})) == 40
        await client.enqueue([{"topic": "delayed", "delay_s": 1.5, "affinity": str(n)} for n in range(40)])
        await first.kill()
        after = await second.until_owned("q2")
        leased = delayed = 0
        async with asyncio.timeout(120):
            while leased < 40 or delayed < 40:
                leased += len(await client.dequeue({"leased": 40}, wait_s=1, lease_s=60))
                delayed += len(await client.dequeue({"delayed": 40}, wait_s=1, lease_s=60))

    assert after[shard][1] == before[shard][1] + 1
    assert (leased, delayed) == (40, 40)


async def test_an_owner_that_stood_still_does_no_harm(fleet: Fleet) -> None:
    first, second = await fleet.add("queue", "q1", "q2")
    before = await second.until_owned("q1", "q2")
    async with (
        AsyncClient(queue_url=second.url) as client,
        AsyncClient(queue_url=first.url) as caller,
        Load(client).running(1, 2) as load,
        Load(caller, "own").running(1, 2) as callers,
    ):
        await load.until(20)
        await callers.until(20)
        first.signal(signal.SIGSTOP)
        alone = await second.until_owned("q2")
        await load.until(20)
        first.signal(signal.SIGCONT)
        both = await first.until_owned("q1", "q2")
        async with AsyncClient(queue_url=first.url) as there:
            load.client = there
            await load.until(20)
            await callers.until(20)

    assert callers.failures == load.failures == [], "who called it waited, and was answered"
    assert callers.acked == callers.delivered == Counter(callers.sent)
    assert load.acked == load.delivered == Counter(load.sent)
    assert all(before[n][1] <= alone[n][1] <= both[n][1] for n in before)
    grown = [alone[n][1] - before[n][1] for n, (owner, _) in before.items() if owner == "q1"]
    assert grown and all(more >= 1 for more in grown)


async def test_without_redis_items_go_their_way_and_owners_stay(fleet: Fleet, valkey: Valkey) -> None:
    first, second = await fleet.add("queue", "q1", "q2")
    before = await second.until_owned("q1", "q2")
    os.kill(valkey.child.pid, signal.SIGKILL)
    async with AsyncClient(queue_url=first.url) as here, AsyncClient(queue_url=second.url) as there:
        for n in range(3):
            waiting = asyncio.create_task(there.dequeue({"t": 1}, wait_s=10))
            [sent] = await here.enqueue([{"topic": "t", "payload": n}])
            [item] = await waiting
            assert (item.id, item.payload) == (sent.id, n)
            assert [result.status for result in await here.ack([item.ack()])] == ["acked"]
        await asyncio.sleep(TTL_S)
        assert await first.owners() == before
        await valkey.start()
        [third] = await fleet.add("queue", "q3")
        after = await third.until_owned("q1", "q2", "q3")

    assert all(after[n][1] >= before[n][1] for n in before)


async def test_a_consumer_anywhere_is_woken_by_what_becomes_ready_anywhere(fleet: Fleet) -> None:
    """Without hints each of these would wait for the next poll, 20 s away."""
    owner, other = await fleet.add("queue", "q1", "q2", HEADGATE_QUEUE_POLL_S="20")
    await other.until_owned("q1", "q2")
    async with AsyncClient(queue_url=owner.url) as here, AsyncClient(queue_url=other.url) as there:

        async def delivered(topic: str, *, at: AsyncClient) -> Any:
            async with asyncio.timeout(60):
                return await at.dequeue({topic: 1}, wait_s=9)

        for n, (at, via) in enumerate(((here, there), (there, here))):
            for m, fields in enumerate(({}, {"delay_s": 0.4}, {"disabled": True}, {"lease_s": 1})):
                topic = f"t{n}.{m}"
                if "lease_s" in fields:  # what another has, and lets run out
                    [sent] = await via.enqueue([{"topic": topic, **fields}])
                    assert await via.dequeue({topic: 1}, wait_s=9)
                waiting = asyncio.create_task(delivered(topic, at=at))
                await asyncio.sleep(0.2)
                if "lease_s" not in fields:
                    [sent] = await via.enqueue([{"topic": topic, **fields}])
                if "disabled" in fields:
                    await via.revive([{"id": sent.id}])
                [item] = await waiting
                assert item.id == sent.id


async def test_a_killed_dag_process_leaves_no_dag_standing(fleet: Fleet) -> None:
    [queue] = await fleet.add("queue", "q1")
    first, second = await fleet.add("dag", "d1", "d2", HEADGATE_QUEUE_URL=queue.url)
    before = await second.until_owned("d1", "d2")
    chain = {f"n{i}": [f"n{i - 1}"] if i else [] for i in range(12)}
    nodes = [{"key": key, "topic": "step", **({"upstream": ups} if ups else {})} for key, ups in chain.items()]
    seen: list[str] = []
    async with AsyncClient(queue_url=queue.url, dag_url=second.url) as client:
        made = [(await client.create_dag({"nodes": nodes})).id for _ in range(4)]  # over both shards
        ends = [asyncio.create_task(client.dag(dag).wait(timeout_s=60)) for dag in made]
        while not all(end.done() for end in ends):
            for item in await client.dequeue({"step": 4}, wait_s=1):
                seen.append(f"{item.dag.id}/{item.dag.node}")
                await client.ack([item.ack()])
            if first.child.running and len(seen) >= 16:
                await first.kill()
        states = [(await end).state for end in ends]
        after = await second.until_owned("d2")

    assert states == ["succeeded"] * 4
    assert Counter(seen) == Counter(f"{dag}/{key}" for dag in made for key in chain)
    assert all(after[n][1] >= before[n][1] for n in before)


async def test_rolling_restart_of_dag_processes_fails_no_call_and_stalls_no_dag(
    database: Database, valkey: Valkey, tmp_path: Path
) -> None:
    """Owners' leases outlast the test's patience: shards are handed over, or their DAGs stand."""
    async with (
        fleet_on(database, valkey.url, tmp_path, owner_ttl_s=LONG_TTL_S, drain_s=DRAIN_S) as fleet,
        AsyncExitStack() as stack,
    ):
        # Each end goes to the DAG service, and may meet its restart there.
        [queue] = await fleet.add("queue", "q1", HEADGATE_QUEUE_FOLD_COMPLETIONS="false")
        processes = await fleet.add("dag", "d1", "d2", HEADGATE_QUEUE_URL=queue.url)
        url = await fleet.balance(processes)
        await processes[0].until_owned("d1", "d2")
        client = await stack.enter_async_context(AsyncClient(queue_url=queue.url, dag_url=url))
        ended: list[str] = []
        ran: Counter[str] = Counter()
        stops = asyncio.Event()

        async def build(number: int) -> None:
            nodes = [{"key": "a", "topic": "s"}, {"key": "b", "topic": "s", "upstream": ["a"], "external": ["go"]}]
            for n in itertools.count():
                if stops.is_set():
                    return
                dag = client.dag((await client.create_dag({"key": f"{number}.{n}", "nodes": nodes})).id)
                await dag.resolve("b", "go")
                ended.append((await dag.wait(timeout_s=60)).state)
                await asyncio.sleep(PAUSE_S)

        async def consume() -> None:
            while True:
                items = await client.dequeue({"s": 8}, wait_s=1)
                ran.update(f"{item.dag.id}/{item.dag.node}" for item in items)
                await client.ack([item.ack() for item in items]) if items else None

        async def until(more: int) -> None:
            wanted = len(ended) + more
            async with asyncio.timeout(LONG_TTL_S / 2):  # a lease has two thirds left at least
                while len(ended) < wanted:
                    assert not any(task.done() for task in builders), [task for task in builders if task.done()]
                    await asyncio.sleep(0.01)

        builders = [asyncio.create_task(build(n)) for n in range(3)]
        consumer = asyncio.create_task(consume())
        await until(6)
        for process, other in (processes, processes[::-1]):
            process.signal(signal.SIGTERM)
            async with asyncio.timeout(LONG_TTL_S / 2):
                await other.until_owned(other.name)
            assert await process.child.wait() == -signal.SIGTERM, "it ends by the signal, not by force"
            await until(6)
            await process.start()
            await other.until_owned("d1", "d2")
            await until(6)
        stops.set()
        await asyncio.gather(*builders)
        consumer.cancel()

    assert set(ended) == {"succeeded"}
    assert len(ran) == 2 * len(ended) and set(ran.values()) == {1}


async def test_two_owners_of_every_shard_lose_and_double_nothing(
    database: Database, valkey: Valkey, tmp_path: Path
) -> None:
    """Both reap, promote, rotate and hand out everywhere, while leases run out and items are given back."""
    async with fleet_on(database, valkey.url, tmp_path, ownership="everyone", drain_s=0) as fleet:
        processes = await fleet.add("queue", "q1", "q2")
        async with AsyncClient(queue_url=processes[0].url) as one, AsyncClient(queue_url=processes[1].url) as two:
            sent: set[str] = set()
            for n in range(20):
                items = [{"topic": "t", "lease_s": 1, **({"delay_s": 0.3} if k % 3 else {})} for k in range(10)]
                sent.update(result.id for result in await (one, two)[n % 2].enqueue(items))
            acked: Counter[str] = Counter()

            async def consume(client: AsyncClient, number: int) -> None:
                while len(acked) < len(sent):
                    for k, item in enumerate(await client.dequeue({"t": 6}, wait_s=0.5)):
                        match (k + number + item.attempt) % 3 if item.attempt < 3 else 2:
                            case 0:
                                pass  # nobody answers: the lease runs out
                            case 1:
                                await client.nack(
                                    [{"id": item.id, "lease_token": item.lease_token, "delay_s": 0.2}]
                                )
                            case _:
                                [result] = await client.ack([item.ack()])
                                acked.update([result.id] if result.status == "acked" else [])

            async with asyncio.timeout(120):
                await asyncio.gather(*(consume(client, n) for n, client in enumerate((one, two) * 3)))

    assert acked == Counter(sent)
    for address in database.addresses:
        if address.schema.startswith("queue_"):
            connection = await database.connect(address.schema)
            left = await connection.fetchrow(
                "SELECT (SELECT count(*) FROM item) AS items, (SELECT count(*) FROM ready) AS ready,"
                " (SELECT count(*) FROM deferred) AS deferred"
            )
            await connection.close()
            assert tuple(left) == (0, 0, 0), address.schema
