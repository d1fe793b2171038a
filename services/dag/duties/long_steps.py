"""Work too long for one transaction, step by step: fan-outs, skips, cancels, large retries, the end of a pause.

Each step locks its DAG, looks at what is left by its rows, does a bounded part of it and moves the cursor
in the same transaction. A walk whose node or DAG has moved on is dropped.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import suppress

from services.dag import store
from services.dag.duties.turns import Turns
from services.dag.model import UNFINISHED, Dag, DagNo
from services.dag.run import cleanup, reopening
from services.dag.run.context import Context
from services.dag.run.decisions import Settlement
from services.dag.settings import DagSettings
from services.dag.store.duties import Waiting
from shared.crash import crash_point
from shared.ids import ShardNo
from shared.loop import part_failed
from shared.postgres.connections import Transaction
from shared.shards.shard_map import Shard

_DAGS_PER_STEP = 8
_DAGS_PER_LOOK = 1_000
_PAUSE_S_MAX = 0.1
# What bounds a step.
_BOUNDS = (
    "edges_per_step_max",
    "walk_edges_max",
    "scan_nodes_max",
    "scan_edges_max",
    "retry_step_nodes",
    "retry_step_edges",
)


class Walker:
    """Goes on with walks."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._settings = context.settings
        self._leaving = asyncio.Event()
        self._turns: defaultdict[int, Turns] = defaultdict(Turns)
        self._looked_to: dict[ShardNo, int] = {}

    def leave(self) -> None:
        """The process goes: no more pauses."""
        self._leaving.set()

    async def step(self, shard: Shard) -> int:
        """One step of each of a few DAGs' walks; how many DAGs there were."""
        turns = self._turns[shard.number]
        waiting = await self._look(shard)
        nos = turns.pick(waiting, _DAGS_PER_STEP, self._context.clock.monotonic_s())
        for no in nos:
            took_s = await self._walk(shard, no, _part(self._settings, turns.share(no)))
            if took_s is None:
                turns.failed(no, self._context.clock.monotonic_s())
            else:
                turns.succeeded(no, took_s)
        return len(nos)

    async def _look(self, shard: Shard) -> list[Waiting]:
        """DAGs that have walks; of more than one look takes, each look goes on where the last one ended."""
        after_no = self._looked_to.get(shard.number, 0)
        found = await store.duties.walks(shard, after_no, _DAGS_PER_LOOK)
        if len(found) < _DAGS_PER_LOOK and after_no:
            before = await store.duties.walks(shard, 0, _DAGS_PER_LOOK - len(found))
            found += [each for each in before if each.dag_no <= after_no]
        self._looked_to[shard.number] = found[-1].dag_no if len(found) == _DAGS_PER_LOOK else 0
        return found

    async def _walk(self, shard: Shard, dag_no: DagNo, bounds: DagSettings) -> float | None:
        """One step of a DAG's walks, within `bounds`; how many seconds it took, None when it failed."""

        async def work(tx: Transaction) -> tuple[Settlement, None]:
            [dag] = await store.dags.lock_dag_nos(tx, [dag_no])
            settlement = Settlement(tx, [dag], bounds, self._context.home(shard))
            await self._spread(settlement, dag)
            for kind, after_no in (await store.duties.scans_of(tx, dag_no)).items():
                await self._scan(settlement, dag, kind, after_no)
            if dag.reopening:
                await reopening.step(self._context, settlement, dag)
            await settlement.run()
            return settlement, None

        begun_s = self._context.clock.monotonic_s()
        try:
            await self._context.settle(shard, work)
            took_s = self._context.clock.monotonic_s() - begun_s
            crash_point("after_walk_step")
            if self._context.neighbour_s(shard, dag_no) >= begun_s:
                # Other DAGs are at work too: they get as much of the machine as this walk.
                pause_s = min(took_s, _PAUSE_S_MAX)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._leaving.wait(), pause_s)
        except Exception as error:
            # One DAG's trouble must not hold up the others; its rows are still there.
            part_failed("a walk failed", error, shard=shard.number, dag_no=dag_no)
            return None
        return took_s

    async def _spread(self, settlement: Settlement, dag: Dag) -> None:
        tx, budget = settlement.tx, settlement.bounds.walk_edges_max
        done = []
        for walk in await store.duties.spread_of(tx, dag.no, budget):
            if budget <= 0:
                break
            if not dag.flipping or not walk.current or walk.state in UNFINISHED:
                done.append(walk.no)
                continue
            nodes = await store.edges.flip_after(tx, walk.no, walk.state, walk.after_down, budget)
            for node in nodes:
                settlement.consider(node)
            if len(nodes) < budget:
                done.append(walk.no)
            else:
                await store.duties.advance_spread(tx, walk.no, max(node.no for node in nodes))
            budget -= len(nodes)
        if done:
            await store.duties.delete_spread(tx, done)

    async def _scan(self, settlement: Settlement, dag: Dag, kind: str, after_no: int) -> None:
        tx, reached = settlement.tx, None
        if kind == "release" and dag.state == "running" and not dag.reopening:
            reached = await settlement.walk_blocked(dag, after_no)
        elif kind == "cancel" and dag.state == "cancelling":
            reached = await self._cancel(settlement, dag, after_no)
        elif kind == "cleanup":
            reached = await cleanup.step(settlement, dag, after_no)
        if reached is None:
            await store.duties.delete_scan(tx, dag.no, kind)
            if kind != "cleanup" and not dag.over:
                # So a walk that is begun again also ends a DAG whose end was lost.
                settlement.changed(dag)
        else:
            await store.duties.advance_scan(tx, dag.no, kind, reached)

    async def _cancel(self, settlement: Settlement, dag: Dag, after_no: int) -> int | None:
        last_no = after_no + settlement.bounds.scan_nodes_max
        nodes = await store.dags.nodes_between(settlement.tx, after_no + 1, last_no, list(UNFINISHED))
        settlement.cancel_items(node for node in nodes if node.run_on is None)
        return last_no if last_no < dag.last_no else None


def _part(settings: DagSettings, share: float) -> DagSettings:
    """The settings of a step that is so much of a whole one."""
    if share >= 1:
        return settings
    return settings.model_copy(update={name: max(1, int(getattr(settings, name) * share)) for name in _BOUNDS})
