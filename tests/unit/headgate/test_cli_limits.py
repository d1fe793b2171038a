"""`headgate limits`: what topics hand out at most."""

import json
from typing import Any

import pytest

from tests.unit.headgate.conftest import Run
from tests.unit.headgate.fakes import Service

SET = {"topic": "bank", "rate": 5.0, "burst": 2, "concurrency": 3, "in_flight": 1}


def answers(service: Service, *found: dict[str, Any]) -> list[dict[str, Any]]:
    """Have a service list these limits, and take others; what it is sent."""
    sent: list[dict[str, Any]] = []

    def reply(method: str, _target: str, body: Any) -> dict[str, Any]:
        if method == "GET":
            return {"items": list(found), "next_cursor": None}
        sent.append(body)
        return {**body, "burst": body.get("burst", 1), "in_flight": 0}

    service.reply = reply
    return sent


def test_limits_are_listed(service: Service, run: Run) -> None:
    answers(service, SET)
    assert run("limits")[1].split()[-5:] == ["bank", "5", "2", "3", "1"]
    assert json.loads(run("limits", "-o", "json")[1]) == [SET]
    assert "5 a second, 2 at once" in run("limits", "bank")[1]
    assert run("limits", "other")[1].count("no limit") == 2
    answers(service)
    assert run("limits")[1] == "no topic has limits\n"


@pytest.mark.parametrize(
    ("options", "body"),
    [
        (["--concurrency", "7"], {"rate": 5.0, "burst": 2, "concurrency": 7}),
        (["--rate", "0.5"], {"rate": 0.5, "concurrency": 3}),
        (["--rate", "9", "--burst", "1"], {"rate": 9.0, "burst": 1, "concurrency": 3}),
        (["--burst", "4"], {"rate": 5.0, "burst": 4, "concurrency": 3}),
        (["--rate", "none"], {"concurrency": 3}),
        (["--concurrency", "none"], {"rate": 5.0, "burst": 2}),
        (["--clear"], {}),
    ],
)
def test_what_is_not_named_stays(service: Service, run: Run, options: list[str], body: dict[str, Any]) -> None:
    sent = answers(service, SET)
    assert run("limits", "bank", *options)[0] == 0
    assert sent == [{"topic": "bank", **body}]


@pytest.mark.parametrize("options", [["--rate", "5"], ["--clear"], ["bank", "--clear", "--rate", "5"]])
def test_what_cannot_be_meant_is_not_sent(service: Service, run: Run, options: list[str]) -> None:
    sent = answers(service, SET)
    code, _, error = run("limits", *options)
    assert (code, sent) == (2, [])
    assert "see --help" in error
