"""What jobs do beside their work, under the load: they log, tell how far they have come, and are one of
a unique key at a time."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import Any

from headgate import AsyncClient
from headgate import _ids as ids
from headgate.errors import NotFound
from shared.shards.map_file import SLOTS, slot_of
from tests.integration.failover.load import SHARDS
from tests.integration.failover.verb import LOSSY, InTime, Verb
from tests.worlds import job_facts, unique_facts
from tests.worlds.facts import Delivery, History, Sent, Word
from tests.worlds.job_facts import JobFacts, Logged, Shown, Told
from tests.worlds.unique_facts import Taken, UniqueFacts

_LEASE_S = 10.0
_GUESSED = "01234567-89ab-4cde-8f01-23456789abcd"
_make = ids.IdMaker().make


def _home(tenant: str, name: str) -> int:
    """The shard on which the queue keeps what it knows of a topic, or of a key."""
    return slot_of(tenant, name) * SHARDS // SLOTS


class Worked(Verb):
    """A topic whose items are of this shard, taken one by one and written down as the facts of worlds."""

    topic = ""

    def __init__(self, tenant: str, client: AsyncClient, shard: int, in_time: InTime) -> None:
        super().__init__(tenant, client, shard, in_time)
        self.history = History()
        # Whatever is kept for the topic is on this shard as well.
        names = (f"{type(self).__name__.lower()}-{shard}-{n}" for n in count())
        self.topic = next(name for name in names if _home(tenant, name) == shard)
        self._serial = count(1)

    async def enqueue(self, **given: Any) -> None:
        made = _make(self.shard)[0]
        async with self.in_time(f"enqueue for {self.topic}"):
            await self.client.enqueue([{"topic": self.topic, "id": made, "payload": {}, **given}])

    async def take(self, number: int) -> list[Any]:
        leased: list[Any] = []
        sent = time.monotonic()
        async with self.in_time(f"dequeue {self.topic}"):
            leased = await self.client.dequeue({self.topic: number}, wait_s=0.1, lease_s=_LEASE_S)
        now = time.monotonic()
        for item in leased:
            body = {"topic": self.topic, "fairness_key": item.payload.get("key", "")}
            self.history.sent[item.id] = Sent(item.id, self.tenant, self.topic, body, item.id)
            place = self.tenant, self.topic, item.id, item.lease_token, item.attempt
            self.history.delivered(Delivery(item.id, *place, _LEASE_S, sent, now))
        return leased

    async def ack(self, item: Any) -> None:
        self._said("ack", item)
        async with self.in_time(f"ack of {self.topic}"):
            await self.client.ack([item.ack()])

    def _said(self, verb: str, item: Any, **given: Any) -> None:
        """Whatever is answered: it may be done from now on."""
        now = time.monotonic()
        self.history.said(Word(verb, self.tenant, item.id, item.lease_token, "info", "", now, now, given))

    def _may_be_lost(self, answered: float, cut_s: float | None) -> bool:
        return cut_s is not None and self.shard == LOSSY and answered >= cut_s


class Logs(Worked):
    """Each job writes lines, some of them twice, tells how far it is, and looks at what is shown of that."""

    def __init__(self, tenant: str, client: AsyncClient, shard: int, in_time: InTime) -> None:
        super().__init__(tenant, client, shard, in_time)
        self.facts = JobFacts()
        # By item, too: those that came in one answer have one token.
        self.answered: dict[tuple[str, str, int], float] = {}

    async def step(self) -> None:
        await self.enqueue()

    async def work(self) -> None:
        for item in await self.take(2):
            for number in (1, 2):
                await self._write(item, item.lease_token, number)
            await self._write(item, _GUESSED, next(self._serial))
            await self._tell(item)
            await self.ack(item)

    async def _write(self, item: Any, token: str, number: int) -> None:
        texts = [f"{item.id} {token[:8]} line {next(self._serial)}" for _ in range(2)]
        is_own = token == item.lease_token
        one = Logged(item.id, self.tenant, token, number, texts, is_own)
        self.facts.logged.append(one)
        batch = {"id": item.id, "lease_token": token, "attempt": item.attempt, "number": number}
        batch["lines"] = [{"text": text} for text in texts]
        for _ in range(2):  # as a worker does that was not answered; under its number that is one call
            known: tuple[Any, str] = ("info", "")
            async with self.in_time(f"write a log on {self.shard}"):
                [result] = await self.client.logs.write([batch])
                if result.status != "refused":
                    known = ("ok", result.status)
                    self.answered.setdefault((item.id, token, number), time.monotonic())
            one.known.add(known)

    async def _tell(self, item: Any) -> None:
        sent, note = time.monotonic(), f"{item.id} {next(self._serial)}"
        self._said("extend", item, lease_s=_LEASE_S)
        status = ""
        async with self.in_time(f"tell of progress on {self.shard}"):
            told: Any = {"id": item.id, "lease_token": item.lease_token, "lease_s": _LEASE_S}
            [result] = await self.client.extend([told | {"progress": {"done": 1, "note": note}}])
            status = result.status
        known: Any = "ok" if status and status != "refused" else "info"
        self.facts.told.append(
            Told(item.id, item.lease_token, note, known, status if known == "ok" else "", sent, time.monotonic())
        )
        async with self.in_time(f"look at a job on {self.shard}"):
            asked = time.monotonic()
            with suppress(NotFound):
                view = await self.client.item(item.id)
                shown = view.progress.note if view.progress is not None else None
                when = asked, time.monotonic()
                self.facts.shown.append(Shown(item.id, self.tenant, view.state, view.attempt, shown, *when))

    async def close(self) -> None:
        for item_id in dict.fromkeys(one.item for one in self.facts.logged):
            lines = await self.client.logs.all(item_id)
            self.facts.logs[item_id] = [line.model_dump(mode="json") for line in lines]

    def faults(self, cut_s: float | None) -> Iterator[str]:
        judged = JobFacts(shown=self.facts.shown, logs=self.facts.logs)
        for one in self.facts.logged:
            answered = self.answered.get((one.item, one.token, one.number), 0.0)
            is_lost = one.is_own and self._may_be_lost(answered, cut_s)
            judged.logged.append(replace(one, known={("info", "")} if is_lost else one.known))
        for told in self.facts.told:
            is_lost = self._may_be_lost(told.done, cut_s)
            judged.told.append(replace(told, known="info", status="") if is_lost else told)
        yield from (f"{self.tenant}'s {self.topic}: {fault}" for fault in job_facts.judge(judged, self.history))
        if not any(one.is_written for one in self.facts.logged):
            yield f"{self.tenant}'s {self.topic}: nobody has logged anything"


class Uniques(Worked):
    """Several want one key, which one item at a time has."""

    def __init__(self, tenant: str, client: AsyncClient, shard: int, in_time: InTime) -> None:
        super().__init__(tenant, client, shard, in_time)
        self.facts = UniqueFacts()
        keys = (f"one-{n}" for n in count())
        self.place = tenant, next(key for key in keys if _home(tenant, key) == shard)

    async def step(self) -> None:
        await asyncio.gather(self._want(), self._want())

    async def _want(self) -> None:
        began = time.monotonic()
        item: Any = {"topic": self.topic, "payload": {}, "idempotency_key": self.place[1], "unique": True}
        async with self.in_time(f"enqueue of a unique key on {self.shard}"):
            [result] = await self.client.enqueue([item], make_ids=False)
            if result.status == "enqueued":
                sent = Sent(result.id, self.tenant, self.topic, {"topic": self.topic}, result.id)
                self.facts.items.append(Taken(self.place, sent, result.id, began, time.monotonic()))

    async def work(self) -> None:
        for item in await self.take(1):
            await self.ack(item)

    def faults(self, cut_s: float | None) -> Iterator[str]:
        """A server that lost its tail leaves two histories, each of which is to be sound: what the former one
        answered, and what the standby goes on from, with what is seen of it and all that is sent from then on."""
        items, history = self.facts.items, self.history
        if cut_s is not None and self.shard == LOSSY:
            former = [taken for taken in items if taken.done < self.fell_s]
            yield from unique_facts.judge(UniqueFacts(items=former), history, is_inside=False)
            items = [taken for taken in items if self._stands(taken, cut_s)]
            history = self._later()
        yield from unique_facts.judge(UniqueFacts(items=items), history, is_inside=False)
        if not self.facts.items:
            yield f"{self.tenant}'s key {self.place[1]} was never taken"

    def _stands(self, taken: Taken, cut_s: float) -> bool:
        return taken.done < cut_s or taken.began >= self.stood_s or self._came_later(taken.id)

    def _came_later(self, item_id: str) -> bool:
        return any(came.sent >= self.stood_s for came in self.history.deliveries[item_id])

    def _later(self) -> History:
        """Of what came again from the standby no ack of before has been kept."""
        found = History()
        for item_id, words in self.history.words.items():
            since = self.stood_s if self._came_later(item_id) else 0.0
            found.words[item_id] = [word for word in words if word.sent >= since]
        return found


VERBS: tuple[type[Verb], ...] = (Logs, Uniques)
