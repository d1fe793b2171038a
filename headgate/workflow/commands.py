"""What workflow code asks for, and how it is compared with what a history has."""

import json
from collections.abc import Callable
from hashlib import blake2b
from types import CodeType
from typing import Any, Final

from headgate._error_text import said_by

# Of a command's spec in messages and in the history.
SHOWN_CHARS_MAX: Final = 120
FINGERPRINT_BYTES: Final = 8
NOWHERE: Final = "no line of the workflow"

# A line of code: cheap to take, and only written out for a message.
Place = tuple[CodeType, int] | None

_encode: Final = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False, check_circular=True
).encode


def canonical(value: Any, what: str = "this value") -> str:
    """JSON that is equal for equal values.

    Raises:
        TypeError: it has no JSON form.
    """
    try:
        text = _encode(value)
        text.encode()
    except BaseException as error:  # also of what a class of the program's does as it is written
        raise TypeError(f"{what} has no JSON form: {said_by(error)}") from None
    return text


def line_of(place: Place) -> str:
    if place is None:
        return NOWHERE
    code, line = place
    return f"{code.co_filename}:{line} in {code.co_qualname}"


class Command:
    """One thing asked for at one event.

    kind, key: together they name it within the run. text: its spec as canonical JSON, taken when it was asked
        for: what code does to the objects later changes nothing.
    after: the event whose code asked.
    call: for a step, what the worker runs.
    """

    __slots__ = ("_fingerprint", "after", "call", "compared", "key", "kind", "place", "text")

    def __init__(
        self, kind: str, key: str, text: str, after: int, place: Place, compared: str | None = None
    ) -> None:
        self.kind = kind
        self.key = key
        self.text = text
        self.after = after
        self.place = place
        self.compared = compared
        self.call: Callable[[], Any] | None = None
        self._fingerprint: str | None = None

    @property
    def spec(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.text)
        return found

    @property
    def fingerprint(self) -> str:
        """Equal for equal specs; of a failed end without its text, in which lines and addresses stand."""
        if self._fingerprint is None:
            text = self.text if self.compared is None else self.compared
            self._fingerprint = blake2b(text.encode(), digest_size=FINGERPRINT_BYTES).hexdigest()
        return self._fingerprint

    @property
    def line(self) -> str:
        return line_of(self.place)

    @property
    def identity(self) -> tuple[str, str, str]:
        return self.kind, self.key, self.fingerprint

    @property
    def shown(self) -> str:
        return self.text if len(self.text) <= SHOWN_CHARS_MAX else self.text[: SHOWN_CHARS_MAX - 3] + "..."

    def describe(self) -> str:
        """As the record of it describes itself."""
        return f"{self.kind} {self.key} {self.shown}" if self.key else f"{self.kind} {self.shown}"

    def body(self) -> dict[str, Any]:
        """As `turn` takes it."""
        return {
            "kind": self.kind,
            "key": self.key,
            "after": self.after,
            "fingerprint": self.fingerprint,
            "shown": self.shown,
            "spec": self.spec,
        }

    def __repr__(self) -> str:
        return f"Command({self.describe()!r}, after={self.after})"
