"""What jobs log: kept by item, attempt and worker, written only by who holds the item, or has acked it lately.

The lock of the namespace's row makes bounds exact, and numbers calls in the order of their commits, so a reader
that goes on behind the last one it has seen misses none. A repeated call is known by its number. When a line was
logged is told as its age, so all times are by the shard's clock; and as one worker after another holds an item,
the order of calls is that of time. A crash loses what was not answered, and the worker sends it again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, NamedTuple, Self

from services.queue.leases.held_items import each_held, lost_statuses
from services.queue.model import NamespaceId, Result
from services.queue.settings import QueueSettings
from services.queue.store import job_logs
from services.queue.store.job_logs import LoggedLines, LogHolder, LogRow
from services.queue.store.shard_store import Store, store_of
from shared.errors import something_done
from shared.ids import ShardNo, canonical
from shared.metrics import LOG_LINES
from shared.postgres.connections import Transaction

# What a row takes beside its lines.
ROW_BYTES: Final = 128


class LoggedBatch(NamedTuple):
    """One element of a call: lines as JSON text, each `[age_s, level, logger, text]`."""

    id: str
    lease_token: str
    attempt: int
    number: int
    lines: str
    lines_count: int

    def named(self, item_id: str, lease_token: str) -> Self:
        """The same, its names in their canonical forms."""
        return self._replace(id=item_id, lease_token=lease_token)


class LogPlace(NamedTuple):
    """Behind the first `lines` lines of a call: where a reader goes on."""

    seq: int
    lines: int


START: Final = LogPlace(0, 0)


@dataclass(slots=True)
class _Log:
    """The log of one item, as far as this transaction has written it."""

    token: str | None
    number: int
    bytes: int


class JobLogs:
    """Writes and reads."""

    def __init__(self, stores: Mapping[ShardNo, Store], settings: QueueSettings) -> None:
        self._stores = stores
        self._settings = settings

    async def write(self, namespace: str, batches: Sequence[LoggedBatch]) -> list[Result]:
        """Keep lines of items that are held; one result per batch."""
        return await each_held(self._stores, namespace, batches, self._write_at)

    async def read(
        self, namespace: str, item_id: str, limit: int, after: LogPlace
    ) -> tuple[list[dict[str, Any]], LogPlace, bool]:
        """Lines of an item, living or not, in the order of time; where to go on, and whether there are more."""
        known_id = canonical(item_id)
        store = store_of(self._stores, known_id)
        if store is None or known_id is None:
            return [], after, False
        store.pool.admit()
        found: list[dict[str, Any]] = []
        for row in await job_logs.log_of(store.pool, known_id, namespace, after.seq, limit + 1):
            entries = _entries(row)
            skipped = after.lines if row.seq == after.seq else 0
            taken = entries[skipped : skipped + limit - len(found)]
            if not taken and skipped < len(entries):
                return found, after, True
            found += taken
            after = LogPlace(row.seq, skipped + len(taken))
            if after.lines < len(entries):
                return found, after, True
        return found, after, False

    async def _write_at(
        self, store: Store, namespace_id: NamespaceId, batches: list[LoggedBatch]
    ) -> dict[int, str]:
        async def work(tx: Transaction) -> dict[int, str]:
            use = await job_logs.lock_use(tx, namespace_id)
            ids, tokens = [batch.id for batch in batches], [batch.lease_token for batch in batches]
            held = {holder.place - 1: holder for holder in await job_logs.holders(tx, namespace_id, ids, tokens)}
            statuses, rows = self._decide(batches, held, use.bytes)
            if rows:
                await job_logs.write(tx, namespace_id, rows)
            return statuses

        statuses = await store.pool.transaction(work)
        with something_done():
            for position, status in statuses.items():
                LOG_LINES.labels(status).inc(batches[position].lines_count)
            return statuses | await lost_statuses(store, namespace_id, batches, statuses)

    def _decide(
        self, batches: Sequence[LoggedBatch], held: Mapping[int, LogHolder], used_bytes: int
    ) -> tuple[dict[int, str], list[LogRow]]:
        """What becomes of batches whose holder calls. Where an item's log is full, its last line says so."""
        logs: dict[str, _Log] = {}
        statuses: dict[int, str] = {}
        rows: list[LogRow] = []
        settings = self._settings
        for position, holder in sorted(held.items()):
            batch = batches[position]
            log = logs.setdefault(batch.id, _Log(holder.last_token, holder.last_number or 0, holder.item_bytes))
            lines, size = batch.lines, len(batch.lines.encode()) + ROW_BYTES
            statuses[position] = "full"
            if log.bytes >= settings.log_item_bytes_max:
                continue
            if log.token == batch.lease_token and batch.number <= log.number:
                statuses[position] = "written"
                continue
            if used_bytes + size > settings.log_namespace_bytes_max:
                continue
            if log.bytes + size > settings.log_item_bytes_max:
                lines = _full(settings.log_item_bytes_max)
                size = len(lines) + ROW_BYTES
                log.bytes = settings.log_item_bytes_max
            else:
                statuses[position] = "written"
                log.bytes += size
            log.token, log.number = batch.lease_token, batch.number
            used_bytes += size
            holds = (batch.attempt, holder.worker)
            rows.append(LogRow(batch.id, batch.lease_token, batch.number, *holds, size, log.bytes, lines))
        return statuses, rows


def _full(bytes_max: int) -> str:
    text = f"the log of this job has {bytes_max} bytes, which is all that is kept: what comes after is not here"
    return json.dumps([[0, "warning", "headgate", text]])


def _entries(row: LoggedLines) -> list[dict[str, Any]]:
    return [
        {
            "at": row.received_at - timedelta(seconds=age_s),
            "level": level,
            "logger": logger,
            "text": text,
            "attempt": row.attempt,
            "worker": row.worker,
        }
        for age_s, level, logger, text in json.loads(row.lines)
    ]
