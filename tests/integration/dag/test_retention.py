"""Ended DAGs leave the hot tables, answer as before, come back when they are needed, and are dropped in time."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from services.dag.run import unarchive
from tests.support.bounded import steps
from tests.support.dag_world import BASE, DagWorld, specs

HOT = ("node", "node_spec", "edge", "external", "change")
SPEC: list[dict[str, Any]] = [
    {"key": "a", "payload": {"n": 1}, "pass_outputs": True},
    {"key": "b", "upstream": ["a"], "external": ["x"], "pass_outputs": True},
    {"key": "c", "upstream": ["a", "b"]},
    {"key": "odd key/ä", "upstream": ["c"], "trigger": "all_done"},
]


@pytest.fixture(autouse=True)
def no_grace(world: DagWorld) -> None:
    world.settings.__dict__["ended_dag_grace_s"] = 0.0


async def counts(world: DagWorld, prefix: str = "") -> list[int]:
    rows = [await world.rows(f"SELECT count(*)::int AS n FROM {prefix}{table}") for table in HOT]
    return [row[0]["n"] for row in rows]


async def phases(world: DagWorld) -> list[str]:
    return [row["phase"] for row in await world.rows("SELECT phase FROM kept ORDER BY dag_no")]


async def ended(world: DagWorld, **more: Any) -> str:
    """A DAG that failed at `c`."""
    dag = await world.create(SPEC, **more)
    await world.settle()
    world.queue.ack("a", output={"big": 1})
    await world.verb(dag, "resolve", {"external": [{"node": "b", "name": "x", "data": [1]}]})
    await world.settle()
    world.queue.ack("b", output="B")
    await world.settle()
    world.queue.die("c")
    await world.settle()
    world.queue.ack("odd key/ä")
    await world.settle()
    assert (await world.dag(dag))["state"] == "failed"
    return dag


async def keep(world: DagWorld) -> None:
    for _ in steps():
        if not await world.loops.retention.step(world.shard):
            break


async def answers(world: DagWorld, dag: str) -> list[Any]:
    """What every GET about a DAG says."""
    paths = [f"/{dag}", f"/{dag}/nodes?limit=2", f"/{dag}/nodes?state=failed", f"/{dag}/graph", f"/{dag}/wait"]
    paths += [f"/{dag}/node?key=b", f"/{dag}/timeline?key=b", f"/{dag}/frontier", f"/{dag}/node/inputs?key=c"]
    paths += [
        f"/{dag}/graph?format=dot",
        "?state=failed",
        f"/{dag}/export?limit=3",
        f"/{dag}/outputs",
        f"/{dag}/events",
    ]
    found = []
    for path in paths:
        answer = await world.http.get(BASE + path)
        assert answer.status_code == 200, (path, answer.text)
        found.append(answer.text)
    more = (await world.call("GET", f"/{dag}/nodes?limit=2"))["next_cursor"]
    found.append((await world.http.get(f"{BASE}/{dag}/nodes?limit=2&cursor={more}")).text)
    return found


async def test_a_kept_dag_answers_every_question_as_before(world: DagWorld) -> None:
    dag = await ended(world, name="n", key="k")
    before, was = await answers(world, dag), await counts(world)
    assert was[:4] == [4, 4, 4, 1] and was[4] > 4
    await keep(world)
    assert (await counts(world), await counts(world, "kept_"), await phases(world)) == ([0] * 5, was, ["kept"])
    assert await answers(world, dag) == before
    assert (await world.call("POST", "", {"key": "k"}, expect=200))["id"] == dag


async def test_answers_are_the_same_half_way(world: DagWorld) -> None:
    world.settings.__dict__["keep_rows_max"] = 1
    dag = await ended(world)
    before = await answers(world, dag)
    done = 0
    while await world.loops.retention.step(world.shard):
        assert await answers(world, dag) == before
        done += 1
    assert done > 8 and await phases(world) == ["kept"]


async def test_a_dag_that_runs_or_has_just_ended_stays(world: DagWorld) -> None:
    await world.create({"a": []})
    await world.settle()
    await keep(world)
    assert await phases(world) == []
    world.settings.__dict__["ended_dag_grace_s"] = 600.0
    world.queue.ack("a")
    await world.settle()
    await keep(world)
    assert await phases(world) == [] and (await counts(world))[0] == 1


async def test_a_dag_with_something_to_tell_the_queue_is_not_moved(world: DagWorld) -> None:
    dag = await world.create({"a": [], "b": ["a"]})
    await world.settle()
    world.queue.down.add("cancel")
    await world.verb(dag, "skip", {"nodes": ["b"]})
    world.queue.ack("a")
    await world.settle()
    assert (await world.dag(dag))["state"] == "succeeded"
    await keep(world)
    assert await phases(world) == ["due"] and (await counts(world))[0] == 2
    world.queue.down.clear()
    await world.sweep()
    await world.rows("UPDATE kept SET due_at = shard_now()")
    await keep(world)
    assert await phases(world) == ["kept"]


async def test_a_retry_brings_a_kept_dag_back_and_it_is_kept_again(world: DagWorld) -> None:
    dag = await ended(world)
    await keep(world)
    world.settings.__dict__["keep_rows_max"] = 1
    assert (await world.verb(dag, "retry"))["state"] == "running"
    await world.settle()
    await world.audit()
    assert (await counts(world, "kept_"), await phases(world)) == ([0] * 5, ["due"])
    await world.rows("UPDATE kept SET due_at = shard_now()")
    await keep(world)
    assert await phases(world) == []
    world.queue.ack("c")
    await world.settle()
    assert (await world.dag(dag))["state"] == "succeeded"
    await keep(world)
    assert await phases(world) == ["kept"]
    assert (await world.node(dag, "c"))["generation"] == 2


async def test_repeats_on_a_kept_dag_answer_as_the_first_time(world: DagWorld) -> None:
    dag = await ended(world)
    ids = {node["key"]: node["item_id"] for node in (await world.call("GET", f"/{dag}/nodes"))["items"]}

    async def kept() -> None:
        await world.rows("UPDATE kept SET due_at = shard_now()")
        await keep(world)
        assert await phases(world) == ["kept"]

    await kept()
    again = await world.add(dag, SPEC)
    assert {node["key"]: node["item_id"] for node in again["nodes"]} == ids
    await kept()
    await world.link(dag, ("a", "b"))
    await kept()
    assert (await world.add(dag, [{"key": "new"}], expect=409))["code"] == "dag_finished"
    await kept()
    [fact] = (await world.verb(dag, "resolve", {"external": [{"node": "b", "name": "x"}]}))["results"]
    assert fact["status"] == "already_resolved"
    await kept()
    for verb in ("release", "close", "pause", "resume", "cancel"):
        assert (await world.verb(dag, verb))["state"] == "failed"
    assert await phases(world) == ["kept"]
    assert (await world.verb(dag, "skip", {"nodes": ["a"]}, expect=409))["code"] == "node_released"


async def test_a_late_completion_of_a_kept_dag_changes_nothing(world: DagWorld) -> None:
    dag = await world.create({"a": []})
    await world.settle()
    body = world.queue.item_of("a").body
    world.queue.ack("a")
    await world.settle()
    await keep(world)
    world.queue.complete(body, "dead")
    await world.settle()
    assert (await world.states(dag)) == {"a": "succeeded"}
    await world.rows("UPDATE kept SET finished_at = finished_at - interval '1 year'")
    await keep(world)
    assert (await world.http.get(f"{BASE}/{dag}")).status_code == 404
    world.queue.complete(body, "dead")
    await world.settle()


async def test_a_retry_and_the_move_of_one_dag_end_whole_whoever_is_first(world: DagWorld) -> None:
    world.settings.__dict__["keep_rows_max"] = 2
    other = DagWorld(world.database, world.queue)
    other.settings.__dict__.update(ended_dag_grace_s=0.0, keep_rows_max=2)
    dags = [await ended(world) for _ in range(3)]

    async def mover(of: DagWorld) -> None:
        for _ in range(30):
            await of.loops.retention.step(of.shard)

    await asyncio.gather(mover(world), mover(other), *(world.verb(dag, "retry") for dag in dags))
    for dag in dags:
        assert (await world.dag(dag))["state"] == "running"
        assert len(await world.states(dag)) == 4
    assert (await counts(world))[0] == 12
    await other.close()


async def test_a_mover_that_had_found_a_dag_due_before_its_thaw_leaves_it(world: DagWorld) -> None:
    dag = await ended(world)
    await keep(world)
    await world.add(dag, SPEC)
    await world.loops.retention._move(world.shard, [1])
    assert (await phases(world), (await counts(world))[0]) == (["due"], 4)


async def test_a_retry_is_not_outrun_by_a_mover_with_an_old_list(
    world: DagWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    dag = await ended(world)
    await keep(world)
    thaw = unarchive.bring_back

    async def thaw_and_be_too_late(context: Any, shard: Any, found: Any) -> None:
        await thaw(context, shard, found)
        for _ in range(5):
            await world.loops.retention._move(world.shard, [found.no])

    monkeypatch.setattr(unarchive, "bring_back", thaw_and_be_too_late)
    await world.verb(dag, "retry")
    assert ((await world.dag(dag))["state"], len(await world.states(dag))) == ("running", 4)


async def test_a_busy_dag_that_is_partly_moved_is_not_taken_for_whole(world: DagWorld) -> None:
    dag = await ended(world)
    world.settings.__dict__["keep_rows_max"] = 6
    await world.loops.retention.step(world.shard)
    assert (await phases(world), (await counts(world))[0]) == (["moving"], 2)
    await world.rows(
        "INSERT INTO outbox SELECT no, 1, 'cancel', item_id, NULL, shard_now(), shard_now(), 0 FROM node LIMIT 1"
    )
    await keep(world)
    assert await phases(world) == ["moving"]
    await world.verb(dag, "retry")
    assert len(await world.states(dag)) == (await counts(world))[0] == 4


async def test_a_thaw_that_was_left_is_undone(world: DagWorld) -> None:
    await ended(world)
    await keep(world)
    await world.rows("UPDATE kept SET phase = 'thawing', due_at = shard_now()")
    await world.rows(
        "WITH t AS (DELETE FROM kept_node WHERE key = 'a' RETURNING *) INSERT INTO node SELECT * FROM t"
    )
    await keep(world)
    assert (await phases(world), await counts(world)) == (["kept"], [0] * 5)


async def test_a_thaw_that_takes_too_long_says_so_and_goes_on_with_the_next_call(world: DagWorld) -> None:
    dag = await ended(world)
    await keep(world)
    world.settings.__dict__.update(keep_rows_max=3, drive_wait_s=-1.0)
    found = await world.verb(dag, "retry", expect=503)
    assert (found["code"], found["outcome"]) == ("dag_thawing", "none")
    world.settings.__dict__["drive_wait_s"] = 5.0
    await world.verb(dag, "retry")


@pytest.mark.parametrize(
    ("verb", "body"),
    [("retry", {}), ("nodes", {"nodes": specs(SPEC)}), ("resolve", {"external": [{"node": "a", "name": "x"}]})],
)
async def test_a_dag_that_is_moved_away_again_and_again_is_told_from_an_unfinished_add(
    world: DagWorld, monkeypatch: pytest.MonkeyPatch, verb: str, body: Any
) -> None:
    dag = await ended(world)
    await keep(world)

    async def thaw_to_no_avail(*_: Any) -> None:
        pass

    monkeypatch.setattr(unarchive, "bring_back", thaw_to_no_avail)
    found = await world.verb(dag, verb, body, expect=503)
    assert (found["code"], found["outcome"]) == ("dag_thawing", "none")


async def test_dags_are_dropped_after_their_time_in_bounded_steps(world: DagWorld) -> None:
    dag = await ended(world)
    young = await ended(world)
    changes = (await world.rows("SELECT count(*)::int AS n FROM change WHERE dag_no = 2"))[0]["n"]
    left = [4, 4, 4, 1, changes]
    await keep(world)
    await world.rows("UPDATE kept SET finished_at = finished_at - interval '1 year' WHERE dag_no = 1")
    world.settings.__dict__["keep_rows_max"] = 1
    await world.loops.retention.step(world.shard)
    assert (await phases(world)) == ["dropping", "kept"]
    assert (await world.http.get(f"{BASE}/{dag}")).status_code == 404
    await keep(world)
    assert (await phases(world), await counts(world, "kept_")) == (["kept"], left)
    assert (await world.http.get(f"{BASE}/{young}/nodes")).status_code == 200
    world.settings.__dict__["health_refresh_s"] = 0.0
    [shard] = (await world.http.get("/v1/shards")).json()["items"]
    assert (shard["dags"]["failed"], shard["nodes"]["failed"]) == (1, 1)


async def test_an_export_is_waited_for_where_that_is_set(world: DagWorld) -> None:
    world.settings.__dict__.update(export_before_drop=True, ended_dag_retention_s=0.0, keep_dags_max=2)
    for _ in range(5):
        await ended(world)
    await keep_now(world)
    assert await phases(world) == ["kept"] * 5
    ends = [row["finished_at"] for row in await world.rows("SELECT finished_at FROM kept ORDER BY 1")]
    answer = await world.http.put("/v1/namespaces/default/exports/mark", json={"until": ends[3].isoformat()})
    assert answer.status_code == 200, answer.text
    await keep_now(world)
    assert await phases(world) == ["kept"] * 2
    earlier = {"until": ends[0].isoformat()}
    found = (await world.http.put("/v1/namespaces/default/exports/mark", json=earlier)).json()
    assert datetime.fromisoformat(found["until"]) == ends[3]
    assert (await world.http.get("/v1/namespaces/other/exports/mark")).json() == {"until": None}


async def keep_now(world: DagWorld) -> None:
    for _ in range(8):
        await world.loops.retention.step(world.shard)


async def test_ends_are_exported_in_their_order_a_page_at_a_time(world: DagWorld) -> None:
    world.settings.__dict__["export_scan_dags_max"] = 3
    dags = [await ended(world) for _ in range(7)]
    await world.rows("UPDATE dag SET namespace = 'other' WHERE no IN (2, 3, 4, 5)")
    await keep(world)
    found, query = [], {"limit": 1}
    for _ in steps():
        page = (await world.http.get("/v1/namespaces/default/exports/dags", params=query)).json()
        found += [dag["id"] for dag in page["items"]]
        if page["next_cursor"] is None:
            break
        query["cursor"] = page["next_cursor"]
    assert found == [dags[0], dags[5], dags[6]]
    ends = {row["id"]: row["finished_at"] for row in await world.rows("SELECT id::text, finished_at FROM dag")}
    for since, until, expected in (
        (ends[dags[5]], None, [dags[5], dags[6]]),
        (None, ends[dags[5]], [dags[0]]),
        (datetime.now(UTC) + timedelta(days=1), None, []),
    ):
        query = {name: at.isoformat() for name, at in (("since", since), ("until", until)) if at}
        world.settings.__dict__["export_scan_dags_max"] = 100
        page = (await world.http.get("/v1/namespaces/default/exports/dags", params=query)).json()
        assert ([dag["id"] for dag in page["items"]], page["next_cursor"]) == (expected, None)
    beyond = {"until": "9999-12-31T23:59:59-23:59"}  # in UTC its year is none
    for bad in ({"since": "yesterday"}, {"since": "2030-01-01T00:00:00"}, beyond, {"cursor": "x"}):
        answer = await world.http.get("/v1/namespaces/default/exports/dags", params=bad)
        assert answer.status_code == 422
        assert [each["pointer"] for each in answer.json()["errors"]] == [f"/{name}" for name in bad]


async def test_what_has_just_ended_is_not_exported_yet(world: DagWorld) -> None:
    """An end before it may still be on its way to be written, and would never be told."""
    dag = await ended(world)
    for grace_s, shown in ((600.0, []), (0.0, [dag])):
        world.settings.__dict__["ended_dag_grace_s"] = grace_s
        page = (await world.http.get("/v1/namespaces/default/exports/dags")).json()
        assert [each["id"] for each in page["items"]] == shown


async def test_an_exported_dag_says_what_it_says_when_it_is_asked_for(world: DagWorld) -> None:
    dag = await world.create(
        {"a": []}, priority={"inherit": 2, "critical_path": 1}, metadata={"of": "x"}, name="n"
    )
    await world.settle()
    world.queue.ack("a")
    await world.settle()
    world.settings.__dict__["ended_dag_grace_s"] = 0.0
    page = (await world.http.get("/v1/namespaces/default/exports/dags")).json()
    assert page["items"] == [await world.dag(dag)]
    assert page["items"][0]["priority"] == {"inherit": 2, "critical_path": 1}


async def test_an_exported_node_carries_its_item(world: DagWorld) -> None:
    dag = await ended(world)
    await keep(world)
    page = await world.call("GET", f"/{dag}/export")
    by_key = {node["key"]: node for node in page["items"]}
    assert by_key["a"]["item"]["payload"] == {"n": 1}
    assert by_key["b"]["output"] == "B" and by_key["b"]["upstream"] == ["a"]


async def test_the_kept_tables_have_the_columns_of_the_hot_ones(world: DagWorld) -> None:
    rows = await world.rows(
        "SELECT table_name, array_agg(column_name || ' ' || data_type ORDER BY ordinal_position) AS columns"
        " FROM information_schema.columns WHERE table_schema = current_schema() GROUP BY 1"
    )
    columns = {row["table_name"]: row["columns"] for row in rows}
    assert {table: columns[f"kept_{table}"] for table in HOT} == {table: columns[table] for table in HOT}
