"""Acks of many nodes of one DAG that go on with it: in one piece, and as it is told."""

import asyncio
from collections.abc import AsyncIterator
from itertools import chain, pairwise
from typing import Any

import pytest

from shared.postgres.batcher import LIGHT_ENTRIES_MAX
from tests.integration.queue.test_hung_up_consumer import spy_on_claims, until_waiting
from tests.support.databases import Database
from tests.support.folding import Folding, folding_on
from tests.support.locks import locked

LOG = "SELECT c.last_event, c.nodes, c.dag FROM change c JOIN dag d ON d.no = c.dag_no WHERE d.id = $1 ORDER BY 1"
COUNTS = "SELECT blocked, released, succeeded, last_event FROM dag WHERE id = $1"


async def acked_at_once(way: Folding, nodes: dict[str, Any]) -> tuple[str, int]:
    """A new DAG, all of whose first nodes are acked by one call; how many of these ends are told."""
    dag = await way.dags.create(nodes)
    taken = await way.take(1_000)
    items = sorted(taken.values(), key=lambda item: item["id"])
    assert set(await way.queue.ack(*items)) == {"acked"}
    told = await way.completions()
    await way.settle()
    return dag, told


# Rows of the log end at a hundred changes; the last of them says what has been released.
@pytest.mark.parametrize("ends", [99, 100, 101, 200, 250])
async def test_many_ends_are_logged_as_they_are_told(folding: Folding, telling: Folding, ends: int) -> None:
    ups = [f"n{n}" for n in range(ends)]
    nodes = {**{key: [] for key in ups}, "half": ups[::2], "all": ups, "later": ["all"]}
    found = []
    for way in (folding, telling):
        dag, told = await acked_at_once(way, nodes)
        assert told == (0 if way is folding else ends)
        assert (await way.states(dag))["all"] == "released"
        log = [(row[0], (row[1] or "").split(), row[2]) for row in await way.dags.rows(LOG, dag)]
        # Ends of one ack have no order among them.
        found.append(
            (
                [(last, len(changes), stand) for last, changes, stand in log],
                sorted(change for _, changes, _ in log for change in changes),
                {change.partition(":")[2] for change in log[-1][1][-2:]},
                [tuple(row) for row in await way.dags.rows(COUNTS, dag)],
            )
        )
        await way.finish(dag)
    assert found[0] == found[1]


@pytest.mark.parametrize("ends", [2_000, 2_001])
async def test_ends_beyond_those_of_one_ack_are_told(folding_database: Database, ends: int) -> None:
    async with folding_on(folding_database, flush_items_max=3_000) as folding:
        names = [f"n{n}" for n in range(ends + 40)]
        dag = await folding.dags.create({name: [] for name in names[:1_000]})
        for at in range(1_000, len(names), 1_000):
            await folding.dags.add(dag, {name: [] for name in names[at : at + 1_000]})
        await folding.dags.add(dag, {"last": names[:1]})
        await folding.settle()
        taken = [item for _ in range(3) for item in (await folding.take(1_000)).values()]
        assert len(taken) == len(names)
        flushes = flushes_held(folding)
        first, rest = taken[:40], taken[40:]
        calls = [asyncio.create_task(folding.queue.ack(*first))]
        while not flushes:
            await asyncio.sleep(0)
        calls += [asyncio.create_task(folding.queue.ack(*rest[at : at + 1_000])) for at in range(0, ends, 1_000)]
        while folding.host.process.ack_flushes.flushes[0, False]._heavy.line.size < ends:
            await asyncio.sleep(0)
        flushes[0].set()
        assert {status for call in await asyncio.gather(*calls) for status in call} == {"acked"}
        assert len(flushes) == 2
        assert await folding.completions() == ends - 2_000
        await folding.finish(dag)


def flushes_held(folding: Folding) -> list[asyncio.Event]:
    """Holds the first flush of acks until its event is set; one event for each."""
    store = folding.host.stores[0]
    original, flushes = store.ack, list[asyncio.Event]()

    async def ack(*args: Any, **named: Any) -> Any:
        flushes.append(asyncio.Event())
        if len(flushes) == 1:
            await flushes[0].wait()
        return await original(*args, **named)

    store.ack = ack  # type: ignore[method-assign]
    return flushes


LONGER = """
DO $$ BEGIN
    EXECUTE replace(pg_get_functiondef('await_dags(uuid[])'::regprocedure), '50ms', '60s');
END $$"""


@pytest.fixture
async def patient(folding: Folding) -> AsyncIterator[Folding]:
    """A shard where DAGs are waited for as long as a test takes."""
    [[ours]] = await folding.dags.rows("SELECT pg_get_functiondef('await_dags(uuid[])'::regprocedure)")
    await folding.execute(LONGER)
    yield folding
    await folding.execute(ours)


