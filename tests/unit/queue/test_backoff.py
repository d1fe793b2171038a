"""The pause before the next delivery."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.queue.model import backoff_s


@pytest.mark.parametrize(("attempts", "expected"), [(1, 2.0), (2, 6.0), (3, 18.0), (4, 50.0), (5000, 50.0)])
def test_it_grows_to_its_maximum(attempts: int, expected: float) -> None:
    assert backoff_s(attempts, [2.0, 3.0, 50.0]) == expected


def test_without_steps_it_is_at_once() -> None:
    assert backoff_s(3, None) == 0.0
    assert backoff_s(3, []) == 0.0
    assert backoff_s(0, [2.0, 3.0, 50.0]) == 0.0


def test_a_factor_of_zero_or_one() -> None:
    assert [backoff_s(n, [2.0, 1.0, 50.0]) for n in (1, 2, 9)] == [2.0] * 3
    assert [backoff_s(n, [2.0, 0.0, 50.0]) for n in (1, 2, 9)] == [2.0, 0.0, 0.0]


@given(st.integers(1, 2**31 - 1), st.floats(0, 2_592_000), st.floats(1, 1000), st.floats(0, 2_592_000))
def test_it_never_fails_falls_or_passes_its_maximum(
    attempts: int, base_s: float, factor: float, max_s: float
) -> None:
    pause_s = backoff_s(attempts, [base_s, factor, max_s])

    assert 0 <= pause_s <= max_s
    assert pause_s <= backoff_s(attempts + 1, [base_s, factor, max_s])
