"""Longer ranges of `GET /v1/history`, from a Prometheus: what is asked there, and what becomes of it."""

import asyncio
import json
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from services.queue.duties.gauges import STATES
from shared.console.longer import LongHistory, expression
from shared.console.merging import METRICS
from shared.errors import Unavailable
from tests.support import apps
from tests.support.databases import Database
from tests.support.ports import free_port

# What short ranges tell of single topics, longer ones do.
TOPICS = {*STATES, "oldest_ready_age_s", "enqueued_per_s", "dequeued_per_s", "acked_per_s"}
DAY = {"span_s": 86_400, "step_s": 600}


class Told:
    """A server that answers as Prometheus does, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, str]] = []
        self.status = "200 OK"
        self.labels: list[dict[str, str]] = [{}]
        self.body: bytes | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = int(head.lower().partition("content-length: ")[2].split("\r\n")[0])
        form = {name: values[0] for name, values in parse_qs((await reader.readexactly(length)).decode()).items()}
        self.asked.append(form)
        begin, step = float(form["start"]), float(form["step"])
        points = [[begin, "1"], [begin + step, "NaN"], [begin + 2 * step, "2.5"]]
        result = [{"metric": labels, "values": points} for labels in self.labels]
        body = json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}}).encode()
        body = body if self.body is None else self.body
        writer.write(f"HTTP/1.1 {self.status}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()
        writer.close()


@pytest.fixture
async def told() -> AsyncIterator[tuple[Told, str]]:
    told, port = Told(), free_port()
    async with await asyncio.start_server(told.serve, "127.0.0.1", port):
        yield told, f"http://reader:secret@127.0.0.1:{port}"


async def test_a_range_that_no_process_remembers_comes_from_prometheus(
    database: Database, redis_url: str, told: tuple[Told, str]
) -> None:
    prometheus, url = told
    async with apps.queue_service(database, redis_url, HEADGATE_PROMETHEUS_URL=url) as service:
        assert (await service.client.get("/v1/me")).json()["history_s_max"] > 86_400
        near = (await service.client.get("/v1/history", params={"metrics": "ready", "span_s": 3_600})).json()
        assert near["source"] == "processes" and prometheus.asked == []
        found = (await service.client.get("/v1/history", params={"metrics": "ready", **DAY})).json()
        assert found["source"] == "prometheus" and found["points"] == 144 and found["step_s"] == 600
        [line] = found["series"]
        assert line["values"][:3] == [1, None, 2.5] and len(line["values"]) == 144 and line["shard"] is None
        assert [mark["kind"] for mark in found["marks"]] == ["start"], "what processes saw stays"
        [asked] = prometheus.asked
        assert 'headgate_items{job="headgate-queue",state="ready"}' in asked["query"]
        prometheus.labels = [{"shard": "1"}, {"shard": "3"}]
        by_shard = await service.client.get("/v1/history", params={"metrics": "acked_per_s", "by": "shard", **DAY})
        assert [line["shard"] for line in by_shard.json()["series"]] == [1, 3]
        prometheus.status = "503 Service Unavailable"
        refused = await service.client.get("/v1/history", params={"metrics": "ready", **DAY})
        assert refused.status_code == 503 and "secret" not in refused.text and "refuses (503)" in refused.text


@pytest.mark.parametrize(
    "body",
    [
        b"<html>log in</html>",
        b"[]",
        b"[" * 500_000,
        b'{"data": {"result": [5]}}',
        b'{"data": {"result": [{"metric": {}, "values": [[1, "x"]]}]}}',
        b'{"data": {"result": [{"metric": {}, "values": [["a", null]]}]}}',
        b'{"data": {"result": [{"metric": {}, "values": [[1e999, "1"]]}]}}',
        b'{"data": {"result": [{"metric": [], "values": []}]}}',
    ],
)
async def test_what_is_no_answer_of_a_prometheus_is_none(told: tuple[Told, str], body: bytes) -> None:
    prometheus, url = told
    prometheus.body = body
    longer = LongHistory("queue", url)
    with pytest.raises(Unavailable, match="does not answer"):
        await longer.lines(["ready"], "shard", {}, begins_at_s=0.0, step_s=60.0, points=9, lines_max=9)
    await longer.close()


async def test_an_answer_that_comes_byte_by_byte_keeps_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.console.longer._ANSWER_S", 0.3)
    port = free_port()

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
        for _ in range(600):
            writer.write(b" ")
            await asyncio.sleep(0.05)
        writer.close()

    async with await asyncio.start_server(drip, "127.0.0.1", port):
        longer = LongHistory("queue", f"http://127.0.0.1:{port}")
        asked = longer.lines(list(METRICS)[:9], "all", {}, begins_at_s=0.0, step_s=60.0, points=9, lines_max=9)
        with pytest.raises(Unavailable, match="does not answer"):
            await asyncio.wait_for(asked, timeout=5)
        await longer.close()


async def test_without_a_prometheus_a_range_ends_where_memory_does(database: Database, redis_url: str) -> None:
    nowhere = "http://127.0.0.1:9"
    for url, status in ((None, 200), (nowhere, 503)):
        async with apps.queue_service(database, redis_url, HEADGATE_PROMETHEUS_URL=url) as service:
            answer = await service.client.get("/v1/history", params={"metrics": "ready", **DAY})
            assert answer.status_code == status, answer.text
            if status == 200:
                assert answer.json()["points"] * answer.json()["step_s"] <= 3_600
            else:
                assert "does not answer" in answer.json()["detail"]


@pytest.mark.parametrize("by", ["all", "shard", "topic"])
def test_every_expression_is_one(by: str, tmp_path: Path) -> None:
    where = {"job": "headgate-queue", "shard": "3", "namespace": 'a"b', "topic": "t"}
    made = {metric: expression(metric, by, where if by == "topic" else {"job": "j"}, 600.0) for metric in METRICS}
    rules = [{"record": f"of:{metric}", "expr": text} for metric, text in made.items() if text is not None]
    told = TOPICS if by == "topic" else set(METRICS)
    assert {name for name, text in made.items() if text is not None} == told
    if shutil.which("promtool") is None:
        pytest.skip("no promtool here: apt-get install prometheus")
    file = tmp_path / "rules.yaml"
    file.write_text(json.dumps({"groups": [{"name": "of", "rules": rules}]}))
    said = subprocess.run(["promtool", "check", "rules", str(file)], capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stdout + said.stderr


async def newest(service: apps.Service, **query: Any) -> float | None:
    answer = (await service.client.get("/v1/history", params=query)).json()
    values = answer["series"][0]["values"] if answer.get("series") else []
    return next((value for value in reversed(values) if value is not None), None)


async def test_a_real_prometheus_tells_what_the_services_count(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("no Prometheus here: apt-get install prometheus")
    port = free_port()
    quick = {"metrics_interval_s": 0.1, "HEADGATE_PROMETHEUS_URL": f"http://127.0.0.1:{port}"}
    async with apps.queue_service(database, redis_url, **quick) as service:
        config = tmp_path / "prometheus.yml"
        target = service.url.removeprefix("http://")
        jobs = [{"job_name": "headgate-queue", "static_configs": [{"targets": [target]}]}]
        config.write_text(json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": jobs}))
        running = await asyncio.create_subprocess_exec(
            program,
            f"--config.file={config}",
            f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            # The library's registry is the process's: other tests' topics stand in it, too.
            items: dict[str, Any] = {"items": [{"topic": "only.here"}] * 3}
            await service.client.post("/v1/namespaces/default/enqueue", json=items)
            span = {"span_s": 7_200, "step_s": 10}
            async with asyncio.timeout(120):
                while await newest(service, metrics="ready", namespace="default", topic="only.here", **span) != 3:
                    await asyncio.sleep(0.3)
                while not await newest(service, metrics="db_latency_ms_p99", **span):
                    await asyncio.sleep(0.3)
                only = {"namespace": "default", "topic": "only.here"}
                while not await newest(service, metrics="enqueued_per_s", **only, **span):
                    await service.client.post("/v1/namespaces/default/enqueue", json=items)
                    await asyncio.sleep(0.3)
        finally:
            running.kill()
            await running.wait()
