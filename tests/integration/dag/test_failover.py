"""A DAG shard's server is replaced by a standby that lost the last transactions: nothing is done from memory.

The numbers of DAGs, and the versions of their structures, are given again. A standby begins 32 numbers further on,
so more DAGs than that are lost here. One failover serves all tests.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import NamedTuple

import pytest

from tests.support.dag_world import DagWorld
from tests.support.queue_fake import FakeQueue
from tests.support.replicas import replicated

MANY = 60
WAIT_S = 25.0


class Aftermath(NamedTuple):
    """Two processes behind which the shard's server was replaced; `grown` is a DAG whose last edge was lost."""

    first: DagWorld
    second: DagWorld
    grown: str
    born: list[str]
    stream: asyncio.Task[str]


async def reached(world: DagWorld) -> None:
    """The first calls after a failover may be refused."""
    async with asyncio.timeout(WAIT_S):
        while True:
            answer = await world.http.post("/v1/namespaces/probe/dags", json={})
            if answer.status_code == 201:
                return
            assert answer.status_code == 503, answer.text


async def followed(world: DagWorld, dag: str) -> str:
    """All that a stream of a DAG's changes says until it ends."""
    answer = await world.http.get(f"/v1/namespaces/default/dags/{dag}/events")
    return answer.text


@pytest.fixture(scope="module")
async def after(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Aftermath]:
    """A failover that lost edges, DAGs, and what the queue was to be told of them."""
    queue = FakeQueue()
    quick = {"event_keepalive_s": 0.05}
    async with replicated(tmp_path_factory.mktemp("failover")) as pair:
        first, second = (DagWorld(pair.database, queue, **quick) for _ in range(2))
        grown = await first.create({key: [] for key in "abxy"}, hold=True, open=True)
        await first.link(grown, ("a", "x"))
        await first.settle()
        await pair.cut_off()
        await first.link(grown, ("a", "b"))
        async with queue.hold("enqueue") as held:
            lost = [await first.create({"n": []}) for _ in range(MANY)]
            await held.reached()
            stream = asyncio.create_task(followed(first, lost[-1]))
            while not first.duties.streams.open_now:
                await asyncio.sleep(0.01)
            await pair.fail_over()
            for world in (second, first):
                await reached(world)
            born = [await first.create({"n": []}) for _ in range(MANY)]
            held.released.set()
            await first.loops.relay.idle()
        yield Aftermath(first, second, grown, born, stream)
        for world in (first, second):
            await world.close()


async def test_what_the_queue_is_told_of_lost_dags_stands_for_nothing_of_those_with_their_numbers(
    after: Aftermath,
) -> None:
    world = after.first
    await world.sweep()
    given = {item.body["ack_context"]["dag"] for item in world.queue.ready()}
    assert set(after.born) <= given
    assert await world.rows("SELECT * FROM outbox") == []


async def test_an_edge_that_was_lost_closes_no_cycle_and_one_in_its_place_does(after: Aftermath) -> None:
    await after.second.link(after.grown, ("x", "y"))  # the structure's version is what the lost edge made it
    await after.first.link(after.grown, ("b", "a"))
    await after.first.link(after.grown, ("y", "x"), expect=422)
    await after.first.audit(after.grown)


async def test_a_stream_of_a_lost_dag_ends_and_tells_of_no_other(after: Aftermath) -> None:
    async with asyncio.timeout(WAIT_S):
        said = await after.stream
    assert not any(dag in said for dag in after.born)
