"""The duty that deletes empty topics against whoever uses one, by statements, and at random by two processes.

What is taken in is in a topic of its name and namespace, whatever the order; nothing of it is lost.
"""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from services.queue.duties.empty_topics import EmptyTopics
from services.queue.settings import QueueSettings
from tests.support.databases import Databases
from tests.support.interleave import Actor, actor_on, explore
from tests.support.queue_host import Api, QueueHost, queue_host
from tests.support.queue_scene import ANYBODY, NS, Scene

# All topics as if they had been empty for long, and none marked.
IDLE = """
INSERT INTO topic_stat (topic_id, ready, delayed, leased, disabled, dead) SELECT topic_id, 0, 0, 0, 0, 0 FROM topic
ON CONFLICT (topic_id) DO UPDATE SET folded_at = '-infinity';
UPDATE topic_stat SET folded_at = '-infinity'; UPDATE topic SET retiring = NULL, paused = false, min_share = NULL,
    paused_at = NULL, min_share_at = NULL
"""
# The item, in a topic of its name; where its end is told; and items whose topic is not there.
FOUND = """
SELECT (SELECT t.topic_id FROM item i JOIN topic t USING (topic_id) WHERE i.id = $1 AND t.name = 't') AS topic_id,
    (SELECT count(*) FROM item i JOIN topic a ON a.topic_id = i.ack_topic_id
        WHERE i.id = $1 AND a.name = 'told') AS tells,
    (SELECT count(*) FROM ready JOIN topic USING (topic_id) WHERE name = 'told') AS told,
    (SELECT count(*) FROM item WHERE NOT EXISTS (
        SELECT FROM topic WHERE topic.topic_id = item.topic_id)) AS strays,
    (SELECT count(*) FROM topic_stat WHERE NOT EXISTS (
        SELECT FROM topic WHERE topic.topic_id = topic_stat.topic_id)) AS stray_counts
"""
STEPS = 3
INTERRUPTIONS = 2


@pytest.fixture(scope="module")
async def scene(databases: Databases) -> AsyncIterator[Scene]:
    database = await databases.create(queue_shards=1, dag_shards=1)
    watcher = await asyncpg.connect(database.dsn, server_settings={"search_path": "queue_000"})
    reader = await asyncpg.connect(database.dsn, server_settings={"search_path": "queue_000"})
    async with actor_on(database) as a, actor_on(database) as b:
        yield Scene(a, b, watcher, reader)
    await watcher.close()
    await reader.close()
    await databases.drop(database)


async def delete(actor: Actor) -> str:
    """What a process does about empty topics in a few steps, and then leaves."""
    duty = EmptyTopics(actor.store, QueueSettings(shards="x#1", topic_retention_s=0))
    for _ in range(STEPS):
        await duty.step()
        if duty.is_idle:
            break
    return "left"


async def race(
    scene: Scene, begin: Callable[[], Awaitable[None]], use: Callable[[Actor], Awaitable[str]], check: Any
) -> None:
    """One process uses the topic while another deletes it; both outcomes must come up."""
    numbers: set[bool] = set()

    async def start() -> list[Any]:
        await begin()
        number = await scene.watcher.fetchval("SELECT topic_id FROM topic WHERE name = 'told'")
        scene.operation_id = str(number)
        return [lambda: use(scene.a), lambda: delete(scene.b)]

    async def look(results: list[Any]) -> None:
        found = dict(await scene.watcher.fetchrow(FOUND, scene.item_id))
        assert found["strays"] == found["stray_counts"] == 0, found
        check(results[0], found)
        number = await scene.watcher.fetchval("SELECT topic_id FROM topic WHERE name = 'told'")
        numbers.add(str(number) == scene.operation_id)

    actors = [scene.a, scene.b]
    orders = await explore(scene.watcher, actors, start, look, whole=True, interruptions_max=INTERRUPTIONS)
    assert numbers == {True, False}, f"the topic always stayed, or always went, in {orders} orders"


async def known_and_idle(scene: Scene) -> None:
    """Both topics are known to the process, and have been empty for long."""
    await scene.enqueue()
    await scene.clear()
    await scene.watcher.execute(IDLE)


def is_taken(result: str, found: dict[str, Any]) -> None:
    assert result == "enqueued"
    assert found["topic_id"] is not None and found["tells"] == 1, found


async def test_an_enqueue_against_the_end_of_its_topics(scene: Scene) -> None:
    await race(scene, lambda: known_and_idle(scene), scene.enqueue_again, is_taken)


async def test_an_enqueue_with_a_key_against_the_end_of_its_topics(scene: Scene) -> None:
    """A transaction of several statements: what it has written is seen by nobody while the topic is looked at."""

    async def enqueue(actor: Actor) -> str:
        item = scene.item(id=None, idempotency_key="order/1")
        [result] = await actor.process.enqueues.enqueue(NS, [item], ANYBODY)
        scene.item_id = str(result.id)
        return str(result.status)

    await race(scene, lambda: known_and_idle(scene), enqueue, is_taken)


