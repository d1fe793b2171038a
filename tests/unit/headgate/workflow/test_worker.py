"""Workflows on a worker, and the client's verbs, over HTTP: the service is a run in memory."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from headgate import App, AppWorker, AsyncClient, Client, Conflict, Job, NodeFailed, Worker, Workflow
from headgate._http.transport import RetryPolicy
from headgate.testing import replay
from headgate.workflow.local.memory import MemoryRun
from headgate.workflow.turns import Diverged, Lease, RunFinished, Turn, TurnAnswer, TurnLost
from tests.unit.headgate.client.test_client import leased
from tests.unit.headgate.fakes import Service, problem
from tests.unit.headgate.worker.test_worker import Queue


class WorkflowService(Queue):
    """Delivers the decider of one run whenever it is awake, and takes its turns; tasks end with their payloads."""

    def __init__(self, run: MemoryRun) -> None:
        super().__init__()
        self.run = run
        self.delivered = 0
        self.paths: set[str] = set()
        self.by: Any = None
        self.lose_answers = 0
        self.ended = asyncio.Event()
        self.delivers = asyncio.Event()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        path, body = request.url.path, json.loads(await request.aread() or b"null")
        if not path.endswith(("/history", "/turn")):
            return await super().handle_async_request(request)
        self.paths.add(path)
        try:
            if path.endswith("/history"):
                return self.history(request.url.params)
            answer = self.turn(body)
        except (TurnLost, RunFinished, Diverged) as error:
            codes = {TurnLost: "turn_lost", RunFinished: "workflow_finished", Diverged: "history_mismatch"}
            return problem(409, codes[type(error)])
        if self.lose_answers:
            self.lose_answers -= 1
            raise httpx.ReadError("lost")
        events = [event.body() for event in answer.events]
        return httpx.Response(
            200, json={"turn": answer.turn, "events": events, "parked": answer.parked, "ended": answer.ended}
        )

    async def dequeue(self, body: Any) -> httpx.Response:
        """Waits for the next delivery, but where it settles something."""
        while not self.items and body.get("settle") is None:
            self.delivers.clear()
            await self.delivers.wait()
        return await super().dequeue(body)

    def history(self, params: httpx.QueryParams) -> httpx.Response:
        after, run = int(params["after"]), self.run
        events = [event.body() for event in run.events(after)[:3]]
        more = after + len(events) < len(run)
        body = {"events": events, "seen": run.seen, "turn": run.turn_number, "markers": run.markers, "more": more}
        return httpx.Response(200, json=body)

    def turn(self, body: dict[str, Any]) -> TurnAnswer:
        self.by = body.get("by", self.by)
        fields = {"seen": self.run.seen, **body}
        answer = self.run.turn(Lease("run", body["generation"], body["secret"]), Turn(**fields))
        for key in [key for key, node in self.run.nodes.items() if node["state"] == "added"]:
            if (node := self.run.nodes[key])["kind"] != "step" and not self.run.is_ended:
                self.run.finish(key, output=node["spec"].get("payload"))
        self.deliver()
        return answer

    def deliver(self) -> None:
        run = self.run
        if run.is_ended:
            self.ended.set()
        elif run.is_awake and run.generation > self.delivered:
            self.delivered = run.generation
            dag = {"id": "run-7", "node": "decider", "generation": run.generation}
            payload = {"secret": run.secret(run.generation)}
            self.delivers.set()
            self.items.append(leased(f"d{run.generation}", topic="wf/order", dag=dag, payload=payload))


async def order(wf: Workflow, cart: list[str]) -> list[Any]:
    packed = await asyncio.gather(*(wf.call("pack", item) for item in cart))
    return [*packed, await wf.run(len, cart), "new" if wf.patched("way") else "old"]


async def driven(service: WorkflowService, **settings: Any) -> None:
    retry = RetryPolicy(base_s=0.0)
    client = AsyncClient(queue_url="http://q", dag_url="http://d", transport=service, retry=retry)
    worker = Worker(client, namespace="shop", **settings)
    worker.workflow("order", version="3")(order)
    service.deliver()
    running = asyncio.create_task(worker.run(signals=False))
    try:
        async with asyncio.timeout(20):
            await service.ended.wait()
    finally:
        worker.stop()
        await running


async def test_a_worker_drives_a_run_by_the_services_calls() -> None:
    service = WorkflowService(MemoryRun("order", ["book", "lamp"]))
    await driven(service)
    assert service.run.output == ["book", "lamp", 2, "new"]
    assert service.paths == {
        "/v1/namespaces/shop/dags/run-7/history",
        "/v1/namespaces/shop/dags/run-7/turn",
    }
    assert service.by["version"] == "3" and service.by["core"] == 1
    assert service.said["nack"] == []
    replay(service.run.events(), order)


async def test_code_of_a_version_has_runs_of_it_and_those_of_none() -> None:
    client = AsyncClient(queue_url="http://q", dag_url="http://d", transport=WorkflowService(MemoryRun("order")))
    worker = Worker(client, namespace="shop")
    worker.workflow("order", version="3", slots=4)(order)
    worker.workflow("order", version="2", only_pinned=True)(order)
    assert set(worker._tasks) == {"wf/order", "wfv/3/order", "wfv/2/order"}
    for version, only_pinned, said in (
        ("3", True, "has a function"),
        ("4", False, "has a function"),
        ("a/b", False, "is no version"),
        (None, True, "of which version"),
    ):
        with pytest.raises(ValueError, match=said):
            worker.workflow("order", version=version, only_pinned=only_pinned)(order)
    assert set(worker._tasks) == {"wf/order", "wfv/3/order", "wfv/2/order"}


class Forbidding(WorkflowService):
    """Forbids what code asks for, such as an item of a topic of the system's."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/turn") and "stuck" not in json.loads(await request.aread()):
            return problem(403, "forbidden")
        return await super().handle_async_request(request)

    def turn(self, body: dict[str, Any]) -> TurnAnswer:
        answer = super().turn(body)
        self.ended.set()
        return answer


