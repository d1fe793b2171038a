"""The statements about runs of workflows, bound. A `Transaction` argument stands for the lock of the DAG's row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from services.dag.model import Dag, DagNo, Node
from services.dag.store.dags import SQL
from shared.postgres.connections import Pool, Transaction
from shared.postgres.rows import map_of, value_of, value_or_none
from shared.shards.shard_map import Shard

# Before the name of what began a run among the ids of its signals, which have no such character.
_REQUESTED = "\x02"


@dataclass(slots=True)
class Run:
    """A run's row; fields in the order of the columns that `sql/runs.sql` reads. `received`, `markers`, `stuck`
    and `output` are JSON text."""

    dag_no: DagNo
    dag_id: str
    namespace: str
    workflow_id: str
    type: str
    version: str | None
    priority: int
    state: str
    secret_hash: bytes
    turn: int
    turn_digest: bytes | None
    seen: int
    last_event: int
    last_told: int
    open_steps: list[str]
    signals: int
    received: str
    received_total: int
    markers: str
    cancel_requested: bool
    stuck: str | None
    stuck_attempts: int
    stuck_since: datetime | None
    output: str | None
    error: str | None
    continued_as: str | None
    resets: int

    @property
    def over(self) -> bool:
        """True once its code has ended, or was ended."""
        return self.state != "running"


@dataclass(slots=True)
class ShownRun:
    """A run, and what surrounds it."""

    run: Run
    parked: bool
    parent: str | None
    paused: bool
    started_at: datetime
    finished_at: datetime | None
    published: dict[str, str] = field(default_factory=dict)


class StartedRun(NamedTuple):
    """What a run was begun with, and its state."""

    type: str
    state: str
    input: str | None
    # DAG, node and generation that it runs for.
    parent: tuple[str | None, str | None, int | None]


class Decider(NamedTuple):
    """A run's first node."""

    item_id: str
    state: str
    generation: int


class StoredEvent(NamedTuple):
    """A row of a run's log; `output` and `data` are JSON text."""

    event: int
    at: datetime | None
    kind: str
    key: str
    generation: int
    state: str
    output: str | None = None
    error: str | None = None
    data: str | None = None
    after: int | None = None
    reset: int | None = None
    void: int | None = None


async def take_id(tx: Transaction, namespace: str, workflow_id: str, dag_id: str) -> str | None:
    """Let a new id mean this run. One that has a run keeps it: then the id of that, locked from now on."""
    while await tx.row(SQL.take_id, namespace=namespace, id=workflow_id, dag_id=dag_id) is None:
        row = await tx.row(SQL.lock_id, namespace=namespace, id=workflow_id)
        if row is not None:  # else its run was dropped meanwhile, and the id with it
            return str(row[0])
    return None


async def started(tx: Transaction, dag_id: str) -> StartedRun | None:
    """What a run was begun with, and its state; None where there is none."""
    row = await tx.row(SQL.started_run, dag_id=dag_id)
    if row is None:
        return None
    type_, state, given, *parent = row
    return StartedRun(type_, state, given, tuple(parent))


async def is_dag(tx: Transaction, dag_id: str) -> bool:
    """Whether a DAG has this id."""
    return await tx.row(SQL.is_dag, dag_id=dag_id) is not None


async def dag_of_id(shard: Shard, namespace: str, workflow_id: str) -> str | None:
    """The last run of an id."""
    return await value_or_none(str, shard.pool, SQL.dag_of_id, namespace=namespace, id=workflow_id)


async def point_id(tx: Transaction, namespace: str, workflow_id: str, dag_id: str) -> None:
    """Let an id mean another run."""
    await tx.fetch(SQL.point_id, namespace=namespace, id=workflow_id, dag_id=dag_id)


