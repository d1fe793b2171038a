"""What workers tell of themselves and of their jobs."""

from datetime import datetime
from typing import Annotated, Final

from pydantic import AfterValidator, Field, StringConstraints

from headgate.wire.base import Request, Response, clean_text

PROGRESS_MAX: Final = 10**15
NOTE_CHARS_MAX: Final = 200


def _whole(number: float) -> float:
    return int(number) if number == int(number) else number


Amount = Annotated[float, Field(ge=0, le=PROGRESS_MAX), AfterValidator(_whole)]
Note = Annotated[str, StringConstraints(max_length=NOTE_CHARS_MAX), AfterValidator(clean_text)]


class Progress(Request):
    """How far a job has come: so much is done, of so much in all, if that is known; it may turn out to be more."""

    done: Amount
    total: Amount | None = None
    note: Note | None = None


class ProgressView(Response):
    """What the holder of an item last told of how far it has come, and when, by the shard's clock."""

    done: int | float
    total: int | float | None = None
    note: str | None = None
    at: datetime
