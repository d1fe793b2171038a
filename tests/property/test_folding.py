"""Random DAGs under random calls come to the same, folded or told: every node, edge, count, change and delivery.

The queue process that takes the acks folds, or does not; the same service decides what it is told. After each
step everything is settled. `HEADGATE_TEST_EXAMPLES` sets how many DAGs there are.
"""

import itertools
import json
import random
from typing import Any

import pytest

from services.dag.graph import decide
from services.dag.model import Counts
from tests.support.databases import Databases
from tests.support.examples import examples
from tests.support.folding import Folding, folding_on

TRIGGERS = (
    "all_succeeded",
    "all_succeeded",
    "all_succeeded",
    "all_done",
    "any_succeeded",
    "any_failed",
    "none_failed",
)
STEPS = 30

_NODES = """
SELECT n.no & 4194303 AS n, n.key, n.state, n.generation, n.attempts, n.enqueued, n.by_call, n.up_left, n.up_ok,
    n.up_failed, n.up_skipped, n.up_cancelled, n.ext_left, n.ext_failed, n.output, n.error,
    n.released_at IS NOT NULL, n.finished_at IS NOT NULL, n.started_at IS NOT NULL, n.worker
FROM node n JOIN dag d ON d.no = n.dag_no WHERE d.id = $1 ORDER BY n.no
"""
_EDGES = """
SELECT e.up & 4194303, e.down & 4194303, e.satisfied FROM edge e JOIN dag d ON d.no = e.up >> 22
WHERE d.id = $1 ORDER BY e.up, e.down
"""
_DAG = """
SELECT state, open, held, paused, closed, cancel_cause, next_n, structure_version, edges, externals,
    blocked, released, succeeded, failed, skipped, cancelled, endings, last_event, expanded, cleanups,
    cleanup_left, cleanup_phase, verdict, finished_at IS NOT NULL
FROM dag WHERE id = $1
"""
_LOG = "SELECT c.last_event, c.nodes, c.dag FROM change c JOIN dag d ON d.no = c.dag_no WHERE d.id = $1 ORDER BY 1"
_TOTALS = """
SELECT state, sum(dags)::int, sum(succeeded)::int, sum(failed)::int, sum(skipped)::int, sum(cancelled)::int
FROM tally GROUP BY state
"""


class History:
    """One DAG and what is done to it, all of it decided by the seed."""

    def __init__(self, folding: Folding, seed: int, run: str) -> None:
        self.folding = folding
        self.random = random.Random(seed)
        self.topic = f"t{seed}-{run}"
        self.keys: list[str] = []
        self.leased: dict[str, Any] = {}
        self.delivered: list[Any] = []

    def spec(self) -> dict[str, Any]:
        choose = self.random
        key = f"n{len(self.keys)}"
        ups = choose.sample(self.keys, min(len(self.keys), choose.choice([0, 1, 1, 1, 2, 3])))
        spec: dict[str, Any] = {
            "key": key,
            "topic": self.topic,
            "trigger": choose.choice(TRIGGERS) if ups else "all_done",
        }
        spec |= {"upstream": ups} if ups else {}
        spec |= {"external": ["x"]} if choose.random() < 0.1 else {}
        spec |= {"pass_outputs": True} if choose.random() < 0.4 else {}
        self.keys.append(key)
        return spec

    async def call(self, verb: str, body: Any = None) -> None:
        answer = await self.folding.dags.http.post(
            f"/v1/namespaces/default/dags/{self.dag}/{verb}", json=body or {}
        )
        assert answer.status_code < 500, answer.text
        await self.folding.settle()

    async def live(self) -> list[Any]:
        choose = self.random
        nodes = [self.spec() for _ in range(choose.choice([2, 4, 8, 12]))]
        opened, hold = choose.random() < 0.3, choose.random() < 0.2
        on_failure = choose.choice(["continue", "continue", "cancel"])
        more: dict[str, Any] = {}
        if choose.random() < 0.4:
            more["priority"] = {"inherit": choose.choice([0, 10]), "critical_path": choose.choice([0, 1])}
        self.dag = await self.folding.dags.create(nodes, open=opened, hold=hold, on_failure=on_failure, **more)
        await self.folding.settle()
        for _ in range(STEPS):
            await self.step()
        for verb in ("release", "resume", "close"):
            await self.call(verb)
        await self.resolve()
        while await self.take() or self.leased:
            await self.ack(len(self.leased))
        rows = [await self.folding.dags.rows(sql, self.dag) for sql in (_NODES, _EDGES, _DAG)]
        log = [
            (last, sorted((nodes or "").split(" ")), json.loads(dag) if dag else None)
            for last, nodes, dag in await self.folding.dags.rows(_LOG, self.dag)
        ]
        await self.folding.dags.audit(self.dag)
        return [*([tuple(row) for row in part] for part in rows), log, self.delivered]

    async def step(self) -> None:
        choose = self.random
        match choose.choice("aaaaaaaatttttfpurlnsxc"):
            case "t":
                await self.take()
            case "a":
                await self.ack(choose.choice([1, 1, 2, 5]))
            case "f" if self.leased:
                item = self.leased.pop(min(self.leased))
                await self.folding.queue.nack(item, final=True)
                await self.folding.settle()
            case "p":
                await self.call("pause")
            case "u":
                await self.call("resume")
            case "r":
                await self.call("release")
            case "l" if len(self.keys) > 1:
                up, down = sorted(choose.sample(range(len(self.keys)), 2))
                pair = {"upstream": self.keys[up], "downstream": self.keys[down]}
                await self.call("dependencies", {"dependencies": [pair]})
            case "n" if len(self.keys) < 20:
                await self.call("nodes", {"nodes": [self.spec()]})
            case "s":
                await self.call("skip", {"nodes": [choose.choice(self.keys)]})
            case "x":
                await self.resolve()
            case "c" if choose.random() < 0.3:
                await self.call("retry", {"all": True} if choose.random() < 0.5 else {})

    async def resolve(self) -> None:
        for key in self.keys:
            await self.call("resolve", {"external": [{"node": key, "name": "x"}]})

    async def take(self) -> bool:
        found = await self.folding.queue.dequeue(self.topic, 100)
        # What became ready together is in the order of random ids.
        found.sort(key=lambda item: str(item["dag"]["node"]))
        for item in found:
            node, generation = item["dag"]["node"], item["dag"]["generation"]
            self.delivered.append((node, generation, item["attempt"], item["inputs"], item["priority"]))
            self.leased[f"{node}#{generation}"] = item
        return bool(found)

    async def ack(self, count: int) -> None:
        named = self.random.sample(sorted(self.leased), min(count, len(self.leased)))
        if not named:
            return
        items = [self.leased.pop(name) for name in named]
        outputs = [{"output": {"of": name}} if self.random.random() < 0.5 else {} for name in named]
        body = [{"id": i["id"], "lease_token": i["lease_token"], **o} for i, o in zip(items, outputs, strict=True)]
        await self.folding.queue.results("ack", {"items": body})
        await self.folding.settle()


