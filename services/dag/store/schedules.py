"""The statements about schedules, bound. A `Transaction` argument stands for the lock of the schedule's row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from services.dag.model import DagNo
from services.dag.store.dags import SQL
from shared.postgres.connections import Transaction
from shared.postgres.rows import rows_of, value_of, value_or_none
from shared.shards.shard_map import Shard


@dataclass(slots=True)
class Schedule:
    """A schedule's row; `spec` and `action` are JSON text as they were said, `plan` a DAG to be made."""

    no: int
    namespace: str
    id: str
    spec: str
    action: str
    plan: str
    overlap: str
    catchup_s: float
    jitter_s: float
    paused: bool
    reason: str | None
    next_at: datetime | None
    ticks: int
    created_at: datetime
    updated_at: datetime


class WaitingSlot(NamedTuple):
    """A slot that waits for its turn."""

    no: int
    kind: str
    at: datetime
    overlap: str
    tick: int | None
    request: str | None


class LastTick(NamedTuple):
    """What became of the slot before."""

    no: int
    kind: str
    decision: str
    reason: str | None


class ScheduleStanding(NamedTuple):
    """How a schedule stands, by a snapshot from after its lock."""

    now: datetime
    unfinished: bool
    buffered: int
    waiting: WaitingSlot | None
    last: LastTick | None


class Tick(NamedTuple):
    """What became of slots in a row."""

    no: int
    kind: str
    at: datetime
    through: datetime
    slots: int
    decision: str
    reason: str | None
    run: str | None
    decided_at: datetime | None = None


class NextSchedule(NamedTuple):
    """A schedule with a slot that is due in so many seconds."""

    no: int
    namespace: str
    in_s: float


class WaitingTurn(NamedTuple):
    """A schedule with slots that wait, and whether it may be the turn of one."""

    schedule_no: int
    namespace: str
    due: bool


class WaitingTurns(NamedTuple):
    """Schedules (number, namespace) with a slot whose turn it may be; how far was looked, and whether there may be
    more."""

    due: list[tuple[int, str]]
    last_no: int
    is_full: bool


class ScheduleSettings(NamedTuple):
    """What a call says of a schedule."""

    spec: str
    action: str
    plan: str
    overlap: str
    catchup_s: float
    jitter_s: float


async def insert(
    tx: Transaction, namespace: str, schedule_id: str, said: ScheduleSettings, *, paused: bool
) -> int | None:
    """A new schedule's number, without a slot yet; None when there is one of this id."""
    values = {"namespace": namespace, "id": schedule_id, "paused": paused, **said._asdict()}
    return await value_or_none(int, tx, SQL.insert_schedule, **values)


async def lock(tx: Transaction, namespace: str, schedule_id: str) -> Schedule | None:
    """Lock a schedule."""
    row = await tx.row(SQL.lock_schedule, namespace=namespace, id=schedule_id)
    return Schedule(*row) if row else None


async def lock_no(tx: Transaction, no: int) -> Schedule | None:
    """The same by number."""
    row = await tx.row(SQL.lock_schedule_no, no=no)
    return Schedule(*row) if row else None


async def get(shard: Shard, namespace: str, schedule_id: str) -> Schedule | None:
    """A schedule, without its plan."""
    row = await shard.pool.row(SQL.get_schedule, namespace=namespace, id=schedule_id)
    return Schedule(*row) if row else None


async def page(shard: Shard, namespace: str, after_id: str, *, rows_max: int, bytes_max: int) -> list[Schedule]:
    """Schedules of a namespace after an id, without their plans; the last one reaches the bound."""
    rows = await shard.pool.fetch(
        SQL.list_schedules, namespace=namespace, after_id=after_id, rows_max=rows_max, bytes_max=bytes_max
    )
    return [Schedule(*row) for row in rows]


async def count(shard: Shard, namespace: str, rows_max: int) -> int:
    """How many schedules a namespace has here, counted up to `rows_max`."""
    return await value_of(int, shard.pool, SQL.count_schedules, namespace=namespace, rows_max=rows_max)


async def replace(tx: Transaction, schedule: Schedule, look_at: datetime | None) -> None:
    """Write what was changed of a schedule, and when its next slot is to be decided."""
    schedule.updated_at = await value_of(
        datetime,
        tx,
        SQL.replace_schedule,
        no=schedule.no,
        spec=schedule.spec,
        action=schedule.action,
        plan=schedule.plan,
        overlap=schedule.overlap,
        catchup_s=schedule.catchup_s,
        jitter_s=schedule.jitter_s,
        paused=schedule.paused,
        reason=schedule.reason,
        next_at=schedule.next_at,
        look_at=look_at,
    )


async def advance(tx: Transaction, schedule: Schedule, look_at: datetime | None) -> None:
    """Write the next slot, when it is to be decided, and the number of the last tick."""
    await tx.fetch(
        SQL.advance_schedule, no=schedule.no, next_at=schedule.next_at, look_at=look_at, ticks=schedule.ticks
    )


async def put_off(shard: Shard, no: int, delay_s: float) -> None:
    """Look at this one again in `delay_s`."""
    await shard.pool.fetch(SQL.put_off_schedule, no=no, delay_s=delay_s)