async def test_a_run_whose_turn_is_forbidden_is_stuck_and_says_why() -> None:
    service = Forbidding(MemoryRun("order", ["book"]))
    await driven(service)
    assert service.run.stuck is not None and service.run.stuck["code"] == "turn_refused"


async def test_a_run_is_replayed_before_its_turns_where_its_worker_is_told_to() -> None:
    calls = 0

    async def counts(wf: Workflow, _input: Any) -> None:
        nonlocal calls
        calls += 1
        await wf.call("work", calls)

    service = WorkflowService(MemoryRun("order", None))
    client = AsyncClient(queue_url="http://q", dag_url="http://d", transport=service)
    worker = Worker(client, namespace="shop")
    worker.workflow("order", replay_rate=1.0)(counts)
    await worker.deciders._driver.work("order", service.run.lease)
    assert service.run.stuck is not None and service.run.stuck["code"] == "nondeterministic"
    with pytest.raises(ValueError, match="replay_rate"):
        worker.workflow("other", replay_rate=2.0)(counts)


async def test_a_turn_whose_answer_was_lost_is_sent_again() -> None:
    service = WorkflowService(MemoryRun("order", ["book"]))
    service.lose_answers = 2
    await driven(service)
    assert service.run.output == ["book", 1, "new"]
    keys = [(event.kind, event.key) for event in service.run.events() if event.is_record]
    assert len(keys) == len(set(keys))


async def test_what_is_no_deciders_delivery_is_dead() -> None:
    service = WorkflowService(MemoryRun("order", []))
    service.items.append(leased("x", topic="wf/order", payload={"secret": "s"}))
    service.items.append(leased("y", topic="wf/order", dag={"id": "d", "node": "n", "generation": 1}))
    worker = Worker(AsyncClient(queue_url="http://q", dag_url="http://d", transport=service))
    worker.workflow("order")(order)
    running = asyncio.create_task(worker.run(signals=False))
    said = await service.heard("nack", 2)
    worker.stop()
    await running
    assert all(nack["final"] and "no delivery of a workflow's decider" in nack["error"] for nack in said)
    with pytest.raises(ValueError, match="has a function already"):
        worker.workflow("order")(order)
    with pytest.raises(TypeError, match="is an `async def`"):
        worker.workflow("other")(len)


