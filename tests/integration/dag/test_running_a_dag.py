"""The plain life of a DAG: build, release, complete, end."""

from tests.support.dag_world import BASE, DagWorld


async def test_a_diamond_runs_in_order_and_succeeds(world: DagWorld) -> None:
    dag = await world.create({"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"]})
    await world.settle()
    assert world.queue.deliverable() == ["a"]
    world.queue.ack("a")
    await world.settle()
    assert sorted(world.queue.deliverable()) == ["b", "c"]
    world.queue.ack("b")
    await world.settle()
    assert world.queue.deliverable() == ["c"]
    world.queue.ack("c")
    await world.settle()
    world.queue.ack("d")
    await world.settle()
    found = await world.dag(dag)
    assert (found["state"], found["nodes"]["succeeded"]) == ("succeeded", 4)
    assert found["finished_at"] is not None
    assert not await world.rows("SELECT * FROM outbox")


async def test_outputs_become_inputs(world: DagWorld) -> None:
    dag = await world.create(
        [
            {"key": "a"},
            {"key": "b"},
            {"key": "c", "upstream": ["a", "b"], "external": ["go"], "pass_outputs": True},
        ]
    )
    await world.settle()
    world.queue.ack("a", output={"x": [1, "ü"]})
    world.queue.ack("b")
    await world.verb(dag, "resolve", {"external": [{"node": "c", "name": "go", "data": {"file": "f"}}]})
    await world.settle()
    item = world.queue.item_of("c")
    assert item.state == "ready"
    assert item.inputs == '{"a":{"x":[1,"ü"]},"external:go":{"file":"f"}}'


async def test_inputs_over_the_limit_are_a_reference_that_answers_them(world: DagWorld) -> None:
    ups = [f"u{i}" for i in range(30)]
    nodes = [{"key": up} for up in ups] + [{"key": "//c:ü", "upstream": ups, "pass_outputs": True}]
    dag = await world.create(nodes)
    await world.settle()
    for up in ups:
        world.queue.ack(up, output="x" * 10_000)
    await world.settle()
    inputs = world.queue.item_of("//c:ü").inputs
    assert inputs.startswith('{"$ref":"/v1/namespaces/default/dags/')
    path = inputs.split('"')[3]
    assert (await world.http.get(path)).json() == dict.fromkeys(ups, "x" * 10000)
    assert f"/{dag}/" in path


async def test_one_output_is_answered_as_it_was_acked(world: DagWorld) -> None:
    dag = await world.create({"a": [], "b": []})
    await world.settle()
    url = f"{BASE}/{dag}/node/output?key="
    assert (await world.http.get(url + "a")).json()["code"] == "not_found"
    output = {"ref": "s3://bucket/part-7", "n": 2**70}
    world.queue.ack("a", output=output)
    world.queue.ack("b", output=None)
    await world.settle()
    assert (await world.http.get(url + "a")).json() == output
    assert (await world.http.get(url + "b")).text == "null"
    assert (await world.http.get(url + "x")).status_code == 404


async def test_inputs_beyond_what_a_process_should_hold_are_refused(world: DagWorld) -> None:
    dag = await world.create([{"key": "a"}, {"key": "b", "upstream": ["a"], "pass_outputs": True}])
    await world.settle()
    world.queue.ack("a", output="x" * 100)
    await world.settle()
    url = f"{BASE}/{dag}/node/inputs?key=b"
    world.settings.__dict__["inputs_fetched_bytes_max"] = 106
    assert (await world.http.get(url)).json()["code"] == "limit_exceeded"
    world.settings.__dict__["inputs_fetched_bytes_max"] = 107
    assert (await world.http.get(url)).json() == {"a": "x" * 100}


async def test_inputs_too_deep_to_be_wrapped_are_a_reference(world: DagWorld) -> None:
    deep: object = 1
    for _ in range(28):
        deep = [deep]
    await world.create([{"key": "a"}, {"key": "b", "upstream": ["a"], "pass_outputs": True}])
    await world.settle()
    world.queue.ack("a", output=deep)
    await world.settle()
    assert world.queue.item_of("b").inputs.startswith('{"$ref"')


