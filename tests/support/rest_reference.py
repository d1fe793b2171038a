"""An OpenAPI document as a page: each call with its parameters, body and answers, then what these are made of."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Schema = dict[str, Any]


def rest_reference(document: Path, service: str) -> str:
    """The page of one service."""
    spec = json.loads(document.read_text())
    lines = [
        f"# REST: the {service} service",
        "",
        "Made from the OpenAPI document that the service answers at `/openapi.json`. What the calls promise stands"
        " in [the contract](../protocol.md), their errors in [errors](../errors.md).",
        "",
    ]
    calls = [
        (call.get("tags", ["calls"])[0], path, method, call)
        for path, methods in spec["paths"].items()
        for method, call in methods.items()
    ]
    for tag in dict.fromkeys(tag for tag, *_ in calls):
        lines += [f"## {tag}", ""]
        for _, path, method, call in (each for each in calls if each[0] == tag):
            lines += _call(path, method, call)
    lines += ["## Objects", ""]
    for name, schema in sorted(spec["components"]["schemas"].items()):
        lines += _object(name, schema)
    return "\n".join(lines)


def _call(path: str, method: str, call: dict[str, Any]) -> list[str]:
    lines = [f"### {method.upper()} `{path}`", "", _text(call.get("description") or call.get("summary", "")), ""]
    rows = [
        (
            f"`{each['name']}`",
            each["in"],
            _type(each["schema"]) + ("" if each.get("required") else ", may be left out"),
            _text(each.get("description") or each["schema"].get("description", "")),
        )
        for each in call.get("parameters", ())
    ]
    lines += _table(("parameter", "in", "type", ""), rows)
    body = call.get("requestBody", {}).get("content", {})
    lines += [f"Body: {_type(next(iter(body.values()))['schema'])}", ""] if body else []
    rows = [
        (
            status,
            ", ".join(_type(media.get("schema", {})) for media in answer.get("content", {}).values()),
            _text(answer.get("description", "")),
        )
        for status, answer in sorted(call["responses"].items())
    ]
    return [*lines, *_table(("status", "answer", ""), rows)]


def _object(name: str, schema: Schema) -> list[str]:
    lines = [f"### {name}", "", _text(schema.get("description", "")), ""]
    required = set(schema.get("required", ()))
    rows = [
        (f"`{field}`", _type(of), "" if field in required else _default(of), _text(of.get("description", "")))
        for field, of in schema.get("properties", {}).items()
    ]
    if not rows:
        return [*lines, _type({key: value for key, value in schema.items() if key != "title"}), ""]
    return [*lines, *_table(("field", "type", "default", ""), rows)]


def _default(schema: Schema) -> str:
    return f"`{json.dumps(schema['default'])}`" if "default" in schema else "may be left out"


def _type(schema: Schema) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{_anchor(name)})"
    for several in ("anyOf", "oneOf", "allOf"):
        if several in schema:
            return " or ".join(dict.fromkeys(_type(each) for each in schema[several]))
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{json.dumps(value)}`" for value in schema.get("enum", [schema.get("const")]))
    kind = str(schema.get("type", "any JSON"))
    if kind == "array":
        bounds = _bounds(schema, ("minItems", "maxItems"))
        return f"list of {_type(schema.get('items', {}))}{bounds}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {_type(schema['additionalProperties'])}"
    return (schema.get("format") or kind) + _bounds(
        schema, ("minimum", "maximum"), ("exclusiveMinimum", "exclusiveMaximum"), ("minLength", "maxLength")
    )


def _bounds(schema: Schema, *pairs: tuple[str, str]) -> str:
    for low, high in pairs:
        if low in schema and high in schema:
            return f", {schema[low]:,} to {schema[high]:,}"
        if high in schema:
            return f", at most {schema[high]:,}"
        if low in schema:
            return f", at least {schema[low]:,}"
    return ""


def _text(text: str) -> str:
    """Prose of a docstring, on one line, where nothing is markup by accident."""
    return re.sub(r"\s+", " ", text).strip().replace("|", "\\|").replace("<", "&lt;")


def _anchor(name: str) -> str:
    return re.sub(r"[^\w\- ]", "", name).strip().lower().replace(" ", "-")


def _table(heads: Iterable[str], rows: list[tuple[str, ...]]) -> list[str]:
    if not rows:
        return []
    heads = list(heads)
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows), ""]
