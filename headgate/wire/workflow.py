"""Runs of workflows, as they travel."""

from datetime import datetime
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from headgate.wire.base import (
    INT32_MAX,
    TTL_S_MAX,
    WAIT_S_MAX,
    ErrorText,
    Json,
    JsonObject,
    Key,
    Label,
    MaybeNone,
    Priority,
    Request,
    Response,
    fault,
)
from headgate.wire.names import PathName, WorkflowType, WorkflowVersion, check_version

# Of the text that a record shows of its command; longer than the SDK makes it, since bytes are not characters.
SHOWN_CHARS_MAX: Final = 500
EVENTS_MAX: Final = 2**53
REPLACED_MAX: Final = 100
CommandKind = Literal[
    "item", "sub", "child", "start", "send", "timer", "step", "marker", "cancel", "publish", "answer", "end"
]

RunState = Literal["running", "succeeded", "failed", "cancelled", "continued"]
OVER: Final = frozenset({"succeeded", "failed", "cancelled", "continued"})


class Stuck(Response):
    """Why the last turn of a run came to nothing, how often in a row, and since when."""

    code: str
    error: str
    attempts: int = 1
    since: datetime | None = None
    event: int | None = None
    expected: str | None = None
    got: str | None = None
    line: str | None = None


class WorkflowRun(Response):
    """A run. `id` is the workflow's, `run` this run's own, which is its DAG's.

    parked: it waits, and nobody has it. continued_as: the run that goes on under the same id.
    """

    id: str
    run: str
    type: str
    state: RunState = "running"
    version: str | None = None
    parked: bool = False
    paused: bool = False
    stuck: Stuck | None = None
    published: dict[str, Any] = Field(default_factory=dict)
    seen: int = 0
    turn: int = 0
    last_event: int = 0
    resets: int = 0
    parent: str | None = None
    continued_as: str | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    existing: bool = False
    output: Any = None
    error: str | None = None

    @property
    def finished(self) -> bool:
        return self.state in OVER


class Accepted(Response):
    """A signal was taken, or one of its id is there already."""

    status: Literal["accepted", "duplicate"]


class SignalSpec(Request):
    """Something that a run is told. The same `id` again adds nothing."""

    name: Key
    data: Json = None
    id: Key | None = None


class UpdateSpec(SignalSpec):
    """A signal that the run's code is to answer; `wait_s`: for so long the call waits for the answer."""

    id: PathName | None = None
    wait_s: Annotated[float, Field(ge=0, le=WAIT_S_MAX)] = 0.0


class RunUpdate(Response):
    """What became of an update. It has failed, too, if its run ended before it was answered."""

    id: str
    status: Literal["pending", "done", "failed", "rejected"]
    output: Any = None
    error: str | None = None


class StartWorkflow(Request):
    """A run to begin. Without an `id` one is made. `reuse` says whether the id of a run that is over may have
    another one, else 409 `id_in_use`. Without `reuse` it may after one that failed or was cancelled, and the same
    type and input again answer the one that has succeeded. `signal` is told in the same transaction. With a
    `version` only workers of that one go on with the run. The same `request_id` again begins no other run, also
    where that one is over."""

    type: WorkflowType
    id: PathName | None = None
    input: Json = None
    version: WorkflowVersion | None = None
    deadline_s: Annotated[float, Field(gt=0, le=TTL_S_MAX)] | None = None
    priority: Priority = 0
    metadata: JsonObject | None = None
    reuse: Literal["never", "failed", "always"] | None = None
    signal: SignalSpec | None = None
    request_id: PathName | None = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        check_version(self.type, self.version)
        return self


class Named(Request):
    """A call that may be sent once more: the same `id` again is the same call."""

    id: PathName | None = None


class Reasoned(Named):
    reason: ErrorText | None = None


class ResumeRun(Reasoned):
    """`outputs`: of a run that has failed or is stuck, what its code is told in the place of what these calls,
    steps, graphs and children came to, by their keys. `retry`: which of those that did not succeed are done once
    more, and told when they end. The same `id` again changes nothing."""

    outputs: Annotated[dict[Key, Json], Field(max_length=REPLACED_MAX)] = Field(default_factory=dict)
    retry: Annotated[list[Key], Field(max_length=REPLACED_MAX)] = Field(default_factory=list)


class ResetRun(Reasoned):
    """Code goes on as when it was told of `event`. The same `id` again changes nothing."""

    event: Annotated[int, Field(ge=1, le=EVENTS_MAX)]


class MoveRun(Named):
    """Whose runs it is to be: workers of this version go on with it, or, with null, workers of any."""

    version: WorkflowVersion | None


class TurnCommand(Request):
    """What code asks for at event `after`; what `spec` holds depends on `kind`."""

    kind: CommandKind
    key: str
    after: Annotated[int, Field(ge=1, le=EVENTS_MAX)]
    fingerprint: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{16}$")]
    shown: Annotated[str, StringConstraints(max_length=SHOWN_CHARS_MAX)] = ""
    spec: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _named(self) -> Self:
        if (self.kind == "end") != (self.key == ""):
            raise fault("/key", "every command has one, but for an end")
        return self


class StepResult(Request):
    """How a step of a turn, or of one before, has ended."""

    key: Key
    state: Literal["succeeded", "failed"]
    output: Json = None
    error: ErrorText | None = None


class StuckReport(Request):
    """Why a turn came to nothing."""

    code: Label
    error: ErrorText
    event: Annotated[int, Field(ge=0, le=EVENTS_MAX)] | None = None
    expected: ErrorText | None = None
    got: ErrorText | None = None
    line: ErrorText | None = None


class TakeTurn(Request):
    """A decider's turn. With `stuck` nothing of the run is written but that."""

    generation: Annotated[int, Field(ge=1, le=INT32_MAX)]
    secret: Annotated[str, StringConstraints(max_length=200)]
    turn: Annotated[int, Field(ge=1, le=EVENTS_MAX)]
    last: Annotated[int, Field(ge=0, le=EVENTS_MAX)]
    seen: Annotated[int, Field(ge=0, le=EVENTS_MAX)] = 0
    commands: MaybeNone[TurnCommand] | None = None
    results: MaybeNone[StepResult] | None = None
    received: dict[Key, Annotated[int, Field(ge=0, le=INT32_MAX)]] = Field(default_factory=dict)
    by: JsonObject = Field(default_factory=dict)
    stuck: StuckReport | None = None
    wait_s: Annotated[float, Field(ge=0, le=WAIT_S_MAX)] = 0.0


class RunEvent(Response):
    """An event of a run: see docs/workflows.md."""

    event: int
    at: datetime
    kind: str
    key: str = ""
    generation: int = 1
    state: str
    output: Any = None
    error: str | None = None
    data: Any = None
    after: int | None = None
    reset: int | None = None
    void: int | None = None


class RunHistory(Response):
    """A page of a run's events; `seen`, `turn` and `markers` are those of the whole run as it is."""

    events: list[RunEvent]
    seen: int
    turn: int
    markers: dict[str, int] = Field(default_factory=dict)
    more: bool = False


class TurnTaken(Response):
    """What a decider is told: it goes on with `events`, or the run is parked, or it has ended."""

    turn: int
    events: list[RunEvent] = Field(default_factory=list)
    more: bool = False
    parked: bool = False
    ended: bool = False
