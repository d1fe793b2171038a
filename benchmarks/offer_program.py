"""Offers more than can be done, in a process of its own, so that it keeps up and delays nobody: a JSON line.

python -m benchmarks.offer_program '{"queue_url": ..., "topic": ..., ...}'
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from typing import Any

import msgspec

from benchmarks.load import PAYLOAD, Http, Refused


async def offer(asked: dict[str, Any]) -> dict[str, Any]:
    """Send batches by a schedule drawn in advance, each when it is due, and none again; of those sent from
    `from_s` after `begin_s` on how many there were, how long each refusal took and how late each was sent."""
    choose = random.Random(1)
    items = [{"topic": asked["topic"], "payload": PAYLOAD}] * asked["batch"]
    # Written down once: who offers shares the machine with those who refuse.
    body = {"items": msgspec.Raw(msgspec.json.encode(items))}
    begun = time.perf_counter() + asked["begin_s"] - time.time()
    refused_ms: list[float] = []
    late_ms: list[float] = []
    free: list[Http] = []
    running: set[asyncio.Task[None]] = set()
    turn = asyncio.Semaphore(asked["senders_max"])

    async def send(due: float) -> None:
        async with turn:
            http = free.pop() if free else Http(asked["queue_url"])
            sent = time.perf_counter()
            counts = asked["from_s"] <= sent - begun < asked["until_s"]
            if counts:
                late_ms.append((sent - due) * 1000)
            try:
                await http.call(b"POST", "/enqueue", body)
            except Refused as error:
                if not error.for_now:
                    raise
                if counts:
                    refused_ms.append((time.perf_counter() - sent) * 1000)
            free.append(http)

    at = 0.0
    while (at := at + choose.expovariate(asked["calls_per_s"])) < asked["until_s"]:
        await asyncio.sleep(max(0.0, begun + at - time.perf_counter()))
        task = asyncio.create_task(send(begun + at))
        running.add(task)
        task.add_done_callback(running.discard)
    await asyncio.gather(*running)
    for http in free:
        http.close()
    return {"sent": len(late_ms), "refused_ms": refused_ms, "late_ms": late_ms}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(offer(json.loads(sys.argv[1])))), flush=True)
