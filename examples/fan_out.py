"""Fan out over pages, collect what they yield, and mend what failed.

    python -m examples.fan_out                # against the services of `make run`

One page cannot be fetched at first. What waits for all pages to succeed (`index`) is skipped, what waits for all
of them to end (`report`) is not. After the repair a retry runs the failed page and the skipped index again; the
other pages keep what they have done.
"""

import asyncio

from headgate import AsyncClient, Dag, Fail, Job, Worker

PAGES = 20
FETCH, INDEX, REPORT = "pages/fetch", "pages/index", "pages/report"


def fan_out_dag() -> Dag:
    dag = Dag("fan out")
    pages = [
        dag.node(f"page {number}", FETCH, payload={"number": number}, pass_outputs=True) for number in range(PAGES)
    ]
    dag.node("index", INDEX, after=pages, pass_outputs=True)
    dag.node("report", REPORT, after=pages, pass_outputs=True, trigger="all_done")
    return dag


def add_tasks(worker: Worker, broken: set[int]) -> None:
    """Let a worker fetch pages, all but those that are broken."""

    @worker.task(FETCH, slots=10)
    async def fetch(job: Job) -> int:
        number: int = job.payload["number"]
        if number in broken:
            raise Fail(f"page {number} cannot be fetched")
        return 1_000 + number

    @worker.task(INDEX)
    async def index(job: Job) -> int:
        return sum(job.inputs.values())

    @worker.task(REPORT)
    async def report(job: Job) -> str:
        return f"{len(job.inputs)} of {PAGES} pages"


async def main() -> None:
    """Run it with a broken page, mend the page, retry."""
    broken = {13}
    async with AsyncClient() as client:
        worker = Worker(client)
        add_tasks(worker, broken)
        working = asyncio.create_task(worker.run(signals=False))
        handle = await client.submit(fan_out_dag())

        dag = await handle.wait()
        failed = await handle.node("page 13")
        report = await handle.node("report")
        print(f"{dag.state}: {report.output}; {failed.error}")
        assert (dag.state, dag.nodes.failed, dag.nodes.skipped) == ("failed", 1, 1)

        broken.clear()
        await handle.retry()
        dag = await handle.wait()
        index = await handle.node("index")
        print(f"{dag.state}: the index holds {index.output} words")
        assert (dag.state, index.output) == ("succeeded", sum(range(1_000, 1_000 + PAGES)))

        worker.stop()
        await working


if __name__ == "__main__":
    asyncio.run(main())
