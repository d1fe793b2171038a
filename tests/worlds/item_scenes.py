"""Scenes of items: what their holders say of them in an order, or at once, to which a world would hardly come by
chance. Each has a topic for itself."""

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any

from tests.worlds.facts import Bulk, Delivery, Sent
from tests.worlds.faults import change, is_inside
from tests.worlds.limit_verbs import heard, replaced
from tests.worlds.queue_verbs import by_id, gate, say, send, take
from tests.worlds.registry import verb
from tests.worlds.scenes import topic_of_its_own
from tests.worlds.world_names import NAMESPACES

_WAIT_S = 0.3
_BEFORE_S = 0.1  # until they wait


def plain(world: Any, namespace: str, topic: str, **given: Any) -> Sent:
    """An item that is to be sent, with what is said of it and nothing else."""
    tag = f"{namespace}/{world.serial()}"
    sent = Sent(tag, namespace, topic, {"topic": topic, "payload": {"tag": tag}, **given}, given.get("id"))
    if sent.id:
        sent.ids.add(sent.id)
    world.history.sent[tag] = sent
    return sent


def ids(world: Any, rng: Random, count: int) -> list[str]:
    """Of one shard."""
    found: list[str] = world.ids.make(rng.choice(world.stage.shard_numbers()), count)
    return found


async def take_all(world: Any, rng: Random, namespace: str, topic: str, wait_s: float = 0.0) -> list[Delivery]:
    """What every process has of a topic, at once."""
    takes = [
        take(world, Random(rng.random()), namespace, 10, chosen=[topic], at=process, wait_s=wait_s)
        for process in list(world.stage.queues)
    ]
    return [one for found in await asyncio.gather(*takes) for one in found]


def _private(world: Any, found: Sequence[Delivery]) -> list[Delivery]:
    """Nobody else says anything of these."""
    for one in found:
        world.held.remove(one)
    return list(found)


@verb(1.7, is_inside, since=9)
async def give_back_plainly(world: Any, rng: Random) -> None:
    """What comes back without a word on when waits a while: see `_not_before_its_delay` of the oracle."""
    namespace = rng.choice(NAMESPACES)
    with topic_of_its_own(world) as topic:
        await send(world, rng, namespace, [plain(world, namespace, topic) for _ in range(2)])
        found = _private(world, await take(world, rng, namespace, 10, chosen=[topic], wait_s=0.0))
        await say(world, rng, namespace, "nack", [(one, one.token, {}) for one in found])
        await take_all(world, rng, namespace, topic)


@verb(1.7, is_inside, since=9)
async def cancel_what_was_acked(world: Any, rng: Random) -> None:
    """It has ended, also under an id that the service made, and when its lease is over: see `_ack_is_final`."""
    namespace = rng.choice(NAMESPACES)
    with topic_of_its_own(world) as topic:
        items = [plain(world, namespace, topic, lease_s=1.0) for _ in range(2)]
        await send(world, rng, namespace, items)
        found = _private(world, await take(world, rng, namespace, 10, chosen=[topic], wait_s=0.0))
        await say(world, rng, namespace, "ack", [(one, one.token, {}) for one in found])
    known = [sent for sent in items if len(sent.ids) == 1]

    async def go_on(world: Any, rng: Random) -> None:
        await by_id(world, rng, "cancel", namespace, known)

    if known:
        world.leaps.append(rng.choice((2.0, 20.0)))
        world.appointments.append((go_on, lambda: None))