async def begin(
    tx: Transaction,
    dag: Dag,
    *,
    workflow_id: str,
    type: str,
    version: str | None,
    input: str | None,
    priority: int,
    secret_hash: bytes,
    data: str,
    request: str | None,
) -> None:
    """Make a DAG of one node a run, which begins with its first event; by this request, if it has a name."""
    await tx.fetch(
        SQL.begin_run,
        dag_no=dag.no,
        dag_id=dag.id,
        namespace=dag.namespace,
        workflow_id=workflow_id,
        type=type,
        version=version,
        input=input,
        priority=priority,
        secret_hash=secret_hash,
        data=data,
        request=None if request is None else _REQUESTED + request,
    )


async def was_started_by(tx: Transaction, dag_id: str, request: str) -> bool:
    """Whether this request began the run that a DAG is, or lately one that went on as it."""
    return await tx.row(SQL.was_started_by, dag_id=dag_id, request=_REQUESTED + request) is not None


async def of(tx: Transaction, dag_no: DagNo) -> Run:
    """The run of a locked DAG that is one."""
    return Run(*await tx.row(SQL.run_of, dag_no=dag_no))


async def of_dag(shard: Shard, dag_id: str, namespace: str) -> Run | None:
    """The run that a DAG is; None where there is none."""
    row = await shard.pool.row(SQL.run_of_dag, dag_id=dag_id, namespace=namespace)
    return None if row is None else Run(*row)


async def lock(tx: Transaction, namespace: str, workflow_id: str) -> Dag | None:
    """Lock the DAG of the last run of an id."""
    row = await tx.row(SQL.lock_dag_of_workflow, namespace=namespace, id=workflow_id)
    return None if row is None else Dag(*row)


async def decider(tx: Transaction, dag_no: DagNo) -> Decider:
    """The first node of a locked run."""
    return Decider(*await tx.row(SQL.decider_of, dag_no=dag_no))


async def for_turn(tx: Transaction, dag_no: DagNo, keys: Sequence[str]) -> tuple[Run, Decider, list[str]]:
    """The run of a locked DAG, its first node, and which of these keys it has asked for before."""
    *run, item_id, state, generation, known = await tx.row(SQL.run_for_turn, dag_no=dag_no, keys=keys)
    return Run(*run), Decider(item_id, state, generation), known


async def deciders(tx: Transaction, dag_nos: Iterable[DagNo]) -> list[tuple[Node, bool]]:
    """The first nodes of runs that are not over, and whether there is something that their code has not seen."""
    rows = await tx.fetch(SQL.deciders, dag_nos=sorted(dag_nos))
    return [(Node(*columns), behind) for *columns, behind in rows]


async def write_turn(
    tx: Transaction,
    run: Run,
    events: Sequence[StoredEvent],
    published: Sequence[tuple[str, str, int]],
    made_by: str | None,
) -> None:
    """Write a run's row, its new events, and what it shows (key, JSON text, event). It is not stuck any more."""
    await tx.fetch(
        SQL.write_turn,
        dag_no=run.dag_no,
        first_event=events[0].event if events else 0,
        kinds=[each.kind for each in events],
        keys=[each.key for each in events],
        states=[each.state for each in events],
        outputs=[each.output for each in events],
        errors=[each.error for each in events],
        datas=[each.data for each in events],
        afters=[each.after for each in events],
        last_event=run.last_event,
        last_told=run.last_told,
        turn=run.turn,
        digest=run.turn_digest,
        seen=run.seen,
        open_steps=run.open_steps,
        received=run.received,
        received_total=run.received_total,
        markers=run.markers,
        made_by=made_by,
        state=run.state,
        output=run.output,
        error=run.error,
        published_keys=[key for key, _, _ in published],
        published_values=[value for _, value, _ in published],
        published_events=[event for _, _, event in published],
    )


async def stick(tx: Transaction, run: Run) -> int:
    """Write that a run is stuck; how often in a row."""
    values = {"dag_no": run.dag_no, "turn": run.turn, "digest": run.turn_digest, "stuck": run.stuck}
    return await value_of(int, tx, SQL.stick, **values)


async def pin(tx: Transaction, run: Run, version: str | None) -> None:
    """Only workers of this version go on with a run; with None, those of any."""
    run.version = version
    await tx.fetch(SQL.pin_run, dag_no=run.dag_no, version=version)


