"""The graphs that are measured are the graphs that are described."""

from collections import Counter

from benchmarks.graphs import Graph, chain, chunks, fan, layered, shuffled, tail_heavy
from benchmarks.scenarios.shapes import in_order as ordered


def in_order(graph: Graph) -> bool:
    place = {key: i for i, key in enumerate(graph.keys)}
    return all(place[upstream] < place[downstream] for upstream, downstream in graph.edges)


def test_a_chain_has_one_edge_less_than_nodes() -> None:
    graph = chain(100)
    assert len(graph.keys) == 100 and len(graph.edges) == 99 and in_order(graph)


def test_a_fan_meets_again() -> None:
    graph = fan(998)
    assert len(graph.keys) == 1_000 and in_order(graph)
    assert len(graph.upstreams()["last"]) == 998 and graph.upstreams()["first"] == []


def test_layers_have_the_same_shape_at_every_size() -> None:
    for nodes in (1_000, 2_000):
        graph = layered(nodes, layer=50, edges_per_node=3, seed=1)
        degrees = Counter(downstream for _, downstream in graph.edges)
        assert len(graph.edges) == (nodes - 50) * 3 == len(set(graph.edges)) and in_order(graph)
        assert set(degrees.values()) == {3}
        for upstream, downstream in graph.edges:
            assert int(downstream[1:]) // 50 - int(upstream[1:]) // 50 == 1


def test_the_same_seed_is_the_same_graph() -> None:
    one, two = (layered(200, layer=50, edges_per_node=3, seed=7) for _ in range(2))
    assert one == two
    assert shuffled(one, 3) == shuffled(two, 3) != list(one.edges)
    assert sorted(shuffled(one, 3)) == sorted(one.edges)


def test_no_edge_is_lost_between_calls() -> None:
    edges = list(range(2_501))
    calls = chunks(edges, 1_000)
    assert [len(call) for call in calls] == [1_000, 1_000, 501]
    assert [edge for call in calls for edge in call] == edges


def test_a_package_archive_has_few_that_many_wait_for() -> None:
    graph = tail_heavy(2_000, edges=8_000, seed=1)
    popularity = Counter(upstream for upstream, _ in graph.edges)
    assert len(set(graph.edges)) == 8_000 and in_order(graph)
    assert popularity["n0"] > 100 and sum(not popularity[key] for key in graph.keys) > 200


def test_keys_are_put_in_an_order_that_respects_the_edges() -> None:
    graph = tail_heavy(200, edges=600, seed=2)
    assert in_order(ordered(list(reversed(graph.keys)), graph.edges))
