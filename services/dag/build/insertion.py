"""New nodes as one call adds them to a DAG: their rows, externals and edges, under the DAG's lock."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace

from services.dag import store
from services.dag.build import addition, run_spec
from services.dag.build.addition import Existing, Plan
from services.dag.graph import decide
from services.dag.model import UNFINISHED, Counts, Dag, Item, NewNode, Node, NodeNo
from services.dag.run.context import Context
from services.dag.run.decisions import Settlement
from services.dag.store.dags import NodeRow
from shared import ids
from shared.beside import beside
from shared.ids import ShardNo
from shared.postgres.connections import Transaction
from shared.shards.shard_map import ShardMap


async def insert(
    context: Context,
    tx: Transaction,
    dag: Dag,
    adding: Plan,
    existing: Existing,
    numbers: dict[str, NodeNo],
    queue_shard: ShardNo,
) -> list[NodeRow]:
    """Write the nodes, blocked, their externals and all new edges."""
    externals = await _declare(tx, dag, adding)
    at_once_max = context.settings.edges_at_once_max
    is_large = len(adding.edges) > at_once_max
    counts = await beside(is_large, addition.new_counts, adding, existing)
    rows = []
    item_ids = iter(ids.with_dag_tag(ids.new_ids(queue_shard, len(adding.nodes)), dag.id))
    for node in map(_named, adding.nodes):
        left, failed = externals.get(node.key, (0, False))
        waits = not failed and _waits(dag, node, counts[node.key], left)
        item_id = ids.new_id(_home(context.shards, dag, node)) if node.sub else next(item_ids)
        no = numbers[node.key]
        is_item = not node.sub and not node.timer and node.run_on is None
        is_ahead = waits and is_item and dag.given_ahead(counts[node.key].left)
        rows.append(NodeRow(no, node, item_id, waits, is_ahead, counts[node.key], left, failed))
    if rows:
        await store.dags.insert_nodes(tx, dag.no, rows)
    over = {key for key, node in existing.nodes.items() if node.state not in UNFINISHED}
    for begin in range(0, len(adding.edges), at_once_max):
        some = adding.edges[begin : begin + at_once_max]
        rows_of_edges = [
            (numbers[edge.upstream], numbers[edge.downstream], edge.upstream in over) for edge in some
        ]
        await store.edges.insert_edges(tx, rows_of_edges)
    if cleanups := adding.cleanups:
        of_nos = {numbers[n.key]: numbers[n.compensates] if n.compensates else None for n in cleanups}
        await store.cleanup.insert(tx, dag, of_nos)
        dag.cleanups += len(cleanups)
        dag.cleanup_left += len(cleanups)
    dag.next_n += len(rows)
    dag.edges += len(adding.edges)
    dag.move(None, "blocked", len(rows))
    await store.dags.grow_dag(tx, dag, structure_changed=bool(adding.edges))
    return rows


def _named(node: NewNode) -> NewNode:
    """A node of a run whose workflow has no id yet, with one."""
    if not run_spec.is_run(node.item):
        return node
    spec = run_spec.load(node.item)
    if spec.workflow_id:
        return node
    return replace(node, item=run_spec.dump(spec._replace(workflow_id=uuid.uuid4().hex)))


def _home(shards: ShardMap, dag: Dag, node: NewNode) -> int:
    """The shard of what runs in a node's place."""
    if run_spec.is_run(node.item):
        return run_spec.home_of(shards, dag.namespace, run_spec.load(node.item).workflow_id).number
    return shards.next().number


async def _declare(tx: Transaction, dag: Dag, adding: Plan) -> dict[str, tuple[int, bool]]:
    """Declare the new nodes' externals; how many of each node are open, and whether one has failed."""
    wanted: dict[tuple[str, str], float | None] = {}
    for node in adding.nodes:
        wanted.update(dict.fromkeys((node.key, name) for name in node.external))
        wanted.update({(node.key, name): deadline_s for name, deadline_s in node.deadlines})
    if not wanted:
        return {}
    facts, made = await store.edges.declare_externals(tx, dag.no, wanted)
    dag.externals += made
    found: dict[str, tuple[int, bool]] = {}
    for fact in facts:
        left, failed = found.get(fact.node, (0, False))
        found[fact.node] = (left + (not fact.resolved), failed or fact.failed)
    return found


def _waits(dag: Dag, node: NewNode, counts: Counts, ext_left: int) -> bool:
    """True when all that there is to decide of a new node is that it waits."""
    verdict = decide(node.trigger, counts)
    return verdict == "wait" or (verdict == "fire" and (ext_left > 0 or not dag.releasing))


def attach_items(settlement: Settlement, dag: Dag, rows: Sequence[NodeRow]) -> None:
    """Hand the relay the items that it would otherwise have to read back."""
    wanted = {send.no: send for send in settlement.sends if send.action == "enqueue"}
    for row in rows if wanted else ():
        if (send := wanted.get(row.no)) is not None:
            send.item = Item(dag.id, row.new.key, row.new.item)


def node_of(dag: Dag, row: NodeRow) -> Node:
    """A new node as reading it back would show it."""
    c = row.counts
    return Node(
        dag.no,
        row.no,
        row.new.key,
        row.item_id,
        "blocked",
        1,
        row.new.trigger,
        row.new.pass_outputs,
        row.enqueued,
        c.left,
        c.ok,
        c.failed,
        c.skipped,
        c.cancelled,
        row.ext_left,
        row.ext_failed,
        row.new.sub,
        row.new.run_on,
        row.new.tolerate,
        row.new.timer,
    )
