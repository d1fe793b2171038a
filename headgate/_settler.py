"""Tells the service how jobs ended, in batches: while one call is under way, the next one gathers."""

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from headgate._elements import Result
from headgate._job import Job
from headgate._leases import Leases
from headgate.async_client import AsyncClient
from headgate.errors import BadAnswer, HeadgateError, ServerError
from headgate.wire import BATCH_MAX

log = logging.getLogger("headgate.worker")

DELAY_S_MAX: Final = 5.0


@dataclass(slots=True)
class Verdict:
    """An ack or a nack to be sent."""

    job: Job
    verb: str
    element: Any
    plain: bool = False


class Settler:
    """Sends verdicts. Their leases are kept until the service has answered, however long it is away."""

    def __init__(
        self, client: AsyncClient, namespace: str, leases: Leases, sleep: Callable[[float], Any] = asyncio.sleep
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._leases = leases
        self._sleep = sleep
        self._pending: list[Verdict] = []
        self._changed = asyncio.Event()
        self._settled = asyncio.Event()
        self._settled.set()
        self._failures = 0

    def add(self, job: Job, verb: str, element: Any) -> None:
        self._pending.append(Verdict(job, verb, element))
        self._settled.clear()
        self._changed.set()

    async def settled(self) -> None:
        """Wait until every verdict has been answered, or its lease was lost."""
        await self._settled.wait()

    async def run(self) -> None:
        while True:
            await self._changed.wait()
            await self.step()

    async def step(self) -> None:
        """Send what is pending, once."""
        self._changed.clear()
        taken, self._pending = self._pending[:BATCH_MAX], self._pending[BATCH_MAX:]
        live = [verdict for verdict in taken if verdict.job.lost is None]
        again: list[Verdict] = []
        for verb in ("ack", "nack"):
            verdicts = [verdict for verdict in live if verdict.verb == verb]
            if verdicts:
                again += await self._send(verb, verdicts)
        self._pending = again + self._pending
        if self._pending:
            self._changed.set()
        else:
            self._settled.set()
        if again:
            self._failures += 1
            await self._sleep(random.uniform(0, min(DELAY_S_MAX, 0.1 * 2**self._failures)))  # noqa: S311
        else:
            self._failures = 0

    async def _send(self, verb: str, verdicts: Sequence[Verdict]) -> list[Verdict]:
        """Send verdicts of one verb; those to be sent again."""
        call = self._client.ack if verb == "ack" else self._client.nack
        try:
            elements: Any = [verdict.element for verdict in verdicts]
            # What is refused is sent again here, with what has gathered meanwhile: it must not hold that up.
            results = await call(elements, namespace=self._namespace, again=False)
        except HeadgateError as error:
            if error.retryable or isinstance(error, ServerError | BadAnswer):
                log.warning("could not %s %d items, trying again: %s", verb, len(verdicts), error)
                return list(verdicts)
            return await self._one_by_one(verb, verdicts, error)
        return [
            verdict
            for verdict, result in zip(verdicts, results, strict=True)
            if not self._answered(verdict, result)
        ]

    async def _one_by_one(self, verb: str, verdicts: Sequence[Verdict], error: HeadgateError) -> list[Verdict]:
        """The service refuses the whole call for one element: find it, and say something it takes."""
        if len(verdicts) > 1:
            return [again for verdict in verdicts for again in await self._send(verb, [verdict])]
        verdict = verdicts[0]
        if verdict.plain:
            log.error("could not %s %r: %s", verb, verdict.job, error)
            self._leases.drop(verdict.job)
            return []
        log.error("the service does not take what %r ended with: %s", verdict.job, error)
        final = verb == "nack" and verdict.element.get("final", False)
        nack = verdict.job.nack(error=f"the service refused the {verb}: {error}"[:1_000], final=final)
        return [Verdict(verdict.job, "nack", nack, plain=True)]

    def _answered(self, verdict: Verdict, result: Result) -> bool:
        if result.status == "refused" and result.outcome == "none":
            return False
        self._leases.drop(verdict.job)
        if result.status in ("lease_lost", "cancelled", "not_found", "refused"):
            verdict.job.lost = result.status
            log.warning("%s of %r: %s", verdict.verb, verdict.job, result.status)
        elif result.status == "dead" and not verdict.element.get("final"):
            log.warning("%r is dead: that was its last attempt", verdict.job)
        elif result.status == "requeued":
            log.info("%r is given back", verdict.job)
        return True
