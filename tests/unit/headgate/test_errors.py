"""Every answer that is not a success becomes the right exception."""

import json
from typing import Any

import pytest

from headgate import errors


def problem(status: int, code: str, **more: Any) -> errors.HeadgateError:
    body = {"title": "T", "status": status, "code": code, "outcome": "none", **more}
    return errors.from_problem(status, json.dumps(body).encode(), {})


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "not_json", errors.BadRequest),
        (400, "too_deep", errors.BadRequest),
        (401, "unauthorized", errors.Unauthorized),
        (403, "forbidden", errors.Forbidden),
        (404, "not_found", errors.NotFound),
        (405, "method_not_allowed", errors.BadRequest),
        (409, "node_exists", errors.NodeExists),
        (409, "node_released", errors.NodeReleased),
        (409, "dag_finished", errors.DagFinished),
        (409, "dag_cancelling", errors.DagCancelling),
        (409, "nothing_to_retry", errors.NothingToRetry),
        (409, "parent_waits", errors.ParentWaits),
        (409, "added_later", errors.Conflict),
        (413, "too_large", errors.TooLarge),
        (415, "unsupported_media_type", errors.BadRequest),
        (422, "invalid", errors.Invalid),
        (422, "cycle", errors.Cycle),
        (422, "unknown_node", errors.UnknownNode),
        (429, "over_quota", errors.OverQuota),
        (500, "internal", errors.ServerError),
        (503, "shard_unavailable", errors.Unavailable),
        (507, "whatever", errors.ServerError),
    ],
)
def test_a_problem_is_known_by_its_code_then_by_its_status(
    status: int, code: str, kind: type[errors.HeadgateError]
) -> None:
    error = problem(status, code)
    assert type(error) is kind
    assert (error.status, error.code, error.outcome) == (status, code, "none")


def test_a_problem_keeps_its_pointers_and_shows_them() -> None:
    error = problem(422, "invalid", detail="no", errors=[{"pointer": "/items/0", "detail": "bad"}, 7])
    assert [(fault.pointer, fault.detail) for fault in error.errors] == [("/items/0", "bad")]
    assert str(error) == "no (/items/0: bad)"
    told = [{"pointer": "/items/0/topic", "detail": "must be"}, {"pointer": "/items/1", "detail": "is missing"}]
    error = problem(422, "invalid", detail="/items/0/topic: must be, and 1 more", errors=told)
    assert str(error) == "/items/0/topic: must be, and 1 more (/items/1: is missing)", "each fault once"


def test_an_outcome_that_is_not_none_counts_as_unknown() -> None:
    assert problem(503, "unavailable", outcome="unknown").outcome == "unknown"
    assert problem(503, "unavailable", outcome=None).outcome == "unknown"


@pytest.mark.parametrize(
    ("status", "content", "kind", "outcome"),
    [
        (404, b"<html>nginx</html>", errors.BadAnswer, "none"),
        (429, b"", errors.OverQuota, "none"),
        (500, b"[]", errors.ServerError, "unknown"),
        (500, b"[" * 100_000, errors.ServerError, "unknown"),
        (502, b"\xff\xfe", errors.GatewayError, "unknown"),
        (503, b'{"detail": "no code"}', errors.Unavailable, "unknown"),
        (504, b"", errors.GatewayError, "unknown"),
    ],
)
def test_what_no_headgate_service_wrote_is_told_apart(
    status: int, content: bytes, kind: type[errors.HeadgateError], outcome: str
) -> None:
    error = errors.from_problem(status, content, {})
    assert type(error) is kind
    assert error.outcome == outcome


@pytest.mark.parametrize(
    ("text", "seconds"), [("2.5", 2.5), ("-1", 0.0), ("Wed, 21 Oct 2015 07:28:00 GMT", None), ("", None)]
)
def test_retry_after_is_read_in_seconds(text: str, seconds: float | None) -> None:
    assert errors.from_problem(503, b"", {"retry-after": text}).retry_after_s == seconds


def test_the_tree_in_the_docstring_names_every_class_and_no_other() -> None:
    assert errors.__doc__ is not None
    drawn = {line.split("─ ")[1].split()[0] for line in errors.__doc__.splitlines() if "─ " in line}
    there = {
        name
        for name, thing in vars(errors).items()
        if isinstance(thing, type) and issubclass(thing, errors.HeadgateError)
    }
    assert drawn == there - {"HeadgateError"}
