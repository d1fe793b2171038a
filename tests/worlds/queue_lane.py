"""A lane of items: enqueued in batches, leased, extended, given back, forgotten, and acked, some of it twice."""

from collections.abc import AsyncIterator, Sequence
from itertools import compress
from typing import Any

from headgate.wire import BATCH_MAX
from tests.worlds.facts import Delivery, Sent
from tests.worlds.installation import SHARDS
from tests.worlds.lanes import LEASES_S, STUCK_SHOWN, Door, Lane, Pace
from tests.worlds.world import World

_TOPICS = ["a", "b", "c"]
_BATCH = 60
_WORKERS = 2
_WAITING_MAX = 3_000  # items that are not over; more are not enqueued
_OPERATIONS_OF_AN_ITEM = 3  # it is enqueued, leased and acked


class QueueLane(Lane):
    """One tenant's producer, and its workers."""

    def __init__(self, world: World, name: str, doors: dict[str, list[Door]], rate: float) -> None:
        super().__init__(world, name, doors)
        self._pace = Pace(rate / _OPERATIONS_OF_AN_ITEM)
        self._serial = 0
        self._is_through = False
        self._unended: set[str] = set()  # tags
        self._unsure: dict[str, str] = {}  # ids, by tags, of what is perhaps acked

    def workers(self) -> list[Any]:
        return [self._produce(), self._look_up(), *(self._work() for _ in range(_WORKERS))]

    @property
    def left(self) -> int:
        return len(self._unended)

    async def stuck(self) -> AsyncIterator[str]:
        for tag in sorted(self._unended)[:STUCK_SHOWN]:
            sent = self.history.sent[tag]
            shown = await self.call("queue", "/items/states", {"ids": sorted(sent.ids)}) if sent.ids else None
            known = [self.known_of(item_id) for item_id in sent.ids]
            yield f"{tag} of {sent.first_sent:.3f} {sent.known}: {known}, shown as {shown and shown.body}"

    async def _produce(self) -> None:
        while not self.is_ending:
            await self._pace.of(_BATCH)
            if len(self._unended) <= _WAITING_MAX:
                await self._send([self._item() for _ in range(_BATCH)])
        self._is_through = True

    def _item(self) -> Sent:
        self._serial += 1
        rng, tag = self.rng, f"{self.namespace}/{self._serial}"
        lease_s = rng.choice(LEASES_S)
        body: dict[str, Any] = {
            "topic": rng.choice(_TOPICS),
            "payload": {"tag": tag, "lease_s": lease_s},
            "lease_s": lease_s,
            "backoff": {"base_s": 0.2},
        }
        if rng.random() < 0.2:
            body["delay_s"] = rng.choice((0.3, 1.0, 3.0))
        if rng.random() < 0.3:
            body["priority"] = rng.randint(-1, 1)
        if rng.random() < 0.5:
            body["id"] = self.ids.make(rng.randrange(SHARDS))[0]
        else:
            body["idempotency_key"] = tag
        sent = Sent(tag, self.namespace, body["topic"], body, body.get("id"))
        self.history.sent[tag] = sent
        self._unended.add(tag)
        return sent

    async def _send(self, items: Sequence[Sent]) -> None:
        """Until each is answered for; some are sent again all the same."""
        left = list(items)
        is_once_more = self.rng.random() < 0.05
        while left:
            answer = await self.call("queue", "/enqueue", {"items": [sent.body for sent in left]})
            unknown = []
            for sent, (known, result) in zip(left, answer.results(len(left)), strict=True):
                sent.first_sent = sent.first_sent or answer.sent
                sent.known.add(known)
                if known == "ok":
                    sent.ids.add(result["id"])
                    self.done(result["status"])
                else:
                    unknown.append(sent)
            left = list(items) if is_once_more and not unknown else unknown
            is_once_more &= bool(unknown)

    async def _work(self) -> None:
        while not (self.is_ending and self._is_through and not self._unended):
            lease_s = self.rng.choice((None, None, *LEASES_S))
            await self.handle(await self.take(_TOPICS, _BATCH, lease_s))

    def acked(self, taken: list[Delivery]) -> None:
        self._ended({held.tag: held.id for held in taken})

    def perhaps_acked(self, taken: list[Delivery]) -> None:
        self._unsure |= {held.tag: held.id for held in taken}

    def _ended(self, ids: dict[str, str]) -> None:
        ended = {tag: item_id for tag, item_id in ids.items() if tag in self._unended}
        self._unended.difference_update(ended)
        self.over(list(ended), list(ended.values()))

    async def _look_up(self) -> None:
        """What is perhaps acked is, once it is not there any more."""
        while not (self.is_ending and self._is_through and not self._unended):
            await self.wait()
            self._unsure = {tag: item_id for tag, item_id in self._unsure.items() if tag in self._unended}
            asked = dict(list(self._unsure.items())[:BATCH_MAX])
            if not asked:
                continue
            answer = await self.call("queue", "/items/states", {"ids": list(asked.values())})
            results = answer.results(len(asked))
            gone = [known == "ok" and result["status"] == "not_found" for known, result in results]
            self._ended(dict(compress(asked.items(), gone)))
