"""What a chain step is made of, each part measured by itself on the idle stack."""

from __future__ import annotations

import time
from typing import Any, cast

from benchmarks.graphs import chain
from benchmarks.load import PAYLOAD, Http
from benchmarks.runs import Builder
from benchmarks.spread import percentile
from benchmarks.stack import BenchStack
from services.dag.model import Ending
from services.dag.queue_client import Queue
from services.dag.run.completions import Completer
from services.dag.run.context import Context
from services.dag.settings import DagSettings
from shared.clock import SystemClock
from shared.ids import shard_of
from shared.shards.ownership import Ownership
from shared.shards.shard_map import ShardMap

TOPIC, DONE, NOBODY = "parts", "parts-done", "parts-nobody"


class Parts:
    """Measures the parts; `measure` gives the median of each in milliseconds."""

    def __init__(self, stack: BenchStack) -> None:
        self._http = Http(stack.queue_url)
        self._builder = Builder(stack.dag_url, NOBODY)
        # The running service owns the shards; what is measured here needs nobody's leave.
        settings = DagSettings(shards=stack.dag_shards, ownership="everyone")
        self._shards = ShardMap(settings.plan(), settings)
        # Nothing is sent to the queue: what these transactions decide is left to the running service's sweeper.
        clock = SystemClock()
        context = Context(
            self._shards, cast(Queue, None), settings, clock, Ownership("dag", self._shards, settings, clock)
        )
        self._completer = Completer(context)

    async def __aenter__(self) -> Parts:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._http.close()
        self._builder.close()
        await self._shards.close()

    async def measure(self, repeats: int) -> dict[str, float]:
        """The median time of each part over so many repetitions, in milliseconds."""
        claims, acks = await self._claims_and_acks(repeats)
        found = {
            "ack call": acks,
            "DAG transaction": await self._transactions(repeats),
            "revive call": await self._revives(repeats),
            "claiming dequeue call": claims,
        }
        return {name: percentile(times_ms, 0.5) for name, times_ms in found.items()}

    async def _claims_and_acks(self, repeats: int) -> tuple[list[float], list[float]]:
        claims, acks = Times(), Times()
        for _ in range(repeats):
            item = {"topic": TOPIC, "payload": PAYLOAD, "ack_topic": DONE, "ack_context": {"node": "n1"}}
            await self._http.enqueue([item])
            with claims:
                leased = await self._http.dequeue(TOPIC, 1)
            with acks:
                await self._http.ack(leased)
        await self._http.drain(DONE)
        return claims.ms, acks.ms

    async def _revives(self, repeats: int) -> list[float]:
        item: dict[str, Any] = {"topic": TOPIC, "payload": PAYLOAD, "disabled": True}
        ids = await self._http.enqueue([item] * repeats)
        times = Times()
        for item_id in ids:
            with times:
                await self._http.revive([item_id])
        await self._http.drain(TOPIC)
        return times.ms

    async def _transactions(self, repeats: int) -> list[float]:
        """Complete the nodes of a chain that nobody consumes, one after another."""
        dag = await self._builder.create(chain(repeats + 1))
        shard = self._shards.get(shard_of(dag))
        assert shard is not None
        times = Times()
        for n in range(repeats):
            ending = Ending(dag, f"n{n}", 1, "succeeded", 1, None, None, None)
            with times:
                applied = await self._completer.apply(shard, [ending])
            assert applied == 1
        await self._builder.cancel(dag)
        return times.ms


class Times:
    """Collects the milliseconds spent inside `with`."""

    def __init__(self) -> None:
        self.ms: list[float] = []
        self._begun_s = 0.0

    def __enter__(self) -> None:
        self._begun_s = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.ms.append((time.perf_counter() - self._begun_s) * 1000)
