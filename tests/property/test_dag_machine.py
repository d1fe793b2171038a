"""The real services against a model of one DAG: every answer, every node, every delivery, after every step.

A step is a call and all that follows from it: outbox rows are sent, completions applied and walks walked until
nothing is left to do. In the end everything is let go and acked, and the DAG must come to its end.
`HEADGATE_TEST_EXAMPLES` sets how many histories there are.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.property.dag_model import Model, Node
from tests.support.bounded import steps
from tests.support.dag_world import BASE, DagWorld
from tests.support.databases import Database
from tests.support.examples import examples
from tests.support.queue_host import AT_ONCE, Api, QueueHost, queue_host
from tests.support.queue_hosted import HostedQueue

LEASE_S = 10.0
TRIGGERS = ("all_succeeded", "all_succeeded", "all_done", "any_succeeded", "any_failed", "none_failed")
SPECS = st.fixed_dictionaries(
    {
        "trigger": st.sampled_from(TRIGGERS),
        "ups": st.sets(st.integers(1, 4), max_size=3),
        "external": st.sets(st.sampled_from(["x", "y"]), max_size=2),
        "max_attempts": st.sampled_from([0, 1, 2]),
        "tolerate": st.booleans(),
    }
)


class World:
    """A queue, a DAG service and the loop they live in."""

    def __init__(self, database: Database) -> None:
        self.runner = asyncio.Runner()
        self.stack = AsyncExitStack()
        self.host: QueueHost = self.run(self.stack.enter_async_context(queue_host(database)))
        self.queue = HostedQueue(self.host)
        self.dags = DagWorld(database, self.queue)  # type: ignore[arg-type]

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(work)

    async def settle(self) -> None:
        """Outbox, completions, walks, until nothing is left to do."""
        shard = self.dags.shard
        for _ in steps():
            await self.dags.loops.relay.idle()
            before = self.queue.taken
            await self.dags.loops.results[shard.number].drain()
            if not await self.dags.loops.walker.step(shard) and self.queue.taken == before:
                return

    def close(self) -> None:
        self.run(self.dags.close())
        self.run(self.stack.aclose())
        self.runner.close()


class DagMachine(RuleBasedStateMachine):
    world: World
    keys = Bundle("keys")
    leases = Bundle("leases")

    @initialize(
        target=keys,
        opened=st.sampled_from([True, True, True, False]),
        hold=st.sampled_from([False, False, True]),
        on_failure=st.sampled_from(["continue", "continue", "cancel"]),
        deadline_s=st.sampled_from([None, None, 25.0]),
        at_once=st.sampled_from([0, 100]),
        specs=st.lists(SPECS, min_size=2, max_size=4),
    )
    def begin(
        self,
        opened: bool,
        hold: bool,
        on_failure: str,
        deadline_s: float | None,
        at_once: int,
        specs: list[dict[str, Any]],
    ) -> Any:
        self.world.dags.settings.__dict__.update(retry_at_once_nodes_max=at_once, retry_step_nodes=2)
        self.queue = Api(self.world.host, "default")
        self.topic = Api(self.world.host).namespace  # one that no other history has
        self.run(self.world.host.clock.reset())
        self.run(self.world.host.clock.freeze())
        self.model = Model(opened, hold, on_failure, deadline_s)
        self.delivered: set[tuple[str, int, int]] = set()
        body = {"open": opened, "hold": hold, "on_failure": on_failure}
        if deadline_s is not None:
            body["deadline_s"] = deadline_s
        self.dag = self.run(self.world.dags.create(**body))
        for spec in specs:
            self._add(spec)
        return multiple(*self.model.nodes)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.world.run(work)

    def post(self, path: str, body: Any = None) -> Any:
        """A call, and all that follows from it."""
        url = f"{BASE}/{self.dag}/{path}"
        answer = self.run(self.world.dags.http.post(url, json=body or {}))
        self.run(self.world.settle())
        return answer

    @rule(target=keys, spec=SPECS)
    @precondition(lambda self: len(self.model.nodes) < 12)
    def add(self, spec: dict[str, Any]) -> Any:
        key = self._add(spec)
        return key if key in self.model.nodes else multiple()

    def _add(self, spec: dict[str, Any]) -> str:
        known = list(self.model.nodes)
        ups = {known[-back] for back in spec["ups"] if back <= len(known)}
        key = f"n{len(known)}"
        trigger = spec["trigger"] if ups or not spec["trigger"].startswith("any") else "all_done"
        body = {"key": key, "topic": self.topic, "trigger": trigger, "backoff": AT_ONCE}
        body["max_attempts"] = spec["max_attempts"]
        body["tolerate"] = spec["tolerate"]
        lists = {"upstream": sorted(ups), "external": sorted(spec["external"])}
        body |= {"lease_s": LEASE_S} | {name: values for name, values in lists.items() if values}
        answer = self.post("nodes", {"nodes": [body]})
        external = dict.fromkeys(spec["external"], "open")
        node = Node(trigger, ups, external, spec["max_attempts"], spec["tolerate"])
        assert answer.status_code == self.model.add(key, node), answer.text
        return key

    @rule(up=keys, down=keys)
    def link(self, up: str, down: str) -> None:
        answer = self.post("dependencies", {"dependencies": [{"upstream": up, "downstream": down}]})
        assert answer.status_code == self.model.link(up, down), answer.text

    @rule(n=st.integers(0, 6), name=st.sampled_from(["x", "y"]), failed=st.sampled_from([False, False, True]))
    def resolve(self, n: int, name: str, failed: bool) -> None:
        answer = self.post("resolve", {"external": [{"node": f"n{n}", "name": name, "failed": failed}]})
        assert answer.json()["results"][0]["status"] == self.model.resolve(f"n{n}", name, failed)

    @rule(target=leases, count=st.integers(1, 4))
    def take(self, count: int) -> Any:
        ready = self.model.ready()
        found = self.run(self.queue.dequeue(self.topic, count))
        assert len(found) == min(count, len(ready))
        for item in found:
            key, generation = item["dag"]["node"], item["dag"]["generation"]
            assert key in ready, f"{key} was delivered and is {self.model.nodes[key].state}"
            node = self.model.take(key, item["lease_token"], self.model.now_s + LEASE_S)
            assert (generation, item["attempt"]) == (node.generation, node.attempts + 1)
            assert (key, generation, item["attempt"]) not in self.delivered
            self.delivered.add((key, generation, item["attempt"]))
        return multiple(*((item["dag"]["node"], item) for item in found))

    @rule(held=leases)
    def ack(self, held: tuple[str, Any]) -> None:
        key, item = held
        holds = self.model.holds(key, item["lease_token"])
        [status] = self.run(self.queue.ack(item))
        self.run(self.world.settle())
        assert (status == "acked") == holds, status
        if holds:
            self.model.ack(key)

    @rule(held=consumes(leases), final=st.booleans())
    def nack(self, held: tuple[str, Any], final: bool) -> None:
        key, item = held
        holds = self.model.holds(key, item["lease_token"])
        [status] = self.run(self.queue.nack(item, final=final))
        self.run(self.world.settle())
        if holds:
            assert status == self.model.give_up(key, final)
        else:
            assert status not in ("requeued", "dead")

    @rule(seconds=st.sampled_from([4.0, 11.0]))
    def pass_time(self, seconds: float) -> None:
        self.run(self.world.host.pass_time(seconds))
        self.run(self.world.settle())
        self.run(self.world.dags.loops.sweeper.step(self.world.dags.shard))
        self.run(self.world.settle())
        self.model.pass_time(seconds)

    @rule(key=keys)
    def skip(self, key: str) -> None:
        assert self.post("skip", {"nodes": [key]}).status_code == self.model.skip(key)

    @rule(key=keys)
    def cancel_node(self, key: str) -> None:
        assert self.post("nodes/cancel", {"nodes": [key]}).status_code == self.model.cancel_node(key)

    @rule(sure=st.integers(0, 7))
    def cancel(self, sure: int) -> None:
        if sure == 0:
            assert self.post("cancel").status_code in (200, 202)
            self.model.cancel()

    @rule(key=st.none() | keys, everything=st.sampled_from([False, False, False, True]))
    def retry(self, key: str | None, everything: bool) -> None:
        body: dict[str, Any] = {"all": True} if everything else {"nodes": [key]} if key else {}
        answer = self.post("retry", body)
        assert answer.status_code == self.model.retry(key, everything), answer.text

    @rule(verb=st.sampled_from(["pause", "pause", "resume", "release", "close"]))
    def control(self, verb: str) -> None:
        assert self.post(verb).status_code == 200
        self._control(verb)

    @rule(held=leases)
    def end_while_paused(self, held: tuple[str, Any]) -> None:
        """What an end lets go stays where it is until the pause is over."""
        self._paused(lambda: self.ack(held))

    @rule(target=keys, spec=SPECS)
    @precondition(lambda self: len(self.model.nodes) < 12)
    def add_while_paused(self, spec: dict[str, Any]) -> Any:
        key = self._paused(lambda: self._add(spec | {"external": set()}))
        return key if key in self.model.nodes else multiple()

    def _paused(self, act: Callable[[], Any]) -> Any:
        self.control("pause")
        found = act()
        self.as_in_the_model()
        self.control("resume")
        return found

    def _control(self, verb: str) -> None:
        model = self.model
        match verb:
            case "release":
                model.held = False
            case "close" if not model.over:
                model.open, model.closed = False, True
            case "pause" if not model.over:
                model.paused = True
            case "resume":
                model.paused = False
        model.settle()

    @rule(key=keys)
    def explain(self, key: str) -> None:
        """What a node waits for is what keeps it, and nothing else."""
        node, model = self.model.nodes[key], self.model
        found = self.run(self.world.dags.node(self.dag, key))["blocked_by"]
        assert bool(found) == (node.state == "blocked")
        if found:
            ups = {up for up in node.ups if model.nodes[up].state in ("blocked", "released")}
            assert {by["key"] for by in found if by["kind"] == "node"} == ups
            names = {name for name, stood in node.external.items() if stood == "open"}
            assert {by["name"] for by in found if by["kind"] == "external"} == names
            kinds = {by["kind"] for by in found}
            assert ("hold" in kinds, "pause" in kinds) == (model.held, model.paused)

    @invariant()
    def as_in_the_model(self) -> None:
        if not hasattr(self, "dag"):
            return
        self.run(self._compare())

    async def _compare(self) -> None:
        dags, model = self.world.dags, self.model
        nodes = {key: node.state for key, node in model.nodes.items()}
        assert await dags.states(self.dag) == nodes
        found = await dags.dag(self.dag)
        assert (found["state"], found["held"], found["paused"]) == (model.state, model.held, model.paused)
        counts = {state: list(nodes.values()).count(state) for state in found["nodes"] if state != "total"}
        assert found["nodes"] == {"total": len(nodes), **counts}
        topic = await self.queue.topic(self.topic)
        living = (topic.get("ready", 0) + topic.get("delayed", 0), topic.get("leased", 0))
        assert living == (len(model.ready()), len(model.leased()))
        if model.over:
            assert not topic.get("disabled"), "an ended DAG has items in the queue"
        await dags.audit(self.dag)

    def teardown(self) -> None:
        """Nothing is stuck: what can come still comes, and then the DAG ends."""
        if not hasattr(self, "dag"):
            return
        for verb in ("release", "resume"):
            self.control(verb)
        for key, node in self.model.nodes.items():
            for name in [name for name, stood in node.external.items() if stood == "open"]:
                self.post("resolve", {"external": [{"node": key, "name": name}]})
                self.model.resolve(key, name, False)
        self.control("close")
        self.pass_time(LEASE_S + 1)
        while self.model.ready():
            for held in _tuples(self.take(100)):
                self.ack(held)
        self.as_in_the_model()
        assert self.model.over


def _tuples(found: Any) -> list[Any]:
    return list(getattr(found, "values", found))


@pytest.fixture
async def dag_and_queue(databases: Any) -> Any:
    made = await databases.create(queue_shards=1, dag_shards=1)
    yield made
    await databases.drop(made)


@pytest.fixture
def world(dag_and_queue: Database) -> Iterator[World]:
    made = World(dag_and_queue)
    yield made
    made.close()


def test_a_dag_does_what_the_model_does(world: World) -> None:
    DagMachine.world = world
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        DagMachine,
        settings=settings(
            max_examples=examples(12),
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
