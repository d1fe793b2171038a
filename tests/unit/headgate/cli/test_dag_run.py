"""`headgate dag run`: real commands in the order of a DAG, and what becomes of both when it is told to stop."""

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from headgate import errors
from headgate._cli import commands
from headgate._cli.dag import local_run
from headgate._client.aio.client import AsyncClient
from tests.unit.headgate.cli.test_cli import DAG
from tests.unit.headgate.cli.test_shell import END_S, gone
from tests.unit.headgate.client.test_client import leased
from tests.unit.headgate.conftest import ONCE, Run
from tests.unit.headgate.fakes import Service


class Local(Service):
    """A queue and DAG service for `dag run`: nodes become ready when their upstreams are acked."""

    def __init__(self) -> None:
        super().__init__(self.serve)
        self.nodes: dict[str, Any] = {}
        self.states: dict[str, str] = {}
        self.errors: dict[str, str] = {}
        self.changed = asyncio.Event()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        settles = request.url.path.endswith("/dequeue") and b'"settle"' in await request.aread()
        if request.url.path.endswith("/dequeue") and not settles and not self.ready():
            self.changed.clear()
            await self.changed.wait()
        if request.url.path.endswith("/wait") and self.state() == "running":
            await asyncio.sleep(0.002)
        return await super().handle_async_request(request)

    def ready(self) -> list[str]:
        return [
            key
            for key, node in self.nodes.items()
            if self.states[key] == "blocked"
            and all(self.states[upstream] == "succeeded" for upstream in node.get("upstream", []))
        ]

    def state(self) -> str:
        if "failed" in self.states.values():
            return "failed"
        return "succeeded" if set(self.states.values()) == {"succeeded"} else "running"

    def serve(self, _method: str, path: str, body: Any) -> Any:
        action = path.split("?", maxsplit=1)[0].rsplit("/", 1)[1]
        if action == "dags":
            self.nodes = {node["key"]: node for node in body["nodes"]}
            self.states = dict.fromkeys(self.nodes, "blocked")
        if action == "dequeue":
            settle = body.get("settle", {})
            results = {verb: self.end(verb[:-1], items)["results"] for verb, items in settle.items()}
            found = self.ready()[: body["topics"][0]["count"]]
            self.states.update(dict.fromkeys(found, "released"))
            items = [leased(key, dag={"id": "d1", "node": key, "generation": 1}) for key in found]
            return {"items": items} | ({"results": {"acks": [], "nacks": [], **results}} if settle else {})
        if action in ("ack", "nack"):
            return self.end(action, body["items"])
        if action == "nodes":
            failed = [key for key, state in self.states.items() if state == "failed"]
            times = {"item_id": "i", "topic": "t", "created_at": DAG["created_at"], "state": "failed"}
            rows = [{"key": key, "error": self.errors.get(key), **times} for key in failed]
            return {"items": rows, "next_cursor": None}
        finished = sum(state == "succeeded" for state in self.states.values())
        counts = {"total": len(self.nodes), "succeeded": finished}
        return {**DAG, "state": self.state(), "nodes": counts}

    def end(self, action: str, items: list[Any]) -> Any:
        for item in items:
            self.states[item["id"]] = "succeeded" if action == "ack" else "failed"
            self.errors[item["id"]] = item.get("error", "")
        self.changed.set()
        return {"results": [{"id": item["id"], "status": "acked"} for item in items]}


@pytest.mark.parametrize("fails", [False, True])
def test_dag_run_runs_commands_in_order_and_never_from_the_queue(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fails: bool
) -> None:
    local = Local()
    monkeypatch.setattr(
        commands,
        "async_client_of",
        lambda _args: AsyncClient(queue_url="http://q", dag_url="http://d", transport=local, retry=ONCE),
    )
    log = tmp_path / "log"
    nodes = [
        {"key": "first", "run": f"echo $HEADGATE_NODE >> {log}"},
        {"key": "gate", "upstream": ["first"]},
        {"key": "last", "run": f"echo last >> {log}; echo bye; exit {3 if fails else 0}", "upstream": ["gate"]},
    ]
    file = tmp_path / "run.json"
    file.write_text(json.dumps({"name": "x", "nodes": nodes}))
    code, _, err = run("dag", "run", str(file), "--slots", "2")
    assert log.read_text().split() == ["first", "last"]
    assert code == (1 if fails else 0)
    assert ("last failed: bye" in err) == fails
    assert local.errors["last"] == ("exit code 3\nbye\n" if fails else "")
    assert all("run" not in node and "payload" not in node for node in local.nodes.values())
    assert len({node["topic"] for node in local.nodes.values()}) == 1
    assert {node["max_attempts"] for node in local.nodes.values()} == {1}


