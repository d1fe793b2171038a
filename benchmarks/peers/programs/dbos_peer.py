"""DBOS: steps in one workflow, in this process, and child workflows through a queue.

Best settings found: sync steps for the chain, steps gathered in one async workflow for the fan; 50 ms polling
of the queue and 20 ms of results for child workflows.
"""

import asyncio
import importlib.metadata
import itertools
import json
import sys
import time
from typing import Any

from dbos import DBOS
from lines import say, serve

STARTS: list[float] = []
QUEUE = "children"


@DBOS.step()
def sync_step(number: int) -> int:
    STARTS.append(time.perf_counter())
    return number


@DBOS.workflow()
def chain_workflow(nodes: int) -> None:
    for number in range(nodes):
        sync_step(number)


@DBOS.step()
async def step(number: int) -> int:
    return number


@DBOS.workflow()
async def fan_workflow(width: int) -> int:
    await step(0)
    done = await asyncio.gather(*(step(i) for i in range(width)))
    return int(await step(len(done)))


@DBOS.workflow()
def child(number: int) -> int:
    STARTS.append(time.perf_counter())
    return number


@DBOS.workflow()
def queued_chain(nodes: int) -> None:
    for number in range(nodes):
        DBOS.enqueue_workflow(QUEUE, child, number).get_result(polling_interval_sec=0.02)


async def chain(request: dict[str, Any]) -> dict[str, Any]:
    STARTS.clear()
    run = queued_chain if request.get("queued") else chain_workflow
    say({"begun": True})
    await asyncio.to_thread(run, request["nodes"])
    say({"steps_ms": [(b - a) * 1000 for a, b in itertools.pairwise(STARTS)]})
    return {"stopped": True}


async def results(request: dict[str, Any]) -> dict[str, Any]:
    """One child workflow that does nothing after another, through the queue, from enqueue to result, in ms."""
    say({"begun": True})
    found: list[float] = []

    def run() -> None:
        for number in range(request["jobs"]):
            begun = time.perf_counter()
            DBOS.enqueue_workflow(QUEUE, child, number).get_result(polling_interval_sec=0.02)
            found.append((time.perf_counter() - begun) * 1000)

    await asyncio.to_thread(run)
    say({"results_ms": found})
    return {"stopped": True}


async def fan(request: dict[str, Any]) -> dict[str, Any]:
    width, count = request["width"], request.get("count", 1)
    say({"begun": True})
    begun = time.perf_counter()
    done = await asyncio.gather(*(fan_workflow(width) for _ in range(count)))
    assert done == [width] * count
    say({"nodes": (width + 2) * count, "seconds": time.perf_counter() - begun})
    return {"stopped": True}


async def main() -> None:
    settings = json.loads(sys.argv[1])
    DBOS(config={"name": "peer", "system_database_url": settings["dsn"], "log_level": "ERROR"})
    DBOS.launch()
    await DBOS.register_queue_async(QUEUE, polling_interval_sec=0.05)
    await serve({"dbos": importlib.metadata.version("dbos")}, {"chain": chain, "fan": fan, "results": results})
    DBOS.destroy()


asyncio.run(main())