@pytest.mark.parametrize("of", [App("shop"), Worker(Client())])
def test_a_workflow_without_a_type_has_its_functions_name(of: App | Worker) -> None:
    @of.workflow
    async def bare(wf: Workflow, _: Any) -> int:
        return 1

    @of.workflow(version="2")
    async def empty(wf: Workflow, _: Any) -> int:
        return 2

    assert (bare.__name__, empty.__name__) == ("bare", "empty"), "the functions themselves"
    worker = AppWorker(of) if isinstance(of, App) else of
    assert set(worker._tasks) == {"wf/bare", "wf/empty", "wfv/2/empty"}
    with pytest.raises(TypeError, match="is an `async def`"):
        of.workflow(len)
    with pytest.raises(TypeError, match="is an `async def`"):
        of.workflow("other")(len)


async def two_inputs(wf: Workflow, a: int, b: int) -> None: ...
async def no_workflow() -> None: ...
async def keyword(wf: Workflow, *, a: int) -> None: ...


@pytest.mark.parametrize("function", [two_inputs, no_workflow, keyword])
def test_a_workflow_that_cannot_be_called_is_refused_where_it_is_decorated(function: Any) -> None:
    with pytest.raises(TypeError, match="is given a Workflow and one input"):
        App("shop").workflow(function)


@pytest.mark.parametrize("of", [App("shop"), Worker(Client())])
def test_a_task_without_a_topic_is_refused_and_not_dropped(of: App | Worker) -> None:
    def mail(job: Job) -> None: ...

    with pytest.raises(TypeError, match=r"task\('mail'\)"):
        of.task(mail)  # type: ignore[arg-type]


async def test_an_app_runs_workflows_beside_its_functions() -> None:
    app = App("shop")
    app.workflow("order", slots=2)(order)
    service = WorkflowService(MemoryRun("order", ["book"]))
    client = AsyncClient(queue_url="http://q", dag_url="http://d", transport=service)
    worker = AppWorker(app, client=client)
    service.deliver()
    running = asyncio.create_task(worker.run(signals=False))
    async with asyncio.timeout(20):
        await service.ended.wait()
    worker.stop()
    await running
    assert service.run.output == ["book", 1, "new"]


# The client


RUN = {"id": "order-17", "run": "d-1", "type": "order", "state": "running"}


def test_a_run_is_started_signalled_and_waited_for() -> None:
    ends = iter(["running", "succeeded"])

    def reply(method: str, path: str, body: Any) -> Any:
        if path.endswith("/signals"):
            return {"status": "accepted"}
        if "/wait" in path:
            return {**RUN, "state": next(ends), "output": {"label": "L"}}
        return {**RUN, "existing": False} if method == "POST" else RUN

    service = Service(reply)
    client = Client(dag_url="http://d", queue_url="http://q", namespace="shop", transport=service)
    run = client.workflows.start("order", {"items": []}, id="order-17", signal=("approval", 1), reuse="always")
    assert (run.id, run.run, run.existing) == ("order-17", "d-1", False)
    assert run.signal("approval", {"by": "ada"}).status == "accepted"
    ended = run.wait()
    assert ended.finished and ended.output == {"label": "L"}
    told = service.calls[0][2]["signal"].pop("id")
    assert told.startswith("sdk-"), "sent again the call is known again"
    assert service.calls[0][2].pop("request_id").startswith("sdk-")
    assert service.calls[0] == (
        "POST",
        "/v1/namespaces/shop/workflows",
        {
            "type": "order",
            "input": {"items": []},
            "id": "order-17",
            "reuse": "always",
            "signal": {"name": "approval", "data": 1},
        },
    )
    (signal,) = service.asked("/workflows/order-17/signals")
    assert (signal["name"], signal["data"]) == ("approval", {"by": "ada"}) and signal["id"].startswith("sdk-")