async def unstick(tx: Transaction, run: Run) -> None:
    """A run is to be tried anew; how often it failed is kept until a turn is written."""
    await tx.fetch(SQL.unstick, dag_no=run.dag_no)


async def renew_decider(
    tx: Transaction, dag_no: DagNo, *, state: str, item_id: str, secret_hash: bytes, topic: str, item: str
) -> int:
    """Begin the decider's next generation, in this state; its number."""
    values = {"dag_no": dag_no, "state": state, "item_id": item_id, "secret_hash": secret_hash}
    values |= {"topic": topic, "item": item}
    return await value_of(int, tx, SQL.renew_decider, **values)


async def append_ends(tx: Transaction, node_nos: Sequence[int]) -> None:
    """Tell runs that these nodes of theirs have ended, as is written."""
    await tx.fetch(SQL.append_ends, node_nos=node_nos)


async def request_cancel(tx: Transaction, dag_no: DagNo, data: str, grace_s: float) -> None:
    """Tell a run's code that it is to end."""
    await tx.fetch(SQL.request_cancel, dag_no=dag_no, data=data, grace_s=grace_s)


async def untold_cancel(tx: Transaction, run: Run) -> str | None:
    """With what a run was asked to end, where its code has not been told so."""
    row = await tx.row(SQL.untold_cancel, dag_no=run.dag_no)
    return None if row is None else str(row["data"])


async def has_signal(tx: Transaction, run: Run, signal_id: str) -> bool:
    """Whether a signal of this id was taken."""
    return await tx.row(SQL.has_signal, dag_no=run.dag_no, id=signal_id) is not None


async def asks_by_id(shard: Shard, namespace: str, workflow_id: str, signal_id: str) -> bool | None:
    """Whether the signal of this id asks, that a workflow's run was told; None where it was told none."""
    row = await shard.pool.row(SQL.told_by_id, namespace=namespace, workflow_id=workflow_id, id=signal_id)
    return None if row is None else bool(row["asks"])


async def add_signal(
    tx: Transaction, dag_no: DagNo, name: str, signal_id: str, data: str, *, asks: bool = False
) -> bool:
    """Tell a run a signal; if it `asks`, its sender waits for an answer. False where one of this id was told."""
    values = {"name": name, "id": signal_id, "data": data, "asks": asks}
    return await tx.row(SQL.add_signal, dag_no=dag_no, **values) is not None


async def answer_updates(tx: Transaction, dag_no: DagNo, answers: Mapping[str, str]) -> bool:
    """Keep the first answer to each of these updates (JSON text by id); False where one was never sent."""
    values = {"ids": list(answers), "answers": list(answers.values())}
    return await value_of(int, tx, SQL.answer_updates, dag_no=dag_no, **values) == len(answers)


class SentSignal(NamedTuple):
    """Whether a signal's sender waits for an answer, and what that is, as JSON text."""

    asks: bool
    answer: str | None


async def update_of(shard: Shard, dag_no: DagNo, signal_id: str) -> SentSignal | None:
    """The signal of this id that a run was sent; None where there is none."""
    row = await shard.pool.row(SQL.update_of, dag_no=dag_no, id=signal_id)
    return None if row is None else SentSignal(*row)


async def move_signals(tx: Transaction, run: Run, dag_no: DagNo, ids_kept_s: float) -> None:
    """Tell a run that has just begun what another one has not received, in the order in which that was told."""
    await tx.fetch(
        SQL.move_signals, dag_no=run.dag_no, received=run.received, to_dag_no=dag_no, ids_kept_s=ids_kept_s
    )


async def carry_deadline(tx: Transaction, run: Run, deadline_at: datetime | None, dag_no: DagNo) -> None:
    """A run goes on as another one, which has just begun and has the same deadline; with None that which it had
    before it was asked to end."""
    await tx.fetch(SQL.carry_deadline, dag_no=run.dag_no, deadline_at=deadline_at, to_dag_no=dag_no)


async def set_continued(tx: Transaction, run: Run, dag_id: str) -> None:
    """A run goes on as another one."""
    run.continued_as = dag_id
    await tx.fetch(SQL.set_continued, dag_no=run.dag_no, dag_id=dag_id)


