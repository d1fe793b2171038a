"""The statements of `sql/`, bound: one short method each. A `Transaction` argument stands for the DAG's lock."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from services.dag.model import (
    Addition,
    Change,
    Counts,
    Dag,
    DagNo,
    Ending,
    Item,
    Lifts,
    NewDag,
    NewNode,
    Node,
    NodeNo,
    Parent,
    Ref,
    Send,
)
from shared.postgres.connections import Transaction
from shared.postgres.rows import column_of, map_of, rows_of, value_of, value_or_none
from shared.postgres.sql import load
from shared.shards.shard_map import Shard

SQL = load(Path(__file__).parent / "sql")
_KEYS_AT_ONCE_MAX = 5_000


class Ended(NamedTuple):
    """A node that a statement has just made terminal."""

    dag_no: DagNo
    no: NodeNo
    generation: int
    was: str
    state: str
    run_on: str | None = None
    tolerate: bool = False


class Moved(NamedTuple):
    """What is decided of a node. Without `item_id` it keeps the one it has."""

    state: str
    error: str | None = None
    item_id: str | None = None


class NodeRow(NamedTuple):
    """A new node and its numbers, as it is inserted, blocked. When it `waits`, that is all there is to decide;
    `enqueued` when the queue is to be given its item disabled."""

    no: NodeNo
    new: NewNode
    item_id: str
    waits: bool
    enqueued: bool
    counts: Counts
    ext_left: int
    ext_failed: bool


class WaitingItem(NamedTuple):
    """A node of an add whose item the queue may not have been given."""

    no: NodeNo
    key: str
    item_id: str
    generation: int
    spec: str


class ItemRow(NamedTuple):
    """What an enqueue of a node needs, with the lifts of its DAG and whether that has started."""

    no: NodeNo
    id: str
    key: str
    item: str
    started_lift: int
    path_lift: int
    structure_version: int
    started: bool

    @property
    def lifts(self) -> Lifts | None:
        """By how much its priority may be lowered, if at all."""
        if not self.started_lift and not self.path_lift:
            return None
        return Lifts(self.started_lift if self.started else 0, self.path_lift, self.structure_version)


class NodeInput(NamedTuple):
    """Something passed on to a node, as JSON text."""

    no: NodeNo
    name: str
    value: str


class Walk(NamedTuple):
    """A terminal node whose edges are not all flipped; `current` is False when it has moved on."""

    no: NodeNo
    after_down: int
    state: str
    current: bool


class NamedNode(NamedTuple):
    """A node that a retry names; `by_call` when a caller skipped or cancelled it."""

    no: NodeNo
    state: str
    by_call: bool


class Replaced(NamedTuple):
    """What a retry replaces: the old generation and whether the queue has an item of it (or it was begun)."""

    no: NodeNo
    was: str
    generation: int
    item_id: str
    made: bool
    sub: bool
    run_on: str | None = None
    tolerate: bool = False
    timer: bool = False


# DAG rows


async def lock_dags(tx: Transaction, ids: Sequence[str]) -> list[Dag]:
    """Lock the rows of DAGs by id, ascending; unknown ids are left out."""
    return [Dag(*row) for row in await tx.fetch(SQL.lock_dags, ids=ids)]


async def lock_dag_nos(tx: Transaction, nos: Iterable[DagNo]) -> list[Dag]:
    """Lock the rows of DAGs by number, ascending."""
    return [Dag(*row) for row in await tx.fetch(SQL.lock_dag_nos, nos=sorted(set(nos)))]


async def insert_dag(
    tx: Transaction, dag_id: str, namespace: str, new: NewDag, parent: Parent | None = None
) -> Dag | None:
    """A new DAG, or None when its key, or a sub-DAG's id, is taken."""
    row = await tx.row(
        SQL.insert_dag,
        id=dag_id,
        namespace=namespace,
        key=new.key,
        name=new.name,
        open=new.open,
        held=new.held,
        on_failure=new.on_failure,
        deadline_s=new.deadline_s,
        metadata=new.metadata,
        depth=parent.depth if parent else 0,
        parent_dag=parent.dag if parent else None,
        parent_node=parent.node if parent else None,
        parent_generation=parent.generation if parent else None,
        started_lift=new.started_lift or 0,
        path_lift=new.path_lift or 0,
        content=new.content,
    )
    return Dag(*row) if row else None


async def content_of(tx: Transaction, dag_no: DagNo) -> bytes | None:
    """The digest of the call that made a DAG with a key."""
    return await value_or_none(bytes, tx, SQL.content_of, no=dag_no)


