"""Ends of nodes, from wherever they come: completions, confirmed cancels, items that can never be made."""

from __future__ import annotations

from collections.abc import Sequence

from services.dag import store
from services.dag.model import DECIDER, Dag, Ending, Ref, Send, dag_of
from services.dag.run import deciders
from services.dag.run.context import Context
from services.dag.run.decisions import Settlement, why_cancelled
from shared import ids
from shared.metrics import RELEASE_LAG_SECONDS
from shared.postgres.connections import Transaction
from shared.shards.shard_map import Shard


class Completer:
    """Applies ends, each batch in one transaction. Everything here may be repeated to no further effect."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def apply(self, shard: Shard, endings: Sequence[Ending]) -> int:
        """Apply completions; returns how many found their node's generation alive.

        Unknown DAGs and nodes, older generations and repeats are without effect.
        """
        unique = {(end.dag_id, end.key, end.generation): end for end in endings}

        async def work(tx: Transaction) -> tuple[Settlement | None, tuple[int, int]]:
            dags = await store.dags.lock_dags(tx, sorted({end.dag_id for end in unique.values()}))
            nos = {dag.id: dag.no for dag in dags}
            why = {dag.id: why_cancelled(dag) for dag in dags}
            known = [
                (nos[end.dag_id], _explained(end, why[end.dag_id])) for end in unique.values() if end.dag_id in nos
            ]
            if not known:
                return None, (0, 0)
            settlement = Settlement(tx, dags, self._context.settings, self._context.home(shard))
            runs = {dag.no: dag for dag in dags if dag.workflow is not None}
            for no, end in known if runs else ():
                if no in runs and end.key == DECIDER:
                    await deciders.deliver_again(tx, settlement, runs[no], end.generation)
            ended = await store.dags.mark_ended(
                tx, [(no, end) for no, end in known if no not in runs or end.key != DECIDER]
            )
            for each in ended:
                settlement.ended(each)
            await settlement.run()
            return settlement, (len(ended), settlement.released)

        applied, released = await self._context.settle(shard, work)
        self._measure(shard, endings, released)
        return applied

    async def confirm_cancelled(self, shard: Shard, refs: Sequence[Ref]) -> None:
        """The queue will never deliver these again; those that are unfinished are cancelled."""
        await self._mark(shard, dict.fromkeys(refs), "cancelled")

    async def fail(self, shard: Shard, errors: dict[Ref, str]) -> None:
        """The queue will never take the items of these."""
        await self._mark(shard, dict(errors), "failed")

    async def renew(self, shard: Shard, send: Send) -> None:
        """The queue has lost a released node's item: make another one, in a new generation.

        Only once every completion written before is applied; the caller sees to that.
        """
        queue_shard = await self._context.queue_shard(shard)
        [item_id] = ids.with_dag_tag([ids.new_id(queue_shard)], send.item_id)

        async def work(tx: Transaction) -> tuple[Settlement | None, None]:
            dags = await store.dags.lock_dag_nos(tx, [dag_of(send.no)])
            settlement = Settlement(tx, dags, self._context.settings, self._context.home(shard))
            if dags[0].workflow is not None and send.no == dags[0].node_no(0):
                await deciders.deliver_again(
                    tx, settlement, dags[0], send.generation, delay_s=0.0, queue_shard=queue_shard
                )
                await settlement.run()
                return settlement, None
            nodes = await store.dags.nodes_by_no(tx, [send.no])
            # A DAG that is being cancelled cleans up nevertheless.
            wanted = any(dags[0].state == "running" or node.run_on is not None for node in nodes)
            if wanted and await store.dags.renew_released(tx, send.ref, item_id):
                again = Send(send.no, send.generation + 1, "enqueue", item_id, send.namespace, send.inputs)
                settlement.sends.append(again)
                settlement.renewed(dags[0], again.ref)
            await settlement.run()
            return settlement, None

        await self._context.settle(shard, work)

    async def _mark(self, shard: Shard, refs: dict[Ref, str | None], state: str) -> None:
        async def work(tx: Transaction) -> tuple[Settlement | None, None]:
            dags: list[Dag] = await store.dags.lock_dag_nos(tx, (dag_of(ref.no) for ref in refs))
            settlement = Settlement(tx, dags, self._context.settings, self._context.home(shard))
            why = {dag.no: why_cancelled(dag) for dag in dags} if state == "cancelled" else {}
            for dag in dags:
                for ref in [ref for ref in refs if dag.workflow is not None and ref.no == dag.node_no(0)]:
                    await deciders.deliver_again(tx, settlement, dag, ref.generation)
            told = {ref: error or why.get(dag_of(ref.no)) for ref, error in refs.items()}
            for end in await store.dags.mark_refs(tx, told, state):
                settlement.ended(end)
            await settlement.run()
            return settlement, None

        await self._context.settle(shard, work)

    def _measure(self, shard: Shard, endings: Sequence[Ending], released: int) -> None:
        now_s = self._context.clock.wall_s()
        times = [end.finished_at.timestamp() for end in endings if end.finished_at is not None]
        if not times:
            return
        gauges = self._context.gauges[shard.number]
        gauges.ack_lag_s.add(max(0.0, now_s - min(times)))
        if released:
            lag_s = max(0.0, now_s - max(times))
            gauges.release_lag_s.add(lag_s)
            RELEASE_LAG_SECONDS.labels(shard.number).observe(lag_s)


def _explained(end: Ending, why: str | None) -> Ending:
    """What a DAG's own cancel ended says so."""
    if end.state != "cancelled" or why is None:
        return end
    return end._replace(error=why if end.error is None else f"{why}; before: {end.error}")
