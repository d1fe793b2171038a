"""Many ids are judged as each would be alone."""

from hypothesis import example, given
from hypothesis import strategies as st

from shared.ids import canonical, canonicals, new_ids

ID = "01890a5d-ac96-774b-bcce-b302099af000"


@given(
    st.integers(0, 8),
    st.integers(0, 8),
    st.integers(0, 36),
    st.sampled_from("-0789abfgA \u0664é\0"),
    st.integers(0, 2),
)
@example(0, 1, 0, "-", 1)
@example(0, 1, 14, "8", 1)
@example(0, 1, 19, "7", 1)
@example(0, 1, 20, "g", 1)
@example(0, 1, 20, "A", 1)
@example(0, 1, 8, "0", 1)
@example(0, 1, 20, "\u0664", 1)
@example(0, 1, 36, "0", 0)
@example(7, 8, 36, "0", 0)
def test_many_ids_are_judged_as_each_alone(first: int, second: int, place: int, char: str, cut: int) -> None:
    ids = [*new_ids(3, 8), ID]
    ids[first] = ids[first][:place] + char + ids[first][place + cut :]
    # A neighbour that is shorter by as much, so that all together are as long as they should be.
    ids[second] = ids[second][1:] if len(ids[first]) > len(ID) else ids[second]

    assert canonicals(ids) == list(map(canonical, ids))


def test_many_good_ids() -> None:
    ids = new_ids(4_095, 1_000)

    assert canonicals(ids) == ids
    assert canonicals([item_id.upper() for item_id in ids]) == ids
