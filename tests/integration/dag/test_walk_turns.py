"""Long work of many DAGs: none of it stops another's, of whatever tenant, and none that fails stops all."""

from typing import Any

import pytest

from services.dag.duties import long_steps
from services.dag.duties.long_steps import Walker
from services.dag.model import Dag
from services.dag.run.decisions import Settlement
from tests.support.clocks import ManualClock
from tests.support.dag_world import DagWorld, specs


async def fan(world: DagWorld, namespace: str, count: int, **more: Any) -> str:
    """A DAG of nodes that wait for one root, or for the hold to be lifted."""
    nodes = specs({"root": []} | {f"n{i}": ["root"] for i in range(count)})
    made = await world.http.post(f"/v1/namespaces/{namespace}/dags", json={"nodes": nodes, **more})
    assert made.status_code == 201, made.text
    return str(made.json()["id"])


async def cancelled(world: DagWorld, namespace: str, count: int) -> str:
    """The same while a cancel goes on."""
    dag = await fan(world, namespace, count, hold=True)
    answer = await world.http.post(f"/v1/namespaces/{namespace}/dags/{dag}/cancel", json={})
    assert answer.json()["state"] == "cancelling"
    return dag


async def reached(world: DagWorld) -> dict[str, int]:
    """How many nodes each walk over all nodes has seen, by the DAG's id."""
    rows = await world.rows("SELECT id::text, after_no - (no << 22) AS seen FROM scan JOIN dag ON no = dag_no")
    return {row["id"]: row["seen"] + 1 for row in rows}


async def steps(world: DagWorld, count: int) -> None:
    for _ in range(count):
        await world.loops.walker.step(world.shard)


async def test_old_walks_of_one_tenant_do_not_stop_another_tenants(world: DagWorld) -> None:
    world.settings.__dict__.update(scan_nodes_max=1)
    old = [await cancelled(world, "first", 20) for _ in range(10)]
    late = await cancelled(world, "second", 20)
    await steps(world, 5)
    seen = await reached(world)
    assert seen[late] == 5
    assert sum(seen[dag] for dag in old) == 5 * 7
    await world.settle()


async def test_old_walks_do_not_stop_later_ones_of_their_own_tenant(world: DagWorld) -> None:
    world.settings.__dict__.update(scan_nodes_max=1)
    dags = [await cancelled(world, "first", 20) for _ in range(16)]
    await steps(world, 2)
    assert await reached(world) == dict.fromkeys(dags, 1)
    await world.settle()


async def test_a_dag_with_many_walks_does_not_hide_the_next(world: DagWorld) -> None:
    world.settings.__dict__.update(edges_per_step_max=1, walk_edges_max=1)
    nodes = {f"root{i}": [] for i in range(12)}
    wide = await world.create(nodes | {f"n{i}.{j}": [f"root{i}"] for i in range(12) for j in range(3)})
    for i in range(12):
        world.queue.ack(f"root{i}")
        await world.loops.results[0].drain()
    late = await fan(world, "default", 20)
    world.queue.ack("root")
    await world.loops.results[0].drain()
    assert len(await world.rows("SELECT FROM spread")) == 13
    before = (await world.dag(late))["nodes"]["released"]
    await steps(world, 3)
    assert (await world.dag(late))["nodes"]["released"] == before + 3
    await world.settle()
    assert (await world.dag(wide))["nodes"]["blocked"] == 0


async def test_of_more_dags_than_one_look_takes_each_comes_in_its_turn(
    world: DagWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_steps, "_DAGS_PER_LOOK", 5)
    monkeypatch.setattr(long_steps, "_DAGS_PER_STEP", 5)
    world.settings.__dict__.update(scan_nodes_max=1)
    dags = [await cancelled(world, "first", 20) for _ in range(12)]
    await steps(world, 12)
    assert await reached(world) == dict.fromkeys(dags, 5)
    await world.settle()


