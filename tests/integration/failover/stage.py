"""Both services on two shards each: 0 on a server that is well, 1 on one to which something happens."""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from headgate import AsyncClient, RetryPolicy
from tests.integration.failover.load import Load
from tests.integration.failover.verb import Verb
from tests.integration.failover.verbs import VERBS
from tests.support import apps
from tests.support.databases import Database
from tests.support.forked import run_module

TENANTS = ("north", "south")
DRAIN_S = 150.0
# Calls give a shard up this soon; by what a service does usually a sickness would have to take a quarter minute.
DEADLINES = {"command_timeout_s": 3.0, "connect_timeout_s": 2.0, "acquire_timeout_s": 2.0}
_ONCE = RetryPolicy(attempts_max=1, elements=False)


class Stage:
    """The load on both services, and its end."""

    def __init__(self, shards: dict[str, str], load: Load) -> None:
        self.load = load
        self._shards = shards

    async def drain(self, *, repair: bool = False) -> None:
        """Work until nothing is left; with `repair`, by what the manual says is to be done after a loss."""
        left = ["what tenants had set"]
        try:
            async with asyncio.timeout(DRAIN_S):
                await self.load.let_go()
                await asyncio.sleep(1)
                while left := await self.load.left():
                    if repair:
                        await self._audit("repair", "--yes", "--age-s", "2")
                    await asyncio.sleep(0.5)
        except TimeoutError as error:
            raise AssertionError(f"{DRAIN_S:.0f} s after the load there is left: {left}") from error
        finally:
            await self.load.stop()

    async def _audit(self, *argv: str) -> None:
        env = {**os.environ, **self._shards}
        code, output, errors = await run_module("audit", *argv, env=env, timeout_s=DRAIN_S)
        assert code in (0, 1), output + errors


@asynccontextmanager
async def staged(
    well: Database,
    queue_dsn: str,
    dag_dsn: str,
    redis_url: str,
    verbs: Sequence[type[Verb]] = VERBS,
    **settings: Any,
) -> AsyncIterator[Stage]:
    """`queue_dsn` and `dag_dsn` lead to the database of the shards numbered 1; besides items and DAGs tenants do
    what `verbs` say."""
    queue_shards, dag_shards = (f"0={well.dsn} 1={dsn}" for dsn in (queue_dsn, dag_dsn))
    async with AsyncExitStack() as stack:
        queue = await stack.enter_async_context(
            apps.queue_service(well, redis_url, shards=queue_shards, **{**DEADLINES, **settings})
        )
        dag = await stack.enter_async_context(
            apps.dag_service(well, redis_url, queue.url, shards=dag_shards, **{**DEADLINES, **settings})
        )
        clients = {
            tenant: await stack.enter_async_context(
                AsyncClient(queue_url=queue.url, dag_url=dag.url, namespace=tenant, retry=_ONCE, timeout_s=60.0)
            )
            for tenant in TENANTS
        }
        yield Stage(
            {"HEADGATE_QUEUE_SHARDS": queue_shards, "HEADGATE_DAG_SHARDS": dag_shards}, Load(clients, verbs)
        )
