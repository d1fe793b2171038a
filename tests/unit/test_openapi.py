"""The OpenAPI documents in `docs/openapi/` are those of the services as they are."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from headgate import wire
from services.local.stack import ROOT
from tests.support.openapi import documents

DIRECTORY = ROOT / "docs" / "openapi"


@pytest.mark.parametrize("service", ["queue", "dag"])
async def test_document_is_that_of_the_service(service: str) -> None:
    found = await documents()
    assert (DIRECTORY / f"{service}.json").read_text() == found[service], (
        "run `make openapi` and look at the change"
    )


@pytest.mark.parametrize("service", ["queue", "dag"])
def test_protocol_page_names_every_call(service: str) -> None:
    """Every path of the documents stands in docs/protocol.md, in the short form used there."""
    page = (ROOT / "docs" / "protocol.md").read_text()
    missing = [
        path for path in _paths(service) if f"{_short(path)}`" not in page and f"{_short(path)}?" not in page
    ]
    assert missing == []


@pytest.mark.parametrize("service", ["queue", "dag"])
def test_every_call_says_in_a_line_what_it_does(service: str) -> None:
    document: dict[str, Any] = json.loads((DIRECTORY / f"{service}.json").read_text())
    lines = [call["summary"] for methods in document["paths"].values() for call in methods.values()]
    assert len(set(lines)) == len(lines)
    assert all(line and "\n" not in line for line in lines)


@pytest.mark.parametrize("service", ["queue", "dag"])
def test_calls_say_what_a_namespace_looks_like_and_whether_a_body_is_needed(service: str) -> None:
    """What the document allows, the service takes: generated clients and fuzzers go by it."""
    document: dict[str, Any] = json.loads((DIRECTORY / f"{service}.json").read_text())
    needed = set()
    for path, methods in document["paths"].items():
        for call in methods.values():
            for parameter in call.get("parameters", ()):
                assert parameter["name"] != "ns" or parameter["schema"]["pattern"] == wire.NAMESPACE_PATTERN
            if call.get("requestBody", {}).get("required"):
                needed.add(path.rpartition("/")[2])
    assert needed >= ({"ack", "cancel", "pause"} if service == "queue" else {"resolve", "nodes", "skip"})
    assert "dags" not in needed


# What all of Python, Rust and ECMA-262 (with its flag `u`) read alike: anchors, classes of plain characters and
# ranges, an escaped dot, `(?:...)`, `|`, and counts. No flags inside, no names, no classes by letter.
_CLASS = r"\[\^?(?:[^\]\[\\]|\\u[0-9a-f]{4})+\]"
_PART = rf"(?:{_CLASS}|\(\?:|\)|\||\\\.|[A-Za-z0-9:;,_ -])(?:[?*+]|\{{[0-9]+(?:,[0-9]*)?\}})?"
_ECMA_262 = re.compile(rf"\^(?:{_PART})*\$").fullmatch


@pytest.mark.parametrize("service", ["queue", "dag"])
def test_patterns_are_such_as_generated_clients_can_read(service: str) -> None:
    patterns = set(_patterns(json.loads((DIRECTORY / f"{service}.json").read_text())))
    assert patterns and [pattern for pattern in patterns if not _ECMA_262(pattern)] == []
    assert not any(map(_ECMA_262, ("^(?i)a$", "^(?P<a>b)$", r"\Aa\Z", r"^\d+$", "^a++$", "a", "^(?i:a)$")))


def _patterns(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if isinstance(part.get("pattern"), str):
            yield part["pattern"]
        part = list(part.values())
    for each in part if isinstance(part, list) else ():
        yield from _patterns(each)


def _paths(service: str) -> list[str]:
    document: dict[str, Any] = json.loads((DIRECTORY / f"{service}.json").read_text())
    return list(document["paths"])


def _short(path: str) -> str:
    """`/v1/namespaces/{ns}/dags/{dag}/cancel` is written `/dags/{dag}/cancel` below its namespace."""
    return re.sub(r"^/v1/namespaces/\{ns\}(?=/)", "", path)
