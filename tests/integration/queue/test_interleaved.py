"""Two verbs on one item, their statements in every order, on real Postgres: one of them wins, the other is told.

After every order the tables must agree with the answers: the item is in exactly one place or gone, its end is
remembered once, and its ack topic was told as often as it ended.
"""

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from tests.support.databases import Databases
from tests.support.interleave import Actor, actor_on, explore
from tests.support.queue_scene import NS, Scene, race


@pytest.fixture(scope="module")
async def scene(databases: Databases) -> AsyncIterator[Scene]:
    database = await databases.create(queue_shards=1, dag_shards=1)
    watcher = await asyncpg.connect(database.dsn, server_settings={"search_path": "queue_000"})
    reader = await asyncpg.connect(database.dsn, server_settings={"search_path": "queue_000"})
    async with actor_on(database) as a, actor_on(database) as b:
        made = Scene(a, b, watcher, reader)
        await made.enqueue()
        for actor in (a, b):
            # Names are looked up once per process; the scenes begin after that.
            await actor.store.names.make([(NS, "t"), (NS, "told")])
            await actor.store.names.make_namespace(NS)
            await made.cancel(actor)
        yield made
    await watcher.close()
    await reader.close()
    await databases.drop(database)


async def test_sweep_against_ack(scene: Scene) -> None:
    async def begin() -> None:
        await scene.enqueue()
        await scene.lease()
        await scene.expire()

    await race(
        scene,
        begin,
        (scene.sweep, scene.ack),
        # In the third, the sweep took the group first and found the item gone: the ack had come to its row before.
        {("swept 1", "lease_lost"): "ready", ("swept 0", "acked"): "acked", ("swept 1", "acked"): "acked"},
    )


async def test_sweep_against_nack(scene: Scene) -> None:
    async def begin() -> None:
        await scene.enqueue()
        await scene.lease()
        await scene.expire()

    await race(
        scene,
        begin,
        (scene.sweep, scene.nack),
        {("swept 1", "lease_lost"): "ready", ("swept 0", "requeued"): "ready"},
    )


async def test_sweep_against_extend(scene: Scene) -> None:
    async def begin() -> None:
        await scene.enqueue()
        await scene.lease()
        await scene.expire()

    await race(
        scene,
        begin,
        (scene.sweep, scene.extend),
        {("swept 1", "lease_lost"): "ready", ("swept 0", "extended"): "lease"},
    )


async def test_two_sweeps_take_a_lease_back_once(scene: Scene) -> None:
    async def begin() -> None:
        await scene.enqueue()
        await scene.lease()
        await scene.expire()

    await race(
        scene,
        begin,
        (scene.sweep, scene.sweep),
        {("swept 1", "swept 0"): "ready", ("swept 0", "swept 1"): "ready"},
    )


async def test_sweep_and_redelivery_against_a_late_ack(scene: Scene) -> None:
    """An ack that read the first lease must not end the item under the second."""

    async def begin() -> None:
        await scene.enqueue()
        await scene.lease()
        await scene.expire()

    async def redeliver(actor: Actor) -> str:
        swept = await scene.sweep(actor)
        return f"{swept} {await scene.claimed(actor)}"

    await race(
        scene,
        begin,
        (redeliver, scene.ack),
        {
            ("swept 1 claimed", "lease_lost"): "lease",
            ("swept 0 nothing", "acked"): "acked",
            ("swept 1 nothing", "acked"): "acked",
        },
    )


async def test_cancel_against_claim(scene: Scene) -> None:
    await race(
        scene,
        scene.enqueue,
        (scene.cancel, scene.claimed),
        {("cancelled", "claimed"): "cancelled", ("cancelled", "nothing"): "cancelled"},
    )


async def test_cancel_against_ack(scene: Scene) -> None:
    async def begin() -> None:
        await scene.enqueue()
        await scene.lease()

    await race(
        scene,
        begin,
        (scene.cancel, scene.ack),
        {("cancelled", "cancelled"): "cancelled", ("finished", "acked"): "acked"},
    )


@pytest.mark.parametrize("final", [False, True])
async def test_cancel_against_nack(scene: Scene, final: bool) -> None:
    async def begin() -> None:
        await scene.enqueue()
        await scene.lease()

    async def nack(actor: Actor) -> str:
        return await scene.nack(actor, final=final)

    allowed = {("cancelled", "cancelled"): "cancelled", ("cancelled", "requeued"): "cancelled"}
    if final:
        allowed = {("cancelled", "cancelled"): "cancelled", ("finished", "dead"): "parked"}
    await race(scene, begin, (scene.cancel, nack), allowed)


async def test_cancel_against_sweep(scene: Scene) -> None:
    async def begin() -> None:
        await scene.enqueue()
        await scene.lease()
        await scene.expire()

    await race(
        scene,
        begin,
        (scene.cancel, scene.sweep),
        {("cancelled", "swept 1"): "cancelled"},
    )


async def test_cancel_against_revive(scene: Scene) -> None:
    async def begin() -> None:
        await scene.enqueue(disabled=True)

    await race(
        scene,
        begin,
        (scene.cancel, scene.revive),
        {("cancelled", "revived"): "cancelled", ("cancelled", "cancelled"): "cancelled"},
    )


async def test_two_cancels_end_an_item_once(scene: Scene) -> None:
    await race(
        scene,
        scene.enqueue,
        (scene.cancel, scene.cancel),
        {
            ("cancelled", "already_cancelled"): "cancelled",
            ("already_cancelled", "cancelled"): "cancelled",
        },
    )


