"""Numbers that are read as results: medians, percentiles and ratios of pairs."""

import pytest

from benchmarks.spread import percentile, ratios, spread


def test_the_median_of_an_even_count_lies_between_the_middle_two() -> None:
    found = spread([4.0, 1.0, 3.0, 2.0])
    assert (found.median, found.low, found.high) == (2.5, 1.0, 4.0)
    assert found.values == (4.0, 1.0, 3.0, 2.0), "the order of the rounds is kept"


def test_ratios_are_taken_within_rounds_and_not_of_medians() -> None:
    # A machine that was half as fast in the last round: the ratio of medians would be 1.0.
    found = ratios([10.0, 20.0, 5.0], [20.0, 40.0, 10.0])
    assert (found.median, found.low, found.high) == (0.5, 0.5, 0.5)


def test_rounds_that_lost_a_side_are_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        ratios([1.0, 2.0], [1.0])


@pytest.mark.parametrize(("share", "expected"), [(0.0, 1), (0.5, 50), (0.99, 99), (0.991, 100), (1.0, 100)])
def test_a_percentile_is_a_value_that_was_measured(share: float, expected: int) -> None:
    assert percentile([float(value) for value in range(100, 0, -1)], share) == expected


def test_a_single_value_is_every_percentile() -> None:
    assert [percentile([7.0], share) for share in (0.0, 0.5, 1.0)] == [7.0] * 3


def test_nothing_measured_is_an_error_and_not_zero() -> None:
    for measure in (spread, lambda values: percentile(values, 0.5)):
        with pytest.raises(ValueError, match="nothing was measured"):
            measure([])


def test_a_ratio_on_both_sides_of_one_is_no_difference() -> None:
    assert spread([0.9, 1.2, 1.3]).straddles_one and spread([1.0, 1.2]).straddles_one
    assert not spread([1.1, 1.2]).straddles_one and not spread([0.5, 0.9]).straddles_one
