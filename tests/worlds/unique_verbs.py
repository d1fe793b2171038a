"""Verbs of unique keys: of each one item, and one DAG, at a time."""

from random import Random
from typing import Any

from tests.worlds.dag_facts import Dag
from tests.worlds.dag_verbs import node_spec
from tests.worlds.queue_verbs import new_item
from tests.worlds.registry import verb
from tests.worlds.unique_facts import Taken
from tests.worlds.wire import Answer
from tests.worlds.world_names import NAMESPACES

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


@verb(1.5, since=4)
async def create_unique(world: Any, rng: Random) -> None:
    """A DAG whose key is free, or the one that has it."""
    namespace, key = rng.choice(_PLACES)
    name = f"{namespace}/u{world.serial()}"
    nodes = [node_spec(world, rng, name, [], 2) for _ in range(rng.randint(1, 2))]
    body: dict[str, Any] = {"name": name, "nodes": nodes}
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
