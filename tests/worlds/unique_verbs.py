"""Verbs of unique keys: of each one item, and one DAG, at a time."""

from random import Random
from typing import Any

from tests.worlds.dag_facts import Dag
from tests.worlds.dag_verbs import node_spec
from tests.worlds.facts import Bulk, Sent, Word
from tests.worlds.faults import is_inside
from tests.worlds.queue_verbs import new_item, say, take
from tests.worlds.registry import verb
from tests.worlds.unique_facts import Followed, Refused, Taken
from tests.worlds.wire import Answer
from tests.worlds.world_names import NAMESPACES, SOLO_TOPIC

# Few, so that many want the same.
_PLACES = ((NAMESPACES[0], "one"), (NAMESPACES[0], "one"), (NAMESPACES[0], "two"), (NAMESPACES[1], "one"))
# What would end an item by itself, when nobody has said anything of it.
_ENDS = ("ttl_s", "delivery", "max_attempts", "id", "affinity", "disabled")


@verb(4, since=4)
async def enqueue_unique(world: Any, rng: Random) -> None:
    """Callers want a key, one after another or at once, each for an item of its own."""
    namespace, key = rng.choice(_PLACES)
    for _ in range(rng.choice((1, 2, 3))):
        sent = new_item(world, rng, namespace)
        sent.body = {name: value for name, value in sent.body.items() if name not in _ENDS}
        sent.body |= {"idempotency_key": key, "unique": True}
        sent.id = None
        sent.ids.clear()
        answer = await world.queue(rng, namespace, "/enqueue", {"items": [sent.body]})
        [(known, result)] = answer.results(1)
        sent.first_sent, _ = answer.sent, sent.known.add(known)
        if known == "ok":
            sent.ids.add(result["id"])
            if result["status"] == "duplicate":
                world.fault(f"{sent.tag} is its own, and was taken for {result}")
            world.uniques.items.append(Taken((namespace, key), sent, result["id"], answer.sent, answer.done))
        elif known == "info":
            world.uniques.unheard.add((namespace, key))
        elif result.get("code") == "key_reused" and not world.history.moves:
            world.uniques.refused.append(Refused((namespace, key), answer.sent, answer.done))


@verb(2, is_inside, since=7)
async def follow_unique(world: Any, rng: Random) -> None:
    """A key of nobody else: an item has it until it ends, whichever way, and then the next one has it."""
    namespace, key = rng.choice(NAMESPACES), f"u{world.serial()}"
    moves, moved = world.history.moves, world.history.moved
    held = await _want(world, rng, namespace, key)
    while isinstance(held, Sent):
        second = await _want(world, rng, namespace, key)
        is_over = await _end(world, rng, held)
        third = await _want(world, rng, namespace, key) if is_over and second == "in use" else None
        # Where slots move meanwhile a process may ask the key's former home, and a duty frees it.
        if moved == moves == world.history.moves:
            fault = f"{second} was given the key {key} of {namespace}, and {held.tag} had it"
            fault = f"{held.tag} is over, and its key {key} of {namespace} is not free" if third else fault
            if isinstance(second, Sent) or third == "in use":
                world.uniques.followed.append(Followed(held, int(is_over), world.now_s, fault))
            if isinstance(third, Sent) and rng.random() < 0.5:
                await _redrive(world, rng, held, third)
        held = third if rng.random() < 0.7 else None


async def _redrive(world: Any, rng: Random, former: Sent, owner: Sent) -> None:
    """A dead item whose key another one has is not put back."""
    world.history.bulks.append(Bulk("redrive", former.namespace, SOLO_TOPIC, world.now_s))
    await world.queue(rng, former.namespace, "/topics/redrive", {"topic": SOLO_TOPIC})
    found = await take(world, rng, former.namespace, 10, chosen=[SOLO_TOPIC], wait_s=0.0)
    if any(one.id in former.ids for one in found):
        fault = f"{former.tag} was put back beside {owner.tag}, which has its key"
        world.uniques.followed.append(Followed(owner, 0, world.now_s, fault, bulks=1))


async def _want(world: Any, rng: Random, namespace: str, key: str) -> Sent | str:
    """One more item for the key; else what is known of why it was not taken in."""
    sent = new_item(world, rng, namespace)
    sent.topic, sent.id = SOLO_TOPIC, None
    sent.body = {name: value for name, value in sent.body.items() if name not in (*_ENDS, "delay_s")}
    sent.body |= {"idempotency_key": key, "unique": True, "topic": SOLO_TOPIC}
    sent.ids.clear()
    answer = await world.queue(rng, namespace, "/enqueue", {"items": [sent.body]})
    [(known, result)] = answer.results(1)
    sent.first_sent, _ = answer.sent, sent.known.add(known)
    if known == "ok":
        sent.ids.add(result["id"])
        return sent
    return "in use" if result.get("code") == "key_reused" else "unsure"


async def _end(world: Any, rng: Random, sent: Sent) -> bool:
    """Take the item, and end it; whether it is over for certain."""
    await take(world, rng, sent.namespace, 10, chosen=[SOLO_TOPIC], wait_s=0.0)
    for held in [one for one in world.held if one.id in sent.ids]:
        what = rng.choice(("ack", "nack", "cancel"))
        if what == "cancel":
            answer = await world.queue(rng, held.namespace, "/cancel", {"ids": [held.id]})
            [(known, result)] = answer.results(1)
            when = answer.sent, answer.done
            word = Word("cancel", held.namespace, held.id, "", known, result.get("status", ""), *when)
            world.history.said(word)
        else:
            given = {"final": True} if what == "nack" else {"output": {"by": held.token[:8]}}
            await say(world, rng, held.namespace, what, [(held, held.token, given)])
            word = world.history.words[held.id][-1]
        return word.verb == what and word.status in ("acked", "dead", "cancelled")
    return False


@verb(1, is_inside, since=7)
async def create_two(world: Any, rng: Random) -> None:
    """Two DAGs for a key of nobody else, one after another, while the first is open."""
    place = rng.choice(NAMESPACES), f"u{world.serial()}"
    await _create(world, rng, place, open=True)
    await _create(world, rng, place)


@verb(1.5, since=4)
async def create_unique(world: Any, rng: Random) -> None:
    """A DAG whose key is free, or the one that has it."""
    await _create(world, rng, rng.choice(_PLACES))


async def _create(world: Any, rng: Random, place: tuple[str, str], **given: Any) -> None:
    namespace, key = place
    name = f"{namespace}/u{world.serial()}"
    nodes = [node_spec(world, rng, name, [], 2) for _ in range(rng.randint(1, 2))]
    body: dict[str, Any] = {"name": name, "nodes": nodes, **given}
    answer = await world.dag(rng, namespace, "/dags", body | {"key": key, "unique": True})
    if answer.known == "ok" and answer.body["existing"]:
        if answer.body["key"] != key or answer.body["namespace"] != namespace or answer.body["name"] == name:
            world.fault(f"{name} is said to exist as {answer.body}")
        return
    if answer.known == "fail":
        return
    # One that nobody was told of is looked for by its name, as it has no key of its own.
    dag = world.dags.new(Dag(name, namespace, body, answer.sent))
    is_told = answer.known == "ok"
    dag.add(nodes, answer if is_told else Answer("info", answer.sent, answer.done))
    world.uniques.dags.append(((namespace, key), dag))
    if is_told:
        world.dags.named(dag, answer.body["id"])
