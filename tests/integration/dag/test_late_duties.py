"""What a duty found by its look is asked again under the lock: somebody may have acted in between."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from services.dag import store
from services.dag.model import Ref, Send
from shared.errors import ShardUnavailable
from tests.integration.dag.test_external_deadlines import CLOCK, later, waiting
from tests.support.clocks import ManualClock
from tests.support.dag_world import DagWorld


def before(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, act: Callable[..., Awaitable[Any]]
) -> Callable[..., Awaitable[Any]]:
    """Let `act` happen before the next call of a method, which is answered."""
    method: Callable[..., Awaitable[Any]] = getattr(owner, name)

    async def act_first(*args: Any, **given: Any) -> Any:
        monkeypatch.setattr(owner, name, method)
        await act(*args)
        return await method(*args, **given)

    monkeypatch.setattr(owner, name, act_first)
    return method


async def test_an_external_that_was_resolved_meanwhile_does_not_fail_by_its_deadline(
    world: DagWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    dag = await world.create([waiting("a", {"name": "x", "deadline_s": 60}, "y")])

    async def resolve(*_: Any) -> None:
        await world.verb(dag, "resolve", {"external": [{"node": "a", "name": "x", "data": 1}]})

    before(monkeypatch, world.loops.sweeper._controller, "expire_externals", resolve)
    await later(world, 61)
    assert await world.states(dag) == {"a": "blocked"}
    assert [(each["resolved"], each["failed"]) for each in (await world.node(dag, "a"))["external"]] == [
        (True, False),
        (False, False),
    ]


async def test_an_external_whose_deadline_counts_anew_does_not_fail_by_the_old_one(
    world: DagWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process has applied the deadline meanwhile, and somebody has retried the node that it failed."""
    dag = await world.create([waiting("a", {"name": "x", "deadline_s": 60})])
    controller = world.loops.sweeper._controller

    async def fail_and_retry(*args: Any) -> None:
        await controller.expire_externals(*args)
        assert await world.states(dag) == {"a": "failed"}
        await world.verb(dag, "retry")

    before(monkeypatch, controller, "expire_externals", fail_and_retry)
    await later(world, 61)
    assert await world.states(dag) == {"a": "blocked"}


