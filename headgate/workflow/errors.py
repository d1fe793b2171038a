"""What workflow code may be told of, and what ends or stops a run.

Exception
├── NodeFailed          what code awaited did not succeed: a task, step, child or graph; code may catch it
└── Refused             code asked for what no workflow may do (a socket, a thread, `asyncio.wait_for`, the clock)
TurnFailed              nothing of the turn is written: the run is stuck until the code is mended
├── Mismatch            the code asks for something else than the history has
├── Nondeterministic    two replays of one history differ, or code used the clock, chance or a file
├── HistoryChanged      the run was reset since its code was told of this: it is to be replayed from its beginning
├── UnknownEvent        the history has an event that this version does not know
├── NeverYields         code ran for too long without awaiting anything
└── TurnRefused         the service does not take what the code asks for: too large, or of a wrong shape
"""

from collections.abc import Mapping
from typing import Final

SHOWN_CHARS_MAX: Final = 500


class NodeFailed(Exception):
    """What was awaited did not succeed. `state` is failed, cancelled or skipped; `error` is the last error's
    text."""

    def __init__(self, key: str, state: str, error: str | None = None) -> None:
        # Of a traceback the end says what happened.
        super().__init__(f"{key} {state}" + (f": {error[-SHOWN_CHARS_MAX:]}" if error else ""))
        self.key = key
        self.state = state
        self.error = error


class Refused(RuntimeError):
    """Workflow code asked for what would differ when it is replayed; the message says what to use."""


class TurnFailed(Exception):
    """Nothing of the turn is written. `code` is what the run's `stuck` shows."""

    code = "turn_failed"


class Mismatch(TurnFailed):
    """The code asks for something else than what the history has.

    event: the event at which the two part.
    expected: what the history has there, or None where it has nothing (more).
    got: what the code asks for, or None where it asks for nothing (more).
    line: where in the code, as `file:line in function`.
    """

    code = "history_mismatch"

    def __init__(self, event: int, expected: str | None, got: str | None, line: str) -> None:
        super().__init__(
            f"at event {event} the history has {expected or 'nothing more'}, but the code asks for "
            f"{got or 'nothing more'} ({line}); restore what the code did, or put the change behind wf.patched"
        )
        self.event = event
        self.expected = expected
        self.got = got
        self.line = line

    def __reduce__(self) -> tuple[type["Mismatch"], tuple[int, str | None, str | None, str]]:
        return type(self), (self.event, self.expected, self.got, self.line)


class Nondeterministic(TurnFailed):
    """The same history gave two answers, or the code looked at what is different each time."""

    code = "nondeterministic"


class HistoryChanged(TurnFailed):
    """The run was reset, or resumed with other outputs, from an event on that the code was told of."""

    code = "history_changed"


class UnknownEvent(TurnFailed):
    """A history made by a newer version, or not by this service."""

    code = "unknown_event"


class TurnRefused(TurnFailed):
    """The service does not take what the code asks for, or what steps returned: `results` says of which, by their
    places in the turn, why."""

    code = "turn_refused"

    def __init__(self, detail: str, results: Mapping[int, str] | None = None) -> None:
        super().__init__(detail)
        self.results = dict(results or {})


class NeverYields(TurnFailed):
    """One event's code ran on without an end."""

    code = "never_yields"
