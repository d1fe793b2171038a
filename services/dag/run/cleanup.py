"""What runs once all ordinary nodes have ended: first compensation, wave by wave, then cleanup.

The ordinary nodes decide the DAG's end, its `verdict`; the DAG keeps its state until compensation and cleanup
have ended too, and takes that end then, whatever came of them. A cancel leaves them alone.

Compensation undoes in the reverse order of what happened. Where b waited for a, a had ended when b was
released, so nodes that were out at the same time did not wait for one another: their compensations run
together, and those of what had ended before wait for them. That needs no look at the graph, and is a
reverse topological order of it.

What counts is what was done. A node that succeeded, was retried and did not come to its end again, has its first
success undone: a retry notes it (`note_done`) before it begins the new generation, and a compensation that
succeeds takes note of that (`note_undone`), so that nothing is undone twice. What a compensation had begun to
undo is noted when it begins anew itself (`plan_again`): the next retry of ordinary nodes runs that again, also
where the compensation has not run since.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

from services.dag import store
from services.dag.model import Dag, NodeNo, within
from services.dag.run.decisions import Settlement
from services.dag.store.cleanup import NOTHING_LEFT, NOW
from shared.postgres.connections import Transaction

# More than these are for a thread: they would keep the loop.
_SPANS_AT_ONCE_MAX = 1_000


class Span(NamedTuple):
    """When the node was out that `no` compensates."""

    no: NodeNo
    released_at: datetime
    finished_at: datetime


def waves(spans: Iterable[Span]) -> dict[NodeNo, int]:
    """Turns, from 1, the latest first: one's node had ended before any node of an earlier turn was released,
    or they are of one turn."""
    order = sorted(spans, key=lambda span: (span.finished_at, span.released_at), reverse=True)
    latest: list[datetime] = []
    for span in reversed(order):
        latest.append(max(span.released_at, latest[-1]) if latest else span.released_at)
    latest.reverse()
    turns: dict[NodeNo, int] = {}
    wave, bound = 0, None
    for span, released_at in zip(order, latest, strict=True):
        if bound is None or span.finished_at <= bound:
            wave, bound = wave + 1, released_at
        turns[span.no] = wave
    return turns


async def step(settlement: Settlement, dag: Dag, after_no: int) -> int | None:
    """Go on cleaning up; where to go on from in the next step, None when ends will bring the next one."""
    if dag.cleanup_phase <= 0 or dag.over:
        return None
    if dag.cleanup_phase == 1:
        nodes = await _compensations(settlement, dag)
        if nodes is None:
            return None
        if nodes:
            return after_no
        dag.cleanup_phase = 2
        settlement.cleanup_changed(dag)
    tx, nodes_max = settlement.tx, settlement.bounds.scan_nodes_max
    nos = await store.cleanup.page(tx, dag, after_no, nodes_max)
    if not nos:
        return None
    counted = [node.no for node in within(await store.dags.nodes_by_no(tx, nos), settlement.bounds.scan_edges_max)]
    # In a DAG that was cancelled edges are not flipped; here the ends of ordinary nodes are final.
    await store.edges.recount_edges(tx, counted)
    for node in await store.dags.nodes_by_no(tx, counted):
        settlement.consider(node)
    return counted[-1] if len(counted) < len(nos) or len(nos) == nodes_max else None


async def _compensations(settlement: Settlement, dag: Dag) -> int | None:
    """Go on compensating; how many nodes were decided, None when others are to end first. 0: that was all."""
    tx, nodes_max = settlement.tx, settlement.bounds.scan_nodes_max
    await _plan(tx, dag)
    if nos := await store.cleanup.take_wave(tx, dag, NOTHING_LEFT, nodes_max):
        for node in await store.dags.nodes_by_no(tx, nos):
            settlement.end(node, "skipped")
        return len(nos)
    if not dag.cleaning:
        return None
    nos = await store.cleanup.take_wave(tx, dag, NOW, nodes_max)
    if not nos and dag.released:
        return None
    if not nos:
        await store.cleanup.next_wave(tx, dag)
        nos = await store.cleanup.take_wave(tx, dag, NOW, nodes_max)
    for node in await store.dags.nodes_by_no(tx, nos) if nos else ():
        settlement.compensate(node)
    return len(nos)


async def _plan(tx: Transaction, dag: Dag) -> None:
    """Give each compensation that has none its turn."""
    found = await store.cleanup.unplanned(tx, dag)
    if not found:
        return
    turns: dict[NodeNo, int | None] = {row.no: None for row in found}
    spans = []
    for row in found:
        if row.state != "blocked":
            continue
        if dag.verdict == "succeeded" or row.finished_at is None:
            turns[row.no] = NOTHING_LEFT
        else:
            spans.append(Span(row.no, row.released_at or row.finished_at, row.finished_at))
    is_large = len(spans) > _SPANS_AT_ONCE_MAX
    turns.update(await asyncio.to_thread(waves, spans) if is_large else waves(spans))
    await store.cleanup.set_waves(tx, dag, turns)


async def widen_retry(tx: Transaction, dag: Dag, nos: Sequence[NodeNo]) -> list[NodeNo]:
    """What a retry of these nodes reopens with them. When an ordinary node of an ended DAG runs again, all
    cleanup is to come again, and what was compensated is to be done again."""
    if not dag.cleanups or not dag.over:
        return list(nos)
    if (await store.cleanup.numbers(tx, dag)).issuperset(nos):
        conclude(dag)
        dag.cleanup_phase = 1
        return list(nos)
    dag.verdict, dag.cleanup_phase = None, 0
    return sorted({*nos, *await store.cleanup.again(tx, dag)})


def conclude(dag: Dag) -> None:
    """A DAG that has ended keeps its end, whatever comes of the cleanup that is retried alone."""
    if dag.verdict is None:
        dag.verdict = dag.state
