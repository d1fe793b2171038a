"""Adding to a DAG while it runs, while calls stop half-way, and while others add: PROTOCOL 12, 18, 19."""

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from services.dag.queue_client import Answer
from tests.support.dag_world import DagWorld, specs
from tests.support.locks import locked


async def test_r1_an_add_that_stopped_before_the_queue_heard_is_driven_forward(world: DagWorld) -> None:
    dag = await world.create(open=True)
    world.queue.down = {"enqueue"}
    stopped = await world.add(dag, {"a": [], "b": ["a"]}, expect=503)
    assert (stopped["code"], stopped["outcome"]) == ("add_unfinished", "unknown")
    assert await world.states(dag) == {"a": "released", "b": "blocked"}
    assert world.queue.items == {}
    world.queue.down = set()
    await world.sweep()
    assert world.queue.deliverable() == ["a"]
    assert world.queue.item_of("b").state == "disabled"
    assert not await world.rows("SELECT * FROM adding")
    assert await world.states(dag) == {"a": "released", "b": "blocked"}


async def test_r1_an_add_whose_answer_was_lost_is_driven_by_the_same_call(world: DagWorld) -> None:
    dag = await world.create(open=True)
    world.queue.lose_answers = {"enqueue"}
    await world.add(dag, {"a": [], "b": ["a"]}, expect=503)
    world.queue.lose_answers = set()
    again = await world.add(dag, {"a": [], "b": ["a"]})
    assert [node["key"] for node in again["nodes"]] == ["a", "b"]
    await world.settle()
    assert world.queue.deliverable() == ["a"]
    assert len(world.queue.items) == 2


async def test_r2_a_create_repeated_after_a_lost_answer_makes_one_dag(world: DagWorld) -> None:
    body = {"key": "k", "nodes": specs({"a": [], "b": ["a"]})}
    world.queue.down = {"enqueue"}
    await world.call("POST", "", body, expect=503)
    world.queue.down = set()
    found = await world.call("POST", "", body, expect=200)
    assert found["nodes"]["total"] == 2
    await world.sweep()
    assert world.queue.deliverable() == ["a"]
    assert len(await world.rows("SELECT * FROM dag")) == 1


async def test_r2_two_creates_of_one_key_at_once_make_one_dag(world: DagWorld) -> None:
    body = {"key": "k", "nodes": specs({"a": [], "b": ["a"]})}
    answers = await asyncio.gather(*(world.http.post("/v1/namespaces/default/dags", json=body) for _ in range(5)))
    assert sorted(answer.status_code for answer in answers) == [200, 200, 200, 200, 201]
    assert len({answer.json()["id"] for answer in answers}) == 1


@pytest.mark.parametrize("nodes", [{}, {"a": []}, {"a": [], "b": ["a"]}])
async def test_who_asks_for_a_dag_by_its_key_does_not_wait_for_what_others_add(
    world: DagWorld, nodes: Any
) -> None:
    body = {"key": "k", "open": True, "nodes": specs(nodes)} if nodes else {"key": "k", "open": True}
    dag = (await world.call("POST", "", body, expect=201))["id"]
    await world.settle()
    async with world.queue.hold("enqueue") as hold:
        adding = asyncio.create_task(world.add(dag, {"c": [], "d": ["c"]}))
        await hold.reached()
        async with asyncio.timeout(60):
            found = await world.call("POST", "", body, expect=200)
        assert (found["id"], found["nodes"]["total"]) == (dag, len(nodes) + 2)
        assert not adding.done()
        hold.released.set()
        await adding


async def test_a_create_repeated_is_answered_when_the_queue_has_its_nodes(
    world: DagWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"key": "k", "nodes": specs({"a": [], "b": ["a"]})}
    drive, waits = world.duties.registrar.drive, asyncio.Event()

    async def driving(*given: Any) -> None:
        waits.set()
        await drive(*given)

    monkeypatch.setattr(world.duties.registrar, "drive", driving)
    async with world.queue.hold("enqueue") as hold:
        creating = asyncio.create_task(world.call("POST", "", body, expect=201))
        await hold.reached()
        again = asyncio.create_task(world.call("POST", "", body, expect=200))
        async with asyncio.timeout(60):
            await waits.wait()
        assert not again.done()
        hold.released.set()
        assert (await again)["id"] == (await creating)["id"]


