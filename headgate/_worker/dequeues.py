"""Asks for items, and settles with that what jobs ended with."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from headgate._calls.elements import Leased
from headgate._http.hang_up import HangUp
from headgate._worker.ends import end, first
from headgate._worker.program_log import log
from headgate._worker.settler import Settler, Verdict
from headgate._worker.task import Task

if TYPE_CHECKING:
    from headgate._client.aio.client import AsyncClient


# What a dequeue settles is of use while the worker does not know it, and told no longer than a lease: it waits so
# long at most.
SETTLING_WAIT_S_MAX: Final = 1.0
# The answer to what a dequeue settles is waited for so long when the worker stops.
ASKED_S_MAX: Final = 2.0
# And the end of a call that is hung up on, or more of its answer, which is large, so often.
HUNG_UP_S_MAX: Final = 3.0
HUNG_UP_LOOKS_MAX: Final = 10


class Dequeues:
    """A worker's calls for items."""

    def __init__(self, client: "AsyncClient", namespace: str, name: str, settler: Settler) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self._settler = settler
        self._asking, self._settling = HangUp(), HangUp()

    async def ask(self, task: Task, count: int, settling: Sequence[Verdict], wait_s: float) -> list[Leased]:
        """Dequeue, and settle what goes along. Of an error that may be because of that nothing is concluded."""
        topics = {task.topic: count}
        if not settling:
            with self._asking.reaches():
                return await self._client.dequeue(
                    topics, wait_s=wait_s, lease_s=task.lease_s, worker=self._name, namespace=self._namespace
                )
        of_verb: dict[str, list[Any]] = {"ack": [], "nack": []}
        for verdict in settling:
            of_verb[verdict.verb].append(verdict.element)
        try:
            with self._settling.reaches():
                found = await self._client.settle_and_dequeue(
                    topics,
                    acks=of_verb["ack"],
                    nacks=of_verb["nack"],
                    wait_s=min(wait_s, SETTLING_WAIT_S_MAX),
                    lease_s=task.lease_s,
                    worker=self._name,
                    namespace=self._namespace,
                )
        except BaseException as error:
            self._settler.untold(settling)
            if not isinstance(error, Exception):
                raise
            log.warning("could not dequeue %s with what %d jobs ended with: %s", task.topic, len(settling), error)
            return []
        self._settler.told(settling, found.acks, found.nacks)
        return found.items

    async def end(self, asking: Mapping[asyncio.Task[None], Task], hurry: asyncio.Event) -> None:
        """Ask for nothing more, and end who does. What has been answered is still taken; what a dequeue settles is
        worth its answer, which comes soon, unless there is a hurry."""
        await _hung_up(self._asking, hurry)
        settling = [poller for poller, task in asking.items() if task.is_settling and not poller.done()]
        if settling:
            hurried: asyncio.Task[Any] = asyncio.create_task(hurry.wait())
            answered: asyncio.Task[Any] = asyncio.create_task(asyncio.wait(settling))
            await first([hurried, answered], ASKED_S_MAX)
            await end([hurried, answered])
            await _hung_up(self._settling, hurry)
        await end(asking)


async def _hung_up(calls: HangUp, hurry: asyncio.Event) -> None:
    """Hang up on calls, and wait for their ends: while more of an answer comes, unless there is a hurry."""
    calls.all()
    for _ in range(HUNG_UP_LOOKS_MAX):
        if not await calls.come(HUNG_UP_S_MAX) or hurry.is_set():
            break