async def test_an_ack_against_the_end_of_the_topic_where_it_is_told(scene: Scene) -> None:
    async def begin() -> None:
        await scene.enqueue()
        await scene.lease()
        await scene.watcher.execute(IDLE)

    async def start() -> list[Any]:
        await begin()
        return [lambda: scene.ack(scene.a), lambda: delete(scene.b)]

    async def look(results: list[Any]) -> None:
        found = dict(await scene.watcher.fetchrow(FOUND, scene.item_id))
        assert found["strays"] == 0
        assert (results[0], found["told"]) == ("acked", 1)

    assert await explore(scene.watcher, [scene.a, scene.b], start, look, whole=True) > 1


@pytest.mark.parametrize("what", ["pause", "configure"])
async def test_a_setting_against_the_end_of_its_topic(scene: Scene, what: str) -> None:
    async def put(actor: Actor) -> str:
        if what == "pause":
            await actor.process.topics.pause(NS, "told", True)
        else:
            await actor.process.topics.configure(NS, "told", ((5, 0.1),))
        return "set"

    def is_set(result: str, _found: dict[str, Any]) -> None:
        assert result == "set"

    await race(scene, lambda: known_and_idle(scene), put, is_set)
    kept = await scene.watcher.fetchrow("SELECT * FROM topic WHERE name = 'told'")
    assert kept["paused"] if what == "pause" else kept["min_share"]


# -- at random ----------------------------------------------------------------------------------------------

TOPICS = ("a", "b")
TOLD = "told"


class World:
    """Two processes on one shard, two tenants with topics of the same names, and what was taken and acked."""

    def __init__(self, hosts: tuple[QueueHost, QueueHost], seed: int) -> None:
        self.chance = random.Random(seed)
        self.hosts = hosts
        self.tenants = ("one", "two")
        self.duties = {host: EmptyTopics(host.stores[0], host.settings) for host in hosts}
        self.stepping = {host: asyncio.Lock() for host in hosts}
        self.taken: Counter[str] = Counter()
        self.acked: Counter[str] = Counter()
        self.told: Counter[str] = Counter()
        self.tellers: set[str] = set()
        self.deleted = 0
        self.number = 0

    async def act(self) -> None:
        """One call, or one step of a duty, of either process."""
        host = self.chance.choice(self.hosts)
        api = Api(host, self.chance.choice(self.tenants))
        does = self.chance.choices(
            [self.enqueue, self.work, self.hear, self.delete, self.crash, self.fold], [3, 4, 1, 6, 1, 3]
        )[0]
        await does(api)

    async def enqueue(self, api: Api) -> None:
        self.number += 1
        payload = f"{api.namespace}/{self.chance.choice(TOPICS)}/{self.number}"
        fields: dict[str, Any] = self.chance.choice(
            [{}, {"idempotency_key": payload}, {"id": api.new_id(0)}, {"ack_topic": TOLD}, {"max_attempts": 3}]
        )
        await api.enqueue_one(payload.split("/")[1], payload=payload, **fields)
        self.taken[payload] += 1
        if "ack_topic" in fields:
            self.tellers.add(payload)

    async def work(self, api: Api, wait_s: float = 0.0) -> int:
        topic = self.chance.choice(TOPICS)
        leased = await api.dequeue(topic, 3, wait_s=wait_s)
        for held in leased:
            assert held["payload"].split("/")[:2] == [api.namespace, topic], "another tenant's, or another topic's"
            if self.chance.random() < 0.3:
                assert await api.nack(held, costs_attempt=False) == ["requeued"]
                continue
            assert await api.ack(held) == ["acked"]
            self.acked[held["payload"]] += 1
        return len(leased)

    async def hear(self, api: Api) -> None:
        for told in await api.completions(TOLD):
            self.told[told["id"]] += 1

    async def delete(self, api: Api) -> None:
        # A process' loop makes one step of it at a time.
        async with self.stepping[api.host]:
            self.deleted += await self.duties[api.host].step()

    async def crash(self, api: Api) -> None:
        """A process ends with what its duty remembers, and another comes."""
        self.duties[api.host] = EmptyTopics(api.host.stores[0], api.host.settings)

    async def fold(self, api: Api) -> None:
        await api.host.fold()
        await api.host.reap()

    async def drain(self) -> None:
        """All that was taken comes out, at whichever process."""
        for _ in range(300):
            for tenant in self.tenants:
                api = Api(self.chance.choice(self.hosts), tenant)
                await api.host.pass_time(2)  # what was given back waits for a second
                await self.work(api)
                await self.hear(api)
            if self.taken == self.acked and sum(self.told.values()) == len(self.tellers):
                return
        raise AssertionError((self.taken - self.acked, self.told))


@pytest.mark.parametrize("seed", range(6))
async def test_two_processes_lose_nothing_while_topics_come_and_go(databases: Databases, seed: int) -> None:
    database = await databases.create(queue_shards=1, dag_shards=1)
    settings: dict[str, Any] = {"topic_retention_s": 0, "names_max": 4_000, "poll_s": 0.01}
    async with queue_host(database, **settings) as one, queue_host(database, one.clock, **settings) as two:
        world = World((one, two), seed)
        for _ in range(150):
            # One call after another, or several at once.
            await asyncio.gather(*(world.act() for _ in range(world.chance.choice([1, 1, 2, 3]))))
        await world.drain()
        assert world.taken and max(world.taken.values()) == 1
        assert max(world.told.values(), default=1) == 1
        assert world.deleted > 0, "no topic went"
        assert await one.count("item") == 0
    await databases.drop(database)
