"""A backfill: a graph for each day of a range, some at a time; days that fail are listed, and do not stop it.

    python -m examples.workflows.backfill

A run goes on as a new one after each part of the range, so its history stays short however long the range is.
"""

import asyncio
from datetime import date, timedelta
from typing import Any

from headgate import Dag, NodeFailed, Workflow
from headgate.testing import Simulation, simulate

AT_A_TIME = 4
DAYS_PER_RUN = 60


async def backfill(wf: Workflow, wanted: dict[str, Any]) -> dict[str, Any]:
    failed: list[str] = list(wanted.get("failed", ()))
    first, last = date.fromisoformat(wanted["first"]), date.fromisoformat(wanted["last"])
    days = [first + timedelta(days=number) for number in range((last - first).days + 1)]
    part, rest = days[:DAYS_PER_RUN], days[DAYS_PER_RUN:]
    waiting = iter(part)

    async def work() -> None:
        for day in waiting:
            try:
                await wf.dag(graph_of(day))
            except NodeFailed:
                failed.append(str(day))
            wf.publish("done", str(day))

    await asyncio.gather(*(work() for _ in range(AT_A_TIME)))
    if rest:
        wf.continue_as_new({"first": str(rest[0]), "last": str(last), "failed": failed})
    return {"failed": failed}


def graph_of(day: date) -> Dag:
    """What there is to do for one day."""
    dag = Dag(f"day {day}")
    fetched = dag.node("fetch", "etl/fetch", payload=str(day), max_attempts=3)
    clean = dag.node("clean", "etl/clean", after=[fetched], pass_outputs=True)
    totals = dag.node("totals", "etl/totals", after=[fetched], pass_outputs=True)
    dag.node("publish", "etl/publish", after=[clean, totals], pass_outputs=True)
    return dag


def simulated(first: str = "2030-01-01", last: str = "2030-01-20") -> Simulation:
    simulation = simulate(backfill, {"first": first, "last": last})
    simulation.on("etl/fetch", lambda day: 1 / (0 if day.endswith("-13") else 1), takes_s=60)
    return simulation.on("etl/publish", takes_s=5)


if __name__ == "__main__":
    done = simulated()
    print(f"{done.output} after {done.elapsed_s:.0f} s")
