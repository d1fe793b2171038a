"""Builders and workers of random DAGs, and what must have become of each.

How a DAG ends is known before it runs: which nodes fail is part of its plan, so every node's end follows from the
triggers. What the services show at the end has to be just that, whatever was killed in between.
"""

import asyncio
import random
import time
from dataclasses import dataclass, field
from typing import Any

from tests.integration.soak.calls import Answer, Caller
from tests.integration.soak.history import Delivery, History
from tests.integration.soak.queue_load import LEASES_S, delivery_of, say

STEP = "step"
TRIGGERS = ("all_succeeded",) * 6 + ("all_done", "none_failed", "any_succeeded")
_NODES_MIN, _NODES_MAX = 4, 24
_RUNNING_MAX = 4  # per builder
_REPEAT_S = 120.0


@dataclass(slots=True)
class Node:
    """`fails`: in no, the first, or every generation. `waits`: it has an external that the builder resolves."""

    key: str
    upstream: list[str]
    trigger: str
    fails: str
    waits: bool
    resolved_s: float | None = None  # when a resolve was first sent
    # Of the upstreams, those that may have been taken without effect, as they had succeeded when it was released.
    moot: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Plan:
    """One DAG, and what happened to it. `nodes` is in an order that its edges respect."""

    name: str
    nodes: dict[str, Node]
    is_retried: bool
    is_cancelled: bool
    id: str = ""
    was_retried: bool = False
    cancelled_s: float | None = None  # when a final cancel was answered
    shown: dict[str, Any] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)

    def ends(self, generation: int) -> dict[str, str]:
        """How each node ends by its trigger, if nobody cancels; what has succeeded is kept by a retry."""
        before = self.ends(generation - 1) if generation > 1 else {}
        found: dict[str, str] = {}
        for node in self.nodes.values():
            if before.get(node.key) == "succeeded":
                found[node.key] = "succeeded"
            elif fires(node.trigger, [found[key] for key in node.upstream]):
                fails = node.fails == "always" or (node.fails == "first" and generation == 1)
                found[node.key] = "failed" if fails else "succeeded"
            else:
                found[node.key] = "skipped"
        return found


def fires(trigger: str, ups: list[str]) -> bool:
    """Whether a node runs whose upstreams ended so."""
    match trigger:
        case "all_succeeded":
            return all(state == "succeeded" for state in ups)
        case "none_failed":
            return "failed" not in ups
        case "any_succeeded":
            return "succeeded" in ups
    return True


@dataclass(frozen=True, slots=True)
class Step:
    """A delivery of a node, or the word that a worker sent about it (`acked`, `failed`)."""

    what: str
    item: str
    generation: int
    sent: float
    done: float


