"""Each public method of both clients: what it sends is what the documents of the services take, and it tells what
they answer; a coroutine's client does what a thread's does."""

import dataclasses
import inspect
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel

from headgate import AsyncClient, Client, Leased, errors
from headgate._client import aio, blocking
from headgate._client.aio.handle import AsyncDagHandle
from headgate._client.aio.workflows import AsyncWorkflowHandle
from headgate._client.blocking.handle import DagHandle
from headgate._client.blocking.workflows import WorkflowHandle
from headgate._http.transport import RetryPolicy
from tests.support.documented import TIME, UUID, Documented, example
from tests.unit.headgate.client import calls, dag_calls, run_calls
from tests.unit.headgate.client.calls import SHARDS, Called
from tests.unit.headgate.fakes import Service, problem

CALLS = [*calls.CALLS, *dag_calls.CALLS, *run_calls.CALLS]
KINDS: list[Any] = [Client, AsyncClient]
HANDLES = (DagHandle, AsyncDagHandle, WorkflowHandle, AsyncWorkflowHandle)


def made(kind: Any, transport: Any) -> Any:
    retry = RetryPolicy(attempts_max=1)
    return kind(queue_url="http://q", dag_url="http://d", namespace="mine", transport=transport, retry=retry)


def places(client: Any, ns: str) -> dict[str, Any]:
    """What has public methods."""
    dag = client.dag("d", namespace=ns)
    held = {name: part for name, part in vars(client).items() if hasattr(part, "_client")}
    run = client.workflows.get("order-1", namespace=ns)
    return {"client": client, "dag": dag, "values": dag.values, "run": run, **held}


async def told(client: Any, call: Called, ns: str) -> Any:
    """What a call answers, in plain values."""
    place, _, verb = call.name.partition(".")
    method = getattr(places(client, ns)[place], verb)
    takes_ns = "namespace" in inspect.signature(method).parameters
    answer = method(*call.given, **call.more, **({"namespace": ns} if takes_ns and ns != "mine" else {}))
    if inspect.isasyncgen(answer):
        return plain([event async for event in answer])
    if inspect.isgenerator(answer):
        return plain(list(answer))
    return plain(await answer if inspect.isawaitable(answer) else answer)


