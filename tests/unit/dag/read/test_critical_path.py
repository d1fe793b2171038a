"""The longest chain left, against the definition."""

from hypothesis import given
from hypothesis import strategies as st

from services.dag.read.critical_path import Left, longest, means


@st.composite
def graphs(draw: st.DrawFn) -> tuple[dict[int, Left], list[tuple[int, int]], dict[str, float]]:
    count = draw(st.integers(0, 9))
    left = {
        no: Left(draw(st.sampled_from("abc")), draw(st.none() | st.floats(0, 5)))
        for no in range(count)
        if draw(st.booleans())
    }
    pairs = [(up, down) for down in range(count) for up in range(down)]
    edges = [pair for pair in pairs if draw(st.booleans())]
    return left, draw(st.permutations(edges)), draw(st.dictionaries(st.sampled_from("abc"), st.floats(0, 9)))


@given(graphs())
def test_no_path_is_longer(graph: tuple[dict[int, Left], list[tuple[int, int]], dict[str, float]]) -> None:
    left, edges, mean_s = graph
    living = {(up, down) for up, down in edges if up in left and down in left}
    paths: list[list[int]] = [[no] for no in left]
    for path in paths:
        paths += [[*path, down] for up, down in living if up == path[-1]]

    def cost_s(no: int) -> float:
        return max(0.0, mean_s.get(left[no].topic, 0.0) - (left[no].out_s or 0.0))

    chain = longest(left, edges, mean_s)
    assert len(chain.nodes) == max(map(len, paths), default=0)
    assert all(pair in living for pair in zip(chain.nodes, chain.nodes[1:], strict=False))
    topics = {node.topic for node in left.values()}
    assert set(chain.unknown) == topics - set(mean_s)
    if topics and topics <= set(mean_s):
        assert chain.expected_s is not None
        assert abs(chain.expected_s - max(sum(map(cost_s, path)) for path in paths)) < 1e-6
    else:
        assert chain.expected_s is None


def test_means_are_by_topic() -> None:
    assert means([("a", 1.0), ("b", 5.0), ("a", 3.0)]) == {"a": 2.0, "b": 5.0}