async def test_an_upstream_that_ends_before_the_queue_has_the_new_node_releases_it_once(world: DagWorld) -> None:
    """It cannot be revived, so it is enqueued; what lands late is a duplicate, also after its end."""
    for ends in (False, True):
        dag = await world.create({"a": []}, open=True)
        await world.settle()
        async with world.queue.hold("enqueue", calls=1) as hold:
            adding = asyncio.create_task(world.add(dag, {"b": ["a"]}))
            await hold.reached()
            world.queue.ack("a")
            await world.settle()
            assert await world.states(dag) == {"a": "succeeded", "b": "released"}
            if ends:
                world.queue.ack("b")
                await world.settle()
            hold.released.set()
            assert (await adding)["nodes"][0]["state"] == "blocked", "as it stood when it was added"
        await world.settle()
        if not ends:
            world.queue.ack("b")
            await world.settle()
        assert await world.states(dag) == {"a": "succeeded", "b": "succeeded"}
        assert world.queue.items == {}
    assert world.queue.delivered == [("a", 1), ("b", 1)] * 2
    assert not await world.rows("SELECT * FROM adding")


async def test_a_dag_does_not_end_before_the_queue_has_its_new_nodes(world: DagWorld) -> None:
    dag = await world.create({"a": [], "other": []})
    await world.settle()
    async with world.queue.hold("enqueue") as hold:
        adding = asyncio.create_task(world.add(dag, {"b": ["a", "other"]}))
        await hold.reached()
        world.queue.ack("a")
        await world.settle()
        assert (await world.dag(dag))["state"] == "running"
        hold.released.set()
        assert (await adding)["nodes"][0]["state"] == "blocked"
    for key in ("other", "b"):
        world.queue.ack(key)
        await world.settle()
    assert (await world.dag(dag))["state"] == "succeeded"


async def test_a_second_builder_goes_on_from_nodes_that_the_queue_does_not_have_yet(world: DagWorld) -> None:
    dag = await world.create({"x": []}, open=True)
    await world.settle()
    async with world.queue.hold("enqueue", calls=1) as hold:
        first = asyncio.create_task(world.add(dag, {"a": ["x"], "b": ["a"]}))
        await hold.reached()
        await world.link(dag, ("x", "b"))
        second = asyncio.create_task(world.add(dag, {"c": ["b"]}))
        hold.released.set()
        await first
        assert (await second)["nodes"][0]["state"] == "blocked"
    for key in ("x", "a", "b", "c"):
        assert world.queue.deliverable() == [key]
        world.queue.ack(key)
        await world.settle()


async def test_the_same_call_is_answered_when_the_queue_has_its_nodes(world: DagWorld) -> None:
    dag = await world.create({"x": []}, open=True)
    await world.settle()
    async with world.queue.hold("enqueue") as hold:
        first = asyncio.create_task(world.add(dag, {"a": ["x"]}))
        await hold.reached()
        world.settings.__dict__["drive_wait_s"] = 0.0
        stopped = await world.add(dag, {"a": ["x"]}, expect=503)
        assert (stopped["code"], stopped["outcome"]) == ("add_unfinished", "unknown")
        world.settings.__dict__["drive_wait_s"] = 5.0
        again = asyncio.create_task(world.add(dag, {"a": ["x"]}))
        hold.released.set()
        assert await first == await again
    assert world.queue.item_of("a").state == "disabled"


