"""A run's events, as the history gives them: what the code is told, and the record of what it asked for."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from headgate.workflow.errors import UnknownEvent

# Kinds of nodes that end, and are then told to the code.
NODES: Final = frozenset({"item", "sub", "child", "timer", "step", "send", "start"})
# Records without an end of their own.
RECORDS: Final = frozenset({"marker", "cancel", "publish", "answer", "end"})
ENDS: Final = frozenset({"succeeded", "failed", "cancelled", "skipped"})
# Of a run: code goes on from an earlier event, or with other outputs.
RESET: Final = "reset"
_UNTOLD: Final = frozenset({"added", RESET})


class Event(NamedTuple):
    """One change of a run, numbered in the order in which they happened.

    event: its number, greater than those before; numbers may leave gaps.
    at: when, by the service's clock.
    kind, key: what changed: `run`, `signal`, one of `NODES` or of `RECORDS`.
    generation: which run of the node it is; 1 but for retries.
    state: `added`, or how it ended; of the run: `started`, `cancel_requested`, `reset`; of a signal: `received`.
    output, error: of an end.
    data: of a run's start its input and names, of a signal its name and data, of a record its fingerprint.
    after: on a record, the event whose code asked for this; None on what the code did not ask for.
    reset: from this event on the run was reset, or resumed with other outputs, for the so many-th time: what code
        asks for bears that number.
    void: it holds no more, since the run's so many-th reset; code is not told of it.
    """

    event: int
    at: datetime
    kind: str
    key: str = ""
    generation: int = 1
    state: str = "added"
    output: Any = None
    error: str | None = None
    data: Any = None
    after: int | None = None
    reset: int | None = None
    void: int | None = None

    @property
    def is_record(self) -> bool:
        """Whether it tells that something which code asked for is written down."""
        return self.after is not None

    @property
    def is_told(self) -> bool:
        """Whether code is told of it. A step that is written with its end is a record, and is told too."""
        return self.kind not in RECORDS and self.state not in _UNTOLD

    @property
    def fingerprint(self) -> str | None:
        return self.data.get("fingerprint") if isinstance(self.data, dict) else None

    def describe(self) -> str:
        """For messages: what was asked for."""
        shown = self.data.get("shown") if isinstance(self.data, dict) else None
        name = f"{self.kind} {self.key}" if self.key else self.kind
        return f"{name} {shown}" if shown else name

    @classmethod
    def parse(cls, answer: Mapping[str, Any]) -> "Event":
        """An event from JSON.

        Raises:
            UnknownEvent: it lacks what every event has.
        """
        get = answer.get
        try:
            at = datetime.fromisoformat(answer["at"])
            return cls(
                int(answer["event"]),
                at if at.tzinfo else at.replace(tzinfo=UTC),
                answer["kind"],
                get("key") or "",
                get("generation") or 1,
                get("state") or "added",
                get("output"),
                get("error"),
                get("data"),
                get("after"),
                get("reset"),
                get("void"),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise UnknownEvent(f"this is not an event of a run ({error!r}): {str(answer)[:200]}") from None

    def body(self) -> dict[str, Any]:
        """The event as JSON; what is not there is left out."""
        fields = self._asdict()
        fields["at"] = self.at.isoformat()
        return {name: value for name, value in fields.items() if value is not None and (name != "key" or value)}


def markers_of(events: Iterable[Event]) -> dict[str, int]:
    """The first answers of `patched` that a whole history holds: the event of each marker's call, by its id."""
    return {
        event.key.removeprefix("marker:"): event.after
        for event in events
        if event.kind == "marker" and event.after is not None and event.void is None
    }
