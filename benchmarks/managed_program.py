"""What a user of `App` runs, in a process of its own: a worker, flows of ten jobs, single jobs, cycles.

It says what came of it in a line of JSON.

python -m benchmarks.managed_program '{"do": "flows", "queue_url": ..., ...}'
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import sys
import time
from typing import Any

from headgate import App, AsyncClient, Client, Job, Worker

WAIT_S = 120.0
ASIDE = "aside"
# Of a cycle: so many senders, each waiting while so many jobs are on their way; and what is logged a second.
SENDERS, WINDOW, SLOTS = 32, 400, 100
LINES_PER_S = 1_000


def app_of(asked: dict[str, Any]) -> App:
    """The functions, in the namespace that is asked for."""
    where = {"queue_url": asked["queue_url"], "dag_url": asked["dag_url"]}
    app = App(asked["namespace"], client=Client(namespace=asked["namespace"], **where))

    @app.job(slots=100)
    async def listing(size: int) -> list[int]:
        return list(range(size))

    @app.job(slots=100)
    async def double(numbers: list[int], at: int) -> int:
        return 2 * numbers[at]

    @app.job(slots=100)
    async def total(numbers: list[int]) -> int:
        return sum(numbers)

    @app.job(slots=100)
    async def nothing() -> None:
        pass

    return app


async def serve(asked: dict[str, Any]) -> dict[str, Any]:
    """Work until standard input ends; how many jobs."""
    loop = asyncio.get_running_loop()
    app = app_of(asked)
    worker: Worker = app.worker(drain_s=5.0)
    running = asyncio.create_task(worker.run(signals=False))
    ends = loop.run_in_executor(None, sys.stdin.read)
    await ends
    worker.stop()
    await running
    return {"jobs": worker.finished}


async def flows(asked: dict[str, Any]) -> dict[str, Any]:
    """So many callers at once, each with one flow of ten jobs after another, and its result: flows a second."""
    app = app_of(asked)
    ends_at, begun_at = time.perf_counter() + asked["seconds"], time.perf_counter()
    done = 0

    async def caller() -> None:
        nonlocal done
        while time.perf_counter() < ends_at:
            flow = app.flow("managed")
            numbers = app.functions["listing"].call(8)
            doubled = [app.functions["double"].call(numbers, at) for at in range(8)]
            last = flow.add(app.functions["total"].call(doubled))
            run = await flow.start()
            if await run.aresult(last, timeout_s=WAIT_S) != 56:
                raise RuntimeError("a flow has another result than its jobs make")
            done += 1

    await asyncio.gather(*(caller() for _ in range(asked["callers"])))
    return {"flows": done, "rate": done / (time.perf_counter() - begun_at)}


async def cycle(asked: dict[str, Any]) -> dict[str, Any]:
    """Jobs a second from being sent to being done, by a worker in the same process: through `App`, also with a
    thousand lines a second logged, or by a raw `Worker` and `enqueue_one`."""
    topic, done, sent, lines = f"cycle-{asked['through']}", 0, 0, 0
    begun_at = time.perf_counter() + asked["warm_s"]
    where = {"queue_url": asked["queue_url"], "dag_url": asked["dag_url"], "namespace": asked["namespace"]}
    app = App(asked["namespace"], client=Client(**where))
    logs = asked["through"] == "logged"
    logger = logging.getLogger("benchmark")
    logger.setLevel(logging.INFO)

    @app.job(name=topic, slots=SLOTS, result=False)
    async def typed(number: int) -> None:
        nonlocal done, lines
        if logs and lines < LINES_PER_S * (time.perf_counter() - begun_at):
            lines += 1
            logger.info("job %d has come to its end", number)
        done += 1

    async def raw(_job: Job) -> None:
        nonlocal done
        done += 1

    client = AsyncClient(**where)
    worker: Worker = app.worker(drain_s=5.0, keep_logs=logs)
    if asked["through"] == "worker":
        worker = Worker(client, drain_s=5.0, keep_logs=False)
        worker.task(topic, slots=SLOTS)(raw)

    async def sender() -> None:
        nonlocal sent
        while time.perf_counter() < begun_at + asked["seconds"]:
            if sent - done >= WINDOW:
                await asyncio.sleep(0.001)
                continue
            sent += 1
            if asked["through"] == "worker":
                await client.enqueue_one(topic, {"number": sent})
            else:
                await typed.enqueue(sent)

    running = asyncio.create_task(worker.run(signals=False))
    senders = [asyncio.create_task(sender()) for _ in range(SENDERS)]
    await asyncio.sleep(max(begun_at - time.perf_counter(), 0.0))
    begun, before = time.perf_counter(), done
    await asyncio.gather(*senders)
    # What did nothing counts one job, so that it can be divided by.
    rate = max(done - before, 1) / (time.perf_counter() - begun)
    worker.stop()
    await running
    await client.aclose()
    return {"rate": rate, "lines": lines}


def results(asked: dict[str, Any]) -> dict[str, Any]:
    """One job after another from `enqueue` to `result`, in turns with a call and with `enqueue` alone: both in a
    namespace that no worker serves, as what they would begin runs on the same processors."""
    app, aside_app = app_of(asked), app_of({**asked, "namespace": ASIDE})

    @aside_app.job(result=False)
    async def aside(number: int) -> None: ...

    found: dict[str, list[float]] = {"result": [], "call": [], "enqueue": []}
    job = app.functions["nothing"]
    with Client(queue_url=asked["queue_url"], dag_url=asked["dag_url"], namespace=ASIDE) as client:
        for timed in (False, *[True] * asked["jobs"]):
            at_s = [time.perf_counter()]
            job.enqueue().result(timeout_s=WAIT_S)
            at_s.append(time.perf_counter())
            client.enqueue_one("aside", {"number": 1})
            at_s.append(time.perf_counter())
            aside.enqueue(1)
            at_s.append(time.perf_counter())
            if timed:
                for what, (begun, ended) in zip(
                    ("result", "call", "enqueue"), itertools.pairwise(at_s), strict=True
                ):
                    found[what].append((ended - begun) * 1000)
    return found


def main() -> None:
    """Do what the argument asks for."""
    asked = json.loads(sys.argv[1])
    if asked["do"] == "results":
        answer = results(asked)
    else:
        answer = asyncio.run({"serve": serve, "flows": flows, "cycle": cycle}[asked["do"]](asked))
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
