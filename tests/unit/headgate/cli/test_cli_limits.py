"""`headgate limits`: what topics hand out at most."""

import json
from typing import Any

import pytest

from tests.unit.headgate.conftest import Run
from tests.unit.headgate.fakes import Service

SET = {
    "topic": "bank",
    "rate": 5.0,
    "burst": 2,
    "concurrency": 3,
    "key_rate": None,
    "key_burst": 1,
    "key_concurrency": None,
    "in_flight": 1,
    "throttled_until": None,
    "throttled_keys": [],
}
UNTIL = "2030-01-01T00:00:00Z"


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
    assert run("limits")[1].splitlines()[-1].split() == ["bank", "5", "2", "3", "1", "-", "-"]
    assert json.loads(run("limits", "-o", "json")[1]) == [SET]
    assert "5 a second, 2 at once" in run("limits", "bank")[1]
    answers(service)
    assert run("limits", "other")[1].count("no limit") == 2
    assert run("limits")[1] == "no topic has limits, and none is throttled\n"


def test_throttles_are_shown_and_ended(service: Service, run: Run) -> None:
    sent = answers(service, {**SET, "throttled_until": UNTIL, "throttled_keys": [{"key": "acme", "until": UNTIL}]})
    for arguments in (["limits"], ["limits", "bank"]):
        shown = run(*arguments)[1]
        assert shown.count("2030-01-01") == 2
        assert "acme until" in shown
    assert run("limits", "bank", "--unthrottle")[0] == 0
    assert run("limits", "bank", "--unthrottle", "--key", "acme")[0] == 0
    assert sent == [{"topic": "bank"}, {"topic": "bank", "key": "acme"}]
    assert [target.rpartition("/")[2] for method, target, _ in service.calls if method == "POST"] == [
        "unthrottle"
    ] * 2


KEPT = {"rate": 5.0, "burst": 2, "concurrency": 3}


@pytest.mark.parametrize(
    ("options", "body"),
    [
        (["--concurrency", "7"], {"rate": 5.0, "burst": 2, "concurrency": 7}),
        (["--rate", "0.5"], {"rate": 0.5, "concurrency": 3}),
        (["--rate", "9", "--burst", "1"], {"rate": 9.0, "burst": 1, "concurrency": 3}),
        (["--burst", "4"], {"rate": 5.0, "burst": 4, "concurrency": 3}),
        (["--rate", "none"], {"concurrency": 3}),
        (["--concurrency", "none"], {"rate": 5.0, "burst": 2}),
        (["--key-concurrency", "1"], {"rate": 5.0, "burst": 2, "concurrency": 3, "key_concurrency": 1}),
        (["--key-rate", "2", "--key-burst", "3"], {**KEPT, "key_rate": 2.0, "key_burst": 3}),
        (["--clear"], {}),
    ],
)
def test_what_is_not_named_stays(service: Service, run: Run, options: list[str], body: dict[str, Any]) -> None:
    sent = answers(service, SET)
    assert run("limits", "bank", *options)[0] == 0
    assert sent == [{"topic": "bank", **body}]


@pytest.mark.parametrize(
    "options",
    [
        ["--rate", "5"],
        ["--clear"],
        ["bank", "--clear", "--rate", "5"],
        ["--unthrottle"],
        ["bank", "--key", "acme"],
        ["bank", "--unthrottle", "--rate", "5"],
    ],
)
def test_what_cannot_be_meant_is_not_sent(service: Service, run: Run, options: list[str]) -> None:
    sent = answers(service, SET)
    code, _, error = run("limits", *options)
    assert (code, sent) == (2, [])
    assert "see --help" in error