async def test_triggers(world: DagWorld) -> None:
    dag = await world.create(
        [
            {"key": "good"},
            {"key": "bad"},
            {"key": "all", "upstream": ["good", "bad"]},
            {"key": "done", "upstream": ["good", "bad"], "trigger": "all_done"},
            {"key": "any", "upstream": ["good", "bad"], "trigger": "any_succeeded"},
            {"key": "alarm", "upstream": ["good", "bad"], "trigger": "any_failed"},
            {"key": "none", "upstream": ["good", "bad"], "trigger": "none_failed"},
            {"key": "below", "upstream": ["all"]},
            {"key": "tolerant", "upstream": ["all"], "trigger": "none_failed"},
        ]
    )
    await world.settle()
    world.queue.die("bad")
    await world.settle()
    assert sorted(world.queue.deliverable()) == ["alarm", "good", "tolerant"]
    world.queue.ack("good")
    await world.settle()
    states = await world.states(dag)
    assert states == {
        "good": "succeeded",
        "bad": "failed",
        "all": "skipped",
        "done": "released",
        "any": "released",
        "alarm": "released",
        "none": "skipped",
        "below": "skipped",
        "tolerant": "released",
    }
    for key in ("done", "any", "alarm", "tolerant"):
        world.queue.ack(key)
    await world.settle()
    assert (await world.dag(dag))["state"] == "failed"


async def test_all_ends_but_acked_count_as_not_succeeded(world: DagWorld) -> None:
    dag = await world.create({"x": [], "y": [], "z": [], "x2": ["x"], "y2": ["y"], "z2": ["z"]})
    await world.settle()
    world.queue.end(world.queue.item_of("x"), "dead", error="e")
    world.queue.end(world.queue.item_of("y"), "expired")
    world.queue.end(world.queue.item_of("z"), "cancelled")
    await world.settle()
    assert await world.states(dag) == {
        "x": "failed",
        "y": "failed",
        "z": "cancelled",
        "x2": "skipped",
        "y2": "skipped",
        "z2": "skipped",
    }
    assert (await world.node(dag, "x"))["error"] == "e"


async def test_an_open_dag_ends_only_when_closed(world: DagWorld) -> None:
    dag = await world.create({"a": []}, open=True)
    await world.settle()
    world.queue.ack("a")
    await world.settle()
    assert (await world.dag(dag))["state"] == "running"
    await world.add(dag, {"b": ["a"]})
    await world.settle()
    world.queue.ack("b")
    await world.settle()
    assert (await world.verb(dag, "close"))["state"] == "succeeded"
    assert (await world.verb(dag, "close"))["state"] == "succeeded"


async def test_an_open_dag_that_is_closed_once_it_has_ended_ends_again_after_a_retry(world: DagWorld) -> None:
    """The close was answered, and forgotten: all done, the DAG ran for ever."""
    dag = await world.create({"a": [], "b": ["a"]}, open=True, on_failure="cancel")
    await world.settle()
    world.queue.die("a")
    await world.settle()
    assert ((await world.dag(dag))["state"], (await world.dag(dag))["open"]) == ("failed", True)
    for _ in range(2):
        closed = await world.verb(dag, "close")
        assert (closed["state"], closed["open"]) == ("failed", False)
    await world.verb(dag, "retry")
    for key in ("a", "b"):
        await world.settle()
        world.queue.ack(key)
    await world.settle()
    assert (await world.dag(dag))["state"] == "succeeded"


async def test_an_empty_dag_waits_for_its_first_node_or_its_close(world: DagWorld) -> None:
    dag = await world.create()
    assert (await world.dag(dag))["state"] == "running"
    assert (await world.verb(dag, "close"))["state"] == "succeeded"


async def test_a_hold_keeps_everything_back_until_release(world: DagWorld) -> None:
    dag = await world.create({"a": [], "b": ["a"]}, hold=True)
    await world.settle()
    assert world.queue.deliverable() == []
    assert await world.blocked_by(dag, "a") == [{"kind": "hold"}]
    assert (await world.verb(dag, "release"))["held"] is False
    await world.settle()
    assert world.queue.deliverable() == ["a"]
    await world.verb(dag, "release")


