"""A map of a map, a DAG within a DAG, cleanup and compensation.

    python -m examples.album                  # against the services of `make run`

Nobody knows beforehand how many albums there are, nor how many pictures each has: `scan` expands itself into
albums and each album into its pictures. `index` was there first and waits for all of them. Then a DAG of its own
announces the index; that fails, so what `upload` did is undone, and the scratch space is dropped in any case.
"""

import asyncio
from collections.abc import Sequence

from headgate import AsyncClient, Dag, Fail, Job, Node, Worker

ALBUMS = {"sea": 3, "hills": 2, "town": 4}
TOPICS = ("album/scan", "album/pictures", "album/resize", "album/index", "album/publish", "album/tidy")
SCAN, PICTURES, RESIZE, INDEX, PUBLISH, TIDY = TOPICS


def album_dag() -> Dag:
    dag = Dag("album")
    scan = dag.node("scan", SCAN)
    index = dag.node("index", INDEX, after=[scan], pass_outputs=True)
    upload = dag.node("upload", PUBLISH, after=[index])
    dag.node("delete upload", TIDY, compensates="upload")
    announce = Dag("announce")
    announce.node("mail", PUBLISH, after=[announce.node("render", PUBLISH)])
    dag.subdag("announce", announce, after=[upload])
    dag.node("drop scratch space", TIDY, run_on="always")
    return dag


def add_tasks(worker: Worker, tidied: list[str]) -> None:
    """Let a worker do all of it; sending mail is what fails."""

    @worker.task(SCAN)
    async def scan(job: Job) -> None:
        await job.expand([Node(name, PICTURES, options={"payload": name}) for name in ALBUMS])

    @worker.task(PICTURES, slots=4)
    async def pictures(job: Job) -> None:
        name = job.payload
        found: Sequence[Node] = [Node(f"{name}/{n}", RESIZE) for n in range(ALBUMS[name])]
        await job.expand(found)

    @worker.task(RESIZE, slots=4)
    async def resize(job: Job) -> str:
        return f"{job.id}.jpg"

    @worker.task(INDEX)
    async def index(job: Job) -> int:
        return sum(1 for picture in job.inputs.values() if picture and picture.endswith(".jpg"))

    @worker.task(PUBLISH, slots=2)
    async def publish(job: Job) -> None:
        if job.dag is not None and job.dag.node == "mail":
            raise Fail("no mail today")

    @worker.task(TIDY)
    async def tidy(job: Job) -> None:
        if job.dag is not None:
            tidied.append(job.dag.node)


async def main() -> None:
    """Run it to its failed end, and look at what is left."""
    tidied: list[str] = []
    async with AsyncClient() as client:
        worker = Worker(client)
        add_tasks(worker, tidied)
        working = asyncio.create_task(worker.run(signals=False))
        handle = await client.submit(album_dag())
        dag = await handle.wait()
        index = await handle.node("index")
        announce = await handle.node("announce")
        worker.stop()
        await working
    assert index.output == sum(ALBUMS.values()), "the index waits for every picture of every album"
    assert announce.state == "failed"
    assert tidied == ["delete upload", "drop scratch space"]
    print(f"{dag.state}: {index.output} pictures; then {', '.join(tidied)}")


if __name__ == "__main__":
    asyncio.run(main())
