"""A standby takes over under the load of two tenants: what is missing afterwards is what the standby had not heard
of, and where commits wait for it, nothing."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.integration.failover.judge import judge, missing
from tests.integration.failover.stage import Stage, staged
from tests.support.databases import Databases
from tests.support.replicas import Pair, replicated

STEPS = 4


@asynccontextmanager
async def paired(
    databases: Databases, directory: Path, redis_url: str, *, synchronous: bool
) -> AsyncIterator[tuple[Pair, Stage]]:
    well = await databases.create(queue_shards=1, dag_shards=1)
    async with replicated(directory, queue_shards=2, dag_shards=2, synchronous=synchronous) as pair:
        dsn = pair.database.dsn
        async with staged(well, dsn, dsn, redis_url) as stage:
            yield pair, stage
    await databases.drop(well)


async def test_where_commits_wait_for_the_standby_nothing_is_missing(
    databases: Databases, tmp_path: Path, redis_url: str
) -> None:
    async with paired(databases, tmp_path, redis_url, synchronous=True) as (pair, stage):
        async with stage.load.running() as load:
            await load.until_more(STEPS)
            await load.through(pair.fail_over())
            await load.until_more(STEPS)
        await stage.drain()
        assert judge(load.log, cut_s=None) == []
        assert missing(load.log) == 0


async def test_a_standby_that_had_fallen_behind_costs_what_it_had_not_heard_of(
    databases: Databases, tmp_path: Path, redis_url: str
) -> None:
    async with paired(databases, tmp_path, redis_url, synchronous=False) as (pair, stage):
        async with stage.load.running() as load:
            await load.until_more(STEPS)
            cut_s = time.monotonic()
            await pair.cut_off()
            await load.until_more(STEPS)
            await load.through(pair.fail_over())
            await load.until_more(STEPS)
        await stage.drain(repair=True)
        assert judge(load.log, cut_s) == []
        assert missing(load.log), "nothing was lost, so nothing was shown"


async def test_a_synchronous_standby_that_stands_still_lets_nothing_be_promised(
    databases: Databases, tmp_path: Path, redis_url: str
) -> None:
    """A commit that waited in vain is there on the primary, and must not have been answered for."""
    async with paired(databases, tmp_path, redis_url, synchronous=True) as (pair, stage):
        async with stage.load.running() as load:
            await load.until_more(STEPS)
            await pair.cut_off()
            await load.until_more(STEPS, shards=[0])
            await asyncio.sleep(4)  # past the deadline of every statement
            await load.through(pair.fail_over())
            await load.until_more(STEPS)
        await stage.drain()
        assert judge(load.log, cut_s=None) == []
        assert missing(load.log) == 0
