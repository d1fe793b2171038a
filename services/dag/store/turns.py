"""The statements that read and write for several awake runs at once, bound."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import NamedTuple

from services.dag.model import DagNo, NewNode
from services.dag.store.dags import SQL
from services.dag.store.runs import StoredEvent
from shared.ids import ShardNo
from shared.shards.shard_map import Shard


class AwakeRun(NamedTuple):
    """A run of which a worker holds this generation of the decider, and has written this turn: which events there
    are behind `after`."""

    dag_no: DagNo
    generation: int
    turn: int
    after: int


class News(NamedTuple):
    """Events of a run, where its code is to be told of one. Not `is_awake`: it is over, paused, or has gone on."""

    is_awake: bool
    events: Sequence[StoredEvent] = ()
    more: bool = False


async def news(shard: Shard, asked: Sequence[AwakeRun], *, rows_max: int, bytes_max: int) -> list[News]:
    """What there is to be told to each of these runs; of each so many rows and bytes, one event at least."""
    values = zip(("dag_nos", "generations", "turns", "afters"), zip(*asked, strict=True), strict=True)
    rows = await shard.pool.fetch(SQL.news_of_runs, **dict(values), rows_max=rows_max, bytes_max=bytes_max)
    found = [News(is_awake=False)] * len(asked)
    events: dict[int, list[StoredEvent]] = {}
    for place, last_event, *row in rows:
        if row[0] is not None:
            events.setdefault(place, []).append(StoredEvent(*row))
            more = events[place][-1].event < last_event
            found[place - 1] = News(is_awake=True, events=events[place], more=more)
        else:
            found[place - 1] = News(is_awake=True)
    return found


class PlainTurn(NamedTuple):
    """A turn that asks for tasks, and for steps of which it has the results (key, state, output, error). By the
    places of its commands: keys, events, records; and of tasks, items' ids and nodes."""

    namespace: str
    dag_id: str
    generation: int
    secret_hash: bytes
    turn: int
    digest: bytes
    last: int
    seen: int
    received: str
    received_total: int
    made_by: str | None
    keys: list[str]
    afters: list[int]
    datas: list[str]
    item_ids: list[str | None]
    nodes: list[NewNode | None]
    results: list[tuple[str, str, str | None, str | None]]


class TakenTurn(NamedTuple):
    """A turn that was written: its run, the number within the DAG of the first of its tasks, and what code is to
    be told of, if of anything, with the turn's own records."""

    dag_no: DagNo
    next_n: int
    events: Sequence[StoredEvent] = ()
    more: bool = False


async def take_turns(
    shard: Shard,
    plain: Sequence[PlainTurn],
    *,
    nodes_max: int,
    unfinished_max: int,
    overdue_s: float,
    rows_max: int,
    bytes_max: int,
) -> list[TakenTurn | None]:
    """Write turns of runs; None for each that is to be taken otherwise, of which nothing was."""
    commands = [(place, nth) for place, each in enumerate(plain, 1) for nth in range(len(each.keys))]
    of_each = [(plain[place - 1], nth) for place, nth in commands]
    nodes = [each.nodes[nth] for each, nth in of_each]
    results = [
        (place, nth, result) for place, each in enumerate(plain, 1) for nth, result in enumerate(each.results)
    ]
    item_nths = [nth for each in plain for nth in _places(each.nodes)]
    rows = await shard.pool.fetch(
        SQL.take_turns,
        dag_ids=[each.dag_id for each in plain],
        namespaces=[each.namespace for each in plain],
        generations=[each.generation for each in plain],
        secret_hashes=[each.secret_hash for each in plain],
        turns=[each.turn for each in plain],
        digests=[each.digest for each in plain],
        lasts=[each.last for each in plain],
        seens=[each.seen for each in plain],
        receiveds=[each.received for each in plain],
        received_totals=[each.received_total for each in plain],
        made_bys=[each.made_by for each in plain],
        after_mins=[min(each.afters, default=None) for each in plain],
        after_maxs=[max(each.afters, default=None) for each in plain],
        item_counts=[sum(node is not None for node in each.nodes) for each in plain],
        command_counts=[len(each.keys) for each in plain],
        result_counts=[len(each.results) for each in plain],
        command_places=[place for place, _ in commands],
        command_nths=[nth for _, nth in commands],
        item_nths=item_nths,
        command_keys=[each.keys[nth] for each, nth in of_each],
        command_afters=[each.afters[nth] for each, nth in of_each],
        command_datas=[each.datas[nth] for each, nth in of_each],
        item_ids=[each.item_ids[nth] for each, nth in of_each],
        topics=[None if node is None else node.topic for node in nodes],
        fingerprints=[None if node is None else node.fingerprint for node in nodes],
        items=[None if node is None else node.item for node in nodes],
        result_places=[place for place, _, _ in results],
        result_nths=[nth for _, nth, _ in results],
        result_keys=[key for _, _, (key, *_) in results],
        result_states=[state for _, _, (_, state, *_) in results],
        result_outputs=[output for _, _, (_, _, output, _) in results],
        result_errors=[error for _, _, (*_, error) in results],
        nodes_max=nodes_max,
        unfinished_max=unfinished_max,
        overdue_s=overdue_s,
        rows_max=rows_max,
        bytes_max=bytes_max,
    )
    taken: list[TakenTurn | None] = [None] * len(plain)
    events: dict[int, list[StoredEvent]] = {}
    for place, dag_no, next_n, last_event, *row in rows:
        if row[0] is None:
            taken[place - 1] = TakenTurn(dag_no, next_n)
        else:
            events.setdefault(place, []).append(StoredEvent(*row))
            taken[place - 1] = TakenTurn(dag_no, next_n, events[place], events[place][-1].event < last_event)
    return taken


class TakenSignal(NamedTuple):
    """Whether a signal was new; and, if so, its run, its decider's generation and item's id, and that item as the
    node keeps it, where it was parked and is to be delivered now."""

    is_new: bool
    dag_no: DagNo
    dag_id: str
    generation: int
    item_id: str
    item: str | None


async def take_signal(
    shard: Shard,
    namespace: str,
    workflow_id: str,
    *,
    name: str,
    signal_id: str,
    data: str,
    asks: bool,
    unread_max: int,
    id_age_s: float,
    taking: Iterable[ShardNo] | None,
    overdue_s: float,
) -> TakenSignal | None:
    """Tell a run a signal; None where it is to be taken otherwise, and nothing was done. Its decider's item may be
    of the queue's shards that are `taking` items."""
    row = await shard.pool.row(
        SQL.take_signal,
        namespace=namespace,
        workflow_id=workflow_id,
        name=name,
        id=signal_id,
        data=data,
        asks=asks,
        unread_max=unread_max,
        id_age_s=id_age_s,
        tails=None if taking is None else [f"{number:03x}" for number in taking],
        overdue_s=overdue_s,
    )
    return None if row is None else TakenSignal(*row)


def _places(nodes: Sequence[NewNode | None]) -> Iterator[int | None]:
    """The place of each task among those of its turn; None for a step."""
    numbers = count()
    return (None if node is None else next(numbers) for node in nodes)
