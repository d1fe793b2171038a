"""Which failure of an item is its last, where only its task says how many it may have."""

import asyncio
from typing import TYPE_CHECKING, Final

from headgate._error_text import ERROR_CHARS_MAX, clean
from headgate._worker.job import Job
from headgate._worker.program_log import log
from headgate._worker.task import Task
from headgate._worker.verdicts import Ending
from headgate.wire import ItemStanding

if TYPE_CHECKING:
    from headgate._client.aio.client import AsyncClient


# Attempts at an item that says nothing of them itself.
ATTEMPTS_MAX: Final = 20


class Attempts:
    """Counts deliveries against what tasks allow. The service is asked only where one may be the last."""

    def __init__(self, client: "AsyncClient", namespace: str) -> None:
        self._client = client
        self._namespace = namespace

    async def given_up(self, task: Task, job: Job) -> Ending | None:
        """What is told of an item that comes once too often: the last attempt ended with its worker, or its lease,
        or nobody could tell that it was the last."""
        spent = job.attempt - 1
        item = await self._at_its_end(spent, task, job)
        if item is None:
            return None
        error = (
            f"given up: {spent} deliveries have failed, and its task allows {task.max_attempts}; where no "
            f"error was told, the worker died, or a coroutine blocked its event loop for longer than the lease"
        )
        if item.error:
            error += "; before: "
            error += item.error[-(ERROR_CHARS_MAX - len(error)) :]
        return "nack", job.nack(error=clean(error), final=True)

    async def last(self, verdict: Ending, task: Task, job: Job) -> Ending:
        """What is told: a failure is final where it was that of the last attempt."""
        verb, nack = verdict
        if verb != "nack" or not nack.get("costs_attempt", True) or nack.get("final"):
            return verdict
        try:
            is_last = await self._at_its_end(job.attempt, task, job) is not None
        except asyncio.CancelledError:
            return verdict  # there is no time to ask; what is known is told all the same
        if not is_last:
            return verdict
        log.warning("%r is given up: its task allows %d attempts", job, task.max_attempts)
        return verb, {**nack, "final": True}

    async def _at_its_end(self, attempts: int, task: Task, job: Job) -> ItemStanding | None:
        """The item, if so many failed attempts are its end."""
        if not 0 < task.max_attempts <= attempts:
            return None
        try:
            (item,) = await self._client.item_states([job.id], namespace=self._namespace)
        except Exception as error:
            log.warning("cannot tell whether %r is to be given up, so it is not: %s", job, error)
            return None
        return item if item.status == "found" and item.max_attempts == 0 else None
