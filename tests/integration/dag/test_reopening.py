"""Retries too large for one transaction: nothing runs before all of it is reopened, whatever comes in between."""

import random
from typing import Any

import pytest

from tests.support.dag_world import BASE, DagWorld, specs

CHAIN: dict[str, list[str]] = {"a": [], "b": ["a"], "c": ["b"], "d": ["c"]}


def steps_of(world: DagWorld, nodes: int, *, at_once: int = 0) -> None:
    """Retries of over `at_once` nodes go in steps of so many nodes."""
    world.settings.__dict__.update(retry_at_once_nodes_max=at_once, retry_step_nodes=nodes, retry_step_edges=nodes)


async def run_out(world: DagWorld, dying: Any = ()) -> list[str]:
    """Everything that can run, runs, in which order."""
    ran = []
    await world.settle()
    while ready := world.queue.deliverable():
        for key in ready:
            ran.append(key)
            (world.queue.die if key in dying else world.queue.ack)(key)
        await world.settle()
    return ran


async def ended(world: DagWorld, nodes: Any, dying: Any = (), **more: Any) -> str:
    dag = await world.create(nodes, **more)
    await run_out(world, dying)
    return dag


async def step(world: DagWorld) -> bool:
    """One step of the DAGs' walks; False when none is left."""
    await world.loops.relay.idle()
    return bool(await world.loops.walker.step(world.shard))


async def past_deadline(world: DagWorld) -> None:
    await (await world.looking_at(world.shard)).execute("UPDATE dag SET deadline_at = shard_now()")
    await world.sweep()


async def is_reopening(world: DagWorld) -> bool:
    return bool(await world.rows("SELECT FROM reopening"))


async def standing(world: DagWorld, dag: str) -> dict[str, tuple[str, int]]:
    page = await world.call("GET", f"/{dag}/nodes?limit=1000", expect=200)
    return {node["key"]: (node["state"], node["generation"]) for node in page["items"]}


def drawn(seed: int) -> tuple[list[dict[str, Any]], set[str]]:
    """A graph with all triggers, and what dies in it."""
    dice = random.Random(seed)
    keys = [f"n{i}" for i in range(14)]
    triggers = ["all_succeeded"] * 4 + ["all_done", "any_succeeded", "any_failed", "none_failed"]
    nodes: list[dict[str, Any]] = []
    for i, key in enumerate(keys):
        ups = dice.sample(keys[:i], min(i, dice.choice([0, 1, 1, 2, 3])))
        nodes.append({"key": key} | ({"upstream": ups, "trigger": dice.choice(triggers)} if ups else {}))
    return nodes, set(dice.sample(keys, 3)) | {"n0"}


@pytest.mark.parametrize("body", [{}, {"all": True}, {"from": ["n1", "n3"]}, {"nodes": ["n0"]}])
@pytest.mark.parametrize("policy", ["continue", "cancel"])
async def test_steps_come_to_what_one_transaction_would(world: DagWorld, policy: str, body: Any) -> None:
    for seed in range(3):
        nodes, dying = drawn(seed)
        found = []
        for at_once in (1_000, 0):
            steps_of(world, 1 + seed, at_once=at_once)
            dag = await ended(world, nodes, dying, on_failure=policy)
            answer = await world.http.post(f"{BASE}/{dag}/retry", json=body)
            await world.settle()
            between = await standing(world, dag)
            ran = await run_out(world, dying={"n5"})
            found.append((answer.status_code, between, sorted(ran), await standing(world, dag)))
            await world.audit(dag)
        assert found[0] == found[1]


async def test_at_the_limit_one_transaction_and_one_past_it_steps(world: DagWorld) -> None:
    steps_of(world, 100, at_once=4)
    dag = await ended(world, CHAIN)
    answer = await world.verb(dag, "retry", {"all": True})
    assert (answer["nodes"]["released"], await is_reopening(world)) == (1, False)
    assert await run_out(world) == ["a", "b", "c", "d"]
    steps_of(world, 100, at_once=3)
    answer = await world.verb(dag, "retry", {"all": True})
    assert (answer["state"], answer["nodes"]["released"], await is_reopening(world)) == ("running", 0, True)
    assert await run_out(world) == ["a", "b", "c", "d"]
    assert (await world.dag(dag))["state"] == "succeeded"


