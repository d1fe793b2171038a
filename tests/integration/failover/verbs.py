"""What else a tenant does under the load, and what of it may be missing: values, schedules, limits, runs, and what
jobs do (`jobs`).

Each verb goes on by itself until the load is over, then lets go; most are judged by the facts of random worlds.
Another joins by a class and a place in `VERBS`.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import Any

from headgate import AsyncClient
from headgate import _ids as ids
from headgate._ids import shard_of
from headgate.errors import DagFinished, HeadgateError, VersionConflict
from tests.integration.failover import jobs
from tests.integration.failover.runs import Runs
from tests.integration.failover.verb import HEARD_S, LOSSY, InTime, Verb
from tests.worlds import limit_facts, schedule_facts, value_facts
from tests.worlds.facts import Delivery, History, Sent, Word
from tests.worlds.limit_facts import Limited, LimitFacts
from tests.worlds.schedule_facts import Schedule
from tests.worlds.value_facts import Cell, Read, Write

_INTERVAL_S = 3
_LEASE_S = 10.0
_ROOM = 3
_make = ids.IdMaker().make


class Values(Verb):
    """A value of one open DAG: each write is for the version that was read."""

    def __init__(self, tenant: str, client: AsyncClient, shard: int, in_time: InTime) -> None:
        super().__init__(tenant, client, shard, in_time)
        self.cell = Cell()
        self._serial = count(1)
        self._dag: Any = None

    async def begin(self) -> None:
        keys = (f"{self.tenant}/values/{self.shard}/{n}" for n in count())
        made = [await self.client.create_dag({"key": next(keys), "open": True})]
        while shard_of(made[-1].id) != self.shard:
            await self.client.dag(made[-1].id).close()
            made.append(await self.client.create_dag({"key": next(keys), "open": True}))
        self._dag = self.client.dag(made[-1].id)

    async def step(self) -> None:
        async with self.in_time(f"a value on {self.shard}"):
            version = await self._read()
            write = Write({"by": next(self._serial)}, version, time.monotonic(), is_possible=True)
            self.cell.writes.append(write)
            try:
                written = await self._dag.values.put("count", write.value, version=version)
            except VersionConflict:
                write.is_possible = False
            except HeadgateError as error:
                write.is_possible = error.outcome == "unknown"
                raise
            else:
                write.answered("ok", written.version, time.monotonic())

    async def _read(self) -> int:
        sent = time.monotonic()
        found = await self._dag.values.read("count")
        version, value = (0, None) if found is None else (found.version, found.value)
        self.cell.reads.append(Read(value, version, sent, time.monotonic()))
        return version

    async def end(self) -> None:
        await self._read()
        with suppress(DagFinished):
            await self._dag.close()

    def faults(self, cut_s: float | None) -> Iterator[str]:
        judged = Cell()
        judged.writes = [replace(write) for write in self.cell.writes if cut_s is None or self.shard != LOSSY]
        # On a primary that is left behind one reads what is on no standby, and was not answered for.
        judged.reads = self.cell.reads if self.shard != LOSSY else []
        where = f"{self.tenant}'s value on {self.shard}"
        yield from (f"{where}: {fault}" for fault in value_facts.judge({"count": judged}))
        last = self.cell.reads[-1]
        until_s = last.sent if cut_s is None or self.shard != LOSSY else cut_s
        answered = [write for write in self.cell.writes if write.done is not None and write.done < until_s]
        promised = max((version for write in answered for version in write.versions), default=0)
        if last.version < promised:
            yield f"{where}: version {promised} was promised, and it is at {last.version}"


class Ticks(Verb):
    """A schedule of few seconds: each slot is decided once, whatever is lost of what was decided."""

    def __init__(self, tenant: str, client: AsyncClient, shard: int, in_time: InTime) -> None:
        super().__init__(tenant, client, shard, in_time)
        self._id = f"often-{shard}"
        body = {"spec": {"interval_s": _INTERVAL_S}, "overlap": "allow", "catchup_s": 3_600}
        self.schedule = Schedule(self._id, tenant, body, time.time())

    async def begin(self) -> None:
        options: Any = {"overlap": "allow", "catchup_s": 3_600}
        await self.client.schedules.put(self._id, interval_s=_INTERVAL_S, topic="ticks", **options)

    async def work(self) -> None:
        leased: list[Any] = []
        async with self.in_time("dequeue ticks"):
            leased = await self.client.dequeue({"ticks": 10}, wait_s=0.2, lease_s=10.0)
        for item in leased:
            async with self.in_time(f"ack a tick on {shard_of(item.id)}"):
                await self.client.ack([item.ack()])

    async def end(self) -> None:
        await self.client.schedules.pause(self._id)
        ticks = await self.client.schedules.ticks(self._id)
        self.schedule.ticks = [tick.model_dump(mode="json") for tick in ticks]

    def faults(self, cut_s: float | None) -> Iterator[str]:
        yield from (f"{self.tenant}'s {self._id}: {fault}" for fault in schedule_facts.judge_ticks(self.schedule))
        if not self.schedule.ticks:
            yield f"{self.tenant}'s {self._id} never came"


class Limits(Verb):
    """A topic of which no more than three items are leased at once."""

    def __init__(self, tenant: str, client: AsyncClient, shard: int, in_time: InTime) -> None:
        super().__init__(tenant, client, shard, in_time)
        self._topic = f"limited-{shard}"
        self.history, self.facts = History(), LimitFacts()

    async def begin(self) -> None:
        await self.client.limits.put(self._topic, concurrency=_ROOM)
        place, given = (self.tenant, self._topic), {"concurrency": float(_ROOM)}
        await asyncio.sleep(HEARD_S)
        self.facts.limits.append(Limited(place, given, time.monotonic()))

    async def step(self) -> None:
        made = _make(self.shard)[0]
        async with self.in_time(f"enqueue a limited item on {self.shard}"):
            await self.client.enqueue([{"topic": self._topic, "id": made, "payload": {}, "lease_s": _LEASE_S}])

    async def work(self) -> None:
        await asyncio.gather(self._take(), self._take())

    async def _take(self) -> None:
        leased: list[Any] = []
        sent = time.monotonic()
        async with self.in_time("dequeue limited items"):
            leased = await self.client.dequeue({self._topic: 2}, wait_s=0.1, lease_s=_LEASE_S)
        now = time.monotonic()
        for item in leased:
            self.history.sent[item.id] = Sent(item.id, self.tenant, self._topic, {"topic": self._topic}, item.id)
            self.history.delivered(
                Delivery(
                    item.id, self.tenant, self._topic, item.id, item.lease_token, item.attempt, _LEASE_S, sent, now
                )
            )
        for item in leased:
            acked = time.monotonic()
            word = Word("ack", self.tenant, item.id, item.lease_token, "info", "", acked, acked)
            self.history.said(word)
            async with self.in_time(f"ack a limited item on {self.shard}"):
                await self.client.ack([item.ack()])

    async def end(self) -> None:
        self.facts.changes((self.tenant, self._topic), time.monotonic())
        await self.client.limits.put(self._topic)

    def faults(self, cut_s: float | None) -> Iterator[str]:
        until_s = float("inf") if cut_s is None else cut_s
        for limited in self.facts.limits:
            limited.until = min(limited.until, until_s)
        yield from limit_facts.judge(self.facts, self.history)
        if not self.history.deliveries:
            yield f"nothing came of {self.tenant}'s {self._topic}"


VERBS: tuple[type[Verb], ...] = (Values, Ticks, Limits, Runs, *jobs.VERBS)
