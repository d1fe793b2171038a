"""What tenants do under the load, besides items and DAGs: one class each, and how it goes on and ends."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from math import inf

from headgate import AsyncClient
from headgate.errors import HeadgateError

InTime = Callable[[str], AbstractAsyncContextManager[None]]

LOSSY = 1  # the shard that may be what its standby had heard of
HEARD_S = 2.0  # what is set is in force everywhere within a second
_AGAIN_S = 0.2
# Beside the load itself: a sick shard is to be met by each, not to be flooded.
_PAUSE_S = 1.0


class Verb:
    """One tenant's, on one shard, or wherever the services have it."""

    # Until then the former server answers; what is sent from then on, the standby that took over does.
    fell_s, stood_s = inf, inf

    def __init__(self, tenant: str, client: AsyncClient, shard: int, in_time: InTime) -> None:
        self.tenant, self.client, self.shard, self.in_time = tenant, client, shard, in_time

    async def begin(self) -> None:
        """Before anything happens to a shard; raises HeadgateError where that is to be asked again."""

    async def step(self) -> None:
        """Once more, while the load goes on; what is refused may be so."""

    async def work(self) -> None:
        """Take what there is, and ack it, until nothing is left."""

    async def end(self) -> None:
        """Nothing of it is to go on; raises HeadgateError where that is to be asked again."""

    async def close(self) -> None:
        """Once nothing is left: a last look, and nobody works any more."""

    def faults(self, cut_s: float | None) -> Iterator[str]:
        """Every violation; what was done on the shard that failed over may be forgotten from `cut_s` on."""
        raise NotImplementedError


async def go_on(verb: Verb, is_over: Callable[[], bool]) -> None:
    """Do it until the load is over."""
    while not is_over():
        await verb.step()
        await asyncio.sleep(_PAUSE_S)


async def work(verb: Verb) -> None:
    """Work on what comes of it until that is cancelled."""
    while True:
        await verb.work()
        await asyncio.sleep(_PAUSE_S)


async def begun(verb: Verb) -> None:
    """Begin it, however often that is refused: on a machine that is busy a shard may have nothing to spare yet."""
    await _insist(verb.begin)


async def let_go(verb: Verb) -> None:
    """End it, however often that is refused: whoever waits for it has a deadline."""
    await _insist(verb.end)


async def _insist(what: Callable[[], Awaitable[None]]) -> None:
    while True:
        try:
            return await what()
        except HeadgateError:
            await asyncio.sleep(_AGAIN_S)
