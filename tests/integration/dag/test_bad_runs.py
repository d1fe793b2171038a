"""What no run takes: a code of docs/errors.md, and not a row is changed."""

import asyncio
from typing import Any

import pytest

from services.dag.workflows.control import RunControl
from services.dag.workflows.values import Signal
from tests.support.bounded import steps
from tests.support.dag_world import DagWorld

BASE = "/v1/namespaces/default/workflows"
TABLES = (
    "workflow",
    "run",
    "event",
    "signal_count",
    "signal_id",
    "published",
    "dag",
    "node",
    "node_spec",
    "outbox",
    "timer",
)


async def dump(world: DagWorld) -> Any:
    return {table: sorted(map(str, await world.rows(f"SELECT * FROM {table}"))) for table in TABLES}


async def post(world: DagWorld, path: str, body: Any, expect: int) -> Any:
    answer = await world.http.post(f"{BASE}{path}", json=body)
    assert answer.status_code == expect, answer.text
    return answer.json()


async def begun(world: DagWorld, **more: Any) -> tuple[str, dict[str, Any]]:
    """A run, and what a turn of its decider says at least."""
    made = await post(world, "", {"type": "order", "id": "order-17", **more}, 201)
    await world.settle()
    secret = world.queue.item_of("decider").body["payload"]["secret"]
    return made["run"], {"generation": 1, "secret": secret, "turn": 1, "last": 1, "seen": 1}


def command(kind: str = "item", key: str = "pack#1", after: int = 1, **spec: Any) -> dict[str, Any]:
    return {"kind": kind, "key": key, "after": after, "fingerprint": "0" * 16, "shown": "", "spec": spec}


GOOD = {"topic": "pack"}
DEEP: Any = []
for _ in range(20):
    DEEP = [DEEP]
