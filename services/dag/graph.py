"""The graph, without a database: what a trigger decides, which cycle an edge would close, and in what order.

`Order` keeps a topological order while edges come (Pearce and Kelly, 2006): an edge that already agrees
with the order costs a comparison, another one a search between its two ends' positions only. Where the edges of a
call have looked at as many nodes as there are, what is left of the call is sorted in at once.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Sequence
from typing import Literal, TypeVar, assert_never

from services.dag.model import Counts, Trigger

Verdict = Literal["wait", "fire", "skip"]
Name = TypeVar("Name", bound=Hashable)

# What an order takes without nodes, and an edge that came after it was loaded takes on each side.
_ORDER_BYTES = 2_048
_LATE_EDGE_BYTES = 200


def decide(trigger: Trigger, counts: Counts) -> Verdict:
    """What a node's upstreams say: `fire` and `skip` are final, `wait` is not."""
    c = counts
    match trigger:
        case "all_succeeded":
            return _unless(c.failed + c.skipped + c.cancelled, c.left)
        case "none_failed":
            return _unless(c.failed + c.cancelled, c.left)
        case "all_done":
            return "wait" if c.left else "fire"
        case "any_succeeded":
            return _first(c.ok, c.left)
        case "any_failed":
            return _first(c.failed, c.left)
        case _:
            assert_never(trigger)


def _unless(spoilers: int, left: int) -> Verdict:
    if spoilers:
        return "skip"
    return "wait" if left else "fire"


def _first(wanted: int, left: int) -> Verdict:
    if wanted:
        return "fire"
    return "wait" if left else "skip"


def sort(nodes: Sequence[Name], edges: Sequence[tuple[Name, Name]]) -> tuple[list[Name], list[Name]]:
    """Nodes in topological order (their own, where that is one), or one cycle.

    Returns (order, []) or ([], cycle); the cycle lists each node once, upstream first.
    """
    place = dict(zip(nodes, range(len(nodes)), strict=True))
    if all(place[up] < place[down] for up, down in edges):
        return list(nodes), []
    downs: dict[Name, list[Name]] = {node: [] for node in nodes}
    waits = dict.fromkeys(nodes, 0)
    for up, down in edges:
        downs[up].append(down)
        waits[down] += 1
    order = [node for node in nodes if waits[node] == 0]
    for node in order:
        for down in downs[node]:
            waits[down] -= 1
            if waits[down] == 0:
                order.append(down)
    if len(order) == len(downs):
        return order, []
    return [], _cycle_among({node for node, count in waits.items() if count}, downs)


def _cycle_among(left: set[Name], downs: dict[Name, list[Name]]) -> list[Name]:
    """A cycle within `left`, each of whose nodes has an upstream in it: walk upstream until a node repeats."""
    up_of = {down: up for up in left for down in downs[up] if down in left}
    node = next(iter(up_of))
    seen: dict[Name, int] = {}
    path: list[Name] = []
    while node not in seen:
        seen[node] = len(path)
        path.append(node)
        node = up_of[node]
    return path[seen[node] :][::-1]


