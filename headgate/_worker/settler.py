"""Tells the service how jobs ended, in batches: while one call is under way, the next one gathers.

A verdict goes with the worker's next dequeue where one is about to be made (`take`, `told`, `untold`), else in a
call of its own. One whose dequeue failed goes in a call of its own, too: that is let in before dequeues, and shows
which verdict the service does not take.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from headgate._backoff import pause_s
from headgate._calls.elements import Result
from headgate._client.aio.client import AsyncClient
from headgate._ids import place_of
from headgate._worker.job import Job
from headgate._worker.leases import Leases
from headgate._worker.program_log import log
from headgate.errors import BadAnswer, HeadgateError, ServerError
from headgate.wire import BATCH_MAX

# What goes with one dequeue; and for how long a verdict waits for a dequeue to go with.
CARRIED_MAX: Final = 500
CARRIED_BYTES_MAX: Final = 4 * 1024 * 1024
RIDE_S_MAX: Final = 0.02
# Refusals of an element that stay so however often it is sent.
_FOR_GOOD: Final = ("invalid", "too_large")


@dataclass(slots=True, eq=False)
class Verdict:
    """An ack or a nack to be sent."""

    job: Job
    verb: str
    element: Any
    plain: bool = False
    is_riding: bool = False  # it waits for a dequeue to go with
    is_alone: bool = False  # it goes with none


@dataclass(slots=True)
class _Away:
    """A shard that has refused verdicts so often in a row, and is left alone until then."""

    failures: int = 0
    until_s: float = 0.0


class Settler:
    """Sends verdicts. Their leases are kept until the service has answered, however long it is away.

    Those of a shard that is away wait by themselves; others are not held up.
    """

    def __init__(
        self,
        client: AsyncClient,
        namespace: str,
        leases: Leases,
        sleep: Callable[[float], Any] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
        rides: Callable[[], bool] = lambda: False,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._leases = leases
        self._sleep = sleep
        self._clock = clock
        self._rides = rides
        self._timer: asyncio.TimerHandle | None = None
        self._pending: list[Verdict] = []
        self._taken = 0
        self._away: dict[int, _Away] = {}
        self._changed = asyncio.Event()
        self._settled = asyncio.Event()
        self._settled.set()
        self._failures = 0

    def add(self, job: Job, verb: str, element: Any) -> None:
        """Tell of a job's end soon: with the next dequeue, if one is about to be made."""
        rides = self._rides()
        self._pending.append(Verdict(job, verb, element, is_riding=rides))
        self._settled.clear()
        if not rides:
            self._changed.set()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(RIDE_S_MAX, self.hurry)

    def hurry(self) -> None:
        """What waits for a dequeue waits no longer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for verdict in self._pending:
            verdict.is_riding = False
        self._changed.set()

    def take(self) -> list[Verdict]:
        """What goes with a dequeue that is made now; to be passed to `told` or `untold`."""
        now_s, bytes_left = self._clock(), CARRIED_BYTES_MAX
        taken: list[Verdict] = []
        left: list[Verdict] = []
        for verdict in self._pending:
            if verdict.is_alone or len(taken) >= CARRIED_MAX or bytes_left <= 0 or self._due_at(verdict) > now_s:
                left.append(verdict)
            elif verdict.job.lost is None:
                bytes_left -= verdict.job.output_bytes
                taken.append(verdict)
        self._pending = left
        self._taken += len(taken)
        self._check_settled()
        return taken

    def told(self, taken: Sequence[Verdict], acks: Sequence[Result], nacks: Sequence[Result]) -> None:
        """What went with a dequeue was answered so."""
        of_verb = {"ack": iter(acks), "nack": iter(nacks)}
        again: list[Verdict] = []
        for verdict in taken:
            result = next(of_verb[verdict.verb], None)
            again += [verdict] if result is None else self._answered(verdict, result)
        self._give_back(taken, again)

    def untold(self, taken: Sequence[Verdict]) -> None:
        """Nobody knows what became of what went with a dequeue."""
        for verdict in taken:
            verdict.is_alone = True
        self._give_back(taken, taken)

    def _give_back(self, taken: Sequence[Verdict], again: Sequence[Verdict]) -> None:
        self._taken -= len(taken)
        for verdict in again:
            verdict.is_riding = False
        self._pending += again
        if again:
            self._changed.set()
        self._check_settled()

    def _check_settled(self) -> None:
        if not self._pending and not self._taken:
            self._settled.set()

    async def settled(self) -> None:
        """Wait until every verdict has been answered, or its lease was lost."""
        await self._settled.wait()

    async def run(self) -> None:
        while True:
            await self._until_due()
            await self.step()

    async def step(self) -> None:
        """Send what is pending and due, once. What is not answered stays pending."""
        self._changed.clear()
        self._failures += 1
        now_s = self._clock()
        due = [one for one in self._pending if not one.is_riding and self._due_at(one) <= now_s][:BATCH_MAX]
        taken = set(due)
        self._pending = [verdict for verdict in self._pending if verdict not in taken]
        self._taken += len(due)
        left = due
        try:
            left = await self._send_all([verdict for verdict in due if verdict.job.lost is None])
        except Exception:
            log.exception("could not tell how %d jobs ended, trying again", len(due))
        finally:
            self._pending = left + self._pending
            self._taken -= len(due)
            self._check_settled()
        if any(self._due_at(verdict) <= self._clock() for verdict in left):
            await self._sleep(pause_s(self._failures))
        else:
            self._failures = 0

    async def _until_due(self) -> None:
        """Wait for a verdict that may be sent now."""
        while True:
            due_at_s = min((self._due_at(one) for one in self._pending if not one.is_riding), default=None)
            if due_at_s is not None and due_at_s <= self._clock():
                return
            try:
                async with asyncio.timeout(None if due_at_s is None else due_at_s - self._clock()):
                    await self._changed.wait()
            except TimeoutError:
                return
            self._changed.clear()

    def _due_at(self, verdict: Verdict) -> float:
        away = self._away.get(place_of(verdict.job.id))
        return away.until_s if away is not None else 0.0

    async def _send_all(self, verdicts: Sequence[Verdict]) -> list[Verdict]:
        """Send verdicts; those to be sent again."""
        again: list[Verdict] = []
        for verb in ("ack", "nack"):
            of_verb = [verdict for verdict in verdicts if verdict.verb == verb]
            if of_verb:
                again += await self._send(verb, of_verb)
        return again

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
        except Exception as error:
            # What a handler gave, and only its own JSON form fails on.
            return await self._one_by_one(verb, verdicts, error)
        if len(results) != len(verdicts):
            log.warning("%d of %d items were answered, trying again", len(results), len(verdicts))
            return list(verdicts)
        again: list[Verdict] = []
        for verdict, result in zip(verdicts, results, strict=True):
            again += self._answered(verdict, result)
        return again

    async def _one_by_one(self, verb: str, verdicts: Sequence[Verdict], error: Exception) -> list[Verdict]:
        """The service refuses the whole call for one element: find it, and say something it takes."""
        if len(verdicts) > 1:
            return [again for verdict in verdicts for again in await self._send(verb, [verdict])]
        return self._in_plain_words(verdicts[0], error)

    def _in_plain_words(self, verdict: Verdict, why: object) -> list[Verdict]:
        """What is said of a job whose end the service does not take; of one that was said plainly, nothing."""
        verb = verdict.verb
        if verdict.plain:
            log.error("could not %s %r: %s", verb, verdict.job, why)
            self._leases.drop(verdict.job)
            return []
        log.error("the service does not take what %r ended with: %s", verdict.job, why)
        final = verb == "nack" and bool(verdict.element.get("final"))
        nack = verdict.job.nack(error=f"the service refused the {verb}: {why}"[:1_000], final=final)
        return [Verdict(verdict.job, "nack", nack, plain=True)]

    def _answered(self, verdict: Verdict, result: Result) -> list[Verdict]:
        """Take in an answer; what is still to be said."""
        place = place_of(verdict.job.id)
        if result.status == "refused":
            if result.code in _FOR_GOOD:
                return self._in_plain_words(verdict, result.code)
            # Also where nobody knows whether it was done: the answer to the same again says so.
            self._leave_alone(place)
            return [verdict]
        self._away.pop(place, None)
        self._leases.drop(verdict.job)
        if result.status == "lease_lost" and verdict.is_alone and verdict.verb == "nack":
            log.info("nack of %r: lease_lost; it was sent before, and is given back since", verdict.job)
        elif result.status in ("lease_lost", "cancelled", "not_found"):
            verdict.job.lost = result.status
            log.warning("%s of %r: %s", verdict.verb, verdict.job, result.status)
        elif result.status == "dead" and not verdict.element.get("final"):
            log.warning("%r is dead: that was its last attempt", verdict.job)
        elif result.status == "requeued":
            log.info("%r is given back", verdict.job)
        return []

    def _leave_alone(self, place: int) -> None:
        now_s = self._clock()
        away = self._away.setdefault(place, _Away())
        if away.until_s <= now_s:
            away.failures += 1
            away.until_s = now_s + pause_s(away.failures)
            log.warning("shard %d takes no verdicts now, trying again", place)
