"""One worker, one client, one page for both models: a graph starts code, which starts a graph, which starts code.

    python -m examples.unified

The outer graph is a release: a build, then a review, then the publication. The review is a workflow: code that
runs for as long as it takes, asks a graph of checks, and waits for a word of approval. One of the checks is a
workflow again. Kill the worker or either service at any time: everything goes on where it was.
"""

import asyncio
import secrets
from typing import Any

from headgate import AsyncClient, Dag, Job, NotFound, Worker, Workflow

worker = Worker(AsyncClient())


@worker.task("ci/build")
async def build(job: Job) -> str:
    return f"image:{job.payload}"


@worker.task("ci/check")
async def check(job: Job) -> str:
    return f"{job.payload} is fine"


@worker.task("ci/publish")
async def publish(job: Job) -> str:
    return f"published, since {job.inputs['review']['by']} approved"


@worker.workflow("soak")
async def soak(wf: Workflow, seconds: float) -> str:
    await wf.sleep(seconds)
    return await wf.call("ci/check", "the soak")


@worker.workflow("release-review")
async def review(wf: Workflow, version: str) -> dict[str, Any]:
    checks = Dag("checks")
    checks.node("licences", "ci/check", payload="each licence")
    checks.workflow("soak", "soak", 0.2)
    found = await wf.dag(checks)
    wf.publish("checks", found)
    approval = await wf.receive("approval")
    return {"by": approval["by"], "checks": sorted(found)}


def release(review_id: str) -> Dag:
    dag = Dag("release")
    built = dag.node("build", "ci/build", payload="v1")
    reviewed = dag.workflow("review", "release-review", "v1", id=review_id, after=[built])
    dag.node("publish", "ci/publish", after=[reviewed], pass_outputs=True)
    return dag


async def main() -> None:
    working = asyncio.create_task(worker.run(signals=False))
    review_id = f"review-{secrets.token_hex(4)}"
    async with AsyncClient() as client:
        handle = await client.submit(release(review_id))
        while True:
            try:  # it begins when the build is done
                await client.workflows.get(review_id).signal("approval", {"by": "ada"})
                break
            except NotFound:
                await asyncio.sleep(0.1)
        dag = await handle.wait()
        print(f"{dag.state}: {await handle.output('publish')}")
    worker.stop()
    await working


if __name__ == "__main__":
    asyncio.run(main())