@pytest.mark.parametrize("body", [{}, {"nodes": ["a"]}, {"from": ["a"]}, {"all": True}])
async def test_a_retry_in_steps_takes_payloads_for_what_failed_or_is_named(world: DagWorld, body: Any) -> None:
    dag = await ended(world, CHAIN, dying={"a"})
    steps_of(world, 1)
    for payloads, code in (({"b": 1}, "limit_exceeded"), ({"a": 1, "x": 1}, "invalid")):
        refused = await world.verb(dag, "retry", body | {"payloads": payloads}, expect=422)
        assert refused["code"] == code
    await world.verb(dag, "retry", body | {"payloads": {"a": 1}})
    assert await is_reopening(world)
    await world.settle()
    assert world.queue.item_of("a").body["payload"] == 1
    assert await run_out(world) == ["a", "b", "c", "d"]


async def test_a_payload_for_what_a_retry_in_steps_names_does_not_change_what_is_undone(world: DagWorld) -> None:
    undo = {"key": "undo a", "compensates": "a", "pass_outputs": True}
    dag = await ended(world, [{"key": "a", "payload": 1}, *specs({"b": ["a"], "c": ["b"]}), undo])
    steps_of(world, 1)
    await world.verb(dag, "retry", {"from": ["a"], "payloads": {"a": 2}})
    await world.settle()
    world.queue.die("a")
    await world.settle()
    assert world.queue.item_of("undo a").inputs == {"payload:a": 1}
    assert await run_out(world) == ["undo a"]
    assert (await world.dag(dag))["state"] == "failed"


async def test_nothing_is_released_before_all_is_reopened(world: DagWorld) -> None:
    """A node whose upstreams are not reopened yet looks as if it could run, or had to be skipped."""
    nodes = [{"key": "z", "upstream": ["a", "d"], "trigger": "all_done"}, *specs(CHAIN)]
    steps_of(world, 1)
    dag = await ended(world, nodes, dying={"d"})
    await world.verb(dag, "retry", {"from": ["a"]})
    steps = 0
    while await is_reopening(world):
        found = await world.dag(dag)
        assert (found["state"], found["nodes"]["released"], found["nodes"]["skipped"]) == ("running", 0, 0)
        assert not await world.rows("SELECT FROM outbox WHERE action <> 'cancel'")
        await step(world)
        steps += 1
    assert steps > 5
    assert await run_out(world) == ["a", "b", "c", "d", "z"]


async def test_what_only_the_retry_keeps_says_so(world: DagWorld) -> None:
    """Its upstreams have succeeded, nothing else holds it; yet it is not released."""
    steps_of(world, 1)
    dag = await ended(world, CHAIN, dying={"b"})
    await world.verb(dag, "retry")
    kept = False
    while await is_reopening(world):
        found = await world.node(dag, "b")
        if found["state"] == "blocked":
            kept = True
            assert [block["kind"] for block in found["blocked_by"]] == ["retry"]
            assert all(block["since"] for block in found["blocked_by"])
        frontier = await world.call("GET", f"/{dag}/frontier", expect=200)
        assert [obstacle["kind"] for obstacle in frontier["waits_for"]] == ["retry"]
        for node in frontier["items"]:
            assert (node["standing"], [o["kind"] for o in node["waits_for"]]) == ("kept", ["retry"]), node
        await step(world)
    assert kept
    assert (await world.call("GET", f"/{dag}/frontier", expect=200))["waits_for"] == []
    assert await run_out(world) == ["b", "c", "d"]


