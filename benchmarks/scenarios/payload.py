"""The full cycle with payloads of 100 bytes and of 10 KB, and what an item writes to the log."""

from __future__ import annotations

import random
import string
from contextlib import AsyncExitStack

from benchmarks.bench import Bench
from benchmarks.floors import Reference
from benchmarks.outcome import Outcome
from benchmarks.peers import open_pgmq
from benchmarks.spread import spread
from benchmarks.turns import Cycles, Side, in_turns
from benchmarks.workers import Workers

BATCH, CLIENTS = 100, 4
SIZES = (100, 128, 10 * 1024)
WAL_BYTES = 900.0
OURS, REFERENCE, PGMQ = "through HTTP", "fixed reference", "pgmq, bare SQL"

METHOD = f"""\
{CLIENTS} clients enqueue, dequeue and ack batches of {BATCH}; payloads of {SIZES[0]}, {SIZES[1]} and
{SIZES[2]:,} bytes of JSON, a string of random letters and digits. Each size is measured in turns with the
floors. WAL is all that the server wrote meanwhile, full pages included, over the items acked."""


async def run(bench: Bench) -> Outcome:
    """Measure every size."""
    outcome = Outcome("payload", METHOD)
    bench.progress.begin("payload", bench.plan.rounds * len(SIZES) * (3 if bench.pgmq else 2))
    async with AsyncExitStack() as stack:
        reference = await stack.enter_async_context(await Reference.open(bench.stack))
        pgmq = await stack.enter_async_context(open_pgmq(bench))
        for size in SIZES:
            payload = "".join(random.Random(size).choices(string.ascii_letters + string.digits, k=size - 2))
            workers = await stack.enter_async_context(
                Workers(bench.stack, CLIENTS, BATCH, [f"payload-{size}"], payload=payload)
            )
            sides: dict[str, Side] = {
                OURS: Cycles(workers.cycles()),
                REFERENCE: Cycles(reference.cycles(BATCH, payload)),
            }
            if pgmq is not None:
                sides[PGMQ] = Cycles(pgmq.cycles(BATCH, payload))
            found = await in_turns(bench, outcome, f"{size:,} bytes", sides)
            for name in list(sides)[1:]:
                outcome.add(f"{size:,} bytes: {OURS} / {name}", "ratio", found[OURS].over(found[name]).values)
            if size == 128:
                wal = spread([found[OURS].cost.wal_bytes])
                outcome.require_below("WAL of an item's life, payload 128 bytes", wal, WAL_BYTES, "bytes")
    return outcome