async def test_verbs_do_not_wait_for_the_queue_to_have_what_they_name(world: DagWorld) -> None:
    dag = await world.create(open=True)
    world.queue.down = {"enqueue"}
    await world.add(dag, {"a": [], "b": ["a"], "c": ["a"]}, expect=503)
    stopped = await world.add(dag, {"d": ["b"]}, expect=503)
    assert (stopped["code"], stopped["outcome"]) == ("add_unfinished", "unknown")
    await world.verb(dag, "skip", {"nodes": ["b"]})
    world.queue.down = set()
    await world.sweep()
    assert await world.states(dag) == {"a": "released", "b": "skipped", "c": "blocked", "d": "skipped"}
    assert {item.body["ack_context"]["node"] for item in world.queue.items.values()} == {"a", "c"}
    world.queue.ack("a")
    await world.settle()
    assert world.queue.deliverable() == ["c"]


async def test_without_a_queue_nothing_is_written(world: DagWorld) -> None:
    world.queue.down = {"shards"}
    refused = await world.call("POST", "", {"nodes": specs({"a": []})}, expect=503)
    assert (refused["code"], refused["outcome"]) == ("queue_unavailable", "none")
    assert not await world.rows("SELECT * FROM dag")


async def test_ids_that_grew_too_old_before_the_queue_had_them_are_replaced(world: DagWorld) -> None:
    dag = await world.create(open=True)
    world.queue.down = {"enqueue"}
    await world.add(dag, {"a": [], "b": ["a"]}, expect=503)
    rows = await world.rows("SELECT item_id::text FROM node WHERE key = 'b'")
    world.queue.too_old = {rows[0]["item_id"]}
    world.queue.down = set()
    await world.sweep()
    assert world.queue.item_of("b").state == "disabled"
    assert world.queue.item_of("b").body["id"] != rows[0]["item_id"]
    world.queue.ack("a")
    await world.settle()
    assert world.queue.deliverable() == ["b"]


async def test_an_item_that_the_queue_will_never_take_fails_its_node(world: DagWorld) -> None:
    world.queue.refuse = {"b": Answer("refused", "too_large", final=True), "r": Answer("refused", "x", final=True)}
    dag = await world.create({"a": [], "b": ["a"], "c": ["b"], "r": []})
    await world.settle()
    assert await world.states(dag) == {"a": "released", "b": "failed", "c": "skipped", "r": "failed"}
    assert "too_large" in (await world.node(dag, "b"))["error"]


async def test_r8_an_edge_added_before_its_upstream_ends_is_counted(world: DagWorld) -> None:
    """The completion waits for the lock behind the builder: what it then scans must show the new edge."""
    dag = await world.create([{"key": "p"}, {"key": "q"}, {"key": "c", "upstream": ["q"]}])
    await world.settle()
    world.queue.ack("p")
    async with locked(world, dag) as until_waiting:
        linking = asyncio.create_task(world.link(dag, ("p", "c")))
        await until_waiting(1)
        completing = asyncio.create_task(world.loops.results[0].drain())
        await until_waiting(2)
    await asyncio.gather(linking, completing)
    await world.audit()
    world.queue.ack("q")
    await world.settle()
    assert world.queue.deliverable() == ["c"]


async def test_r8_an_edge_added_after_its_upstream_ended_counts_as_satisfied(world: DagWorld) -> None:
    dag = await world.create([{"key": "p"}, {"key": "q"}, {"key": "c", "upstream": ["q"]}])
    await world.settle()
    world.queue.ack("p")
    async with locked(world, dag) as until_waiting:
        completing = asyncio.create_task(world.loops.results[0].drain())
        await until_waiting(1)
        linking = asyncio.create_task(world.link(dag, ("p", "c")))
        await until_waiting(2)
    await asyncio.gather(linking, completing)
    await world.audit()
    world.queue.ack("q")
    await world.settle()
    assert world.queue.deliverable() == ["c"]


