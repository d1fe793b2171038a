"""DAGs that end by the ack of their last node, in its transaction; and who waits for them."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from shared import ids
from shared.dag_notify import Voice, ended_channel
from tests.support.databases import Database
from tests.support.folding import Folding, folding_on
from tests.support.folding_runs import FoldedRun

LOG = "SELECT c.last_event, c.nodes, c.dag FROM change c JOIN dag d ON d.no = c.dag_no WHERE d.id = $1 ORDER BY 1"
ROW = """
SELECT state, open, held, paused, closed, cancel_cause, blocked, released, succeeded, failed, skipped,
    cancelled, endings, last_event, cleanups, cleanup_left, cleanup_phase, verdict, finished_at IS NOT NULL
FROM dag WHERE id = $1
"""
TALLY = (
    "SELECT state, sum(dags)::int, sum(succeeded)::int, sum(failed)::int, sum(skipped)::int FROM tally GROUP BY 1"
)


class Heard:
    """Somebody listens; what was said."""

    def __init__(self) -> None:
        self.is_heard = True
        self.ended: list[str] = []

    def tell(self, dag_ids: Any) -> None:
        self.ended += dag_ids


@pytest.fixture
def heard(folding: Folding) -> Heard:
    heard = folding.host.process.dag_news.endings = Heard()
    return heard


async def create(folding: Folding, nodes: list[dict[str, Any]], **more: Any) -> str:
    body = {"nodes": [node if "dag" in node else {"topic": "work", **node} for node in nodes], **more}
    return str((await folding.dags.call("POST", "", body, expect=201))["id"])


async def test_a_dag_ends_by_the_ack_of_its_last_node(folding: Folding, heard: Heard) -> None:
    dag = await folding.dags.create({"a": [], "b": ["a"], "c": ["b"]})

    for key in "abc":
        assert not heard.ended
        assert await folding.queue.ack((await folding.take())[key]) == ["acked"]

    assert heard.ended == [dag]
    assert await folding.completions() == 0
    assert (await folding.dags.dag(dag))["state"] == "succeeded"
    await folding.dags.audit(dag)
    assert folding.told.taken == 0


async def test_several_dags_end_by_one_ack(folding: Folding, heard: Heard) -> None:
    """And one that does not end, and one that may not end here, beside them."""
    ending = [await folding.dags.create({f"e{n}": []}) for n in range(3)]
    going = await folding.dags.create({"g": [], "h": ["g"]})
    kept = await create(folding, [{"key": "k"}, {"key": "clean", "run_on": "always"}])
    taken = await folding.take()

    assert set(await folding.queue.ack(*taken.values())) == {"acked"}

    assert sorted(heard.ended) == sorted(ending)
    assert await folding.completions() == 1
    assert (await folding.states(going)) == {"g": "succeeded", "h": "released"}
    await folding.finish(kept)
    await folding.finish(going)


ENDS: dict[str, tuple[list[dict[str, Any]], dict[str, Any], int]] = {
    "one node": ([{"key": "z"}], {}, 0),
    "a chain": ([{"key": "a"}, {"key": "z", "upstream": ["a"]}], {}, 0),
    "many nodes": ([{"key": f"n{n}"} for n in range(99)] + [{"key": "z"}], {}, 0),
    "more nodes than a row of the log has": ([{"key": f"n{n}"} for n in range(100)] + [{"key": "z"}], {}, 0),
    "a failed node": ([{"key": "f"}, {"key": "z"}], {"on_failure": "continue"}, 0),
    "a failed node with one that was skipped": (
        [{"key": "f"}, {"key": "s", "upstream": ["f"]}, {"key": "z"}],
        {"on_failure": "continue"},
        2,
    ),
    "a failed node and what repairs": (
        [{"key": "f"}, {"key": "z", "upstream": ["f"], "trigger": "any_failed"}],
        {"on_failure": "continue"},
        0,
    ),
    "a failure that is tolerated": ([{"key": "f", "tolerate": True}, {"key": "z"}], {"on_failure": "cancel"}, 1),
    "a failure that is tolerated, beside two": (
        [{"key": "f", "tolerate": True}, {"key": "y"}, {"key": "z"}],
        {"on_failure": "cancel"},
        1,
    ),
    "an open DAG, which does not end": ([{"key": "z"}], {"open": True}, 0),
}


@pytest.mark.parametrize("case", ENDS)
async def test_an_end_is_written_as_the_dag_service_writes_it(
    folding: Folding, telling: Folding, heard: Heard, case: str
) -> None:
    nodes, more, told = ENDS[case]
    found = []
    for way in (folding, telling):
        before = {row[0]: row[1:] for row in await way.dags.rows(TALLY)}
        dag = await create(way, nodes, **more)
        taken = await way.take()
        if "f" in taken:
            await way.queue.nack(taken.pop("f"), final=True)
        await way.settle()
        while taken or (taken := await way.take()):
            await way.queue.ack(*taken.values())
            taken = {}
            if way is telling:
                await way.settle()
        log = [
            (last, sorted((nodes or "").split()), json.loads(stand) if stand else None)
            for last, nodes, stand in await way.dags.rows(LOG, dag)
        ]
        after = {row[0]: row[1:] for row in await way.dags.rows(TALLY)}
        [row] = await way.dags.rows(ROW, dag)
        zero = [0, 0, 0, 0]
        gains = {
            state: [now - then for now, then in zip(row, before.get(state, zero), strict=True)]
            for state, row in after.items()
        }
        found.append((tuple(row), log, {state: gain for state, gain in gains.items() if any(gain)}))
        assert heard.ended == ([dag] if way is folding and "open" not in more else heard.ended)
    assert found[0] == found[1]
    # Told are a failure that something is skipped for, and that the item of that was cancelled; and one tolerated.
    assert folding.told.taken == told


KEPT: dict[str, list[dict[str, Any]]] = {
    "a cleanup node": [{"key": "a"}, {"key": "c", "run_on": "always"}],
    "a compensation": [{"key": "a"}, {"key": "u", "compensates": "a"}],
    "one that is skipped by it": [{"key": "a"}, {"key": "b", "upstream": ["a"], "trigger": "any_failed"}],
}


@pytest.mark.parametrize("case", KEPT)
async def test_an_end_that_begins_something_is_told(folding: Folding, heard: Heard, case: str) -> None:
    dag = await create(folding, KEPT[case])
    await folding.queue.ack((await folding.take())["a"])
    assert await folding.completions() == 1
    assert heard.ended == []
    await folding.finish(dag)


async def test_a_sub_dags_end_is_told(folding: Folding, heard: Heard) -> None:
    """Its parent has to hear of it; ends of its other nodes are folded."""
    inner = [{"key": "s", "topic": "work"}, {"key": "t", "topic": "work", "upstream": ["s"]}]
    dag = await create(folding, [{"key": "a", "dag": {"nodes": inner}}])
    await folding.settle()
    await folding.queue.ack((await folding.take())["s"])
    assert await folding.completions() == 0
    await folding.queue.ack((await folding.take())["t"])
    assert await folding.completions() == 1
    assert heard.ended == []
    await folding.settle()
    assert (await folding.dags.dag(dag))["state"] == "succeeded"


CHANGED = {
    "held": ("UPDATE dag SET held = true", "UPDATE dag SET held = false"),
    "paused": ("UPDATE dag SET paused = true", "UPDATE dag SET paused = false"),
    "being cancelled": ("UPDATE dag SET state = 'cancelling'", "UPDATE dag SET state = 'running'"),
    "being reopened": ("UPDATE dag SET cleanup_phase = -1", "UPDATE dag SET cleanup_phase = 0"),
    "a node's generation": (
        "UPDATE node SET generation = 2 WHERE key = 'a'",
        "UPDATE node SET generation = 1 WHERE key = 'a'",
    ),
}


@pytest.mark.parametrize("case", CHANGED)
async def test_an_end_that_meets_something_else_is_told(folding: Folding, heard: Heard, case: str) -> None:
    await folding.execute("DELETE FROM node; DELETE FROM dag; DELETE FROM edge; DELETE FROM change")
    dag = await folding.dags.create({"a": []})
    item = (await folding.take())["a"]
    await folding.execute(CHANGED[case][0])

    assert await folding.queue.ack(item) == ["acked"]

    assert await folding.completions() == 1
    assert heard.ended == []
    await folding.execute(CHANGED[case][1])
    await folding.finish(dag)


async def test_nodes_that_come_late_keep_a_dag_from_ending(folding: Folding, heard: Heard) -> None:
    dag = await folding.dags.create({"a": []}, open=True)
    await folding.queue.ack((await folding.take())["a"])
    assert (await folding.dags.dag(dag))["state"] == "running"
    await folding.dags.add(dag, {"b": ["a"]})
    await folding.dags.verb(dag, "close")
    await folding.settle()
    assert heard.ended == []
    await folding.queue.ack((await folding.take())["b"])
    assert heard.ended == [dag]
    assert await folding.completions() == 0


async def test_a_dag_that_ran_again_ends_again(folding: Folding, heard: Heard) -> None:
    dag = await folding.dags.create({"a": [], "b": ["a"]})
    for run in (1, 2):
        for key in "ab":
            await folding.queue.ack((await folding.take())[key])
            await folding.settle()
        assert heard.ended == [dag] * run
        assert (await folding.dags.dag(dag))["state"] == "succeeded"
        await folding.dags.verb(dag, "retry", {"all": True}) if run == 1 else None
        await folding.settle()
    [[total]] = await folding.dags.rows("SELECT sum(dags)::int FROM tally WHERE state = 'succeeded'")
    [[rows]] = await folding.dags.rows("SELECT count(*)::int FROM dag WHERE state = 'succeeded'")
    assert total >= rows, "each end was counted, and the first one taken back"


async def test_where_nobody_hears_a_dags_end_is_told(folding: Folding, heard: Heard) -> None:
    """By a completion item, as before: so who waits is woken by the DAG service's commit."""
    heard.is_heard = False
    dag = await folding.dags.create({"a": [], "b": ["a"]})
    await folding.queue.ack((await folding.take())["a"])
    assert await folding.completions() == 0
    await folding.queue.ack((await folding.take())["b"])
    assert await folding.completions() == 1
    await folding.finish(dag)
    assert heard.ended == []


