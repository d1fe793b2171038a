"""The queue service, as the DAG service sees it. `HeadgateQueue` is the only outbound HTTP."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, NamedTuple, Protocol

from headgate import AsyncClient, Nack, Result, RetryPolicy, wire
from headgate import errors as sdk
from headgate._ids import shard_of
from services.dag.errors import QueueUnavailable
from services.dag.model import SYSTEM_NAMESPACE
from shared.clock import Clock
from shared.ids import ShardNo

# What failed is sent again by the outbox; here only a connection that broke in between is worth a retry.
# A queue that stands still would hold its caller up twice.
_RETRY = RetryPolicy(
    attempts_max=2, base_s=0.02, delay_s_max=0.1, retry_after_s_max=0.1, elements=False, timeouts=False
)


# The code of a refusal by a shard that the queue does not have any more: nothing of it will ever be delivered.
SHARD_REMOVED = "shard_removed"


_OF_AN_ID = re.compile("/items/[0-9]+/id")


class Answer(NamedTuple):
    """One element's answer. `final` tells a refusal that no repetition will change."""

    status: str
    code: str | None = None
    final: bool = False


class Standing(NamedTuple):
    """Where an item of the queue stands: its state there, since when, and its present or last attempt."""

    state: str
    attempt: int
    since: datetime | None
    deliver_at: datetime | None
    lease_expires_at: datetime | None
    error: str | None
    worker: str | None = None
    # For how long nobody has asked for its topic.
    unasked_s: float | None = None


class Attempt(NamedTuple):
    """A delivery of an item that failed."""

    attempt: int
    started_at: datetime | None
    ended_at: datetime
    outcome: str
    error: str | None
    worker: str | None = None


class Completion(NamedTuple):
    """A leased completion item."""

    id: str
    token: str
    attempt: int
    payload: Any


