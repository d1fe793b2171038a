"""Workers that go through the whole life of items over plain HTTP, and note how long their dequeues took."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from benchmarks.floors import Cycle
from benchmarks.load import PAYLOAD, Http
from benchmarks.spread import percentile
from benchmarks.stack import BenchStack

LEASE_S = 60.0
WAIT_S = 5.0


@dataclass
class Workers:
    """Connections to a site's queue service, worker i to process i. A cycle is one batch from enqueue to ack.

    A worker goes through `topics`, and through `namespaces` if there are any, in turn.
    """

    stack: BenchStack
    clients: int
    batch: int
    topics: Sequence[str]
    namespaces: Sequence[str] = ("default",)
    payload: str = PAYLOAD
    dequeues_ms: list[float] = field(default_factory=list)
    batches: int = 0
    _http: list[dict[str, Http]] = field(default_factory=list)

    async def __aenter__(self) -> Workers:
        self._http = [{} for _ in range(self.clients)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for connections in self._http:
            for http in connections.values():
                http.close()

    def cycles(self) -> list[Cycle]:
        """One cycle per client."""
        return [self._cycle(number) for number in range(self.clients)]

    def take_p99_ms(self) -> float:
        """The 99th percentile of the dequeues since the last time."""
        found = percentile(self.dequeues_ms, 0.99)
        self.dequeues_ms.clear()
        return found

    async def drain(self) -> None:
        """Leave every topic empty."""
        for namespace, topic in itertools.product(self.namespaces, self.topics):
            await self._connection(0, namespace).drain(topic)

    def _cycle(self, number: int) -> Cycle:
        places = itertools.cycle(itertools.product(self.namespaces, self.topics))
        # Workers start apart, so that they are not all in the same place.
        count = len(self.namespaces) * len(self.topics)
        for _ in range(number * count // self.clients):
            next(places)

        async def cycle() -> int:
            namespace, topic = next(places)
            http = self._connection(number, namespace)
            item: dict[str, Any] = {"topic": topic, "payload": self.payload}
            await http.enqueue([item] * self.batch)
            begun = time.perf_counter()
            leased = await http.dequeue(topic, self.batch, wait_s=WAIT_S, lease_s=LEASE_S)
            self.dequeues_ms.append((time.perf_counter() - begun) * 1000)
            self.batches += 1
            return await http.ack(leased) if leased else 0

        return cycle

    async def visit(self) -> None:
        """One item through every topic of every namespace."""
        places = iter(list(itertools.product(self.namespaces, self.topics)))

        async def visit(number: int) -> None:
            for namespace, topic in places:
                http = self._connection(number, namespace)
                await http.enqueue([{"topic": topic, "payload": self.payload}])
                await http.ack(await http.dequeue(topic, 1, wait_s=WAIT_S))

        await asyncio.gather(*(visit(number) for number in range(self.clients)))

    def _connection(self, number: int, namespace: str) -> Http:
        connections = self._http[number]
        if namespace not in connections:
            urls = self.stack.queue_urls
            first = next(iter(connections.values()), None)
            url = urls[number % len(urls)]
            connections[namespace] = Http(url, namespace=namespace) if first is None else first.within(namespace)
        return connections[namespace]
