"""The queue as the DAG service sees it, in memory: the test decides when items end and when calls arrive.

Statuses are those of the queue service. `hold("revive")` keeps calls of a verb waiting until the test lets
them through; `down` makes every call fail; `lose_answers` lets the call happen and then fail.
"""

import asyncio
import itertools
import json
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import inf
from typing import Any

from headgate._ids import shard_of
from services.dag.errors import QueueUnavailable
from services.dag.queue_client import SHARD_REMOVED, Answer, Attempt, Completion, Standing


@dataclass
class FakeItem:
    """A living item."""

    namespace: str
    body: dict[str, Any]
    state: str
    inputs: Any = None
    serial: int = 0
    attempt: int = 0
    since: datetime | None = None
    error: str | None = None
    worker: str | None = None
    unasked_s: float | None = None

    @property
    def node(self) -> str:
        return str(self.body["ack_context"]["node"])

    @property
    def generation(self) -> int:
        return int(self.body["ack_context"]["generation"])


def _standing(item: FakeItem) -> Standing:
    return Standing(item.state, item.attempt, item.since, None, None, item.error, item.worker, item.unasked_s)


@dataclass
class Hold:
    """A verb of which so many calls wait."""

    calls: float = inf
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    released: asyncio.Event = field(default_factory=asyncio.Event)

    async def reached(self) -> None:
        """Wait until a call waits here."""
        async with asyncio.timeout(60):
            await self.arrived.wait()