async def test_r10_edges_from_ended_upstreams_decide_at_once(world: DagWorld) -> None:
    dag = await world.create(
        [
            {"key": "good"},
            {"key": "bad"},
            {"key": "run"},
            {"key": "held", "external": ["x"]},
            {"key": "any", "upstream": ["run"], "trigger": "any_succeeded"},
            {"key": "all", "upstream": ["run"]},
        ],
    )
    await world.settle()
    world.queue.ack("good")
    world.queue.die("bad")
    await world.settle()
    await world.link(dag, ("good", "any"), ("bad", "all"), ("good", "held"))
    await world.add(dag, {"n1": ["good"], "n2": ["bad"], "n3": ["good", "run"], "n4": ["n2"], "n5": ["n4"]})
    await world.settle()
    states = await world.states(dag)
    assert (states["any"], states["all"], states["held"]) == ("released", "skipped", "blocked")
    assert (states["n1"], states["n2"], states["n3"]) == ("released", "skipped", "blocked")
    assert (states["n4"], states["n5"]) == ("skipped", "skipped")


async def test_r11_an_edge_into_a_released_node_is_refused_unless_satisfied(world: DagWorld) -> None:
    dag = await world.create({"a": [], "b": [], "c": ["a"]})
    await world.settle()
    refused = await world.link(dag, ("b", "a"), expect=409)
    assert (refused["code"], refused["outcome"]) == ("node_released", "none")
    world.queue.ack("a")
    await world.settle()
    before = await world.rows("SELECT * FROM edge")
    await world.link(dag, ("a", "b"))
    await world.link(dag, ("a", "c"))
    assert await world.rows("SELECT * FROM edge") == before
    assert (await world.link(dag, ("b", "c"), expect=409))["code"] == "node_released"


async def test_r12_a_node_without_upstreams_runs_at_once_unless_it_is_given_something_to_wait_for(
    world: DagWorld,
) -> None:
    dag = await world.create([{"key": "now"}, {"key": "later", "external": ["ready"]}], open=True)
    await world.settle()
    assert world.queue.deliverable() == ["now"]
    await world.add(dag, {"first": []})
    await world.link(dag, ("first", "later"))
    await world.verb(dag, "resolve", {"external": [{"node": "later", "name": "ready"}]})
    await world.settle()
    assert "later" not in world.queue.deliverable()


async def test_r13_of_two_edges_that_close_a_cycle_together_one_is_refused(world: DagWorld) -> None:
    dag = await world.create({"a": [], "b": []}, hold=True)
    async with locked(world, dag) as until_waiting:
        calls = [
            asyncio.create_task(world.call("POST", f"/{dag}/dependencies", body))
            for body in (
                {"dependencies": [{"upstream": "a", "downstream": "b"}]},
                {"dependencies": [{"upstream": "b", "downstream": "a"}]},
            )
        ]
        await until_waiting(1)
    answers = await asyncio.gather(*calls)
    assert sorted(answer.get("code", "") for answer in answers) == ["", "cycle"]
    assert len(await world.rows("SELECT * FROM edge")) == 1


async def test_r13_two_services_do_not_trust_their_memory_of_each_others_edges(
    world: DagWorld,
) -> None:
    other = DagWorld(world.database, world.queue)
    try:
        dag = await world.create({"a": [], "b": [], "c": [], "d": []}, hold=True)
        await world.link(dag, ("a", "b"))
        await other.link(dag, ("b", "c"))
        await world.link(dag, ("c", "d"))
        assert (await other.link(dag, ("d", "a"), expect=422))["code"] == "cycle"
        refused = await world.link(dag, ("d", "a"), expect=422)
        assert refused["detail"].endswith("d -> a -> b -> c -> d")
        async with locked(world, dag) as until_waiting:
            calls = [
                asyncio.create_task(world.call("POST", f"/{dag}/nodes", body))
                for body in ({"nodes": specs({"e": ["d"]}), "dependencies": _edges(("e", "b"))},)
            ] + [
                asyncio.create_task(
                    other.call("POST", f"/{dag}/dependencies", {"dependencies": _edges(("a", "d"))})
                )
            ]
            await until_waiting(2)
        first, second = await asyncio.gather(*calls)
        assert first["code"] == "cycle" and "code" not in second
    finally:
        await other.close()


def _edges(*edges: tuple[str, str]) -> list[dict[str, str]]:
    return [{"upstream": up, "downstream": down} for up, down in edges]