class DagLoad:
    """Several builders with several DAGs at once each, and their workers."""

    def __init__(self, queue_url: str, dag_url: str, history: History, seed: int) -> None:
        self._queue_url = queue_url
        self._dag_url = dag_url
        self._history = history
        self._seed = seed
        self.plans: dict[str, Plan] = {}
        self.steps: dict[tuple[str, str], list[Step]] = {}
        self.producing = True
        self.draining = False

    async def build(self, number: int) -> None:
        """Make DAGs, whole or in parts, and see each to its end."""
        rng = random.Random(f"{self._seed} builder {number}")
        running: set[asyncio.Task[None]] = set()
        async with Caller(self._dag_url) as caller:
            count = 0
            while self.producing:
                if len(running) >= _RUNNING_MAX:
                    _, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                    continue
                plan = plan_of(rng, f"{number}.{count}")
                self.plans[plan.name] = plan
                count += 1
                running.add(asyncio.create_task(self._live(caller, plan, random.Random(rng.random()))))
                await asyncio.sleep(rng.random() * 0.4)
            await asyncio.gather(*running)

    async def work(self, number: int) -> None:
        """Take nodes, and do with each what its plan says; sometimes a lease runs out first."""
        rng = random.Random(f"{self._seed} worker {number}")
        async with Caller(self._queue_url) as caller:
            while True:
                lease_s = rng.choice(LEASES_S)
                body = {"topics": [{"topic": STEP, "count": rng.randint(1, 12)}], "wait_s": 1, "lease_s": lease_s}
                answer = await caller.post("/dequeue", body)
                if answer.known != "ok":
                    await asyncio.sleep(0.05)
                    continue
                acks: list[tuple[Delivery, dict[str, Any]]] = []
                for leased in answer.body["items"]:
                    delivery = delivery_of(leased, answer, lease_s)
                    self._history.delivered(delivery)
                    self._note(leased, "delivered", answer.sent, answer.done)
                    if not self.draining and rng.random() < 0.05:
                        continue  # a worker that dies
                    if leased["payload"]["fails"] == "always" or (
                        leased["payload"]["fails"] == "first" and leased["dag"]["generation"] == 1
                    ):
                        words = await say(caller, self._history, "nack", [delivery], final=True, error="planned")
                        self._note(leased, "failed", words[0].sent, words[0].done)
                    else:
                        acks.append((delivery, leased))
                if acks:
                    words = await say(caller, self._history, "ack", [delivery for delivery, _ in acks])
                    for word, (_, leased) in zip(words, acks, strict=True):
                        self._note(leased, "acked", word.sent, word.done)

    def _note(self, leased: dict[str, Any], what: str, sent: float, done: float) -> None:
        dag = leased["dag"]
        steps = self.steps.setdefault((dag["id"], dag["node"]), [])
        steps.append(Step(what, leased["id"], dag["generation"], sent, done))

    async def _live(self, caller: Caller, plan: Plan, rng: random.Random) -> None:
        nodes = list(plan.nodes.values())
        if rng.random() < 0.5:
            await self._make(caller, plan, nodes, open=False)
        else:
            cut = rng.randint(1, len(nodes))
            await self._make(caller, plan, nodes[:cut], open=True)
            rest = nodes[cut:]
            for node in rest:
                if node.waits and not plan.is_cancelled and rng.random() < 0.3:
                    await self._resolve(caller, plan, node)
            while rest:
                size = rng.randint(1, len(rest))
                body = {"nodes": [_body(plan.name, node) for node in rest[:size]]}
                await self._repeat(caller, "POST", f"/dags/{plan.id}/nodes", json=body)
                rest = rest[size:]
            await self._late_edges(caller, plan, rng)
            await self._repeat(caller, "POST", f"/dags/{plan.id}/close", json={})
        if plan.is_cancelled:
            await asyncio.sleep(rng.random())
            await self._cancel(caller, plan)
        else:
            for node in nodes:
                if node.waits:
                    await asyncio.sleep(rng.random() * 0.2)
                    await self._resolve(caller, plan, node)
        await self._see(caller, plan)
        if plan.is_retried and plan.shown["state"] == "failed":
            plan.was_retried = True
            await self._repeat(caller, "POST", f"/dags/{plan.id}/retry", json={}, good=("nothing_to_retry",))
            await self._see(caller, plan)

    async def _make(self, caller: Caller, plan: Plan, nodes: list[Node], *, open: bool) -> None:
        body = {
            "key": plan.name,
            "name": plan.name,
            "open": open,
            "nodes": [_body(plan.name, node) for node in nodes],
        }
        plan.id = (await self._repeat(caller, "POST", "/dags", json=body)).body["id"]

    async def _late_edges(self, caller: Caller, plan: Plan, rng: random.Random) -> None:
        """Edges between old nodes: taken, or refused because the lower one is released."""
        keys = list(plan.nodes)
        for _ in range(3):
            up, down = sorted(rng.sample(range(len(keys)), 2))
            node = plan.nodes[keys[down]]
            if keys[up] in node.upstream or not node.waits:
                continue  # it may end before the edge comes, and no plan would know how
            if node.resolved_s is not None:
                node.moot.add(keys[up])
            body = {"dependencies": [{"upstream": keys[up], "downstream": keys[down]}]}
            answer = await self._repeat(
                caller, "POST", f"/dags/{plan.id}/dependencies", json=body, good=("node_released",)
            )
            if answer.known == "ok":
                node.upstream.append(keys[up])

    async def _resolve(self, caller: Caller, plan: Plan, node: Node) -> None:
        node.resolved_s = node.resolved_s or time.monotonic()
        body = {"external": [{"node": node.key, "name": "go"}]}
        await self._repeat(caller, "POST", f"/dags/{plan.id}/resolve", json=body)

    async def _cancel(self, caller: Caller, plan: Plan) -> None:
        async with asyncio.timeout(_REPEAT_S):
            while True:
                answer = await self._repeat(
                    caller, "POST", f"/dags/{plan.id}/cancel", json={}, good=("dag_finished",)
                )
                if answer.known != "ok" or answer.status == 200:
                    plan.cancelled_s = answer.done
                    return
                await asyncio.sleep(0.1)

    async def _see(self, caller: Caller, plan: Plan) -> None:
        """The DAG and its nodes once it has ended."""
        async with asyncio.timeout(_REPEAT_S):
            while True:
                answer = await self._repeat(caller, "GET", f"/dags/{plan.id}/wait", params={"timeout_s": 2})
                if answer.body["finished_at"]:
                    break
        plan.shown = answer.body
        query = {"limit": _NODES_MAX}
        nodes = (await self._repeat(caller, "GET", f"/dags/{plan.id}/nodes", params=query)).body["items"]
        plan.states = {node["key"]: node["state"] for node in nodes}

    async def _repeat(
        self, caller: Caller, method: str, path: str, *, good: tuple[str, ...] = (), **rest: Any
    ) -> Answer:
        """A call that may be sent again, until it is done, or refused in a way that was foreseen."""
        async with asyncio.timeout(_REPEAT_S):
            while True:
                answer = await caller.call(method, path, **rest)
                self._history.counts[f"dag {answer.known}"] += 1
                if answer.known == "ok" or (answer.known == "fail" and answer.code in good):
                    return answer
                assert answer.status in (0, 429, 503), f"{method} {path}: {answer.status} {answer.body}"
                await asyncio.sleep(0.1)


def plan_of(rng: random.Random, name: str) -> Plan:
    """A random DAG of up to three upstreams a node."""
    nodes: dict[str, Node] = {}
    for n in range(rng.randint(_NODES_MIN, _NODES_MAX)):
        keys = list(nodes)
        upstream = rng.sample(keys, min(len(keys), rng.choice((0, 1, 1, 2, 3))))
        trigger = rng.choice(TRIGGERS) if upstream else "all_succeeded"
        fails = rng.choices(("never", "first", "always"), (88, 7, 5))[0]
        nodes[f"n{n}"] = Node(f"n{n}", upstream, trigger, fails, rng.random() < 0.15)
    return Plan(name, nodes, is_retried=rng.random() < 0.7, is_cancelled=rng.random() < 0.1)


def _body(name: str, node: Node) -> dict[str, Any]:
    body: dict[str, Any] = {"key": node.key, "topic": STEP, "trigger": node.trigger}
    body["payload"] = {"tag": f"{name}/{node.key}", "fails": node.fails}
    body |= {"upstream": list(node.upstream)} if node.upstream else {}
    return body | ({"external": ["go"]} if node.waits else {})
