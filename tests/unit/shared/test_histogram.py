"""Our histogram tells a scrape what the library's own would."""

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client import Histogram as Theirs

from shared.histogram import Histogram

BOUNDS = (0.0005, 0.01, 1, 30)
VALUES = (0.0, 0.0005, 0.0006, 0.01, 0.5, 1.0, 29.9, 30.0, 31.0, 1e9)


def told(registry: CollectorRegistry) -> list[bytes]:
    return [line for line in generate_latest(registry).splitlines() if b"_created" not in line]


@pytest.mark.parametrize("labels", [(), ("route", "status")])
def test_a_value_at_a_bound_counts_as_the_library_counts_it(labels: tuple[str, ...]) -> None:
    theirs, ours = CollectorRegistry(), CollectorRegistry()
    their = Theirs("a_seconds", "Some time.", labels, buckets=BOUNDS, registry=theirs)
    our = Histogram("a_seconds", "Some time.", labels, buckets=BOUNDS, registry=ours)
    assert told(ours) == told(theirs)
    if not labels:
        for value in VALUES:
            their.observe(value)
            our.observe(value)
    for values in [("a", 200), ('b"\\\n', 404)] if labels else []:
        for value in VALUES:
            their.labels(*values).observe(value)
            our.labels(*values).observe(value)
    assert told(ours) == told(theirs)


def test_two_of_one_name_are_refused_and_so_are_wrong_labels() -> None:
    registry = CollectorRegistry()
    one = Histogram("a_seconds", "Some time.", ("route",), buckets=BOUNDS, registry=registry)
    with pytest.raises(ValueError, match="Duplicated"):
        Histogram("a_seconds", "Some time.", ("route",), buckets=BOUNDS, registry=registry)
    with pytest.raises(ValueError, match="labels"):
        one.labels()