# (commands, results and the rest of a turn; status; code)
TURNS: dict[str, tuple[dict[str, Any], int, str]] = {
    "no topic": ({"commands": [command()]}, 422, "bad_command"),
    "the system's topic": ({"commands": [command(topic="_dag/x")]}, 403, "forbidden"),
    "an unknown field": ({"commands": [command(**GOOD, colour="red")]}, 422, "bad_command"),
    "an unknown kind": ({"commands": [command("teleport", **GOOD)]}, 422, "invalid"),
    "attempts below none": ({"commands": [command(**GOOD, max_attempts=-1)]}, 422, "bad_command"),
    "a payload over the limit": ({"commands": [command(**GOOD, payload="x" * 65_537)]}, 413, "too_large"),
    "an output over the limit": (
        {"results": [{"key": "step:a#1", "state": "succeeded", "output": "x" * 65_537}]},
        413,
        "too_large",
    ),
    "a result in a state that is none": ({"results": [{"key": "step:a#1", "state": "added"}]}, 422, "invalid"),
    "a result of a step that nobody asked for": (
        {"commands": [command(**GOOD)], "results": [{"key": "step:a#1", "state": "succeeded"}]},
        409,
        "history_mismatch",
    ),
    "a result of what is no step": (
        {"commands": [command(**GOOD)], "results": [{"key": "pack#1", "state": "succeeded"}]},
        409,
        "history_mismatch",
    ),
    "two results of a step": (
        {
            "commands": [command("step", "step:a#1")],
            "results": [{"key": "step:a#1", "state": "succeeded"}, {"key": "step:a#1", "state": "failed"}],
        },
        409,
        "history_mismatch",
    ),
    "a result of a step that is cancelled": (
        {
            "commands": [command("step", "step:a#1"), command("cancel", "step:a#1")],
            "results": [{"key": "step:a#1", "state": "succeeded"}],
        },
        409,
        "history_mismatch",
    ),
    "what stops it in a book": ({"stuck": {"code": "x", "error": "x" * 20_000}}, 422, "invalid"),
    "what stops it without a code": ({"stuck": {"error": "x"}}, 422, "invalid"),
    "an answer to nobody": (
        {"commands": [command("answer", "signal:ask#1", id="u", state="done")]},
        409,
        "history_mismatch",
    ),
    "a key after a reset that is none": ({"commands": [command(key="pack#1~", **GOOD)]}, 422, "bad_command"),
    "a key without a number": ({"commands": [command(key="pack", **GOOD)]}, 422, "bad_command"),
    "the decider's key": ({"commands": [command(key="decider", **GOOD)]}, 422, "bad_command"),
    "a task with a timer's key": (
        {"commands": [command(key="timer#1", topic="timer", payload=1)]},
        422,
        "bad_command",
    ),
    "a time to start that is none": (
        {"commands": [command(**GOOD, schedule_to_start_s=-1)]},
        422,
        "bad_command",
    ),
    "two times for one thing": (
        {"commands": [command(**GOOD, start_to_close_s=1, timeout_s=1)]},
        422,
        "bad_command",
    ),
    "a published value that is not said": ({"commands": [command("publish", "state")]}, 422, "bad_command"),
    "what a run that is stuck would ask for": (
        {"stuck": {"code": "bug", "error": "no"}, "commands": [command(**GOOD)]},
        422,
        "invalid",
    ),
    "a key of controls": ({"commands": [command(key="a\n#1", **GOOD)]}, 422, "bad_command"),
    "a key too long": ({"commands": [command(key="k" * 1_100 + "#1", **GOOD)]}, 422, "bad_command"),
    "an end with a key": ({"commands": [command("end", "x", state="failed")]}, 422, "invalid"),
    "an end of no state": ({"commands": [command("end", "")]}, 422, "bad_command"),
    "an end in a state that is none": ({"commands": [command("end", "", state="running")]}, 422, "bad_command"),
    "an end that is not the last": (
        {"commands": [command("end", "", state="failed"), command(**GOOD)]},
        409,
        "history_mismatch",
    ),
    "a timer at no time": ({"commands": [command("timer", "timer#1", at="soon")]}, 422, "bad_command"),
    "a timer in a century": (
        {"commands": [command("timer", "timer#1", at="2199-01-01T00:00:00Z")]},
        422,
        "bad_command",
    ),
    "a graph that is a cycle": (
        {
            "commands": [
                command(
                    "sub",
                    "dag:g#1",
                    dag={
                        "nodes": [
                            {"key": "a", "topic": "t", "upstream": ["b"]},
                            {"key": "b", "topic": "t", "upstream": ["a"]},
                        ]
                    },
                )
            ]
        },
        422,
        "bad_command",
    ),
    "a graph that is none": ({"commands": [command("sub", "dag:g#1")]}, 422, "bad_command"),
    "a child of no type": ({"commands": [command("child", "child:x#1")]}, 422, "bad_command"),
    "a child of the system": ({"commands": [command("child", "child:x#1", type="_x")]}, 403, "forbidden"),
    "a signal to nobody": ({"commands": [command("send", "send:x#1", name="go")]}, 422, "bad_command"),
    "a signal to a path": (
        {"commands": [command("send", "send:x#1", workflow="../x", name="go")]},
        422,
        "bad_command",
    ),
    "a fingerprint that is none": ({"commands": [command(**GOOD) | {"fingerprint": "x"}]}, 422, "invalid"),
    "a thousand and one commands": (
        {"commands": [command(key=f"pack#{n}", **GOOD) for n in range(1_001)]},
        422,
        "invalid",
    ),
    "commands and no events": ({"commands": [command(after=7, **GOOD)]}, 409, "history_mismatch"),
    "an event to come": ({"last": 9}, 409, "history_mismatch"),
    "seen beyond the log": ({"seen": 9}, 409, "history_mismatch"),
    "another turn": ({"turn": 2}, 409, "turn_lost"),
    "another generation": ({"generation": 2}, 409, "turn_lost"),
    "another secret": ({"secret": "0" * 32}, 409, "turn_lost"),
    "a secret of another kind": ({"secret": 7}, 422, "invalid"),
    "signals that nobody sent": ({"received": {"go": -1}}, 422, "invalid"),
    "a number that is none": ({"generation": 2**40}, 422, "invalid"),
    "halves of characters": ({"stuck": {"code": "x", "error": "\ud800"}}, 400, "not_json"),
}