# Of one argument less; and of as many, to which the ones that are given could be converted.
BEFORE = [
    "int) RETURNS TABLE (o_taken uuid[], o_released uuid[]) LANGUAGE sql AS $$ SELECT $4, $4 $$",
    "int, bigint) RETURNS TABLE (o_taken uuid[], o_released uuid[], o_ended uuid[], o_wide uuid[]) LANGUAGE sql"
    " AS $$ SELECT $4, '{}'::uuid[], '{}'::uuid[], '{}'::uuid[] $$",
]


@pytest.mark.parametrize("before", BEFORE)
async def test_a_dag_shard_from_before_is_not_folded_into(folding: Folding, heard: Heard, before: str) -> None:
    """Its function does not know what may be applied: it is not called."""
    dag = await folding.dags.create({"a": [], "b": ["a"]})
    await folding.execute(
        "ALTER FUNCTION complete_here RENAME TO complete_well; CREATE FUNCTION complete_here("
        f"uuid[], text[], int[], uuid[], int[], text[], timestamptz[], text[], text[], {before}"
    )
    try:
        await folding.queue.ack((await folding.take())["a"])
    finally:
        await folding.execute("DROP FUNCTION complete_here; ALTER FUNCTION complete_well RENAME TO complete_here")
    assert await folding.completions() == 1
    await folding.finish(dag)


