"""1 -> n -> 1 as one DBOS workflow: async steps, the middle ones gathered. Run by the peer's own Python.

Reads lines of one number, the width; answers each with the seconds from calling the workflow to its result.
"""

import asyncio
import sys
import time

from dbos import DBOS  # type: ignore[import-not-found]


@DBOS.step()  # type: ignore[untyped-decorator]
async def step(number: int) -> int:
    return number


@DBOS.workflow()  # type: ignore[untyped-decorator]
async def fan(width: int) -> int:
    await step(0)
    done = await asyncio.gather(*(step(i) for i in range(width)))
    return int(await step(len(done)))


async def main() -> None:
    DBOS(config={"name": "fan", "system_database_url": sys.argv[1], "log_level": "WARNING"})
    DBOS.launch()
    loop = asyncio.get_running_loop()
    print("ready", flush=True)
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        width = int(line)
        begun = time.perf_counter()
        assert await fan(width) == width
        print(time.perf_counter() - begun, flush=True)
    DBOS.destroy()


asyncio.run(main())