@pytest.mark.parametrize("name", TURNS)
async def test_a_bad_turn_writes_nothing(world: DagWorld, name: str) -> None:
    more, status, code = TURNS[name]
    run, good = await begun(world)
    before = await dump(world)
    if name == "halves of characters":
        answer = await world.http.post(
            f"/v1/namespaces/default/dags/{run}/turn",
            content=b'{"generation":1,"secret":"s","turn":1,"last":1,"stuck":{"code":"x","error":"\\ud800"}}',
            headers={"content-type": "application/json"},
        )
        assert answer.status_code in (400, 422), answer.text
    else:
        answer = await world.http.post(f"/v1/namespaces/default/dags/{run}/turn", json={**good, **more})
        assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    assert await dump(world) == before
    answer = await world.http.post(f"/v1/namespaces/default/dags/{run}/turn", json=good)
    assert answer.json() == {"turn": 1, "parked": True}


async def test_a_turn_of_another_run_writes_nothing(world: DagWorld) -> None:
    run, good = await begun(world)
    other = (await post(world, "", {"type": "order", "id": "order-18"}, 201))["run"]
    plain = await world.create({"a": []})
    await world.settle()
    before = await dump(world)
    for dag, status in ((other, 409), (plain, 404), ("nonsense", 404), (run[:-1] + "f", 404)):
        answer = await world.http.post(f"/v1/namespaces/default/dags/{dag}/turn", json=good)
        assert answer.status_code == status, answer.text
        assert (await world.http.get(f"/v1/namespaces/default/dags/{dag}/history")).status_code in (200, 404)
    answer = await world.http.post(f"/v1/namespaces/stranger/dags/{run}/turn", json=good)
    assert answer.status_code == 404
    assert await dump(world) == before


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 422),
        ({"type": ""}, 422),
        ({"type": "a b"}, 422),
        ({"type": "t" * 126}, 422),
        ({"type": "_x"}, 403),
        ({"type": "x", "id": "../x"}, 422),
        ({"type": "x", "id": ""}, 422),
        ({"type": "x", "input": "x" * 65_537}, 413),
        ({"type": "x", "metadata": {"a": "x" * 2_000}}, 413),
        ({"type": "x", "deadline_s": 0}, 422),
        ({"type": "x", "reuse": "sometimes"}, 422),
        ({"type": "x", "signal": {"data": 1}}, 422),
        ({"type": "x", "colour": "red"}, 422),
    ],
    ids=str,
)
async def test_a_bad_start_writes_nothing(world: DagWorld, body: Any, status: int) -> None:
    await post(world, "", body, status)
    assert await world.rows("SELECT FROM run") == [] and await world.rows("SELECT FROM dag") == []


async def test_an_id_means_one_run_at_a_time(world: DagWorld) -> None:
    run, good = await begun(world, input={"n": 1})
    assert (await post(world, "", {"type": "order", "id": "order-17"}, 200))["existing"]
    assert (await post(world, "", {"type": "other", "id": "order-17"}, 409))["code"] == "id_in_use"
    end = command("end", "", state="succeeded", output=7)
    answer = await world.http.post(f"/v1/namespaces/default/dags/{run}/turn", json={**good, "commands": [end]})
    assert answer.json() == {"turn": 1, "ended": True}
    again = await post(world, "", {"type": "order", "id": "order-17", "input": {"n": 1}}, 200)
    assert (again["run"], again["output"]) == (run, 7), "the same call again"
    refused = await post(world, "", {"type": "order", "id": "order-17", "input": {"n": 2}}, 409)
    assert refused["code"] == "id_in_use"
    fresh = await post(world, "", {"type": "order", "id": "order-17", "reuse": "always"}, 201)
    assert fresh["run"] != run
    for verb, body in (
        ("signals", {"name": "go"}),
        ("cancel", {}),
        ("terminate", {}),
        ("pause", {}),
        ("resume", {}),
    ):
        await post(world, f"/order-17/{verb}", body, 202)
        await post(world, f"/nobody/{verb}", body, 404)


