"""One shard, two slowed-down processes on it, and one item that they fight over."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from headgate._ids import new_id
from services.queue.enqueue.item_rows import new_rows
from services.queue.keys.key_buffer import START
from services.queue.leases.extend import Extension
from services.queue.leases.nack import Nack
from services.queue.model import Backoff, Claim, Key, NewItem, Offer, Settled
from services.queue.store.leases import SweepBounds
from shared.http.access import Caller
from tests.support.interleave import Actor, explore

ANYBODY = Caller(frozenset({"enqueue", "consume", "admin"}))
NS = "default"

# Where an item is, by table; `lease` counts only while the item's row lives: acked ids stay in the group.
PLACES = """
SELECT (SELECT count(*) FROM item WHERE id = $1) AS item, (SELECT count(*) FROM ready WHERE id = $1) AS ready,
    (SELECT count(*) FROM deferred WHERE id = $1) AS deferred,
    (SELECT count(*) FROM parked WHERE id = $1) AS parked,
    (SELECT count(*) FROM lease l JOIN item i ON i.id = ANY (l.ids) WHERE i.id = $1) AS lease,
    (SELECT count(*) FROM ready r JOIN topic t USING (topic_id) WHERE t.name = 'told') AS told,
    (SELECT array_agg(outcome) FROM (SELECT * FROM ended UNION ALL SELECT * FROM ended_old) AS e
        WHERE id = $1) AS ended
