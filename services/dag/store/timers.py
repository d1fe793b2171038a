"""The statements about timers that run, bound."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

from services.dag.model import NodeNo, Ref
from services.dag.store.archive import everywhere
from services.dag.store.dags import SQL
from shared.postgres.connections import Transaction
from shared.postgres.rows import column_of, rows_of, value_of
from shared.shards.shard_map import Shard

# What the owner of a shard has to understand (`shared.shards.ownership`): timers, runs of workflows, and
# that these are reset.
TIMERS_LEVEL: Final = 1
RUNS_LEVEL: Final = 2
RESETS_LEVEL: Final = 3


class NextTimer(NamedTuple):
    """A timer that is due in so many seconds, or soon; `late_s` since when it is."""

    no: NodeNo
    in_s: float
    late_s: float


class Timer(NamedTuple):
    """What a timer was made of, as JSON text, and when it is due, while it runs."""

    spec: str
    due_at: datetime | None


async def start(tx: Transaction, nos: Sequence[NodeNo]) -> list[float]:
    """Timers that were released begin to run; in how many seconds each is due."""
    return await column_of(float, tx, SQL.start_timers, node_nos=nos)


async def delete(tx: Transaction, nos: Sequence[NodeNo]) -> None:
    """These run no more."""
    await tx.fetch(SQL.delete_timers, node_nos=nos)


async def soon(shard: Shard, *, ahead_s: float, rows_max: int) -> list[NextTimer]:
    """The first that are due now, or within `ahead_s`, in the order of their times."""
    return await rows_of(NextTimer, shard.pool, SQL.next_timers, ahead_s=ahead_s, rows_max=rows_max)


async def take_due(tx: Transaction, nos: Sequence[NodeNo]) -> list[Ref]:
    """Those of these timers that are due run no more; which these were. Under the locks of their DAGs."""
    return [Ref(*row) for row in await tx.fetch(SQL.take_due_timers, node_nos=nos)]


async def put_off(shard: Shard, nos: Sequence[NodeNo], delay_s: float) -> None:
    """Look at these again in `delay_s`."""
    await shard.pool.fetch(SQL.put_off_timers, node_nos=nos, delay_s=delay_s)


async def nothing_runs(shard: Shard) -> bool:
    """Whether nothing of a shard's DAGs runs but timers."""
    row = await shard.pool.row(SQL.nothing_runs)
    return bool(row["idle"])


async def skip_time(shard: Shard) -> int:
    """The next timer is due now, and all others so much sooner; how many these are."""
    return len(await shard.pool.fetch(SQL.skip_time))


async def of(shard: Shard, nos: Sequence[NodeNo]) -> dict[NodeNo, Timer]:
    """Timers by their nodes' numbers, wherever these are."""
    rows = await shard.pool.fetch(everywhere(SQL.timers_of), nos=nos)
    return {no: Timer(*columns) for no, *columns in rows}


async def has_older_owner(tx: Transaction, level: int = TIMERS_LEVEL) -> bool:
    """Whether the shard's owner is an older program, which understands less than this level."""
    return await value_of(bool, tx, SQL.older_owner, level=level)