async def delete(tx: Transaction, no: int) -> None:
    """Delete a schedule with its ticks and what waits."""
    await tx.fetch(SQL.delete_schedule, no=no)


async def now(tx: Transaction) -> datetime:
    """The shard's time."""
    return await value_of(datetime, tx, SQL.schedule_clock)


async def standing(tx: Transaction, no: int, runs_max: int) -> ScheduleStanding:
    """How a schedule stands; runs that have ended are forgotten, so many at a time."""
    await tx.fetch(SQL.prune_runs, no=no, rows_max=runs_max)
    row = await tx.row(SQL.situation, no=no)
    at, unfinished, buffered, *rest = tuple(row)
    waiting = WaitingSlot(*rest[:6]) if rest[0] is not None else None
    last = LastTick(*rest[6:]) if rest[6] is not None else None
    return ScheduleStanding(at, unfinished, buffered, waiting, last)


async def unfinished_runs(tx: Transaction, no: int, rows_max: int) -> list[DagNo]:
    """The numbers of DAGs that are runs of a schedule and go on."""
    return [dag_no for (dag_no,) in await tx.fetch(SQL.unfinished_runs, no=no, rows_max=rows_max)]


async def insert_tick(
    tx: Transaction, schedule_no: int, tick: Tick, *, request: str | None, kept: int
) -> datetime:
    """Note what became of slots; when that was. Of a schedule's ticks the last so many are kept."""
    return await value_of(
        datetime,
        tx,
        SQL.insert_tick,
        schedule_no=schedule_no,
        no=tick.no,
        kind=tick.kind,
        at=tick.at,
        through=tick.through,
        slots=tick.slots,
        decision=tick.decision,
        reason=tick.reason,
        run=tick.run,
        request=request,
        kept=kept,
    )


async def extend_tick(tx: Transaction, schedule_no: int, no: int, through: datetime, slots: int) -> None:
    """More slots have become of the same."""
    await tx.fetch(SQL.extend_tick, schedule_no=schedule_no, no=no, through=through, slots=slots)


async def start_tick(
    tx: Transaction, schedule_no: int, no: int, decision: str, reason: str | None, run: str | None
) -> None:
    """What was buffered has had its turn."""
    await tx.fetch(SQL.start_tick, schedule_no=schedule_no, no=no, decision=decision, reason=reason, run=run)


async def insert_run(tx: Transaction, schedule_no: int, dag_no: DagNo) -> None:
    """A run is at work."""
    await tx.fetch(SQL.insert_run, schedule_no=schedule_no, dag_no=dag_no)


async def insert_waiting(
    tx: Transaction,
    schedule_no: int,
    kind: str,
    ats: Sequence[datetime],
    overlap: str,
    *,
    tick: int | None = None,
    request: str | None = None,
) -> None:
    """Slots that wait for their turn."""
    await tx.fetch(
        SQL.insert_waiting_slots,
        schedule_no=schedule_no,
        kind=kind,
        ats=ats,
        overlap=overlap,
        tick=tick,
        request=request,
    )


async def count_waiting(tx: Transaction, schedule_no: int, rows_max: int) -> int:
    """How many slots of backfills wait for their turn, counted up to `rows_max`."""
    return await value_of(int, tx, SQL.count_waiting_slots, schedule_no=schedule_no, rows_max=rows_max)


async def delete_waiting(tx: Transaction, schedule_no: int, no: int) -> None:
    """A slot has had its turn."""
    await tx.fetch(SQL.delete_waiting_slot, schedule_no=schedule_no, no=no)


async def tick_of_request(tx: Transaction, schedule_no: int, request: str) -> Tick | None:
    """What became of a call before."""
    row = await tx.row(SQL.tick_of_request, schedule_no=schedule_no, request=request)
    return Tick(*row) if row else None


async def slots_of_request(tx: Transaction, schedule_no: int, request: str) -> int:
    """How many slots a backfill has brought before."""
    return await value_of(int, tx, SQL.slots_of_request, schedule_no=schedule_no, request=request)


async def ticks(shard: Shard, schedule_no: int, before_no: int, rows_max: int) -> list[Tick]:
    """What became of slots, newest first."""
    rows = await shard.pool.fetch(SQL.ticks_page, schedule_no=schedule_no, before_no=before_no, rows_max=rows_max)
    return [Tick(*row) for row in rows]


async def soon(shard: Shard, *, ahead_s: float, rows_max: int) -> list[NextSchedule]:
    """Schedules with a slot that is due, or is within `ahead_s`."""
    return await rows_of(NextSchedule, shard.pool, SQL.next_schedules, ahead_s=ahead_s, rows_max=rows_max)


async def turns(shard: Shard, after_no: int, rows_max: int) -> WaitingTurns:
    """Schedules after a number that have slots waiting."""
    rows = await rows_of(WaitingTurn, shard.pool, SQL.turns_of_waiting, after_no=after_no, rows_max=rows_max)
    due = [(row.schedule_no, row.namespace) for row in rows if row.due]
    return WaitingTurns(due, rows[-1].schedule_no if rows else after_no, len(rows) == rows_max)