"""
PLACE = "SELECT topic_id, priority, deliver_at FROM item WHERE id = $1 AND deliver_at IS NOT NULL"
EMPTY = (
    "TRUNCATE item, ready, deferred, parked, lease, acked, ended, ended_old, unseen_cancel, dedup, stat_delta,"
    " topic_stat"
)


@dataclass
class Scene:
    """One shard, two processes on it, and two plain connections: `reader` is for use between their steps."""

    a: Actor
    b: Actor
    watcher: Any
    reader: Any
    item_id: str = ""
    token: str = ""
    operation_id: str = ""
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def enqueue(self, **fields: Any) -> None:
        """A fresh item with an id of its caller, on an empty shard."""
        await self.watcher.execute(EMPTY)
        self.item_id = new_id(0)
        [result] = await self.a.process.enqueues.enqueue(NS, [self.item(**fields)], ANYBODY)
        assert result.status == "enqueued"

    async def clear(self) -> None:
        """An empty shard and an id that nobody has seen."""
        await self.watcher.execute(EMPTY)
        self.item_id = new_id(0)

    def item(self, **fields: Any) -> NewItem:
        given = {"topic": "t", "id": self.item_id, "ack_topic": "told", "backoff": Backoff(base_s=0)}
        return NewItem(**given | fields)

    async def lease(self, lease_s: float = 60.0) -> None:
        self.token = await self.claim(self.a, lease_s)
        assert self.token

    async def expire(self) -> None:
        """Let the lease be over."""
        await self.watcher.execute("UPDATE lease SET expires_at = clock_timestamp() - interval '1 second'")

    async def claim(self, actor: Actor, lease_s: float = 60.0) -> str:
        """Claim the item by the statement itself, at its place if it has one; its token, or nothing."""
        token = str(uuid.uuid4())
        async with self.reading:
            place = await self.reader.fetchrow(PLACE, self.item_id)
        topic_id, *order = place or (0, *START[:2])
        groups, _ = await actor.store.claim(
            [Claim(topic_id, [Key(*order, self.item_id)], token, lease_s)], relaxed=False
        )
        return token if groups else ""

    async def places(self) -> dict[str, Any]:
        return dict(await self.watcher.fetchrow(PLACES, self.item_id))

    async def counts(self) -> dict[str, int]:
        row = await self.watcher.fetchrow(
            "SELECT coalesce(sum(ready), 0)::int AS ready, coalesce(sum(delayed), 0)::int AS deferred,"
            " coalesce(sum(leased), 0)::int AS lease, coalesce(sum(disabled) + sum(dead), 0)::int AS parked"
            " FROM stat_delta JOIN topic USING (topic_id) WHERE name = 't'"
        )
        return dict(row)

    async def consistent(self) -> dict[str, Any]:
        """The item is in exactly one place, or gone and then told once; the counts say the same."""
        found = await self.places()
        places = {name: found[name] for name in ("ready", "deferred", "parked", "lease")}
        assert sum(places.values()) == found["item"] <= 1, found
        assert await self.counts() == places
        if self.operation_id:
            counted = await self.watcher.fetchrow("SELECT sum(scanned) AS n, sum(skipped) AS s FROM operation")
            assert counted["n"] <= 1 and counted["s"] <= 1, "two hosts counted one item"
        if found["item"] == 0:
            assert found["told"] == 1, found
            assert len(found["ended"]) == 1, found
        return found

    # verbs, as (actor) -> status

    async def ack(self, actor: Actor) -> str:
        [result] = await actor.process.acks.ack(NS, [Settled(self.item_id, self.token)])
        return str(result.status)

    async def nack(self, actor: Actor, **fields: Any) -> str:
        nack = Nack(self.item_id, self.token, None, None, None, fields.get("final", False), True)
        [result] = await actor.process.nacks.nack(NS, [nack])
        return str(result.status)

    async def extend(self, actor: Actor) -> str:
        [result] = await actor.process.extends.extend(NS, [Extension(self.item_id, self.token, 60.0)])
        return str(result.status)

    async def cancel(self, actor: Actor) -> str:
        [result] = await actor.process.cancels.cancel(NS, [self.item_id], ANYBODY)
        return str(result.status)

    async def enqueue_again(self, actor: Actor, **fields: Any) -> str:
        [result] = await actor.process.enqueues.enqueue(NS, [self.item(**fields)], ANYBODY)
        return str(result.status)

    async def revive(self, actor: Actor) -> str:
        [result] = await actor.process.revives.revive(NS, [(self.item_id, None)], ANYBODY)
        return str(result.status)

    async def revive_for_a_waiter(self, actor: Actor) -> str:
        """The revive's statement with an offer, as of a call that waits for the topic."""
        found = await actor.store.names.find(NS, "t")
        assert found is not None
        offer = Offer(found.topic_id, str(uuid.uuid4()), 60.0, 1)
        rows = await actor.store.revive([self.item_id], [found.namespace_id], [None], True, [offer])
        return "handed" if [item.token for item in rows] == [offer.token] else "nothing"

    async def enqueue_for_a_waiter(self, actor: Actor) -> str:
        """The enqueue's statement with an offer, as of a call that waits for the topic."""
        found = await actor.store.names.find(NS, "t")
        assert found is not None
        offer = Offer(found.topic_id, str(uuid.uuid4()), 60.0, 1)
        rows = new_rows(actor.store, NS, [(self.item(), self.item_id)], ANYBODY)
        flushed = await actor.store.enqueue(rows, [offer])
        return "handed" if [lease.token for _, lease in flushed.handed] == [offer.token] else "nothing"

    async def sweep(self, actor: Actor) -> str:
        swept = await actor.process.expiry.sweep(actor.store, SweepBounds(10))
        return f"swept {swept.ids}"

    async def expire_ttl(self, actor: Actor) -> str:
        return f"expired {await actor.process.expiry.expire(actor.store, [self.item_id])}"

    async def place(self, kind: str, **wanted: Any) -> None:
        """Ask for an operation on the topic; nobody carries it on yet."""
        await self.watcher.execute("DELETE FROM operation")
        # Narrowed down to what every item is, so that it is one walk through the shard.
        wanted = {"topic": "t", "priority_min": -(2**31), **wanted}
        self.operation_id = await self.a.process.operations.place(NS, kind, wanted)

    async def carry_on(self, actor: Actor) -> str:
        """Do the operation's one chunk; how many items this actor changed."""
        done = await actor.process.operations.chunk(actor.store, self.operation_id)
        return f"changed {done.changed if done is not None else 0}"

    async def claimed(self, actor: Actor) -> str:
        return "claimed" if await self.claim(actor) else "nothing"


Verb = Callable[[Actor], Awaitable[str]]


async def race(
    scene: Scene,
    begin: Callable[[], Awaitable[None]],
    verbs: tuple[Verb, Verb],
    allowed: dict[tuple[str, str], str],
) -> None:
    """Every order of two verbs ends in one of the allowed pairs of answers, with the item where that says.

    `allowed` maps the answers to the place in which the item must be then, or to the outcome of its end.
    """
    seen: set[tuple[str, str]] = set()

    async def start() -> list[Any]:
        await begin()
        return [lambda: verbs[0](scene.a), lambda: verbs[1](scene.b)]

    async def check(results: list[Any]) -> None:
        pair = (results[0], results[1])
        assert pair in allowed, "these answers do not go together"
        seen.add(pair)
        found = await scene.consistent()
        where = allowed[pair]
        if found["item"]:
            assert found.get(where) == 1, (where, found)
        else:
            assert found["ended"] == [where], (where, found)

    # Statements of the queue write through functions, which hide their tables: no order is left out.
    orders = await explore(scene.watcher, [scene.a, scene.b], start, check, whole=True)
    assert orders > 1
    assert len(seen) > 1 or len(allowed) == 1, f"only {seen} in {orders} orders: the race was never run"