def plain(value: Any) -> Any:
    """As JSON has it, of what was in an answer."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True, exclude_unset=True)
    if isinstance(value, HANDLES):
        names = ("id", "run", "existing", "same")
        fields = {name: getattr(value, name) for name in names if hasattr(value, name)}
        return {"type": type(value).__name__.removeprefix("Async"), "ns": value.namespace, **fields}
    if isinstance(value, Leased):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if hasattr(value, "_asdict"):
        return {name: plain(part) for name, part in value._asdict().items()}
    return [plain(each) for each in value] if isinstance(value, list) else value


def filled(wanted: Any, answers: list[Any], ns: str) -> Any:
    """What should be told, with the parts of the answer in it."""
    if isinstance(wanted, dict):
        return {name: filled(part, answers, ns) for name, part in wanted.items()}
    if wanted == "{ns}":
        return ns
    if not (isinstance(wanted, str) and wanted.startswith("/")):
        return wanted
    found = answers[-1]
    for step in filter(None, wanted.split("/")):
        found = found[int(step) if isinstance(found, list) else step]
    return found


def below(sent: list[tuple[str, Any]], ns: str) -> list[tuple[str, Any]]:
    """Calls with whole paths."""
    words = [(line.split(" "), body) for line, body in sent]
    return [
        (" ".join((*verb, path if path.startswith("/v1") else f"/v1/namespaces/{ns}{path}")), body)
        for (*verb, path), body in words
    ]


def idents() -> list[Any]:
    return [pytest.param(call, id=f"{call.name}-{number}") for number, call in enumerate(CALLS)]


@pytest.mark.parametrize("ns", ["mine", "other"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("call", idents())
async def test_a_call_is_one_that_the_documents_describe_and_tells_what_they_answer(
    call: Called, kind: Any, ns: str
) -> None:
    service = Documented(call.changed)
    answer = await told(made(kind, service), call, ns)
    assert service.calls == below(call.sent, ns)
    assert answer == filled(call.told, service.answers, ns)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("call", idents())
async def test_a_call_that_is_refused_is_an_error_and_nothing_else_is_sent(call: Called, kind: Any) -> None:
    service = Service(lambda *_: problem(404, "not_found", detail="there is none"))
    if call.sent:
        with pytest.raises(errors.NotFound, match="there is none"):
            await told(made(kind, service), call, "mine")
    else:
        await told(made(kind, service), call, "mine")
    # Where shards are hidden, the service makes the ids; and where a value is not there, the DAG may be.
    further = call.sent[0] == SHARDS if call.sent else False
    assert len(service.calls) <= min(len(call.sent), 1) + (further or call.name.startswith("values"))


@pytest.mark.parametrize("kind", KINDS)
async def test_no_public_method_is_left_out(kind: Any) -> None:
    there = {
        f"{place}.{name}"
        for place, thing in places(made(kind, Documented()), "mine").items()
        for name, _ in inspect.getmembers(type(thing), inspect.isfunction)
        if not name.startswith("_")
    }
    assert there - {"client.close", "client.aclose"} == {call.name for call in CALLS}


async def test_a_client_that_is_left_is_closed() -> None:
    blocking, waiting = Documented(), Documented()
    with made(Client, blocking) as client:
        client.shards()
        assert not blocking.is_closed
    async with made(AsyncClient, waiting) as other:
        await other.shards()
        assert not waiting.is_closed
    assert blocking.is_closed and waiting.is_closed


async def test_handles_say_what_they_are_of() -> None:
    for kind, start in ((Client, ""), (AsyncClient, "Async")):
        client = made(kind, Documented())
        assert repr(client.dag("d")) == f"{start}DagHandle('d', namespace='mine')"
        assert repr(client.workflows.get("w", namespace="n")) == f"{start}WorkflowHandle('w', namespace='n')"


async def asked(kind: Any, reply: Any, name: str, *given: Any, **more: Any) -> tuple[Any, list[tuple[str, str]]]:
    """What a call comes to, also where that is an error, and what was sent for it."""
    service = Service(reply)
    try:
        answer = await told(made(kind, service), Called(name, given, more, [], None), "mine")
    except Exception as error:
        answer = error
    return answer, [(method, path.removeprefix("/v1/namespaces/mine")) for method, path, _ in service.calls]


def one_by_one(*answers: Any) -> Any:
    left = list(answers)
    return lambda *_: left.pop(0)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_job_s_lines_are_read_over_all_pages(kind: Any) -> None:
    lines = [{"at": TIME, "attempt": 1, "level": "info", "text": text} for text in "abc"]
    pages = one_by_one(
        {"items": lines[:2], "next_cursor": "c", "tail": "x"},
        {"items": lines[2:], "next_cursor": None, "tail": "y"},
    )
    answer, sent = await asked(kind, pages, "logs.all", UUID)
    assert answer == lines
    assert [path for _, path in sent] == [
        f"/items/{UUID}/logs?limit=1000",
        f"/items/{UUID}/logs?cursor=c&limit=1000",
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("name", "path"), [("dag.wait", "/dags/d/wait"), ("run.wait", "/workflows/order-1/wait")])
async def test_a_wait_goes_on_until_the_end_or_for_as_long_as_it_may(
    kind: Any, name: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = example("dag", {"$ref": f"#/components/schemas/{'Dag' if 'dag' in name else 'WorkflowRun'}"}, "")
    running["state"] = "running"
    ended = {**running, "state": "failed"}
    answer, sent = await asked(kind, one_by_one(running, running, ended), name)
    assert (answer, sent) == (ended, [("GET", f"{path}?timeout_s=30")] * 3)
    now_s = 0.0

    def waits(_method: str, path: str, _body: Any) -> Any:
        nonlocal now_s
        now_s += float(path.partition("=")[2])
        assert now_s < 100, "it waits for ever"
        return running

    for module in (aio.handle, aio.workflows, blocking.handle, blocking.workflows):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now_s))
    answer, sent = await asked(kind, waits, name, 45.5)
    assert (answer, sent) == (running, [("GET", f"{path}?timeout_s={part_s}") for part_s in ("30", "15.5")])


@pytest.mark.parametrize("kind", KINDS)
async def test_a_key_that_no_dag_has_is_an_error_that_names_it(kind: Any) -> None:
    answer, _ = await asked(kind, lambda *_: {"items": [], "next_cursor": None}, "client.dag_by_key", "k")
    assert isinstance(answer, errors.NotFound)
    assert answer.status == 404 and "no DAG has the key 'k' in namespace 'mine'" in str(answer)


@pytest.mark.parametrize("kind", KINDS)
async def test_many_runs_are_cancelled_all_or_none(kind: Any) -> None:
    """Not all for want of a word, nor those alone whose shards answer; that one has gone is no error."""
    run = example("dag", {"$ref": "#/components/schemas/WorkflowRun"}, "")
    page = {"items": [{**run, "id": "a"}, {**run, "id": "b"}], "next_cursor": None}
    answer, sent = await asked(kind, None, "workflows.cancel_all", reason="no word of which")
    assert isinstance(answer, ValueError) and sent == []
    answer, sent = await asked(kind, lambda *_: {**page, "away": [7]}, "workflows.cancel_all", type="t")
    assert isinstance(answer, errors.Unavailable) and "shard 7" in str(answer)
    assert [method for method, _ in sent] == ["GET"]
    told_of: list[tuple[int, int]] = []
    replies = one_by_one(page, problem(404, "not_found"), run)
    more = {"type": "t", "progress": lambda *done: told_of.append(done)}
    answer, sent = await asked(kind, replies, "workflows.cancel_all", **more)
    assert (answer, told_of) == (2, [(1, 2), (2, 2)])
    assert [path for _, path in sent[1:]] == ["/workflows/a/cancel", "/workflows/b/cancel"]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_value_that_was_written_meanwhile_is_changed_anew(kind: Any) -> None:
    value = {"key": "k", "updated_at": TIME, "value": 5, "version": 2}
    none, taken = problem(404, "not_found"), problem(409, "version_conflict")
    dag = example("dag", {"$ref": "#/components/schemas/Dag"}, "")
    seen: list[Any] = []
    replies = one_by_one(none, dag, taken, value, value)
    answer, sent = await asked(
        kind, replies, "values.update", "k", lambda found: seen.append(found) or found + 1, initial=0
    )
    assert (answer, seen) == (6, [0, 5])
    assert [method for method, _ in sent] == ["GET", "GET", "PUT", "GET", "PUT"]
    answer, _ = await asked(kind, one_by_one(none, dag), "values.get", "k", "default")
    assert answer == "default"
