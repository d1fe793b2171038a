"""What is done to many items at once."""

from random import Random
from typing import Any

from tests.worlds.facts import Bulk
from tests.worlds.registry import verb
from tests.worlds.world_names import NAMESPACES, TOPICS

_MISSPELT = ({"stat": "failed"}, {"kee": "a"}, {"name_": "a"})


@verb(0.7)
async def operate(world: Any, rng: Random) -> None:
    """A filter's items are cancelled, purged or put back; a preview changes nothing."""
    namespace, kind = rng.choice(NAMESPACES), rng.choice(("purge", "redrive", "cancel"))
    topic = rng.choice(TOPICS)
    wanted: dict[str, Any] = {"topic": topic}
    if rng.random() < 0.4:
        wanted["priority_min"] = rng.randint(-1, 1)
    if rng.random() < 0.2:
        wanted["metadata"] = {"a": 1}
    body = {"kind": kind, "filter": wanted}
    if rng.random() < 0.3:
        body["dry_run"] = True
    else:
        world.history.bulks.append(Bulk(kind, namespace, topic, world.now_s))
        if rng.random() < 0.5:
            body["id"] = world.ids.make(0)[0]
    await world.queue(rng, namespace, "/operations", body)


@verb(0.3)
async def stop_operations(world: Any, rng: Random) -> None:
    namespace = rng.choice(NAMESPACES)
    for operation in (await world.pages(rng, world.queue, namespace, "/operations") or ())[:2]:
        await world.queue(rng, namespace, f"/operations/{operation['id']}/cancel")


@verb(0.5)
async def list_the_dead(world: Any, rng: Random) -> None:
    await world.pages(rng, world.queue, rng.choice(NAMESPACES), "/dead")


@verb(0.5, since=3)
async def misspell(world: Any, rng: Random) -> None:
    """What nobody knows is not passed over: who asks for the failed alone is not shown all."""
    call, path = rng.choice(((world.dag, "/dags"), (world.queue, "/items"), (world.queue, "/topics")))
    answer = await call(rng, rng.choice(NAMESPACES), path, method="GET", **rng.choice(_MISSPELT))
    if answer.known == "ok":
        world.fault(f"{path} with a parameter that there is not was answered {answer}")


@verb(0.5, since=3)
async def find_by_key(world: Any, rng: Random) -> None:
    """Of a key there is one DAG at most, and none that has another."""
    namespace = rng.choice(NAMESPACES)
    keys = [dag.body["key"] for dag in world.dags.all if "key" in dag.body and dag.namespace == namespace]
    key = rng.choice([*keys, "nobody's"])
    found = await world.pages(rng, world.dag, namespace, "/dags", key=key) or []
    if [dag["key"] for dag in found] not in ([], [key]):
        world.fault(f"the DAGs with key {key} are {found}")
