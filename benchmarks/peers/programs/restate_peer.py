"""Restate: a server of one node, and in this process the services that it calls: workflows of steps, and of calls.

A run's journal is in the server's log on this machine's disk, which is synced before the result of a step, or of a
call, counts as there: its default, said here again. Best settings found: its default log, one partition for the
one run that there is at a time, HTTP/2 between server and services (a step goes over the stream that its run has
open), uvloop.
"""

import asyncio
import http.client
import importlib.metadata
import itertools
import json
import os
import sys
import time
import uuid
from asyncio.subprocess import Process
from pathlib import Path
from typing import Any

import hypercorn
import hypercorn.asyncio
import restate
import uvloop
from lines import say, serve

STARTS: list[float] = []
HOST = "127.0.0.1"
PACKAGE = "@restatedev/restate-server-linux-x64"
_START_S_MAX, _RUN_S_MAX = 60.0, 120.0

child = restate.Service("child")
steps = restate.Workflow("steps")
calls = restate.Workflow("calls")


async def step() -> None:
    STARTS.append(time.perf_counter())


@child.handler("run")
async def run_child(_ctx: restate.Context, number: int) -> int:
    STARTS.append(time.perf_counter())
    return number


@steps.main("run")
async def run_steps(ctx: restate.WorkflowContext, nodes: int) -> None:
    for _ in range(nodes):
        await ctx.run_typed("step", step)


@calls.main("run")
async def run_calls(ctx: restate.WorkflowContext, nodes: int) -> None:
    for number in range(nodes):
        assert await ctx.service_call(run_child, arg=number) == number


class Server:
    """A server with its data in a folder of its own, on ports of its own: for nodes, requests, and its admin."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._package = Path(settings["modules"]) / PACKAGE
        self._folder = settings["folder"]
        self._node, self._ingress, self._admin, self.services = settings["ports"]

    @property
    def version(self) -> str:
        """Which release it is."""
        return str(json.loads((self._package / "package.json").read_text())["version"])

    async def start(self) -> Process:
        """Its process; what it says goes where this one's errors go."""
        # Nothing of this process's environment: a proxy, or settings of another server, are not meant for it.
        environment = {
            "HOME": self._folder,
            "PATH": os.environ["PATH"],
            "RESTATE_BASE_DIR": f"{self._folder}/restate",
            "RESTATE_NODE_NAME": "bench",
            "RESTATE_LISTEN_MODE": "tcp",
            "RESTATE_BIND_ADDRESS": f"{HOST}:{self._node}",
            "RESTATE_ADVERTISED_ADDRESS": f"http://{HOST}:{self._node}/",
            "RESTATE_INGRESS__BIND_ADDRESS": f"{HOST}:{self._ingress}",
            "RESTATE_ADMIN__BIND_ADDRESS": f"{HOST}:{self._admin}",
            "RESTATE_BIFROST__DEFAULT_PROVIDER": "replicated",
            "RESTATE_LOG_SERVER__ROCKSDB_DISABLE_WAL_FSYNC": "false",
            "RESTATE_DEFAULT_NUM_PARTITIONS": "1",
            "RESTATE_DISABLE_TELEMETRY": "true",
            "RESTATE_LOG_FILTER": "warn",
            "RESTATE_LOG_DISABLE_ANSI_CODES": "true",
        }
        program = str(self._package / "bin" / "restate-server")
        return await asyncio.create_subprocess_exec(program, env=environment, stdout=sys.stderr)

    async def register(self) -> None:
        """Tell it where the services are, and run a workflow: it is ready when that has worked."""
        deadline = time.monotonic() + _START_S_MAX
        while True:
            try:
                await self._post(self._admin, "/deployments", {"uri": f"http://{HOST}:{self.services}"}, 10.0)
                await self.run("calls", 5, 10.0)
                return
            except (OSError, RuntimeError, http.client.HTTPException):
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(0.1)

    async def run(self, workflow: str, nodes: int, limit_s: float = _RUN_S_MAX) -> None:
        """Run a workflow to its end."""
        await self._post(self._ingress, f"/{workflow}/{uuid.uuid4()}/run", nodes, limit_s)

    async def _post(self, port: int, path: str, body: Any, limit_s: float) -> None:
        await asyncio.to_thread(_post, port, path, body, limit_s)


def _post(port: int, path: str, body: Any, limit_s: float) -> None:
    connection = http.client.HTTPConnection(HOST, port, timeout=limit_s)
    try:
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        said = answer.read().decode(errors="replace")
    finally:
        connection.close()
    if answer.status >= 300:
        raise RuntimeError(f"{path} was answered {answer.status}: {said}")


async def end_with(server: Process) -> None:
    """End when the server has, which a signal to the group of both makes it do: a read of input goes on."""
    await server.wait()
    os._exit(1)


async def main() -> None:
    server = Server(json.loads(sys.argv[1]))
    config = hypercorn.Config()
    config.bind = [f"{HOST}:{server.services}"]
    config.errorlog = None
    app = restate.app(services=[child, steps, calls])
    served = asyncio.create_task(hypercorn.asyncio.serve(app, config, shutdown_trigger=asyncio.Event().wait))
    process = await server.start()
    ending = asyncio.create_task(end_with(process))

    async def chain(request: dict[str, Any]) -> dict[str, Any]:
        STARTS.clear()
        say({"begun": True})
        await server.run("calls" if request.get("queued") else "steps", request["nodes"])
        say({"steps_ms": [(b - a) * 1000 for a, b in itertools.pairwise(STARTS)]})
        return {"stopped": True}

    try:
        await server.register()
        versions = {"restate-server": server.version, "restate-sdk": importlib.metadata.version("restate-sdk")}
        await serve(versions, {"chain": chain})
    finally:
        process.terminate()
        await asyncio.wait([ending, served], timeout=5.0)


uvloop.run(main())
