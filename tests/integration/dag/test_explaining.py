"""What a DAG says it waits for, and what a node says of its life."""

from datetime import UTC, datetime, timedelta
from typing import Any

from services.dag.queue_client import Attempt
from tests.support.bounded import steps
from tests.support.dag_world import BASE, DagWorld


async def frontier(world: DagWorld, dag: str, **query: Any) -> Any:
    answer = await world.http.get(f"{BASE}/{dag}/frontier", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def timeline(world: DagWorld, dag: str, key: str) -> Any:
    answer = await world.http.get(f"{BASE}/{dag}/timeline", params={"key": key})
    assert answer.status_code == 200, answer.text
    return answer.json()


def standings(found: Any) -> dict[str, str]:
    return {node["key"]: node["standing"] for node in found["items"]}


async def test_released_nodes_are_told_by_where_their_items_stand(world: DagWorld) -> None:
    dag = await world.create(
        {key: [] for key in ("queued", "running", "delayed", "ending", "sending")} | {"x": ["queued"]}
    )
    await world.settle()
    since = datetime.now(UTC) - timedelta(hours=3)
    world.queue.item_of("queued").since = since
    world.queue.item_of("running").state = "leased"
    world.queue.item_of("running").attempt = 2
    world.queue.item_of("running").error = "first time"
    world.queue.item_of("running").worker = "host-7"
    world.queue.item_of("queued").unasked_s = 3.5
    world.queue.item_of("delayed").state = "delayed"
    world.queue.ack("ending")
    await world.rows(
        "INSERT INTO outbox SELECT no, 1, 'enqueue', item_id, NULL, shard_now(), shard_now() + interval '1 h'"
        " FROM node WHERE key = 'sending'"
    )
    del world.queue.items[world.queue.item_of("sending").body["id"]]
    found = await frontier(world, dag)
    assert standings(found) == {key: key for key in ("queued", "running", "delayed", "ending", "sending")}
    by_key = {node["key"]: node for node in found["items"]}
    assert datetime.fromisoformat(by_key["queued"]["since"]) == since
    assert (by_key["running"]["attempt"], by_key["running"]["error"]) == (2, "first time")
    assert (by_key["running"]["worker"], by_key["queued"]["unasked_s"]) == ("host-7", 3.5)
    assert found["nodes"]["released"] == 5
    asked = [call for call in world.queue.calls if call[0] == "standings"]
    assert len(asked) == 1 and len(asked[0][2]) == 5


async def test_without_the_queue_the_rest_is_told(world: DagWorld) -> None:
    dag = await world.create([{"key": "a"}, {"key": "b", "external": ["x"]}])
    await world.settle()
    world.queue.down.add("standings")
    assert standings(await frontier(world, dag)) == {"a": "unknown", "b": "kept"}
    assert (await timeline(world, dag, "a"))["attempts"] == []


async def test_nodes_kept_by_no_upstream_say_what_they_wait_for_and_since_when(world: DagWorld) -> None:
    dag = await world.create(
        [
            {"key": "a"},
            {"key": "gate", "upstream": ["a"], "external": ["approval", "fund"]},
            {"key": "early", "upstream": ["a"], "external": ["x"]},
            {"key": "any", "trigger": "any_succeeded", "upstream": ["a", "early"], "external": ["y"]},
            {"key": "below", "upstream": ["gate"]},
        ]
    )
    await world.settle()
    assert standings(await frontier(world, dag)) == {"a": "queued"}
    world.queue.ack("a")
    await world.settle()
    await world.verb(dag, "resolve", {"external": [{"node": "gate", "name": "fund"}]})
    found = await frontier(world, dag)
    assert standings(found) == {"gate": "kept", "early": "kept", "any": "kept"}
    [gate, *_] = found["items"]
    ended = (await world.node(dag, "a"))["finished_at"]
    assert gate["waits_for"] == [{"kind": "external", "name": "approval", "since": ended}]
    assert gate["since"] == ended
    assert (await world.node(dag, "gate"))["blocked_by"] == [
        {"kind": "external", "name": "approval", "since": (await world.node(dag, "gate"))["created_at"]}
    ]


async def test_a_held_and_a_paused_dag_say_since_when(world: DagWorld) -> None:
    dag = await world.create({"a": [], "b": ["a"]}, hold=True)
    paused = await world.verb(dag, "pause")
    await world.verb(dag, "pause")
    [row] = await world.rows("SELECT paused_at FROM dag")
    found = await frontier(world, dag)
    assert [(o["kind"], datetime.fromisoformat(o["since"])) for o in found["waits_for"]] == [
        ("hold", datetime.fromisoformat(paused["created_at"])),
        ("pause", row["paused_at"]),
    ]
    [a] = found["items"]
    assert [o["kind"] for o in a["waits_for"]] == ["hold", "pause"]
    assert datetime.fromisoformat(a["waits_for"][1]["since"]) == row["paused_at"]
    blocked_by = (await world.node(dag, "b"))["blocked_by"]
    assert [block["kind"] for block in blocked_by] == ["node", "hold", "pause"]
    await world.verb(dag, "resume")
    assert (await world.rows("SELECT paused_at FROM dag"))[0]["paused_at"] is None


async def test_an_open_dag_without_work_waits_for_its_close(world: DagWorld) -> None:
    dag = await world.create({"a": []}, open=True)
    await world.settle()
    assert (await frontier(world, dag))["waits_for"] == []
    world.queue.ack("a")
    await world.settle()
    found = await frontier(world, dag)
    assert ([o["kind"] for o in found["waits_for"]], found["items"]) == (["close"], [])
    await world.verb(dag, "close")
    found = await frontier(world, dag)
    assert (found["state"], found["waits_for"], found["longest_chain"]) == ("succeeded", [], None)


async def test_a_frontier_comes_in_pages_and_passes_over_what_waits_for_nodes(world: DagWorld) -> None:
    world.settings.__dict__["list_scan_nodes_max"] = 3
    nodes: dict[str, list[str]] = {f"n{i}": [] for i in range(7)}
    dag = await world.create(nodes | {f"d{i}": [f"n{i}"] for i in range(7)})
    await world.settle()
    keys, cursor, pages = [], None, 0
    for _ in steps():
        found = await frontier(world, dag, limit=2, **({"cursor": cursor} if cursor else {}))
        assert len(found["items"]) <= 2
        assert (found["longest_chain"] is None) == (cursor is not None)
        keys += [node["key"] for node in found["items"]]
        cursor, pages = found["next_cursor"], pages + 1
        if cursor is None:
            break
    assert keys == list(nodes) and pages >= 4
    answer = await world.http.get(f"{BASE}/{dag}/frontier", params={"cursor": "x"})
    assert answer.status_code == 422


async def test_a_page_of_the_frontier_looks_at_a_bounded_number_of_upstreams(world: DagWorld) -> None:
    world.settings.__dict__["page_edges_max"] = 5
    ups = {f"u{i}": [] for i in range(4)}
    dag = await world.create(
        [{"key": key} for key in ups]
        + [{"key": f"g{i}", "upstream": list(ups), "external": ["x"]} for i in range(3)]
    )
    await world.settle()
    for key in ups:
        world.queue.ack(key)
    await world.settle()
    found = await frontier(world, dag)
    assert [node["key"] for node in found["items"]] == ["g0"]
    assert found["next_cursor"] is not None


async def test_the_longest_chain_left_counts_what_has_not_ended(world: DagWorld) -> None:
    dag = await world.create({"a": [], "b": ["a"], "c": ["b"], "d": ["c"], "e": ["a"]})
    await world.settle()
    chain = (await frontier(world, dag))["longest_chain"]
    assert (chain["nodes"], chain["keys"], chain["expected_s"]) == (4, ["a", "b", "c", "d"], None)
    assert chain["unknown_topics"] == ["work"]
    world.queue.ack("a")
    await world.settle()
    await world.rows("UPDATE node SET released_at = finished_at - interval '10 s' WHERE key = 'a'")
    await world.rows("UPDATE node SET released_at = shard_now() - interval '4 s' WHERE key = 'b'")
    chain = (await frontier(world, dag))["longest_chain"]
    assert chain["keys"] == ["b", "c", "d"]
    assert 25.5 < chain["expected_s"] < 26.1
    world.settings.__dict__["chain_nodes_max"] = 4
    assert (await frontier(world, dag))["longest_chain"] is None
    world.settings.__dict__.update(chain_nodes_max=5, chain_edges_max=3)
    assert (await frontier(world, dag))["longest_chain"] is None


async def test_a_timeline_goes_from_created_to_ended(world: DagWorld) -> None:
    dag = await world.create({"a": [], "b": ["a"]})
    await world.settle()
    found = await timeline(world, dag, "b")
    assert (found["released_at"], found["ended_at"], found["attempts"]) == (None, None, [])
    item = world.queue.item_of("a")
    item.state, item.attempt, item.error = "leased", 2, "no room"
    found = await timeline(world, dag, "a")
    assert [(a["attempt"], a["outcome"], a["error"]) for a in found["attempts"]] == [
        (1, "failed", "no room"),
        (2, "running", None),
    ]
    world.queue.die("a", error="gave up")
    await world.settle()
    found = await timeline(world, dag, "a")
    assert found["created_at"] <= found["released_at"] <= found["ended_at"]
    assert [(a["outcome"], a["error"]) for a in found["attempts"]] == [("failed", "gave up")]
    await world.verb(dag, "retry")
    found = await timeline(world, dag, "a")
    assert (found["generation"], found["attempts"]) == (2, [])
    assert found["generation_at"] >= found["created_at"]
    answer = await world.http.get(f"{BASE}/{dag}/timeline", params={"key": "nobody"})
    assert answer.status_code == 404


async def test_a_timeline_holds_the_deliveries_that_failed(world: DagWorld) -> None:
    dag = await world.create({"a": [], "b": []})
    await world.settle()
    item, at = world.queue.item_of("a"), datetime.now(UTC)
    world.queue.logged[item.body["id"]] = [
        Attempt(1, at, at, "failed", "no room"),
        Attempt(2, at, at, "lease_expired", None),
    ]
    item.state, item.attempt, item.since = "leased", 3, at
    found = (await timeline(world, dag, "a"))["attempts"]
    assert [(a["attempt"], a["outcome"], a["error"]) for a in found] == [
        (1, "failed", "no room"),
        (2, "lease_expired", None),
        (3, "running", None),
    ]
    assert datetime.fromisoformat(found[2]["started_at"]) == at
    item.state = "ready"
    world.queue.ack("a", attempt=3)
    world.queue.ack("b")
    await world.settle()
    found = (await timeline(world, dag, "a"))["attempts"]
    assert [(a["attempt"], a["outcome"]) for a in found] == [(1, "failed"), (2, "lease_expired"), (3, "acked")]
    asked = len([call for call in world.queue.calls if call[0] == "attempts"])
    assert (await timeline(world, dag, "b"))["attempts"][0]["outcome"] == "acked"
    assert len([call for call in world.queue.calls if call[0] == "attempts"]) == asked
    world.queue.down.add("attempts")
    found = (await timeline(world, dag, "a"))["attempts"]
    assert [(a["attempt"], a["outcome"]) for a in found] == [(3, "acked")]


async def test_the_lives_of_all_nodes_are_told_page_by_page_with_one_question_to_the_queue(
    world: DagWorld,
) -> None:
    dag = await world.create({"a": [], "b": [], "c": ["a"]})
    await world.settle()
    at = datetime.now(UTC)
    item = world.queue.item_of("a")
    world.queue.logged[item.body["id"]] = [Attempt(1, at, at, "failed", "no room")]
    item.state, item.attempt, item.since = "leased", 2, at
    first = (await world.http.get(f"{BASE}/{dag}/timelines", params={"limit": 2})).json()
    rest = (
        await world.http.get(f"{BASE}/{dag}/timelines", params={"limit": 2, "cursor": first["next_cursor"]})
    ).json()
    found = {each["key"]: each for each in first["items"] + rest["items"]}
    assert list(found) == ["a", "b", "c"] and rest["next_cursor"] is None
    assert [(each["attempt"], each["outcome"]) for each in found["a"]["attempts"]] == [
        (1, "failed"),
        (2, "running"),
    ]
    assert found["b"]["attempts"] == [] and found["c"]["released_at"] is None
    asked = [call for call in world.queue.calls if call[0] == "attempts_of_many"]
    assert len(asked) == 1, "only of what has failed before"
    world.queue.down |= {"attempts_of_many", "standings"}
    without = (await world.http.get(f"{BASE}/{dag}/timelines")).json()["items"]
    assert [each["key"] for each in without] == ["a", "b", "c"], "without the queue the rest is told"
    for bad, status in (({"cursor": "x"}, 422), ({"limit": 0}, 422)):
        assert (await world.http.get(f"{BASE}/{dag}/timelines", params=bad)).status_code == status
