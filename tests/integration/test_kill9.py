"""kill -9 of each process in the middle of a DAG: nothing is lost, nothing runs early, every node succeeds."""

import asyncio
import itertools
import os
import random
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.local.postgres import DURABLE, VOLATILE
from services.local.settings import LocalSettings
from services.local.stack import Stack
from tests.support.ports import free_port

LAYERS, WIDTH = 12, 8
NODES = LAYERS * WIDTH
_NAMESPACE = "/v1/namespaces/kill9"


@dataclass
class History:
    """What the consumers did: when each node was delivered, and when an ack of it was first sent."""

    delivered: dict[str, list[float]] = field(default_factory=dict)
    ack_sent: dict[str, float] = field(default_factory=dict)
    acked: int = 0
    half: asyncio.Event = field(default_factory=asyncio.Event)

    def violations(self, upstreams: dict[str, list[str]]) -> list[str]:
        """Nodes that were delivered before all their upstreams' acks had been sent."""
        return [
            f"{key} before {up}"
            for key, times in self.delivered.items()
            for up in upstreams[key]
            if min(times) < self.ack_sent.get(up, float("inf"))
        ]


def layered(seed: int) -> dict[str, list[str]]:
    """A layered graph: upstreams by key, each node below two of the layer before."""
    rng = random.Random(seed)
    layers = [[f"{layer}.{i}" for i in range(WIDTH)] for layer in range(LAYERS)]
    graph: dict[str, list[str]] = {key: [] for key in layers[0]}
    for above, below in itertools.pairwise(layers):
        graph |= {key: rng.sample(above, 2) for key in below}
    return graph


async def consume(stack: Stack, topic: str, history: History) -> None:
    """Dequeue and ack for ever; a service that is away is asked again."""
    async with httpx.AsyncClient(base_url=stack.queue_url, timeout=10.0) as client:
        while True:
            try:
                body: dict[str, Any] = {"topics": [{"topic": topic, "count": 4}], "wait_s": 1}
                answer = await client.post(f"{_NAMESPACE}/dequeue", json=body)
                items = answer.json()["items"] if answer.is_success else []
                for item in items:
                    history.delivered.setdefault(item["dag"]["node"], []).append(time.monotonic())
                for item in items:
                    history.ack_sent.setdefault(item["dag"]["node"], time.monotonic())
                acks = [{"id": item["id"], "lease_token": item["lease_token"]} for item in items]
                if acks:
                    answer = await client.post(f"{_NAMESPACE}/ack", json={"items": acks})
                    results = answer.json()["results"] if answer.is_success else []
                    history.acked += sum(result["status"] == "acked" for result in results)
                if history.acked >= NODES // 2:
                    history.half.set()
            except httpx.TransportError:
                await asyncio.sleep(0.05)


async def until_finished(stack: Stack, dag_id: str) -> dict[str, Any]:
    """The DAG once it has ended; asked again while the service is away."""
    async with asyncio.timeout(120), httpx.AsyncClient(base_url=stack.dag_url, timeout=10.0) as client:
        while True:
            try:
                answer = await client.get(f"{_NAMESPACE}/dags/{dag_id}/wait", params={"timeout_s": 2})
                if answer.is_success and answer.json()["finished_at"]:
                    dag: dict[str, Any] = answer.json()
                    return dag
            except httpx.TransportError:
                await asyncio.sleep(0.05)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("victim", ["queue", "dag", "postgres", "valkey"])
async def test_process_killed_in_the_middle_of_a_dag(tmp_path: Path, victim: str) -> None:
    settings = LocalSettings(
        data_dir=tmp_path,
        queue_port=free_port(),
        dag_port=free_port(),
        postgres_port=free_port(),
        redis_port=free_port(),
        queue_shards=2,
        dag_shards=1,
        postgres_options=DURABLE if victim == "postgres" else VOLATILE,
    )
    graph = layered(seed=7)
    history = History()
    async with Stack(settings) as stack:
        nodes = [{"key": key, "topic": "work", "upstream": ups, "lease_s": 2} for key, ups in graph.items()]
        for node in nodes:
            if not node["upstream"]:
                del node["upstream"]
        async with httpx.AsyncClient(base_url=stack.dag_url, timeout=30.0) as client:
            made = await client.post(f"{_NAMESPACE}/dags", json={"nodes": nodes})
            assert made.status_code == 201, made.text
        consumers = [asyncio.create_task(consume(stack, "work", history)) for _ in range(2)]
        try:
            await history.half.wait()
            os.kill(stack.children[victim].pid, signal.SIGKILL)
            dag = await until_finished(stack, made.json()["id"])
        finally:
            for consumer in consumers:
                consumer.cancel()
            await asyncio.gather(*consumers, return_exceptions=True)
    assert dag["state"] == "succeeded"
    assert dag["nodes"]["succeeded"] == NODES
    assert set(history.delivered) == set(graph), "a node was never delivered"
    assert history.violations(graph) == []