async def waiting(folding: Folding, dag: str) -> asyncio.Task[Any]:
    """A call that waits for a DAG's end, which looks once before it waits."""
    call = asyncio.create_task(folding.dags.call("GET", f"/{dag}/wait?timeout_s=20", expect=200))
    watches = folding.dags.duties.context.watches
    while not watches.has(folding.dags.shard.number, dag):
        await asyncio.sleep(0)
    return call


@pytest.fixture
async def speaking(folding_database: Database, redis_url: str) -> AsyncIterator[Folding]:
    """Queue and DAG service have a Redis; the DAG process listens, none of its loops runs."""
    settings = {"HEADGATE_REDIS_URL": redis_url, "HEADGATE_REDIS_PREFIX": "folding-ends"}
    async with folding_on(folding_database, dag_settings=settings, **settings) as made:
        endings = made.host.process.dag_news.endings
        made.dags.loops.queue_events.start()
        while not await endings.step():
            await asyncio.sleep(0.01)
        try:
            yield made
        finally:
            await made.dags.loops.queue_events.stop()
            await endings.stop()


async def test_who_waits_on_another_process_is_told_over_redis(speaking: Folding) -> None:
    """No look is made at all."""
    endings = speaking.host.process.dag_news.endings
    endings.start()
    dags = [await speaking.dags.create({f"n{n}": []}) for n in range(3)]
    calls = [await waiting(speaking, dag) for dag in dags]
    taken = await speaking.take()
    await speaking.queue.ack(*taken.values())
    assert [(await call)["state"] for call in calls] == ["succeeded"] * 3
    assert speaking.told.taken == 0
    assert len(speaking.dags.duties.context.watches) == 0


