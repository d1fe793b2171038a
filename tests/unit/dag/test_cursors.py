"""Cursors are opaque, and good for one list only."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.dag import cursors
from shared.errors import Invalid


@given(st.text(), st.text())
def test_a_cursor_leads_back_to_its_position(query: str, position: str) -> None:
    assert cursors.decode(query, cursors.encode(query, position)) == position


@given(st.text(max_size=40))
def test_junk_is_refused(junk: str) -> None:
    with pytest.raises(Invalid):
        cursors.decode("nodes|x", junk)


def test_another_lists_cursor_is_refused() -> None:
    with pytest.raises(Invalid):
        cursors.decode("nodes|failed", cursors.encode("nodes|blocked", "5"))
