"""The statement that makes whole new DAGs, bound."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from services.dag.model import Change, Dag
from services.dag.store import SQL, NodeRow
from shared.shards import Shard


class Birth(NamedTuple):
    """A new DAG as it will stand. Its own number is still 0, so those of its nodes and edges begin at 0."""

    dag: Dag
    nodes: list[NodeRow]
    edges: list[tuple[int, int]]
    changes: list[Change]


class Born(NamedTuple):
    """What the shard adds to a DAG that it has made."""

    no: int
    created_at: datetime
    deadline_at: datetime | None


async def bear_dags(shard: Shard, births: Sequence[Birth], *, delay_s: float) -> list[Born | None]:
    """Make DAGs whole, with outbox rows for what is released (due for others in `delay_s`) and an `adding` row
    for what the queue is to be given disabled; None for each whose key is taken."""
    dags = [birth.dag for birth in births]
    nodes = [(place, row) for place, birth in enumerate(births, 1) for row in birth.nodes]
    edges = [(place, up, down) for place, birth in enumerate(births, 1) for up, down in birth.edges]
    changes = [(place, change) for place, birth in enumerate(births, 1) for change in birth.changes]
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
        node_places=[place for place, _ in nodes],
        node_ns=[row.no for _, row in nodes],
        node_keys=[row.new.key for _, row in nodes],
        item_ids=[row.item_id for _, row in nodes],
        states=[row.state for _, row in nodes],
        topics=[row.new.topic for _, row in nodes],
        triggers=[row.new.trigger for _, row in nodes],
        passes=[row.new.pass_outputs for _, row in nodes],
        fingerprints=[row.new.fingerprint for _, row in nodes],
        enqueueds=[row.enqueued for _, row in nodes],
        lefts=[row.counts.left for _, row in nodes],
        items=[row.new.item for _, row in nodes],
        edge_places=[place for place, _, _ in edges],
        ups=[up for _, up, _ in edges],
        downs=[down for _, _, down in edges],
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