async def test_a_cycle_refused_leaves_nothing_behind(world: DagWorld) -> None:
    dag = await world.create({"a": [], "b": ["a"], "c": ["b"]}, hold=True)
    refused = await world.add(dag, {"x": ["c"]}, expect=422, dependencies=_edges(("x", "a")))
    assert refused["code"] == "cycle"
    assert set(await world.states(dag)) == {"a", "b", "c"}
    await world.add(dag, {"x": ["c"]})
    assert (await world.link(dag, ("c", "a"), expect=422))["code"] == "cycle"
    await world.link(dag, ("a", "c"))


@pytest.mark.parametrize("nodes", [{"a": ["a"]}, {"a": ["b"], "b": ["a"]}, {"a": ["c"], "b": ["a"], "c": ["b"]}])
async def test_cycles_within_a_call_are_named(world: DagWorld, nodes: dict[str, list[str]]) -> None:
    refused = await world.call("POST", "", {"nodes": specs(nodes)}, expect=422)
    assert refused["code"] == "cycle"
    path = refused["detail"].partition(": ")[2].split(" -> ")
    assert path[0] == path[-1] and len(path) == len(nodes) + 1
    assert all(up in nodes[down] for up, down in pairwise(path))
    assert not await world.rows("SELECT * FROM dag")


async def test_r14_resolve_before_declare_is_the_same_as_after(world: DagWorld) -> None:
    dag = await world.create(open=True)
    early = {"external": [{"node": "late", "name": "x", "data": 7}]}
    assert (await world.verb(dag, "resolve", early))["results"][0]["status"] == "resolved"
    await world.add(dag, [{"key": "late", "external": ["x"], "pass_outputs": True}])
    await world.settle()
    assert world.queue.deliverable() == ["late"]
    assert world.queue.item_of("late").inputs == {"external:x": 7}
    assert (await world.verb(dag, "resolve", early))["results"][0]["status"] == "already_resolved"


async def test_r14_resolve_and_declare_at_once_lose_nothing(world: DagWorld) -> None:
    dag = await world.create(open=True)
    body = {"external": [{"node": "n", "name": "x"}]}
    async with locked(world, dag) as until_waiting:
        adding = asyncio.create_task(world.add(dag, [{"key": "n", "external": ["x"]}]))
        await until_waiting(1)
        resolving = asyncio.create_task(world.verb(dag, "resolve", body))
        await until_waiting(2)
    await asyncio.gather(adding, resolving)
    await world.settle()
    assert world.queue.deliverable() == ["n"]


async def test_an_external_resolved_before_the_queue_has_its_node_counts(world: DagWorld) -> None:
    dag = await world.create(open=True)
    async with world.queue.hold("enqueue", calls=1) as hold:
        adding = asyncio.create_task(world.add(dag, [{"key": "n", "external": ["x"]}]))
        await hold.reached()
        await world.verb(dag, "resolve", {"external": [{"node": "n", "name": "x"}]})
        hold.released.set()
        await adding
    await world.settle()
    assert world.queue.deliverable() == ["n"]


async def test_what_exists_is_recognised_also_on_an_ended_dag(world: DagWorld) -> None:
    nodes = [{"key": "a", "payload": {"x": 1}}, {"key": "b", "upstream": ["a"]}]
    dag = await world.create(nodes)
    await world.settle()
    world.queue.ack("a")
    await world.settle()
    world.queue.ack("b")
    await world.settle()
    again = await world.add(dag, nodes)
    assert [node["state"] for node in again["nodes"]] == ["succeeded", "succeeded"]
    await world.link(dag, ("a", "b"))
    assert (await world.add(dag, {"c": []}, expect=409))["code"] == "dag_finished"
    other = await world.add(dag, [{"key": "a", "payload": {"x": 2}}], expect=409)
    assert (other["code"], other["errors"][0]["pointer"]) == ("node_exists", "/nodes/0/key")


