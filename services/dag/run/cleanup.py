"""What runs once all ordinary nodes have ended: first compensation, wave by wave, then cleanup.

The ordinary nodes decide the DAG's end, its `verdict`; the DAG keeps its state until compensation and cleanup
have ended too, and takes that end then, whatever came of them. A cancel leaves them alone.

Compensation undoes in the reverse order of what happened. Where b waited for a, a had ended when b was
released, so nodes that were out at the same time did not wait for one another: their compensations run
together, and those of what had ended before wait for them. That needs no look at the graph, and is a
reverse topological order of it.

What counts is what was done. A node that succeeded, was retried and did not come to its end again, has its first
success undone: a retry notes it (`note_done`) before it begins the new generation, and a compensation that
succeeds takes note of that (`note_undone`), so that nothing is undone twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

from services.dag import store
from services.dag.model import Dag, within
from services.dag.run.decisions import Settlement
from services.dag.store.cleanup import CleanupNode
from shared.postgres.connections import Transaction


class Span(NamedTuple):
    """When the node was out that `no` compensates."""

    no: int
    released_at: datetime
    finished_at: datetime


def waves(spans: Iterable[Span]) -> dict[int, int]:
    """Turns, from 1, the latest first: one's node had ended before any node of an earlier turn was released,
    or they are of one turn."""
    order = sorted(spans, key=lambda span: (span.finished_at, span.released_at), reverse=True)
    latest: list[datetime] = []
    for span in reversed(order):
        latest.append(max(span.released_at, latest[-1]) if latest else span.released_at)
    latest.reverse()
    turns: dict[int, int] = {}
    wave, bound = 0, None
    for span, released_at in zip(order, latest, strict=True):
        if bound is None or span.finished_at <= bound:
            wave, bound = wave + 1, released_at
        turns[span.no] = wave
    return turns


async def step(
    tx: Transaction, settlement: Settlement, dag: Dag, after_no: int, *, nodes_max: int, edges_max: int
) -> int | None:
    """Go on cleaning up; where to go on from in the next step, None when ends will bring the next one."""
    if dag.cleanup_phase <= 0 or dag.over:
        return None
    if dag.cleanup_phase == 1:
        await _plan(tx, settlement, dag)
        if dag.released or not dag.cleaning:
            return None
        while nos := await store.cleanup.take_wave(tx, dag):
            for node in await store.dags.nodes_by_no(tx, nos):
                settlement.compensate(node)
            if dag.released:
                return None
        dag.cleanup_phase = 2
        settlement.cleanup_changed(dag)
    nos = await store.cleanup.page(tx, dag, after_no, nodes_max)
    if not nos:
        return None
    counted = [node.no for node in within(await store.dags.nodes_by_no(tx, nos), edges_max)]
    # In a DAG that was cancelled edges are not flipped; here the ends of ordinary nodes are final.
    await store.edges.recount_edges(tx, counted)
    for node in await store.dags.nodes_by_no(tx, counted):
        settlement.consider(node)
    return counted[-1] if len(counted) < len(nos) or len(nos) == nodes_max else None


async def _plan(tx: Transaction, settlement: Settlement, dag: Dag) -> None:
    found = await store.cleanup.unplanned(tx, dag)
    if not found:
        return
    turns: dict[int, int | None] = {row.no: None for row in found}
    spans, idle = [], []
    for row in found:
        if row.state != "blocked":
            continue
        if dag.verdict == "succeeded" or row.finished_at is None:
            idle.append(row.no)
        else:
            spans.append(Span(row.no, row.released_at or row.finished_at, row.finished_at))
    turns.update(waves(spans))
    await store.cleanup.set_waves(tx, dag, turns)
    for node in await store.dags.nodes_by_no(tx, idle) if idle else ():
        settlement.end(node, "skipped")


async def widen_retry(tx: Transaction, dag: Dag, nos: Sequence[int]) -> list[int]:
    """What a retry of these nodes reopens with them. When an ordinary node of an ended DAG runs again, all
    cleanup is to come again, and what was compensated is to be done again."""
    if not dag.cleanups or not dag.over:
        return list(nos)
    known = {node.no: node for node in await store.cleanup.all_of(tx, dag)}
    reach = set(nos)
    if reach - known.keys():
        reach.update(_again(known.values()))
        dag.verdict, dag.cleanup_phase = None, 0
    else:
        dag.cleanup_phase = 1
    undone = [no for no in sorted(reach) if no in known and known[no].of_no is not None]
    if undone and dag.cleanup_phase:
        await store.cleanup.undo_again(tx, dag, undone)
    elif undone:
        await store.cleanup.set_waves(tx, dag, dict.fromkeys(undone, 0))
    return sorted(reach)


async def again(tx: Transaction, dag: Dag) -> list[int]:
    """What a retry of ordinary nodes reopens with them in an ended DAG."""
    return sorted(_again(await store.cleanup.all_of(tx, dag)))


async def numbers(tx: Transaction, dag: Dag) -> set[int]:
    """All cleanup nodes and compensations."""
    return {node.no for node in await store.cleanup.all_of(tx, dag)}


async def plan_again(tx: Transaction, dag: Dag) -> None:
    """Reopened compensations have no turn yet."""
    of_nos = {node.no: node.of_no for node in await store.cleanup.all_of(tx, dag) if node.of_no is not None}
    nodes = await store.dags.nodes_by_no(tx, list(of_nos)) if of_nos else []
    undone: dict[int, int | None] = {node.no: 0 for node in nodes if node.state == "blocked"}
    if undone:
        await store.cleanup.set_waves(tx, dag, undone)


def _again(known: Iterable[CleanupNode]) -> set[int]:
    found = {node.no for node in known if not node.by_call}
    return found | {node.of_no for node in known if node.ran and node.of_no is not None}
