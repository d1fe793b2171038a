"""Statements about workers by name, and about what was cancelled under their leases."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from services.queue.store.names import SQL
from shared.postgres.rows import Asked, rows_of


class SeenWorker(NamedTuple):
    """A worker to be written: for how long it has been there, when it was seen last, and for how long it counts as
    being there from now."""

    namespace: str
    name: str
    host: str | None
    version: str | None
    topics: str
    running: int | None
    is_reported: bool
    age_s: float
    seen_age_s: float
    alive_s: float


class WorkerRow(NamedTuple):
    """A worker; `topics` as JSON text."""

    name: str
    host: str | None
    version: str | None
    topics: str
    running: int | None
    since: datetime
    seen_at: datetime
    is_alive: bool


class CancelledLease(NamedTuple):
    """An item that was cancelled while it was leased."""

    namespace: str
    item_id: str


async def write(asked: Asked, seen: Sequence[SeenWorker], rows_max: int) -> None:
    """Write what is known of workers, each once; new ones as far as their namespace has room."""
    namespaces, names, hosts, versions, topics, running, reported, ages_s, seen_ages_s, alive_ss = zip(
        *seen, strict=True
    )
    await asked.fetch(
        SQL.write_workers,
        namespaces=namespaces,
        names=names,
        hosts=hosts,
        versions=versions,
        topics=topics,
        running=running,
        reported=reported,
        ages_s=ages_s,
        seen_ages_s=seen_ages_s,
        alive_ss=alive_ss,
        rows_max=rows_max,
    )


async def page(asked: Asked, namespace: str, after: str, limit: int, bytes_max: int) -> list[WorkerRow]:
    """Workers of a namespace behind a name: so many, or fewer whose topics take about so many bytes."""
    values = {"namespace": namespace, "after": after, "limit": limit, "bytes_max": bytes_max}
    return await rows_of(WorkerRow, asked, SQL.workers_page, **values)


async def drop_old(asked: Asked, age_s: float, limit: int) -> int:
    """Workers that went long ago are forgotten; how many."""
    return len(await asked.fetch(SQL.drop_workers, age_s=age_s, limit=limit))


async def cancelled_lately(asked: Asked, window_s: float, limit: int) -> list[CancelledLease]:
    """What was cancelled while it was leased, newest first."""
    return await rows_of(CancelledLease, asked, SQL.cancelled_lately, window_s=window_s, limit=limit)


async def drop_cancelled(asked: Asked, age_s: float, limit: int) -> int:
    """What everybody has been told goes; how many rows."""
    return len(await asked.fetch(SQL.drop_cancelled, age_s=age_s, limit=limit))