async def test_a_signal_that_comes_with_a_start_is_not_lost_where_the_run_that_was_found_ends_before_it(
    world: DagWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = await begun(world)
    signal = RunControl.signal

    async def too_late(control: RunControl, namespace: str, workflow_id: str, told: Signal) -> bool:
        monkeypatch.setattr(RunControl, "signal", signal)
        await control.terminate(namespace, workflow_id, None)
        return await signal(control, namespace, workflow_id, told)

    monkeypatch.setattr(RunControl, "signal", too_late)
    body = {"type": "order", "id": "order-17", "signal": {"name": "go", "data": 7, "id": "s-1"}}
    made = await post(world, "", body, 201)
    assert made["run"] != first and not made["existing"]
    again = await post(world, "", body, 200)
    assert (again["run"], again["existing"]) == (made["run"], True)
    told = await world.rows("SELECT data::json ->> 'data' AS data FROM event WHERE kind = 'signal'")
    assert [row["data"] for row in told] == ["7"], "once, and to the run that lives"


async def test_a_run_that_goes_on_as_a_new_one_takes_along_ids_of_signals_that_may_still_come_again(
    world: DagWorld,
) -> None:
    """Each run knows those of its own time: else one that goes on for ever writes more with each that follows."""
    await begun(world)
    for name in ("old", "late", "unread"):
        await post(world, "/order-17/signals", {"name": name, "id": name}, 202)
    await world.rows("UPDATE signal_id SET at = at - interval '2 days' WHERE id <> 'late'")
    for received in ({"old": 1, "late": 1}, {}):
        await continued(world, received)
        known = await world.rows("SELECT id FROM signal_id WHERE dag_no = (SELECT max(dag_no) FROM run)")
        assert {row["id"] for row in known} == {"late", "unread"}
    assert (await post(world, "/order-17/signals", {"name": "late", "id": "late"}, 202))["status"] == "duplicate"
    assert (await post(world, "/order-17/signals", {"name": "unread", "id": "unread"}, 202))[
        "status"
    ] == "duplicate"


async def test_who_may_look_at_a_run_is_not_told_its_deciders_secret(world: DagWorld) -> None:
    run, good = await begun(world)
    dag = f"/v1/namespaces/default/dags/{run}"
    paths = ("", "/export", "/nodes", "/node?key=decider", "/node/inputs?key=decider", "/frontier", "/timelines")
    for path in (*paths, "/timeline?key=decider", "/why", "/graph", "/history", "/run", "/outputs"):
        answer = await world.http.get(f"{dag}{path}")
        assert answer.status_code == 200 and good["secret"] not in answer.text, path
    [decider] = (await world.http.get(f"{dag}/export")).json()["items"]
    assert decider["item"]["topic"] == "wf/order" and "payload" not in decider["item"]


async def continued(world: DagWorld, received: dict[str, int]) -> None:
    """The run ends, and goes on as a new one."""
    await world.settle()
    [run] = await world.rows("SELECT dag_id::text AS dag, last_event FROM run WHERE state = 'running'")
    [item] = [item for item in world.queue.ready("wf/order") if item.body["ack_context"]["dag"] == run["dag"]]
    end = {**command("end", "", after=1, state="continued", input=1), "after": run["last_event"]}
    said = {
        "generation": item.generation,
        "secret": item.body["payload"]["secret"],
        "turn": 1,
        "received": received,
    }
    said |= {"last": run["last_event"], "seen": run["last_event"], "commands": [end]}
    answer = await world.http.post(f"/v1/namespaces/default/dags/{run['dag']}/turn", json=said)
    assert answer.json() == {"turn": 1, "ended": True}, answer.text


async def test_signals_are_bounded_and_bad_ones_change_nothing(world: DagWorld) -> None:
    world.duties.context.settings.__dict__["unread_signals_max"] = 5
    try:
        run, good = await begun(world)
        for number in range(5):
            await post(world, "/order-17/signals", {"name": "go", "id": str(number)}, 202)
        before = await dump(world)
        refused = await post(world, "/order-17/signals", {"name": "go", "id": "more"}, 429)
        assert refused["code"] == "signals_full"
        assert (await post(world, "/order-17/signals", {"name": "go", "id": "3"}, 202))["status"] == "duplicate"
        for body, status in (
            ({"data": 1}, 422),
            ({"name": ""}, 422),
            ({"name": "n" * 1_025}, 422),
            ({"name": "go", "data": "x" * 65_537}, 413),
            ({"name": "go", "id": 7}, 422),
            ({"name": "go", "data": [*DEEP, 1], "more": 1}, 422),
        ):
            await post(world, "/order-17/signals", body, status)
        assert await dump(world) == before
        path = f"/v1/namespaces/default/dags/{run}/turn"
        answer = await world.http.post(path, json={**good, "last": 6, "seen": 6, "received": {"go": 2}})
        assert answer.json()["parked"], answer.text
        assert (await post(world, "/order-17/signals", {"name": "go", "id": "more"}, 202))["status"] == "accepted"
    finally:
        world.duties.context.settings.__dict__["unread_signals_max"] = 10_000


async def test_ten_thousand_signals_wait_and_one_more_is_refused(world: DagWorld) -> None:
    await begun(world)
    await post(world, "/order-17/signals", {"name": "go", "id": "first"}, 202)
    await world.rows("UPDATE run SET signals = 9999")
    await post(world, "/order-17/signals", {"name": "go", "id": "last"}, 202)
    before = await dump(world)
    assert (await post(world, "/order-17/signals", {"name": "go", "id": "more"}, 429))["code"] == "signals_full"
    assert (await post(world, "/order-17/signals", {"name": "go", "id": "last"}, 202))["status"] == "duplicate"
    assert await dump(world) == before


async def test_a_run_that_is_over_takes_nothing_more(world: DagWorld) -> None:
    run, good = await begun(world)
    path = f"/v1/namespaces/default/dags/{run}/turn"
    end = command("end", "", state="succeeded", output=1)
    assert (await world.http.post(path, json={**good, "commands": [end]})).json()["ended"]
    await world.settle()
    before = await dump(world)
    for verb, body in (
        ("signals", {"name": "go", "id": "s"}),
        ("updates", {"name": "go", "id": "u", "wait_s": 0}),
        ("move", {"version": "2"}),
        ("resume", {"outputs": {"pack#1": 1}}),
    ):
        assert (await post(world, f"/order-17/{verb}", body, 409))["code"] == "workflow_finished", verb
    for verb in ("cancel", "terminate", "pause", "resume"):
        assert (await post(world, f"/order-17/{verb}", {}, 202))["state"] == "succeeded", verb
    answer = await world.http.post(path, json={**good, "turn": 2})
    assert (answer.status_code, answer.json()["code"]) == (409, "workflow_finished")
    assert await dump(world) == before


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 422),
        ({"name": ""}, 422),
        ({"name": "ask", "id": "../x"}, 422),
        ({"name": "ask", "data": "x" * 65_537}, 413),
        ({"name": "ask", "wait_s": -1}, 422),
        ({"name": "ask", "wait_s": 10_000}, 422),
        ({"name": "ask", "asks": True}, 422),
        ({"name": "a\x00b"}, 422),
    ],
    ids=str,
)
async def test_a_bad_update_writes_nothing(world: DagWorld, body: Any, status: int) -> None:
    await begun(world)
    before = await dump(world)
    await post(world, "/order-17/updates", body, status)
    assert await dump(world) == before


