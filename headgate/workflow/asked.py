"""What code has asked for, until it ends."""

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

from headgate.workflow.errors import NodeFailed
from headgate.workflow.guard import lifted
from headgate.workflow.loop import TimerHandle

# Makes a result of an output, which is one itself where there is none.
Decoded = Callable[[Any], Any] | None


class RunNode(NamedTuple):
    """Something that a run has asked for: a task (`item`), graph (`sub`), child, timer, step, start or send; and
    how far it is, as the run's code was told: `added`, succeeded, failed, cancelled or skipped."""

    kind: str
    state: str

    @property
    def ended(self) -> bool:
        return self.state != "added"


class Asked:
    """A node that the code has asked for and that has not ended, or was forked."""

    __slots__ = ("decoded", "ended", "error", "forked", "key", "kind", "output", "state", "timer", "waiters")

    def __init__(self, kind: str, key: str, forked: bool = False, timer: TimerHandle | None = None) -> None:
        self.kind = kind
        self.key = key
        self.forked = forked
        self.timer = timer
        self.decoded: Decoded = None
        self.ended = False
        self.state = ""
        self.output: Any = None
        self.error: str | None = None
        self.waiters: list[asyncio.Future[Any]] = []

    def outcome(self) -> Any:
        if self.state == "succeeded":
            if self.decoded is None:
                return self.output
            with lifted():  # a type is read where it is first needed, which imports
                return self.decoded(self.output)
        raise NodeFailed(self.key, self.state, self.error)
