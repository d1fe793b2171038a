"""Nodes begin new generations: a chunk in the transaction of a retry, or, of a large one, step by step.

While steps go on, the DAG's `cleanup_phase` is `REOPENING`, and nothing in it is decided: a node could not tell
whether an upstream's end is still good. Ends are taken as ever. Once all that runs again is blocked, the blocked
nodes are counted anew; then the DAG goes on, with a walk over them that decides each. Where cleanup alone runs
again the DAG keeps its end, and goes on as when it came to it. In a DAG that is cancelled meanwhile what is not
reopened stays as it ended, but for cleanup: it comes again at that end.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from services.dag import store
from services.dag.model import REOPENING, Dag, NodeNo, Send, within
from services.dag.run import cleanup
from services.dag.run.context import Context
from services.dag.run.decisions import Settlement
from services.dag.store.dags import Replaced
from services.dag.store.reopening import Reopening, RetryPlan
from shared import ids
from shared.crash import crash_point
from shared.ids import ShardNo

SPARED: Final = ("skipped", "cancelled")
ENDED: Final = ("succeeded", "failed", *SPARED)
BEGUN: Final = (*ENDED, "released")

_COUNTED = ("blocked",)


async def reopen(
    context: Context,
    settlement: Settlement,
    dag: Dag,
    nos: Sequence[NodeNo],
    queue_shard: ShardNo,
    *,
    since: datetime | None = None,
) -> None:
    """Nodes begin their next generation, blocked. Externals that failed after `since` are not asked for again."""
    tx = settlement.tx
    await store.duties.drop_sends(tx, nos)
    await store.duties.delete_spread(tx, nos)
    await store.dags.retry_externals(tx, dag.no, nos, since)
    if dag.cleanups:
        await store.cleanup.note_done(tx, nos)
        # Cleanup alone is asked for, whatever it has undone.
        await store.cleanup.plan_again(tx, dag, nos, undo_again=dag.concluded)
    subs: list[Replaced] = []
    fresh = ids.with_dag_tag(ids.new_ids(queue_shard, len(nos)), dag.id)
    for old in await store.dags.retry_nodes(tx, dict(zip(nos, fresh, strict=True))):
        settlement.reopened(dag, old)
        if old.sub:
            subs.append(old)
        elif old.made and not old.timer:
            settlement.sends.append(Send(old.no, old.generation, "cancel", old.item_id, dag.namespace))
    # A sub-DAG that failed goes on from where it failed; in any other's place another one is made.
    others = [old for old in subs if old.was != "failed"]
    if others:
        await store.dags.rename_items(tx, {old.no: ids.new_id(context.shards.next().number) for old in others})
    for old in others:
        if old.was == "released":
            settlement.sends.append(Send(old.no, old.generation, "stop", old.item_id, dag.namespace))


async def begin(context: Context, settlement: Settlement, dag: Dag, plan: RetryPlan, queue_shard: ShardNo) -> None:
    """The first step of a large retry, in the transaction that takes it: from now on the DAG is reopened."""
    tx = settlement.tx
    cleanups = []
    if plan.cleanup_alone:
        cleanup.conclude(dag)
    else:
        cleanups = await store.cleanup.again(tx, dag) if dag.cleanups and dag.over else []
        dag.verdict = None
    await store.dags.reopen_dag(tx, dag)
    settlement.restart(dag)
    dag.cleanup_phase = REOPENING
    settlement.cleanup_changed(dag)
    settlement.walking = True
    await store.reopening.insert(tx, dag, plan, cleanups, queue_shard)
    if plan.named:
        await reopen(context, settlement, dag, plan.named, queue_shard)
        await store.reopening.insert_reach(tx, dict.fromkeys(plan.named, -1))


async def step(context: Context, settlement: Settlement, dag: Dag) -> None:
    """A bounded part of what is left; the last one lets the DAG go on."""
    tx = settlement.tx
    found = await store.reopening.of(tx, dag)
    crash_point(f"before_reopening_{found.stage}")
    if dag.state == "cancelling":
        await _reopen_cleanups(context, settlement, dag, found)
        return
    if found.stage == "count":
        await _count(context, settlement, dag, found)
        return
    if await _follow(context, settlement, dag, found):
        return
    if found.roots and found.after_no < dag.last_no:
        last_no = found.after_no + settlement.bounds.retry_step_nodes
        nos = await store.dags.retry_roots(
            tx, found.after_no + 1, last_no, found.roots, by_call_too=found.by_call_too
        )
        await _reopen(context, settlement, dag, nos, found)
        if not found.by_call_too:
            await store.reopening.insert_reach(tx, dict.fromkeys(nos, -1))
        await store.reopening.advance(tx, dag, "roots", last_no)
        return
    if dag.concluded:
        # Cleanup counts its edges itself, and goes on by itself.
        await store.reopening.drop(tx, dag)
        dag.cleanup_phase = 1
        settlement.cleanup_changed(dag)
        return
    if found.cleanups:
        await _reopen_cleanups(context, settlement, dag, found)
        return
    await store.reopening.advance(tx, dag, "count", dag.node_no(0) - 1)


async def _follow(context: Context, settlement: Settlement, dag: Dag, found: Reopening) -> bool:
    """Reopen what is below nodes that were; False when nothing is left."""
    tx, bounds = settlement.tx, settlement.bounds
    reach = await store.reopening.reach_of(tx, dag, bounds.retry_step_nodes)
    if not reach:
        return False
    # As many edges as the nodes of a step have in this DAG.
    edges = bounds.retry_step_nodes * dag.edges // max(dag.total, 1)
    below = await store.reopening.reach_below(
        tx,
        reach,
        found.below if found.stage == "named" else SPARED,
        nodes_max=bounds.retry_step_nodes,
        edges_max=min(max(edges, bounds.retry_step_nodes), bounds.retry_step_edges),
    )
    await store.reopening.delete_reach(tx, [no for no in reach if no not in below.left])
    await store.reopening.insert_reach(tx, {no: at for no, at in below.left.items() if reach.get(no) != at})
    await _reopen(context, settlement, dag, sorted(below.found), found)
    return True


async def _reopen(
    context: Context, settlement: Settlement, dag: Dag, nos: Sequence[NodeNo], found: Reopening
) -> None:
    if nos:
        await reopen(context, settlement, dag, nos, found.queue_shard, since=found.started_at)


async def _reopen_cleanups(context: Context, settlement: Settlement, dag: Dag, found: Reopening) -> None:
    """All cleanup is to come again, and what was compensated is to be done again; this not in a DAG that is being
    cancelled, which goes on to its end then."""
    tx, count, is_running = settlement.tx, settlement.bounds.retry_step_nodes, dag.state == "running"
    nodes = await store.dags.nodes_by_no(tx, found.cleanups[:count])
    again = [node.no for node in nodes if node.state in ENDED and (is_running or node.run_on is not None)]
    await _reopen(context, settlement, dag, again, found)
    left = found.cleanups[count:]
    await store.reopening.keep_cleanups(tx, dag, left)
    if not is_running and not left:
        await store.reopening.drop(tx, dag)
        dag.cleanup_phase = 0
        settlement.cleanup_changed(dag)


async def _count(context: Context, settlement: Settlement, dag: Dag, found: Reopening) -> None:
    tx, bounds = settlement.tx, settlement.bounds
    last_no = found.after_no + bounds.retry_step_nodes
    nodes = await store.dags.nodes_between(tx, found.after_no + 1, last_no, _COUNTED)
    counted = within(nodes, bounds.retry_step_edges)
    if counted:
        await store.edges.recount_edges(tx, [node.no for node in counted])
    if len(counted) < len(nodes):
        last_no = counted[-1].no
    if last_no < dag.last_no:
        await store.reopening.advance(tx, dag, "count", last_no)
        return
    await store.reopening.drop(tx, dag)
    dag.cleanup_phase = 0
    settlement.cleanup_changed(dag)
    await store.duties.insert_scan(tx, dag.no, "release", dag.node_no(0) - 1)
    settlement.walking = True
