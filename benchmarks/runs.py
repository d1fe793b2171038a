"""Graphs through the DAG service: consumers that do no work, and DAGs built and run over plain HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from benchmarks.graphs import Edge, Graph, chunks
from benchmarks.load import Http, Refused

CALL_MAX = 1_000
WAIT_S = 30.0
RUN_S_MAX = 600.0
AGAIN_S = 1.0


class DagState(msgspec.Struct):
    """The part of a DAG's answer that is needed here."""

    id: str
    state: str
    nodes: dict[str, int]


_dag = msgspec.json.Decoder(DagState).decode


class Consumers:
    """Connections that dequeue by long poll and ack what they get at once. `acked` counts."""

    def __init__(self, queue_url: str, topic: str, *, connections: int = 4, count: int = 100) -> None:
        self._http = [Http(queue_url) for _ in range(connections)]
        self._topic = topic
        self._count = count
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Consumers:
        self._tasks = [asyncio.create_task(self._consume(http)) for http in self._http]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        for http in self._http:
            http.close()

    async def _consume(self, http: Http) -> None:
        while True:
            leased = await http.dequeue(self._topic, self._count, wait_s=20.0)
            if leased:
                await http.ack(leased)


class Builder:
    """One connection to the DAG service."""

    def __init__(self, dag_url: str, topic: str) -> None:
        self.http = Http(dag_url)
        self._topic = topic

    def close(self) -> None:
        """Hang up."""
        self.http.close()

    async def create(
        self, graph: Graph, *, hold: bool = False, after_call: Callable[[], None] = lambda: None
    ) -> str:
        """Create a DAG with all of its nodes, each with its edges, in calls of at most 1,000 nodes.

        What a node waits for beyond 1,000 others is added afterwards; only a held DAG may be so wide.
        """
        upstreams = graph.upstreams()
        # A list may not be empty.
        nodes = [
            self._node(key) | ({"upstream": upstreams[key][:CALL_MAX]} if upstreams[key] else {})
            for key in graph.keys
        ]
        dag = await self._create(nodes, hold=hold, after_call=after_call)
        left = [(up, key) for key in graph.keys for up in upstreams[key][CALL_MAX:]]
        assert hold or not left, "edges would come late"
        for part in chunks(left, CALL_MAX):
            await self.add_edges(dag, part)
        return dag

    async def create_nodes(self, graph: Graph) -> str:
        """Create a held DAG with all nodes and no edge."""
        return await self._create([self._node(key) for key in graph.keys], hold=True)

    async def add_nodes(self, dag: str, keys: Sequence[str]) -> None:
        """Add nodes without edges."""
        await self.http.call(b"POST", f"/dags/{dag}/nodes", {"nodes": [self._node(key) for key in keys]})

    async def add_edges(self, dag: str, edges: Sequence[Edge]) -> int:
        """Add edges between nodes that exist; how many."""
        pairs = [{"upstream": upstream, "downstream": downstream} for upstream, downstream in edges]
        await self.http.call(b"POST", f"/dags/{dag}/dependencies", {"dependencies": pairs})
        return len(pairs)

    async def release(self, dag: str) -> None:
        """Lift the hold."""
        await self.http.call(b"POST", f"/dags/{dag}/release")

    async def cancel(self, dag: str) -> None:
        """Cancel the DAG and wait until that is done."""
        await self.http.call(b"POST", f"/dags/{dag}/cancel", {"reason": "measured"})
        await self.wait(dag)

    async def finish(self, dag: str, nodes: int, *, wait_s: float = RUN_S_MAX) -> None:
        """Wait until the DAG has ended; every node must have succeeded."""
        ended = await self.wait(dag, wait_s)
        assert ended.state == "succeeded" and ended.nodes["succeeded"] == nodes, ended

    async def wait(self, dag: str, wait_s: float = RUN_S_MAX) -> DagState:
        """Wait until the DAG has ended; who is turned away comes again."""
        deadline = time.perf_counter() + wait_s
        while time.perf_counter() < deadline:
            try:
                found = _dag(await self.http.call(b"GET", f"/dags/{dag}/wait?timeout_s={WAIT_S}"))
            except Refused as error:
                if not error.for_now:
                    raise
                await asyncio.sleep(AGAIN_S)
                continue
            if found.state not in ("running", "cancelling"):
                return found
        raise TimeoutError(f"the DAG {dag} did not end in {wait_s:.0f} s")

    async def _create(
        self, nodes: Sequence[dict[str, Any]], *, hold: bool, after_call: Callable[[], None] = lambda: None
    ) -> str:
        first, *rest = chunks(nodes, CALL_MAX)
        made = await self.http.call(b"POST", "/dags", {"nodes": first, "hold": hold})
        dag = _dag(made).id
        after_call()
        for part in rest:
            await self.http.call(b"POST", f"/dags/{dag}/nodes", {"nodes": part})
            after_call()
        return dag

    def _node(self, key: str) -> dict[str, Any]:
        return {"key": key, "topic": self._topic}