async def test_a_pause_withholds_releases_and_not_skips(world: DagWorld) -> None:
    dag = await world.create({"a": [], "b": ["a"], "f": [], "g": ["f"]})
    await world.settle()
    await world.verb(dag, "pause")
    world.queue.ack("a")
    world.queue.die("f")
    await world.settle()
    assert await world.states(dag) == {"a": "succeeded", "b": "blocked", "f": "failed", "g": "skipped"}
    assert await world.blocked_by(dag, "b") == [{"kind": "pause"}]
    await world.verb(dag, "resume")
    await world.settle()
    assert world.queue.deliverable() == ["b"]


async def test_a_node_added_while_paused_runs_after_resume(world: DagWorld) -> None:
    dag = await world.create({"a": []}, open=True)
    await world.verb(dag, "pause")
    await world.add(dag, {"b": []})
    await world.settle()
    assert world.queue.deliverable() == ["a"]
    await world.verb(dag, "resume")
    await world.settle()
    assert world.queue.deliverable() == ["a", "b"]


async def test_blocked_by_names_what_is_missing(world: DagWorld) -> None:
    dag = await world.create([{"key": "a"}, {"key": "b", "upstream": ["a"], "external": ["x", "y"]}])
    await world.verb(dag, "resolve", {"external": [{"node": "b", "name": "x"}]})
    node = await world.node(dag, "b")
    assert await world.blocked_by(dag, "b") == [
        {"kind": "node", "key": "a", "state": "released"},
        {"kind": "external", "name": "y"},
    ]
    assert node["external"] == [
        {"name": "x", "resolved": True, "failed": False},
        {"name": "y", "resolved": False, "failed": False},
    ]
    assert (node["upstream"], node["downstream"]) == (["a"], [])


async def test_an_external_that_failed_fails_its_node(world: DagWorld) -> None:
    dag = await world.create([{"key": "a", "external": ["x"]}, {"key": "b", "upstream": ["a"]}])
    body = {"external": [{"node": "a", "name": "x", "failed": True}]}
    assert (await world.verb(dag, "resolve", body))["results"][0]["status"] == "resolved"
    await world.settle()
    assert await world.states(dag) == {"a": "failed", "b": "skipped"}
    assert world.queue.items == {}
    assert (await world.dag(dag))["state"] == "failed"
    assert (await world.verb(dag, "resolve", body))["results"][0]["status"] == "already_resolved"


async def test_the_same_key_answers_the_first_dag(world: DagWorld) -> None:
    first = await world.call("POST", "", {"key": "k", "nodes": [{"key": "a", "topic": "work"}]}, expect=201)
    again = await world.call("POST", "", {"key": "k", "name": "other"}, expect=200)
    assert again["id"] == first["id"] and again["nodes"]["total"] == 1


async def test_wide_fan_out_and_fan_in_are_walked_in_steps(world: DagWorld) -> None:
    world.settings.__dict__["edges_per_step_max"] = 7
    middle = {f"m{i}": ["root"] for i in range(40)}
    dag = await world.create({"root": [], **middle, "end": list(middle)})
    await world.settle()
    world.queue.ack("root")
    await world.settle()
    assert sorted(world.queue.deliverable()) == sorted(middle)
    for key in middle:
        world.queue.ack(key)
    await world.settle()
    assert world.queue.deliverable() == ["end"]
    world.queue.ack("end")
    await world.settle()
    assert (await world.dag(dag))["state"] == "succeeded"
    assert not await world.rows("SELECT * FROM spread")


async def test_a_skip_goes_down_a_chain_longer_than_one_step(world: DagWorld) -> None:
    world.settings.__dict__["skip_levels_per_step_max"] = 3
    chain = {"k0": []} | {f"k{i}": [f"k{i - 1}"] for i in range(1, 30)}
    dag = await world.create(chain)
    await world.settle()
    world.queue.die("k0")
    await world.settle()
    found = await world.dag(dag)
    assert (found["state"], found["nodes"]["skipped"]) == ("failed", 29)
    assert world.queue.items == {}
