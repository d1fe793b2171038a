"""Each call that changes something is kept in the audit log, or is one that programs make all the time."""

import json

import pytest

from services.local.stack import ROOT
from shared.console.audit_log import PAGE_HEADER, _named

# What producers and consumers call.
PROGRAMS = {
    "queue": {
        "ack",
        "cancel",
        "dequeue",
        "enqueue",
        "extend",
        "items/attempts",
        "items/states",
        "logs",
        "nack",
        "revive",
        "workers",
    },
    "dag": {
        "dags",
        "dags/{dag}/dependencies",
        "dags/{dag}/expand",
        "dags/{dag}/nodes",
        "dags/{dag}/turn",
        "dags/{dag}/values/{key}",
        "workflows",
        "workflows/{workflow}/signals",
        "workflows/{workflow}/updates",
    },
}


@pytest.mark.parametrize("service", PROGRAMS)
def test_every_call_that_changes_something_is_kept_or_is_one_of_programs(service: str) -> None:
    paths = json.loads((ROOT / "docs" / "openapi" / f"{service}.json").read_text())["paths"]
    left = set()
    for path, methods in paths.items():
        for method in methods.keys() & {"post", "put", "patch", "delete"}:
            scope = {"method": method.upper(), "path": path, "headers": [(PAGE_HEADER, b"1")]}
            if _named(scope) is None:
                left.add(path.removeprefix("/v1/namespaces/{ns}/"))
    assert left == PROGRAMS[service]
