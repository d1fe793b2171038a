"""What fairness keys and minimum shares do, by count, and what a key costs."""

from __future__ import annotations

import asyncio
from typing import Any

from benchmarks.bench import Bench
from benchmarks.outcome import Outcome
from benchmarks.turns import Cycles, in_turns
from headgate import AsyncClient, Item

BACKLOG, NEWCOMER, BATCH = 5_000, 50, 10
SHARE = 0.1
PLAIN, KEYED = "without keys", "100 keys"

METHOD = f"""\
One tenant puts {BACKLOG:,} items into a topic, in calls of 50; a second one then {NEWCOMER}. One consumer
takes {BATCH} at a time. Counted is how many items are handed out until the second tenant has its {NEWCOMER}:
with fairness keys about twice as many, without them the whole backlog is in front of it. Then {BACKLOG:,}
items of priority 0 and a tenth of that of priority 5 are in a topic that owes priority 5 a share of
{SHARE:g}: what it gets of the first fifth, with the share and without. The cost of a key: 4 clients
enqueue a batch of 100, dequeue and ack it, with no key and with 100 keys in turn."""


async def run(bench: Bench) -> Outcome:
    """Count, then measure."""
    outcome = Outcome("fairness", METHOD)
    bench.progress.begin("fairness", bench.plan.rounds * 4)
    backlog = bench.plan.sized(BACKLOG, 500)
    async with AsyncClient(queue_url=bench.stack.queue_url) as client:
        waits: dict[bool, list[float]] = {False: [], True: []}
        parts: dict[bool, list[float]] = {False: [], True: []}
        for turn in range(bench.plan.rounds):
            for on in (False, True):
                waits[on].append(await _newcomer(client, f"fair-{turn}-{on}", backlog, keyed=on))
                parts[on].append(await _worse(client, f"share-{turn}-{on}", backlog, SHARE if on else None))
        outcome.add("hand-outs until the newcomer has its 50, without keys", "items", waits[False])
        fair = outcome.add("hand-outs until the newcomer has its 50, with keys", "items", waits[True])
        outcome.add("hand-outs that went to the worse priority + 1, without a share", "items", parts[False])
        share = outcome.add(
            "hand-outs that went to the worse priority + 1, with a share of 0.1", "items", parts[True]
        )
        outcome.require_below("hand-outs until the newcomer has its 50, with keys", fair, 4.0 * NEWCOMER, "items")
        least = SHARE * (backlog // 5) - 1
        outcome.require_at_least("hand-outs that went to the worse priority", share, least, "items")
        sides: dict[str, Any] = {
            PLAIN: Cycles([_cycle(client, "cost-plain", 0)] * 4),
            KEYED: Cycles([_cycle(client, "cost-keyed", 100)] * 4),
        }
        found = await in_turns(bench, outcome, "batch 100", sides)
        outcome.add("100 keys / without keys", "ratio", found[KEYED].over(found[PLAIN]).values)
    return outcome


async def _newcomer(client: AsyncClient, topic: str, backlog: int, *, keyed: bool) -> float:
    async def put(tenant: str, count: int) -> None:
        item: Item = {"topic": topic, "payload": tenant}
        if keyed:
            item["fairness_key"] = tenant
        for _ in range(0, count, 50):
            await client.enqueue([item] * 50, make_ids=False)

    await put("big", backlog)
    await asyncio.sleep(2.5)  # the shards' clocks come together about once a second
    await put("small", NEWCOMER)
    taken = seen = 0
    while seen < NEWCOMER:
        items = await client.dequeue({topic: BATCH})
        taken += len(items)
        seen += sum(item.payload == "small" for item in items)
        await client.ack([item.ack() for item in items])
    await client.purge_topic(topic)
    return float(taken)


async def _worse(client: AsyncClient, topic: str, backlog: int, share: float | None) -> float:
    await client.configure_topic(topic, min_share={5: share} if share is not None else None)
    for priority, count in ((0, backlog), (5, backlog // 10)):
        for _ in range(0, count, 50):
            await client.enqueue([{"topic": topic, "priority": priority}] * 50, make_ids=False)
    taken = worse = 0
    while taken < backlog // 5:
        items = await client.dequeue({topic: BATCH})
        taken += len(items)
        worse += sum(item.priority == 5 for item in items)
        await client.ack([item.ack() for item in items])
    await client.purge_topic(topic)
    return float(worse + 1)


def _cycle(client: AsyncClient, topic: str, keys: int) -> Any:
    items: list[Item] = [{"topic": topic, "payload": "x"} for _ in range(100)]
    if keys:
        items = [{**item, "fairness_key": str(n % keys)} for n, item in enumerate(items)]

    async def cycle() -> int:
        await client.enqueue(items, make_ids=False)
        taken = await client.dequeue({topic: 100})
        await client.ack([item.ack() for item in taken])
        return len(taken)

    return cycle