async def test_many_acks_wait_for_a_dag_that_is_just_being_changed(patient: Folding) -> None:
    """Told, each of their ends would be an item of its own, and keep the DAG's row busy for the next acks."""
    dag = await patient.dags.create({**{f"n{n}": [] for n in range(40)}, "last": ["n0"]})
    few, many = [], []
    for n, item in enumerate((await patient.take()).values()):
        (few if n < LIGHT_ENTRIES_MAX // 8 else many).append(item)
    async with locked(patient.dags, dag) as until_locked:
        assert set(await patient.queue.ack(*few)) == {"acked"}, "small calls wait for nobody"
        acking = asyncio.create_task(patient.queue.ack(*many))
        await until_locked(1)
    assert set(await acking) == {"acked"}
    assert await patient.completions() == len(few)
    await patient.finish(dag)


@pytest.mark.parametrize("held", [0, 1])
async def test_many_acks_of_two_dags_wait_for_either(patient: Folding, held: int) -> None:
    """That one of them is locked at once says nothing of the other."""
    dags = [
        await patient.dags.create({**{f"{name}{n}": [] for n in range(20)}, f"{name}-last": [f"{name}0"]})
        for name in "ab"
    ]
    taken = (await patient.take()).values()
    async with locked(patient.dags, dags[held]) as until_locked:
        acking = asyncio.create_task(patient.queue.ack(*taken))
        await until_locked(1)
    assert set(await acking) == {"acked"}
    assert await patient.completions() == 0
    for dag in dags:
        await patient.finish(dag)


async def test_many_acks_do_not_wait_long(folding: Folding) -> None:
    dag = await folding.dags.create({f"n{n}": [] for n in range(40)})
    other = await folding.dags.create({**{f"m{n}": [] for n in range(40)}, "last": ["m0"]})
    taken = list((await folding.take()).values())
    async with locked(folding.dags, dag):
        assert set(await folding.queue.ack(*taken)) == {"acked"}
        assert await folding.completions() == 40, "the other DAG was free"
    await folding.finish(dag)
    assert (await folding.dags.dag(other))["state"] == "succeeded"


async def test_a_small_dags_step_is_handed_over_while_many_acks_wait(patient: Folding) -> None:
    large = await patient.dags.create({**{f"n{n}": [] for n in range(40)}, "last": ["n0"]})
    many = (await patient.take()).values()
    steps = [{"key": f"s{n}", "topic": "t"} | ({"upstream": [f"s{n - 1}"]} if n else {}) for n in range(3)]
    small = await patient.dags.create(steps)
    await patient.dags.loops.relay.idle()
    [item] = await patient.queue.dequeue("t")
    claims = spy_on_claims(patient.queue)
    polling = asyncio.create_task(patient.queue.dequeue("t", 1, wait_s=20))
    await until_waiting(patient.queue, 1)
    await patient.queue.ack(item)
    [item] = await polling
    polling = asyncio.create_task(patient.queue.dequeue("t", 1, wait_s=20))
    await until_waiting(patient.queue, 1)
    before = len(claims)
    async with locked(patient.dags, large) as until_locked:
        acking = asyncio.create_task(patient.queue.ack(*many))
        await until_locked(1)
        await patient.queue.ack(item)
        [item] = await polling
        assert not acking.done() and len(claims) == before
    assert set(await acking) == {"acked"}
    await patient.queue.ack(item)
    await patient.finish(large)
    assert (await patient.dags.dag(small))["state"] == "succeeded"


async def test_many_acks_hand_over_what_they_release_where_another_call_waits(folding: Folding) -> None:
    """Else each layer of a DAG that is a little wide takes a claim and a commit more."""
    width = LIGHT_ENTRIES_MAX + 1
    layers = [[{"key": f"{layer}-{n}", "topic": "t"} for n in range(width)] for layer in range(4)]
    for upper, lower in pairwise(layers):
        for up, down in zip(upper, lower, strict=True):
            down["upstream"] = [up["key"]]
    dag = await folding.dags.create(list(chain.from_iterable(layers)))
    await folding.dags.loops.relay.idle()
    await folding.queue.ack(*await folding.queue.dequeue("t", 100))  # it is known now what acks release
    items = await folding.queue.dequeue("t", 100)
    claims = spy_on_claims(folding.queue)
    # A call that waits alone is left to small acks.
    for calls, claimed in ((1, width), (2, 0)):
        claims.clear()
        polling = [asyncio.create_task(folding.queue.dequeue("t", 100, wait_s=20)) for _ in range(calls)]
        await until_waiting(folding.queue, calls)
        await folding.queue.ack(*items)
        [answered], waiting = await asyncio.wait(polling, return_when=asyncio.FIRST_COMPLETED)
        for call in waiting:
            call.cancel()
        items = answered.result()
        assert (len(items), len(claims)) == (width, claimed)
    await folding.queue.ack(*items)
    await folding.settle()
    assert (await folding.dags.dag(dag))["state"] == "succeeded"
