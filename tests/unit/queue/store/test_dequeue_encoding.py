"""The text of leased items, where the process writes what the database writes otherwise."""

import json
from datetime import UTC, datetime

import pytest

from services.queue.store.dequeue_encoding import PARTS, Group

AT = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("microsecond", "fraction"),
    [(0, ""), (7, ".000007"), (468_220, ".46822"), (500_000, ".5"), (999_999, ".999999")],
)
def test_a_moment_is_written_with_the_digits_of_the_database(microsecond: int, fraction: str) -> None:
    group = Group(1, 2, "token", AT.replace(microsecond=microsecond), 1, 0, f"id{PARTS}null")
    item = json.loads(group.text("t"))
    assert item == {
        "id": "id",
        "topic": "t",
        "payload": None,
        "lease_token": "token",
        "lease_expires_at": f"2030-01-02T03:04:05{fraction}Z",
    }
