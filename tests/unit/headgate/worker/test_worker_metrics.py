"""What a worker tells Prometheus, and with which traces."""

import sys
from typing import Any

import httpx
import pytest

from headgate import Fail, Job
from headgate._worker.worker import Worker
from tests.support.ports import free_port
from tests.unit.headgate.client.test_client import leased
from tests.unit.headgate.worker.test_worker import Queue, working

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
OPEN = {"accept": "application/openmetrics-text"}


@pytest.mark.parametrize(
    "where", [{"headers": {"traceparent": PARENT}}, {"payload": {"trace": {"traceparent": PARENT}}}]
)
async def test_times_of_handlers_are_told_with_the_trace_of_the_job(where: dict[str, Any]) -> None:
    port, told = free_port(), []

    async def handler(job: Job) -> str:
        if job.id == "bad":
            raise Fail("no")
        return "good"

    queue = Queue(leased("bad", **where), leased("good"))

    async def ends() -> None:
        await queue.heard("ack", 1)
        await queue.heard("nack", 1)
        async with httpx.AsyncClient(trust_env=False) as client:
            told.append((await client.get(f"http://127.0.0.1:{port}/metrics", headers=OPEN)).text)

    await working(queue, handler, ends, metrics_port=port)
    [text] = told
    assert 'headgate_worker_slots{topic="t"} 4.0' in text and 'headgate_worker_running{topic="t"} 0.0' in text
    assert 'headgate_worker_job_seconds_count{outcome="ack",topic="t"} 1.0' in text
    [exemplar] = [line for line in text.splitlines() if "trace_id" in line]
    assert 'outcome="nack"' in exemplar and f'# {{trace_id="{TRACE}"}}' in exemplar
    with pytest.raises(httpx.ConnectError):  # with the worker its port has ended
        httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False)


@pytest.mark.parametrize("parent", ["", "x", PARENT + "x", PARENT.upper(), 7, {"a": 1}])
async def test_what_is_no_trace_is_none(parent: Any) -> None:
    port, told = free_port(), []
    queue = Queue(leased("a", payload={"trace": {"traceparent": parent}}))

    async def ends() -> None:
        await queue.heard("ack", 1)
        async with httpx.AsyncClient(trust_env=False) as client:
            told.append((await client.get(f"http://127.0.0.1:{port}/metrics", headers=OPEN)).text)

    async def handler(_: Job) -> None:
        return None

    await working(queue, handler, ends, metrics_port=port)
    assert "job_seconds_count" in told[0] and "trace_id" not in told[0]


def test_a_port_is_one_processs_and_needs_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="metrics_port"):
        Worker(processes=2, metrics_port=1)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(RuntimeError, match=r"headgate\[prometheus\]"):
        Worker(metrics_port=1)
