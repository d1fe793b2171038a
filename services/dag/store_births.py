"""The statement that makes whole new DAGs, bound."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from itertools import chain
from typing import Any, NamedTuple

from services.dag.model import NODE_BITS, Change, Dag
from services.dag.store import SQL
from shared.shards import Shard


class Columns(NamedTuple):
    """New nodes, in the order of their numbers, and the edges between them, column by column. `lefts` are the
    upstreams of each, all of which are new too; `items` its queue item as JSON text."""

    keys: list[str]
    topics: list[str]
    triggers: list[str]
    passes: list[bool]
    fingerprints: list[bytes]
    items: list[str]
    lefts: list[int]
    ups: list[int]
    downs: list[int]


class Birth(NamedTuple):
    """A new DAG as it will stand. Its own number is still 0, so those of its nodes and edges begin at 0."""

    dag: Dag
    columns: Columns
    item_ids: list[str]
    changes: list[Change]

    @property
    def released(self) -> list[int]:
        """The numbers of the nodes that are released at once."""
        return [n for n, left in enumerate(self.columns.lefts) if not left] if self.dag.released else []


class Born(NamedTuple):
    """What the shard adds to a DAG that it has made."""

    no: int
    created_at: datetime
    deadline_at: datetime | None


async def bear_dags(shard: Shard, births: Sequence[Birth], *, delay_s: float) -> list[Born | None]:
    """Make DAGs whole, with outbox rows for what is released (due for others in `delay_s`) and an `adding` row
    for what the queue is to be given disabled; None for each whose key is taken."""
    dags = [birth.dag for birth in births]
    changes = [(place, change) for place, birth in enumerate(births, 1) for change in birth.changes]

    def every(column: Callable[[Columns], Iterable[Any]]) -> list[Any]:
        return list(chain.from_iterable([column(birth.columns) for birth in births]))

    def placed(column: Callable[[Columns], Iterable[int]]) -> list[int]:
        """Numbers of nodes, with the place of their DAG in front where its number will be."""
        places = [place << NODE_BITS for place in range(1, len(births) + 1)]
        return [place + n for place, birth in zip(places, births, strict=True) for n in column(birth.columns)]

    rows = await shard.pool.fetch(
        SQL.bear_dags,
        ids=[dag.id for dag in dags],
        namespaces=[dag.namespace for dag in dags],
        keys=[dag.key for dag in dags],
        names=[dag.name for dag in dags],
        opens=[dag.open for dag in dags],
        helds=[dag.held for dag in dags],
        on_failures=[dag.on_failure for dag in dags],
        deadlines_s=[dag.deadline_s for dag in dags],
        metadatas=[dag.metadata for dag in dags],
        started_lifts=[dag.started_lift for dag in dags],
        path_lifts=[dag.path_lift for dag in dags],
        next_ns=[dag.next_n for dag in dags],
        edge_counts=[dag.edges for dag in dags],
        blockeds=[dag.blocked for dag in dags],
        releaseds=[dag.released for dag in dags],
        last_events=[dag.last_event for dag in dags],
        nos=placed(lambda columns: range(len(columns.keys))),
        node_keys=_lines(every(lambda columns: columns.keys)),
        item_ids=list(chain.from_iterable([birth.item_ids for birth in births])),
        topics=_lines(every(lambda columns: columns.topics)),
        triggers=_lines(every(lambda columns: columns.triggers)),
        passes=every(lambda columns: columns.passes),
        fingerprints=b"".join(every(lambda columns: columns.fingerprints)),
        lefts=every(lambda columns: columns.lefts),
        items=_lines(every(lambda columns: columns.items)),
        ups=placed(lambda columns: columns.ups),
        downs=placed(lambda columns: columns.downs),
        change_places=[place for place, _ in changes],
        change_lasts=[change.last_event for _, change in changes],
        change_nodes=[change.nodes for _, change in changes],
        change_dags=[change.dag for _, change in changes],
        delay_s=delay_s,
    )
    born: list[Born | None] = [None] * len(births)
    for place, *row in rows:
        born[place - 1] = Born(*row)
    return born


def _lines(texts: Sequence[str]) -> str:
    """Texts without control characters as one: an array costs a step for each, here and at the server."""
    return "\n".join(texts)
