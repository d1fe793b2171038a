"""Building DAGs here and bringing them to the service, whole or not at all."""

import asyncio
from typing import Any

import pytest

from headgate import Client, Dag, errors
from headgate._client.aio.client import AsyncClient
from headgate._client.aio.handle import AsyncDagHandle
from headgate._http.transport import RetryPolicy
from tests.unit.headgate.fakes import Service, problem


class DagService(Service):
    """Keeps one DAG, as the real one does where the builder looks."""

    def __init__(self) -> None:
        super().__init__(self.answer)
        self.nodes: dict[str, Any] = {}
        self.edges: set[tuple[str, str]] = set()
        self.created = self.held = self.existing = False
        self.state = "running"
        self.refuse: Any = None

    def view(self) -> dict[str, Any]:
        times = {"created_at": "2030-01-01T00:00:00Z"}
        counts = {"total": len(self.nodes)}
        state = {"state": self.state, "held": self.held, "existing": self.existing}
        return {"id": "d1", "namespace": "n", **state, "nodes": counts, **times}

    def answer(self, _method: str, path: str, body: Any) -> Any:
        action = path.split("?", maxsplit=1)[0].removeprefix("/v1/namespaces/n/dags").removeprefix("/d1")
        if self.refuse and action == self.refuse[0]:
            return self.refuse[1]
        body = body or {}
        for node in body.get("nodes", []) if action in ("", "/nodes") else []:
            assert all(key in self.nodes for key in node.get("upstream", [])), "upstreams come first"
            self.nodes[node["key"]] = node
            self.edges |= {(key, node["key"]) for key in node.get("upstream", [])}
        self.edges |= {(edge["upstream"], edge["downstream"]) for edge in body.get("dependencies", [])}
        if action == "" and "key" in body:
            self.existing = self.created
            self.held = self.held if self.created else body.get("hold", False)
            self.created = True
        if action == "/release":
            self.held = False
        if action == "/cancel":
            self.state = "cancelled"
        if action == "/nodes":
            added = [{"key": node["key"], "item_id": "i", "state": "blocked"} for node in body["nodes"]]
            return {"nodes": added}
        if action == "/resolve":
            return {"results": [{**external, "status": "resolved"} for external in body["external"]]}
        return self.view()

    def actions(self) -> list[str]:
        return [path.split("/dags")[1] for _, path, _ in self.calls]


def made() -> tuple[Client, DagService]:
    service = DagService()
    retry = RetryPolicy(attempts_max=1)
    return Client(dag_url="http://d", namespace="n", transport=service, retry=retry), service


def test_a_small_dag_is_one_call() -> None:
    client, service = made()
    dag = Dag("nightly", deadline_s=60, metadata={"a": 1})
    a = dag.node("a", "t", payload={"x": 1})
    dag.node("c", "t", after=[a, "b", a], external=["approval", "approval"], trigger="all_done", priority=3)
    dag.node("b", "t", pass_outputs=True)
    handle = client.submit(dag)
    assert handle.id == "d1"
    ((_, _, body),) = service.calls
    assert body["nodes"] == [
        {"key": "a", "topic": "t", "payload": {"x": 1}},
        {"key": "b", "topic": "t", "pass_outputs": True},
        {
            "key": "c",
            "topic": "t",
            "trigger": "all_done",
            "priority": 3,
            "upstream": ["a", "b"],
            "external": ["approval"],
        },
    ]
    rest = {name: value for name, value in body.items() if name != "nodes"}
    expected = {"name": "nightly", "deadline_s": 60, "metadata": {"a": 1}, "on_failure": "continue"}
    assert rest == {"key": dag.key, **expected}


def test_timers_and_dags_in_the_place_of_nodes_are_added_while_the_dag_runs() -> None:
    client, service = made()
    handle = client.dag("d1")
    inner = Dag("inner")
    inner.node("x", "t")
    handle.add("a", "t")
    assert handle.add_timer("soak", delay_s=60, after=["a"]).key == "soak"
    assert handle.add_subdag("part", inner, after=["a"]).key == "part"
    assert service.nodes["soak"] == {"key": "soak", "timer": {"delay_s": 60}, "upstream": ["a"]}
    assert [node["key"] for node in service.nodes["part"]["dag"]["nodes"]] == ["x"]


def chain(length: int) -> Dag:
    dag = Dag("chain")
    for number in reversed(range(length)):
        dag.node(str(number), "t", after=[str(number - 1)] if number else [])
    return dag


