"""Lanes: clients of tenants of their own, each going on as fast as its share of a rate lets it, beside the world.

A lane knows what it sent and was answered, and gives what is over to the oracles while it goes on, so that its
memory has a bound. Nothing of a lane waits for another one's calls, nor for a round.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from random import Random
from time import monotonic
from typing import Any

import httpx

from headgate._ids import IdMaker
from tests.worlds import queue_oracle
from tests.worlds.facts import Delivery, History, Word
from tests.worlds.wire import Answer
from tests.worlds.world import World

# How long after an item's end it is judged: by then a second delivery, or an end that was not one, has shown.
_JUDGED_AFTER_S = 30.0
_JUDGE_EVERY_S = 1.0
_SAVED_S = 5.0  # a lane that was held up makes up for so much
_AGAIN_S, _LOOK_S = 0.2, 0.5
_CALL_S = 5.0
_DRAIN_S_MAX = 240.0
STUCK_SHOWN = 3
LEASES_S = (2.0, 5.0, 20.0)
# What counts as an operation, of what an element may be answered: it had its effect, by this call.
_EFFECTS = frozenset({"enqueued", "acked", "requeued", "extended"})
# What becomes of leased items, by shares of a hundred; all others are acked.
_FATES = (("forget", 2), ("nack", 4), ("extend", 6), ("twice", 4))


class Door:
    """The way to one process, for clients who do not look at each answer's form."""

    def __init__(self, process: Any) -> None:
        self.name = process.name
        self.client = httpx.AsyncClient(base_url=process.client.base_url, timeout=_CALL_S)


class Pace:
    """How much a lane may do: so many operations a second."""

    def __init__(self, rate: float) -> None:
        self._rate, self._began_s, self._done = rate, monotonic(), 0.0

    async def of(self, operations: float) -> None:
        """Wait until there is room for these."""
        self._began_s = max(self._began_s, monotonic() - _SAVED_S - self._done / self._rate)
        self._done += operations
        await asyncio.sleep(max(0.0, self._began_s + self._done / self._rate - monotonic()))


