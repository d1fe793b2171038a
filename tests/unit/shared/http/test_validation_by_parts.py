"""A large body is validated element by element; what comes of it is what validating the whole gives."""

from typing import Any

import pytest

from headgate import wire
from shared.errors import Invalid
from shared.http.edge import validate, validate_by_parts

NODE = {"key": "a", "topic": "t"}
GOOD: list[dict[str, Any]] = [
    {"nodes": [NODE, {"key": "b", "topic": "t", "upstream": ["a"], "external": [{"name": "x"}, "y"]}]},
    {"nodes": [NODE], "dependencies": [{"upstream": "a", "downstream": "c"}]},
    {"nodes": [{"key": "s", "dag": {"nodes": [NODE]}}], "dependencies": None},
    {"nodes": [{"key": "any", "topic": "t", "trigger": "any_failed", "upstream": ["a"]}]},
]
BAD: list[Any] = [
    {"nodes": [NODE, {"key": "b", "topic": "t", "upstream": ["a", 5, ""]}, {"key": ""}]},
    {"nodes": [{"key": "any", "topic": "t", "trigger": "any_failed"}]},
    {"nodes": [NODE] * (wire.BATCH_MAX + 1)},
    {"nodes": []},
    {"nodes": {"key": "a"}},
    {"nodes": [NODE], "dependencies": [{"upstream": "a"}], "unknown": 1},
    {"nodes": [5]},
    {},
    [],
    5,
]


@pytest.mark.parametrize("body", GOOD)
def test_a_good_body_is_the_same_part_by_part(body: Any) -> None:
    assert validate_by_parts(wire.AddNodes, body) == validate(wire.AddNodes, body)


@pytest.mark.parametrize("body", BAD)
def test_a_bad_body_is_refused_the_same_part_by_part(body: Any) -> None:
    refusals = []
    for read in (validate, validate_by_parts):
        with pytest.raises(Invalid) as refused:
            read(wire.AddNodes, body)
        refusals.append((refused.value.detail, refused.value.errors))
    assert refusals[0] == refusals[1]