@pytest.mark.parametrize("steps", [1, 4, 7, 10])
async def test_what_ends_meanwhile_is_counted(world: DagWorld, steps: int) -> None:
    nodes = [
        {"key": "bad"},
        {"key": "slow"},
        {"key": "join", "upstream": ["bad", "slow"], "trigger": "all_done"},
        {"key": "below", "upstream": ["bad"]},
        {"key": "lower", "upstream": ["below", "slow"]},
    ]
    steps_of(world, 1)
    dag = await world.create(nodes)
    await world.settle()
    world.queue.die("bad")
    await world.settle()
    await world.verb(dag, "retry")
    for _ in range(steps):
        await step(world)
    world.queue.ack("slow")
    await world.loops.results[world.shard.number].drain()
    await world.settle()
    assert await world.states(dag) == {
        "bad": "released",
        "slow": "succeeded",
        "join": "blocked",
        "below": "blocked",
        "lower": "blocked",
    }
    await world.audit(dag)
    assert sorted(await run_out(world)) == ["bad", "below", "join", "lower"]
    assert (await world.dag(dag))["state"] == "succeeded"


@pytest.mark.parametrize("steps", [0, 1, 3, 6, 9, 11])
async def test_a_cancel_meanwhile_ends_it(world: DagWorld, steps: int) -> None:
    steps_of(world, 1)
    dag = await ended(world, {**CHAIN, "e": []}, dying={"a"})
    await world.verb(dag, "retry")
    for _ in range(steps):
        await step(world)
    await world.verb(dag, "cancel", expect=202 if steps else 200)
    assert not await is_reopening(world)
    await world.settle()
    assert (await world.dag(dag))["state"] == "cancelled"
    assert not world.queue.deliverable()
    assert not await world.rows("SELECT FROM reach")
    assert (await world.verb(dag, "retry", expect=409))["code"] == "dag_finished"


@pytest.mark.parametrize("steps", [1, 4, 9])
async def test_a_deadline_meanwhile_ends_it_and_a_retry_begins_anew(world: DagWorld, steps: int) -> None:
    steps_of(world, 1)
    dag = await ended(world, {**CHAIN, "e": []}, dying={"a"}, deadline_s=3600)
    await world.verb(dag, "retry")
    for _ in range(steps):
        await step(world)
    await past_deadline(world)
    assert (await world.dag(dag))["state"] == "failed"
    await world.verb(dag, "retry")
    assert await run_out(world) == ["a", "b", "c", "d"]
    assert (await world.dag(dag))["state"] == "succeeded"


async def test_pause_holds_what_was_reopened(world: DagWorld) -> None:
    steps_of(world, 1)
    dag = await ended(world, CHAIN, dying={"b"})
    await world.verb(dag, "retry")
    await step(world)
    await world.verb(dag, "pause")
    await world.settle()
    assert not await is_reopening(world)
    assert not world.queue.deliverable()
    await world.verb(dag, "resume")
    assert await run_out(world) == ["b", "c", "d"]


async def test_a_pause_that_ends_meanwhile_decides_nothing(world: DagWorld) -> None:
    """What is reopened still counts upstreams as failed or skipped."""
    steps_of(world, 1)
    dag = await ended(world, CHAIN, dying={"b"})
    await world.verb(dag, "retry")
    while await is_reopening(world):
        for verb in ("pause", "resume"):
            found = await world.verb(dag, verb)
        assert found["nodes"]["released"] == 0
        await step(world)
    assert await run_out(world) == ["b", "c", "d"]


async def test_what_depends_on_who_runs_again_is_refused_for_now(world: DagWorld) -> None:
    steps_of(world, 1)
    dag = await ended(world, {**CHAIN, "e": []}, dying={"a"})
    await world.verb(dag, "retry")
    for verb, body in (
        ("retry", {}),
        ("skip", {"nodes": ["d"]}),
        ("nodes/cancel", {"nodes": ["d"]}),
        ("dependencies", {"dependencies": [{"upstream": "e", "downstream": "d"}]}),
    ):
        answer = await world.verb(dag, verb, body, expect=503)
        assert (answer["code"], answer["outcome"]) == ("dag_reopening", "none")
    await world.settle()
    assert (await world.verb(dag, "skip", {"nodes": ["d"]}))["state"] == "running"
    assert await run_out(world) == ["a", "b", "c"]


