"""The pause before the next delivery."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.queue.model import backoff_s


@pytest.mark.parametrize(("attempts", "expected"), [(1, 2.0), (2, 6.0), (3, 18.0), (4, 50.0), (5000, 50.0)])
def test_it_grows_to_its_maximum(attempts: int, expected: float) -> None:
    assert backoff_s(attempts, [2.0, 3.0, 50.0, 0.0], 0.7) == expected


@pytest.mark.parametrize("steps", [None, [1.0, 2.0, 300.0, 0.2]])
def test_by_default_it_doubles_from_a_second_to_five_minutes(steps: list[float] | None) -> None:
    assert [backoff_s(n, steps, 0.0) for n in (1, 2, 3, 8, 9)] == [1.0, 2.0, 4.0, 128.0, 248.8]
    assert [backoff_s(n, steps, 0.5) for n in (1, 2, 3, 8, 9)] == pytest.approx([1.1, 2.2, 4.4, 140.8, 274.4])
    assert [backoff_s(n, steps, 1.0) for n in (1, 2, 3, 8, 9)] == pytest.approx([1.2, 2.4, 4.8, 153.6, 300.0])


def test_a_factor_of_zero_or_one() -> None:
    assert [backoff_s(n, [2.0, 1.0, 50.0, 0.0], 0.5) for n in (1, 2, 9)] == [2.0] * 3
    assert [backoff_s(n, [2.0, 0.0, 50.0, 0.0], 0.5) for n in (1, 2, 9)] == [2.0, 0.0, 0.0]


def test_a_base_of_zero_is_at_once() -> None:
    assert [backoff_s(n, [0.0, 2.0, 300.0, 0.2], 1.0) for n in (1, 2, 5000)] == [0.0] * 3


SECONDS = st.floats(0, 2_592_000)


@given(st.integers(1, 2**31 - 1), SECONDS, st.floats(1, 1000), SECONDS, st.floats(0, 1), st.floats(0, 1))
def test_it_never_fails_falls_or_passes_its_maximum(
    attempts: int, base_s: float, factor: float, max_s: float, jitter: float, at: float
) -> None:
    steps = [base_s, factor, max_s, jitter]
    exact_s, pause_s = backoff_s(attempts, [base_s, factor, max_s, 0.0], at), backoff_s(attempts, steps, at)

    assert 0 <= exact_s <= max_s and exact_s <= backoff_s(attempts + 1, [base_s, factor, max_s, 0.0], at)
    assert max(0.0, exact_s * (1 - jitter)) <= pause_s * (1 + 1e-9)
    assert pause_s <= min(exact_s * (1 + jitter), max_s) * (1 + 1e-9)
    earliest_s, latest_s = backoff_s(attempts, steps, 0.0), backoff_s(attempts, steps, 1.0)
    assert latest_s - earliest_s == pytest.approx(jitter * exact_s, abs=1e-6), (
        "the spread is whole, at the maximum too"
    )
