"""A real queue and a DAG service on one database, in this process: acks go on with their DAG, or are told."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.support.bounded import steps
from tests.support.dag_world import DagWorld
from tests.support.databases import Database
from tests.support.queue_host import Api, QueueHost, queue_host
from tests.support.queue_hosted import HostedQueue


class Folding:
    """A queue that folds, or does not, and a DAG service that hears of what it is told in `settle` only."""

    def __init__(self, host: QueueHost, dags: DagWorld, told: HostedQueue) -> None:
        self.host = host
        self.dags = dags
        self.told = told
        self.queue = Api(host, "default")

    async def take(self, count: int = 100) -> dict[str, Any]:
        """What is delivered now, by node."""
        await self.dags.loops.relay.idle()
        return {item["dag"]["node"]: item for item in await self.queue.dequeue("work", count)}

    async def states(self, dag: str) -> dict[str, str]:
        return await self.dags.states(dag)

    async def item_of(self, dag: str, key: str) -> str:
        query = "SELECT item_id::text FROM node JOIN dag ON dag.no = dag_no WHERE id = $1 AND node.key = $2"
        [[found]] = await self.dags.rows(query, dag, key)
        return str(found)

    async def completions(self) -> int:
        """Completion items that nobody has taken yet."""
        return await self.host.count("ready JOIN topic USING (topic_id)", "name LIKE 'acks/%'")

    async def execute(self, sql: str) -> None:
        connection = await self.dags.database.connect("dag_000")
        await connection.execute(sql)
        await connection.close()

    async def settle(self) -> None:
        """What the queue has to tell is told, and what follows from it is done."""
        for _ in steps():
            await self.dags.loops.relay.idle()
            before, walked = self.told.taken, 0
            for shard in self.dags.duties.context.shards:
                await self.dags.loops.results[shard.number].drain()
                walked += await self.dags.loops.walker.step(shard)
            if not walked and self.told.taken == before:
                return

    async def finish(self, dag: str) -> None:
        """All that is delivered is acked, until the DAG has succeeded."""
        await self.settle()
        for _ in steps():
            if not (taken := await self.take()):
                break
            await self.queue.ack(*taken.values())
            await self.settle()
        assert (await self.dags.dag(dag))["state"] == "succeeded"

    async def cancel(self, dag: str) -> None:
        """Nothing of the DAG is left for the next test."""
        await self.dags.call("POST", f"/{dag}/cancel", {})
        await self.settle()
        for _ in steps():
            if not (taken := await self.take()):
                break
            await self.queue.ack(*taken.values())
            await self.settle()


@asynccontextmanager
async def folding_on(
    database: Database, *, dag_settings: dict[str, Any] | None = None, **settings: Any
) -> AsyncIterator[Folding]:
    async with queue_host(database, **settings) as host:
        queue = HostedQueue(host)
        dags = DagWorld(database, queue, **dag_settings or {})  # type: ignore[arg-type]
        try:
            yield Folding(host, dags, queue)
            await dags.audit()
        finally:
            await dags.close()
