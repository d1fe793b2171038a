"""Many ids are judged as each would be alone."""

from hypothesis import example, given
from hypothesis import strategies as st

from shared.ids import DAG_TAG, canonical, canonicals, dag_tags, new_ids, one_shard_of, shard_of

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


@given(st.lists(st.sampled_from([0, 1, 16, 256, 4_095]), max_size=9))
def test_ids_of_one_shard(shards: list[int]) -> None:
    ids = [item_id for shard in shards for item_id in new_ids(shard, 1)]

    assert one_shard_of(ids) == (shards[0] if len(set(shards)) == 1 else None)
    assert list(map(shard_of, ids)) == shards


def test_kins_of_many() -> None:
    ids = new_ids(4_095, 100)

    assert dag_tags(ids) == {item_id[DAG_TAG].encode() for item_id in ids}
    assert dag_tags([]) == set()