def test_an_id_that_is_empty_is_sent_as_it_is_and_not_replaced() -> None:
    service = Service(lambda _m, path, _b: {"status": "accepted"} if path.endswith("/signals") else RUN)
    client = Client(dag_url="http://d", queue_url="http://q", namespace="shop", transport=service)
    run = client.workflows.start("order", id="")
    run.signal("approval", id="")
    assert [body["id"] for _, _, body in service.calls] == ["", ""], "the service refuses it"


def test_each_verb_of_a_run_has_its_path() -> None:
    service = Service(lambda _m, path, _b: {"items": [RUN], "next_cursor": None} if "?" in path else RUN)
    client = Client(dag_url="http://d", namespace="shop", transport=service)
    run = client.workflows.get("a/b")
    run.show(), run.cancel("why"), run.terminate(), run.pause("why"), run.resume("mended")
    (found,) = client.workflows.list(type="order", stuck=True, limit=1)
    assert found.run == "d-1"
    base = "/v1/namespaces/shop/workflows"
    ids = [body.pop("id") for _, _, body in service.calls if body is not None]
    assert len(set(ids)) == 4, "each may be sent again, as the same call"
    assert [(method, path, body) for method, path, body in service.calls] == [
        ("GET", f"{base}/a%2Fb", None),
        ("POST", f"{base}/a%2Fb/cancel", {"reason": "why"}),
        ("POST", f"{base}/a%2Fb/terminate", {}),
        ("POST", f"{base}/a%2Fb/pause", {"reason": "why"}),
        ("POST", f"{base}/a%2Fb/resume", {"reason": "mended"}),
        ("GET", f"{base}?type=order&stuck=true&limit=1", None),
    ]


def test_all_runs_of_a_type_are_asked_to_end_and_one_that_is_gone_is_left() -> None:
    ids, base = ["a/b", "gone", "c"], "/v1/namespaces/shop/workflows"

    def reply(_method: str, path: str, _body: Any) -> Any:
        if "?" in path:
            return {"items": [{**RUN, "id": id} for id in ids], "next_cursor": None}
        return problem(404, "not_found") if "/gone/" in path else RUN

    service = Service(reply)
    client = Client(dag_url="http://d", namespace="shop", transport=service)
    assert client.workflows.cancel_all(type="order", stuck=True, reason="withdrawn") == 3
    (_, listed, _), *cancels = service.calls
    assert listed.startswith(f"{base}?type=order&state=running&stuck=true")
    assert len({body.pop("id") for _, _, body in cancels}) == 3
    assert cancels == [("POST", f"{base}/{id}/cancel", {"reason": "withdrawn"}) for id in ("a%2Fb", "gone", "c")]
    with pytest.raises(ValueError, match="say which"):
        client.workflows.cancel_all()


def test_a_history_is_read_page_by_page_and_replays() -> None:
    kept = MemoryRun("order", [])

    def reply(_method: str, path: str, _body: Any) -> Any:
        after = int(path.rpartition("=")[2])
        events = [event.body() for event in kept.events(after)[:2]]
        return {"events": events, "seen": kept.seen, "turn": 0, "more": after + 2 < len(kept)}

    for name in ("a", "b", "c"):
        kept.signal(name)
    client = Client(dag_url="http://d", namespace="shop", transport=Service(reply))
    history = client.workflows.get("order-17").history()
    assert [event["event"] for event in history["events"]] == [1, 2, 3, 4]
    assert replay(history, waits).is_waiting_for == []


async def waits(wf: Workflow, _: Any) -> None:
    await wf.receive("d")


async def test_refusals_are_errors() -> None:
    service = Service(lambda *_: problem(409, "id_in_use"))
    client = Client(dag_url="http://d", namespace="shop", transport=service)
    with pytest.raises(Conflict, match="id_in_use"):
        client.workflows.start("order", id="order-17")
    assert issubclass(NodeFailed, Exception)