def test_a_large_dag_is_held_until_all_of_it_is_there() -> None:
    client, service = made()
    client.submit(chain(2_500))
    assert service.actions() == ["", "/d1/nodes", "/d1/nodes", "/d1/nodes", "/d1/release"]
    assert service.calls[0][2]["hold"] is True
    assert len(service.nodes) == 2_500
    assert len(service.edges) == 2_499
    assert not service.held


def test_a_node_with_more_upstreams_than_one_call_takes_gets_them_all_before_the_release() -> None:
    client, service = made()
    dag = Dag()
    first = [dag.node(f"n{number}", "t") for number in range(2_300)]
    dag.node("last", "t", after=first)
    client.submit(dag)
    assert len(service.edges) == 2_300
    assert service.actions()[-3:] == ["/d1/dependencies", "/d1/dependencies", "/d1/release"]


def test_a_hold_of_the_callers_own_stays() -> None:
    client, service = made()
    dag = chain(1_001)
    dag.hold = True
    client.submit(dag)
    assert service.held
    assert "/d1/release" not in service.actions()


def test_submitting_again_after_an_error_goes_on_with_the_same_dag() -> None:
    client, service = made()
    dag = chain(1_500)
    service.refuse = ("/nodes", problem(503, "unavailable", outcome="unknown"))
    with pytest.raises(errors.Unavailable):
        client.submit(dag)
    assert service.state == "running"
    service.refuse = None
    client.submit(dag)
    assert len({body["key"] for body in service.asked("/dags") if body and "key" in body}) == 1
    assert len(service.nodes) == 1_500
    before = len(service.calls)
    client.submit(dag)
    assert len(service.calls) == before + 1, "all of it is there and released"


@pytest.mark.parametrize(("nodes", "same"), [(1_200, False), (1_500, None), (1_600, None)])
def test_a_large_dag_is_never_added_to_another_of_its_key(nodes: int, same: bool | None) -> None:
    """What was released was whole. With as many nodes or more nobody knows whether it is the same."""
    client, service = made()
    first = client.submit(chain(nodes))
    assert (first.existing, first.same) == (False, True)
    before = len(service.calls)
    second = client.submit(chain(1_500))
    assert (second.id, second.existing, second.same) == (first.id, True, same)
    assert (len(service.calls), len(service.nodes)) == (before + 1, nodes)


@pytest.mark.parametrize(("key", "state"), [(None, "cancelled"), ("mine", "running")])
def test_what_the_service_refuses_half_way_is_cancelled_unless_others_may_know_it(
    key: str | None, state: str
) -> None:
    client, service = made()
    dag = Dag(key=key)
    for number in range(1_001):
        dag.node(str(number), "t")
    service.refuse = ("/nodes", problem(422, "invalid"))
    with pytest.raises(errors.Invalid):
        client.submit(dag)
    assert service.state == state


def test_a_cycle_is_named_before_anything_is_sent() -> None:
    client, service = made()
    dag = Dag()
    dag.node("a", "t", after=["c"])
    dag.node("b", "t", after=["a"])
    dag.node("c", "t", after=["b"])
    with pytest.raises(errors.Cycle) as caught:
        client.submit(dag)
    assert all(key in str(caught.value) for key in "abc")
    assert service.calls == []


def test_a_node_that_waits_for_itself_is_a_cycle() -> None:
    dag = Dag()
    dag.node("a", "t", after=["a"])
    with pytest.raises(errors.Cycle, match="a -> a"):
        dag.ordered()


def test_a_long_cycle_is_shown_in_short() -> None:
    dag = chain(5_000)
    dag.depend("4999", "0")
    with pytest.raises(errors.Cycle) as caught:
        dag.ordered()
    assert len(str(caught.value)) < 300


def test_unknown_and_repeated_nodes_are_refused() -> None:
    dag = Dag()
    dag.node("a", "t", after=["ghost"])
    with pytest.raises(errors.UnknownNode, match="ghost"):
        dag.ordered()
    with pytest.raises(errors.NodeExists, match="'a'"):
        dag.node("a", "t")
    with pytest.raises(errors.UnknownNode, match="other"):
        dag.depend("a", "other")
    with pytest.raises(TypeError, match="list"):
        dag.node("b", "t", after="a")


