"""Both services in memory, behind the client's transport, with the app's functions run in place: `app.testing()`.

Everything happens in one event loop, in a thread of its own, whose time leaps: calls of the test's thread, of its
coroutines and of functions are answered there, and functions run there as a worker would run them.
"""

import asyncio
import contextlib
import json
import re
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, unquote

import httpx
from pydantic import BaseModel, ValidationError

from headgate import wire
from headgate._app.function import Limits
from headgate._app.local.dag import LocalDag, LocalNode
from headgate._app.local.gate import LocalGates
from headgate._app.local.logs import LocalLogs
from headgate._app.local.waiting import LocalItem, Waiting
from headgate._calls.elements import Leased, LeasedDag
from headgate._client.aio.client import AsyncClient
from headgate._client.blocking.client import Client
from headgate._ids import new_id
from headgate._worker.job import Handler, Job, run_handler
from headgate._worker.job_logs import taking
from headgate._worker.verdicts import verdict_of, verdict_of_error
from headgate._worker.virtual_loop import VirtualLoop
from headgate.errors import HeadgateError, Invalid, NotFound

if TYPE_CHECKING:
    from headgate._app.app import App

ATTEMPTS_MAX: Final = 20
# By the last part of their paths.
_BODIES: Final[Mapping[str, type[BaseModel]]] = {
    "enqueue": wire.EnqueueRequest,
    "dags": wire.DagSpec,
    "nodes": wire.AddNodes,
    "expand": wire.ExpandNode,
}
_PATH: Final = re.compile(r"/v1(?:/namespaces/[^/]+)?/(.*)")


