"""Acks that release many nodes of a DAG: folded too, in flushes that small ones do not wait for."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from services.queue.model import Fold
from shared.errors import ShardUnavailable
from tests.support.databases import Database, Databases
from tests.support.folding import Folding, folding_on

LOG = "SELECT c.last_event, c.nodes, c.dag FROM change c JOIN dag d ON d.no = c.dag_no WHERE d.id = $1 ORDER BY 1"
COUNTS = "SELECT state, blocked, released, succeeded, last_event FROM dag WHERE id = $1"
EDGES_SATISFIED = """
SELECT count(*)::int FROM edge e JOIN dag d ON d.no = e.up >> 22 WHERE d.id = $1 AND e.satisfied
"""


@pytest.fixture(scope="module")
async def database(databases: Databases) -> AsyncIterator[Database]:
    made = await databases.create(queue_shards=1, dag_shards=1)
    yield made
    await databases.drop(made)


@pytest.fixture
async def folding(database: Database) -> AsyncIterator[Folding]:
    async with folding_on(database) as made:
        yield made


@pytest.fixture
async def telling(database: Database) -> AsyncIterator[Folding]:
    async with folding_on(database, fold_completions=False) as made:
        yield made


class Spy:
    """The flushes of acks of a queue process; those of wide ones wait, or fail, where a test says so."""

    def __init__(self, folding: Folding) -> None:
        self._store = folding.host.stores[0]
        self._ack = self._store.ack
        self._store.ack = self.ack  # type: ignore[method-assign]
        self.flushes: list[tuple[int, bool]] = []
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.error: Exception | None = None

    async def ack(self, ids: Any, *rest: Any, folds: Fold, **more: Any) -> Any:
        wide = Fold.WIDE in folds
        self.flushes.append((len(ids), wide))
        if wide:
            await self.go_on.wait()
            if self.error is not None:
                raise self.error
        return await self._ack(ids, *rest, folds=folds, **more)


def fan(width: int, root: str = "a") -> dict[str, list[str]]:
    return {root: [], **{f"{root}{n}": [root] for n in range(width)}}


@pytest.mark.parametrize("width", [32, 33])
async def test_what_releases_many_is_made_apart_from_what_shares_its_call(folding: Folding, width: int) -> None:
    spy = Spy(folding)
    dag, small = await folding.dags.create(fan(width)), await folding.dags.create({"x": [], "y": ["x"]})
    taken = await folding.take()

    answers = await folding.queue.results("ack", {"items": [_acked(taken["x"]), _acked(taken["a"])]})

    assert [(answer["id"], answer["status"]) for answer in answers] == [
        (taken["x"]["id"], "acked"),
        (taken["a"]["id"], "acked"),
    ]
    assert spy.flushes == ([(2, False)] if width == 32 else [(2, False), (1, False), (1, True)])
    assert await folding.completions() == 0
    assert list((await folding.states(dag)).values()) == ["succeeded"] + ["released"] * width
    assert await folding.states(small) == {"x": "succeeded", "y": "released"}
    assert not folding.host.process.broker.acks._wide
    await folding.dags.audit(dag)
    await folding.finish(dag)
    await folding.finish(small)


@pytest.mark.parametrize("releases", [100, 101])
async def test_many_releases_by_several_nodes_are_made_apart(folding: Folding, releases: int) -> None:
    ups = [f"n{n}" for n in range(4)]
    dag = await folding.dags.create(
        {**{key: [] for key in ups}, **{f"c{n}": [ups[n % 4]] for n in range(releases)}}
    )
    spy = Spy(folding)
    assert set(await folding.queue.ack(*(await folding.take()).values())) == {"acked"}
    assert spy.flushes == ([(4, False)] if releases == 100 else [(4, False), (4, True)])
    assert await folding.completions() == 0
    assert list((await folding.states(dag)).values()).count("released") == releases
    await folding.cancel(dag)


@pytest.mark.parametrize("width", [1_000, 1_001])
async def test_what_releases_more_than_that_is_told(folding: Folding, telling: Folding, width: int) -> None:
    """And comes to the same, row for row."""
    found = []
    for way in (folding, telling):
        dag = await way.dags.create(fan(999))
        await way.dags.add(dag, {f"more{n}": ["a"] for n in range(width - 999)})
        await way.settle()
        assert await way.queue.ack((await way.take())["a"]) == ["acked"]
        assert await way.completions() == int(way is telling or width > 1_000)
        await way.settle()
        log = [(last, (nodes or "").split(), stand) for last, nodes, stand in await way.dags.rows(LOG, dag)]
        rows = [tuple(row) for sql in (COUNTS, EDGES_SATISFIED) for row in await way.dags.rows(sql, dag)]
        # Of what is released at once the order is none.
        lengths = [(last, len(changes), stand) for last, changes, stand in log]
        found.append((rows, lengths, sorted(change for _, changes, _ in log for change in changes)))
        taken = await way.take(1_000)
        assert len(taken) == 1_000
        await way.queue.ack(*taken.values())
        await way.finish(dag)
    assert found[0] == found[1]


@pytest.mark.parametrize("more", [0, 1])
async def test_of_so_many_edges_at_once_none_is_counted_here(folding: Folding, more: int) -> None:
    ups = [f"u{n}" for n in range(10)]
    nodes = {**{key: [] for key in (*ups, "v")}, **{f"d{n}": ups for n in range(500)}}
    dag = await folding.dags.create({**nodes, **({"w": ["v"]} if more else {})})
    taken = await folding.take(1_000)
    assert set(await folding.queue.ack(*(taken[key] for key in (*ups, "v")))) == {"acked"}
    assert await folding.completions() == (11 if more else 0)
    await folding.settle()
    assert list((await folding.states(dag)).values()).count("released") == 500 + more
    await folding.cancel(dag)


async def test_small_steps_do_not_wait_for_what_releases_many(folding: Folding) -> None:
    spy = Spy(folding)
    spy.go_on.clear()
    large, small = await folding.dags.create(fan(33)), await folding.dags.create({"x": [], "y": ["x"]})
    taken = await folding.take()
    acking = asyncio.create_task(folding.queue.ack(taken["a"]))
    while (1, True) not in spy.flushes:
        await asyncio.sleep(0)
    assert await folding.queue.ack(taken["x"]) == ["acked"]
    assert await folding.states(small) == {"x": "succeeded", "y": "released"}
    assert not acking.done()
    spy.go_on.set()
    assert await acking == ["acked"]
    assert await folding.completions() == 0
    await folding.finish(large)
    await folding.finish(small)


async def test_an_ack_that_fails_apart_does_not_say_that_nothing_was_done(folding: Folding) -> None:
    """What shared its call was acked; sent again, all of it is."""
    spy = Spy(folding)
    spy.error = ShardUnavailable("shard 0 cannot be reached")
    large, small = await folding.dags.create(fan(33)), await folding.dags.create({"x": [], "y": ["x"]})
    taken = await folding.take()
    body = {"items": [_acked(taken["a"]), _acked(taken["x"])]}
    answers = await folding.queue.results("ack", body)
    found = {(answer["status"], answer["code"], answer["outcome"]) for answer in answers}
    assert found == {("refused", "shard_unavailable", "unknown")}
    assert await folding.states(small) == {"x": "succeeded", "y": "released"}
    assert not folding.host.process.broker.acks._wide
    spy.error = None
    again = [answer["status"] for answer in await folding.queue.results("ack", body)]
    assert again == ["acked", "already_acked"]
    assert await folding.completions() == 0
    await folding.finish(large)
    await folding.finish(small)


async def test_one_wide_ack_from_two_calls_is_made_once(folding: Folding) -> None:
    dag = await folding.dags.create(fan(33))
    item = (await folding.take())["a"]
    answers = await asyncio.gather(*(folding.queue.ack(item) for _ in range(4)))
    assert sorted(status for [status] in answers) in (
        ["acked", "acked", "acked", "acked"],
        ["acked", "acked", "acked", "already_acked"],
        ["acked", "acked", "already_acked", "already_acked"],
        ["acked", "already_acked", "already_acked", "already_acked"],
    )
    assert await folding.completions() == 0
    assert list((await folding.states(dag)).values()).count("released") == 33
    await folding.finish(dag)


async def test_what_is_released_with_many_is_handed_to_who_waits(folding: Folding) -> None:
    dag = await folding.dags.create(fan(40))
    item = (await folding.take())["a"]
    waiting = [asyncio.create_task(folding.queue.dequeue("work", 10, wait_s=20)) for _ in range(4)]
    await asyncio.sleep(0)
    assert await folding.queue.ack(item) == ["acked"]
    taken = [one for call in await asyncio.gather(*waiting) for one in call]
    assert len({one["id"] for one in taken}) == len(taken) == 40
    assert set(await folding.queue.ack(*taken)) == {"acked"}
    await folding.finish(dag)


def _acked(item: dict[str, Any]) -> dict[str, Any]:
    return {"id": item["id"], "lease_token": item["lease_token"]}
