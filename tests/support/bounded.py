"""Loops that go on until nothing is left to do: one that a fault keeps from its end fails, and does not hang."""

from collections.abc import Iterator

STEPS_MAX = 5_000


def steps() -> Iterator[int]:
    """More numbers than any test has steps; who wants one more never comes to an end.

    Raises:
        AssertionError
    """
    yield from range(STEPS_MAX)
    raise AssertionError("there is always something left to do")
