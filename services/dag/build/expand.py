"""A running node expands itself: its children come before everything that waits for it.

What waits for the node when it expands waits for the children too, by edges that are added with them; what
is made to wait for it later is given those edges then. So nothing but edges has to be remembered, and
triggers, retries and cancels know nothing of expansions. A child may expand itself again.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import NamedTuple

from services.dag import store
from services.dag.build import addition
from services.dag.build.addition import Existing, Plan
from services.dag.errors import Cycle, LimitExceeded, NodeNotRunning, NodeReleased, UnknownNode, reopening_error
from services.dag.model import Dag, NewEdge, NewNode, Node, NodeNo
from shared.errors import FieldError, invalid
from shared.postgres.connections import Transaction


class Expansion(NamedTuple):
    """Which node expands itself; with `generation` only that one may."""

    node: str
    generation: int | None


# Who is below whom by expansions, by keys: children, and the children's, however deep. None: a node of the call.
_Below = dict[str, dict[str, Node | None]]


async def widen(
    tx: Transaction,
    dag: Dag,
    nodes: Sequence[NewNode],
    adding: Plan,
    existing: Existing,
    expansion: Expansion | None,
    edges_max: int,
) -> list[str]:
    """Add to `adding` the edges from children to what waits; the keys that are to be children from now on.

    What waits is bound in any state: what has begun or ended stays as it is, and its next generation waits.

    Raises:
        UnknownNode: the DAG does not have the node that expands itself.
        NodeNotRunning: it is not released, or in another generation.
        DagReopening: what waits for it is perhaps still to be reopened.
        Cycle: what is to be a child has the node below it, or waits for it.
        NodeReleased: an edge into what has begun is met by its upstream and not by that one's children.
        LimitExceeded: that would be over `edges_max` edges.
    """
    fresh: list[str] = []
    below: _Below = {}
    mapper: Node | None = None
    if expansion is not None:
        mapper = existing.nodes.get(expansion.node)
        if mapper is None:
            errors = [FieldError("/node", "there is no node with this key")]
            raise UnknownNode("the DAG does not have the node that is to be expanded", errors=errors)
        below = await _below(tx, [mapper])
        keys = dict.fromkeys(node.key for node in nodes)
        fresh = [key for key in keys if key != mapper.key and key not in below[mapper.key]]
        if not adding.empty or fresh:
            _check_running(mapper, expansion)
            if dag.reopening:
                raise reopening_error()
            if mapper.run_on is not None or any(node.run_on is not None for node in nodes):
                raise invalid("/nodes", "cleanup and compensation are no children of a node")
    roots = dict.fromkeys((*fresh, *(edge.upstream for edge in (*adding.edges, *adding.met))))
    below |= await _below(tx, [existing.nodes[key] for key in roots if key in existing.nodes and key not in below])
    waiting: list[Node] = []
    family: dict[str, Node | None] = {}
    if mapper is not None and fresh:
        waiting = await _waiting(tx, mapper, below[mapper.key])
        _check_adopted(mapper, fresh, below, waiting)
        family = _adopt(below, mapper.key, fresh)
    _check_met(adding, below)
    pairs = _late(adding, existing, below, edges_max)
    if family:
        _check_count(len(pairs) + len(family) * len(waiting), edges_max)
        _show(existing, family)
        existing.nodes.update({node.key: node for node in waiting})
        pairs.update(dict.fromkeys((child, node.key) for child in family for node in waiting))
    await _append(tx, pairs, adding, existing)
    return fresh


async def _below(tx: Transaction, roots: Sequence[Node]) -> _Below:
    """The present children of these nodes."""
    keys = {root.no: root.key for root in roots}
    found: _Below = {key: {} for key in keys.values()}
    for no, child in await store.expansions.descendants(tx, list(keys)) if keys else ():
        found[keys[no]][child.key] = child
    return found


def _adopt(below: _Below, mapper: str, fresh: Sequence[str]) -> dict[str, Node | None]:
    """A node has these children from now on, and theirs, and so has whoever is above it; all of them."""
    family: dict[str, Node | None] = {}
    for key in fresh:
        family |= {key: None} | below.get(key, {})
    for root, children in below.items():
        if root == mapper or mapper in children:
            below[root] = children | family
    return family


def _show(existing: Existing, children: Mapping[str, Node | None]) -> None:
    """Who is bound by new edges is among what stands."""
    for key, child in children.items():
        if child is not None:
            existing.nodes[key] = child


async def _waiting(tx: Transaction, mapper: Node, children: Container[str]) -> list[Node]:
    """What waits for a node. What is below it already and waits for it waits for it alone, or two such would wait
    for each other."""
    return [node for node in await store.expansions.downstreams(tx, mapper.no) if node.key not in children]


def _check_adopted(mapper: Node, fresh: Sequence[str], below: _Below, waiting: Sequence[Node]) -> None:
    """Nothing is below itself; and what waits for a node waits for its children, so it cannot become one.

    Raises:
        Cycle
    """
    waiters = {node.key for node in waiting}
    for key in fresh:
        for brought in (key, *below.get(key, ())):
            if brought == mapper.key:
                raise Cycle(f"a node would be a child of its own child: {brought} -> {key} -> {brought}")
            if brought in waiters:
                raise Cycle(
                    f"a node would wait for itself: {brought} waits for {mapper.key}, and so for its children, "
                    f"one of which it would be with {key}: {mapper.key} -> {brought} -> {brought}"
                )


def _check_running(mapper: Node, expansion: Expansion) -> None:
    if mapper.state != "released":
        raise NodeNotRunning(f"the node is {mapper.state}; only a node that runs can expand itself")
    if expansion.generation not in (None, mapper.generation):
        raise NodeNotRunning(f"the node runs in generation {mapper.generation} by now")


def _check_count(count: int, edges_max: int) -> None:
    if count > edges_max:
        raise LimitExceeded(f"{count} edges would lead from children to what waits; at most {edges_max} are taken")


def _check_met(adding: Plan, below: _Below) -> None:
    late = []
    for edge in adding.met:
        children = below.get(edge.upstream, {})
        if edge.downstream not in children and any(
            child is None or child.state != "succeeded" for child in children.values()
        ):
            late.append(edge)
    if late:
        raise NodeReleased(
            "an edge leads into a node that is already released or over, and children of its upstream have not "
            "succeeded",
            errors=addition.faults(late),
        )


def _late(adding: Plan, existing: Existing, below: _Below, edges_max: int) -> dict[tuple[str, str], None]:
    """Edges for what is made to wait for nodes that have expanded themselves, or do now."""
    pairs: dict[tuple[str, str], None] = {}
    for edge in adding.edges:
        children = below.get(edge.upstream, {})
        if edge.downstream in children:
            continue
        _show(existing, children)
        pairs.update(dict.fromkeys((child, edge.downstream) for child in children))
        _check_count(len(pairs), edges_max)
    return pairs


async def _append(tx: Transaction, pairs: Iterable[tuple[str, str]], adding: Plan, existing: Existing) -> None:
    """Those of the edges that neither exist nor are added already."""
    known = existing.nodes
    named = {(edge.upstream, edge.downstream) for edge in adding.edges}
    wanted = [pair for pair in pairs if pair not in named]
    old = {(known[up].no, known[down].no): (up, down) for up, down in wanted if up in known and down in known}
    exist = {old[pair] for pair in await store.edges.existing_edges(tx, list(old))} if old else set()
    for up, down in wanted:
        if (up, down) not in exist:
            edge = NewEdge(up, down, None)
            adding.edges.append(edge)
            if down in known:
                adding.late.append(edge)


async def record(
    tx: Transaction, dag: Dag, node: str, children: Sequence[str], numbers: dict[str, NodeNo]
) -> None:
    """Remember who the children of a node are."""
    await store.expansions.insert(tx, numbers[node], [numbers[key] for key in children])
    dag.expanded += len(children)
    await store.dags.grow_dag(tx, dag, structure_changed=False)
