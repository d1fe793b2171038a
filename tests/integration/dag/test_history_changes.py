"""A shard's server tells another history in the middle of a call: what was read of the former stands for nothing.

A new connection tells so; here it is told at the worst moment, while the queue is being asked.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from services.dag.build.queue_registration import QueueRegistrar
from services.dag.model import Addition
from shared.errors import ServiceError
from shared.postgres.history import HistoryChanged
from shared.shards.shard_map import Shard
from tests.support.dag_world import BASE, DagWorld, specs


def changes(shard: Shard) -> None:
    """Its server is another from now on; the connections that come are this one's."""
    history = shard.history
    real = history._known
    with suppress(HistoryChanged):
        history.meet("another server")
    history._known = real


@contextmanager
def refused() -> Iterator[None]:
    with pytest.raises(ServiceError) as caught:
        yield
    assert caught.value.outcome == "unknown" or caught.value.status == 503


async def test_an_add_that_was_given_meanwhile_is_not_told_as_done(world: DagWorld) -> None:
    """Its rows may be lost, and its numbers be others'."""
    async with world.queue.hold("enqueue", 1) as held:
        body = {"key": "k", "nodes": specs({"a": [], "b": ["a"]})}
        making = asyncio.create_task(world.http.post(BASE, json=body))
        await held.reached()
        changes(world.shard)
        held.released.set()
        answer = await making
    assert (answer.status_code, answer.json()["code"]) == (503, "add_unfinished")
    await world.sweep()


async def test_an_add_that_is_driven_meanwhile_is_left_as_it_is(world: DagWorld) -> None:
    world.queue.down.add("enqueue")
    await world.call("POST", "", {"key": "k", "nodes": specs({"a": [], "b": ["a"]})})
    world.queue.down.clear()
    [row] = await world.rows("SELECT first_no, last_no FROM adding")
    async with world.queue.hold("enqueue", 1) as held:
        driving = asyncio.create_task(
            QueueRegistrar(world.duties.context).drive(world.shard, Addition(row["first_no"], row["last_no"]))
        )
        await held.reached()
        changes(world.shard)
        held.released.set()
        with refused():
            await driving
    assert len(await world.rows("SELECT * FROM adding")) == 1
    await world.sweep()
    assert await world.rows("SELECT * FROM adding") == []


async def test_a_release_that_was_sent_meanwhile_keeps_its_row(world: DagWorld) -> None:
    """Under its number another node's may stand by now."""
    await world.create({"a": [], "b": ["a"]})
    await world.settle()
    async with world.queue.hold("revive", 1) as held:
        world.queue.ack("a")
        await world.loops.results[0].drain()
        await held.reached()
        changes(world.shard)
        held.released.set()
        await world.loops.relay.idle()
    assert [row["action"] for row in await world.rows("SELECT action FROM outbox")] == ["revive"]
    await world.sweep()
    assert await world.rows("SELECT * FROM outbox") == []
