"""A worker of workflows and its client in a process of their own; one JSON line with what was asked for.

python -m benchmarks.workflow_program '{"do": "steps", "queue_url": ..., ...}'
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

from headgate import AsyncClient, Dag, Job, Worker, Workflow
from headgate._client.aio.workflows import AsyncWorkflowHandle

# When the code, its steps and its tasks were at work, by this process's clock: what is measured, and nothing that
# the code goes by.
_RAN: list[float] = []
_HEARD: list[float] = []
_FILL_STEPS = 1_000


def step() -> None:
    _RAN.append(time.perf_counter())


async def runs(wf: Workflow, count: int) -> None:
    for _ in range(count):
        await wf.run(step)


async def calls(wf: Workflow, asked: dict[str, Any]) -> None:
    """So many calls one after another, once the history is as long as asked for."""
    for _ in range(asked.get("events", 0) // _FILL_STEPS):
        await asyncio.gather(*(wf.run(int) for _ in range(_FILL_STEPS)))
    for _ in range(asked["count"]):
        await wf.call(asked["topic"])


async def wide(wf: Workflow, asked: dict[str, Any]) -> None:
    await asyncio.gather(*(wf.call(asked["topic"], number) for number in range(asked["count"])))


async def listens(wf: Workflow, count: int) -> None:
    for _ in range(count):
        await wf.receive("go")
        _HEARD.append(time.perf_counter())


async def waits(wf: Workflow) -> None:
    await wf.receive("never")


@contextlib.asynccontextmanager
async def working(asked: dict[str, Any], slots: int = 100) -> AsyncIterator[AsyncClient]:
    client = AsyncClient(queue_url=asked["queue_url"], dag_url=asked["dag_url"])
    worker = Worker(client, drain_s=5.0)
    for function in (runs, calls, wide, listens, waits):
        worker.workflow(f"bench-{function.__name__}")(function)

    @worker.task(asked["topic"], slots=slots)
    async def task(_job: Job) -> None:
        _RAN.append(time.perf_counter())

    running = asyncio.create_task(worker.run(signals=False))
    await asyncio.sleep(0.5)
    try:
        yield client
    finally:
        worker.stop()
        await running


async def ended(run: AsyncWorkflowHandle) -> int:
    """Wait for a run; how many turns it took."""
    found = await run.wait(timeout_s=120)
    if found.state != "succeeded":
        raise RuntimeError(f"the run is {found.state}: {found.error}")
    return found.turn


def steps_ms(skipped: int = 1) -> list[float]:
    """Between one start and the next, since this was asked last, without what comes before all is warm."""
    found = [(later - earlier) * 1000 for earlier, later in itertools.pairwise(_RAN)]
    _RAN.clear()
    return found[skipped:]


async def steps(asked: dict[str, Any]) -> dict[str, Any]:
    """Steps, calls, nodes of a chain, and signals, one after another; milliseconds of each."""
    count = asked["count"]
    found: dict[str, Any] = {}
    async with working(asked, slots=1) as client:
        await ended(await client.workflows.start("bench-calls", {"count": 5, "topic": asked["topic"]}))
        _RAN.clear()
        await ended(await client.workflows.start("bench-runs", count))
        found["run_ms"] = steps_ms()
        await ended(await client.workflows.start("bench-calls", {"count": count, "topic": asked["topic"]}))
        found["call_ms"] = steps_ms()
        chain = Dag()
        last = None
        for number in range(count):
            last = chain.node(str(number), asked["topic"], after=[] if last is None else [last])
        await (await client.submit(chain)).wait(timeout_s=60)
        found["chain_ms"] = steps_ms()
        found["awake_signal_ms"] = await signals_ms(client, count, are_parked=False)
        # Each waits for as long as a turn does before its run is parked.
        found["signal_ms"] = await signals_ms(client, asked["parked"], are_parked=True)
    return found


async def signals_ms(client: AsyncClient, count: int, *, are_parked: bool) -> list[float]:
    """From a signal's call to the code of a run that waits for it, awake or parked."""
    listening = await client.workflows.start("bench-listens", count)
    sent: list[float] = []
    _HEARD.clear()
    for number in range(count):
        while True:
            seen = await listening.show()
            if seen.parked or (not are_parked and seen.turn > number):
                break
            await asyncio.sleep(0.05 if are_parked else 0.002)
        sent.append(time.perf_counter())
        await listening.signal("go")
        while len(_HEARD) <= number:
            await asyncio.sleep(0.0005)
    await ended(listening)
    return [(heard - at) * 1000 for at, heard in zip(sent, _HEARD, strict=True)]