async def test_a_walk_that_fails_each_time_waits_and_the_others_go_on(
    world: DagWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.settings.__dict__.update(scan_nodes_max=1)
    clock = world.duties.context.clock = ManualClock(wall=True)
    bad = await cancelled(world, "first", 20)
    good = await cancelled(world, "first", 20)
    tried = 0
    scan = Walker._scan

    async def failing(walker: Walker, settlement: Settlement, dag: Dag, *more: Any) -> None:
        nonlocal tried
        if dag.id == bad:
            tried += 1
            raise RuntimeError("this DAG is beyond help")
        await scan(walker, settlement, dag, *more)

    with monkeypatch.context() as patched:
        patched.setattr(Walker, "_scan", failing)
        await steps(world, 4)
        assert tried == 1
        assert (await reached(world))[good] == 4
        clock.advance(1.0)
        await steps(world, 4)
        assert tried == 2
    clock.advance(2.0)
    await world.settle()
    assert await reached(world) == {}


async def test_the_step_after_a_slow_one_or_one_that_failed_is_smaller(
    world: DagWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What runs into a timeout would do so again with the same rows."""
    world.settings.__dict__.update(scan_nodes_max=16)
    clock = world.duties.context.clock = ManualClock(wall=True)
    dag = await cancelled(world, "default", 99)
    scan, sizes = Walker._scan, []
    nodes_max, node_s = 100, 0.04

    async def slow(walker: Walker, settlement: Settlement, *more: Any) -> None:
        nodes = settlement.bounds.scan_nodes_max
        sizes.append(nodes)
        clock.advance(nodes * node_s)
        if nodes > nodes_max:
            raise TimeoutError
        await scan(walker, settlement, *more)

    monkeypatch.setattr(Walker, "_scan", slow)
    await steps(world, 4)
    assert sizes == [16, 8, 4, 4]
    assert await reached(world) == {dag: 32}
    node_s = 1.0
    await steps(world, 4)
    assert sizes[4:] == [4, 2, 1, 1]
    node_s = 0.001
    await steps(world, 5)
    assert sizes[8:] == [1, 2, 4, 8, 16]
    nodes_max = 4
    for _ in range(3):
        await steps(world, 1)
        clock.advance(60)
    assert sizes[13:] == [16, 8, 4]
    nodes_max = 100
    await world.settle()
    assert (await world.dag(dag))["state"] == "cancelled"


async def test_stopped_adds_that_cannot_be_finished_do_not_stop_the_next(
    world: DagWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    dags = [await fan(world, "default", 1) for _ in range(20)]
    await world.settle()  # else the rows of the calls themselves are deleted meanwhile
    await world.rows(
        "INSERT INTO adding SELECT no << 22, (no << 22) + 1, shard_now() - interval '1 h' FROM dag "
        "ON CONFLICT (first_no) DO UPDATE SET started_at = excluded.started_at RETURNING 1"
    )
    driven = set()

    async def never(_shard: Any, unfinished: Any) -> None:
        driven.add(unfinished.dag_no)
        raise RuntimeError("this add is beyond help")

    with monkeypatch.context() as patched:
        patched.setattr(world.duties.registrar, "drive", never)
        await world.loops.sweeper.step(world.shard)
        await world.loops.sweeper.step(world.shard)
    assert len(driven) == len(dags)
    await world.sweep()
    await world.sweep()
    assert not await world.rows("SELECT FROM adding")


async def test_a_deadline_that_cannot_be_applied_does_not_stop_the_next(
    world: DagWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = [await fan(world, "default", 1, deadline_s=3_600) for _ in range(2)]
    await world.rows("UPDATE dag SET deadline_at = shard_now() - interval '1 s' RETURNING 1")
    controller = world.duties.controller
    expire = controller.expire
    [[bad_no]] = await world.rows("SELECT no FROM dag WHERE id = $1", bad)

    async def failing(shard: Any, dag_no: int) -> None:
        if dag_no == bad_no:
            raise RuntimeError("this DAG is beyond help")
        await expire(shard, dag_no)

    with monkeypatch.context() as patched:
        patched.setattr(controller, "expire", failing)
        await world.loops.sweeper.step(world.shard)
    assert (await world.dag(good))["state"] == "cancelling"
    assert (await world.dag(bad))["state"] == "running"
    await world.sweep()
    assert (await world.dag(bad))["state"] == "failed"
