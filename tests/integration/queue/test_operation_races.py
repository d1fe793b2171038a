"""A chunk of an operation against the verbs, in every order of their statements; hosts that die between chunks."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest

from services.queue.operations import bulk
from services.queue.store.names import SQL
from tests.support.databases import Database, Databases
from tests.support.fleet import run_for_ever
from tests.support.interleave import Actor, actor_on, explore
from tests.support.ports import free_port
from tests.support.queue_host import Api, QueueHost, queue_host
from tests.support.queue_scene import ANYBODY, EMPTY, NS, Scene, race


@pytest.fixture(scope="module")
async def scene(databases: Databases) -> AsyncIterator[Scene]:
    database = await databases.create(queue_shards=1, dag_shards=1)
    watcher = await asyncpg.connect(database.dsn, server_settings={"search_path": "queue_000"})
    reader = await asyncpg.connect(database.dsn, server_settings={"search_path": "queue_000"})
    async with actor_on(database) as a, actor_on(database) as b:
        made = Scene(a, b, watcher, reader)
        await made.enqueue()
        for actor in (a, b):
            await actor.store.names.make([(NS, "t"), (NS, "told")])
            await actor.store.names.make_namespace(NS)
        yield made
    await watcher.close()
    await reader.close()
    await databases.drop(database)


class Begin:
    """Scenes: an item in some state, and an operation that nobody has carried on yet."""

    def __init__(self, scene: Scene, kind: str, *, is_leased: bool = False, is_late: bool = False, **wanted: Any):
        self.scene = scene
        self.kind = kind
        self.is_leased = is_leased or is_late
        self.is_late = is_late
        self.wanted = wanted

    async def __call__(self) -> None:
        await self.scene.enqueue()
        if self.is_leased:
            await self.scene.lease()
        if self.is_late:
            await self.scene.expire()
        await self.scene.place(self.kind, **self.wanted)


async def test_a_purge_against_a_claim(scene: Scene) -> None:
    """Whoever claims it first is cancelled under his hands, which his ack tells him."""
    await race(
        scene,
        Begin(scene, "purge"),
        (scene.carry_on, scene.claimed),
        {("changed 1", "claimed"): "cancelled", ("changed 1", "nothing"): "cancelled"},
    )


async def test_a_purge_of_ready_items_against_a_claim(scene: Scene) -> None:
    """Filtered by state it must not take what has been leased meanwhile."""
    await race(
        scene,
        Begin(scene, "purge", state="ready"),
        (scene.carry_on, scene.claimed),
        {("changed 0", "claimed"): "lease", ("changed 1", "nothing"): "cancelled"},
    )


async def test_a_purge_against_an_ack(scene: Scene) -> None:
    await race(
        scene,
        Begin(scene, "purge", is_leased=True),
        (scene.carry_on, scene.ack),
        {("changed 1", "cancelled"): "cancelled", ("changed 0", "acked"): "acked"},
    )


async def test_a_purge_against_a_nack(scene: Scene) -> None:
    await race(
        scene,
        Begin(scene, "purge", is_leased=True),
        (scene.carry_on, scene.nack),
        {("changed 1", "cancelled"): "cancelled", ("changed 1", "requeued"): "cancelled"},
    )


async def test_a_cancel_of_leased_items_against_a_nack(scene: Scene) -> None:
    """What went back into the topic is not leased any more: it stays."""
    await race(
        scene,
        Begin(scene, "cancel", is_leased=True, state="leased"),
        (scene.carry_on, scene.nack),
        {("changed 1", "cancelled"): "cancelled", ("changed 0", "requeued"): "ready"},
    )


async def test_a_cancel_against_the_death_of_an_item(scene: Scene) -> None:
    """A dead item has told its end: cancel by filter leaves it where it is."""

    async def die(actor: Actor) -> str:
        return await scene.nack(actor, final=True)

    await race(
        scene,
        Begin(scene, "cancel", is_leased=True),
        (scene.carry_on, die),
        {("changed 1", "cancelled"): "cancelled", ("changed 0", "dead"): "parked"},
    )


async def test_a_purge_against_the_sweep_of_a_lease(scene: Scene) -> None:
    async def sweep(actor: Actor) -> str:
        await scene.sweep(actor)
        return "swept"

    await race(
        scene,
        Begin(scene, "purge", is_late=True),
        (scene.carry_on, sweep),
        {("changed 1", "swept"): "cancelled"},
    )


@pytest.mark.parametrize("kind", ["purge", "cancel"])
async def test_two_hosts_at_one_operation_change_an_item_once(scene: Scene, kind: str) -> None:
    await race(
        scene,
        Begin(scene, kind),
        (scene.carry_on, scene.carry_on),
        {("changed 1", "changed 0"): "cancelled", ("changed 0", "changed 1"): "cancelled"},
    )


async def test_two_hosts_redrive_once(scene: Scene) -> None:
    async def begin() -> None:
        await scene.enqueue()
        await scene.lease()
        await scene.nack(scene.a, final=True)
        await scene.place("redrive")

    await race(
        scene,
        begin,
        (scene.carry_on, scene.carry_on),
        {("changed 1", "changed 0"): "ready", ("changed 0", "changed 1"): "ready"},
    )


async def test_a_purge_of_dead_items_against_their_redrive(scene: Scene) -> None:
    """An item that was put back in time is not dead any more: it stays. Its end is told no second time."""

    async def begin() -> None:
        await scene.enqueue()
        await scene.lease()
        await scene.nack(scene.a, final=True)
        await scene.place("purge", state="dead")

    async def redrive(actor: Actor) -> str:
        return f"redriven {len(await actor.store.pool.fetch(SQL.redrive, ids=[scene.item_id]))}"

    await race(
        scene,
        begin,
        (scene.carry_on, redrive),
        {("changed 1", "redriven 0"): "cancelled", ("changed 0", "redriven 1"): "ready"},
    )


async def test_a_redrive_against_an_enqueue_of_the_same_unique_key(scene: Scene) -> None:
    """Either the dead item holds the key again, or it has lost it and stays dead."""
    seen = set()
    unique = {"id": None, "idempotency_key": "k", "unique": True}

    async def begin() -> list[Any]:
        await scene.watcher.execute(EMPTY)
        [made] = await scene.a.process.enqueues.enqueue(NS, [scene.item(**unique)], ANYBODY)
        scene.item_id = made.id
        await scene.lease()
        await scene.nack(scene.a, final=True)
        await scene.place("redrive")
        return [lambda: scene.carry_on(scene.a), lambda: scene.enqueue_again(scene.b, **unique)]

    async def check(results: list[Any]) -> None:
        assert tuple(results) in {("changed 1", "duplicate"), ("changed 0", "enqueued")}, results
        seen.add(tuple(results))
        assert await scene.watcher.fetchval("SELECT count(*) FROM ready JOIN dedup USING (id)") == 1

    await explore(scene.watcher, [scene.a, scene.b], begin, check, whole=True)
    assert len(seen) == 2


async def test_stopping_an_operation_against_a_chunk(scene: Scene) -> None:
    """Stopped before the chunk it changes nothing; after it, the chunk is whole."""

    async def stop(actor: Actor) -> str:
        found = await actor.process.operations.cancel(NS, scene.operation_id)
        return str(found["state"])

    await race(
        scene,
        Begin(scene, "purge"),
        (scene.carry_on, stop),
        {("changed 0", "cancelled"): "ready", ("changed 1", "done"): "cancelled"},
    )


class Bystander:
    """The watcher, and somebody who holds a table until the watcher has looked three times, as a vacuum does."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._looks = 0
        self._held: Any = None

    async def hold(self, table: str) -> None:
        self._looks, self._held = 0, self._scene.reader.transaction()
        await self._held.start()
        await self._scene.reader.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")

    async def fetch(self, sql: str, *args: Any) -> Any:
        found = await self._scene.watcher.fetch(sql, *args)
        self._looks += 1
        if self._looks >= 3:
            await self.let_go()
        return found

    async def let_go(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            await held.rollback()


async def test_who_waits_for_a_bystander_goes_on_as_in_every_other_run(scene: Scene) -> None:
    """An actor that a vacuum held up for a moment was taken for blocked, and another went on in its place."""
    orders = []
    for table in (None, "operation"):
        bystander = Bystander(scene)

        async def begin(table: str | None = table, bystander: Bystander = bystander) -> list[Any]:
            await bystander.let_go()
            await Begin(scene, "cancel", is_leased=True, state="leased")()
            if table is not None:
                await bystander.hold(table)
            return [lambda: scene.carry_on(scene.a), lambda: scene.nack(scene.b)]

        async def check(results: list[Any]) -> None:
            assert tuple(results) in {("changed 1", "cancelled"), ("changed 0", "requeued")}

        orders.append(await explore(bystander, [scene.a, scene.b], begin, check, whole=True))
        await bystander.let_go()
    assert orders[0] == orders[1] > 1


# -- hosts that die -----------------------------------------------------------------------------------------

ITEMS = 45
CHUNKS = {"chunk_items_max": 10, "operation_rows_max": 10}


class Died(BaseException):
    """Stands for the end of a process: nothing behind it runs."""


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize(
    "point", ["operation_placed_once", "operation_chunk_written", "operation_chunk_committed"]
)
async def test_a_host_that_dies_at_any_chunk_leaves_the_rest_to_the_next(
    databases: Databases, monkeypatch: pytest.MonkeyPatch, point: str, shards: int
) -> None:
    """Each host does one more chunk than the one before, and dies at the point; every item is changed once."""
    database = await databases.create(queue_shards=shards, dag_shards=1)
    async with queue_host(database, **CHUNKS) as host:
        api = Api(host)
        await api.enqueue(*({"topic": "t", "ack_topic": "told", "affinity": str(n)} for n in range(ITEMS)))
        left = 1

        def die(name: str) -> None:
            nonlocal left
            left -= name == point
            if name == point and left == 0:
                raise Died

        monkeypatch.setattr(bulk, "crash_point", die)
        with suppress(Died):
            await api.host.process.operations.start(api.namespace, "purge", {"topic": "t"})
        await host.clock.advance(20)
        for life in range(2, 12):
            left = life
            with suppress(Died):
                for store in [store for store in host.stores.values() for _ in range(ITEMS)]:
                    await host.process.operations.step(store)
        [found] = (await api.get("operations")).json()["items"]
        assert (found["state"], found["changed"], found["skipped"]) == ("done", ITEMS, 0)
        assert await api.topic("t") == {}
        told = [part["id"] for part in await api.completions("told")]
        assert len(set(told)) == len(told) == ITEMS
    await databases.drop(database)


class MortalQueue:
    """A queue service in a process of its own, which kills itself at a crash point; then another begins."""

    def __init__(self, database: Database, crash_at: str, run_dir: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.exit_codes: list[int] = []
        self._environment = {
            **os.environ,
            "HEADGATE_QUEUE_SHARDS": database.queue_shards,
            "HEADGATE_QUEUE_PORT": str(self.port),
            "HEADGATE_QUEUE_CHUNK_ITEMS_MAX": "10",
            "HEADGATE_QUEUE_OPERATION_POLL_S": "0.1",
            "HEADGATE_QUEUE_OWNER_NAME": "mortal",
            "HEADGATE_QUEUE_DRAIN_S": "0",
        }
        self._armed = {"HEADGATE_CRASH_AT": crash_at}
        self._run_dir = run_dir

    async def run(self) -> None:
        """Run until cancelled."""
        await run_for_ever("queue", self._next, self._run_dir, self.exit_codes)

    def _next(self) -> dict[str, str]:
        armed, self._armed = self._armed, {}
        return self._environment | armed


async def test_kill_9_in_the_middle_of_a_purge(own_host: QueueHost, tmp_path: Path) -> None:
    api = Api(own_host, "default")
    await api.enqueue(*({"topic": "t", "ack_topic": "told", "affinity": str(n)} for n in range(ITEMS)))
    queue = MortalQueue(own_host.database, "operation_chunk_written", tmp_path)
    running = asyncio.create_task(queue.run())
    try:
        async with asyncio.timeout(240), httpx.AsyncClient(base_url=queue.url, timeout=10) as http:
            while not queue.exit_codes:
                with suppress(httpx.TransportError):
                    await http.post("/v1/namespaces/default/topics/purge", json={"topic": "t"})
                await asyncio.sleep(0.05)
            # The next process goes on by itself: nobody asks it to.
            while await own_host.count("operation", "state = 'running'"):
                await asyncio.sleep(0.05)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert queue.exit_codes[0] == -9, "the host was to die here"
    assert sum(row["changed"] for row in await own_host.rows("SELECT changed FROM operation")) == ITEMS
    assert len(await api.completions("told")) == ITEMS
    kept = await own_host.rows("SELECT verb, target, ended FROM audit_entry")
    assert [tuple(row) for row in kept] == [("purge topic", "t", False)], "who purged is known, whatever died"


async def test_a_shard_that_was_away_is_gone_through_when_it_is_back(databases: Databases) -> None:
    database = await databases.create(queue_shards=2, dag_shards=1)
    dead = "postgresql://nobody@127.0.0.1:1/none"
    async with queue_host(database) as whole:
        api = Api(whole)
        for shard in (0, 1, 1):
            await api.enqueue_one("t", id=api.new_id(shard))
        shards = f"0={database.dsn} 1={dead}"
        async with queue_host(database, shards=shards, operation_patience_s=0.5) as half:
            answer = await Api(half, api.namespace).post("topics/purge", {"topic": "t"})
            assert (answer.status_code, answer.json()["items"]) == (200, 1)
            assert answer.json()["operation"]["state"] == "running"
            path = f"operations/{answer.json()['operation']['id']}"
            seen = (await Api(half, api.namespace).get(path)).json()
            assert [part["state"] for part in seen["shards"]] == ["done", "waiting"]
        late = await api.enqueue_one("t", id=api.new_id(1))
        await whole.clock.advance(20)
        for _ in range(3):
            for store in whole.stores.values():
                await whole.process.operations.step(store)
        found = (await api.get(path)).json()
        assert (found["state"], found["changed"]) == ("done", 3)
        assert await api.state(late) == "ready", "it came after the purge was asked for"
    await databases.drop(database)