def test_a_dag_from_json_is_the_dag_of_the_same_calls() -> None:
    spec = {
        "name": "x",
        "key": "k",
        "nodes": [{"key": "a", "topic": "t"}, {"key": "b", "topic": "t", "upstream": ["a"]}],
        "dependencies": [{"upstream": "a", "downstream": "b"}],
    }
    dag = Dag.from_spec(spec)
    assert (dag.key, dag.made_key) == ("k", False)
    assert [node.body() for node in dag.ordered()] == spec["nodes"]


@pytest.mark.parametrize(
    "spec",
    [
        {"nodes": [{"key": "a"}]},
        {"nodes": ["a"]},
        {"nodes": 7},
        {"surprise": 1},
        {"dependencies": [{"upstream": "a"}]},
        {"nodes": [{"key": "a", "topic": "t", "upstream": "b"}]},
    ],
)
def test_json_that_is_no_dag_is_refused_in_one_line(spec: Any) -> None:
    with pytest.raises(errors.Invalid, match="not a DAG") as caught:
        Dag.from_spec(spec)
    assert "\n" not in str(caught.value)


def test_a_handle_sends_each_verb() -> None:
    client, service = made()
    handle = client.dag("d1")
    assert handle.add("a", "t", payload=1).state == "blocked"
    handle.depend("a", "b")
    assert handle.resolve("a", "approval", data={"by": "ada"}).status == "resolved"
    for verb in (handle.release, handle.close, handle.pause, handle.resume, handle.cancel, handle.retry):
        verb()
    handle.skip(["a"])
    assert service.actions() == [
        f"/d1/{action}"
        for action in (
            "nodes",
            "dependencies",
            "resolve",
            "release",
            "close",
            "pause",
            "resume",
            "cancel",
            "retry",
            "skip",
        )
    ]
    resolved = {"external": [{"node": "a", "name": "approval", "data": {"by": "ada"}}]}
    assert service.asked("/resolve") == [resolved]


def test_wait_asks_in_turns_until_the_end() -> None:
    client, service = made()
    answers = ["running", "running", "succeeded"]

    def reply(_method: str, _path: str, _body: Any) -> Any:
        service.state = answers.pop(0)
        return service.view()

    service.reply = reply
    assert client.dag("d1").wait().state == "succeeded"
    assert service.actions() == ["/d1/wait?timeout_s=30"] * 3


def test_wait_with_a_timeout_answers_what_it_is_then() -> None:
    client, service = made()
    assert client.dag("d1").wait(timeout_s=2).state == "running"
    assert len(service.calls) == 1


async def test_the_async_handle_does_the_same() -> None:
    service = DagService()
    async with AsyncClient(dag_url="http://d", namespace="n", transport=service) as client:
        handle = await client.submit(chain(1_200))
        assert isinstance(handle, AsyncDagHandle)
        assert (await handle.show()).nodes.total == 1_200
        await asyncio.gather(handle.pause(), handle.resume())
    assert service.actions()[-2:] == ["/d1/pause", "/d1/resume"]


def test_a_dag_within_a_dag_is_sent_as_one_node_and_read_back_the_same() -> None:
    inner = Dag("inner", on_failure="cancel")
    x = inner.node("x", topic="t")
    inner.node("y", topic="t", after=[x])
    outer = Dag("outer", key="k")
    a = outer.node("a", topic="t")
    outer.node("z", topic="t", after=[outer.subdag("mid", inner, after=[a], pass_outputs=True)])
    body = outer.nodes["mid"].body()
    nodes = [{"key": "x", "topic": "t"}, {"key": "y", "topic": "t", "upstream": ["x"]}]
    sub = {"name": "inner", "on_failure": "cancel", "nodes": nodes}
    assert body == {"key": "mid", "dag": sub, "upstream": ["a"], "pass_outputs": True}
    spec = {"nodes": [node.body() for node in outer.ordered()]}
    assert [node.body() for node in Dag.from_spec(spec).ordered()] == spec["nodes"]


def test_an_event_to_wait_for_may_have_a_deadline() -> None:
    dag = Dag("d", key="k")
    late = dag.node(
        "a", "t", external=["x", {"name": "y", "deadline_s": 60}, "x", {"name": "y", "deadline_s": 60}]
    )
    assert late.body()["external"] == ["x", {"name": "y", "deadline_s": 60}]
    read = Dag.from_spec({"nodes": [late.body()]})
    assert read.nodes["a"].external == late.external
    with pytest.raises(TypeError):
        dag.node("b", "t", external="x")
