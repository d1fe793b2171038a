"""Verbs of limits and throttles of topics, and of items of one fairness key, which some of them are about."""

import asyncio
from datetime import datetime
from math import inf
from random import Random
from typing import Any

from tests.worlds.limit_facts import Limited, Place, Throttled
from tests.worlds.queue_verbs import has_held, new_item, say, send, take
from tests.worlds.registry import verb
from tests.worlds.world_names import NAMESPACES, NODE_TOPICS, TOPICS

_EVERYWHERE = "notices"
# Of an item that is to be taken at once.
_LATER = ("delay_s", "disabled", "ttl_s")


@verb(3, since=4)
async def limit_topic(world: Any, rng: Random) -> None:
    """Limits come, change and go."""
    place = rng.choice(NAMESPACES), rng.choice((*TOPICS, *TOPICS, *NODE_TOPICS))
    options: list[tuple[dict[str, float], float]] = [
        ({"concurrency": rng.randint(1, 4)}, 0.5),
        ({"rate": rng.choice((0.2, 1.0, 5.0)), "burst": rng.randint(1, 4)}, 0.3),
        ({"key_concurrency": rng.randint(1, 2)}, 0.4),
        ({"key_rate": rng.choice((0.2, 1.0)), "key_burst": rng.randint(1, 2)}, 0.2),
    ]
    given: dict[str, float] = {}
    for limits, share in options:
        given |= limits if rng.random() < share else {}
    await set_limits(world, rng, place, given if rng.random() < 0.7 else {})


async def set_limits(world: Any, rng: Random, place: Place, given: dict[str, float]) -> Limited | None:
    """Set them; what stands from now on for certain."""
    namespace, topic = place
    stands = None
    turn, begun = world.limits.changes(place, world.now_s), replaced(world)
    answer = await world.queue(rng, namespace, "/topics/limits", {"topic": topic, **given}, method="PUT")
    if answer.known == "ok" and await heard(world, begun):
        stands = world.limits.stands(turn, Limited(place, given, answer.done))
    if answer.known != "info" or world.stage.is_inside:  # else it may yet come
        world.limits.over(turn, place)
    return stands


def replaced(world: Any) -> int | None:
    """How many processes were replaced; None while one is: it may have looked before, and serve afterwards. Real
    ones hear of what is set by themselves, some time."""
    stage = world.stage
    return stage.begun if stage.is_inside and stage.begun == stage.ended else None


async def heard(world: Any, begun: int | None) -> bool:
    """Every process hears of what was set; whether that is certain."""
    if begun is None:
        return False
    said = [(await world.stage.step(process, _EVERYWHERE))[1] for process in list(world.stage.queues)]
    # Who cannot ask a shard goes on with what it knows; where connections were ended nobody tells which did.
    return not any(said) and replaced(world) == begun and world.now_s not in world.history.cuts


@verb(5, lambda world: any(_is_standing(one) for one in world.limits.limits), since=4)
async def rush(world: Any, rng: Random) -> None:
    """Items of a topic that has limits, most of them of one key, and several who want them at once."""
    namespace, topic = rng.choice([one.place for one in world.limits.limits if _is_standing(one)])
    items = [new_item(world, rng, namespace) for _ in range(rng.randint(2, 6))]
    for sent in items:
        sent.topic = sent.body["topic"] = topic
        sent.body = {name: value for name, value in sent.body.items() if name not in _LATER}
        if rng.random() < 0.8:
            sent.body["fairness_key"] = f"lane{rng.choice((1, 1, 2))}"
    await send(world, rng, namespace, items)
    counts = [rng.choice((1, 3, 6)) for _ in range(rng.randint(1, 3))]
    takes = [take(world, Random(rng.random()), namespace, count, chosen=[topic]) for count in counts]
    await asyncio.gather(*takes)


def _is_standing(limited: Limited) -> bool:
    return limited.until == inf and limited.place[1] in TOPICS and bool(limited.given)


@verb(1.5, has_held, since=4)
async def throttle(world: Any, rng: Random) -> None:
    """Whoever gives an item back says that nothing more of its topic, or its key, is to come for a while."""
    held = [one for one in world.held if one.dag is None and one.topic in TOPICS]
    if not held:
        return
    one = rng.choice(held)
    key = world.history.sent[one.tag].body.get("fairness_key") if rng.random() < 0.6 else None
    given: dict[str, Any] = {"throttle_s": rng.choice((0.5, 3.0, 20.0)), "delay_s": 0}
    given |= {"throttle_key": key} if key else {}
    token = one.token if rng.random() < 0.9 else rng.choice(world.held).token
    begun = replaced(world)
    await say(world, rng, one.namespace, "nack", [(one, token, given)])
    if await heard(world, begun):
        await note_throttles(world, rng, (one.namespace, one.topic))


async def note_throttles(world: Any, rng: Random, place: Place) -> list[Throttled]:
    """What is shown as throttled now is so, for as long as is said."""
    namespace, topic = place
    stand = []
    answer = await world.queue(rng, namespace, "/topics/limits", method="GET", topic=topic)
    for shown in answer.body["items"] if answer.known == "ok" else ():
        found = [("", shown["throttled_until"])] if shown["throttled_until"] else []
        found += [(throttled["key"], throttled["until"]) for throttled in shown["throttled_keys"]]
        for key, until in found:
            until_s = datetime.fromisoformat(until).timestamp()
            stand.append(Throttled(place, key, answer.done, until_s))
    world.limits.throttles += stand
    return stand


@verb(0.7, since=4)
async def unthrottle(world: Any, rng: Random) -> None:
    place = rng.choice(NAMESPACES), rng.choice(TOPICS)
    await lift(world, rng, place, rng.choice((None, "lane1")))


async def lift(world: Any, rng: Random, place: Place, key: str | None) -> None:
    namespace, topic = place
    world.limits.lifts(place, key, world.now_s)
    body = {"topic": topic} | ({} if key is None else {"key": key})
    await world.queue(rng, namespace, "/topics/unthrottle", body)
    world.limits.lifts(place, key, world.now_s)


async def lift_all(world: Any, rng: Random) -> None:
    """No limit and no throttle keeps an item any more."""
    places = [(namespace, topic) for namespace in NAMESPACES for topic in (*TOPICS, *NODE_TOPICS)]
    for place in (*places, *world.limits.scenes):
        await set_limits(world, rng, place, {})
        await lift(world, rng, place, None)
