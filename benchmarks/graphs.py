"""Graphs to run: keys of nodes in an order that respects their edges, and the edges."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

Edge = tuple[str, str]
T = TypeVar("T")


@dataclass(frozen=True)
class Graph:
    """`keys` in a topological order, where nothing else is said; `edges` are (upstream, downstream)."""

    keys: tuple[str, ...]
    edges: tuple[Edge, ...]

    def upstreams(self) -> dict[str, list[str]]:
        """What each node waits for."""
        found: dict[str, list[str]] = {key: [] for key in self.keys}
        for upstream, downstream in self.edges:
            found[downstream].append(upstream)
        return found


def chain(nodes: int) -> Graph:
    """One after another."""
    keys = tuple(f"n{i}" for i in range(nodes))
    return Graph(keys, tuple(itertools.pairwise(keys)))


def fan(width: int) -> Graph:
    """One, then `width` at once, then one."""
    middle = tuple(f"n{i}" for i in range(width))
    edges = [("first", key) for key in middle] + [(key, "last") for key in middle]
    return Graph(("first", *middle, "last"), tuple(edges))


def wide(blocks: int, width: int) -> Graph:
    """Blocks of one, then `width` at once, then one, each after the one before."""
    keys: list[str] = []
    edges: list[Edge] = []
    for block in range(blocks):
        first, *middle, last = (f"b{block}-{i}" for i in range(width + 2))
        if keys:
            edges.append((keys[-1], first))
        edges += [(first, key) for key in middle] + [(key, last) for key in middle]
        keys += [first, *middle, last]
    return Graph(tuple(keys), tuple(edges))


def layered(nodes: int, *, layer: int, edges_per_node: int, seed: int) -> Graph:
    """Layers of `layer` nodes; each node below the first layer waits for some of the layer above, at random."""
    choose = random.Random(seed)
    keys = tuple(f"n{i}" for i in range(nodes))
    edges = []
    for i in range(layer, nodes):
        start = (i // layer - 1) * layer
        for above in choose.sample(range(start, start + layer), edges_per_node):
            edges.append((keys[above], keys[i]))
    return Graph(keys, tuple(edges))


def tail_heavy(nodes: int, *, edges: int, seed: int) -> Graph:
    """The shape of a package archive: the oldest nodes are waited for by thousands, most by few or nobody."""
    choose = random.Random(seed)
    keys = tuple(f"n{i}" for i in range(nodes))
    pairs: set[tuple[int, int]] = set()
    while len(pairs) < edges:
        down = choose.randrange(1, nodes)
        pairs.add((int(down * choose.random() ** 2.5), down))
    return Graph(keys, tuple((keys[up], keys[down]) for up, down in sorted(pairs)))


def shuffled(graph: Graph, seed: int) -> list[Edge]:
    """The edges in random order."""
    edges = list(graph.edges)
    random.Random(seed).shuffle(edges)
    return edges


def chunks(values: Sequence[T], size: int) -> list[Sequence[T]]:
    """Consecutive parts of at most `size`."""
    return [values[start : start + size] for start in range(0, len(values), size)]
