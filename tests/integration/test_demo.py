"""The demo as a person runs it; and its checks, which must notice what they are there for."""

import asyncio
import os
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from examples.demo import __main__ as demo
from examples.demo import measure
from examples.demo.trace import Delivery, Settled, Trace, TraceWriter, read
from headgate.wire import Dag, Edge, GraphNode, GraphView, NodeCounts
from services.local.errors import LocalError
from services.local.stack import ROOT

UPSTREAM = {"a": [], "b": ["a"], "c": ["a", "b"]}


@pytest.mark.usefixtures("new_interpreters")
async def test_demo_passes_its_checks_and_leaves_nothing(tmp_path: Path) -> None:
    process = await start_demo(tmp_path, "--workers", "2")
    try:
        async with asyncio.timeout(240):
            output, errors = await process.communicate()
        printed = output.decode()
        assert process.returncode == 0, printed + errors.decode()
        assert "FAILED" not in printed
        for row in ("nodes", "edges", "nodes/s", "last upstream ack to delivery, p99", "longest path"):
            assert any(line.startswith(f"  {row}  ") for line in printed.splitlines()), printed
        assert "589" in printed and "2,527" in printed and "29 nodes" in printed
        assert processes_of(tmp_path) == [] and list(tmp_path.iterdir()) == []
    finally:
        await end(process)


@pytest.mark.drawn(1)
@pytest.mark.usefixtures("new_interpreters")
@pytest.mark.parametrize("moment", ["Starting", "Build"])
async def test_interrupt_cleans_up(moment: str, tmp_path: Path) -> None:
    process = await start_demo(tmp_path)
    try:
        assert process.stdout is not None
        async with asyncio.timeout(240):
            while moment not in (line := (await process.stdout.readline()).decode()):
                assert line, "the demo ended"
            process.send_signal(signal.SIGINT)
            assert await process.wait() == 130
        assert processes_of(tmp_path) == [] and list(tmp_path.iterdir()) == []
    finally:
        await end(process)


def test_once_notices_a_second_delivery_and_a_missing_ack() -> None:
    trace = good_trace()
    assert measure.once(UPSTREAM, trace).passed
    trace.deliveries["b"].append(Delivery(9.0, "w"))
    del trace.acks["c"]
    assert measure.once(UPSTREAM, trace).faults == [
        "b: delivered 2 times, acked 1 times",
        "c: delivered 1 times, acked 0 times",
    ]


def test_order_notices_a_delivery_before_an_ack_or_an_external() -> None:
    trace = good_trace()
    assert measure.ordered(UPSTREAM, trace).passed
    trace.acks["b"] = [Settled(sent=5.5, answered=5.6)]
    trace.resolves["a"] = 2.0
    assert sorted(measure.ordered(UPSTREAM, trace).faults) == [
        "a was delivered before its external was resolved",
        "c was delivered before b was acked",
    ]


def test_report_of_a_failed_check_fails() -> None:
    passing = report(measure.Check("results"))
    failing = report(measure.Check("results", ["c: 1, not 2"]))
    assert passing.passed and not failing.passed
    assert passing.ready_to_delivery_s == pytest.approx([0.5, 0.25])
    assert passing.quantile_ms(0.5) == pytest.approx(500)
    assert (passing.longest, passing.critical.nodes, passing.critical.seconds) == (3, ["a", "b", "c"], 6.0)
    assert passing.elapsed_s == 7.0


def test_demo_fails_when_a_check_has_failed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    faults = [f"{number}: wrong" for number in range(5)]

    async def play(_screen: object, _workers_count: int) -> list[measure.Report]:
        return [report(measure.Check("results")), report(measure.Check("results", faults))]

    monkeypatch.setattr(demo, "play", play)
    assert demo.main([]) == 1
    printed = capsys.readouterr().out
    assert "FAILED  title: results" in printed and "0: wrong" in printed and "and 2 more" in printed


def test_demo_says_what_could_not_be_started(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def play(_screen: object, _workers_count: int) -> list[measure.Report]:
        raise LocalError("no Postgres here")

    monkeypatch.setattr(demo, "play", play)
    assert demo.main([]) == 1
    assert capsys.readouterr().out == "demo: no Postgres here\n"


def test_dag_that_did_not_succeed_fails() -> None:
    dag = a_dag().model_copy(update={"state": "failed"})
    assert measure.ended_well(dag).faults == ["the DAG failed"]


def test_differences_name_what_is_wrong_missing_or_too_much() -> None:
    assert demo.differences({"a": 1, "b": 2}, {"a": 1, "c": 3}) == ["b: 2, not None", "c: None, not 3"]


def test_traces_of_several_processes_are_put_together(tmp_path: Path) -> None:
    with TraceWriter(tmp_path / "one.jsonl") as one, TraceWriter(tmp_path / "two.jsonl") as two:
        two.write("acked", 2.0, item="i", status="acked", answered=2.5)
        two.write("acked", 3.0, item="i", status="lease_lost", answered=3.5)
        one.write("delivered", 1.0, dag="d", node="a", item="i", worker="w")
        one.write("resolving", 0.5, dag="d", node="a")
    found = read(tmp_path)["d"]
    assert found == Trace({"a": [Delivery(1.0, "w")]}, {"a": [Settled(2.0, 2.5)]}, {"a": 0.5})


def good_trace() -> Trace:
    return Trace(
        deliveries={"a": [Delivery(1.0, "w")], "b": [Delivery(2.5, "w")], "c": [Delivery(5.25, "v")]},
        acks={"a": [Settled(2.0, 2.1)], "b": [Settled(5.0, 5.1)], "c": [Settled(6.5, 7.0)]},
    )


def report(results: measure.Check) -> measure.Report:
    nodes = [GraphNode(key=key, state="succeeded", topic="t") for key in UPSTREAM]
    edges = [Edge(upstream=other, downstream=key) for key, others in UPSTREAM.items() for other in others]
    graph = GraphView(id="d", state="succeeded", nodes=nodes, edges=edges)
    return measure.measure("title", a_dag(), graph, good_trace(), began=0.0, results=results)


def a_dag() -> Dag:
    return Dag(
        id="d",
        namespace="default",
        state="succeeded",
        nodes=NodeCounts(total=3, succeeded=3),
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
    )


async def start_demo(tmp_path: Path, *arguments: str) -> asyncio.subprocess.Process:
    """The demo with its temporary directory in ours; every process of it has that in its environment."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "examples.demo",
        *arguments,
        cwd=ROOT,
        # What the shell says of another stack must not reach this one: none of these values could work.
        env={
            **os.environ,
            "TMPDIR": str(tmp_path),
            "HEADGATE_TOKENS_FILE": "/nowhere",
            "HEADGATE_QUEUE_SHARDS": "x",
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()
        await process.wait()


def processes_of(directory: Path) -> list[int]:
    """Processes that were started with this temporary directory."""
    wanted = f"TMPDIR={directory}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if wanted in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found