class Queue(Protocol):
    """What the DAG service asks of the queue. Every method raises QueueUnavailable when there is no answer."""

    async def enqueue(self, namespace: str, items: Sequence[str]) -> list[Answer]:
        """`enqueued`, `duplicate`, `cancelled` or `refused` for each item (JSON text)."""
        ...

    async def revive(self, namespace: str, items: Sequence[tuple[str, str | None]]) -> list[Answer]:
        """`revived`, `already_enabled`, `finished`, `cancelled`, `not_found`, ... for (id, inputs as JSON)."""
        ...

    async def cancel(self, namespace: str, item_ids: Sequence[str]) -> list[Answer]:
        """`cancelled`, `already_cancelled`, `finished`, `not_found` or `refused` for each id."""
        ...

    async def take(self, topic: str, count: int, *, wait_s: float, lease_s: float) -> list[Completion]:
        """Lease up to `count` completion items, waiting up to `wait_s` for the first."""
        ...

    async def done(self, completions: Sequence[Completion]) -> None:
        """Ack completion items."""
        ...

    async def put_back(
        self, completions: Sequence[Completion], *, delay_s: float, error: str, final: bool
    ) -> None:
        """Nack completion items."""
        ...

    async def standings(self, namespace: str, item_ids: Sequence[str]) -> dict[str, Standing]:
        """Where items stand; those that have ended, or never came, are left out."""
        ...

    async def attempts(self, namespace: str, item_id: str) -> list[Attempt]:
        """The first deliveries of an item that failed, also when it has ended."""
        ...

    async def attempts_of_many(self, namespace: str, item_ids: Sequence[str]) -> dict[str, list[Attempt]]:
        """The last deliveries of items that failed, by item: the fewer of each, the more items."""
        ...

    async def shards(self) -> list[ShardNo]:
        """Numbers of the queue's shards that take items."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


def pick_shard(numbers: Sequence[ShardNo], dag_shard: ShardNo, beside: Collection[ShardNo] = ()) -> ShardNo:
    """The queue's shard for items of a DAG shard, of those that take items.

    All of a DAG shard's items live on one, so that a batch of its enqueues, revives and completions is one
    statement there; DAG shards take turns on the queue's. Shards `beside` it, in its own database, come first:
    there an ack goes on with its DAG by itself.
    """
    if not numbers:
        raise QueueUnavailable("the queue names no shard that takes items")
    near = [number for number in numbers if number in beside] or numbers
    return near[dag_shard % len(near)]


class HeadgateQueue:
    """The queue service over HTTP, through the public SDK."""

    def __init__(self, url: str, token: str | None, *, clock: Clock, shards_refresh_s: float) -> None:
        self._client = AsyncClient(queue_url=url, token=token, timeout_s=10.0, retry=_RETRY)
        self._clock = clock
        self._shards_refresh_s = shards_refresh_s
        self._shards: list[ShardNo] = []
        self._shards_until_s = 0.0
        self._listed: set[ShardNo] = set()

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def enqueue(self, namespace: str, items: Sequence[str]) -> list[Answer]:
        async def send(part: Sequence[Any]) -> list[Result]:
            return await self._client.enqueue_encoded(part, namespace=namespace)

        return await self._each(send, items)

    async def revive(self, namespace: str, items: Sequence[tuple[str, str | None]]) -> list[Answer]:
        async def send(part: Sequence[Any]) -> list[Result]:
            return await self._client.revive(part, namespace=namespace)

        bodies = [
            {"id": item_id} if inputs is None else {"id": item_id, "inputs": json.loads(inputs)}
            for item_id, inputs in items
        ]
        return await self._each(send, bodies)

    async def cancel(self, namespace: str, item_ids: Sequence[str]) -> list[Answer]:
        async def send(part: Sequence[Any]) -> list[Result]:
            return await self._client.cancel(part, namespace=namespace)

        return await self._each(send, item_ids)

    async def take(self, topic: str, count: int, *, wait_s: float, lease_s: float) -> list[Completion]:
        with _answering():
            leased = await self._client.dequeue(
                {topic: count}, wait_s=wait_s, lease_s=lease_s, namespace=SYSTEM_NAMESPACE
            )
        return [Completion(item.id, item.lease_token, item.attempt, item.payload) for item in leased]

    async def done(self, completions: Sequence[Completion]) -> None:
        with _answering():
            await self._client.ack(
                [{"id": c.id, "lease_token": c.token} for c in completions], namespace=SYSTEM_NAMESPACE
            )

    async def put_back(
        self, completions: Sequence[Completion], *, delay_s: float, error: str, final: bool
    ) -> None:
        nacks: list[Nack] = [
            {"id": c.id, "lease_token": c.token, "delay_s": delay_s, "error": error, "final": final}
            for c in completions
        ]
        with _answering():
            await self._client.nack(nacks, namespace=SYSTEM_NAMESPACE)

    async def standings(self, namespace: str, item_ids: Sequence[str]) -> dict[str, Standing]:
        try:
            with _answering():
                found = await self._client.item_states(item_ids, namespace=namespace)
        except _CallRefused as refusal:
            raise QueueUnavailable(f"the queue does not tell about items: {refusal.code}") from refusal
        return {
            item.id: Standing(
                item.state,
                item.attempt,
                item.since,
                item.deliver_at,
                item.lease_expires_at,
                item.error,
                item.worker,
                item.unasked_s,
            )
            for item in found
            if item.id is not None and item.state is not None
        }

    async def attempts(self, namespace: str, item_id: str) -> list[Attempt]:
        try:
            with _answering():
                found = await self._client.item_attempts(item_id, namespace=namespace)
        except _CallRefused as refusal:
            raise QueueUnavailable(f"the queue does not tell about items: {refusal.code}") from refusal
        return list(map(_attempt_of, found))

    async def attempts_of_many(self, namespace: str, item_ids: Sequence[str]) -> dict[str, list[Attempt]]:
        try:
            with _answering():
                found = await self._client.items_attempts(item_ids, namespace=namespace)
        except _CallRefused as refusal:
            raise QueueUnavailable(f"the queue does not tell about items: {refusal.code}") from refusal
        return {str(item.id): list(map(_attempt_of, item.attempts)) for item in found}

    async def shards(self) -> list[ShardNo]:
        now_s = self._clock.monotonic_s()
        if now_s >= self._shards_until_s:
            if self._shards:
                # Who comes meanwhile, or when the queue is away, goes by what was known before.
                self._shards_until_s = now_s + self._shards_refresh_s
            try:
                with _answering():
                    found = await self._client.shards()
            except QueueUnavailable:
                if not self._shards:
                    raise
            else:
                self._listed = {ShardNo(shard.shard) for shard in found}
                taking = [ShardNo(shard.shard) for shard in found if shard.state not in ("open", "draining")]
                self._shards = taking or [ShardNo(shard.shard) for shard in found]
                self._shards_until_s = self._clock.monotonic_s() + self._shards_refresh_s
        return self._shards

    async def _each(
        self, send: Callable[[Sequence[Any]], Awaitable[list[Result]]], elements: Sequence[Any]
    ) -> list[Answer]:
        """One answer per element. A call that is refused as a whole is sent again in halves, so that the one
        element at fault is refused alone."""
        if not elements:
            return []
        try:
            with _answering():
                results = await send(elements)
        except _CallRefused as refusal:
            if len(elements) == 1:
                return [Answer("refused", refusal.code, final=True)]
            middle = len(elements) // 2
            return await self._each(send, elements[:middle]) + await self._each(send, elements[middle:])
        return [
            Answer(found.status, found.code) if found.code is None else self._refused(found) for found in results
        ]

    def _refused(self, result: Result) -> Answer:
        """A process that has seen a shard leave the map says that it is away; one that began later does not know
        it."""
        is_away = result.code == "shard_unavailable" and result.id is not None and self._listed
        if is_away and shard_of(str(result.id)) not in self._listed:
            return Answer("refused", SHARD_REMOVED)
        return Answer(result.status, result.code)


class _CallRefused(Exception):
    """The queue will never take this call."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


@contextmanager
def _answering() -> Iterator[None]:
    """The SDK's errors as ours. Being refused for who we are is a fault of configuration, not of the call."""
    try:
        yield
    except (sdk.BadRequest, sdk.TooLarge, sdk.Invalid, sdk.NotFound, sdk.Conflict) as error:
        # Ids are made here: what can be wrong with one is its shard.
        is_shard = any(_OF_AN_ID.fullmatch(fault.pointer) for fault in error.errors)
        raise _CallRefused(SHARD_REMOVED if is_shard else error.code) from error
    except sdk.HeadgateError as error:
        raise QueueUnavailable("the queue service did not answer", outcome="unknown", retry_after_s=1.0) from error


def _attempt_of(told: wire.ItemAttempt) -> Attempt:
    return Attempt(told.attempt, told.started_at, told.ended_at, told.outcome, told.error, told.worker)