async def test_many_signals_at_once_are_each_taken_once(world: DagWorld) -> None:
    await begun(world)
    ids = [str(number % 20) for number in range(60)]
    answers = await asyncio.gather(
        *(post(world, "/order-17/signals", {"name": "go", "id": each}, 202) for each in ids)
    )
    assert sorted(answer["status"] for answer in answers) == ["accepted"] * 20 + ["duplicate"] * 40
    found = (await world.http.get(f"{BASE}/order-17/history")).json()["events"]
    assert [event["key"] for event in found[1:]] == [f"signal:go#{number}" for number in range(1, 21)]


async def test_a_runs_dag_is_changed_by_its_code_alone(world: DagWorld) -> None:
    run, good = await begun(world)
    path = f"/v1/namespaces/default/dags/{run}/turn"
    await world.http.post(path, json={**good, "commands": [command(**GOOD)]})
    await world.settle()
    before = await dump(world)
    for verb, body in (
        ("nodes", {"nodes": [{"key": "x", "topic": "t"}]}),
        ("nodes", {"nodes": [{"key": "x", "topic": "t", "upstream": ["pack#1"]}]}),
        ("dependencies", {"dependencies": [{"upstream": "decider", "downstream": "pack#1"}]}),
        ("expand", {"node": "pack#1", "nodes": [{"key": "x", "topic": "t"}]}),
        ("resolve", {"external": [{"node": "pack#1", "name": "go"}]}),
        ("retry", {"all": True}),
        ("skip", {"nodes": ["pack#1"]}),
        ("cancel", {}),
        ("close", {}),
        ("pause", {}),
        ("resume", {}),
        ("release", {}),
        ("nodes/cancel", {"nodes": ["decider"]}),
    ):
        answer = await world.http.post(f"/v1/namespaces/default/dags/{run}/{verb}", json=body)
        assert (answer.status_code, answer.json()["code"]) == (409, "managed"), (verb, answer.text)
    assert await dump(world) == before
    await world.verb(run, "nodes/cancel", {"nodes": ["pack#1"]}, expect=202)
    await world.settle()
    events = (await world.http.get(f"{BASE}/order-17/history")).json()["events"]
    assert (events[-1]["key"], events[-1]["state"]) == ("pack#1", "cancelled")


