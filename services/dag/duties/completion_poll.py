"""Completion items of one DAG shard, from the queue to the DAG.

A step takes a batch and applies it. Acks go later, those of several steps in one call: nobody waits for them,
and a completion that comes again before is without effect. What cannot be applied as a batch is applied one by
one, so that one bad completion holds up nobody; it comes again after a pause, and is given up for good after
`completion_attempts_max` times.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple

from services.dag.model import OUTCOME_STATES, Ending
from services.dag.queue_client import Completion
from services.dag.queue_items import ack_topic, encode
from services.dag.run.completions import Completer
from services.dag.run.context import Context
from shared import ids
from shared.admission.connection_priority import Urgency, set_urgency
from shared.crash import crash_point
from shared.errors import Unavailable
from shared.log import log
from shared.metrics import COMPLETIONS
from shared.shards.shard_map import Shard

# For how long acks are gathered: much less than a lease, much more than a step.
ACKS_GATHER_S = 0.025


class _ReadCompletion(NamedTuple):
    """A completion and what it says; None when it is not one of ours."""

    completion: Completion
    ending: Ending | None


class Results:
    """Takes the completions of one shard."""

    def __init__(self, context: Context, completer: Completer, shard: Shard) -> None:
        self._context = context
        self._settings = context.settings
        self._completer = completer
        self._shard = shard
        self._polls: set[asyncio.Task[list[Completion]]] = set()
        self._done: list[Completion] = []
        self._acking: asyncio.Task[None] | None = None
        self._bulk: list[_ReadCompletion] = []
        self._bulk_task: asyncio.Task[None] | None = None
        self._bulk_fault: Unavailable | None = None
        self._closed = asyncio.Event()
        self._closing = False

    async def step(self) -> int:
        """Take, apply and ack one batch. An owner's long poll is its pause; others look and go."""
        set_urgency(Urgency.SETTLE)
        if self._closing:
            return 0
        is_owner = self._context.ownership.owns(self._shard.number)
        poll = asyncio.ensure_future(self._take(self._settings.completion_wait_s if is_owner else 0.0))
        self._polls.add(poll)
        try:
            leased = await poll
        except asyncio.CancelledError:
            if self._closing:
                return 0
            raise
        finally:
            self._polls.discard(poll)
        await self._handle(leased)
        return 1 if is_owner else len(leased)

    async def drain(self) -> None:
        """Apply everything that waits in the queue now.

        Raises:
            Unavailable: some of it could not be applied.
        """
        self._bulk_fault = None
        while leased := await self._take(0.0):
            await self._handle(leased)
        await self.applied()
        if self._bulk_fault is not None:
            raise self._bulk_fault

    def stop_polling(self) -> None:
        """End long polls; what they would have taken is taken by somebody else."""
        self._closing = True
        for poll in self._polls:
            poll.cancel()

    async def close(self) -> None:
        """Ack what is applied, now."""
        await self.applied()
        self._closed.set()
        if self._acking is not None:
            await asyncio.gather(self._acking, return_exceptions=True)

    async def applied(self) -> None:
        """Wait until nothing that was taken waits to be applied."""
        if self._bulk_task is not None:
            await asyncio.wait([self._bulk_task])

    async def _take(self, wait_s: float) -> list[Completion]:
        return await self._context.queue.take(
            ack_topic(self._shard.number),
            self._settings.completions_per_step_max,
            wait_s=wait_s,
            lease_s=self._settings.completion_lease_s,
        )

    async def _handle(self, leased: Sequence[Completion]) -> None:
        """Apply a batch; what it has many of, of one DAG, goes beside it, so that no small DAG waits for it."""
        known = [_ReadCompletion(completion, ending_of(completion.payload)) for completion in leased]
        counts = Counter(each.ending.dag_id for each in known if each.ending is not None)
        large = {dag_id for dag_id, count in counts.items() if count >= self._settings.bulk_endings_min}
        await self._finish([each for each in known if each.ending is None or each.ending.dag_id not in large])
        if large:
            await self._apply_later([each for each in known if each.ending and each.ending.dag_id in large])

    async def _apply_later(self, known: list[_ReadCompletion]) -> None:
        while self._bulk_task is not None and len(self._bulk) >= self._settings.completions_per_step_max:
            await asyncio.wait([self._bulk_task])
        self._bulk += known
        if self._bulk_task is None:
            self._bulk_task = asyncio.create_task(self._apply_bulk())

    async def _apply_bulk(self) -> None:
        """Completions of large DAGs, as many at once as have gathered."""
        try:
            while self._bulk:
                known = self._bulk[: self._settings.completions_per_step_max]
                del self._bulk[: len(known)]
                await self._finish(known)
        except Unavailable as error:
            # They come again when their lease has run out.
            log.warning("completions must wait", count=len(known) + len(self._bulk), error=error.detail)
            self._bulk.clear()
            self._bulk_fault = error
        finally:
            self._bulk_task = None

    async def _finish(self, known: Sequence[_ReadCompletion]) -> None:
        if not known:
            return
        for piece in self._pieces(known):
            self._done += await self._apply(piece)
        crash_point("after_commit_before_ack")
        if self._done and self._acking is None:
            self._acking = asyncio.create_task(self._ack())

    def _pieces(self, known: Sequence[_ReadCompletion]) -> Iterator[Sequence[_ReadCompletion]]:
        """Parts of a batch, each with no more outputs than one transaction carries; one completion at least."""
        begin, chars = 0, 0
        for place, (_, ending) in enumerate(known):
            own_chars = len(ending.output) if ending is not None and ending.output is not None else 0
            if chars + own_chars > self._settings.completion_bytes_max and place > begin:
                yield known[begin:place]
                begin, chars = place, 0
            chars += own_chars
        yield known[begin:]

    async def _apply(self, known: Sequence[_ReadCompletion]) -> list[Completion]:
        """Apply a batch; those to be acked."""
        endings = [each.ending for each in known if each.ending is not None]
        self._count("unreadable", len(known) - len(endings))
        try:
            applied = await self._completer.apply(self._shard, endings) if endings else 0
        except Unavailable:
            raise
        except Exception:
            log.exception("completions are applied one by one", count=len(endings))
            return await self._apply_singly(known)
        self._count("applied", applied)
        self._count("without_effect", len(endings) - applied)
        return [each.completion for each in known]

    async def _apply_singly(self, known: Sequence[_ReadCompletion]) -> list[Completion]:
        done = []
        for completion, ending in known:
            try:
                if ending is not None:
                    self._count("applied", await self._completer.apply(self._shard, [ending]))
                done.append(completion)
            except Unavailable:
                raise
            except Exception as error:
                log.exception("a completion cannot be applied", attempt=completion.attempt)
                await self._put_back(completion, error)
        return done

    async def _put_back(self, completion: Completion, error: Exception) -> None:
        final = completion.attempt >= self._settings.completion_attempts_max
        self._count("given_up" if final else "put_back", 1)
        await self._context.queue.put_back(
            [completion],
            delay_s=self._settings.completion_delay_s,
            error=f"{type(error).__name__}: {error}"[:500],
            final=final,
        )

    async def _ack(self) -> None:
        try:
            while self._done:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._closed.wait(), ACKS_GATHER_S)
                done = self._done[: self._settings.completions_per_step_max]
                del self._done[: len(done)]
                await self._ack_some(done)
        finally:
            self._acking = None

    async def _ack_some(self, done: Sequence[Completion]) -> None:
        try:
            await self._context.queue.done(done)
        except Unavailable as error:
            # They come again when their lease has run out, to no effect.
            log.warning("completions were not acked", count=len(done), error=error.detail)

    def _count(self, result: str, count: int) -> None:
        if count:
            COMPLETIONS.labels(self._shard.number, result).inc(count)


def ending_of(payload: Any) -> Ending | None:
    """A completion item's payload as an ending; None when it is not one of ours."""
    try:
        context = payload["ack_context"]
        dag_id, key, generation = context["dag"], context["node"], context["generation"]
        state = OUTCOME_STATES[payload["outcome"]]
        finished_at, started_at = payload.get("finished_at"), context.get("started_at")
        canonical = ids.canonical(dag_id)
        if canonical is None or not isinstance(key, str) or type(generation) is not int:
            return None
        return Ending(
            canonical,
            key,
            generation,
            state,
            int(payload.get("attempt") or 0),
            encode(payload["output"]) if "output" in payload else None,
            payload.get("error"),
            datetime.fromisoformat(finished_at) if finished_at else None,
            datetime.fromisoformat(started_at) if started_at else None,
            worker if isinstance(worker := context.get("worker"), str) else None,
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
