"""How fast a history is replayed: a chain of calls, and many at once, of 1,000 and of 100,000 events.

    python -m benchmarks.replay [--profile]

The floor is 30,000 events/s, and per event at 100,000 at most 1.3 times that at 1,000.
"""

import asyncio
import cProfile
import gc
import json
import sys
import time
from collections.abc import Callable
from typing import Any

from headgate.testing import simulate
from headgate.workflow import Event, Replay, Workflow

ROUNDS = 5


async def chain(wf: Workflow, count: int) -> None:
    for number in range(count):
        await wf.call("work", {"number": number, "name": "some text of usual length"})


async def wide(wf: Workflow, count: int) -> None:
    await asyncio.gather(*(wf.call("work", number) for number in range(count)))


def replayed_s(function: Callable[..., Any], lines: list[str]) -> float:
    """Processor time from the text of the answer to the last command."""
    begun = time.process_time()
    run = Replay(function, seen=len(lines))
    run.feed_all(map(Event.parse, map(json.loads, lines)))
    return time.process_time() - begun


def main() -> None:
    for function in (chain, wide):
        for events in (1_000, 100_000):
            lines = list(simulate(function, events // 2).unguarded().run().run.lines())
            gc.collect()
            gc.freeze()  # what made the history is no part of replaying it
            best_s = min(replayed_s(function, lines) for _ in range(ROUNDS))
            print(f"{function.__name__:6} {len(lines):7} events  {len(lines) / best_s:9.0f} events/s")
            if "--profile" in sys.argv and events == 1_000:
                cProfile.runctx(
                    "replayed_s(function, lines)", globals(), {"function": function, "lines": lines}, sort=1
                )


if __name__ == "__main__":
    main()