async def test_runs_nest_so_deep_and_no_deeper(world: DagWorld) -> None:
    dag = await world.create([{"key": "w", "topic": None, "workflow": {"type": "nest", "id": "nest-1"}}])
    depth = 1
    for _ in steps():
        await world.settle()
        [item] = world.queue.ready("wf/nest")
        body = {"generation": 1, "secret": item.body["payload"]["secret"], "turn": 1, "last": 1, "seen": 1}
        child = command("child", "child:nest#1", type="nest", id=f"nest-{depth + 1}")
        run = item.body["ack_context"]["dag"]
        answer = await world.http.post(
            f"/v1/namespaces/default/dags/{run}/turn", json={**body, "commands": [child]}
        )
        if answer.status_code != 200:
            break
        world.queue.end(item, "acked")
        depth += 1
    assert (answer.status_code, answer.json()["code"], depth) == (422, "limit_exceeded", 8)
    await world.verb(dag, "cancel", expect=202)
    for _ in range(12):
        await world.settle()
        for item in world.queue.ready("wf/nest"):
            run, generation = item.body["ack_context"]["dag"], item.generation
            page = (await world.http.get(f"/v1/namespaces/default/dags/{run}/history")).json()
            last = page["events"][-1]["event"]
            body = {"generation": generation, "secret": item.body["payload"]["secret"], "turn": page["turn"] + 1}
            end = command("end", "", last, state="cancelled")
            answer = await world.http.post(
                f"/v1/namespaces/default/dags/{run}/turn",
                json={**body, "last": last, "seen": last, "commands": [end]},
            )
            assert answer.status_code == 200, answer.text
            world.queue.end(item, "acked")
    assert (await world.dag(dag))["state"] == "cancelled"
    assert await world.rows("SELECT FROM run WHERE state = 'running'") == []
    assert await world.rows("SELECT FROM dag WHERE state IN ('running', 'cancelling')") == []