@pytest.mark.parametrize("steps", [0, 5, 10])
async def test_nodes_added_meanwhile_wait_for_what_runs_again(world: DagWorld, steps: int) -> None:
    steps_of(world, 1)
    dag = await ended(world, CHAIN, dying={"a"})
    await world.verb(dag, "retry")
    for _ in range(steps):
        await step(world)
    await world.add(dag, {"new": ["d"], "root": []})
    await world.settle()
    states = await world.states(dag)
    assert (states["new"], states["root"], states["a"]) == ("blocked", "released", "released")
    assert sorted(await run_out(world)) == ["a", "b", "c", "d", "new", "root"]
    assert (await world.dag(dag))["state"] == "succeeded"


async def test_an_external_that_failed_is_not_resolved_before_it_is_open_again(world: DagWorld) -> None:
    """It would be `already_resolved`, and then forgotten: its node would wait for ever."""
    nodes = [{"key": "a"}, {"key": "b", "upstream": ["a"], "external": ["x", "y"]}]
    steps_of(world, 1)
    dag = await world.create(nodes)
    await world.settle()
    failed, other = {"node": "b", "name": "x", "failed": True}, {"node": "b", "name": "y"}
    await world.verb(dag, "resolve", {"external": [failed]})
    world.queue.die("a")
    await world.settle()
    await world.verb(dag, "retry")
    again = {"external": [{"node": "b", "name": "x"}, other]}
    refusals = 0
    while (answer := await world.http.post(f"{BASE}/{dag}/resolve", json=again)).status_code != 200:
        assert (answer.status_code, answer.json()["code"]) == (503, "dag_reopening")
        assert answer.json()["outcome"] == "none" and answer.headers["retry-after"]
        refusals += 1
        await step(world)
    assert refusals
    await world.settle()
    assert [fact["resolved"] for fact in (await world.node(dag, "b"))["external"]] == [True, True]
    assert await run_out(world) == ["a", "b"]


async def test_an_external_that_fails_after_the_call_is_not_asked_for_again(world: DagWorld) -> None:
    nodes = [{"key": "a"}, {"key": "b", "upstream": ["a"], "external": ["old", "new"]}]
    steps_of(world, 1)
    dag = await world.create(nodes)
    await world.settle()
    world.queue.die("a")
    await world.settle()
    await world.verb(dag, "resolve", {"external": [{"node": "b", "name": "old", "failed": True}]})
    await world.verb(dag, "retry")
    await world.verb(dag, "resolve", {"external": [{"node": "b", "name": "new", "failed": True}]})
    await world.settle()
    found = await world.node(dag, "b")
    assert found["state"] == "failed"
    assert {fact["name"]: fact["resolved"] for fact in found["external"]} == {"old": False, "new": True}
    await run_out(world)


@pytest.mark.parametrize("body", [{}, {"from": ["a"]}, {"all": True}])
async def test_cleanup_and_compensation_come_again(world: DagWorld, body: Any) -> None:
    nodes = [
        {"key": "a"},
        {"key": "b", "upstream": ["a"]},
        {"key": "c", "upstream": ["b"]},
        {"key": "undo a", "compensates": "a"},
        {"key": "clean", "run_on": "always"},
    ]
    found = []
    for at_once in (1_000, 0):
        steps_of(world, 1, at_once=at_once)
        dag = await ended(world, nodes, dying={"b", "undo a"})
        await world.verb(dag, "retry", body)
        ran = await run_out(world, dying={"c"})
        found.append((ran, await standing(world, dag), (await world.dag(dag))["state"]))
        await world.audit(dag)
    assert found[0] == found[1]
    assert found[0][0][:3] == ["a", "b", "c"]
    assert set(found[0][0][3:]) == {"undo a", "clean"}


