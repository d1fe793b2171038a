"""Producers and consumers of single items: every kind of item, and everything that may be said of one."""

import asyncio
import random
from collections import deque
from typing import Any

from headgate.ids import IdMaker
from tests.integration.soak.calls import Answer, Caller
from tests.integration.soak.history import Delivery, End, History, Sent, Word

WORK, ENDS = "work", "ends"
LEASES_S = (1.0, 1.5, 3.0)
_BATCH_MAX = 20
_PAUSE_S = 0.1
_AGAIN_S = 60.0

_ids = IdMaker()


class QueueLoad:
    """`producing` and `draining` say in which part of the soak its tasks are."""

    def __init__(self, url: str, history: History, seed: int, shards: int) -> None:
        self._url = url
        self._history = history
        self._seed = seed
        self._shards = shards
        self._late: set[asyncio.Task[None]] = set()
        self.producing = True
        self.draining = False

    async def produce(self, number: int) -> None:
        """Enqueue, revive and cancel; at the end, go after all that is not known to be there."""
        rng = random.Random(f"{self._seed} producer {number}")
        unsure: list[Sent] = []
        disabled: deque[Sent] = deque()
        async with Caller(self._url) as caller:
            count = 0
            while self.producing:
                fresh = []
                for _ in range(rng.randint(1, _BATCH_MAX)):
                    fresh.append(self._item(rng, f"{number}.{count}"))
                    count += 1
                if rng.random() < 0.05:
                    await self._cancel(caller, rng.choice(fresh))
                batch = fresh + unsure
                await self._enqueue(caller, batch)
                # What has no name cannot be sent again: it may be there, or not.
                unsure = [s for s in batch if not s.is_promised and (s.id or s.key) and rng.random() < 0.9]
                disabled.extend(sent for sent in fresh if sent.disabled and sent.is_promised)
                while len(disabled) > 5:
                    await self.revive(caller, disabled.popleft())
                if rng.random() < 0.05:
                    await self._cancel(caller, rng.choice(fresh))
                await asyncio.sleep(rng.random() * _PAUSE_S)
            async with asyncio.timeout(_AGAIN_S):
                while unsure:
                    await self._enqueue(caller, unsure)
                    unsure = [sent for sent in unsure if not sent.is_promised]
                for sent in [sent for sent in self._history.sent.values() if sent.tag.startswith(f"{number}.")]:
                    while sent.disabled and sent.ids and not await self.revive(caller, sent):
                        await asyncio.sleep(0.1)

    async def consume(self, number: int) -> None:
        """Dequeue, and do with each item what workers do, right or wrong; while draining only what is right."""
        rng = random.Random(f"{self._seed} consumer {number}")
        async with Caller(self._url) as caller:
            while True:
                lease_s = rng.choice(LEASES_S)
                topics = [{"topic": WORK, "count": rng.randint(1, _BATCH_MAX)}, {"topic": ENDS, "count": 20}]
                answer = await caller.post("/dequeue", {"topics": topics, "wait_s": 1, "lease_s": lease_s})
                if answer.known != "ok":
                    await asyncio.sleep(0.05)
                    continue
                acks = []
                for leased in answer.body["items"]:
                    delivery = delivery_of(leased, answer, lease_s)
                    self._history.delivered(delivery)
                    if leased["topic"] == ENDS:
                        said = leased["payload"]
                        self._history.told(End(leased["id"], said["id"], said["outcome"]))
                        acks.append(delivery)
                    elif self.draining or rng.random() < 0.75:
                        acks.append(delivery)
                    else:
                        task = asyncio.create_task(self._misuse(rng.random(), delivery))
                        self._late.add(task)
                        task.add_done_callback(self._late.discard)
                if acks:
                    await say(caller, self._history, "ack", acks)
                    if rng.random() < 0.1:  # an answer that was not read
                        await say(caller, self._history, "ack", acks)

    async def until_said(self) -> None:
        """Until nothing is on its way any more that a consumer has put off."""
        while self._late:
            await asyncio.gather(*self._late)

    async def _misuse(self, choice: float, delivery: Delivery) -> None:
        async with Caller(self._url) as caller:
            if choice < 0.35:
                delay_s = round(choice * 2, 2)
                await say(caller, self._history, "nack", [delivery], delay_s=delay_s)
            elif choice < 0.42:
                await say(caller, self._history, "nack", [delivery], final=True, error="soak")
            elif choice < 0.6:
                await asyncio.sleep(delivery.lease_s * 0.7)
                await say(caller, self._history, "extend", [delivery], lease_s=2.0)
                await asyncio.sleep(1.0)
                await say(caller, self._history, "ack", [delivery])
            elif choice < 0.8:  # late, as a worker that stood still
                await asyncio.sleep(delivery.lease_s + choice)
                await say(caller, self._history, "ack", [delivery])

    def _item(self, rng: random.Random, tag: str) -> Sent:
        named = rng.random()
        sent = Sent(
            tag,
            id=_ids.make(rng.randrange(self._shards))[0] if named < 0.5 else None,
            key=f"key {tag}" if 0.5 <= named < 0.75 else None,
            delay_s=rng.choice((0.0, 0.0, 0.0, 0.3, 0.8)),
            disabled=rng.random() < 0.1,
            is_once=rng.random() < 0.1,
            attempts_max=rng.choice((0, 0, 3)),
            tells=rng.random() < 0.3,
        )
        if sent.id:
            sent.ids.add(sent.id)
        self._history.add(sent)
        return sent

    async def _enqueue(self, caller: Caller, batch: list[Sent]) -> None:
        items = [_body(sent) for sent in batch]
        answer = await caller.post("/enqueue", {"items": items})
        for sent, (known, result) in zip(batch, answer.results(len(batch)), strict=True):
            sent.first_sent = sent.first_sent or answer.sent
            sent.known.add(known)
            reason = "" if known == "ok" else answer.reason or f" {result['code']}"
            self._history.counts[f"enqueue {known}{reason}"] += 1
            if known == "ok":
                sent.ids.add(result["id"])
                sent.met_cancel |= result["status"] == "cancelled"

    async def _cancel(self, caller: Caller, sent: Sent) -> None:
        for item_id in sent.ids:
            answer = await caller.post("/cancel", {"ids": [item_id]})
            [(known, result)] = answer.results(1)
            status = result.get("status", "")
            self._history.said(Word("cancel", item_id, "", known, status, answer.sent, answer.done))

    async def revive(self, caller: Caller, sent: Sent) -> bool:
        for item_id in sent.ids:
            answer = await caller.post("/revive", {"items": [{"id": item_id}]})
            [(known, result)] = answer.results(1)
            status = result.get("status", "")
            self._history.said(Word("revive", item_id, "", known, status, answer.sent, answer.done))
            if known != "ok":
                return False
        return True