async def test_a_turn_that_waits_is_told_of_an_ack_over_redis(speaking: Folding) -> None:
    """No completion is told, no look is made, and the decider is not delivered again."""
    speaking.host.process.dag_news.endings.start()
    while not speaking.dags.duties.context.news.is_heard:
        await asyncio.sleep(0.01)
    run = FoldedRun(speaking, "awake", topic="awake-work")
    await run.start()
    assert await run.take_decider()
    # It is written by the short way, and would look by the long one once its time was over.
    speaking.dags.duties.turns._commits.take = None  # type: ignore[method-assign, assignment]
    turn = asyncio.create_task(run.turn(calls=1, wait_s=20))
    while not (taken := await speaking.queue.dequeue("awake-work")):
        await speaking.settle()
    assert await speaking.queue.ack(*taken) == ["acked"]
    answer = await turn
    assert [event["key"] for event in answer["events"] if "after" not in event] == ["awake-work#1"]
    stands = await run.standing()
    assert (stands["decider"], stands["generation"], speaking.told.taken) == ("released", 1, 0)
    del speaking.dags.duties.turns._commits.take
    await run.finish()


async def test_a_stream_of_changes_is_told_over_redis(speaking: Folding) -> None:
    speaking.host.process.dag_news.endings.start()
    dag = await speaking.dags.create({"a": []})
    reading = asyncio.create_task(speaking.dags.http.get(f"/v1/namespaces/default/dags/{dag}/events"))
    while not len(speaking.dags.duties.context.watches):
        await asyncio.sleep(0)
    await speaking.queue.ack((await speaking.take())["a"])
    assert '"state":"succeeded"' in (await reading).text.replace(" ", "")


async def test_a_stream_is_told_of_changes_over_redis(speaking: Folding) -> None:
    """No look is made; changes are told only while somebody has a stream."""
    changes = speaking.host.process.dag_news.changes
    told: list[str] = []
    tell = changes.tell
    changes.tell = lambda names: tell(named := list(names)) or told.extend(named)  # type: ignore[method-assign]
    dag = await speaking.dags.create({"a": [], "b": ["a"], "c": ["b"]})
    stream = await speaking.dags.duties.streams.open("default", dag, 0)
    assert stream is not None
    frames = stream.frames()
    assert not await changes.step()
    while b'"a","state":"released"' not in await anext(frames):
        pass
    for key in "ab":
        while not await changes.step():
            await asyncio.sleep(0.01)
        reading = asyncio.create_task(anext(frames))
        await speaking.queue.ack((await speaking.take())[key])
        await changes.step()
        async with asyncio.timeout(20):
            assert f'"{key}","state":"succeeded"' in (await reading).decode()
    assert set(told) == {dag[ids.DAG_TAG]}
    await frames.aclose()  # type: ignore[attr-defined]
    stream.close()
    while await changes.step():
        await asyncio.sleep(0.01)
    await speaking.queue.ack((await speaking.take())["c"])
    assert len(told) == 2
    await changes.stop()