@pytest.mark.parametrize("spec", [{}, {"nodes": "x"}, {"nodes": [1]}, {"nodes": [{"key": "a", "run": ["ls"]}]}])
def test_dag_run_refuses_files_of_another_form(spec: Any) -> None:
    with pytest.raises(errors.Invalid):
        local_run.prepared(spec)


def test_nodes_for_other_workers_keep_their_topic() -> None:
    dag, commands, topic = local_run.prepared(
        {"nodes": [{"key": "a", "topic": "theirs"}, {"key": "b", "run": "true", "topic": "ignored"}]}
    )
    assert (dag.nodes["a"].topic, dag.nodes["b"].topic) == ("theirs", topic)
    assert commands == {"b": "true"}


class Stoppable(Local):
    """May be cancelled; a create may take until the test lets it end."""

    def __init__(self) -> None:
        super().__init__()
        self.is_cancelled = False
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.may_end.set()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/dags"):
            self.begun.set()
            await asyncio.to_thread(self.may_end.wait, END_S)
        return await super().handle_async_request(request)

    def serve(self, method: str, path: str, body: Any) -> Any:
        self.is_cancelled = self.is_cancelled or path.endswith("/cancel")
        return super().serve(method, path, body)

    def end(self, action: str, items: list[Any]) -> Any:
        for item in items:
            if item.get("costs_attempt") is False:
                self.states[item["id"]] = "blocked"
                return {"results": [{"id": each["id"], "status": "requeued"} for each in items]}
        return super().end(action, items)


@pytest.fixture
def stoppable(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stoppable]:
    local = Stoppable()
    monkeypatch.setattr(
        commands,
        "async_client_of",
        lambda _args: AsyncClient(queue_url="http://q", dag_url="http://d", transport=local, retry=ONCE),
    )
    # One is ignored where the tests run under nohup, the other where a shell runs them in the background.
    wanted = {signal.SIGHUP: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
    before = {number: signal.signal(number, handler) for number, handler in wanted.items()}
    yield local
    for number, handler in before.items():
        signal.signal(number, handler)


def has_text(file: Path) -> bool:
    """Whether it is there and written."""
    return file.exists() and bool(file.read_text())


def soon(wanted: Any, number: int) -> threading.Thread:
    """Send this process a signal once `wanted` is so."""

    def send() -> None:
        ends_at = time.monotonic() + END_S
        while not wanted() and time.monotonic() < ends_at:
            time.sleep(0.005)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("number", "expected"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)]
)
def test_a_signal_ends_the_commands_and_cancels_the_dag(
    run: Run, stoppable: Stoppable, tmp_path: Path, number: int, expected: int
) -> None:
    child, file = tmp_path / "child", tmp_path / "dag.json"
    node = {"key": "slow", "run": f"sleep 600 & echo $! > {child}; wait"}
    left = {"key": "left", "run": f"sleep 600 & echo $! > {child}.left"}
    file.write_text(json.dumps({"nodes": [node, left]}))
    sending = soon(lambda: stoppable.states.get("left") == "succeeded" and has_text(child), number)
    code, _, _ = run("dag", "run", str(file), "--slots", "2")
    sending.join(END_S)
    assert (code, stoppable.is_cancelled) == (expected, True)
    gone(int(child.read_text()))
    gone(int(Path(f"{child}.left").read_text()))


def test_a_signal_while_the_dag_is_submitted_leaves_none_behind(
    run: Run, stoppable: Stoppable, tmp_path: Path
) -> None:
    """Whether the create arrived is known when it is answered: then there is a DAG to be cancelled."""
    file = tmp_path / "dag.json"
    file.write_text(json.dumps({"nodes": [{"key": "a", "run": "true"}]}))
    stoppable.may_end.clear()
    sending = soon(stoppable.begun.is_set, signal.SIGTERM)
    threading.Thread(target=lambda: (sending.join(END_S), stoppable.may_end.set()), daemon=True).start()
    code, _, _ = run("dag", "run", str(file))
    assert (code, stoppable.is_cancelled) == (143, True)


def test_what_commands_left_running_ends_with_the_dag(run: Run, stoppable: Stoppable, tmp_path: Path) -> None:
    child, file = tmp_path / "child", tmp_path / "dag.json"
    server = {"key": "server", "run": f"sleep 600 & echo $! > {child}"}
    test = {"key": "test", "run": f"kill -0 $(cat {child})", "upstream": ["server"]}
    file.write_text(json.dumps({"nodes": [server, test]}))
    assert run("dag", "run", str(file))[0] == 0
    gone(int(child.read_text()))