def _body(sent: Sent) -> dict[str, Any]:
    body: dict[str, Any] = {"topic": WORK, "payload": {"tag": sent.tag}, "max_attempts": sent.attempts_max}
    body |= {"id": sent.id} if sent.id else {}
    body |= {"idempotency_key": sent.key} if sent.key else {}
    body |= {"delay_s": sent.delay_s} if sent.delay_s else {}
    body |= {"disabled": True} if sent.disabled else {}
    body |= {"delivery": "at_most_once"} if sent.is_once else {}
    return body | ({"ack_topic": ENDS} if sent.tells else {})


def delivery_of(leased: dict[str, Any], answer: Answer, lease_s: float) -> Delivery:
    """An item of a dequeue's answer as a record."""
    payload = leased["payload"]
    tag = payload["tag"] if "tag" in payload else f"end of {payload['id']}"
    return Delivery(tag, leased["id"], leased["lease_token"], leased["attempt"], lease_s, answer.sent, answer.done)


async def say(
    caller: Caller, history: History, verb: str, deliveries: list[Delivery], **fields: Any
) -> list[Word]:
    """One call about leased items, written down."""
    items = [{"id": delivery.id, "lease_token": delivery.token, **fields} for delivery in deliveries]
    answer = await caller.post(f"/{verb}", {"items": items})
    words = [
        Word(
            verb,
            delivery.id,
            delivery.token,
            known,
            result.get("status", ""),
            answer.sent,
            answer.done,
            fields.get("lease_s", 0.0),
            fields.get("delay_s", 0.0),
        )
        for delivery, (known, result) in zip(deliveries, answer.results(len(deliveries)), strict=True)
    ]
    for word in words:
        history.said(word)
    return words
