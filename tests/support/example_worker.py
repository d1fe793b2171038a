"""A worker of all the examples of workflows, and of what they call; run as a program, it is there to be killed."""

import asyncio
from collections.abc import Callable
from typing import Any

from examples import unified
from examples.workflows import app_submission, backfill, order, provisioning
from headgate import AsyncClient, Job, Worker

TASK_S = 0.1
STAGE_S = 0
WORKFLOWS: dict[str, Callable[..., Any]] = {
    "order": order.order,
    "app-submission": app_submission.app_submission,
    "cluster": provisioning.cluster,
    "machine": provisioning.machine,
    "backfill": backfill.backfill,
}
ANSWERS: dict[str, Callable[[Any], Any]] = {
    "stock/reserve": lambda _: "r-1",
    "card/charge": lambda amount: f"paid {amount}",
    "ship/pack": lambda item: f"a box of {item}",
    "ship/label": lambda boxes: f"label of {len(boxes)}",
    "net/create": lambda name: f"net {name}",
    "disk/create": lambda name: f"disk of {name}",
    "vm/create": lambda made: f"vm on {made['disk']}",
    "vm/is-up": lambda _: True,
    **{f"check/{kind}": lambda version: version for kind in ("signature", "malware", "policy")},
    "store/roll-out": lambda stage: stage["percent"],
    **{f"etl/{step}": lambda day: day for step in ("fetch", "clean", "totals", "publish")},
}


def build(client: AsyncClient) -> Worker:
    """Leases end soon: what a killed worker held is another's in two seconds."""
    worker = Worker(client, lease_s=2, wait_s=2, drain_s=1)
    for type, function in WORKFLOWS.items():
        worker.workflow(type)(function)
    for topic, answer in ANSWERS.items():
        worker.task(topic, slots=4)(_handler(answer))
    return worker


def _handler(answer: Callable[[Any], Any]) -> Callable[[Job], Any]:
    async def handle(job: Job) -> Any:
        await asyncio.sleep(TASK_S)
        return answer(job.payload)

    return handle


async def main() -> None:
    app_submission.STAGE_S = STAGE_S
    unified.worker.lease_s = 2
    await asyncio.gather(build(AsyncClient()).run(signals=False), unified.worker.run(signals=False))


if __name__ == "__main__":
    asyncio.run(main())
