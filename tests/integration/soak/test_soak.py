"""Both services under mixed load while random faults come, then drained, counted and audited.

`HEADGATE_TEST_SOAK_S=600 HEADGATE_TEST_SEED=7 .venv/bin/pytest -n 0 -s tests/integration/soak` runs longer, with
other faults, and shows the counts.
"""

import asyncio
import os
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.integration.soak import dag_judge, judge
from tests.integration.soak.calls import Caller
from tests.integration.soak.dag_load import STEP, DagLoad
from tests.integration.soak.history import History
from tests.integration.soak.installation import SHARDS, Installation, installation
from tests.integration.soak.queue_load import ENDS, WORK, QueueLoad

SOAK_S = float(os.environ.get("HEADGATE_TEST_SOAK_S", "6"))
SEED = int(os.environ.get("HEADGATE_TEST_SEED", "1"))

_PRODUCERS, _CONSUMERS, _BUILDERS, _WORKERS = 4, 4, 2, 3
_DRAIN_S = 180.0
# Longer than any lease that the load asks for: who may still come has come.
_QUIET_S = 4.0
_UNFINISHED = ("ready", "delayed", "leased", "disabled")


class Soak:
    """One run: load, faults, and the way to the end."""

    def __init__(self, where: Installation) -> None:
        self.where = where
        self.history = History()
        self.items = QueueLoad(where.queue_url, self.history, SEED, SHARDS)
        self.dags = DagLoad(where.queue_url, where.dag_url, self.history, SEED)

    async def run(self, seconds: float) -> None:
        """Load for so long; then everything is healed and drained."""
        async with asyncio.TaskGroup() as tasks:
            takers = [tasks.create_task(self.items.consume(n)) for n in range(_CONSUMERS)]
            takers += [tasks.create_task(self.dags.work(n)) for n in range(_WORKERS)]
            makers = [tasks.create_task(self.items.produce(n)) for n in range(_PRODUCERS)]
            makers += [tasks.create_task(self.dags.build(n)) for n in range(_BUILDERS)]
            await asyncio.gather(*(self.where.nemesis.run(f"{SEED} {n}", seconds) for n in range(2)))
            await self.where.nemesis.heal()
            healed = time.monotonic()
            async with asyncio.timeout(_DRAIN_S):
                while not self._says_something():
                    await asyncio.sleep(0.1)
            for load in (self.items, self.dags):
                load.producing, load.draining = False, True
            await asyncio.wait(makers, timeout=_DRAIN_S)
            assert all(maker.done() for maker in makers), "a DAG did not end, or an item could not be sent"
            await self.items.until_said()
            await self._drain()
            print(f"drained {time.monotonic() - healed:.1f} s after the last fault")
            for taker in takers:
                taker.cancel()

    def _says_something(self) -> bool:
        """A machine may be so busy that next to nothing was done meanwhile."""
        return len(self.history.sent) > 20 and self.history.counts["delivered"] > 20 and len(self.dags.plans) >= 3

    async def _drain(self) -> None:
        """Until nothing is left but what has died; what nobody knows of is revived as well."""
        async with Caller(self.where.queue_url) as caller:
            quiet_since = time.monotonic()
            async with asyncio.timeout(_DRAIN_S):
                while time.monotonic() < quiet_since + _QUIET_S:
                    for item_id, tag, state in await self._left(caller):
                        if state == "disabled" and tag in self.history.sent:
                            sent = self.history.sent[tag]
                            sent.ids.add(item_id)
                            await self.items.revive(caller, sent)
                        if state != "dead":
                            quiet_since = time.monotonic()
                    await asyncio.sleep(0.2)
            self.history.left = {item_id: state for item_id, _, state in await self._left(caller)}

    async def _left(self, caller: Caller) -> list[tuple[str, str, str]]:
        """Id, tag and state of everything in the queue."""
        found = []
        for topic in (WORK, ENDS, STEP):
            query = {"topic": topic, "limit": 1000}
            while True:
                page = (await caller.until_ok("GET", "/items", within_s=_DRAIN_S, params=query)).body
                for item in page["items"]:
                    payload = item["payload"]
                    found.append((item["id"], payload.get("tag", ""), item["state"]))
                if page["next_cursor"] is None:
                    break
                query["cursor"] = page["next_cursor"]
        return found

    def check(self) -> Counter[str]:
        """Every promise; the fates of what was promised."""
        plans = list(self.dags.plans.values())
        assert dag_judge.judge(plans, self.dags.steps) == []
        assert judge.judge(self.history) == []
        fates = judge.fates(self.history)
        assert fates["enqueued"] == sum(fates[fate] for fate in ("acked", "cancelled", "dead", "expired"))
        return fates


@pytest.mark.parametrize("ownership", ["exclusive", "everyone"])
async def test_nothing_is_lost_doubled_or_early(tmp_path: Path, ownership: str) -> None:
    """`everyone`: each process takes every shard for its own."""
    async with installation(tmp_path, ownership=ownership) as where:
        soak = Soak(where)
        try:
            await soak.run(SOAK_S)
            fates = soak.check()
            audit = await where.audit()
        finally:
            print(*where.nemesis.log, sep="\n")
            print(soak.history.counts)
        print(fates, f"{len(soak.dags.plans)} DAGs", audit, sep="\n")
        assert audit == "audit: nothing found"
        assert where.tracebacks() == []
