"""Names that a call gives and the service does not know: refused, with the nearest name that it does."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from pydantic import BaseModel

# Longer ones are no misspelt names, and comparing them takes time.
NAME_CHARS_MAX = 64


def nearest(name: str, known: Iterable[str]) -> str:
    """A question to end a sentence with: the known name that `name` is most like; nothing where none is."""
    found = difflib.get_close_matches(name.lower(), sorted(known), n=1) if len(name) <= NAME_CHARS_MAX else []
    return f"; did you mean `{found[0]}`?" if found else ""


def fields_at(model: type[BaseModel], location: Sequence[int | str]) -> set[str]:
    """The names of all fields that may stand in a body at a pydantic location: list places and field names."""
    whole = _schema(model)
    parts = [whole]
    for step in location:
        found = [_below(choice, step) for part in parts for choice in _choices(part, whole)]
        parts = [part for part in found if part is not None]
    return {name for part in parts for choice in _choices(part, whole) for name in choice.get("properties", ())}


def _below(schema: dict[str, Any], step: int | str) -> dict[str, Any] | None:
    if isinstance(step, int):
        found: dict[str, Any] | None = schema.get("items")
    else:
        found = schema.get("properties", {}).get(step)
    return found


def _choices(schema: dict[str, Any], whole: dict[str, Any]) -> list[dict[str, Any]]:
    """The schema itself, or each that it refers to."""
    if "$ref" in schema:
        schema = whole["$defs"][schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        return [choice for each in schema["anyOf"] for choice in _choices(each, whole)]
    return [schema]


@cache
def _schema(model: type[BaseModel]) -> dict[str, Any]:
    return model.model_json_schema()
