"""What no world may leave behind: rows of work, wrong counts, room that quotas miss, items that nobody knows."""

from contextlib import AsyncExitStack
from random import Random
from typing import Any

from audit.__main__ import look
from audit.finding import table
from audit.reading import Reader, Scope, reader
from tests.worlds.world_names import NAMESPACES

_AGE_S = 1.0
_EMPTY = {"dag": ("outbox", "adding", "spread", "scan", "reopening", "reach"), "queue": ("ready", "deferred")}


async def left_behind(world: Any, rng: Random) -> list[str]:
    """Every violation, as a sentence."""
    async with AsyncExitStack() as stack:
        readers = {
            service: [await stack.enter_async_context(reader(address)) for address in found]
            for service, found in world.stage.addresses().items()
        }
        found = list(table(await look(readers["dag"], readers["queue"], Scope(age_s=_AGE_S), lambda _: None)))
        found = found if len(found) > 1 else []
        for service, tables in _EMPTY.items():
            found += [fault for each in readers[service] for fault in await _rows(each, tables)]
    return found + await _use(world, rng)


async def _rows(shard: Reader, tables: tuple[str, ...]) -> list[str]:
    found = []
    for name in tables:
        count = await shard.connection.fetchval(f"SELECT count(*) FROM {name}")
        if count:
            some = await shard.connection.fetch(f"SELECT * FROM {name} LIMIT 3")
            found.append(f"{shard.address.schema} has {count} rows in {name}: {[dict(row) for row in some]}")
    return found


async def _use(world: Any, rng: Random) -> list[str]:
    """What namespaces and topics are said to hold is what is there."""
    found = []
    for namespace in NAMESPACES:
        items = await world.pages(rng, world.queue, namespace, "/items")
        topics = await world.pages(rng, world.queue, namespace, "/topics")
        use = await world.queue(rng, namespace, "", method="GET")
        dags = await world.dag(rng, namespace, "", method="GET")
        if items is None or topics is None or use.known != "ok" or dags.known != "ok":
            found.append(f"{namespace} cannot be read")
            continue
        for topic in topics:
            there = [item["state"] for item in items if item["topic"] == topic["topic"]]
            told = {state: topic[state] for state in ("ready", "delayed", "leased", "disabled", "dead")}
            if told != {state: there.count(state) for state in told}:
                found.append(f"{namespace}:{topic['topic']} counts {told} and holds {there}")
        if use.body["in_flight"] or use.body["items"] != len(items):
            found.append(f"{namespace} uses {use.body} and holds {len(items)} items")
        if any(dags.body["use"].values() if "use" in dags.body else ()):
            found.append(f"{namespace} uses {dags.body}, and all its DAGs have ended")
    return found