async def test_folded_or_told_a_dag_comes_to_the_same(databases: Databases) -> None:
    database = await databases.create(queue_shards=1, dag_shards=1)
    folded, told = 0, list[str]()
    connection = await database.connect("dag_000")

    async def totals() -> dict[str, Any]:
        return {row[0]: row[1:] for row in await connection.fetch(_TOTALS)}

    def gained(before: dict[str, Any], after: dict[str, Any]) -> dict[str, list[int]]:
        gains = {
            state: [now - then for now, then in zip(row, before.get(state, [0] * 5), strict=True)]
            for state, row in after.items()
        }
        return {state: gain for state, gain in gains.items() if any(gain)}

    # Levels are worked out for each release, not once a second.
    at_once = {"priority_refresh_s": 0.0}
    async with (
        folding_on(database, dag_settings=at_once) as folding,
        folding_on(database, dag_settings=at_once, fold_completions=False) as telling,
    ):
        endings = folding.host.process.dag_news.endings
        endings.hearers = 1
        endings.tell = told.extend  # type: ignore[method-assign]
        for seed in range(examples(10)):
            before = folding.told.taken, telling.told.taken
            stood = [await totals()]
            found = await History(folding, seed, "folded").live()
            stood.append(await totals())
            expected = await History(telling, seed, "told").live()
            stood.append(await totals())
            found.append(gained(stood[0], stood[1]))
            expected.append(gained(stood[1], stood[2]))
            names = ("nodes", "edges", "dag", "log", "delivered", "totals")
            for name, one, other in zip(names, found, expected, strict=True):
                assert one == other, f"the {name} of seed {seed} differ"
            folded += (telling.told.taken - before[1]) - (folding.told.taken - before[0])
    await connection.close()
    assert folded > 0, "nothing was folded"
    assert told, "no DAG has ended by an ack"
    await databases.drop(database)


@pytest.mark.parametrize("trigger", sorted(set(TRIGGERS)))
async def test_the_functions_verdict_is_the_services(databases: Databases, trigger: Any) -> None:
    database = await databases.create(queue_shards=1, dag_shards=1)
    connection = await database.connect("dag_000")
    for counts in itertools.product(range(3), repeat=5):
        found = await connection.fetchval("SELECT verdict($1, $2, $3, $4, $5, $6)", trigger, *counts)
        assert found == decide(trigger, Counts(*counts)), counts
    await connection.close()
    await databases.drop(database)