async def crowd(asked: dict[str, Any]) -> dict[str, Any]:
    """Many runs at once, and as many chains of as many nodes: calls and nodes a second."""
    count, each = asked["runs"], asked["count"]
    async with working(asked) as client:
        begun = time.perf_counter()
        started = [
            client.workflows.start("bench-calls", {"count": each, "topic": asked["topic"]}) for _ in range(count)
        ]
        await asyncio.gather(*(ended(run) for run in await asyncio.gather(*started)))
        calls_s = count * each / (time.perf_counter() - begun)
        begun = time.perf_counter()
        chains = []
        for _ in range(count):
            chain, last = Dag(), None
            for number in range(each):
                last = chain.node(str(number), asked["topic"], after=[] if last is None else [last])
            chains.append(client.submit(chain))
        await asyncio.gather(*(handle.wait(timeout_s=120) for handle in await asyncio.gather(*chains)))
        return {"calls_s": calls_s, "nodes_s": count * each / (time.perf_counter() - begun)}


async def gather(asked: dict[str, Any]) -> dict[str, Any]:
    """So many calls at once, and a graph of as many nodes: seconds, and turns."""
    async with working(asked) as client:
        begun = time.perf_counter()
        turns = await ended(
            await client.workflows.start("bench-wide", {"count": asked["count"], "topic": asked["topic"]})
        )
        gathered_s = time.perf_counter() - begun
        graph = Dag()
        first = graph.node("first", asked["topic"])
        nodes = [graph.node(str(number), asked["topic"], after=[first]) for number in range(asked["count"])]
        graph.node("last", asked["topic"], after=nodes)
        begun = time.perf_counter()
        await (await client.submit(graph)).wait(timeout_s=120)
        return {"gather_s": gathered_s, "graph_s": time.perf_counter() - begun, "turns": turns}


async def grown(asked: dict[str, Any]) -> dict[str, Any]:
    """Calls at the end of a long history, and of a short one: milliseconds of each."""
    found = {}
    async with working(asked, slots=1) as client:
        for name, events in (("short_ms", 0), ("long_ms", asked["events"])):
            body = {"count": asked["count"], "topic": asked["topic"], "events": events}
            _RAN.clear()
            await ended(await client.workflows.start("bench-calls", body))
            found[name] = steps_ms(skipped=5)
    return found


async def parked(asked: dict[str, Any]) -> dict[str, Any]:
    """Runs that wait, and no worker any more."""
    async with working(asked) as client:
        for _ in range(asked["runs"] // 50):
            await asyncio.gather(*(client.workflows.start("bench-waits") for _ in range(50)))
        while any(not run.parked for run in await client.workflows.list(type="bench-waits", limit=200)):
            await asyncio.sleep(0.1)
    return {"runs": asked["runs"]}


async def timers(asked: dict[str, Any]) -> dict[str, Any]:
    """So many timers of a graph, due over two seconds, and as many due at once: how late each ended, in ms."""
    found: dict[str, Any] = {}
    async with AsyncClient(queue_url=asked["queue_url"], dag_url=asked["dag_url"]) as client:
        for name, spread_s in (("spread_ms", 2.0), ("at_once_ms", 0.0)):
            graph = Dag()
            for number in range(asked["count"]):
                graph.timer(str(number), delay_s=round(1.0 + spread_s * number / asked["count"], 3))
            handle = await client.submit(graph)
            await handle.wait(timeout_s=60)
            late: list[float] = []
            for node in await handle.nodes():
                assert node.finished_at is not None and node.released_at is not None
                took_s = (node.finished_at - node.released_at).total_seconds()
                delay_s = round(1.0 + spread_s * int(node.key) / asked["count"], 3)
                late.append((took_s - delay_s) * 1000)
            found[name] = late
    return found


def main() -> None:
    """Do what the argument asks for."""
    asked = json.loads(sys.argv[1])
    do = {
        "steps": steps,
        "crowd": crowd,
        "gather": gather,
        "grown": grown,
        "parked": parked,
        "timers": timers,
    }
    print(json.dumps(asyncio.run(do[asked["do"]](asked))), flush=True)


if __name__ == "__main__":
    main()
