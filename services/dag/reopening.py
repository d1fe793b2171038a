"""Nodes begin new generations: a chunk in the transaction of a retry, or, of a large one, step by step.

While steps go on, the DAG's `cleanup_phase` is `REOPENING`, and nothing in it is decided: a node could not tell
whether an upstream's end is still good. Ends are taken as ever. Once all that runs again is blocked, the blocked
nodes are counted anew; then the DAG goes on, with a walk over them that decides each.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

from services.dag import cleaning, store, store_duties, store_edges, store_reopening
from services.dag.context import Context
from services.dag.model import REOPENING, Dag, Node, Send
from services.dag.settling import Settlement
from services.dag.store import Replaced
from services.dag.store_reopening import Plan, Reopening
from shared import ids
from shared.crash import crash_point

SPARED: Final = ("skipped", "cancelled")
ENDED: Final = ("succeeded", "failed", *SPARED)
BEGUN: Final = (*ENDED, "released")

_COUNTED = ("blocked",)


async def reopen(
    context: Context,
    settlement: Settlement,
    dag: Dag,
    nos: Sequence[int],
    queue_shard: int,
    *,
    since: datetime | None = None,
) -> None:
    """Nodes begin their next generation, blocked. Externals that failed after `since` are not asked for again."""
    tx = settlement.tx
    await store_duties.drop_sends(tx, nos)
    await store_duties.delete_spread(tx, nos)
    await store.retry_externals(tx, dag.no, nos, since)
    subs: list[Replaced] = []
    fresh = ids.kin(ids.new_ids(queue_shard, len(nos)), dag.id)
    for old in await store.retry_nodes(tx, dict(zip(nos, fresh, strict=True))):
        settlement.reopened(dag, old)
        if old.sub:
            subs.append(old)
        elif old.made:
            settlement.sends.append(Send(old.no, old.generation, "cancel", old.item_id, dag.namespace))
    # A sub-DAG that failed goes on from where it failed; in any other's place another one is made.
    others = [old for old in subs if old.was != "failed"]
    if others:
        await store.rename_items(tx, {old.no: ids.new_id(context.shards.next().number) for old in others})
    for old in others:
        if old.was == "released":
            settlement.sends.append(Send(old.no, old.generation, "stop", old.item_id, dag.namespace))


async def begin(context: Context, settlement: Settlement, dag: Dag, plan: Plan, queue_shard: int) -> None:
    """The first step of a large retry, in the transaction that takes it: from now on the DAG is reopened."""
    tx = settlement.tx
    cleanups = await cleaning.again(tx, dag) if dag.cleanups and dag.over else []
    await store.reopen_dag(tx, dag)
    settlement.restart(dag)
    dag.verdict, dag.cleanup_phase = None, REOPENING
    settlement.cleanup_changed(dag)
    settlement.walking = True
    await store_reopening.insert(tx, dag, plan, cleanups, queue_shard)
    if plan.named:
        await reopen(context, settlement, dag, plan.named, queue_shard)
        await store_reopening.insert_reach(tx, plan.named)


async def step(context: Context, settlement: Settlement, dag: Dag) -> None:
    """A bounded part of what is left; the last one lets the DAG go on."""
    tx = settlement.tx
    found = await store_reopening.of(tx, dag)
    crash_point(f"before_reopening_{found.stage}")
    if found.stage == "count":
        await _count(context, settlement, dag, found)
        return
    if await _follow(context, settlement, dag, found):
        return
    if found.roots and found.after_no < dag.last_no:
        last_no = found.after_no + context.settings.retry_step_nodes
        nos = await store.retry_roots(tx, found.after_no + 1, last_no, found.roots, by_call_too=found.by_call_too)
        await _reopen(context, settlement, dag, nos, found, follow=not found.by_call_too)
        await store_reopening.advance(tx, dag, "roots", last_no)
        return
    await _reopen_cleanups(context, settlement, dag, found)
    await store_reopening.advance(tx, dag, "count", dag.node_no(0) - 1)


async def _follow(context: Context, settlement: Settlement, dag: Dag, found: Reopening) -> bool:
    """Reopen what is below nodes that were; False when nothing is left."""
    tx, limit = settlement.tx, context.settings.retry_step_nodes
    reach = await store_reopening.reach_of(tx, dag, limit)
    if not reach:
        return False
    edges = await store_reopening.edges_below(tx, reach, limit)
    states = found.below if found.stage == "named" else SPARED
    nos = {edge.down for edge in edges if edge.state in states and not (edge.by_call and edge.state in SPARED)}
    done = list(reach)
    if len(edges) == limit:
        last = edges[-1]
        done = [no for no in reach if no < last.up]
        await store_reopening.advance_reach(tx, last.up, last.down)
    await store_reopening.delete_reach(tx, done)
    await _reopen(context, settlement, dag, sorted(nos), found, follow=True)
    return True


async def _reopen(
    context: Context, settlement: Settlement, dag: Dag, nos: Sequence[int], found: Reopening, *, follow: bool
) -> None:
    if not nos:
        return
    await reopen(context, settlement, dag, nos, found.queue_shard, since=found.started_at)
    if follow:
        await store_reopening.insert_reach(settlement.tx, nos)


async def _reopen_cleanups(context: Context, settlement: Settlement, dag: Dag, found: Reopening) -> None:
    """All cleanup is to come again, and what was compensated is to be done again."""
    if not found.cleanups:
        return
    nodes = await store.nodes_by_no(settlement.tx, found.cleanups)
    nos = [node.no for node in nodes if node.state in ENDED]
    await _reopen(context, settlement, dag, nos, found, follow=False)
    await cleaning.plan_again(settlement.tx, dag)


async def _count(context: Context, settlement: Settlement, dag: Dag, found: Reopening) -> None:
    tx, settings = settlement.tx, context.settings
    last_no = found.after_no + settings.retry_step_nodes
    nodes = await store.nodes_between(tx, found.after_no + 1, last_no, _COUNTED)
    within = _within(nodes, settings.retry_step_edges)
    if within:
        await store_edges.recount_edges(tx, [node.no for node in within])
    if len(within) < len(nodes):
        last_no = within[-1].no
    if last_no < dag.last_no:
        await store_reopening.advance(tx, dag, "count", last_no)
        return
    await store_reopening.drop(tx, dag)
    dag.cleanup_phase = 0
    settlement.cleanup_changed(dag)
    await store_duties.insert_scan(tx, dag.no, "release", dag.node_no(0) - 1)
    settlement.walking = True


def _within(nodes: Iterable[Node], edges_max: int) -> list[Node]:
    """The first nodes that together have so many upstreams; always one."""
    taken: list[Node] = []
    for node in nodes:
        edges_max -= node.upstreams
        if edges_max < 0 and taken:
            break
        taken.append(node)
    return taken
