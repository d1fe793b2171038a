"""The functions that the tests of apps run, in workers of their own and in the test's process."""

import asyncio
import dataclasses
import os
import time
import uuid
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from headgate import App, Fail, FileStore, Job, JobCall, Retry

STORE = os.environ.get("MEDIA_STORE")


class Pool:
    """What the functions of a worker share."""

    def __init__(self) -> None:
        self.closed = False


class Strange(Exception):
    def __init__(self, what: str, *, level: int) -> None:
        super().__init__(what)
        self.level = level


async def lifespan(_: App) -> AsyncIterator[dict[str, Pool]]:
    pool = Pool()
    yield {"pool": pool}
    pool.closed = True


app = App(os.environ.get("MEDIA_NAMESPACE", "media"), lifespan=lifespan, store=FileStore(STORE) if STORE else None)


shared_pool = app.state(Pool)


@dataclasses.dataclass
class Page:
    url: str
    read_at: datetime
    body: bytes


class Book(BaseModel):
    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

    title: str
    pages: list[Page]
    id: uuid.UUID


@app.job(max_attempts=5, timeout_s=60, slots=8)
async def resize(src: str, width: int = 640) -> str:
    return f"{src}@{width}"


@app.job
def stitch(thumbs: list[str], title: str) -> str:
    return f"{title}: {', '.join(thumbs)}"


@app.job
def bind(pages: list[Page], title: str, book: uuid.UUID) -> Book:
    return Book(title=title, pages=pages, id=book)


@app.job
async def about(job: Job, pool: Pool = shared_pool) -> dict[str, object]:
    return {"attempt": job.attempt, "closed": pool.closed, "shared": job.state["pool"] is pool}


@app.job
def boom(text: str) -> None:
    raise ValueError(text, 7)


@app.job
async def strange(level: int) -> None:
    raise Strange("odd", level=level)


@app.job(max_attempts=3, backoff={"base_s": 0.05, "jitter": 0})
async def third_time(job: Job) -> int:
    if job.attempt < 3:
        raise OSError("not yet")
    return job.attempt


@app.job(timeout_s=0.2)
async def slow(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "slept"


@app.job(timeout_s=0.2)
def slow_thread(seconds: float) -> None:
    time.sleep(seconds)


@app.job
def lies() -> int:
    return "no number"  # type: ignore[return-value]


@app.job(batch=100)
def index(pages: list[str]) -> list[int]:
    return [len(pages)] * len(pages)


@app.job(batch=10, batch_wait_s=0.1)
async def picky(numbers: list[int]) -> list[object]:
    return [Fail("odd") if number % 2 else number for number in numbers]


@app.job(result=False)
def touch(path: str) -> None:
    with Path(path).open("a") as file:
        file.write("x")


@app.job
def pages(count: int) -> list[str]:
    return [f"page {number}" for number in range(count)]


@app.job
async def crawl(job: Job, depth: int, name: str = "root") -> str:
    if depth:
        for side in "ab":
            await job.add(crawl.call(depth - 1, f"{name}/{side}"))
    return name


@app.job
def grow(count: int) -> "list[JobCall[str]]":
    return [resize.call(f"s{number}") for number in range(count)]


@app.job
def count_nested(depth: int) -> "dict[str, object]":
    if depth == 0:
        return {"end": True}
    return {"below": [count_nested.call(depth - 1)]}


@app.job(max_attempts=10, backoff={"base_s": 0.01})
async def again(job: Job) -> str:
    if job.attempt == 1:
        raise Retry("once more", delay_s=0.01)
    return "done"


@app.job
async def large(count: int) -> str:
    return "x" * count


@app.job
def length(text: str) -> int:
    return len(text)


@app.job
async def keep(path: str, text: str) -> str:
    Path(path).write_text(text)
    return f"kept {text}"


@keep.undo
def unkeep(path: str, result: str) -> None:
    Path(path).write_text(f"undone {result}")


@app.task("raw/echo")
async def echo(job: Job) -> object:
    return job.payload
