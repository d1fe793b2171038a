"""Transcode a video while it is still being uploaded: a DAG that is built step by step, while it runs.

    python -m examples.video_upload           # against the services of `make run`

    chunk 0 --------------------+
    chunk 1 -- thumbnail 1 -----+--> stitch --> publish
    chunk 2 --------------------+
     ...            (upload complete)

Nobody knows at the start how many chunks there will be. A chunk becomes a node when its upload begins, and waits
for the external `uploaded`. Whoever transcodes a chunk decides whether it gets a thumbnail, and adds that node to
the graph from inside its own. The stitch waits for every chunk and thumbnail, and for the external `complete`,
which keeps it closed for as long as there may be more. What a step returns, the next ones find in their inputs.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from headgate import AsyncClient, AsyncDagHandle, Dag, Job, Worker

TRANSCODE, THUMBNAIL, STITCH, PUBLISH = "video/transcode", "video/thumbnail", "video/stitch", "video/publish"
THUMBNAIL_EVERY = 4
ATTEMPTS_MAX = 3


@dataclass(frozen=True)
class Video:
    """A video to upload. Its content follows from its name, so nothing has to be stored anywhere."""

    name: str = "holiday"
    chunks: int = 48
    connections: int = 6
    transfer_ms: float = 250

    def chunk(self, number: int) -> bytes:
        """What a store would answer for a chunk."""
        return sha256(f"{self.name}/{number}".encode()).digest()

    def transfer_s(self, number: int) -> float:
        """How long a chunk is under way: half to one and a half of the mean, so that they overtake one another."""
        return self.transfer_ms / 1_000 * (0.5 + self.chunk(number)[0] / 255)


def transcoded(chunk: bytes) -> str:
    return sha256(b"h265" + chunk).hexdigest()


def stitched(parts: list[str]) -> str:
    return sha256("".join(parts).encode()).hexdigest()[:16]


def expected_digest(video: Video) -> str:
    """The digest of the stitched video, worked out here."""
    return stitched([transcoded(video.chunk(number)) for number in range(video.chunks)])


def has_thumbnail(number: int) -> bool:
    return number % THUMBNAIL_EVERY == 1


async def start(client: AsyncClient, video: Video) -> AsyncDagHandle:
    """Make the graph's end, which is all that is known of it."""
    dag = Dag("video upload", metadata={"video": video.name})
    stitch = dag.node("stitch", STITCH, external=["complete"], pass_outputs=True, max_attempts=ATTEMPTS_MAX)
    dag.node("publish", PUBLISH, after=[stitch], pass_outputs=True, max_attempts=ATTEMPTS_MAX)
    return await client.submit(dag)


async def upload(dag: AsyncDagHandle, video: Video, *, resolving: Callable[[str], None] | None = None) -> None:
    """Upload all chunks, a few at a time; `resolving` is told of each node whose external is about to happen."""
    numbers = iter(range(video.chunks))
    tell = resolving or (lambda _node: None)

    async def connection() -> None:
        for number in numbers:
            key = f"chunk {number}"
            await dag.add(
                key,
                TRANSCODE,
                external=["uploaded"],
                payload={"name": video.name, "number": number},
                pass_outputs=True,
                max_attempts=ATTEMPTS_MAX,
            )
            await dag.depend(key, "stitch")
            await asyncio.sleep(video.transfer_s(number))
            tell(key)
            await dag.resolve(key, "uploaded", data={"ref": f"{video.name}/{number}"})

    async with asyncio.TaskGroup() as connections:
        for _ in range(video.connections):
            connections.create_task(connection())
    tell("stitch")
    await dag.resolve("stitch", "complete", data={"chunks": video.chunks})


def add_tasks(worker: Worker, *, slots: int = 8) -> None:
    """Let a worker do every step."""

    @worker.task(TRANSCODE, slots=slots)
    async def transcode(job: Job) -> dict[str, Any]:
        video, number = Video(job.payload["name"]), job.payload["number"]
        assert job.inputs["external:uploaded"] == {"ref": f"{video.name}/{number}"}
        await asyncio.sleep(0.02)
        if has_thumbnail(number):
            await add_thumbnail(job, number)
        return {"number": number, "part": transcoded(video.chunk(number))}

    @worker.task(THUMBNAIL, slots=slots)
    async def thumbnail(job: Job) -> dict[str, Any]:
        await asyncio.sleep(0.01)
        (chunk,) = job.inputs.values()
        return {"of": chunk["number"]}

    @worker.task(STITCH)
    async def stitch(job: Job) -> dict[str, Any]:
        chunks = job.inputs["external:complete"]["chunks"]
        parts = {output["number"]: output["part"] for output in job.inputs.values() if "part" in output}
        thumbnails = [output["of"] for output in job.inputs.values() if "of" in output]
        assert len(parts) == chunks, f"{len(parts)} of {chunks} chunks"
        digest = stitched([parts[number] for number in range(chunks)])
        return {"digest": digest, "chunks": chunks, "thumbnails": sorted(thumbnails)}

    @worker.task(PUBLISH)
    async def publish(job: Job) -> dict[str, Any]:
        return {"published": True, **job.inputs["stitch"]}


async def add_thumbnail(job: Job, number: int) -> None:
    """Grow the graph from inside a node. A job that is delivered twice changes nothing the second time."""
    assert job.dag is not None
    dag = job.client.dag(job.dag.id)
    key = f"thumbnail {number}"
    await dag.add(key, THUMBNAIL, after=[job.dag.node], pass_outputs=True, max_attempts=ATTEMPTS_MAX)
    # The stitch is still closed: it waits for the chunk that this very job is transcoding.
    await dag.depend(key, "stitch")


def expected_result(video: Video) -> dict[str, Any]:
    """What `publish` should return."""
    thumbnails = [number for number in range(video.chunks) if has_thumbnail(number)]
    return {"published": True, "digest": expected_digest(video), "chunks": video.chunks, "thumbnails": thumbnails}


async def main() -> None:
    """Upload a video and work on it in the same process."""
    video = Video()
    async with AsyncClient() as client:
        worker = Worker(client)
        add_tasks(worker)
        working = asyncio.create_task(worker.run(signals=False))
        handle = await start(client, video)
        await upload(handle, video)
        dag = await handle.wait()
        worker.stop()
        await working
        published = await handle.node("publish")
    print(f"{dag.state}: {dag.nodes.total} nodes, {published.output}")
    assert published.output == expected_result(video)


if __name__ == "__main__":
    asyncio.run(main())