class Order:
    """A topological order of nodes 0, 1, 2, ... that is kept while edges come.

    What is loaded stands in arrays, four bytes a number: the downstreams of all nodes one after another, and where
    each node's begin; likewise the upstreams. Edges that come later stand beside.
    """

    def __init__(self) -> None:
        self._position = array("I")
        self._downs = _Lists(0, (), ())
        self._ups = _Lists(0, (), ())
        # Nodes that were looked at for edges that disagreed.
        self._visited = 0
        # The structure that this order knows; None while a change is not committed.
        self.version: int | None = None

    @property
    def edges(self) -> int:
        """How many it knows."""
        return self._downs.edges

    @property
    def bytes(self) -> int:
        """About what it takes in memory."""
        return _ORDER_BYTES + 4 * len(self._position) + self._downs.bytes + self._ups.bytes

    @staticmethod
    def loaded_bytes(nodes: int, edges: int) -> int:
        """What one takes that was loaded with so many."""
        return _ORDER_BYTES + 4 * (3 * nodes + 2 + 2 * edges)

    @property
    def late_edges(self) -> int:
        """Edges that have come since it was loaded; each takes much more than a loaded one."""
        return self._downs.late_edges

    def grow(self, count: int) -> None:
        """Know nodes below `count`; new ones come last."""
        self._position.extend(range(len(self._position), count))

    def load(self, ups: array[int], downs: array[int], count: int) -> None:
        """Begin with edges among nodes below `count` that are known to be acyclic."""
        self.grow(count)
        self._downs = _Lists(count, ups, downs)
        self._ups = _Lists(count, downs, ups)
        if any(up > down for up, down in zip(ups, downs, strict=True)):
            self._sort_between(0, count)

    def insert_all(self, edges: Sequence[tuple[int, int]]) -> list[int]:
        """Add edges. Returns [] or, with nothing changed, a cycle that they would close."""
        visits_max = self._visited + len(self._position)
        for place, edge in enumerate(edges):
            together = self._visited > visits_max and len(edges) - place > 1
            cycle = self._insert_together(edges[place:]) if together else self.insert(*edge)
            if cycle:
                self.remove(edges[:place])
                return cycle
            if together:
                break
        return []

    def _insert_together(self, edges: Sequence[tuple[int, int]]) -> list[int]:
        """As `insert_all`, by sorting once all that stands between the ends of edges that disagree."""
        position = self._position
        against = [(position[down], position[up]) for up, down in edges if position[up] >= position[down]]
        for up, down in edges:
            self._downs.add(up, down)
            self._ups.add(down, up)
        if not against:
            return []
        cycle = self._sort_between(min(low for low, _ in against), max(high for _, high in against))
        if cycle:
            self.remove(edges)
        return cycle

    def insert(self, up: int, down: int) -> list[int]:
        """Add an edge. Returns [] or, with nothing changed, the cycle it would close (each node once)."""
        if up == down:
            return [up]
        low, high = self._position[down], self._position[up]
        if high > low:
            ahead, cycle = self._ahead(down, high, up)
            self._visited += len(ahead)
            if cycle:
                return cycle
            behind = self._behind(up, low)
            self._visited += len(behind)
            self._reorder(ahead, behind)
        self._downs.add(up, down)
        self._ups.add(down, up)
        return []

    def remove(self, edges: Sequence[tuple[int, int]]) -> None:
        """Take back edges just inserted; an order of more edges is one of fewer. The last goes first, which is
        the last of its nodes, too."""
        for up, down in reversed(edges):
            self._downs.remove(up, down)
            self._ups.remove(down, up)

    def _ahead(self, start: int, high: int, target: int) -> tuple[list[int], list[int]]:
        """What `start` reaches up to position `high`; or the cycle, if `target` is among it."""
        came: dict[int, int] = {start: -1}
        stack = [start]
        while stack:
            node = stack.pop()
            for down in self._downs.of(node):
                if down == target:
                    return [], [target, *self._path(came, node)]
                if down not in came and self._position[down] < high:
                    came[down] = node
                    stack.append(down)
        return list(came), []

    @staticmethod
    def _path(came: dict[int, int], node: int) -> list[int]:
        path = []
        while node != -1:
            path.append(node)
            node = came[node]
        return path[::-1]

    def _behind(self, start: int, low: int) -> list[int]:
        found = {start}
        stack = [start]
        while stack:
            for up in self._ups.of(stack.pop()):
                if up not in found and self._position[up] > low:
                    found.add(up)
                    stack.append(up)
        return list(found)

    def _reorder(self, ahead: list[int], behind: list[int]) -> None:
        """Put all that is behind the new edge before all that is ahead of it, into the places they hold."""
        position = self._position
        nodes = sorted(behind, key=position.__getitem__) + sorted(ahead, key=position.__getitem__)
        places = sorted(position[node] for node in nodes)
        for node, place in zip(nodes, places, strict=True):
            position[node] = place

    def _sort_between(self, low: int, high: int) -> list[int]:
        """Sort the nodes of these positions; none has an upstream above. Returns [] or, with nothing changed, a
        cycle among them (each node once)."""
        position = self._position
        nodes = sorted(
            [node for node, place in enumerate(position) if low <= place <= high], key=position.__getitem__
        )
        waits = {node: sum(position[up] >= low for up in self._ups.of(node)) for node in nodes}
        order = [node for node in nodes if not waits[node]]
        for node in order:
            for down in self._downs.of(node):
                if position[down] <= high:
                    waits[down] -= 1
                    if not waits[down]:
                        order.append(down)
        if len(order) < len(nodes):
            return self._cycle_in({node for node, left in waits.items() if left})
        for place, node in enumerate(order, low):
            position[node] = place
        return []

    def _cycle_in(self, left: set[int]) -> list[int]:
        """A cycle within `left`, each of whose nodes has an upstream in it."""
        seen: dict[int, int] = {}
        path: list[int] = []
        node = next(iter(left))
        while node not in seen:
            seen[node] = len(path)
            path.append(node)
            node = next(up for up in self._ups.of(node) if up in left)
        return path[seen[node] :][::-1]


class _Lists:
    """A list of nodes for each node below `count`: the `targets` of the edges that have it as their source."""

    def __init__(self, count: int, sources: Sequence[int], targets: Sequence[int]) -> None:
        self._begins = array("I", [0]) * (count + 1)
        for source in sources:
            self._begins[source + 1] += 1
        total = 0
        for node in range(count + 1):
            total += self._begins[node]
            self._begins[node] = total
        self._targets = array("I", [0]) * total
        free = self._begins[:-1]
        for source, target in zip(sources, targets, strict=True):
            self._targets[free[source]] = target
            free[source] += 1
        self._late: dict[int, list[int]] = {}
        self.late_edges = 0

    @property
    def edges(self) -> int:
        return len(self._targets) + self.late_edges

    @property
    def bytes(self) -> int:
        return 4 * (len(self._begins) + len(self._targets)) + _LATE_EDGE_BYTES * self.late_edges

    def of(self, node: int) -> Sequence[int]:
        late = self._late.get(node, [])
        if node + 1 >= len(self._begins):
            return late
        found = self._targets[self._begins[node] : self._begins[node + 1]]
        return [*found, *late] if late else found

    def add(self, node: int, target: int) -> None:
        self._late.setdefault(node, []).append(target)
        self.late_edges += 1

    def remove(self, node: int, target: int) -> None:
        late = self._late[node]
        if late[-1] == target:
            late.pop()
        else:
            late.remove(target)
        self.late_edges -= 1
        if not late:
            del self._late[node]
