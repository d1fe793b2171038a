"""What a decider's turn asks for, and what a run begins with, as plain values; JSON as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from services.dag.model import DagNo, DagState, NewNode
from services.dag.queue_items import encode
from services.dag.store.runs import StoredEvent

# A run's end, as its DAG has it.
DAG_ENDS: Final[dict[str, DagState]] = {
    "succeeded": "succeeded",
    "failed": "failed",
    "cancelled": "cancelled",
    "continued": "succeeded",
}


class RunEnd(NamedTuple):
    """How a run's code has ended; with `input` it goes on as another run."""

    state: str
    output: str | None = None
    error: str | None = None
    input: str | None = None


class Command(NamedTuple):
    """What code asks for at event `after`: a `node` of the DAG, a `value` to show, the run's `end`, or else what
    its kind says. `data` is what the record of it holds, `answer` an update's id and what it is answered."""

    kind: str
    key: str
    after: int
    data: str
    node: NewNode | None = None
    value: str | None = None
    end: RunEnd | None = None
    answer: tuple[str, str] | None = None


class Result(NamedTuple):
    """How a step ended."""

    key: str
    state: str
    output: str | None = None
    error: str | None = None


class Turn(NamedTuple):
    """One turn; `digest` is of all of it but `wait_s`, for which its answer waits for events. With `stuck` nothing
    else is written."""

    generation: int
    secret: str
    turn: int
    last: int
    digest: bytes
    seen: int = 0
    commands: Sequence[Command] = ()
    results: Sequence[Result] = ()
    received: Mapping[str, int] | None = None
    made_by: str | None = None
    stuck: str | None = None
    wait_s: float = 0.0


class TurnAnswer(NamedTuple):
    """What the decider is told: it is parked, the run is over, or it goes on with these events. `waits`: none of
    that yet, the run has nothing to be told and is awake."""

    turn: int
    events: Sequence[StoredEvent] = ()
    more: bool = False
    parked: bool = False
    ended: bool = False
    waits: bool = False
    dag_no: DagNo = DagNo(0)


class Signal(NamedTuple):
    """Something that a run is told; `data` is JSON text. If it `asks`, its sender waits for an answer."""

    name: str
    id: str
    data: str
    asks: bool = False


class Update(NamedTuple):
    """What became of a signal that asks: pending, done, failed or rejected; `output` is JSON text."""

    id: str
    status: str
    output: str | None = None
    error: str | None = None


class Reset(NamedTuple):
    """To which event a run goes back, for what reason, and by whose token; the same id again changes nothing."""

    event: int
    id: str
    reason: str | None = None
    by: str | None = None


class Replacing(NamedTuple):
    """Other outputs, as JSON text, of what a run has asked for, by key, and what of it is to be done again; the
    same id again changes nothing."""

    outputs: Mapping[str, str]
    id: str
    retry: Sequence[str] = ()
    reason: str | None = None
    by: str | None = None


class NewRun(NamedTuple):
    """A run to begin; `input` and `metadata` are JSON text. `reuse`: when an id may have another run; None: after
    one that failed, and the same again is the same call. The same `request` again begins no other one."""

    type: str
    workflow_id: str
    input: str | None = None
    version: str | None = None
    deadline_s: float | None = None
    priority: int = 0
    metadata: str | None = None
    reuse: str | None = None
    signal: Signal | None = None
    request: str | None = None


def signal_data(signal: Signal) -> str:
    """What a signal's event says, as JSON text."""
    head = encode({"name": signal.name, "id": signal.id} | ({"asks": True} if signal.asks else {}))
    return f'{head[:-1]},"data":{signal.data}}}'
