"""How many items of a topic are held at once, by the knowledge of those who hold them."""

import asyncio
from collections.abc import Sequence

from tests.support.queue_host import Api


async def most_in_flight(apis: Sequence[Api], items: int) -> int:
    """Take and ack so many items of topic `t` by three consumers of each; the most that were held at once."""
    held, most, done = 0, 0, 0

    async def consume(api: Api) -> None:
        nonlocal held, most, done
        while done < items:
            for item in await api.dequeue("t", 2, wait_s=0.5):
                held += 1
                most = max(most, held)
                await asyncio.sleep(0)
                held -= 1  # from before the ack on another may take its place
                assert await api.ack(item) == ["acked"]
                done += 1

    async with asyncio.timeout(60):
        await asyncio.gather(*(consume(api) for api in apis for _ in range(3)))
    return most