async def leave_key(tx: Transaction, namespace: str, key: str) -> None:
    """A DAG that has ended gives its key up."""
    await tx.fetch(SQL.leave_key, namespace=namespace, key=key)


async def find_dag(tx: Transaction, namespace: str, *, key: str | None, dag_id: str) -> Dag | None:
    """The DAG of a key; without one, of an id; None where there is none any more."""
    statement, name = (SQL.get_dag, {"id": dag_id}) if key is None else (SQL.get_dag_by_key, {"key": key})
    row = await tx.row(statement, namespace=namespace, **name)
    return Dag(*row) if row is not None else None


async def grow_dag(tx: Transaction, dag: Dag, *, structure_changed: bool) -> None:
    """Write `next_n`, `edges`, `externals` and `expanded`; a changed structure gets the next version."""
    dag.structure_version = await value_of(
        int,
        tx,
        SQL.grow_dag,
        no=dag.no,
        next_n=dag.next_n,
        edges=dag.edges,
        externals=dag.externals,
        structure_changed=structure_changed,
        expanded=dag.expanded,
    )


async def set_flags(tx: Transaction, dag: Dag) -> None:
    """Write `open`, `held`, `paused`, `closed` and `reason`."""
    await tx.row(
        SQL.set_flags,
        no=dag.no,
        open=dag.open,
        held=dag.held,
        paused=dag.paused,
        closed=dag.closed,
        reason=dag.reason,
    )


async def set_tolerated(tx: Transaction, dag: Dag) -> None:
    """Write `tolerated`."""
    await tx.fetch(SQL.set_tolerated, no=dag.no, tolerated=dag.tolerated)


async def reopen_dag(tx: Transaction, dag: Dag) -> None:
    """An ended DAG runs again: forget its end and take it out of the tally."""
    if dag.over:
        await tx.row(
            SQL.untally,
            state=dag.state,
            succeeded=dag.succeeded,
            failed=dag.failed,
            skipped=dag.skipped,
            cancelled=dag.cancelled,
        )
    dag.deadline_at, dag.endings = await tx.row(SQL.reopen_dag, no=dag.no)


async def past_deadline(tx: Transaction, dag_no: DagNo) -> bool:
    """True when the DAG's deadline has passed by the shard's clock."""
    return bool(await value_of(bool, tx, SQL.past_deadline, no=dag_no))


async def settle(
    tx: Transaction,
    moved: dict[NodeNo, Moved],
    sends: Sequence[Send],
    dags: Sequence[tuple[Dag, str]],
    changes: Sequence[Change],
    *,
    delay_s: float,
) -> dict[DagNo, datetime | None]:
    """Write decided nodes, outbox rows (due for others in `delay_s`), DAG rows with their old states, and the log.

    Returns when each DAG finished, by number.
    """
    rows = await tx.fetch(
        SQL.settle,
        node_nos=list(moved),
        node_states=[move.state for move in moved.values()],
        errors=[move.error for move in moved.values()],
        item_ids=[move.item_id for move in moved.values()],
        send_node_nos=[s.no for s in sends],
        send_generations=[s.generation for s in sends],
        send_actions=[s.action for s in sends],
        send_item_ids=[s.item_id for s in sends],
        send_inputs=[s.inputs for s in sends],
        delay_s=delay_s,
        nos=[dag.no for dag, _ in dags],
        was_states=[was for _, was in dags],
        dag_states=[dag.state for dag, _ in dags],
        causes=[dag.cancel_cause for dag, _ in dags],
        blockeds=[dag.blocked for dag, _ in dags],
        releaseds=[dag.released for dag, _ in dags],
        succeededs=[dag.succeeded for dag, _ in dags],
        faileds=[dag.failed for dag, _ in dags],
        skippeds=[dag.skipped for dag, _ in dags],
        cancelleds=[dag.cancelled for dag, _ in dags],
        last_events=[dag.last_event for dag, _ in dags],
        change_dag_nos=[change.dag_no for change in changes],
        change_lasts=[change.last_event for change in changes],
        change_nodes=[change.nodes for change in changes],
        change_dags=[change.dag for change in changes],
    )
    return dict(rows)


# Nodes


async def nodes_by_key(
    tx: Transaction, dag_no: DagNo, keys: Iterable[str]
) -> tuple[dict[str, Node], dict[str, bytes]]:
    """The nodes that exist among `keys`, and their fingerprints."""
    wanted = list(keys)
    nodes: dict[str, Node] = {}
    fingerprints: dict[str, bytes] = {}
    for at in range(0, len(wanted), _KEYS_AT_ONCE_MAX):
        some = wanted[at : at + _KEYS_AT_ONCE_MAX]
        for *columns, fingerprint in await tx.fetch(SQL.nodes_by_key, dag_no=dag_no, keys=some):
            node = Node(*columns)
            nodes[node.key], fingerprints[node.key] = node, fingerprint
    return nodes, fingerprints


