"""What DAGs wait for that somebody outside has to say: an approval, a file that has come.

DAGs that run longest come first. A look reads a bounded number of DAGs, of each a bounded number of externals, and
of the nodes that are shown a bounded number of upstreams.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from services.dag import store
from services.dag.model import NodeNo
from services.dag.read.queries import began
from services.dag.run.context import Context
from services.dag.store.explain import RunningDag
from shared import ids
from shared.errors import invalid
from shared.http import cursors
from shared.ids import ShardNo
from shared.shards.asking import Listed, ask_all
from shared.shards.shard_map import Shard

_FIRST_ID: Final = "00000000-0000-0000-0000-000000000000"
_DAGS_MAX: Final = 500
_EXTERNALS_MAX: Final = 50


@dataclass(slots=True)
class OpenExternal:
    """A node that nothing but externals keeps; `since` is None where too many upstreams would have to be read."""

    row: RunningDag
    since: datetime | None


class Externals:
    """Answers what a namespace's DAGs wait for from outside."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._upstreams_max = context.settings.page_edges_max

    async def open(self, namespace: str, *, limit: int, cursor: str | None) -> Listed[OpenExternal, str]:
        """A page, of each DAG one node.

        Raises:
            Unavailable: no shard answers.
        """
        query = f"externals|{namespace}"
        after_id = _FIRST_ID if cursor is None else cursors.decode(query, cursor)
        if cursor is not None and ids.canonical(after_id) is None:
            raise invalid("/cursor", "this is not a cursor of this list")

        async def part(shard: Shard) -> list[RunningDag]:
            return await store.explain.kept_by_externals(
                shard, namespace, after_id=after_id, dags_max=_DAGS_MAX, externals_max=_EXTERNALS_MAX
            )

        pages, away = await ask_all(list(self._context.shards), part)
        # Up to here every shard has been looked at.
        reached = min((page[-1].dag_id for page in pages if len(page) == _DAGS_MAX), default=None)
        rows = sorted(
            (
                row
                for page in pages
                for row in page
                if row.no is not None and row.dag_id <= (reached or row.dag_id)
            ),
            key=lambda row: row.dag_id,
        )
        after = rows[limit - 1].dag_id if len(rows) > limit else reached
        found = await self._since(rows[:limit])
        return Listed(found, None if after is None else cursors.encode(query, after), away)

    async def _since(self, rows: Sequence[RunningDag]) -> list[OpenExternal]:
        """When the last upstream of each ended: from then on it has waited."""
        left = self._upstreams_max
        asked: dict[ShardNo, list[NodeNo]] = {}
        for row in rows:
            left -= row.upstreams
            if left >= 0 and row.no is not None:
                asked.setdefault(ids.shard_of(row.dag_id), []).append(row.no)
        ended: dict[tuple[ShardNo, NodeNo | None], datetime | None] = {}
        for number, nos in asked.items():
            shard = self._context.shards.get(number)
            assert shard is not None, "they were read there"
            found = await store.explain.upstreams_ended(shard, nos)
            ended |= {(number, no): at for no, at in found.items()}
        return [OpenExternal(row, _since(row, ended)) for row in rows]


def _since(row: RunningDag, ended: dict[tuple[ShardNo, NodeNo | None], datetime | None]) -> datetime | None:
    place = (ids.shard_of(row.dag_id), row.no)
    if place not in ended:
        return None
    begun = began(row.generation, row.created_at, row.item_id)
    return max(begun, ended[place] or begun)
