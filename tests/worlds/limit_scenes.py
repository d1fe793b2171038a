"""Scenes of limits: topics that nobody else touches, and consumers at all processes who want more than is let out.

A scene has its topic for itself while it goes on, so what it asks for after a limit or a throttle stands is known
to be later, though the clock stands still. The next scene there finds what the last one left: leases that may have
run out, tokens that came since, throttles that are over.
"""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

from shared.shards.map_file import read, slot_of
from tests.worlds.facts import Delivery
from tests.worlds.faults import change, is_inside
from tests.worlds.limit_facts import Limited, Place, Throttled
from tests.worlds.limit_verbs import heard, note_throttles, replaced, set_limits
from tests.worlds.queue_verbs import Said, new_item, say, send, take
from tests.worlds.registry import verb
from tests.worlds.world_names import NAMESPACES, NARROW_TOPICS

_PLACES = [(namespace, topic) for namespace in NAMESPACES for topic in NARROW_TOPICS]
# Items of a scene are to be taken now, by anybody.
_LATER = ("delay_s", "disabled", "ttl_s", "affinity", "priority", "fairness_key")
_LANES = (("lane1",), ("lane1", "lane2"), ("lane1", "lane2", "lane3", ""))
_WAIT_S = 0.1


class _Scene:
    """What happens at one place, one after another, and what stands there meanwhile."""

    def __init__(self, world: Any, rng: Random, place: Place, limited: Limited) -> None:
        self._world, self._rng, self._place, self._limited = world, rng, place, limited
        self._lanes = rng.choice(_LANES)
        self._throttles: list[Throttled] = []

    async def play(self) -> None:
        await self.fill()
        await self.rush()
        acts: tuple[Callable[[], Awaitable[None]], ...] = (self.rush, self.wait, self.say, self.throttle, self.one)
        for act in self._rng.choices(acts, k=3):
            await act()
            await self.rush()
        if self._rng.random() < 0.15:
            await self.throttle()
            await self.move()
            await self.rush()

    async def move(self) -> None:
        """What is kept for the topic goes to another shard."""
        plan = read(self._world.stage.map_file, "queue")
        home = str(plan.homes[slot_of(*self._place)])
        for verb_ in ("drain", "undrain"):
            await change(self._world, verb_, home, "--yes")

    async def fill(self) -> None:
        """New items of the scene's keys."""
        namespace, topic = self._place
        items = [new_item(self._world, self._rng, namespace) for _ in range(self._rng.randint(3, 7))]
        for sent in items:
            sent.topic = topic
            sent.body = {name: value for name, value in sent.body.items() if name not in _LATER} | {"topic": topic}
            if lane := self._rng.choice(self._lanes):
                sent.body["fairness_key"] = lane
        await send(self._world, self._rng, namespace, items)

    async def rush(self, wait_s: float = 0.0) -> None:
        """One call or two at each process, all at once."""
        counts = [self._rng.choice((1, 1, 2, 5)) for _ in range(self._rng.choice((1, 1, 2)))]
        await self._take([(process, count) for process in self._world.stage.queues for count in counts], wait_s)

    async def one(self) -> None:
        """One consumer of one process, again and again."""
        process = self._rng.choice(self._world.stage.queues)
        for _ in range(3):
            await self._take([(process, 1)], 0.0)

    async def wait(self) -> None:
        """Consumers wait at all processes, and items come."""
        await asyncio.gather(self.rush(_WAIT_S), self._fill_soon())

    async def _fill_soon(self) -> None:
        await asyncio.sleep(0.02)
        await self.fill()

    async def _take(self, asked: list[tuple[Any, int]], wait_s: float) -> None:
        namespace, topic = self._place
        takes = [
            take(self._world, Random(self._rng.random()), namespace, count, chosen=[topic], at=at, wait_s=wait_s)
            for at, count in asked
        ]
        for found in await asyncio.gather(*takes):
            tokens = {one.token for one in found}
            self._limited.covers |= tokens
            for throttled in self._throttles:
                throttled.covers |= tokens

    def _held(self) -> list[Delivery]:
        return [one for one in self._world.held if (one.namespace, one.topic) == self._place]

    async def say(self) -> None:
        """Some of what is held ends, or comes back."""
        for held in self._rng.sample(self._held(), min(len(self._held()), 2)):
            said: dict[str, list[Said]] = {
                "ack": [(held, held.token, {"output": {"by": held.token[:8]}})],
                "nack": [(held, held.token, {"delay_s": 0, "costs_attempt": False})],
                "extend": [(held, held.token, {"lease_s": self._rng.choice((1.0, 60.0))})],
            }
            what = self._rng.choice(list(said))
            await say(self._world, self._rng, self._place[0], what, said[what])

    async def throttle(self) -> None:
        """Who gives an item back throttles its key, or the topic."""
        held = self._held()
        if not held:
            return
        one = self._rng.choice(held)
        key = self._world.history.sent[one.tag].body.get("fairness_key") if self._rng.random() < 0.8 else None
        given: dict[str, Any] = {"throttle_s": self._rng.choice((2.0, 20.0)), "delay_s": 0, "costs_attempt": False}
        given |= {"throttle_key": key} if key else {}
        begun = replaced(self._world)
        await say(self._world, self._rng, one.namespace, "nack", [(one, one.token, given)])
        if await heard(self._world, begun):
            self._throttles += await note_throttles(self._world, self._rng, self._place)


def _limits(rng: Random) -> dict[str, float]:
    """Of one kind, so that no other holds back what this one is to; or of two."""
    most, rate, burst = rng.randint(1, 3), rng.choice((0.2, 1.0)), rng.randint(1, 3)
    found: dict[str, float] = rng.choice(
        [
            {"concurrency": most},
            {"concurrency": most},
            {"rate": rate, "burst": burst},
            {"key_concurrency": most},
            {"key_concurrency": most},
            {"key_rate": rate, "key_burst": burst},
            {"concurrency": most + 1, "key_concurrency": most},
        ]
    )
    return found


@verb(6, is_inside, since=7)
async def play_limits(world: Any, rng: Random) -> None:
    """A scene at a place where none is going on, with the limits that stand there or with others."""
    limits = world.limits
    free = [place for place in _PLACES if place not in limits.busy]
    known = [place for place in free if limits.scenes.get(place) is not None]
    place = rng.choice(known if known and rng.random() < 0.6 else free)
    limits.busy.add(place)
    try:
        if limits.scenes.get(place) is None or rng.random() < 0.2:
            limits.scenes[place] = None
            limits.scenes[place] = await set_limits(world, rng, place, _limits(rng))
        if limits.scenes[place] is not None:
            await _Scene(world, rng, place, limits.scenes[place]).play()
    finally:
        limits.busy.discard(place)
