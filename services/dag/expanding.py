"""A running node expands itself: its children come before everything that waits for it.

What waits for the node when it expands waits for the children too, by edges that are added with them; what
is made to wait for it later is given those edges then. So nothing but edges has to be remembered, and
triggers, retries and cancels know nothing of expansions. A child may expand itself again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from services.dag import store, store_edges, store_expansions
from services.dag.addition import Plan, Standing
from services.dag.errors import LimitExceeded, NodeNotRunning, UnknownNode, reopening_error
from services.dag.model import Dag, NewEdge, NewNode, Node
from shared.errors import FieldError, invalid
from shared.pg import Transaction

# What a node that is made to wait in these states would wait for: the others have begun, or ended for good.
_WAITING = frozenset({"blocked", "skipped", "cancelled"})


class Expansion(NamedTuple):
    """Which node expands itself; with `generation` only that one may."""

    node: str
    generation: int | None


async def widen(
    tx: Transaction,
    dag: Dag,
    nodes: Sequence[NewNode],
    adding: Plan,
    standing: Standing,
    expansion: Expansion | None,
    edges_max: int,
) -> list[str]:
    """Add to `adding` the edges from children to what waits; the keys that are to be children from now on.

    Raises:
        UnknownNode: the DAG does not have the node that expands itself.
        NodeNotRunning: it is not released, or in another generation.
        DagReopening: what waits for it is perhaps still to be reopened.
        LimitExceeded: that would be over `edges_max` edges.
    """
    fresh: list[str] = []
    pairs: dict[tuple[str, str], None] = {}
    if expansion is not None:
        mapper = standing.nodes.get(expansion.node)
        if mapper is None:
            errors = [FieldError("/node", "there is no node with this key")]
            raise UnknownNode("the DAG does not have the node that is to be expanded", errors=errors)
        known = await store_expansions.descendants(tx, [mapper.no])
        inside = {child.no for _, child in known}
        keys = dict.fromkeys(node.key for node in nodes)
        fresh = [key for key in keys if key not in standing.nodes or standing.nodes[key].no not in inside]
        if adding.empty and not fresh:
            return []
        _check_running(mapper, expansion)
        if dag.reopening:
            raise reopening_error()
        if mapper.run_on is not None or any(node.run_on is not None for node in nodes):
            raise invalid("/nodes", "cleanup and compensation are no children of a node")
        waiters = await store_expansions.downstreams(tx, mapper.no)
        waiting = [node for node in waiters if node.state in _WAITING and node.no not in inside]
        # A child that waits for the node itself, or for another child, is no waiter.
        waiting = [node for node in waiting if node.key not in keys]
        standing.nodes.update({node.key: node for node in waiting})
        _check_count(len(fresh) * len(waiting), edges_max)
        pairs.update(dict.fromkeys((key, node.key) for key in fresh for node in waiting))
    if dag.expanded:
        pairs.update(dict.fromkeys(await _late(tx, adding, standing, fresh, edges_max)))
    await _append(tx, pairs, adding, standing)
    return fresh


def _check_running(mapper: Node, expansion: Expansion) -> None:
    if mapper.state != "released":
        raise NodeNotRunning(f"the node is {mapper.state}; only a node that runs can expand itself")
    if expansion.generation not in (None, mapper.generation):
        raise NodeNotRunning(f"the node runs in generation {mapper.generation} by now")


def _check_count(count: int, edges_max: int) -> None:
    if count > edges_max:
        raise LimitExceeded(f"{count} edges would lead from children to what waits; at most {edges_max} are taken")


async def _late(
    tx: Transaction, adding: Plan, standing: Standing, fresh: Sequence[str], edges_max: int
) -> list[tuple[str, str]]:
    """Edges for what is made to wait for nodes that have expanded themselves."""
    ups = {standing.nodes[edge.upstream].no for edge in adding.edges if edge.upstream in standing.nodes}
    found = await store_expansions.descendants(tx, sorted(ups)) if ups else []
    children: dict[int, list[Node]] = {}
    for root, child in found:
        children.setdefault(root, []).append(child)
    pairs: list[tuple[str, str]] = []
    inner = set(fresh)
    for edge in adding.edges:
        up = standing.nodes.get(edge.upstream)
        below = children.get(up.no, ()) if up is not None else ()
        if edge.downstream in inner or any(child.key == edge.downstream for child in below):
            continue
        pairs += [(child.key, edge.downstream) for child in below]
        _check_count(len(pairs), edges_max)
        standing.nodes.update({child.key: child for child in below})
    return pairs


async def _append(tx: Transaction, pairs: Iterable[tuple[str, str]], adding: Plan, standing: Standing) -> None:
    """Those of the edges that neither exist nor are added already."""
    known = standing.nodes
    named = {(edge.upstream, edge.downstream) for edge in adding.edges}
    wanted = [pair for pair in pairs if pair not in named]
    old = {(known[up].no, known[down].no): (up, down) for up, down in wanted if up in known and down in known}
    exist = {old[pair] for pair in await store_edges.existing_edges(tx, list(old))} if old else set()
    for up, down in wanted:
        if (up, down) not in exist:
            edge = NewEdge(up, down, None)
            adding.edges.append(edge)
            if down in known:
                adding.late.append(edge)


async def record(tx: Transaction, dag: Dag, node: str, children: Sequence[str], numbers: dict[str, int]) -> None:
    """Remember who the children of a node are."""
    await store_expansions.insert(tx, numbers[node], [numbers[key] for key in children])
    dag.expanded += len(children)
    await store.grow_dag(tx, dag, structure_changed=False)
