"""Peers that run beside us, each in an environment of its own: never in ours."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.bench import Bench
from benchmarks.peers.environment import PeerFailed
from benchmarks.peers.pgmq import Pgmq

__all__ = ["PeerFailed", "open_pgmq"]


@asynccontextmanager
async def open_pgmq(bench: Bench) -> AsyncIterator[Pgmq | None]:
    """pgmq on the scenario's server; None where it is not asked for or cannot be installed."""
    if not bench.pgmq:
        yield None
        return
    try:
        pgmq = await Pgmq.open(bench.stack, bench.pgmq_sql)
    except PeerFailed as error:
        bench.progress.note(f"pgmq is left out: {error}")
        yield None
        return
    bench.progress.note(f"pgmq {pgmq.version}")
    try:
        yield pgmq
    finally:
        await pgmq.close()
