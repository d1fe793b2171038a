"""What a user runs, in a process of its own: workers, chains and single calls through the SDK; a JSON line each.

python -m benchmarks.sdk_program '{"do": "work", "queue_url": ..., ...}'
"""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import sys
import time
from typing import Any
from urllib.parse import urlsplit

from headgate import AsyncClient, Client, Job, Worker

# A worker for which nothing has come for so long has done all there is.
IDLE_S = 1.0
# One for which nothing has come at all waits longer: others may have been faster.
IDLES_MAX = 3


async def work(asked: dict[str, Any]) -> dict[str, Any]:
    """Work a topic empty: how many jobs, and when the first and the last one ended."""
    ended: list[float] = []

    async def coroutine(_job: Job) -> None:
        ended.append(time.time())

    def plain(_job: Job) -> None:
        ended.append(time.time())

    worker = Worker(_client(asked), drain_s=5.0)
    worker.task(asked["topic"], slots=asked["slots"])(plain if asked["plain"] else coroutine)
    running = asyncio.create_task(worker.run())
    before, idle = 0, 0
    while idle < (1 if ended else IDLES_MAX):
        await asyncio.sleep(IDLE_S)
        idle = idle + 1 if before == len(ended) else 0
        before = len(ended)
    worker.stop()
    await running
    return {"jobs": len(ended), "ended_s": [min(ended), max(ended)] if ended else []}


async def chain(asked: dict[str, Any]) -> dict[str, Any]:
    """One chain: the milliseconds from one handler's start to the next one's."""
    client, started, done = _client(asked), list[float](), asyncio.Event()
    worker = Worker(client, drain_s=5.0)

    loop = asyncio.get_running_loop()

    def began() -> Any:
        started.append(time.perf_counter())
        if len(started) == asked["nodes"]:
            loop.call_soon_threadsafe(done.set)
        return {"n": len(started)} if asked["outputs"] else None

    async def coroutine(_job: Job) -> Any:
        return began()

    def plain(_job: Job) -> Any:
        return began()

    worker.task(asked["topic"])(plain if asked["plain"] else coroutine)
    running = asyncio.create_task(worker.run())
    await asyncio.sleep(asked["settle_s"])
    nodes = [
        {"key": str(n), "topic": asked["topic"], "pass_outputs": asked["outputs"]} for n in range(asked["nodes"])
    ]
    for n, node in enumerate(nodes[1:]):
        node["upstream"] = [str(n)]
    spec: dict[str, Any] = {"nodes": nodes}
    if asked["priority"]:
        spec["priority"] = {"inherit": 1}
    await client.create_dag(spec)
    await done.wait()
    worker.stop()
    await running
    return {"steps_ms": [(b - a) * 1000 for a, b in itertools.pairwise(started)]}


async def graphs(asked: dict[str, Any]) -> dict[str, Any]:
    """DAGs of 1 -> width -> 1 from create to end, by so many callers at once, beside the worker: DAGs a second."""
    client, left = _client(asked), iter(range(asked["dags"]))
    worker = Worker(client, drain_s=5.0)

    async def coroutine(job: Job) -> Any:
        return {"of": job.attempt} if asked["outputs"] else None

    def plain(job: Job) -> Any:
        return {"of": job.attempt} if asked["outputs"] else None

    worker.task(asked["topic"], slots=asked["slots"])(plain if asked["plain"] else coroutine)
    common = {"topic": asked["topic"], "pass_outputs": asked["outputs"]}
    between = [{"key": f"n{n}", "upstream": ["first"], **common} for n in range(asked["width"])]
    last = {"key": "last", "upstream": [node["key"] for node in between], **common}
    spec: dict[str, Any] = {"nodes": [{"key": "first", **common}, *between, last]}
    if asked["priority"]:
        spec["priority"] = {"inherit": 1, "critical_path": 1}

    async def caller() -> None:
        for _ in left:
            dag = client.dag((await client.create_dag(spec)).id)
            if (await dag.wait(timeout_s=60)).state != "succeeded":
                raise RuntimeError("a DAG has not succeeded in a minute")

    running = asyncio.create_task(worker.run())
    await asyncio.sleep(asked["settle_s"])
    begun = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(asked["callers"])))
    took_s = time.perf_counter() - begun
    worker.stop()
    await running
    return {"rate": asked["dags"] / took_s}


def calls(asked: dict[str, Any]) -> dict[str, Any]:
    """Single enqueues one after another, by the SDK and by a bare socket in turns: the milliseconds of each."""
    found: dict[str, list[float]] = {"sdk": [], "bare": []}
    to = urlsplit(asked["queue_url"])
    assert to.hostname is not None and to.port is not None
    body = b'{"items":[{"topic":"%b","payload":1}]}' % asked["topic"].encode()
    head = b"POST /v1/namespaces/default/enqueue HTTP/1.1\r\nContent-Type: application/json\r\n"
    fields = b"Host: %b\r\nContent-Length: %d\r\n\r\n" % (to.netloc.encode(), len(body))
    request = head + fields + body
    with Client(queue_url=asked["queue_url"]) as client, socket.create_connection((to.hostname, to.port)) as bare:
        bare.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.enqueue_one(asked["topic"], 1)
        for _ in range(asked["calls"]):
            begun = time.perf_counter()
            client.enqueue_one(asked["topic"], 1)
            middle = time.perf_counter()
            bare.sendall(request)
            assert bare.recv(65_536).startswith(b"HTTP/1.1 201"), "the bare call was refused"
            found["sdk"].append((middle - begun) * 1000)
            found["bare"].append((time.perf_counter() - middle) * 1000)
    return found


async def crowd(asked: dict[str, Any]) -> dict[str, Any]:
    """So many callers at once, one item each: cycles of enqueue, dequeue and ack a second."""
    done, ends_at = 0, time.perf_counter() + asked["seconds"]

    async def caller(client: AsyncClient) -> None:
        nonlocal done
        while time.perf_counter() < ends_at:
            await client.enqueue_one(asked["topic"], 1)
            found = await client.dequeue({asked["topic"]: 1}, wait_s=5)
            await client.ack([item.ack() for item in found]) if found else None
            done += len(found)

    async with _client(asked) as client:
        await asyncio.gather(*(caller(client) for _ in range(asked["callers"])))
    return {"rate": done / asked["seconds"]}


def _client(asked: dict[str, Any]) -> AsyncClient:
    namespace = asked.get("namespace", "default")
    return AsyncClient(queue_url=asked["queue_url"], dag_url=asked["dag_url"], namespace=namespace)


def main() -> None:
    """Do what the argument asks for."""
    asked = json.loads(sys.argv[1])
    if asked["do"] == "calls":
        answer = calls(asked)
    else:
        answer = asyncio.run({"work": work, "chain": chain, "graphs": graphs, "crowd": crowd}[asked["do"]](asked))
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
