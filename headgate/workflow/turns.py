"""What a decider tells the service in one commit, and what it is told."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from headgate.workflow.errors import SHOWN_CHARS_MAX, Mismatch, TurnFailed
from headgate.workflow.events import Event


class TurnLost(Exception):
    """Another generation of the decider, or another worker, has gone on with the run: drop it, and ack."""


class RunFinished(Exception):
    """The run has ended: drop it, and ack."""


class Diverged(Exception):
    """A turn asks for what the run has otherwise; nothing of it is written (409 `history_mismatch`)."""


class Lease(NamedTuple):
    """What a delivery of a decider's item says: which run, which of its generations, and the secret of that
    one."""

    run: str
    generation: int
    secret: str


@dataclass(slots=True)
class Page:
    """A part of a history, in order. `seen` and `markers` are those of the whole run as it is now.

    turn: the number of the last turn that was written.
    more: whether events follow that the page had no room for.
    """

    events: list[Event]
    seen: int
    turn: int
    markers: Mapping[str, int] = field(default_factory=dict)
    more: bool = False


@dataclass(slots=True)
class Turn:
    """One commit.

    turn: its number, one more than the last one's; the same number with the same content is answered again.
    last: the last event that the worker has read; the answer goes on behind it.
    seen: the last event of which this turn, with those before, has every command.
    commands: as `Command.body` makes them, in the order of asking; each `after` is beyond the run's `seen` so far.
    results: how steps ended: `{key, state, output | error}`. A step may be among the commands too.
    received: how many signals of each name the code has received by `seen`, altogether.
    by: what replayed: versions of Python, of the core and of the workflow's code.
    stuck: instead of all that, why the turn came to nothing: `{code, error, event?, expected?, got?, line?}`.
    wait_s: how long to wait for further events before the run is parked.
    """

    generation: int
    secret: str
    turn: int
    last: int
    seen: int
    commands: Sequence[Mapping[str, Any]] = ()
    results: Sequence[Mapping[str, Any]] = ()
    received: Mapping[str, int] = field(default_factory=dict)
    by: Mapping[str, Any] = field(default_factory=dict)
    stuck: Mapping[str, Any] | None = None
    wait_s: float = 0.0

    def body(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"generation": self.generation, "secret": self.secret, "turn": self.turn}
        fields["last"] = self.last
        if self.stuck is not None:
            return fields | {"stuck": dict(self.stuck)}
        lists: dict[str, Any] = {"commands": list(self.commands), "results": list(self.results)}
        lists |= {"received": dict(self.received), "by": dict(self.by)}
        return {**fields, "seen": self.seen, **{name: value for name, value in lists.items() if value}} | (
            {"wait_s": self.wait_s} if self.wait_s else {}
        )


@dataclass(slots=True)
class TurnAnswer:
    """Parked: ack the item; a later event delivers the next generation's. Otherwise go on with `events`, which
    may be none yet: then the run waits for steps of this turn's. `more`: there are further ones in the history."""

    turn: int
    events: list[Event] = field(default_factory=list)
    parked: bool = False
    ended: bool = False
    more: bool = False


class Runs(Protocol):
    """The service, as a decider needs it.

    Raises:
        TurnLost, RunFinished: the run is no longer this worker's.
        Diverged: a turn was refused.
        headgate.HeadgateError: no answer, or a refusal.
    """

    async def history(self, lease: Lease, after: int, wait_s: float = 0.0) -> Page:
        """Events behind `after`; where there are none, after up to `wait_s`."""
        ...

    async def turn(self, lease: Lease, turn: Turn) -> TurnAnswer:
        """One commit, or nothing."""
        ...


def stuck_of(error: TurnFailed) -> dict[str, Any]:
    """A failed turn as the service is told of it, and as the run shows it."""
    found: dict[str, Any] = {"code": error.code, "error": str(error)[: 4 * SHOWN_CHARS_MAX]}
    if isinstance(error, Mismatch):
        found |= {"event": error.event, "line": error.line}
        sides = {"expected": error.expected, "got": error.got}
        found |= {name: text[:SHOWN_CHARS_MAX] for name, text in sides.items() if text is not None}
    return found
