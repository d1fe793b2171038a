"""Acks that release many nodes of a DAG: folded too, in flushes that small ones do not wait for."""

import asyncio
from typing import Any

import pytest

from services.queue.leases.ack_flushes import WIDE_DAGS_MAX
from services.queue.model import Fold
from shared.errors import ShardUnavailable
from tests.support.folding import Folding

LOG = "SELECT c.last_event, c.nodes, c.dag FROM change c JOIN dag d ON d.no = c.dag_no WHERE d.id = $1 ORDER BY 1"
COUNTS = "SELECT state, blocked, released, succeeded, last_event FROM dag WHERE id = $1"
EDGES_SATISFIED = """
SELECT count(*)::int FROM edge e JOIN dag d ON d.no = e.up >> 22 WHERE d.id = $1 AND e.satisfied
"""


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
        self.error_for: str | None = None

    async def ack(self, ids: Any, *rest: Any, folds: Fold, **more: Any) -> Any:
        wide = Fold.WIDE in folds
        self.flushes.append((len(ids), wide))
        if wide:
            await self.go_on.wait()
            if self.error is not None:
                raise self.error
        if wide and self.error_for in ids:
            self.error_for = None
            raise ShardUnavailable("shard 0 did not answer", outcome="unknown")
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
    assert not folding.host.process.ack_flushes._wide
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


@pytest.mark.parametrize("outcome", ["none", "unknown"])
async def test_an_ack_that_fails_apart_is_refused_alone(folding: Folding, outcome: Any) -> None:
    """What shared its call was acked, and that is said; sent again, all of it is."""
    spy = Spy(folding)
    spy.error = ShardUnavailable("shard 0 cannot be reached", outcome=outcome)
    large, small = await folding.dags.create(fan(33)), await folding.dags.create({"x": [], "y": ["x"]})
    taken = await folding.take()
    body = {"items": [_acked(taken["a"]), _acked(taken["x"])]}
    wide, light = await folding.queue.results("ack", body)
    assert (wide["status"], wide["code"], wide["outcome"]) == ("refused", "shard_unavailable", outcome)
    assert light == {"id": taken["x"]["id"], "status": "acked"}
    assert await folding.states(small) == {"x": "succeeded", "y": "released"}
    assert (await folding.states(large))["a"] == "released"
    assert not folding.host.process.ack_flushes._wide
    spy.error = None
    again = [answer["status"] for answer in await folding.queue.results("ack", body)]
    assert again == ["acked", "already_acked"]
    assert await folding.completions() == 0
    await folding.finish(large)
    await folding.finish(small)


async def test_of_wide_acks_of_a_call_only_those_of_a_flush_fail(folding: Folding) -> None:
    spy = Spy(folding)
    roots = "abcdefg"
    dags = {root: await folding.dags.create(fan(33, root)) for root in roots}
    taken = await folding.take()
    spy.error_for = taken["c"]["id"]
    answers = await folding.queue.results("ack", {"items": [_acked(taken[root]) for root in roots]})
    told = {root: (answer["status"], answer.get("outcome")) for root, answer in zip(roots, answers, strict=True)}
    refused = {root for root in roots if told[root] == ("refused", "unknown")}
    assert "c" in refused and len(refused) == WIDE_DAGS_MAX
    assert {told[root] for root in roots if root not in refused} == {("acked", None)}
    states = {root: (await folding.states(dag))[root] for root, dag in dags.items()}
    assert states == {root: "released" if root in refused else "succeeded" for root in roots}
    assert set(await folding.queue.ack(*(taken[root] for root in refused))) == {"acked"}
    for dag in dags.values():
        await folding.finish(dag)


@pytest.mark.parametrize("in_one_call", [True, False])
async def test_many_wide_nodes_at_once_are_made_a_few_at_a_time(folding: Folding, in_one_call: bool) -> None:
    """All of them together have more edges than one ack goes on with."""
    roots = "abcdef"
    dags = {root: await folding.dags.create(fan(999, root)) for root in roots}
    taken = await folding.take()
    spy = Spy(folding)
    if in_one_call:
        assert set(await folding.queue.ack(*taken.values())) == {"acked"}
    else:
        spy.go_on.clear()
        acking = [asyncio.create_task(folding.queue.ack(item)) for item in taken.values()]
        while spy.flushes.count((1, True)) + spy.flushes.count((4, True)) < 1:
            await asyncio.sleep(0)
        spy.go_on.set()
        assert [status for [status] in await asyncio.gather(*acking)] == ["acked"] * 6
    made_apart = [count for count, is_wide in spy.flushes if is_wide]
    assert sum(made_apart) == 6 and max(made_apart) <= WIDE_DAGS_MAX
    assert await folding.completions() == 0
    for dag in dags.values():
        await folding.cancel(dag)


async def test_wide_nodes_beside_those_that_were_put_off_are_put_off_too(folding: Folding) -> None:
    """A call of many acks stands in the line of heavy calls, and joins the flush of what was put off."""
    roots = "abcdef"
    dags = {root: await folding.dags.create(fan(999, root)) for root in roots}
    ups = [f"m{n}" for n in range(40)]
    many = await folding.dags.create({**{key: [] for key in ups}, "end": ups})
    taken = await folding.take()
    spy = Spy(folding)
    spy.go_on.clear()
    first = asyncio.create_task(folding.queue.ack(taken["a"]))
    while (1, True) not in spy.flushes:
        await asyncio.sleep(0)
    second = asyncio.create_task(folding.queue.ack(taken["b"]))
    while spy.flushes.count((1, False)) < 2 or not folding.host.process.ack_flushes._wide >= {taken["b"]["id"]}:
        await asyncio.sleep(0)
    rest = asyncio.create_task(folding.queue.ack(*(item for key, item in taken.items() if key not in "ab")))
    while not folding.host.process.ack_flushes.flushes[0, False]._heavy.line.size > 500:
        await asyncio.sleep(0)
    spy.go_on.set()
    assert {status for statuses in await asyncio.gather(first, second, rest) for status in statuses} == {"acked"}
    assert await folding.completions() == 0
    for dag in (*dags.values(), many):
        await folding.cancel(dag)


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