class Lane:
    """What lanes share: a namespace, calls, the facts of what is not over yet, and the judgement of what is."""

    def __init__(self, world: World, name: str, doors: dict[str, list[Door]]) -> None:
        self.world, self.namespace, self._doors = world, name, doors
        self.rng = Random(f"{world.seed} {name}")
        self.history = History()
        self.ids = IdMaker(now_ms=lambda: int(world.now_s * 1000))
        self.operations: Counter[str] = Counter()
        self.calls = 0
        self.faults: list[str] = []
        self.is_ending = False
        self._over: set[str] = set()  # ids of items that are over and judged
        self._to_judge: deque[tuple[float, list[str], list[str]]] = deque()

    async def call(self, service: str, path: str, body: Any = None, method: str = "POST", **query: Any) -> Answer:
        """One call, at any process of the service."""
        self.calls += 1
        door = self.rng.choice(self._doors[service])
        path = f"/v1/namespaces/{self.namespace}{path}"
        answer = await self.world.ask(door, method, path, body, query, {})
        if answer.known != "ok":
            await asyncio.sleep(_AGAIN_S)
        return answer

    async def sure(self, service: str, path: str, body: Any = None, method: str = "POST") -> Answer:
        """As `call`, again until it is answered: what is sent may be sent again."""
        while True:
            answer = await self.call(service, path, body, method)
            if answer.known == "ok" or (answer.status not in (0, 429) and answer.status < 500):
                return answer

    async def take(self, topics: list[str], count: int, lease_s: float | None = None) -> list[Delivery]:
        """Lease what there is, and note it."""
        body: dict[str, Any] = {"topics": [{"topic": topic, "count": count} for topic in topics], "wait_s": 0.2}
        if lease_s is not None:
            body["lease_s"] = lease_s
        answer = await self.call("queue", "/dequeue", body)
        found = []
        for leased in answer.body["items"] if answer.known == "ok" else ():
            delivery = self._delivered(leased, answer, lease_s)
            if delivery.id in self._over:
                self.fault(f"{delivery.id} was over long ago, and came again: {delivery}")
            elif not delivery.tag.startswith(f"{self.namespace}/"):
                self.fault(f"it was given another's item: {delivery}")
            else:
                self.history.delivered(delivery)
                found.append(delivery)
        self.operations["leased"] += len(found)
        return found

    def _delivered(self, leased: dict[str, Any], answer: Answer, lease_s: float | None) -> Delivery:
        payload = leased["payload"]
        return Delivery(
            tag=payload["tag"],
            namespace=self.namespace,
            topic=leased["topic"],
            id=leased["id"],
            token=leased["lease_token"],
            attempt=leased["attempt"],
            lease_s=lease_s or payload["lease_s"],
            sent=answer.sent,
            done=answer.done,
            dag=leased.get("dag"),
            inputs=leased.get("inputs"),
        )

    async def say(
        self, verb: str, said: list[tuple[Delivery, dict[str, Any]]], *, until_known: bool = False
    ) -> dict[str, str]:
        """One call about leased items, noted; with `until_known` again until it is answered. What each is told."""
        if not said:
            return {}
        items = [{"id": held.id, "lease_token": held.token, **given} for held, given in said]
        told: dict[str, str] = {}
        while items:
            answer = await self.call("queue", f"/{verb}", {"items": items})
            unknown = []
            for n, (known, result) in enumerate(answer.results(len(items))):
                held, given = said[n]
                status = result.get("status", "")
                word = Word(
                    verb, self.namespace, held.id, held.token, known, status, answer.sent, answer.done, given
                )
                if held.id not in self._over:
                    self.history.said(word)
                if known == "ok":
                    told[held.id] = status
                    self.done(status)
                else:
                    unknown.append(n)
            items, said = [items[n] for n in unknown], [said[n] for n in unknown]
            if not until_known:
                break
        return told

    async def wait(self) -> None:
        """A moment between two looks."""
        await asyncio.sleep(_LOOK_S)

    def done(self, status: str) -> None:
        """An element was answered for."""
        if status in _EFFECTS:
            self.operations[status] += 1

    def over(self, tags: list[str], item_ids: list[str]) -> None:
        """These are over; they are judged in a while."""
        self._to_judge.append((monotonic(), tags, item_ids))

    def fault(self, text: str) -> None:
        self.faults.append(f"{self.namespace}: {text}")

    def judge(self, *, all_of_it: bool = False) -> None:
        """Ask the oracles of what has been over for a while, and forget it."""
        part = History()
        part.ended_s = self.world.now_s
        until_s = monotonic() - (0 if all_of_it else _JUDGED_AFTER_S)
        while self._to_judge and self._to_judge[0][0] <= until_s:
            _, tags, item_ids = self._to_judge.popleft()
            for tag in tags:
                part.sent[tag] = self.history.sent.pop(tag)
            for item_id in item_ids:
                part.deliveries[item_id] = self.history.deliveries.pop(item_id, [])
                part.words[item_id] = self.history.words.pop(item_id, [])
            self._over.update(item_ids)
        self.faults += [f"{self.namespace}: {fault}" for fault in queue_oracle.judge(part)]

    async def handle(self, taken: list[Delivery]) -> None:
        """Work that is done at once, and the ways in which it is not."""
        fates: dict[str, list[Delivery]] = {"ack": [], **{fate: [] for fate, _ in _FATES}}
        for held in taken:
            fates["ack" if self.is_ending else _fate(self.rng.randrange(100))].append(held)
        await self.say("nack", [(held, {"delay_s": self.rng.choice((0, 0.5))}) for held in fates["nack"]])
        await self.say("extend", [(held, {"lease_s": self.rng.choice(LEASES_S)}) for held in fates["extend"]])
        await self._ack([*fates["ack"], *fates["extend"], *fates["twice"]])
        await self._ack(fates["twice"])

    async def _ack(self, taken: list[Delivery]) -> None:
        self.acking(taken)
        told = await self.say(
            "ack", [(held, {"output": {"by": held.token[:8]}}) for held in taken], until_known=True
        )
        self.acked([held for held in taken if told[held.id] in ("acked", "already_acked")])
        self.perhaps_acked([held for held in taken if told[held.id] == "lease_lost" and self._was_unheard(held)])

    def _was_unheard(self, held: Delivery) -> bool:
        """Whether an ack under this lease was not answered: sent again, it is told of while the lease lasts."""
        words = self.history.words.get(held.id, ())
        return any((word.verb, word.token, word.known) == ("ack", held.token, "info") for word in words)

    # -- what each kind of lane does

    def acking(self, taken: list[Delivery]) -> None:
        """These are about to be acked."""

    def acked(self, taken: list[Delivery]) -> None:
        """These are over, perhaps for long."""
        raise NotImplementedError

    def perhaps_acked(self, taken: list[Delivery]) -> None:
        """These are over, or come again."""
        raise NotImplementedError

    def workers(self) -> list[Any]:
        """Coroutines that go on until `is_ending`, and then until nothing is left."""
        raise NotImplementedError

    @property
    def left(self) -> int:
        """How much is not over yet."""
        raise NotImplementedError

    def stuck(self) -> AsyncIterator[str]:
        """Of some of what is left, all that is known."""
        raise NotImplementedError

    def known_of(self, item_id: str) -> str:
        """How often an item came, and what was said of it."""
        came = [f"{one.attempt} at {one.done:.3f}" for one in self.history.deliveries.get(item_id, ())]
        said = [
            f"{one.verb} at {one.sent:.3f}: {one.known} {one.status}"
            for one in self.history.words.get(item_id, ())
        ]
        return f"{item_id} came as {came} and was told {said}"

    async def last_look(self) -> None:
        """Once nothing, or nothing more, comes to its end: what is left, and what of it is wrong."""
        self.judge(all_of_it=True)
        found = await self.world.pages(self.rng, self._page, self.namespace, "/items")
        self.history.left = {item["id"]: item["state"] for item in found}
        self.history.ended_s = self.world.now_s
        self.faults += [f"{self.namespace}: {fault}" for fault in queue_oracle.judge(self.history)]
        use = await self.sure("queue", "", method="GET")
        if found or use.body["items"] or use.body["in_flight"]:
            self.fault(f"{len(found)} items are left, and it is said to hold {use.body}")

    async def _page(self, rng: Random, namespace: str, path: str, method: str, **query: Any) -> Answer:
        while True:
            door = rng.choice(self._doors["queue"])
            answer = await self.world.ask(door, method, f"/v1/namespaces/{namespace}{path}", None, query, {})
            if answer.known == "ok" and not answer.body.get("away"):
                return answer
            await asyncio.sleep(_AGAIN_S)


