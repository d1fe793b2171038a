"""A service that takes and answers exactly what `docs/openapi` says, behind httpx's seam and out of memory.

Every member of an answer is there, and tells by its value which one it is: one in the place of another is seen.
"""

import json
import re
from typing import Any, Final
from urllib.parse import parse_qsl, unquote
from zlib import crc32

import httpx
import jsonschema

from tests.support.described import calls_of, document

SERVICES: Final = {"q": "queue", "d": "dag"}
TIME: Final = "2020-01-01T00:00:00Z"
UUID: Final = "0198f1a2-0000-7000-8000-000000000000"


class Documented(httpx.MockTransport):
    """Both services. Remembers calls as "queue POST /v1/...", with their bodies, and what it answered.

    Raises AssertionError, through the client, at a call that the documents do not describe. What `changes` holds
    comes in the place of members of an answer, `...` of those that are not there; a text is an answer as it is.
    """

    def __init__(self, changes: dict[str, Any] | str | None = None) -> None:
        super().__init__(self._answer)
        self._changes = changes
        self.calls: list[tuple[str, Any]] = []
        self.answers: list[Any] = []
        self.is_closed = False

    def _answer(self, request: httpx.Request) -> httpx.Response:
        service, path = SERVICES[request.url.host], request.url.raw_path.decode()
        body = json.loads(request.content) if request.content else None
        self.calls.append((f"{service} {request.method} {path}", body))
        call = _checked(service, request.method.lower(), path, body)
        status, content = next((code, answer.get("content")) for code, answer in call["responses"].items())
        if isinstance(self._changes, str):
            return httpx.Response(int(status), text=self._changes)
        schema = content["application/json"]["schema"]
        if "anyOf" in schema:  # an operation, or what it would do
            schema = schema["anyOf"][body["dry_run"]]
        answer = example(service, schema, "value")
        if isinstance(answer, dict):
            answer.update({name: value for name, value in (self._changes or {}).items() if name in answer})
            answer = {name: value for name, value in answer.items() if value is not ...}
        self.answers.append(answer)
        return httpx.Response(int(status), json=answer)

    def close(self) -> None:
        """A client was closed."""
        self.is_closed = True

    async def aclose(self) -> None:
        """The same for coroutines."""
        self.is_closed = True


def _checked(service: str, method: str, target: str, body: Any) -> dict[str, Any]:
    """What the document says of a call, which it allows."""
    path, _, query = target.partition("?")
    for pattern, methods in calls_of(service):
        if (found := pattern.fullmatch(path)) and method in methods:
            break
    else:
        raise AssertionError(f"the {service} service has no {method} {path}")
    call: dict[str, Any] = methods[method]
    schemas = {(one["in"], one["name"]): one["schema"] for one in call.get("parameters", ())}
    given = [("path", name, unquote(value)) for name, value in found.groupdict().items()]
    for where, name, value in [
        *given,
        *(("query", *pair) for pair in parse_qsl(query, strict_parsing=bool(query))),
    ]:
        assert (where, name) in schemas, f"{method} {path} takes no {name} in its {where}"
        _check(service, schemas[where, name], value)
    taken = call.get("requestBody", {}).get("content", {}).get("application/json")
    if body is not None and (taken is not None or body != {}):
        assert taken is not None, f"{method} {path} takes no body"
        _check(service, taken["schema"], body)
    return call


def _check(service: str, schema: dict[str, Any], value: Any) -> None:
    """Raises ValidationError; a parameter's text may be a number or a truth."""
    schema = {**schema, "components": document(service)["components"]}
    read = [value]
    if isinstance(value, str) and re.fullmatch(r"true|false|-?[0-9.]+", value):
        read.append(json.loads(value))
    validator = jsonschema.Draft202012Validator(schema)
    if not any(validator.is_valid(each) for each in read):
        validator.validate(value)


def example(service: str, schema: Any, name: str, within: tuple[str, ...] = ()) -> Any:
    """A value of a schema, with all its members but those that would hold the value itself once more."""
    if schema in (True, {}):
        return name
    if "$ref" in schema:
        ref = schema["$ref"].rpartition("/")[2]
        if ref in within:
            raise RecursionError(ref)
        return example(service, document(service)["components"]["schemas"][ref], name, (*within, ref))
    if "anyOf" in schema:
        # A list has but one page here.
        wanted = schema["anyOf"][-1 if name == "next_cursor" else 0]
        return example(service, wanted, name, within)
    if "const" in schema or "enum" in schema:
        return schema.get("const", schema.get("enum", [None])[0])
    kind = schema.get("type")
    if kind == "object":
        made = {}
        for member, inner in schema.get("properties", {}).items():
            try:
                made[member] = example(service, inner, member, within)
            except RecursionError:
                assert member not in schema.get("required", ())
        key = schema.get("propertyNames", {}).get("enum", ["of"])[0]
        return made or {key: example(service, schema.get("additionalProperties") or {}, name, within)}
    if kind == "array":
        try:
            return [example(service, schema["items"], name, within)]
        except RecursionError:
            return []
    return _simple(kind, schema.get("format"), name)


def _simple(kind: str | None, form: str | None, name: str) -> Any:
    number = crc32(name.encode()) % 997 + 1
    match kind, form:
        case "string", "date-time":
            return f"2020-01-01T{number // 60:02}:{number % 60:02}:00Z"
        case "string", None:
            return name
        case "integer" | "number", _:
            return number if kind == "integer" else number + 0.5
        case "boolean" | "null", _:
            return True if kind == "boolean" else None
        case None, _:
            return {"of": name}
    raise AssertionError(f"a {kind} like a {form}")