async def test_ttl_against_claim(scene: Scene) -> None:
    async def begin() -> None:
        await scene.enqueue(ttl_s=100.0)
        await scene.watcher.execute("UPDATE item SET expires_at = clock_timestamp() - interval '1 second'")

    await race(
        scene,
        begin,
        (scene.expire_ttl, scene.claimed),
        # A claim that met it first parked it in a lease that is over: the sweep ends it as expired.
        {("expired 1", "nothing"): "expired", ("expired 0", "nothing"): "lease"},
    )


async def test_ttl_against_nack(scene: Scene) -> None:
    async def begin() -> None:
        await scene.enqueue(ttl_s=100.0)
        await scene.lease()
        await scene.watcher.execute("UPDATE item SET expires_at = clock_timestamp() - interval '1 second'")

    await race(
        scene,
        begin,
        (scene.expire_ttl, scene.nack),
        # What is given back past its TTL is ended by whichever meets it first.
        {("expired 0", "requeued"): "expired", ("expired 1", "requeued"): "expired"},
    )


async def test_ttl_against_cancel(scene: Scene) -> None:
    async def begin() -> None:
        await scene.enqueue(ttl_s=100.0)
        await scene.watcher.execute("UPDATE item SET expires_at = clock_timestamp() - interval '1 second'")

    await race(
        scene,
        begin,
        (scene.expire_ttl, scene.cancel),
        {("expired 1", "finished"): "expired", ("expired 0", "cancelled"): "cancelled"},
    )


async def test_two_hosts_claim_one_key_once(scene: Scene) -> None:
    await race(
        scene,
        scene.enqueue,
        (scene.claimed, scene.claimed),
        {("claimed", "nothing"): "lease", ("nothing", "claimed"): "lease"},
    )


async def test_two_acks_end_an_item_once(scene: Scene) -> None:
    async def begin() -> None:
        await scene.enqueue()
        await scene.lease()

    await race(
        scene,
        begin,
        (scene.ack, scene.ack),
        {("acked", "already_acked"): "acked", ("already_acked", "acked"): "acked"},
    )


async def test_two_enqueues_of_one_id_make_one_item(scene: Scene) -> None:
    await race(
        scene,
        scene.clear,
        (scene.enqueue_again, scene.enqueue_again),
        {("enqueued", "duplicate"): "ready", ("duplicate", "enqueued"): "ready"},
    )


async def test_cancel_of_an_unseen_id_against_its_enqueue(scene: Scene) -> None:
    seen = set()

    async def begin() -> list[Any]:
        await scene.clear()
        return [lambda: scene.cancel(scene.a), lambda: scene.enqueue_again(scene.b)]

    async def check(results: list[Any]) -> None:
        seen.add(tuple(results))
        found = await scene.places()
        assert results[0] == "cancelled"
        assert found["item"] == found["ready"] == 0
        assert found["ended"] == ["cancelled"]
        assert (results[1], found["told"]) in (("enqueued", 1), ("cancelled", 0)), found

    await explore(scene.watcher, [scene.a, scene.b], begin, check)
    assert len(seen) == 2


async def test_a_retried_enqueue_against_the_ack_of_the_first(scene: Scene) -> None:
    """The answer of the enqueue was lost; the item is acked and deleted while the retry is on its way."""

    async def begin() -> None:
        await scene.enqueue()
        await scene.lease()

    await race(scene, begin, (scene.ack, scene.enqueue_again), {("acked", "duplicate"): "acked"})


async def test_a_retried_enqueue_against_the_cancel_of_the_first(scene: Scene) -> None:
    await race(
        scene,
        scene.enqueue,
        (scene.cancel, scene.enqueue_again),
        {("cancelled", "duplicate"): "cancelled", ("cancelled", "cancelled"): "cancelled"},
    )


async def test_revive_of_an_item_whose_enqueue_is_on_its_way(scene: Scene) -> None:
    """A revive that missed it must not say that it is enabled: nobody would ever open it."""
    seen = set()

    async def begin() -> list[Any]:
        await scene.clear()
        return [lambda: scene.revive(scene.a), lambda: scene.enqueue_again(scene.b, disabled=True)]

    async def check(results: list[Any]) -> None:
        seen.add(tuple(results))
        found = await scene.consistent()
        where = {"revived": "ready", "not_found": "parked"}
        assert results[1] == "enqueued"
        assert results[0] in where
        assert found[where[results[0]]] == 1, found

    await explore(scene.watcher, [scene.a, scene.b], begin, check)
    assert len(seen) == 2


async def test_two_revives_open_an_item_once(scene: Scene) -> None:
    async def begin() -> None:
        await scene.enqueue(disabled=True)

    await race(
        scene,
        begin,
        (scene.revive, scene.revive),
        {("revived", "already_enabled"): "ready", ("already_enabled", "revived"): "ready"},
    )


async def test_ack_against_the_heartbeat_of_the_same_holder(scene: Scene) -> None:
    """A worker extends in the background while it acks: it still holds the lease, so the ack counts."""

    async def begin() -> None:
        await scene.enqueue()
        await scene.lease()

    await race(
        scene,
        begin,
        (scene.ack, scene.extend),
        {("acked", "extended"): "acked", ("acked", "lease_lost"): "acked"},
    )


async def test_nack_against_the_heartbeat_of_the_same_holder(scene: Scene) -> None:
    async def begin() -> None:
        await scene.enqueue()
        await scene.lease()

    await race(
        scene,
        begin,
        (scene.nack, scene.extend),
        {("requeued", "extended"): "ready", ("requeued", "lease_lost"): "ready"},
    )