async def test_a_dag_whose_deadline_counts_anew_is_not_cancelled_by_the_old_one(
    world: DagWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    dag = await world.create({"a": [], "b": ["a"]}, deadline_s=60)
    await world.settle()
    controller = world.loops.sweeper._controller

    async def end_and_retry(*args: Any) -> None:
        await controller.expire(*args)
        await world.settle()
        assert (await world.dag(dag))["state"] == "failed"
        await world.verb(dag, "retry")

    before(monkeypatch, controller, "expire", end_and_retry)
    await later(world, 61)
    assert (await world.dag(dag))["state"] == "running"
    assert world.queue.deliverable() == ["a"]


async def test_an_item_is_taken_for_lost_only_when_every_completion_before_is_applied(world: DagWorld) -> None:
    """Another process may have leased the completion that says how the item has ended."""
    clock = world.duties.context.clock = ManualClock()
    dag = await world.create({"a": [], "b": ["a"]})
    await world.settle()
    lost = world.queue.item_of("b").body["id"]
    del world.queue.items[lost]
    world.queue.too_old = {lost}
    world.queue.ack("a")
    await world.settle()
    for _ in range(2):
        await world.sweep()
        assert (await world.node(dag, "b"))["generation"] == 1
    clock.advance(world.settings.completion_lease_s + 2)
    await world.sweep()
    assert (await world.node(dag, "b"))["generation"] == 2


async def test_two_who_find_an_item_lost_make_it_anew_once(world: DagWorld) -> None:
    dag = await world.create({"a": []})
    await world.settle()
    [row] = await world.rows("SELECT no, item_id::text FROM node")
    send = Send(row["no"], 1, "revive", row["item_id"], "default")
    for _ in range(2):
        await world.loops.relay._completer.renew(world.shard, send)
    await world.settle()
    assert (await world.node(dag, "a"))["generation"] == 2


async def test_an_item_that_was_taken_for_lost_is_not_made_anew_after_its_end(world: DagWorld) -> None:
    dag = await world.create({"a": [], "b": ["a"]})
    await world.settle()
    [row] = await world.rows("SELECT no, item_id::text FROM node WHERE key = 'a'")
    world.queue.ack("a")
    await world.settle()
    await world.loops.relay._completer.renew(world.shard, Send(row["no"], 1, "revive", row["item_id"], "default"))
    await world.settle()
    assert world.queue.deliverable() == ["b"]
    assert (await world.node(dag, "a"))["generation"] == 1


@pytest.mark.parametrize("failed", [False, True])
async def test_what_is_resolved_before_the_walk_of_a_cancel_comes_to_it_is_cancelled(
    world: DagWorld, failed: bool
) -> None:
    dag = await world.create([{"key": "runs"}, waiting("a", "x")])
    await world.settle()
    await world.verb(dag, "cancel", expect=202)
    await world.verb(dag, "resolve", {"external": [{"node": "a", "name": "x", "failed": failed}]})
    assert (await world.states(dag))["a"] == "blocked"
    await world.settle()
    assert set((await world.states(dag)).values()) == {"cancelled"}


async def test_what_is_resolved_while_its_dag_is_being_cancelled_is_not_released(world: DagWorld) -> None:
    dag = await world.create([{"key": "runs"}, waiting("a", "x")])
    await world.settle()
    world.queue.down = {"cancel"}
    await world.verb(dag, "cancel", expect=202)
    await world.settle()
    await world.verb(dag, "resolve", {"external": [{"node": "a", "name": "x"}]})
    await world.settle()
    assert world.queue.deliverable() == ["runs"]
    world.queue.down = set()
    await world.sweep()
    assert set((await world.states(dag)).values()) == {"cancelled"}


async def test_a_retry_sends_nothing_that_was_decided_before_it(world: DagWorld) -> None:
    dag = await world.create({"a": [], "b": ["a"]})
    await world.settle()
    world.queue.down = {"revive", "enqueue", "cancel"}
    world.queue.ack("a")
    await world.settle()
    await world.verb(dag, "retry", {"from": ["a"]})
    await world.settle()
    rows = await world.rows("SELECT action, generation FROM outbox")
    assert {tuple(row) for row in rows} == {("cancel", 1), ("enqueue", 2)}
    world.queue.down = set()
    await world.sweep()
    assert [(item.node, item.generation) for item in world.queue.ready()] == [("a", 2)]


async def test_a_retry_keeps_the_cancels_that_the_queue_was_not_told_of(world: DagWorld) -> None:
    """The first generation's, too, when the second one is retried."""
    dag = await world.create({"a": []})
    await world.settle()
    world.queue.down = {"cancel"}
    for _ in range(2):
        await world.verb(dag, "retry", {"all": True})
        await world.settle()
    assert world.queue.deliverable() == ["a"] * 3
    world.queue.down = set()
    await world.sweep()
    assert [item.generation for item in world.queue.ready()] == [3]


async def test_a_cancel_is_still_told_when_the_release_before_it_was(world: DagWorld) -> None:
    dag = await world.create({"a": [], "b": ["a"]})
    await world.settle()
    world.queue.down = {"cancel"}
    async with world.queue.hold("revive") as hold:
        world.queue.ack("a")
        await world.loops.results[0].drain()
        await hold.reached()
        await world.verb(dag, "nodes/cancel", {"nodes": ["b"]}, expect=202)
        hold.released.set()
        await world.settle()
    assert world.queue.deliverable() == ["b"]
    assert [row["action"] for row in await world.rows("SELECT action FROM outbox")] == ["cancel"]
    world.queue.down = set()
    await world.sweep()
    assert await world.states(dag) == {"a": "succeeded", "b": "cancelled"}


async def test_a_release_that_is_still_to_be_sent_does_not_go_with_that_of_an_older_generation(
    world: DagWorld,
) -> None:
    """The queue took the first one long ago; its row is deleted late."""
    dag = await world.create({"a": []})
    await world.settle()
    world.queue.down = {"enqueue"}
    await world.verb(dag, "retry", {"all": True})
    await world.settle()
    [row] = await _outbox(world)
    older = Send(row["node_no"], row["generation"] - 1, "enqueue", row["item_id"], "default")
    world.loops.relay.forget(world.shard, [older], [])
    await world.loops.relay.idle()
    assert [row["generation"] for row in await _outbox(world)] == [2]
    world.queue.down = set()
    await world.sweep()
    assert ("a", 2) in [(item.node, item.generation) for item in world.queue.ready()]


async def _outbox(world: DagWorld) -> Any:
    return await world.rows("SELECT node_no, generation, item_id::text FROM outbox WHERE action = 'enqueue'")


async def test_a_cancel_that_is_confirmed_after_the_end_changes_nothing(world: DagWorld) -> None:
    dag = await world.create({"a": [], "b": ["a"]})
    await world.settle()
    [row] = await world.rows("SELECT no FROM node WHERE key = 'a'")
    world.queue.ack("a")
    await world.settle()
    await world.loops.relay._completer.confirm_cancelled(world.shard, [Ref(row["no"], 1)])
    assert await world.states(dag) == {"a": "succeeded", "b": "released"}


async def test_a_walk_does_not_count_an_edge_that_was_added_behind_the_end(world: DagWorld) -> None:
    world.settings.__dict__["edges_per_step_max"] = 2
    middle = {f"m{i}": ["root"] for i in range(5)}
    dag = await world.create({"root": [], **middle})
    await world.settle()
    world.queue.ack("root")
    await world.loops.results[0].drain()
    assert len(await world.rows("SELECT FROM spread")) == 1
    await world.add(dag, {"late": ["root"]})
    await world.settle()
    assert sorted(world.queue.deliverable()) == ["late", *middle]
    assert await world.rows("SELECT FROM spread") == []


async def test_a_node_that_runs_again_is_not_counted_again_by_what_ran_meanwhile(world: DagWorld) -> None:
    dag = await world.create([{"key": "a"}, {"key": "b", "upstream": ["a"], "trigger": "all_done"}])
    await world.settle()
    world.queue.die("a")
    await world.settle()
    await world.verb(dag, "retry", {"nodes": ["a"]})
    await world.settle()
    world.queue.ack("a")
    await world.settle()
    assert await world.states(dag) == {"a": "succeeded", "b": "released"}


async def test_a_completion_whose_transaction_fails_is_not_acked_with_the_next_ones(
    world: DagWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = [await world.create({"a": []}) for _ in range(2)]
    await world.settle()
    results = world.loops.results[0]

    async def fail(*_: Any) -> None:
        raise ShardUnavailable("away")

    before(monkeypatch, results._completer, "apply", fail)
    world.queue.ack("a")
    with pytest.raises(ShardUnavailable):
        await results.step()
    world.queue.ack("a")
    await results.step()
    await results.close()
    acked = [completion for verb, _, done in world.queue.calls if verb == "done" for completion in done]
    assert len(acked) == 1
    ended = {dag for dag in (first, second) if (await world.dag(dag))["state"] == "succeeded"}
    assert {completion.payload["ack_context"]["dag"] for completion in acked} == ended


@pytest.mark.parametrize("left", ["a walk", "an add"])
async def test_an_ended_dag_with_something_left_to_do_is_not_moved(world: DagWorld, left: str) -> None:
    world.settings.__dict__["ended_dag_grace_s"] = 0.0
    await world.create({"a": []})
    await world.settle()
    world.queue.ack("a")
    await world.settle()
    table, insert = {
        "a walk": ("scan", "INSERT INTO scan (dag_no, kind, after_no) SELECT no, 'cancel', 0 FROM dag"),
        "an add": ("adding", "INSERT INTO adding (first_no, last_no) SELECT no, no FROM node"),
    }[left]
    await world.rows(insert)
    await world.loops.retention.step(world.shard)
    assert [row["phase"] for row in await world.rows("SELECT phase FROM kept")] == ["due"]
    await world.rows(f"DELETE FROM {table}")
    await world.rows("UPDATE kept SET due_at = shard_now()")
    await world.loops.retention.step(world.shard)
    assert [row["phase"] for row in await world.rows("SELECT phase FROM kept")] == ["kept"]


async def test_a_key_whose_dag_is_dropped_before_it_is_found_makes_another(
    world: DagWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await world.create({"a": []}, key="k")

    async def drop(*_: Any) -> None:
        await world.rows("DELETE FROM dag")

    before(monkeypatch, store.dags, "find_dag", drop)
    second = await world.create({"a": []}, key="k")
    assert second != first
    assert await world.states(second) == {"a": "released"}


async def test_a_dag_that_ended_anew_since_it_was_noted_is_moved_in_its_own_time(world: DagWorld) -> None:
    world.settings.__dict__["ended_dag_grace_s"] = 60.0
    dag = await world.create({"a": []})
    await world.settle()
    world.queue.die("a")
    await world.settle()
    await world.rows(CLOCK % 61)
    world.settings.__dict__["keep_dags_max"] = 1
    await world.rows("UPDATE kept SET due_at = shard_now()")
    retention = world.loops.retention
    move = retention._move

    async def run_again_meanwhile(shard: Any, nos: Any) -> None:
        await world.verb(dag, "retry")
        await world.settle()
        world.queue.ack("a")
        await world.settle()
        await move(shard, nos)

    retention._move = run_again_meanwhile  # type: ignore[method-assign]
    await retention.step(world.shard)
    retention._move = move  # type: ignore[method-assign]
    assert (await world.dag(dag))["state"] == "succeeded"
    assert await world.rows("SELECT FROM kept") == []
    assert len(await world.rows("SELECT FROM node")) == 1
    await world.rows(CLOCK % (61 + 61))
    await retention.step(world.shard)
    assert [row["phase"] for row in await world.rows("SELECT phase FROM kept")] == ["kept"]


async def test_a_dag_that_was_brought_back_since_it_was_found_old_is_not_dropped(
    world: DagWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.settings.__dict__["ended_dag_grace_s"] = world.settings.__dict__["ended_dag_retention_s"] = 0.0
    dag = await world.create({"a": []})
    await world.settle()
    world.queue.die("a")
    await world.settle()
    retention = world.loops.retention
    drop = retention._drop

    async def bring_back_meanwhile(tx: Any, nos: Any) -> None:
        monkeypatch.setattr(retention, "_drop", drop)
        await world.verb(dag, "retry")
        await drop(tx, nos)

    monkeypatch.setattr(retention, "_drop", bring_back_meanwhile)
    for _ in range(2):
        await retention.step(world.shard)
    assert await world.states(dag) == {"a": "released"}
