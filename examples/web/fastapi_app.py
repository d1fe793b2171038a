"""Jobs of a FastAPI application: a request starts a flow, another one asks what became of it.

uvicorn examples.web.fastapi_app:api
headgate worker examples.web.fastapi_app:jobs
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

from headgate import App, NotDone, ResultGone

jobs = App("example-fastapi")


@jobs.job(max_attempts=3, slots=8)
async def resize(src: str, width: int = 640) -> str:
    return f"{src}@{width}"


@jobs.job
async def stitch(thumbs: list[str], title: str) -> str:
    return f"{title}: {', '.join(thumbs)}"


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    yield
    await jobs.aclose()


api = FastAPI(lifespan=lifespan)


class Album(BaseModel):
    title: str
    sources: list[str]


@api.post("/thumbnails", status_code=202)
async def make_thumbnail(src: str) -> dict[str, str]:
    job = await resize.enqueue(src)
    return {"job": job.id}


@api.get("/thumbnails/{job_id}")
async def thumbnail(job_id: str) -> dict[str, str | None]:
    job = resize.job(job_id)
    try:
        return {"status": "succeeded", "result": await job.aresult(timeout_s=0)}
    except NotDone:
        return {"status": await job.astatus(), "result": None}
    except ResultGone:
        raise HTTPException(404) from None


@api.post("/albums")
async def make_album(album: Album) -> dict[str, str]:
    flow = jobs.flow("album")
    last = flow.add(stitch.call([resize.call(src) for src in album.sources], title=album.title))
    run = await flow.start()
    return {"album": await run.aresult(last, timeout_s=30)}
