"""What user's code makes of a job beside its function's own end: what it returned, and what a validator raises."""

from collections.abc import Callable
from functools import reduce
from typing import Any

import pytest
from pydantic import BaseModel, field_validator

from headgate import App

looked: list[str] = []


class Untellable:
    """As an ORM's row is without its session."""

    def __repr__(self) -> str:
        raise LookupError("no session")


class Looked(BaseModel):
    """One whose validator raises what pydantic does not take for a refusal."""

    name: str

    @field_validator("name")
    @classmethod
    def known(cls, name: str) -> str:
        looked.append(name)
        return {"known": name}[name]


def _holding_itself() -> list[Any]:
    ring: list[Any] = []
    ring.append(ring)
    return ring


@pytest.mark.parametrize(
    ("gives", "make", "said"),
    [
        (int, Untellable, "not a Untellable whose repr raises"),
        (str, lambda: 10**5000, "not a int whose repr raises"),
        (list, lambda: reduce(lambda inner, _: [inner], range(40), []), "nested deeper than 30 levels"),
        (Any, _holding_itself, "or holds itself"),
        (Looked, lambda: {"name": "unknown"}, "unknown"),
    ],
)
def test_a_function_is_not_called_again_for_what_it_returned(
    gives: Any, make: Callable[[], Any], said: str
) -> None:
    """Whatever it is: what it has done is done, and no attempt was asked for."""
    called = []

    def returns() -> Any:
        called.append(1)
        return make()

    returns.__annotations__["return"] = gives
    job = App("returns").job(name="returns")(returns)
    with job.app.testing(), pytest.raises((TypeError, KeyError), match=said):
        job.enqueue().result()
    assert called == [1]


def test_what_a_validator_raises_in_the_worker_ends_the_job_as_what_the_function_raises() -> None:
    other, called = App("validated"), list[str]()

    @other.job
    def once(row: Looked) -> None:
        called.append(row.name)

    @other.job(name="often", max_attempts=3)
    def often(row: Looked) -> None:
        called.append(row.name)

    @other.job
    def names() -> list[Any]:
        return [{"name": "known"}, {"name": "unknown"}]

    with other.testing():
        row = Looked.model_construct(name="unknown")  # as of a caller with other code
        for job, attempts in ((once, 1), (often, 3)):
            looked.clear()
            with pytest.raises(KeyError, match="unknown"):
                job.enqueue(row).result()
            assert looked == ["unknown"] * attempts
        flow = other.flow("each")
        each = flow.map(once, names.call())
        looked.clear()
        with pytest.raises(KeyError, match="unknown"):
            flow.start().result(each)
    assert (called, looked) == ([], ["known", "unknown"])


def test_an_error_that_holds_what_has_no_text_is_told_all_the_same() -> None:
    called = []

    @App("told").job
    def raises() -> None:
        called.append(1)
        raise ValueError(Untellable())

    with raises.app.testing(), pytest.raises(ValueError, match="no text"):
        raises.enqueue().result()
    assert called == [1]
