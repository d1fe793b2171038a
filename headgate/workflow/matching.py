"""What code has asked for, against the record of it: per event the set of (kind, key, fingerprint)."""

from collections.abc import Callable, Mapping

from headgate.workflow.commands import Command
from headgate.workflow.errors import Mismatch
from headgate.workflow.events import Event

Made = dict[tuple[str, str], Command]


class Unrecorded:
    """What was asked for and is not in the history as far as it was read, by the event whose code asked."""

    def __init__(self) -> None:
        self._made: dict[int, Made] = {}

    def add(self, event: int, made: Made) -> None:
        self._made[event] = made

    def match(self, event: Event, where: Callable[[], str]) -> None:
        """A record was read. `where` tells the line at which the code waits.

        Raises:
            Mismatch: the code has asked for something else.
        """
        assert event.after is not None
        made = self._made.get(event.after, {})
        command = made.get((event.kind, event.key))
        if command is None:
            if event.kind == "marker":
                return  # of code that has been removed since; it meant nothing but the answer
            other = _nearest(event, made)
            line = other.line if other else where()
            raise Mismatch(event.after, event.describe(), other.describe() if other else None, line)
        if event.fingerprint != command.fingerprint:
            raise Mismatch(event.after, event.describe(), command.describe(), command.line)
        del made[event.kind, event.key]
        if not made:
            del self._made[event.after]

    def check(self, seen: int) -> None:
        """All that is recorded was read.

        Raises:
            Mismatch: something asked for at an event up to `seen` is not in the history.
        """
        for number, commands in self._made.items():
            if number > seen:
                break
            for command in commands.values():
                raise Mismatch(number, None, command.describe(), command.line)

    def all(self) -> list[Command]:
        """In the order of asking."""
        return [command for commands in self._made.values() for command in commands.values()]


def _nearest(event: Event, made: Mapping[tuple[str, str], Command]) -> Command | None:
    """What the code asks for in the place of what the history has."""
    same_kind = [command for command in made.values() if command.kind == event.kind]
    return next(iter(same_kind or made.values()), None)