@verb(2, is_inside, since=9)
async def say_amid_heartbeats(world: Any, rng: Random) -> None:
    """What a holder says while its own extends are under way is heard: see `_live_tokens_win`."""
    namespace = rng.choice(NAMESPACES)
    with topic_of_its_own(world) as topic:
        items = [plain(world, namespace, topic, id=item_id, lease_s=60.0) for item_id in ids(world, rng, 6)]
        await send(world, rng, namespace, items)
        found = _private(world, await take(world, rng, namespace, 10, chosen=[topic], wait_s=0.0))

    async def go_on(world: Any, rng: Random) -> None:
        extends = rng.choice((1, 1, 3))  # at each process: fewer than it takes to give up
        for one in found:
            verb_ = rng.choice(("ack", "nack"))
            given = {"output": {"by": one.token[:8]}} if verb_ == "ack" else {"delay_s": 0}
            calls = [
                say(world, rng, namespace, "extend", [(one, one.token, {"lease_s": 60.0 + nth})], at)
                for nth in range(extends)
                for at in list(world.stage.queues)
            ]
            calls.insert(rng.randint(1, len(calls)), say(world, rng, namespace, verb_, [(one, one.token, given)]))
            await asyncio.gather(*calls)

    world.appointments.append((go_on, lambda: world.held.extend(found)))


@verb(1.7, is_inside, since=9)
async def revive_with_a_delay(world: Any, rng: Random) -> None:
    """What is opened with a delay is handed to nobody who waits: see `_not_early`."""
    namespace = rng.choice(NAMESPACES)
    with topic_of_its_own(world) as topic:
        items = [plain(world, namespace, topic, disabled=True, delay_s=5.0) for _ in range(2)]
        await send(world, rng, namespace, items)
        known = [sent for sent in items if len(sent.ids) == 1]

        async def revive() -> None:
            await asyncio.sleep(_BEFORE_S)
            if known:
                await by_id(world, Random(rng.random()), "revive", namespace, known)

        await asyncio.gather(take_all(world, rng, namespace, topic, _WAIT_S), revive())


@verb(0.7, lambda world: is_inside(world) and bool(world.stage.unused_shards), since=9)
async def add_shard_beside_a_pause(world: Any, rng: Random) -> None:
    """Nothing of a topic that was paused comes from a shard that is added since."""
    namespace = rng.choice(NAMESPACES)
    with topic_of_its_own(world) as topic:
        begun = replaced(world)
        await gate(world, rng, namespace, topic, "pause")
        is_paused = world.history.gates[-1].known == "ok" and await heard(world, begun)
        if world.stage.unused_shards:
            number = world.stage.unused_shards.pop(0)
            await change(world, "add", str(number), "--dsn", world.stage.database.dsn, "--yes")
        items = [
            plain(world, namespace, topic, id=world.ids.make(number)[0]) for number in world.stage.shard_numbers()
        ]
        await send(world, rng, namespace, items)
        found = await take_all(world, rng, namespace, topic)
        if found and is_paused:
            world.fault(f"{found} came of {topic} of {namespace}, which is paused")
        await gate(world, rng, namespace, topic, "resume")


@verb(1.7, is_inside, since=9)
async def redrive_what_lost_its_key(world: Any, rng: Random) -> None:
    """A dead item whose unique key another one has by now is not put back."""
    namespace, key = rng.choice(NAMESPACES), f"u{world.serial()}"
    with topic_of_its_own(world) as topic:
        first, second = (plain(world, namespace, topic, idempotency_key=key, unique=True) for _ in range(2))
        await send(world, rng, namespace, [first])
        found = await take(world, rng, namespace, 10, chosen=[topic], wait_s=0.0)
        found = _private(world, [one for one in found if one.tag == first.tag])
        await say(world, rng, namespace, "nack", [(one, one.token, {"final": True}) for one in found])
        await send(world, rng, namespace, [second])
        moves, moved = world.history.moves, world.history.moved
        world.history.bulks.append(Bulk("redrive", namespace, topic, world.now_s))
        await world.queue(rng, namespace, "/topics/redrive", {"topic": topic})
        came = {one.id for one in await take_all(world, rng, namespace, topic)}
        # Where slots move meanwhile a process may ask the key's former home, and a duty frees it.
        is_settled = moved == moves == world.history.moves
        if came & first.ids and second.ids and second.known == {"ok"} and is_settled:
            world.fault(f"{first.tag} was put back beside {second.tag}, which has its key {key}")