async def nodes_by_no(tx: Transaction, nos: Sequence[NodeNo]) -> list[Node]:
    """Nodes by number."""
    return [Node(*row) for row in await tx.fetch(SQL.nodes_by_no, nos=nos)]


async def nodes_between(tx: Transaction, first_no: int, last_no: int, states: Sequence[str]) -> list[Node]:
    """Nodes numbered `first_no` to `last_no` in one of `states`."""
    values = {"first_no": first_no, "last_no": last_no}
    return [Node(*row) for row in await tx.fetch(SQL.nodes_between, **values, states=states)]


async def node_keys(tx: Transaction, nos: Sequence[NodeNo]) -> dict[NodeNo, str]:
    """Keys of nodes by number."""
    return await map_of(NodeNo, str, tx, SQL.node_keys, nos=nos)


async def insert_nodes(tx: Transaction, dag_no: DagNo, rows: Sequence[NodeRow]) -> None:
    """Insert nodes, blocked, and their specs."""
    counts = [row.counts for row in rows]
    await tx.fetch(
        SQL.insert_nodes,
        dag_no=dag_no,
        nos=[row.no for row in rows],
        keys=[row.new.key for row in rows],
        item_ids=[row.item_id for row in rows],
        topics="\n".join([row.new.topic for row in rows]),
        triggers="\n".join([row.new.trigger for row in rows]),
        passes=[row.new.pass_outputs for row in rows],
        fingerprints=b"".join([row.new.fingerprint for row in rows]),
        enqueueds=[row.enqueued for row in rows],
        lefts=[each.left for each in counts],
        oks=[each.ok for each in counts],
        faileds=[each.failed for each in counts],
        skippeds=[each.skipped for each in counts],
        cancelleds=[each.cancelled for each in counts],
        ext_lefts=[row.ext_left for row in rows],
        ext_faileds=[row.ext_failed for row in rows],
        items="\n".join([row.new.item for row in rows]),
        subs=[row.new.sub for row in rows],
        run_ons="\n".join([row.new.run_on or "" for row in rows]),
        tolerates=[row.new.tolerate for row in rows],
        timers=[row.new.timer for row in rows],
    )


async def mark_ended(tx: Transaction, ends: Sequence[tuple[int, Ending]]) -> list[Ended]:
    """Make nodes terminal whose generation still lives; each (DAG, key, generation) at most once in `ends`."""
    rows = await tx.fetch(
        SQL.mark_ended,
        dag_nos=[no for no, _ in ends],
        keys=[end.key for _, end in ends],
        generations=[end.generation for _, end in ends],
        states=[end.state for _, end in ends],
        outputs=[end.output for _, end in ends],
        errors=[end.error for _, end in ends],
        attempts=[end.attempts for _, end in ends],
        started_ats=[end.started_at for _, end in ends],
        workers=[end.worker for _, end in ends],
    )
    return [Ended(*row) for row in rows]


async def mark_refs(tx: Transaction, refs: dict[Ref, str | None], state: str) -> list[Ended]:
    """Make nodes terminal by number, each with an error text or none."""
    rows = await tx.fetch(
        SQL.mark_refs,
        nos=[ref.no for ref in refs],
        generations=[ref.generation for ref in refs],
        state=state,
        errors=list(refs.values()),
    )
    return [Ended(*row) for row in rows]


async def count_late(tx: Transaction, late: dict[NodeNo, Counts]) -> list[Node]:
    """Count new edges at their old downstreams."""
    rows = await tx.fetch(
        SQL.count_late,
        nos=list(late),
        lefts=[c.left for c in late.values()],
        oks=[c.ok for c in late.values()],
        faileds=[c.failed for c in late.values()],
        skippeds=[c.skipped for c in late.values()],
        cancelleds=[c.cancelled for c in late.values()],
    )
    return [Node(*row) for row in rows]


async def count_resolved(tx: Transaction, dag_no: DagNo, resolved: dict[str, tuple[int, bool]]) -> list[Node]:
    """Count resolved externals at the nodes that declared them."""
    rows = await tx.fetch(
        SQL.count_resolved,
        dag_no=dag_no,
        keys=list(resolved),
        counts=[count for count, _ in resolved.values()],
        faileds=[failed for _, failed in resolved.values()],
    )
    return [Node(*row) for row in rows]


