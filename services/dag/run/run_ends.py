"""Runs of workflows that others end: their code is asked to, or is not."""

from __future__ import annotations

from services.dag import store
from services.dag.model import Dag
from services.dag.queue_items import encode
from services.dag.run.decisions import Settlement
from services.dag.store.runs import Run
from shared.postgres.connections import Transaction


async def request(
    tx: Transaction, settlement: Settlement, dag: Dag, run: Run, reason: str | None, grace_s: float
) -> None:
    """Ask a run to end; its code may clean up for `grace_s`. One that was asked already is not asked again."""
    if run.over or run.cancel_requested:
        return
    data = encode({} if reason is None else {"reason": reason})
    await store.runs.request_cancel(tx, run.dag_no, data, grace_s)
    settlement.wake(dag)


async def terminate(tx: Transaction, settlement: Settlement, dag: Dag, run: Run, reason: str) -> None:
    """End a run; its code hears nothing of it."""
    if run.over:
        return
    run.state, run.error = "cancelled", reason
    await store.runs.end(tx, run, run.state, reason)
    dag.ends_as = "cancelled"
    await store.runs.end_dag_as(tx, dag)
    [decider] = await store.dags.nodes_by_no(tx, [dag.node_no(0)])
    # Whoever holds its item hears of it.
    decider.enqueued = decider.state == "released"
    settlement.end(decider, "cancelled", reason)
    if dag.unfinished:
        settlement.cancel_rest(dag, "call", reason)


async def expire(tx: Transaction, settlement: Settlement, dag: Dag, grace_s: float) -> None:
    """A run's time is over: it is asked to end, and ended when that was of no use."""
    run = await store.runs.of(tx, dag.no)
    if run.cancel_requested:
        await terminate(tx, settlement, dag, run, f"it was asked to end, and did not within {grace_s:g} s")
    else:
        await request(tx, settlement, dag, run, f"its deadline of {dag.deadline_s:g} s passed", grace_s)
