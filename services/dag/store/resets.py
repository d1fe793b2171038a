"""The statements about runs whose code goes on from an earlier event, bound.

All of them under the lock of the DAG's row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from services.dag.store.dags import SQL
from services.dag.store.runs import Run
from shared.postgres.connections import Transaction
from shared.postgres.rows import value_of, value_or_none

_KEY = "reset:"
# Before the id of a reset among those of signals, which have no such character.
_NOTED = "\x01"


@dataclass(slots=True)
class Asked:
    """Something that a run has asked for at event `after`; of its end, if it has one, the event and what it came
    to. `output` is JSON text."""

    kind: str
    after: int
    generation: int = 1
    ended: int | None = None
    state: str = "added"
    output: str | None = None


class Replacement(NamedTuple):
    """An end that code is told of in the place of another; `output` is JSON text."""

    kind: str
    key: str
    generation: int
    output: str


async def has(tx: Transaction, run: Run, reset_id: str) -> bool:
    """Whether a reset of this id was done, of this run or lately of one that went on as this one."""
    found = await tx.row(SQL.has_reset, dag_no=run.dag_no, key=_KEY + reset_id, id=_NOTED + reset_id)
    return found is not None


async def note(tx: Transaction, run: Run, reset_id: str) -> None:
    """A reset of this id was done; the runs that this one goes on as know it, too."""
    await tx.fetch(SQL.note_reset, dag_no=run.dag_no, id=_NOTED + reset_id)


async def is_told(tx: Transaction, run: Run, event: int) -> bool:
    """Whether this is an event that code is told of."""
    return await tx.row(SQL.is_told, dag_no=run.dag_no, event=event) is not None


async def end_asked(tx: Transaction, run: Run) -> int | None:
    """The event at which the run's code has ended; None where it has not, or others have ended it."""
    return await value_or_none(int, tx, SQL.end_asked, dag_no=run.dag_no)


async def asked(tx: Transaction, run: Run, keys: Sequence[str]) -> dict[str, Asked]:
    """What the run has asked for under these keys."""
    found: dict[str, Asked] = {}
    for key, kind, event, generation, state, output, after in await tx.fetch(
        SQL.asked, dag_no=run.dag_no, keys=keys
    ):
        if after is not None:
            found[key] = Asked(kind, after)
        if key in found and state != "added":
            it = found[key]
            it.ended, it.generation, it.state, it.output = event, generation, state, output
    return found


async def count_void(tx: Transaction, run: Run, event: int, rows_max: int) -> int:
    """How many records `void_from` would find; no more than `rows_max`."""
    return await value_of(int, tx, SQL.count_void, dag_no=run.dag_no, event=event, rows_max=rows_max)


async def void_ends(tx: Transaction, run: Run, events: Sequence[int], number: int) -> None:
    """Code is not told of these ends any more."""
    await tx.fetch(SQL.void_ends, dag_no=run.dag_no, events=events, number=number)


async def void_from(tx: Transaction, run: Run, event: int, number: int) -> list[tuple[str, str]]:
    """What was asked for from this event on holds no more; kinds and keys of what that was."""
    rows = await tx.fetch(SQL.void_from, dag_no=run.dag_no, event=event, number=number)
    return [(kind, key) for kind, key in rows]


async def append_replaced(tx: Transaction, run: Run, ends: Sequence[Replacement]) -> None:
    """Tell the run's code these ends."""
    columns = zip(*ends, strict=True)
    kinds, keys, generations, outputs = map(list, columns)
    await tx.fetch(
        SQL.append_replaced,
        dag_no=run.dag_no,
        kinds=kinds,
        keys=keys,
        generations=generations,
        outputs=outputs,
    )


async def take_back_end(tx: Transaction, run: Run) -> None:
    """A run that is over goes on."""
    run.state = "running"
    await tx.fetch(SQL.take_back_any_end, dag_no=run.dag_no)


async def append_missed_ends(tx: Transaction, run: Run) -> None:
    """Tell a run that was over what has ended with it."""
    await tx.fetch(SQL.append_missed_ends, dag_no=run.dag_no)


async def append(
    tx: Transaction,
    run: Run,
    event: int,
    number: int,
    *,
    reset_id: str,
    data: str,
    markers: str,
    open_steps: Sequence[str],
    deadline_anew: bool,
) -> None:
    """Write that a run was reset to an event, for the so many-th time; its code has yet to see what follows."""
    await tx.fetch(
        SQL.append_reset,
        dag_no=run.dag_no,
        event=event,
        number=number,
        key=_KEY + reset_id,
        data=data,
        markers=markers,
        open_steps=open_steps,
        deadline_anew=deadline_anew,
    )
