"""Cursors are opaque, and good for one list only."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import Invalid
from shared.http import cursors


@given(st.text(), st.text())
def test_a_cursor_leads_back_to_its_position(query: str, position: str) -> None:
    assert cursors.decode(query, cursors.encode(query, position)) == position


@given(st.text(max_size=40))
def test_junk_is_refused(junk: str) -> None:
    with pytest.raises(Invalid):
        cursors.decode("nodes|x", junk)


@pytest.mark.parametrize(("field", "values"), [("n", [0, 2, 10, 4095]), ("name", ["A", "a", "a.b", "b"])])
def test_a_whole_list_in_pages_is_the_list(field: str, values: list[str | int]) -> None:
    found = [{field: value} for value in values]
    for limit in range(1, len(values) + 1):
        pages, cursor = [cursors.cut("q", found, field, limit, None)], None
        while (cursor := pages[-1]["next_cursor"]) is not None:
            pages.append(cursors.cut("q", found, field, limit, cursor))
        assert [entry for page in pages for entry in page["items"]] == found
        assert len(pages) == -(-len(values) // limit)


def test_another_lists_cursor_is_refused() -> None:
    with pytest.raises(Invalid):
        cursors.decode("nodes|failed", cursors.encode("nodes|blocked", "5"))
