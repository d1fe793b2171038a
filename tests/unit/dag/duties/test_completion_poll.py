"""Completion items as the service reads them."""

from typing import Any

import pytest

from services.dag.duties.completion_poll import ending_of

CONTEXT = {"dag": "01890000-0000-7000-8000-000000000000", "node": "a", "generation": 2}


@pytest.mark.parametrize(
    ("outcome", "state"),
    [("acked", "succeeded"), ("dead", "failed"), ("expired", "failed"), ("cancelled", "cancelled")],
)
def test_outcomes_become_states(outcome: str, state: str) -> None:
    payload = {"outcome": outcome, "attempt": 3, "finished_at": "2026-01-01T00:00:00Z", "ack_context": CONTEXT}
    ending = ending_of(payload)
    assert ending is not None
    assert (ending.state, ending.attempts, ending.generation, ending.output) == (state, 3, 2, None)


def test_an_output_of_null_is_an_output() -> None:
    ending = ending_of({"outcome": "acked", "ack_context": CONTEXT, "output": None})
    assert ending is not None and ending.output == "null"


@pytest.mark.parametrize(
    "payload",
    [
        None,
        [],
        "text",
        {},
        {"outcome": "acked"},
        {"outcome": "acked", "ack_context": "x"},
        {"outcome": "lost", "ack_context": CONTEXT},
        {"outcome": "acked", "ack_context": {**CONTEXT, "dag": 7}},
        {"outcome": "acked", "ack_context": {**CONTEXT, "dag": "nope"}},
        {"outcome": "acked", "ack_context": {**CONTEXT, "generation": "1"}},
        {"outcome": "acked", "ack_context": CONTEXT, "finished_at": "yesterday"},
    ],
)
def test_anything_else_is_not_ours(payload: Any) -> None:
    assert ending_of(payload) is None