def _fate(chance: int) -> str:
    for fate, share in _FATES:
        if chance < share:
            return fate
        chance -= share
    return "ack"


class Lanes:
    """All lanes of a world."""

    def __init__(self, lanes: list[Lane], doors: list[Door]) -> None:
        self.all, self._doors = lanes, doors
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def operations(self) -> Counter[str]:
        return sum((lane.operations for lane in self.all), Counter())

    @property
    def calls(self) -> int:
        return sum(lane.calls for lane in self.all)

    @property
    def left(self) -> int:
        return sum(lane.left for lane in self.all)

    @property
    def faults(self) -> list[str]:
        return [fault for lane in self.all for fault in lane.faults]

    def begin(self) -> None:
        self._tasks = [asyncio.create_task(work) for lane in self.all for work in lane.workers()]
        self._tasks.append(asyncio.create_task(self._judge()))

    async def _judge(self) -> None:
        while not all(lane.is_ending for lane in self.all):
            for lane in self.all:
                lane.judge()
                await asyncio.sleep(_JUDGE_EVERY_S / len(self.all))

    def check(self) -> None:
        """Raise what a worker has ended by: that is a mistake of the lane's."""
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()

    async def end(self) -> None:
        """Nothing new; what is there comes to its end, or is found to be stuck."""
        for lane in self.all:
            lane.is_ending = True
        _, stuck = await asyncio.wait(self._tasks, timeout=_DRAIN_S_MAX)
        await self.close()
        self.check()
        for lane in self.all:
            if stuck and lane.left:
                told = "\n  ".join([part async for part in lane.stuck()])
                lane.fault(f"{_DRAIN_S_MAX:.0f} s after the last fault {lane.left} are stuck:\n  {told}")
            await lane.last_look()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def close_doors(self) -> None:
        for door in self._doors:
            await door.client.aclose()
