"""Runs of workflows, as they travel."""

from datetime import datetime
from typing import Any, Final, Literal

from pydantic import Field

from headgate.wire.base import Response

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
    stuck: Stuck | None = None
    published: dict[str, Any] = Field(default_factory=dict)
    seen: int = 0
    turn: int = 0
    last_event: int = 0
    parent: str | None = None
    continued_as: str | None = None
    existing: bool = False
    output: Any = None
    error: str | None = None

    @property
    def finished(self) -> bool:
        return self.state in OVER


class Accepted(Response):
    """A signal was taken, or one of its id is there already."""

    status: Literal["accepted", "duplicate"]
