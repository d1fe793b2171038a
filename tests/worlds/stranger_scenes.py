"""Scenes of tenants who name what is another's: at the same moment, in the same flush, or later."""

import asyncio
from random import Random
from typing import Any

from tests.worlds.dag_verbs import has_dags, pick
from tests.worlds.facts import Sent
from tests.worlds.faults import is_inside
from tests.worlds.item_scenes import ids, plain
from tests.worlds.queue_verbs import Said, say, send, take
from tests.worlds.registry import verb
from tests.worlds.scenes import play_of_its_own, topic_of_its_own
from tests.worlds.world_names import ENDS, NAMESPACES

_OF_A_DAG = ("", "/nodes", "/graph", "/events", "/frontier", "/outputs")


@verb(2, is_inside, since=9)
async def want_anothers_id(world: Any, rng: Random) -> None:
    """Of two tenants who enqueue one id, one after another or in one flush, one has it, the other is refused."""
    namespace, other = rng.sample(NAMESPACES, 2)
    process = rng.choice(world.stage.queues)
    with topic_of_its_own(world) as topic:
        before, shared = ids(world, rng, 2)
        # While it is on its way the next ones come together.
        early = plain(world, namespace, topic, id=before)
        one, two = (plain(world, name, topic, id=shared) for name in (namespace, other))
        if rng.random() < 0.5:
            sends = [
                send(world, Random(rng.random()), sent.namespace, [sent], process) for sent in (early, one, two)
            ]
            await asyncio.gather(*sends)
        else:
            for sent in (one, two):
                await send(world, rng, sent.namespace, [sent], process)
        _settle(world, shared, one, two)


def _settle(world: Any, item_id: str, one: Sent, two: Sent) -> None:
    """Whose it is, as far as anybody knows."""
    if one.is_promised and two.is_promised:
        world.fault(f"{item_id} was taken of {one.tag} and of {two.tag}")
    for sent, rival in ((one, two), (two, one)):
        if rival.is_promised:
            sent.known = {"fail"}
        if not sent.is_promised:
            sent.ids.discard(item_id)


@verb(1.7, is_inside, since=9)
async def ack_beside_a_stranger(world: Any, rng: Random) -> None:
    """Somebody else's ack of an item, in the flush in which its holder acks it, says nothing: see `_tokens_count`
    and `_told_once` of the oracle."""
    namespace, other = rng.sample(NAMESPACES, 2)
    process = rng.choice(world.stage.queues)
    with topic_of_its_own(world) as topic:
        items = [plain(world, namespace, topic, id=one, ack_topic=ENDS) for one in ids(world, rng, 4)]
        await send(world, rng, namespace, items)
        found = await take(world, rng, namespace, 10, chosen=[topic], wait_s=0.0)
        for one in found:
            world.held.remove(one)

        def ack(by: str, some: list[Any], what: str) -> Any:
            said: list[Said] = [(one, one.token, {"output": {"by": f"{what} {one.token[:8]}"}}) for one in some]
            return say(world, rng, by, "ack", said, process)

        await asyncio.gather(
            ack(namespace, found[:1], "its"), ack(other, found[1:], "evil"), ack(namespace, found[1:], "its")
        )


@verb(2, has_dags, since=9)
async def look_at_anothers(world: Any, rng: Random) -> None:
    """Another tenant's DAG is not there, whatever is asked of it."""
    dag = pick(world, rng)
    stranger = rng.choice([namespace for namespace in NAMESPACES if namespace != dag.namespace])
    path = rng.choice(_OF_A_DAG)
    answer = await world.dag(rng, stranger, f"/dags/{dag.id}{path}", method="GET")
    if answer.known == "ok" or (answer.known == "fail" and answer.status not in (0, 404, 429, 503)):
        world.fault(f"{stranger} is answered {answer.status} about {dag.name}{path}: {answer.body}")


@verb(1.7, is_inside, since=9)
async def revive_what_is_blocked(world: Any, rng: Random) -> None:
    """A node's item is opened by its DAG alone."""
    async with play_of_its_own(world, rng) as play:
        node = play.spec()
        child = play.spec(node["key"])
        await play.create(node, child)
        await play.settle()
        item_id = (await play.shown(key=child["key"]))["item_id"]
        answer = await world.queue(rng, play.dag.namespace, "/revive", {"items": [{"id": item_id}]})
        [(_, result)] = answer.results(1)
        if result.get("status") == "revived":
            play.fault(f"its tenant has revived {item_id} of {child['key']}: {result}")