async def skip_by_call(tx: Transaction, nos: Sequence[NodeNo]) -> None:
    """Remember that a caller skipped these."""
    await tx.fetch(SQL.skip_by_call, nos=nos)


async def rename_items(tx: Transaction, item_ids: dict[NodeNo, str]) -> None:
    """Other item ids for these nodes."""
    await tx.fetch(SQL.rename_items, nos=list(item_ids), item_ids=list(item_ids.values()))


async def cancel_by_call(tx: Transaction, nos: Sequence[NodeNo], reason: str | None) -> None:
    """Remember that a caller cancelled these, and why."""
    await tx.fetch(SQL.cancel_by_call, nos=nos, reason=reason)


async def renew_waiting(tx: Transaction, old: Sequence[WaitingItem], item_ids: Sequence[str]) -> None:
    """New item ids for nodes that the queue has not been given, where they still have the old ones."""
    await tx.fetch(
        SQL.renew_waiting,
        nos=[item.no for item in old],
        old_item_ids=[item.item_id for item in old],
        item_ids=item_ids,
    )


async def renew_released(tx: Transaction, ref: Ref, item_id: str) -> bool:
    """A new generation for a released node whose item is lost; False when it has moved on."""
    row = await tx.row(SQL.renew_released, no=ref.no, generation=ref.generation, item_id=item_id)
    return row is not None


async def waiting_items(tx: Transaction, addition: Addition, bytes_max: int) -> list[WaitingItem]:
    """The first nodes of an add that the queue may not have been given; the last one's item reaches the bound."""
    numbers = {"first_no": addition.first_no, "last_no": addition.last_no}
    return [WaitingItem(*row) for row in await tx.fetch(SQL.waiting_items, **numbers, bytes_max=bytes_max)]


async def items(shard: Shard, nos: Sequence[NodeNo]) -> dict[NodeNo, Item]:
    """What an enqueue of each node needs."""
    rows = await rows_of(ItemRow, shard.pool, SQL.items, nos=nos)
    return {row.no: Item(row.id, row.key, row.item, row.lifts) for row in rows}


async def inputs_sizes(tx: Transaction, nos: Sequence[NodeNo]) -> dict[NodeNo, int]:
    """About how many bytes each node's inputs take as JSON."""
    return await map_of(NodeNo, int, tx, SQL.inputs_sizes, nos=nos)


async def inputs(tx: Transaction, nos: Sequence[NodeNo]) -> list[NodeInput]:
    """Everything passed on to these nodes."""
    return await rows_of(NodeInput, tx, SQL.inputs, nos=nos)


# Retry


async def retry_roots(
    tx: Transaction, first_no: int, last_no: int, states: Sequence[str], *, by_call_too: bool
) -> list[NodeNo]:
    """Nodes in one of `states`; those that a caller skipped or cancelled only with `by_call_too`."""
    values = {"first_no": first_no, "last_no": last_no, "states": states, "by_call_too": by_call_too}
    return await column_of(NodeNo, tx, SQL.retry_roots, **values)


async def retry_named(tx: Transaction, dag_no: DagNo, keys: Iterable[str]) -> dict[str, NamedNode]:
    """The nodes that a retry names, by key."""
    rows = await tx.fetch(SQL.retry_named, dag_no=dag_no, keys=list(keys))
    return {key: NamedNode(*columns) for key, *columns in rows}


async def node_specs(tx: Transaction, nos: Sequence[NodeNo]) -> dict[NodeNo, str]:
    """What the items of nodes are made of, as JSON text."""
    return await map_of(NodeNo, str, tx, SQL.node_specs, nos=nos)


async def set_specs(tx: Transaction, specs: dict[NodeNo, str]) -> None:
    """Make the items of nodes of something else from now on."""
    await tx.fetch(SQL.set_specs, nos=list(specs), items=list(specs.values()))


async def retry_nodes(tx: Transaction, item_ids: dict[NodeNo, str]) -> list[Replaced]:
    """Begin a new generation of these nodes, with these item ids."""
    rows = await tx.fetch(SQL.retry_nodes, nos=list(item_ids), item_ids=list(item_ids.values()))
    return [Replaced(*row) for row in rows]


async def retry_externals(
    tx: Transaction, dag_no: DagNo, nos: Sequence[NodeNo], since: datetime | None = None
) -> None:
    """Externals of these nodes that were resolved as failed, but not after `since`, are unresolved again."""
    await tx.fetch(SQL.retry_externals, dag_no=dag_no, nos=nos, since=since)
