"""The OpenAPI documents in `docs/openapi/` are those of the services as they are."""

import json
import re
from typing import Any

import pytest

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


def _paths(service: str) -> list[str]:
    document: dict[str, Any] = json.loads((DIRECTORY / f"{service}.json").read_text())
    return list(document["paths"])


def _short(path: str) -> str:
    """`/v1/namespaces/{ns}/dags/{dag}/cancel` is written `/dags/{dag}/cancel` below its namespace."""
    return re.sub(r"^/v1/namespaces/\{ns\}(?=/)", "", path)