@pytest.mark.parametrize("dying", [set(), {"c"}])
@pytest.mark.parametrize("cause", ["call", "deadline"])
async def test_what_cancels_it_meanwhile_leaves_cleanup_and_compensation_to_come_again(
    world: DagWorld, cause: str, dying: set[str]
) -> None:
    """However far the retry has come: what had succeeded is undone, and nothing twice; all cleanup comes again."""
    undo = [{"key": f"undo {key}", "compensates": key} for key in "abc"]
    nodes = [*specs({"a": [], "b": ["a"], "c": ["b"]}), *undo]
    nodes += [{"key": end, "run_on": end} for end in ("always", "cancelled", "failed")]
    state = "cancelled" if cause == "call" else "failed"
    expected = sorted(["always", state, *([] if dying else ["undo a", "undo b", "undo c"])])
    steps_of(world, 1)
    for steps in range(100):
        dag = await ended(world, nodes, dying, deadline_s=3600)
        await world.verb(dag, "retry", {"all": True})
        for _ in range(steps):
            await step(world)
        if not await is_reopening(world):
            break
        if cause == "call":
            await world.verb(dag, "cancel", expect=202)
        else:
            await past_deadline(world)
        assert sorted(await run_out(world)) == expected, steps
        assert (await world.dag(dag))["state"] == state
        assert (await standing(world, dag))["always"] == ("succeeded", 2)
        assert not await is_reopening(world)
        await world.audit(dag)
    assert 8 < steps < 99


@pytest.mark.parametrize("dying", [set(), {"undo a"}], ids=["undone", "not undone"])
@pytest.mark.parametrize("body", [{}, {"nodes": ["b"]}, {"from": ["b"]}])
async def test_what_was_undone_is_done_again_after_retries_that_a_deadline_ends(
    world: DagWorld, body: Any, dying: set[str]
) -> None:
    """However far these have come: no node counts as done whose undoing was begun."""
    nodes = [*specs({"a": [], "b": ["a"]}), {"key": "undo a", "compensates": "a"}]
    for steps in range(100):
        dag = await ended(world, nodes, {"b", *dying}, deadline_s=3600)
        for _ in range(2):
            steps_of(world, 1)
            await world.verb(dag, "retry")
            for _ in range(steps):
                await step(world)
            if not await is_reopening(world):
                assert steps > 3
                return
            await past_deadline(world)
            await run_out(world, dying)
        steps_of(world, 1, at_once=1_000 * (steps % 2))
        await world.verb(dag, "retry", body)
        assert await run_out(world) == ["a", "b"], steps
        assert (await world.dag(dag))["state"] == "succeeded"
        await world.audit(dag)


async def test_an_old_end_has_no_effect_before_or_after_its_node_is_reopened(world: DagWorld) -> None:
    steps_of(world, 1)
    dag = await world.create({"a": [], "b": ["a"], "c": ["b"]})
    await world.settle()
    world.queue.ack("a")
    await world.settle()
    old = world.queue.item_of("b").body
    await world.verb(dag, "retry", {"from": ["a"]})
    while await step(world):
        pass
    world.queue.complete(old, "acked")
    await world.settle()
    assert await world.states(dag) == {"a": "released", "b": "blocked", "c": "blocked"}
    assert await run_out(world) == ["a", "b", "c"]


async def test_who_comes_after_a_crash_goes_on(world: DagWorld) -> None:
    """All that a step leaves is in rows."""
    steps_of(world, 1)
    dag = await ended(world, CHAIN, dying={"a"})
    await world.verb(dag, "retry")
    for _ in range(3):
        await step(world)
    other = DagWorld(world.database, world.queue)
    try:
        await other.settle()
        assert await run_out(other) == ["a", "b", "c", "d"]
        assert (await other.dag(dag))["state"] == "succeeded"
    finally:
        await other.close()