async def take_back_end(tx: Transaction, run: Run) -> None:
    """A run that has failed is not over any more, and is told of what was cancelled as it failed."""
    await tx.fetch(SQL.take_back_end, dag_no=run.dag_no)
    await tx.fetch(SQL.append_missed_ends, dag_no=run.dag_no)


async def end(tx: Transaction, run: Run, state: str, error: str | None) -> None:
    """A run is over, and its code was not asked."""
    await tx.fetch(SQL.end_run, dag_no=run.dag_no, state=state, error=error)


async def end_dag_as(tx: Transaction, dag: Dag) -> None:
    """Write how a DAG is to end, once all of it has."""
    await tx.fetch(SQL.end_dag_as, dag_no=dag.no, ends_as=dag.ends_as)


async def set_decider_end(tx: Transaction, run: Run) -> None:
    """The decider's node has the run's output and error."""
    await tx.fetch(SQL.set_decider_end, dag_no=run.dag_no, output=run.output, error=run.error)


async def published_sizes(tx: Transaction, dag_no: DagNo) -> dict[str, int]:
    """How many bytes each value takes that a run shows."""
    return await map_of(str, int, tx, SQL.published_keys, dag_no=dag_no)


class Page(NamedTuple):
    """A part of a log, and whether there is more."""

    events: list[StoredEvent]
    more: bool = False


async def history(source: Transaction | Pool, dag_no: DagNo, after: int, *, rows_max: int, bytes_max: int) -> Page:
    """Events behind `after`; one at least, if there is any."""
    rows = await source.fetch(SQL.history, dag_no=dag_no, after=after, rows_max=rows_max, bytes_max=bytes_max)
    events = [StoredEvent(*tuple(row)[:-1]) for row in rows]
    return Page(events, bool(rows) and events[-1].event < rows[-1]["last_event"])


async def output_of(shard: Shard, dag_no: DagNo) -> str | None:
    """What a run has come to, as JSON text."""
    row = await shard.pool.row(SQL.run_of, dag_no=dag_no)
    return Run(*row).output if row else None


async def error_of(shard: Shard, dag_no: DagNo) -> str | None:
    """Why a run has not succeeded."""
    row = await shard.pool.row(SQL.run_of, dag_no=dag_no)
    return Run(*row).error if row else None


async def shown(shard: Shard, dag_ids: Sequence[str], namespace: str) -> list[ShownRun]:
    """Runs as people see them; other DAGs are left out."""
    found: list[ShownRun] = []
    for row in await shard.pool.fetch(SQL.shown_runs, dag_ids=dag_ids, namespace=namespace):
        *run, parked, parent, paused, started_at, finished_at, keys, values = row
        published = dict(zip(keys, values, strict=True))
        found.append(ShownRun(Run(*run), parked, parent, paused, started_at, finished_at, published))
    return found


async def bytes_of(shard: Shard, dag_ids: Sequence[str]) -> dict[str, int]:
    """About how many bytes runs take as people see them."""
    rows = await shard.pool.fetch(SQL.bytes_of_runs, dag_ids=dag_ids)
    return {row["dag_id"]: row["bytes"] for row in rows}


async def page(
    shard: Shard,
    namespace: str,
    *,
    type: str | None,
    state: str | None,
    version: str | None,
    stuck: bool,
    before_id: str,
    rows_max: int,
) -> list[str]:
    """Ids of runs, newest first."""
    given = {"namespace": namespace, "before_id": before_id, "rows_max": rows_max}
    if stuck:
        rows = await shard.pool.fetch(SQL.list_stuck_runs, type=type, version=version, **given)
    elif type is not None:
        rows = await shard.pool.fetch(SQL.list_runs_by_type, type=type, state=state, version=version, **given)
    elif state is not None:
        rows = await shard.pool.fetch(SQL.list_runs_by_state, state=state, version=version, **given)
    else:
        rows = await shard.pool.fetch(SQL.list_runs, version=version, **given)
    return [dag_id for (dag_id,) in rows]
