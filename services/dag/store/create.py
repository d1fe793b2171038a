"""The statements that make whole new DAGs, and more nodes of the same shape, bound."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from itertools import chain
from typing import Any, NamedTuple

from services.dag.model import NODE_BITS, Addition, Change, Dag, DagNo
from services.dag.store.dags import SQL
from shared.postgres.connections import Transaction
from shared.shards.shard_map import Shard


class Columns(NamedTuple):
    """New nodes, in the order of their numbers, and the edges into them, column by column, by their places.
    `lefts` are the upstreams that each waits for; `items` its queue item as JSON text."""

    keys: list[str]
    topics: list[str]
    triggers: list[str]
    passes: list[bool]
    fingerprints: list[bytes]
    items: list[str]
    lefts: list[int]
    ups: list[int]
    downs: list[int]


class NodeBatch(NamedTuple):
    """A new DAG as it will stand, its own number still 0; or a DAG with more nodes, as both will stand."""

    dag: Dag
    columns: Columns
    item_ids: list[str]
    changes: list[Change]
    # The number within the DAG of the first of these nodes.
    first_n: int = 0
    # Of a new DAG; see `NewDag`.
    content: bytes | None = None

    @property
    def released(self) -> list[int]:
        """The places of the nodes that are released at once."""
        return [n for n, left in enumerate(self.columns.lefts) if not left] if self.dag.releasing else []

    @property
    def given(self) -> list[int]:
        """The places of the nodes whose items the queue is given now: of what is released, and others ahead."""
        lefts, is_new = self.columns.lefts, self.first_n == 0
        free = self.dag.releasing or self.dag.given_ahead(0, is_new=is_new)
        blocked = self.dag.given_ahead(1, is_new=is_new)
        if free and blocked:
            return list(range(len(lefts)))
        return [n for n, left in enumerate(lefts) if (blocked if left else free)]

    @property
    def addition(self) -> Addition:
        """The numbers of these nodes, once the DAG has one."""
        first_no = self.dag.node_no(self.first_n)
        return Addition(first_no, first_no + len(self.columns.keys) - 1)


class CreatedDag(NamedTuple):
    """What the shard adds to a DAG that it has made."""

    no: DagNo
    created_at: datetime
    deadline_at: datetime | None


async def insert_dags(shard: Shard, batches: Sequence[NodeBatch], *, delay_s: float) -> list[CreatedDag | None]:
    """Make DAGs whole, with outbox rows for what is released (due for others in `delay_s`) and an `adding` row
    for what the queue is to be given disabled; None for each whose key is taken."""
    dags = [batch.dag for batch in batches]
    changes = [(place, change) for place, batch in enumerate(batches, 1) for change in batch.changes]

    def every(column: Callable[[Columns], Iterable[Any]]) -> list[Any]:
        return list(chain.from_iterable([column(batch.columns) for batch in batches]))

    def placed(column: Callable[[Columns], Iterable[int]]) -> list[int]:
        """Numbers of nodes, with the place of their DAG in front where its number will be."""
        places = [place << NODE_BITS for place in range(1, len(batches) + 1)]
        return [place + n for place, batch in zip(places, batches, strict=True) for n in column(batch.columns)]

    rows = await shard.pool.fetch(
        SQL.insert_dags,
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
        item_ids=list(chain.from_iterable([batch.item_ids for batch in batches])),
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
        contents=[batch.content for batch in batches],
    )
    created: list[CreatedDag | None] = [None] * len(batches)
    for place, *row in rows:
        created[place - 1] = CreatedDag(*row)
    return created


async def insert_node_batch(
    tx: Transaction, batch: NodeBatch, old_nos: Sequence[int], satisfied: Sequence[bool], *, delay_s: float
) -> None:
    """Add nodes to a DAG: with them everything that `insert_dags` writes of a DAG's first ones. In `ups` -1, -2,
    ... stand for nodes that were there, numbered `old_nos`; edges from those that are `satisfied` are flipped."""
    dag, columns = batch.dag, batch.columns
    first_no, _ = batch.addition
    count = len(columns.keys)
    oks = [0] * count
    flipped = [False] * len(columns.ups)
    if any(satisfied):
        flipped = [up < 0 and satisfied[-1 - up] for up in columns.ups]
        for down, is_flipped in zip(columns.downs, flipped, strict=True):
            oks[down] += is_flipped
    # A place is that from behind, where it is below 0.
    nos = [*range(first_no, first_no + count), *reversed(old_nos)]
    await tx.fetch(
        SQL.insert_node_batch,
        dag_no=dag.no,
        first_no=first_no,
        node_keys=_lines(columns.keys),
        item_ids=batch.item_ids,
        topics=_lines(columns.topics),
        triggers=_lines(columns.triggers),
        passes=columns.passes,
        fingerprints=b"".join(columns.fingerprints),
        lefts=columns.lefts,
        oks=oks,
        items=_lines(columns.items),
        releasing=dag.releasing,
        ups=[nos[up] for up in columns.ups],
        downs=[nos[down] for down in columns.downs],
        flipped=flipped,
        next_n=dag.next_n,
        edges=dag.edges,
        blocked=dag.blocked,
        released=dag.released,
        last_event=dag.last_event,
        change_lasts=[change.last_event for change in batch.changes],
        change_nodes=[change.nodes for change in batch.changes],
        change_dags=[change.dag for change in batch.changes],
        delay_s=delay_s,
    )


def _lines(texts: Sequence[str]) -> str:
    """Texts without control characters as one: an array costs a step for each, here and at the server."""
    return "\n".join(texts)
