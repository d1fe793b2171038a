"""What code has asked for, until it ends."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from headgate.workflow.commands import Command
from headgate.workflow.errors import NodeFailed
from headgate.workflow.events import Event
from headgate.workflow.guard import lifted
from headgate.workflow.loop import TimerHandle

# Makes a result of an output, which is one itself where there is none.
Decoded = Callable[[Any], Any] | None


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


def nearest(event: Event, made: Mapping[tuple[str, str], Command]) -> Command | None:
    """What the code asks for in the place of what the history has."""
    same_kind = [command for command in made.values() if command.kind == event.kind]
    return next(iter(same_kind or made.values()), None)
