"""The full cycle, enqueue then dequeue then ack, through HTTP and against both floors."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.bench import Bench
from benchmarks.floors import CONNECTIONS, Cycle, OwnStatements, Reference
from benchmarks.load import PAYLOAD, Http
from benchmarks.outcome import Outcome
from benchmarks.peers import open_pgmq
from benchmarks.peers.process import DURABLE_QUEUES, PeerSide, open_peers
from benchmarks.turns import Cycles, Side, in_turns
from headgate import AsyncClient
from headgate._ids import new_ids

REQUIRED_RATIO, PGMQ_RATIO, SINGLE_RATIO = 0.6, 0.6, 2.0
REFERENCE, OWN, PGMQ, RAW, OWN_IDS, SDK = (
    "fixed reference, 4 connections",
    "own statements, 4 connections",
    "pgmq bare SQL, 4 connections",
    "through HTTP",
    "through HTTP, ids by the caller",
    "through HTTP, SDK",
)
BULLMQ = "BullMQ, fsync always"

METHOD = """\
A worker enqueues a batch, dequeues up to a batch and acks what it got, over and over; items acked are
counted. Payload 128 bytes, no other field set, every answer durable before it is given, `lease_s` 60, one
topic, 4 shards. Client, service and Postgres share the machine. In every round each side runs for one
slice, in an order that rotates; a ratio is taken within a round. The reference inserts by `unnest`, leases
with `UPDATE ... WHERE id = ANY(ARRAY(SELECT ... FOR UPDATE SKIP LOCKED LIMIT n))` and deletes by id, in one
table, over asyncpg; both floors use the sessions' pinned planner settings of the service. pgmq (with `--peers` or
`--pgmq-sql`) is its own SQL functions over asyncpg on 4 connections: send_batch, read, delete. Where our SDK has a
side, so have (with `--peers`) pgqueuer, procrastinate, graphile-worker and BullMQ, by their own SDKs and workers,
as in `peers`: as many producers as ours has clients, batches of the same size, and as durable as ours."""


@dataclass(frozen=True)
class Cell:
    """A batch size and a number of clients; `sides` are measured in turns."""

    batch: int
    clients: int
    sides: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"batch {self.batch}, {self.clients} clients"

    def without(self, side: str) -> Cell:
        """The same without a side."""
        return replace(self, sides=tuple(name for name in self.sides if name != side))


CELLS = (
    Cell(100, CONNECTIONS, (REFERENCE, OWN, PGMQ, RAW, OWN_IDS, SDK)),
    Cell(100, 16, (REFERENCE, PGMQ, RAW)),
    Cell(10, CONNECTIONS, (REFERENCE, OWN, PGMQ, RAW)),
    Cell(1, CONNECTIONS, (REFERENCE, OWN, PGMQ, RAW)),
    Cell(1, 64, (REFERENCE, PGMQ, RAW, SDK)),
)


async def run(bench: Bench) -> Outcome:
    """Measure every cell."""
    outcome = Outcome("cycle", METHOD)
    cells = CELLS if bench.pgmq else [cell.without(PGMQ) for cell in CELLS]
    async with (
        AsyncExitStack() as stack,
        await Reference.open(bench.stack) as reference,
        await OwnStatements.open(bench.stack) as own,
        open_pgmq(bench) as pgmq,
    ):
        peers = await open_peers(bench, DURABLE_QUEUES, outcome, stack)
        sides_count = sum(len(cell.sides) + len(peers) * (SDK in cell.sides) for cell in cells)
        bench.progress.begin("cycle", sides_count * bench.plan.rounds)
        if pgmq is not None:
            outcome.details["versions"]["pgmq"] = pgmq.version
        for cell in cells:
            async with Clients(bench.stack.queue_url, cell) as clients:
                sides: dict[str, Side] = {
                    REFERENCE: Cycles(reference.cycles(cell.batch)),
                    OWN: Cycles(own.cycles(cell.batch)),
                    **{name: Cycles(cycles) for name, cycles in clients.sides().items()},
                }
                if pgmq is not None:
                    sides[PGMQ] = Cycles(pgmq.cycles(cell.batch))
                libraries = peers if SDK in cell.sides else {}
                wanted = {name: sides[name] for name in cell.sides if name in sides}
                wanted |= {name: PeerSide(peer, cell.batch, cell.clients) for name, peer in libraries.items()}
                await _measure(bench, outcome, cell, wanted, libraries)
                await clients.drain()
    return outcome


async def _measure(
    bench: Bench, outcome: Outcome, cell: Cell, sides: Mapping[str, Side], peers: Collection[str]
) -> None:
    found = await in_turns(bench, outcome, cell.name, sides)
    for name, measured in found.items():
        if name != REFERENCE:
            outcome.add(f"{cell.name}: {name} / reference", "ratio", measured.over(found[REFERENCE]).values)
    if cell.batch == 100:
        ratio = found[RAW].over(found[REFERENCE])
        name = f"full cycle, {cell.name}, through HTTP / reference"
        outcome.require_at_least(name, ratio, REQUIRED_RATIO)
    for peer in peers:
        if peer in found:
            for ours in (RAW, SDK):
                ratio = found[ours].over(found[peer])
                outcome.add(f"{cell.name}: {ours} / {peer}", "ratio", ratio.values)
                if (cell.batch, ours, peer) == (1, RAW, BULLMQ):
                    outcome.require_at_least(f"{cell.name}: {ours} / {peer}, at equal durability", ratio, 1.0)
    for floor in (OWN, PGMQ):
        if floor in found:
            ratio = found[RAW].over(found[floor])
            outcome.add(f"{cell.name}: through HTTP / {floor.partition(',')[0]}", "ratio", ratio.values)
            if floor == PGMQ and cell.batch == 100:
                outcome.require_at_least(f"full cycle, {cell.name}, through HTTP / pgmq", ratio, PGMQ_RATIO)
            if floor == PGMQ and cell.clients == 64:
                name = "batch 1: through HTTP, 64 clients / pgmq one by one, 4 connections"
                outcome.require_at_least(name, ratio, SINGLE_RATIO)


class Clients:
    """Connections of their own for every worker of a cell, and one SDK client, which pools its own."""

    def __init__(self, queue_url: str, cell: Cell) -> None:
        self._cell = cell
        self._topic = f"cycle-{cell.batch}-{cell.clients}"
        self._http = [Http(queue_url) for _ in range(cell.clients)]
        self._sdk = AsyncClient(queue_url=queue_url)
        self._shards: list[int] = []

    async def __aenter__(self) -> Clients:
        self._shards = [shard.shard for shard in await self._sdk.shards()]
        return self

    async def __aexit__(self, *_: object) -> None:
        for http in self._http:
            http.close()
        await self._sdk.aclose()

    def sides(self) -> dict[str, list[Cycle]]:
        """The workers of each kind of client."""
        return {
            RAW: [self._raw(http) for http in self._http],
            OWN_IDS: [self._with_ids(http, i) for i, http in enumerate(self._http)],
            SDK: [self._through_sdk() for _ in self._http],
        }

    async def drain(self) -> None:
        """Leave the topic empty."""
        await self._http[0].drain(self._topic)

    def _raw(self, http: Http) -> Cycle:
        batch, topic = self._cell.batch, self._topic
        items = [{"topic": topic, "payload": PAYLOAD}] * batch

        async def cycle() -> int:
            await http.enqueue(items)
            leased = await http.dequeue(topic, batch, wait_s=5.0)
            return await http.ack(leased) if leased else 0

        return cycle

    def _with_ids(self, http: Http, number: int) -> Cycle:
        batch, topic = self._cell.batch, self._topic
        shard = self._shards[number % len(self._shards)]

        async def cycle() -> int:
            ids = new_ids(shard, batch)
            await http.enqueue([{"topic": topic, "payload": PAYLOAD, "id": item} for item in ids])
            leased = await http.dequeue(topic, batch, wait_s=5.0)
            return await http.ack(leased) if leased else 0

        return cycle

    def _through_sdk(self) -> Cycle:
        batch, topic, client = self._cell.batch, self._topic, self._sdk

        async def cycle() -> int:
            items: list[Any] = [{"topic": topic, "payload": PAYLOAD} for _ in range(batch)]
            await client.enqueue(items)
            leased = await client.dequeue({topic: batch}, wait_s=5.0)
            results = await client.ack([item.ack() for item in leased]) if leased else []
            assert all(result.status == "acked" for result in results)
            return len(results)

        return cycle
