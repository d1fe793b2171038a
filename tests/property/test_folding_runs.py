"""Random runs of workflows come to the same, folded or told: nodes, events, changes, counts and deliveries.

As in `test_folding.py`: the queue process that takes the acks folds, or does not. Ends of one ack are told in any
order. `HEADGATE_TEST_EXAMPLES` sets how many runs there are.
"""

import itertools
import json
import random
from typing import Any

from tests.property.test_folding import _DAG, _LOG, _NODES
from tests.support.databases import Databases
from tests.support.examples import examples
from tests.support.folding import Folding, folding_on
from tests.support.folding_runs import FoldedRun

STEPS = 30
_EVENTS = """
SELECT e.kind, e.key, e.generation, e.state, e.output, e.error, e.data, e.after
FROM event e JOIN dag d ON d.no = e.dag_no WHERE d.id = $1 ORDER BY e.event
"""
_RUN = """
SELECT state, turn, seen, last_event, last_told, signals, received_total, stuck, output, error
FROM run WHERE dag_id = $1
"""


def in_any_order(events: list[Any]) -> list[Any]:
    """Ends of tasks that follow one another, by their keys."""
    stretches = itertools.groupby(map(tuple, events), lambda event: event[0] == "item" and event[-1] is None)
    return [event for is_end, part in stretches for event in (sorted(part) if is_end else part)]


class RunHistory:
    """One run and what is done to it, all of it decided by the seed. What is leased is ended in any order, also
    deliveries of its decider, before and after their turn."""

    def __init__(self, folding: Folding, seed: int) -> None:
        self.folding = folding
        self.random = random.Random(seed)
        self.run = FoldedRun(folding, f"w{seed}", f"t{seed}")
        self.leased: dict[str, Any] = {}
        self.delivered: list[Any] = []
        self.is_awake = False

    async def live(self) -> list[Any]:
        await self.run.start()
        for _ in range(STEPS):
            await self.step(self.random.choice("taaaaawwwtttfspu"))
        await self.run.verb("resume")
        await self.folding.settle()
        while await self.take() or self.leased:
            await self.ack(len(self.leased))
            if self.is_awake:
                await self.turn(0)
        rows = [await self.folding.dags.rows(sql, self.run.dag) for sql in (_NODES, _DAG, _RUN, _EVENTS)]
        log = [
            (last, sorted((nodes or "").split(" ")), json.loads(dag) if dag else None)
            for last, nodes, dag in await self.folding.dags.rows(_LOG, self.run.dag)
        ]
        await self.folding.dags.audit(self.run.dag)
        await self.run.finish()
        await self.folding.execute("DELETE FROM workflow; DELETE FROM run")
        *rows, events = rows
        rows.append(in_any_order(events))
        made = [*([tuple(row) for row in part] for part in rows), log, self.delivered]
        return [json.loads(text.replace(self.run.dag, "DAG")) for text in map(json.dumps, made)]

    async def step(self, what: str) -> None:
        match what:
            case "t":
                await self.take()
            case "a":
                await self.ack(self.random.choice([1, 1, 2, 5]))
            case "w" if self.is_awake:
                await self.turn(self.random.choice([0, 1, 1, 3, 6]))
            case "f" if names := sorted(name for name in self.leased if not name.startswith("decider")):
                await self.folding.queue.nack(self.leased.pop(names[0]), final=True)
            case "s":
                await self.run.verb("signals", {"name": "go", "data": 1, "id": f"s{self.random.random()}"})
            case "p":
                await self.run.verb("pause")
            case "u":
                await self.run.verb("resume")
        await self.folding.settle()

    async def turn(self, calls: int) -> None:
        """Of its last delivery; what has come meanwhile is seen by it, or by the next."""
        events = await self.run.history()
        last = events[-1]["event"] if self.random.random() < 0.7 else max(1, events[-1]["event"] - 1)
        seen = (await self.run.standing())["seen"]
        answer = await self.run.turn(calls, last=max(last, seen + bool(calls), 1))
        self.is_awake = not answer.get("parked")
        await self.folding.settle()

    async def take(self) -> bool:
        found = await self.folding.queue.dequeue(self.run.topic, 100)
        found.sort(key=lambda item: str(item["dag"]["node"]))
        if await self.run.take_decider():
            found.append(self.run.decider)
            self.is_awake = True
        for item in found:
            node, generation = item["dag"]["node"], item["dag"]["generation"]
            self.delivered.append((node, generation, item["attempt"], item["priority"]))
            self.leased[f"{node}#{generation}"] = item
        return bool(found)

    async def ack(self, count: int) -> None:
        """A decider's delivery is ended after its turn only: else it would come again after a while."""
        names = sorted(self.leased)
        if self.is_awake:
            names = [name for name in names if self.leased[name] is not self.run.decider]
        named = self.random.sample(names, min(count, len(names)))
        if not named:
            return
        items = [self.leased.pop(name) for name in named]
        outputs = [{"output": {"of": name}} if self.random.random() < 0.5 else {} for name in named]
        body = [{"id": i["id"], "lease_token": i["lease_token"], **o} for i, o in zip(items, outputs, strict=True)]
        await self.folding.queue.results("ack", {"items": body})
        await self.folding.settle()


async def test_folded_or_told_a_run_comes_to_the_same(databases: Databases) -> None:
    database = await databases.create(queue_shards=1, dag_shards=1)
    folded = 0
    async with folding_on(database) as folding, folding_on(database, fold_completions=False) as telling:
        for seed in range(examples(6)):
            before = folding.told.taken, telling.told.taken
            found = await RunHistory(folding, seed).live()
            expected = await RunHistory(telling, seed).live()
            names = ("nodes", "dag", "run", "events", "log", "delivered")
            for name, one, other in zip(names, found, expected, strict=True):
                assert one == other, f"the {name} of seed {seed} differ"
            folded += (telling.told.taken - before[1]) - (folding.told.taken - before[0])
    assert folded > 0, "nothing was folded"
    await databases.drop(database)
