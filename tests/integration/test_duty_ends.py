"""A served process whose background duty ends by itself: it is not ready any more, and it goes."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx

from services.local.stack import ROOT
from tests.support.ports import free_port

END_S = 30.0
DUTY_ENDED = 4

# An app with one duty, which fails for good once it was asked to, behind the real `serve`.
PROGRAM = """
import sys
from contextlib import asynccontextmanager

from fastapi import FastAPI

from shared.http.edge import install
from shared.log import configure
from shared.loop import Loop
from shared.http.serve import serve
from shared.settings import EdgeSettings
from shared.admission.delay import LoopLag


class Broken(BaseException):
    pass


wanted = False


async def step():
    if wanted:
        raise Broken
    return 0


async def ready():
    return {}


configure("queue")
loop = Loop("reaper", step, interval_s=0.01)
settings = EdgeSettings(drain_s=float(sys.argv[2]))


@asynccontextmanager
async def lifespan(_app):
    loop.start()
    yield
    await loop.stop()


app = FastAPI(lifespan=lifespan)
install(app, settings, LoopLag(1.0), ready=ready)


@app.post("/break")
async def break_it():
    global wanted
    wanted = True


serve(app, settings, port=int(sys.argv[1]))
"""


@asynccontextmanager
async def served(port: int, drain_s: float) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, str(port), str(drain_s), cwd=ROOT, stderr=asyncio.subprocess.PIPE
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def readiness(client: httpx.AsyncClient) -> int | None:
    """The status of `/readyz`; None: nobody answers."""
    try:
        return (await client.get("/readyz")).status_code
    except httpx.TransportError:
        return None


async def ready_is(client: httpx.AsyncClient, wanted: int) -> None:
    async with asyncio.timeout(END_S):
        while await readiness(client) != wanted:
            await asyncio.sleep(0.02)


async def test_a_process_whose_duty_has_ended_is_not_ready_and_goes() -> None:
    port = free_port()
    # The drain lasts for as long as the test looks.
    async with served(port, END_S), httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        await ready_is(client, 200)
        await client.post("/break")
        await ready_is(client, 503)
        answer = (await client.get("/readyz")).json()
        assert "reaper" in answer["detail"] and answer["outcome"] == "none"


async def test_the_exit_code_says_that_a_duty_has_ended() -> None:
    port = free_port()
    async with served(port, 0.1) as process, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        await ready_is(client, 200)
        await client.post("/break")
        _, told = await asyncio.wait_for(process.communicate(), END_S)
    assert process.returncode == DUTY_ENDED
    assert b"a background duty has ended" in told and b"Broken" in told


async def test_a_process_that_is_told_to_stop_has_lost_nothing() -> None:
    port = free_port()
    async with served(port, 0.1) as process, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        await ready_is(client, 200)
        process.send_signal(signal.SIGTERM)
        _, told = await asyncio.wait_for(process.communicate(), END_S)
    assert process.returncode != DUTY_ENDED
    assert b"has ended" not in told
