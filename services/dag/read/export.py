"""Ended DAGs for other stores: in the order of their ends, and up to which end that was done."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Final, NamedTuple

from services.dag import store
from services.dag.model import Dag
from services.dag.read.queries import NodeDetail, Queries
from services.dag.run.context import Context
from shared.errors import invalid, something_done
from shared.http import cursors
from shared.shards.shard_map import Shard

_FIRST_ID: Final = "00000000-0000-0000-0000-000000000000"
_LAST: Final = (datetime.max.replace(tzinfo=UTC), "g")


class _Part(NamedTuple):
    """What one shard told: DAGs, and the (end, id) up to which it has told everything."""

    dags: list[Dag]
    reached: tuple[datetime, str]


class Exporter:
    """Reads what ended; nothing here changes a DAG."""

    def __init__(self, context: Context, queries: Queries) -> None:
        self._context = context
        self._settings = context.settings
        self._queries = queries

    async def ended(
        self, namespace: str, *, since: datetime | None, until: datetime | None, limit: int, cursor: str | None
    ) -> tuple[list[Dag], str | None]:
        """A page of DAGs that ended from `since` on and before `until`, oldest end first.

        The youngest ends (`ended_dag_grace_s`) are left out, since an earlier one may still be on its way.
        """
        since = since or datetime(2000, 1, 1, tzinfo=UTC)
        query = f"ended|{namespace}|{since.isoformat()}|{until and until.isoformat()}"
        after = (since, _FIRST_ID) if cursor is None else _position(cursors.decode(query, cursor))
        parts = await asyncio.gather(*(self._at(shard, since, after) for shard in self._context.shards))
        reached = min((part.reached for part in parts), default=_LAST)
        found = sorted(
            (
                dag
                for part in parts
                for dag in part.dags
                if dag.namespace == namespace and _end(dag) <= reached and (until is None or _end(dag)[0] < until)
            ),
            key=_end,
        )
        if len(found) > limit:
            found = found[:limit]
            reached = _end(found[-1])
        over = reached == _LAST or (until is not None and reached[0] >= until)
        return found, None if over else cursors.encode(query, f"{reached[0].isoformat()} {reached[1]}")

    async def nodes(
        self, namespace: str, dag_id: str, *, limit: int, cursor: str | None
    ) -> tuple[list[tuple[NodeDetail, str]], str | None]:
        """A page of nodes, each with what its item is made of, as JSON text."""
        return await self._queries.exported(namespace, dag_id, limit=limit, cursor=cursor)

    async def mark(self, namespace: str, until: datetime | None) -> datetime | None:
        """Note that all that ended before `until` is exported (None: ask); how far that is on every shard."""
        if until is None:
            marks = await asyncio.gather(
                *(store.archive.export_mark(shard, namespace) for shard in self._context.shards)
            )
            return None if None in marks else min(mark for mark in marks if mark is not None)
        with something_done():  # by another shard
            return min(
                await asyncio.gather(
                    *(store.archive.set_export_mark(shard, namespace, until) for shard in self._context.shards)
                )
            )

    async def _at(self, shard: Shard, since: datetime, after: tuple[datetime, str]) -> _Part:
        scan_max = self._settings.export_scan_dags_max
        dags = await store.archive.ended_dags(
            shard, since, after, lag_s=self._settings.ended_dag_grace_s, scan_max=scan_max
        )
        return _Part(dags, _end(dags[-1]) if len(dags) == scan_max else _LAST)


def _end(dag: Dag) -> tuple[datetime, str]:
    assert dag.finished_at is not None, "it ended"
    return dag.finished_at, dag.id


def _position(text: str) -> tuple[datetime, str]:
    at, _, dag_id = text.partition(" ")
    try:
        if len(dag_id) == len(_FIRST_ID):
            return datetime.fromisoformat(at), dag_id
    except ValueError:
        pass
    raise invalid("/cursor", "this is not a cursor of this list")
