"""The nearest name: told where there is one, for fields wherever they stand in a body."""

import pytest

from headgate import wire
from shared.errors import Invalid
from shared.http.edge import validate
from shared.http.nearest import NAME_CHARS_MAX, nearest


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("stat", "; did you mean `state`?"),
        ("State", "; did you mean `state`?"),
        ("wholly_else", ""),
        ("", ""),
        ("state" + "x" * NAME_CHARS_MAX, ""),
    ],
)
def test_the_nearest_name_is_told_where_one_is_near(name: str, told: str) -> None:
    assert nearest(name, {"state", "name", "limit"}) == told


@pytest.mark.parametrize(
    ("model", "body", "pointer", "meant"),
    [
        (wire.EnqueueRequest, {"item": []}, "/item", "items"),
        (wire.EnqueueRequest, {"items": [{"topic": "t", "prioirty": 1}]}, "/items/0/prioirty", "priority"),
        (
            wire.EnqueueRequest,
            {"items": [{"topic": "t", "backoff": {"bases": 1}}]},
            "/items/0/backoff/bases",
            "base_s",
        ),
        (wire.DagSpec, {"nodes": [{"key": "a", "topic": "t", "upstreams": []}]}, "/nodes/0/upstreams", "upstream"),
        (
            wire.DagSpec,
            {"nodes": [{"key": "a", "dag": {"nodes": [{"key": "b", "topik": "t"}]}}]},
            "/nodes/0/dag/nodes/0/topik",
            "topic",
        ),
        (
            wire.DagSpec,
            {"nodes": [{"key": "a", "topic": "t", "external": [{"name": "x", "deadlines": 1}]}]},
            "/nodes/0/external/0/deadlines",
            "deadline_s",
        ),
        (wire.RetryDag, {"form": ["a"]}, "/form", "from"),
    ],
)
def test_an_unknown_field_is_told_what_it_may_have_been(
    model: type[wire.Request], body: dict[str, object], pointer: str, meant: str
) -> None:
    with pytest.raises(Invalid) as caught:
        validate(model, body)
    told = {error.pointer: error.detail for error in caught.value.errors}
    assert told[pointer] == f"there is no such field; did you mean `{meant}`?"