class FakeQueue:
    """Implements `services.dag.queue_client.Queue`."""

    def __init__(self, shards: Sequence[int] = (0, 1)) -> None:
        self.items: dict[str, FakeItem] = {}
        self.ended: dict[str, str] = {}
        self.calls: list[tuple[str, str, list[Any]]] = []
        self.delivered: list[tuple[str, int]] = []
        self.down: set[str] = set()
        self.lose_answers: set[str] = set()
        self.logged: dict[str, list[Attempt]] = {}
        self.refuse: dict[str, Answer] = {}
        self.too_old: set[str] = set()
        self.removed: set[int] = set()  # shards
        self.final_nacks: list[Completion] = []
        self.shard_numbers = list(shards)
        self._holds: dict[str, Hold] = {}
        self._topics: dict[str, deque[Completion]] = defaultdict(deque)
        self._arrived = asyncio.Event()
        self._serial = itertools.count()

    # What tests do

    def forget(self) -> None:
        """Be empty, as at first."""
        for known in (self.items, self.ended, self.calls, self.delivered, self._topics):
            known.clear()

    def ready(self, topic: str | None = None) -> list[FakeItem]:
        """Deliverable items, in order."""
        found = [i for i in self.items.values() if i.state == "ready" and topic in (None, i.body["topic"])]
        return sorted(found, key=lambda i: (i.body.get("priority", 0), i.serial))

    def deliverable(self) -> list[str]:
        """Node keys of the deliverable items."""
        return [item.node for item in self.ready()]

    def item_of(self, node: str, generation: int | None = None) -> FakeItem:
        """The living item of a node."""
        return next(
            item for item in self.items.values() if item.node == node and generation in (None, item.generation)
        )

    def ack(self, node: str, *, told: bool = True, **output: Any) -> None:
        """Deliver a node's item and ack it, with `output=...` or without; not `told` to the DAG service if its end
        was applied with the ack."""
        item = self.item_of(node)
        assert item.state == "ready", f"{node} is {item.state}"
        self.delivered.append((node, item.generation))
        if told:
            self.end(item, "acked", **output)
        else:
            self._drop(item, "acked")

    def die(self, node: str, error: str = "boom", *, told: bool = True) -> None:
        """A node's item uses up its attempts; `told` as of `ack`."""
        if told:
            self.end(self.item_of(node), "dead", error=error)
        else:
            self._drop(self.item_of(node), "dead")

    def end(self, item: FakeItem, outcome: str, **more: Any) -> None:
        """An item ends; its completion item is there at once."""
        self._drop(item, outcome)
        self.complete(item.body, outcome, **more)

    def _drop(self, item: FakeItem, outcome: str) -> None:
        item_id = item.body["id"]
        del self.items[item_id]
        self.ended[item_id] = outcome

    def complete(self, body: dict[str, Any], outcome: str, **more: Any) -> None:
        """A completion item, again if need be."""
        _, _, topic = body["ack_topic"].partition(":")
        payload = {
            "id": body["id"],
            "topic": body["topic"],
            "outcome": outcome,
            "attempt": 1,
            "finished_at": datetime.now(UTC).isoformat(),
            "ack_context": body["ack_context"],
            **more,
        }
        self.put_completion(topic, payload)

    def put_completion(self, topic: str, payload: Any, attempt: int = 1) -> None:
        """Any completion item."""
        self._topics[topic].append(Completion(f"c{next(self._serial)}", "token", attempt, payload))
        self._arrived.set()

    @asynccontextmanager
    async def hold(self, verb: str, calls: float = inf) -> AsyncIterator[Hold]:
        """The next `calls` of `verb` wait inside the block, until `released` is set."""
        hold = self._holds[verb] = Hold(calls)
        try:
            yield hold
        finally:
            del self._holds[verb]
            hold.released.set()

    # What the service does

    async def enqueue(self, namespace: str, items: Sequence[str]) -> list[Answer]:
        bodies = list(map(json.loads, items))
        await self._enter("enqueue", namespace, bodies)
        return self._leave("enqueue", [self._enqueue(namespace, body) for body in bodies])

    async def revive(self, namespace: str, items: Sequence[tuple[str, str | None]]) -> list[Answer]:
        await self._enter("revive", namespace, items)
        return self._leave("revive", [self._revive(item_id, inputs) for item_id, inputs in items])

    async def cancel(self, namespace: str, item_ids: Sequence[str]) -> list[Answer]:
        await self._enter("cancel", namespace, item_ids)
        return self._leave("cancel", [self._cancel(item_id) for item_id in item_ids])

    async def take(self, topic: str, count: int, *, wait_s: float, lease_s: float) -> list[Completion]:
        await self._enter("take", topic, [])
        waiting = self._topics[topic]
        if not waiting and wait_s:
            self._arrived.clear()
            try:
                async with asyncio.timeout(wait_s):
                    await self._arrived.wait()
            except TimeoutError:
                pass
        return [waiting.popleft() for _ in range(min(count, len(waiting)))]

    async def done(self, completions: Sequence[Completion]) -> None:
        await self._enter("done", "_dag", completions)

    async def put_back(
        self, completions: Sequence[Completion], *, delay_s: float, error: str, final: bool
    ) -> None:
        if final:
            self.final_nacks += completions
            return
        for completion in completions:
            self.put_completion("acks/000", completion.payload, completion.attempt + 1)

    async def standings(self, namespace: str, item_ids: Sequence[str]) -> dict[str, Standing]:
        await self._enter("standings", namespace, item_ids)
        return {item_id: _standing(self.items[item_id]) for item_id in item_ids if item_id in self.items}

    async def attempts(self, namespace: str, item_id: str) -> list[Attempt]:
        await self._enter("attempts", namespace, [item_id])
        return self.logged.get(item_id, [])

    async def attempts_of_many(self, namespace: str, item_ids: Sequence[str]) -> dict[str, list[Attempt]]:
        await self._enter("attempts_of_many", namespace, item_ids)
        return {item_id: self.logged.get(item_id, []) for item_id in item_ids}

    async def shards(self) -> list[int]:
        await self._enter("shards", "", [])
        return self.shard_numbers

    async def close(self) -> None:
        return None

    async def _enter(self, verb: str, namespace: str, elements: Sequence[Any]) -> None:
        if (hold := self._holds.get(verb)) and hold.calls > 0:
            hold.calls -= 1
            hold.arrived.set()
            await hold.released.wait()
        if verb in self.down:
            raise QueueUnavailable("down", outcome="unknown")
        self.calls.append((verb, namespace, list(elements)))

    def _leave(self, verb: str, answers: list[Answer]) -> list[Answer]:
        if verb in self.lose_answers:
            raise QueueUnavailable("the answer was lost", outcome="unknown")
        return answers

    def _enqueue(self, namespace: str, body: dict[str, Any]) -> Answer:
        item_id = body["id"]
        if shard_of(item_id) in self.removed:
            return Answer("refused", SHARD_REMOVED)
        if refusal := self.refuse.get(body["ack_context"]["node"]):
            return refusal
        if self.ended.get(item_id) == "cancelled":
            return Answer("cancelled")
        if item_id in self.ended or item_id in self.items:
            return Answer("duplicate")
        if item_id in self.too_old:
            return Answer("refused", "id_too_old")
        state = "disabled" if body.get("disabled") else "ready"
        self.items[item_id] = FakeItem(namespace, body, state, body.get("inputs"), next(self._serial))
        return Answer("enqueued")

    def _revive(self, item_id: str, inputs: str | None) -> Answer:
        outcome = self.ended.get(item_id)
        if outcome is not None:
            return Answer("cancelled" if outcome == "cancelled" else "finished")
        item = self.items.get(item_id)
        if item is None:
            return Answer("not_found")
        if item.state != "disabled":
            return Answer("already_enabled")
        item.state, item.inputs, item.serial = "ready", inputs, next(self._serial)
        return Answer("revived")

    def _cancel(self, item_id: str) -> Answer:
        outcome = self.ended.get(item_id)
        if outcome is not None:
            return Answer("already_cancelled" if outcome == "cancelled" else "finished")
        item = self.items.get(item_id)
        if item is None and (item_id in self.too_old or shard_of(item_id) in self.removed):
            return Answer("not_found")
        if item is None:
            self.ended[item_id] = "cancelled"
        else:
            self.end(item, "cancelled")
        return Answer("cancelled")
