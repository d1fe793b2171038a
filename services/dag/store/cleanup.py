"""The statements about cleanup and compensation, bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from services.dag.model import Dag, NodeNo
from services.dag.store.archive import everywhere
from services.dag.store.dags import SQL, NodeInput
from shared.postgres.connections import Transaction
from shared.postgres.rows import column_of, map_of, rows_of
from shared.postgres.sql import Statement
from shared.shards.shard_map import Shard

# How a compensation stands that has no turn.
TO_PLAN: Final = 0
NOW: Final = -1
NOTHING_LEFT: Final = -2


class Unplanned(NamedTuple):
    """A compensation without a turn, and when what it undoes ran; None where nothing is left to be undone."""

    no: NodeNo
    state: str
    released_at: datetime | None
    finished_at: datetime | None


class UndoneSize(NamedTuple):
    """What a compensation undoes, whether that one's inputs are passed on too, and the bytes beside these."""

    no: NodeNo
    of_no: NodeNo
    has_inputs: bool
    bytes: int


class Undone(NamedTuple):
    """What a compensation undoes; output and payload of its success are JSON text."""

    no: NodeNo
    of_no: NodeNo
    key: str
    output: str | None
    payload: str | None


async def insert(tx: Transaction, dag: Dag, nodes: Mapping[NodeNo, int | None]) -> None:
    """New nodes, each with the number of the one that it compensates, or None."""
    await tx.fetch(SQL.insert_cleanups, dag_no=dag.no, node_nos=list(nodes), of_nos=list(nodes.values()))


async def set_cleanup(tx: Transaction, dag: Dag) -> None:
    """Write how far the DAG's cleanup is."""
    await tx.row(
        SQL.set_cleanup,
        no=dag.no,
        cleanups=dag.cleanups,
        cleanup_left=dag.cleanup_left,
        cleanup_phase=dag.cleanup_phase,
        verdict=dag.verdict,
    )


async def unplanned(tx: Transaction, dag: Dag) -> list[Unplanned]:
    """Compensations without a turn."""
    return await rows_of(Unplanned, tx, SQL.unplanned, dag_no=dag.no)


async def set_waves(tx: Transaction, dag: Dag, waves: Mapping[NodeNo, int | None]) -> None:
    """Give compensations their turns, or one of `TO_PLAN`, `NOW` and `NOTHING_LEFT`; None: it has none."""
    await tx.fetch(SQL.set_waves, dag_no=dag.no, node_nos=list(waves), waves=list(waves.values()))


async def plan_again(tx: Transaction, dag: Dag, nos: Sequence[NodeNo], *, undo_again: bool) -> None:
    """Let those of these nodes that are compensations be planned; with `undo_again` whatever they have undone."""
    await tx.fetch(SQL.plan_again, dag_no=dag.no, node_nos=nos, undo_again=undo_again)


async def note_done(tx: Transaction, nos: Sequence[NodeNo]) -> None:
    """Nodes begin new generations: remember what of them has succeeded and is still to be undone."""
    await tx.fetch(SQL.note_done, nos=nos)


async def note_undone(tx: Transaction, nos: Sequence[NodeNo]) -> None:
    """Compensations have succeeded."""
    await tx.fetch(SQL.note_undone, nos=nos)


async def undone_sizes(tx: Transaction, nos: Sequence[NodeNo], *, over: bool) -> list[UndoneSize]:
    """How much these compensations are told of what they undo; of a DAG that is `over` wherever its rows are."""
    return await rows_of(UndoneSize, tx, _where(SQL.undone_sizes, over), nos=nos)


async def undone(tx: Transaction, nos: Sequence[NodeNo], *, over: bool) -> list[Undone]:
    """What these compensations undo."""
    return await rows_of(Undone, tx, _where(SQL.undone, over), nos=nos)


async def given_sizes(tx: Transaction, nos: Sequence[NodeNo], *, over: bool) -> dict[NodeNo, int]:
    """About how many bytes the inputs of each of these nodes take as JSON."""
    return await map_of(NodeNo, int, tx, _where(SQL.inputs_sizes, over), nos=nos)


async def given(tx: Transaction, nos: Sequence[NodeNo], *, over: bool) -> list[NodeInput]:
    """Everything that these nodes were given."""
    return await rows_of(NodeInput, tx, _where(SQL.inputs, over), nos=nos)


def _where(statement: Statement, over: bool) -> Statement:
    return everywhere(statement) if over else statement


async def next_wave(tx: Transaction, dag: Dag) -> None:
    """It is the turn (`NOW`) of the next compensations."""
    await tx.fetch(SQL.next_wave, dag_no=dag.no)


async def take_wave(tx: Transaction, dag: Dag, wave: int, rows_max: int) -> list[NodeNo]:
    """Compensations that stand so; each is taken once."""
    return await column_of(NodeNo, tx, SQL.take_wave, dag_no=dag.no, wave=wave, rows_max=rows_max)


async def page(tx: Transaction, dag: Dag, after_no: int, rows_max: int) -> list[NodeNo]:
    """Cleanup nodes after `after_no`."""
    return await column_of(NodeNo, tx, SQL.cleanup_page, dag_no=dag.no, after_no=after_no, rows_max=rows_max)


async def numbers(tx: Transaction, dag: Dag) -> set[NodeNo]:
    """Every cleanup node and compensation of a DAG."""
    return set(await column_of(NodeNo, tx, SQL.cleanup_numbers, dag_no=dag.no))


async def again(tx: Transaction, dag: Dag) -> list[NodeNo]:
    """What runs again with ordinary nodes of a DAG that had ended."""
    return await column_of(NodeNo, tx, SQL.cleanups_again, dag_no=dag.no)


async def compensated_keys(shard: Shard, nos: Sequence[NodeNo]) -> dict[NodeNo, str]:
    """The key of what each of these compensates."""
    return await map_of(NodeNo, str, shard.pool, everywhere(SQL.compensated_keys), nos=nos)
