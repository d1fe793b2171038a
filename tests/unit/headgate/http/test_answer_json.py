"""Reading answers: alike with and without the faster library."""

import importlib
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from headgate._http import answer_json


@pytest.fixture(params=["with msgspec", "without"])
def reading(request: pytest.FixtureRequest) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "without":
            patch.setitem(sys.modules, "msgspec", None)
        importlib.reload(answer_json)
        yield answer_json.decode
    importlib.reload(answer_json)


def test_an_answer_is_the_same_value(reading: Any) -> None:
    assert reading('{"a": [1, 2.5, null, "é"], "b": true}'.encode()) == {"a": [1, 2.5, None, "é"], "b": True}


@pytest.mark.parametrize("text", [b"", b"<html>", b'{"a": ', b"\xff"])
def test_what_is_no_answer_is_an_error_of_one_kind(reading: Any, text: bytes) -> None:
    with pytest.raises(ValueError):
        reading(text)
