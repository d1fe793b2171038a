"""The longest way through what is left of a DAG; pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

KEYS_SHOWN_MAX: Final = 100


class Left(NamedTuple):
    """An unfinished node: its topic, and for how many seconds it has been released already."""

    topic: str
    out_s: float | None


class Chain(NamedTuple):
    """The most nodes that have to end one after another, by number, and how long the slowest such way takes.

    `expected_s` is None while there are `unknown` topics: no sum of what is known would be an estimate.
    """

    nodes: list[int]
    expected_s: float | None
    unknown: list[str]


def means(took: Iterable[tuple[str, float]]) -> dict[str, float]:
    """The mean of each topic's durations."""
    sums: dict[str, tuple[float, int]] = defaultdict(lambda: (0.0, 0))
    for topic, seconds in took:
        total, count = sums[topic]
        sums[topic] = (total + seconds, count + 1)
    return {topic: total / count for topic, (total, count) in sums.items()}


def longest(left: Mapping[int, Left], edges: Iterable[tuple[int, int]], mean_s: Mapping[str, float]) -> Chain:
    """The longest chain by nodes, and the longest by expected seconds.

    `edges` may name nodes that have ended; those count for nothing. Linear in nodes and edges.
    """
    downs: dict[int, list[int]] = {}
    waits = dict.fromkeys(left, 0)
    for up, down in edges:
        if up in left and down in left:
            downs.setdefault(up, []).append(down)
            waits[down] += 1
    length = dict.fromkeys(left, 0)
    seconds = dict.fromkeys(left, 0.0)
    before: dict[int, int] = {}
    order = [no for no in left if waits[no] == 0]
    for no in order:
        length[no] += 1
        seconds[no] += _cost_s(left[no], mean_s)
        for down in downs.get(no, ()):
            if length[no] > length[down]:
                length[down], before[down] = length[no], no
            seconds[down] = max(seconds[down], seconds[no])
            waits[down] -= 1
            if waits[down] == 0:
                order.append(down)
    topics = {node.topic for node in left.values()}
    unknown = sorted(topics - set(mean_s))
    expected_s = max(seconds.values()) if topics and not unknown else None
    return Chain(_path(length, before), expected_s, unknown)


def _cost_s(node: Left, mean_s: Mapping[str, float]) -> float:
    return max(0.0, mean_s.get(node.topic, 0.0) - (node.out_s or 0.0))


def _path(length: Mapping[int, int], before: Mapping[int, int]) -> list[int]:
    path = [max(length, key=lambda no: length[no])] if length else []
    while path and path[-1] in before:
        path.append(before[path[-1]])
    return path[::-1]