async def test_a_call_with_one_bad_element_changes_nothing(world: DagWorld) -> None:
    dag = await world.create({"a": []}, open=True)
    refused = await world.add(dag, {"b": ["a"], "c": ["nowhere"]}, expect=422)
    assert (refused["code"], refused["errors"][0]["pointer"]) == ("unknown_node", "/nodes/1/upstream/0")
    refused = await world.link(dag, ("a", "zz"), expect=422)
    assert refused["errors"][0]["pointer"] == "/dependencies/0/downstream"
    assert set(await world.states(dag)) == {"a"}


async def test_limits_refuse_before_anything_is_written(world: DagWorld) -> None:
    world.settings.__dict__.update(nodes_per_dag_max=3, edges_per_dag_max=3, degree_max=2, externals_per_dag_max=1)
    dag = await world.create({"a": [], "b": [], "c": ["a"]}, hold=True)
    assert (await world.add(dag, {"d": []}, expect=422))["code"] == "limit_exceeded"
    await world.link(dag, ("b", "c"))
    world.settings.__dict__.update(nodes_per_dag_max=10)
    assert (await world.add(dag, {"d": ["a", "b", "c"]}, expect=422))["code"] == "limit_exceeded"
    await world.add(dag, {"d": ["a"]})
    assert (await world.add(dag, {"e": ["d"]}, expect=422))["code"] == "limit_exceeded"
    world.settings.__dict__.update(edges_per_dag_max=10)
    assert (await world.add(dag, {"e": ["a"]}, expect=422))["code"] == "limit_exceeded"
    assert (await world.link(dag, ("d", "c"), expect=422))["code"] == "limit_exceeded", "its upstreams are two"
    assert (await world.add(dag, [{"key": "e", "external": ["x", "y"]}], expect=422))["code"] == "limit_exceeded"
    facts = {"external": [{"node": "n", "name": "x"}, {"node": "n", "name": "y"}]}
    assert (await world.verb(dag, "resolve", facts, expect=422))["code"] == "limit_exceeded"
    assert set(await world.states(dag)) == {"a", "b", "c", "d"}


@pytest.mark.parametrize("end", ["acked", "dead"])
async def test_a_parent_that_ends_while_nodes_are_added_decides_each_by_its_trigger(
    world: DagWorld, end: str
) -> None:
    """Before the queue has the nodes a parent of theirs ends: they are decided at once, and none comes twice."""
    dag = await world.create([{"key": "first", "topic": "t"}, {"key": "other", "topic": "t"}], open=True)
    await world.settle()
    triggers = ["all_succeeded", "none_failed", "all_done", "any_succeeded", "any_failed"]
    added = [{"key": trigger, "topic": "t", "trigger": trigger, "upstream": ["first"]} for trigger in triggers]
    added += [node | {"key": f"{node['key']} both", "upstream": ["first", "other"]} for node in added]
    added += [{"key": "external", "topic": "t", "upstream": ["first"], "external": ["x"]}]
    async with world.queue.hold("enqueue", calls=1) as hold:
        adding = asyncio.create_task(world.add(dag, added))
        await hold.reached()
        if end == "acked":
            world.queue.ack("first")
        else:
            world.queue.die("first")
        await world.settle()
    await adding
    await world.settle()
    states = await world.states(dag)
    fires, waits, skips = (
        ({"all_succeeded", "none_failed", "all_done", "any_succeeded"}, {"external"}, {"any_failed"})
        if end == "acked"
        else ({"all_done", "any_failed"}, set(), {"all_succeeded", "none_failed", "any_succeeded", "external"})
    )
    waits |= {f"{trigger} both" for trigger in triggers} - {"any_succeeded both", "any_failed both"}
    if end == "acked":
        fires, waits = fires | {"any_succeeded both"}, waits | {"any_failed both"}
    else:
        waits = (waits | {"any_succeeded both"}) - {"all_succeeded both", "none_failed both"}
        fires, skips = fires | {"any_failed both"}, skips | {"all_succeeded both", "none_failed both"}
    expected = dict.fromkeys(fires, "released") | dict.fromkeys(waits, "blocked") | dict.fromkeys(skips, "skipped")
    assert {key: states[key] for key in expected} == expected
    assert sorted(world.queue.deliverable()) == sorted({*fires, "other"})
