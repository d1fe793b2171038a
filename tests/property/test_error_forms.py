"""The form of an error: what varies from item to item is gone, and a form's form is itself."""

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from services.queue.operations.dead_items import FORM_CHARS_MAX, form_of

PIECES = st.sampled_from(
    ["timeout", " ", "\n", "12", "0x1F", "deadbeef1", "3f2a", "-", ".", ":", ",", "<n>", "<uuid>", '  File "', "é",
     "Traceback (most recent call last):", "0d3c3a5e-7a45-4d0e-8f3e-0123456789ab", "facade", "\x1c", "\t", "<",
     "x" * 90]
)  # fmt: skip
ERRORS = st.one_of(st.text(), st.lists(PIECES, max_size=30).map("".join))


@given(ERRORS)
@example("x" * 199 + "12")
@example("1" * 500 + "é")
@example("a\n" * 300)
@example("Traceback (most recent call last):")
def test_the_form_of_a_form_is_itself(error: str) -> None:
    form = form_of(error)

    assert form_of(form) == form
    assert form_of(form, form) == form
    assert len(form) <= FORM_CHARS_MAX
    assert "\n" not in form


@given(ERRORS)
def test_the_ends_of_an_error_are_enough(error: str) -> None:
    """As the shard gives them: the first and the last 500 characters."""
    assert form_of(error[:500], error[-500:]) == form_of(error)


VARYING = st.tuples(st.integers(0), st.uuids(), st.integers(2**32))


@given(one=VARYING, other=VARYING)
def test_errors_that_differ_in_what_varies_are_one_kind(one: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    forms = {form_of(f"job {n} of {uuid} at {at:#x} broke after {n}.5 s") for n, uuid, at in (one, other)}

    assert forms == {"job <n> of <uuid> at <hex> broke after <n> s"}


def test_kinds_that_are_told_apart() -> None:
    forms = {
        form_of(text)
        for text in (
            "timeout",
            "timeout 1",
            "Timeout",
            "timeout: 1",
            "timeout a",
            "facade",
            "",
            "no facade00 here",
        )
    }
    assert len(forms) == 8
    assert form_of("facade") == "facade", "a word of hexadecimal letters is a word"
    assert form_of(None) == ""
    assert form_of("  \n\n \n so it   went\nmore") == "so it went"