async def test_of_changes_only_streams_are_read(speaking: Folding) -> None:
    """A tag is that of many DAGs; who waits for an end is not told of changes."""
    hearing, watches = speaking.dags.loops.queue_events, speaking.dags.duties.context.watches
    shard, reads, followed = speaking.dags.shard, list[list[str]](), list[bool]()

    async def read(_shard: Any, dag_ids: Any) -> None:
        reads.append(sorted(dag_ids))

    watches.read = read  # type: ignore[method-assign, assignment]
    watches.stream_listeners = [followed.append]
    first, tag, other = ids.new_ids(shard.number, 3)
    [tag] = ids.with_dag_tag([tag], first)
    [other] = ids.with_dag_tag([other], "x" * 24 + ("000" if first[ids.DAG_TAG] != "000" else "001"))
    message = msgspec.msgpack.encode([first[ids.DAG_TAG], "fff", "nonsense"])
    with watches.watching(shard, first), watches.watching(shard, other, 1):
        hearing.heard_of_changes(message)
        await asyncio.sleep(0)
        with watches.watching(shard, first, 1), watches.watching(shard, first, 2), watches.watching(shard, tag, 1):
            for nonsense in (b"", b"\xc1", message, message):
                hearing.heard_of_changes(nonsense)
            await asyncio.sleep(0)
        hearing.heard_of_changes(message)
        await asyncio.sleep(0)
    assert reads == [sorted([first, tag])]
    assert followed == [True, False]
    assert not watches._streamed and len(watches) == 0


async def test_only_what_somebody_waits_for_is_read(speaking: Folding) -> None:
    """What is named more than once, once; and nonsense is dropped."""
    hearing, watches = speaking.dags.loops.queue_events, speaking.dags.duties.context.watches
    dag, other = await speaking.dags.create({"a": []}), await speaking.dags.create({"b": []})
    reads: list[list[str]] = []

    async def read(_shard: Any, dag_ids: Any) -> None:
        reads.append(list(dag_ids))

    watches.read = read  # type: ignore[method-assign, assignment]
    message = msgspec.msgpack.encode([dag, other, dag, "nonsense", "00000000-0000-7000-8000-000000000fff"])
    for nonsense in (b"", b"\xc1", msgspec.msgpack.encode({"a": 1}), message):
        hearing.heard_of_ends(nonsense)
    with watches.watching(speaking.dags.shard, dag):
        for _ in range(3):
            hearing.heard_of_ends(message)
        await asyncio.sleep(0)
    assert reads == [[dag]]
    await speaking.cancel(dag)
    await speaking.cancel(other)


async def test_an_end_that_nobody_was_told_of_is_seen_by_the_look(speaking: Folding) -> None:
    """Redis went after it had answered: what was committed is not heard of, and the next end is the service's."""
    endings = speaking.host.process.dag_news.endings
    dag, later = await speaking.dags.create({"a": []}), await speaking.dags.create({"b": []})
    call = await waiting(speaking, dag)
    gone = Voice("redis://127.0.0.1:1/0", ended_channel("folding-ends"))
    endings._redis, gone._redis = gone._redis, endings._redis
    taken = await speaking.take()
    assert endings.is_heard
    await speaking.queue.ack(taken["a"])
    assert not await endings.step()
    assert not call.done()

    await speaking.dags.duties.context.watches.step(speaking.dags.shard)

    assert (await call)["state"] == "succeeded"
    await speaking.queue.ack(taken["b"])
    assert await speaking.completions() == 1
    await gone.stop()
    await speaking.finish(later)