class LocalServices(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """Answers calls of clients from memory."""

    def __init__(self, app: "App", handlers: Mapping[str, tuple[Handler, int]], start: datetime) -> None:
        self._app = app
        self._handlers = handlers
        self._start = start
        self.loop = VirtualLoop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="headgate-testing", daemon=True)
        self._changed: asyncio.Event = asyncio.Event()
        self._items: dict[str, LocalItem] = {}
        self._waiting: dict[str, Waiting] = {}
        self._running: dict[str, int] = {}
        self._gates = LocalGates({})
        self._logs = LocalLogs(lambda: self.now)
        self._jobs: set[asyncio.Task[None]] = set()
        self._dags: dict[str, LocalDag] = {}
        self._keys: dict[str, str] = {}
        self.ran: list[Job] = []

    def serve(self, handlers: Mapping[str, tuple[Handler, int]], limits: Mapping[str, Limits]) -> None:
        """Deliver to these handlers, within these limits of their topics."""
        self._handlers = handlers
        self._gates = LocalGates(limits)

    # Time

    @property
    def now(self) -> datetime:
        return self._start + timedelta(seconds=self.loop.time())

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """While the loop runs."""
        self._thread.start()
        try:
            with taking():
                yield
        finally:
            asyncio.run_coroutine_threadsafe(self._stop(), self.loop).result()
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()
            self.loop.close()

    async def _stop(self) -> None:
        for job in self._jobs:
            job.cancel()
        await asyncio.gather(*self._jobs, return_exceptions=True)

    def do(self, work: Awaitable[Any]) -> Any:
        """Have something done in the loop, from another thread."""

        async def doing() -> Any:
            return await work

        return asyncio.run_coroutine_threadsafe(doing(), self.loop).result()

    async def until(self, until_s: float, over: Callable[[], bool] = lambda: False) -> None:
        """Let time go on until then, or until it is over."""
        with self.loop.leaping(until_s):
            while not over() and self.loop.time() < until_s:
                self._changed.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(until_s):
                        await self._changed.wait()

    async def settled(self) -> None:
        """Let everything run that is due, and what becomes due by it, also after a delay."""
        while self._is_busy():
            due = [waiting.due_s for waiting in self._waiting.values() if waiting]
            until_s = max([self.loop.time(), *due]) if due else self.loop.time() + 86_400
            with self.loop.leaping(until_s + 86_400):
                self._changed.clear()
                if self._is_busy():
                    await self._changed.wait()

    def _is_busy(self) -> bool:
        return bool(self._jobs) or any(
            waiting and topic in self._handlers for topic, waiting in self._waiting.items()
        )

    # Work

    def put(self, item: LocalItem) -> None:
        """An item is there, for when it is due."""
        self._items[item.id] = item
        item.state = "delayed" if item.due_s > self.loop.time() else "ready"
        self._waiting.setdefault(item.spec["topic"], Waiting()).put(item)
        self.loop.call_at(max(item.due_s, self.loop.time()), self._deliver, item.spec["topic"])
        self._changed.set()

    def _deliver(self, topic: str) -> None:
        if topic not in self._handlers:
            return
        handler, slots = self._handlers[topic]
        waiting, now_s = self._waiting.get(topic, Waiting()), self.loop.time()
        while self._running.get(topic, 0) < slots:
            item, again_s = waiting.take(now_s, self._gates)
            if item is None:
                if self._gates.is_news(topic, again_s, now_s):
                    self.loop.call_at(again_s, self._deliver, topic)
                return
            item.state = "leased"
            for gate in self._gates.of(topic, item.spec.get("fairness_key")):
                gate.take()
            self._running[topic] = self._running.get(topic, 0) + 1
            working = self.loop.create_task(self._work(handler, item))
            self._jobs.add(working)
            working.add_done_callback(self._job_ended)

    def _job_ended(self, working: asyncio.Task[None]) -> None:
        self._jobs.discard(working)
        self._changed.set()

    async def _work(self, handler: Handler, item: LocalItem) -> None:
        job = item.job = Job(
            self._leased(item),
            client=AsyncClient(transport=self, namespace=self._app.namespace),
            blocking=lambda: Client(transport=self, namespace=self._app.namespace),
            lease_s=60.0,
            lease_ends_at=float("inf"),
            namespace=self._app.namespace,
        )
        job.task = asyncio.current_task()
        job.logs = self._logs
        self.ran.append(job)
        try:
            verdict = verdict_of(job, await run_handler(handler, job))
        except asyncio.CancelledError as error:
            if job.lost is None:
                raise
            verdict = verdict_of_error(job, error)
        except BaseException as error:
            verdict = verdict_of_error(job, error)
        finally:
            topic = item.spec["topic"]
            self._running[topic] -= 1
            for gate in self._gates.of(topic, item.spec.get("fairness_key")):
                gate.end()
            job.logs = None
            self.loop.call_soon(self._deliver, topic)
        if job.lost is None:
            self._settle(item, *verdict)
        self._changed.set()

    def _leased(self, item: LocalItem) -> Leased:
        node = item.node
        return Leased(
            id=item.id,
            topic=item.spec["topic"],
            lease_token="testing",  # noqa: S106
            lease_expires_at=self.now,
            attempt=item.attempt,
            payload=item.spec.get("payload"),
            metadata=item.metadata,
            inputs=node.inputs if node is not None else item.spec.get("inputs"),
            enqueued_at=item.enqueued_at,
            headers=item.spec.get("headers") or {},
            dag=None if node is None else LeasedDag(node.dag.id, node.key, node.generation),
        )

    def _settle(self, item: LocalItem, verb: str, element: Mapping[str, Any]) -> None:
        if verb == "ack":
            self._end(item, "succeeded", output=element.get("output"))
            return
        attempts_max = item.spec.get("max_attempts") or ATTEMPTS_MAX
        costs = element.get("costs_attempt", True)
        if element.get("final") or (costs and item.attempt >= attempts_max):
            self._end(item, "failed", error=element.get("error"))
            return
        if throttle_s := element.get("throttle_s"):
            self._gates.throttle(item.spec["topic"], element.get("throttle_key"), self.loop.time() + throttle_s)
        delay_s = element.get("delay_s")
        if delay_s is None:
            backoff = {"base_s": 1.0, "factor": 2.0, "max_s": 300.0, **(item.spec.get("backoff") or {})}
            delay_s = min(backoff["base_s"] * backoff["factor"] ** (item.attempt - 1), backoff["max_s"])
        item.attempt += bool(costs)
        item.metadata = element.get("metadata") or item.metadata
        item.due_s = self.loop.time() + delay_s
        self.put(item)

    def _end(self, item: LocalItem, state: str, *, output: Any = None, error: str | None = None) -> None:
        item.state = "ended" if state == "succeeded" else "dead"
        if item.node is not None and item.node.generation == item.generation:
            item.node.attempts = item.attempt
            item.node.dag.end(item.node, state, json.loads(json.dumps(output)), error)
        self._changed.set()

    # DAGs

    def dag(self, body: Mapping[str, Any], parent: LocalNode | None = None) -> LocalDag:
        """A new DAG."""
        made = LocalDag(
            new_id(0),
            body,
            now=lambda: self.now,
            new_id=lambda: new_id(0),
            deliver=self._release,
            ended=self._dag_ended,
            parent=parent,
        )
        self._dags[made.id] = made
        made.add(body.get("nodes") or (), body.get("dependencies") or ())
        if (deadline_s := body.get("deadline_s")) is not None:
            self.loop.call_later(deadline_s, made.cancel, "its deadline has passed", "failed")
        made.go_on()
        return made

    def _release(self, node: LocalNode) -> None:
        if node.spec.get("dag") is not None:
            self.dag(node.spec["dag"], parent=node)
            return
        due_s = self.loop.time() + (node.spec.get("delay_s") or 0.0)
        item = LocalItem(node.item_id, node.spec, due_s, self.now, node, node.generation)
        if (ttl_s := node.spec.get("ttl_s")) is not None:
            self.loop.call_later(ttl_s, self._expire, item)
        if (deadline_s := node.spec.get("deadline_s")) is not None:
            self.loop.call_later(deadline_s, self._expire, item, "leased")
        self.put(item)

    def _expire(self, item: LocalItem, *also: str) -> None:
        if item.state in ("ready", "delayed", *also):
            holder, is_held = item.job, item.state == "leased"
            self._end(item, "failed", error="expired")
            if is_held and holder is not None:
                holder.lose("lease_lost")

    def _dag_ended(self, dag: LocalDag) -> None:
        for node in dag.nodes.values():
            if node.state == "cancelled":
                self._cancel_item(node.item_id)
        if dag.parent is not None:
            state = "succeeded" if dag.state == "succeeded" else "failed"
            dag.parent.dag.end(dag.parent, state, dag.outputs(), None if state == "succeeded" else dag.state)
        self._changed.set()

    def _cancel_item(self, item_id: str) -> None:
        item = self._items.get(item_id)
        if item is not None and item.state in ("ready", "delayed", "leased"):
            item.state = "cancelled"
            if item.job is not None:
                item.job.lose("cancelled")

    def found(self, dag_id: str) -> LocalDag:
        if dag_id not in self._dags:
            raise NotFound(f"there is no DAG {dag_id}", status=404)
        return self._dags[dag_id]

    # Calls

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        request.read()
        thread = threading.current_thread()
        waiting = self.loop.thread_waits() if self.loop.is_of(thread) else contextlib.nullcontext()
        with waiting:
            found: httpx.Response = self.do(self._answer(request))
            return found

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await request.aread()
        if asyncio.get_running_loop() is self.loop:
            return await self._answer(request)
        answering = asyncio.run_coroutine_threadsafe(self._answer(request), self.loop)
        return await asyncio.wrap_future(answering)

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        path, _, query = request.url.raw_path.decode().partition("?")
        matched = _PATH.fullmatch(path)
        parts = [unquote(part) for part in matched[1].split("/")] if matched is not None else []
        body = json.loads(request.content) if request.content else {}
        try:
            _check(request, parts)
            if parts[::2] == ["items", "logs"]:
                found = self._logs.page(parts[1])
            else:
                found = await self._called(request.method, parts, dict(parse_qsl(query)), body)
        except HeadgateError as error:
            problem = {"title": error.code, "code": error.code, "detail": error.detail, "outcome": "none"}
            return httpx.Response(error.status or 400, json={**problem, "status": error.status or 400})
        return httpx.Response(200, content=json.dumps(found, default=datetime.isoformat).encode())

    async def _called(self, method: str, parts: list[str], query: Mapping[str, str], body: Any) -> Any:
        found: Any
        match method, parts:
            case "GET", ["shards"]:
                found = {"items": [{"shard": 0, "state": "healthy"}], "next_cursor": None}
            case "POST", ["enqueue"]:
                found = {"results": [self._enqueue(spec) for spec in body["items"]]}
            case "POST", ["items", "states"]:
                found = {"results": [self._standing(item_id) for item_id in body["ids"]]}
            case "POST", ["cancel"]:
                for item_id in body["ids"]:
                    self._cancel_item(item_id)
                found = {"results": [{"id": item_id, "status": "cancelled"} for item_id in body["ids"]]}
            case "POST", ["dags"]:
                found = self._create(body)
            case "GET", ["dags"]:
                dags = [dag for dag in self._dags.values() if _is_like(dag, query)]
                found = {"items": [dag.view() for dag in dags], "next_cursor": None}
            case "GET", ["dags", dag_id, *verb]:
                found = await self._shown(self.found(dag_id), verb, query)
            case "PUT", ["dags", dag_id, "values", key]:
                found = self.found(dag_id).write(key, body["value"], body.get("version"))
            case "POST", ["dags", dag_id, ("nodes" | "expand" | "dependencies")]:
                found = self._built(self.found(dag_id), body)
            case "POST", ["dags", dag_id, verb]:
                found = self._told(self.found(dag_id), verb, body)
            case _:
                raise _unknown(f"{method} /{'/'.join(parts)}")
        return found

    async def _shown(self, dag: LocalDag, verb: list[str], query: Mapping[str, str]) -> Any:
        match verb:
            case []:
                return dag.view()
            case ["wait"]:
                shown = await self._wait(dag, float(query.get("timeout_s", 0.0)))
                end = dag.nodes.get(query.get("node", ""))
                return {**shown, "node": None if end is None else end.view()}
            case ["nodes"]:
                nodes = [node for node in dag.nodes.values() if query.get("state") in (None, node.state)]
                return {"items": [node.view() for node in nodes], "next_cursor": None}
            case ["values"]:
                return {"items": [value for _, value in sorted(dag.values.items())], "next_cursor": None}
            case ["values", key]:
                return dag.value(key)
            case ["node", *rest]:
                node = dag.nodes.get(query["key"])
                if node is None:
                    raise NotFound(f"there is no node {query['key']!r}", status=404)
                return {(): node.view(), ("output",): node.output, ("inputs",): node.inputs}[tuple(rest)]
        raise _unknown(f"GET {'/'.join(verb)} of a DAG")

    @staticmethod
    def _built(dag: LocalDag, body: Any) -> Any:
        nodes, edges = body.get("nodes") or (), body.get("dependencies") or ()
        added = dag.expand(body["node"], nodes) if "node" in body else dag.add(nodes, edges)
        dag.go_on()
        views = [{"key": node.key, "item_id": node.item_id, "state": node.state} for node in added]
        return {"nodes": views, "dependencies": edges}

    def _told(self, dag: LocalDag, name: str, body: Any) -> Any:
        match name, body:
            case "skip", {"nodes": keys}:
                for key in keys:
                    if dag.nodes[key].state == "blocked":
                        dag._end_node(dag.nodes[key], "skipped")
            case "resolve", {"external": events}:
                for event in events:
                    dag.nodes[event["node"]].externals[event["name"]] = {"data": event.get("data")}
                dag.go_on()
                named = [{"node": event["node"], "name": event["name"], "status": "resolved"} for event in events]
                return {"results": named}
            case "cancel", _:
                dag.cancel(body.get("reason"))
                for node in dag.nodes.values():
                    if node.state == "cancelled":
                        self._cancel_item(node.item_id)
            case "retry", _:
                dag.retry(body.get("nodes"))
            case "release", _:
                dag.held = False
            case "close", _:
                dag.open = False
            case _:
                raise _unknown(f"{name} of a DAG")
        dag.go_on()
        return dag.view()

    async def _wait(self, dag: LocalDag, timeout_s: float) -> Any:
        until_s = self.loop.time() + timeout_s
        while dag.finished_at is None and self.loop.time() < until_s:
            if not self._is_busy():
                waiting = [node for node in dag.nodes.values() if node.state in ("blocked", "released")]
                said = ", ".join(f"{node.key} ({node.state})" for node in waiting[:5]) or "nothing"
                raise HeadgateError(f"nothing is left that could end this: {said}; no function of the app runs it")
            await self.until(until_s, lambda: dag.finished_at is not None or not self._is_busy())
        return dag.view()

    def _create(self, body: dict[str, Any]) -> Any:
        known = self._keys.get(body.get("key") or "")
        if known is not None and not (body.get("unique") and self._dags[known].finished_at is not None):
            dag = self._dags[known]
            return {**dag.view(), "existing": True, "same": dag.body == body}
        dag = self.dag(body)
        if body.get("key"):
            self._keys[body["key"]] = dag.id
        return {**dag.view(), "existing": False, "same": True}

    def _enqueue(self, spec: dict[str, Any]) -> dict[str, Any]:
        key = spec.get("idempotency_key")
        holder = self._items.get(self._keys.get(f"item/{key}", ""))
        if holder is not None and not (spec.get("unique") and holder.state in ("ended", "cancelled", "dead")):
            return {"id": holder.id, "status": "duplicate"}
        item_id = spec.get("id") or new_id(0)
        if key is not None:
            self._keys[f"item/{key}"] = item_id
        if item_id in self._items:
            return {"id": item_id, "status": "duplicate"}
        self.put(LocalItem(item_id, spec, self.loop.time() + (spec.get("delay_s") or 0.0), self.now))
        return {"id": item_id, "status": "enqueued"}

    def _standing(self, item_id: str) -> dict[str, Any]:
        item = self._items.get(item_id)
        if item is None or item.state in ("ended", "cancelled"):
            return {"id": item_id, "status": "not_found"}
        if item.state == "delayed" and item.due_s <= self.loop.time():
            item.state = "ready"
        return {"id": item_id, "status": "found", "state": item.state, "attempt": item.attempt}


def _check(request: httpx.Request, parts: list[str]) -> None:
    """Raises Invalid for a body that the services would refuse."""
    match request.method, parts:
        case "POST", [name] | ["dags", _, name] if name in _BODIES:
            try:
                _BODIES[name].model_validate_json(request.content)
            except ValidationError as error:
                faults = wire.field_errors(error.errors(include_url=False, include_input=False))
                said = "; ".join(f"{fault.pointer or '/'}: {fault.detail}" for fault in faults[:5])
                raise Invalid(said, status=422) from None


def _unknown(what: str) -> HeadgateError:
    return NotFound(f"app.testing() has no {what}: test it on the real stack", status=404)


def _is_like(dag: LocalDag, query: Mapping[str, str]) -> bool:
    view = dag.view()
    return all(query.get(name) in (None, view[name]) for name in ("key", "name", "state"))
