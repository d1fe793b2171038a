"""What one add call would change, worked out from what stands; pure.

`plan` recognises what exists, refuses what cannot be, and numbers the new nodes in topological order, so
that a DAG built from its roots down has edges that ascend.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence, Set
from dataclasses import dataclass, field

from services.dag.errors import (
    Cycle,
    DagFinished,
    LimitExceeded,
    NodeExists,
    NodeReleased,
    UnknownNode,
    reopening_error,
)
from services.dag.graph import sort
from services.dag.model import NODE_BITS, UNDO, Counts, Dag, NewEdge, NewNode, Node, NodeNo
from services.dag.settings import DagSettings
from shared.errors import FieldError, invalid

_FAULTS_SHOWN_MAX = 20
_MASK = (1 << NODE_BITS) - 1


@dataclass(slots=True, frozen=True)
class Existing:
    """What exists of all that a call names."""

    nodes: dict[str, Node]
    fingerprints: dict[str, bytes]


@dataclass(slots=True)
class Plan:
    """What a call adds: nodes in the order of their numbers, edges by key."""

    nodes: list[NewNode] = field(default_factory=list)
    edges: list[NewEdge] = field(default_factory=list)
    # Edges into nodes that were there before: they may close a cycle with old edges, and are counted there.
    late: list[NewEdge] = field(default_factory=list)
    # Edges into nodes that have begun, from nodes that have succeeded: they change nothing.
    met: list[NewEdge] = field(default_factory=list)

    @property
    def cleanups(self) -> list[NewNode]:
        """The nodes that clean up or compensate."""
        return [node for node in self.nodes if node.run_on is not None]

    @property
    def empty(self) -> bool:
        """True when the call changes nothing."""
        return not self.nodes and not self.edges


def edges_of(nodes: Sequence[NewNode], dependencies: Sequence[NewEdge]) -> list[NewEdge]:
    """All edges that a call names, each once."""
    found: list[NewEdge] = []
    above: dict[str, set[str]] = {}
    for i, node in enumerate(nodes):
        known = above.setdefault(node.key, set())
        for place, up in enumerate(node.upstream):
            if up not in known:
                known.add(up)
                found.append(NewEdge(up, node.key, place, i))
    for edge in dependencies:
        known = above.setdefault(edge.downstream, set())
        if edge.upstream not in known:
            known.add(edge.upstream)
            found.append(edge)
    return found


def named(nodes: Sequence[NewNode], edges: Sequence[NewEdge]) -> list[str]:
    """All keys that a call names, each once."""
    keys = dict.fromkeys(node.key for node in nodes)
    keys |= dict.fromkeys(node.compensates for node in nodes if node.compensates is not None)
    for edge in edges:
        keys[edge.upstream] = None
        keys[edge.downstream] = None
    return list(keys)


def between_old(edges: Sequence[NewEdge], existing: Existing) -> list[NewEdge]:
    """Those edges both of whose nodes are there: they may be there, too."""
    nodes = existing.nodes
    return [edge for edge in edges if edge.upstream in nodes and edge.downstream in nodes]


def plan(
    dag: Dag,
    nodes: Sequence[NewNode],
    edges: Sequence[NewEdge],
    existing: Existing,
    known_edges: set[tuple[str, str]],
) -> Plan:
    """What a call adds to a DAG; `known_edges` are those of its edges that are there.

    Raises:
        NodeExists: a key is taken by another node.
        UnknownNode: an edge names a node that is neither there nor in the call.
        DagFinished: there is something to add, and the DAG takes nothing more.
        DagReopening: an edge leads to a node that a retry has perhaps still to reopen.
        NodeReleased: an edge comes too late.
        Cycle: the call's own edges close one, with its own nodes.
    """
    new = _new_nodes(nodes, existing)
    known = existing.nodes.keys() | new.keys()
    _refuse_unknown(edges, known)
    _refuse_cleanup(nodes, edges, new, existing)
    wanted: list[NewEdge] = []
    released: list[NewEdge] = []
    met: list[NewEdge] = []
    for edge in edges:
        down = existing.nodes.get(edge.downstream)
        if (edge.upstream, edge.downstream) in known_edges:
            continue
        if down is not None and down.state != "blocked":
            if edge.upstream == edge.downstream:
                raise cycle_error([edge.upstream])
            up = existing.nodes.get(edge.upstream)
            is_met = up is not None and up.state == "succeeded" and not dag.reopening
            (met if is_met else released).append(edge)
            continue
        wanted.append(edge)
    if (new or wanted or released) and (dag.state != "running" or dag.concluded):
        raise DagFinished("the DAG has ended or is being cancelled; nothing can be added to it")
    if released and dag.reopening:
        raise reopening_error()
    if released:
        raise NodeReleased("an edge leads into a node that is already released or over", errors=faults(released))
    order = _order(new, wanted)
    return Plan([new[key] for key in order], wanted, [edge for edge in wanted if edge.downstream not in new], met)


def check_whole(nodes: Sequence[NewNode], dependencies: Sequence[NewEdge]) -> None:
    """Refuse what could never be a DAG by itself.

    Raises:
        NodeExists, UnknownNode, Cycle
    """
    edges = edges_of(nodes, dependencies)
    new = _new_nodes(nodes, Existing({}, {}))
    _refuse_unknown(edges, new.keys())
    _refuse_cleanup(nodes, edges, new, Existing({}, {}))
    _order(new, edges)


def _order(new: dict[str, NewNode], edges: Sequence[NewEdge]) -> list[str]:
    """The new nodes' keys in topological order."""
    inner = [edge for edge in edges if edge.downstream in new and edge.upstream in new]
    order, cycle = sort(list(new), [(edge.upstream, edge.downstream) for edge in inner])
    if cycle:
        raise cycle_error(cycle)
    return order


def _new_nodes(nodes: Sequence[NewNode], existing: Existing) -> dict[str, NewNode]:
    new: dict[str, NewNode] = {}
    taken = []
    for i, node in enumerate(nodes):
        known = existing.fingerprints.get(node.key)
        if known is None:
            known = new.setdefault(node.key, node).fingerprint
        if known != node.fingerprint:
            taken.append(FieldError(f"/nodes/{i}/key", "another node has this key"))
    if taken:
        raise NodeExists("a key is taken by another node", errors=taken[:_FAULTS_SHOWN_MAX])
    return new


def _refuse_unknown(edges: Sequence[NewEdge], known: Set[str]) -> None:
    errors: list[FieldError] = []
    for edge in edges:
        if len(errors) >= _FAULTS_SHOWN_MAX:
            break
        if edge.upstream not in known:
            pointer = edge.pointer if edge.node is not None else f"{edge.pointer}/upstream"
            errors.append(FieldError(pointer, "there is no node with this key"))
        if edge.downstream not in known:
            errors.append(FieldError(f"{edge.pointer}/downstream", "there is no node with this key"))
    if errors:
        raise UnknownNode("an edge names a node that the DAG does not have", errors=errors[:_FAULTS_SHOWN_MAX])


def _refuse_cleanup(
    nodes: Sequence[NewNode], edges: Sequence[NewEdge], new: dict[str, NewNode], existing: Existing
) -> None:
    """Ordinary nodes do not wait for cleanup; compensation has an order of its own.

    Raises:
        UnknownNode: what a node compensates is not there.
        Invalid
    """
    if all(node.run_on is None for node in nodes) and all(node.run_on is None for node in existing.nodes.values()):
        return

    def run_on(key: str) -> str | None:
        return new[key].run_on if key in new else existing.nodes[key].run_on

    for i, node in enumerate(nodes):
        of = node.compensates
        if of is not None and of not in new and of not in existing.nodes:
            errors = [FieldError(f"/nodes/{i}/compensates", "there is no node with this key")]
            raise UnknownNode("a node compensates one that the DAG does not have", errors=errors)
        if of is not None and run_on(of) is not None:
            raise invalid(f"/nodes/{i}/compensates", "a cleanup or compensation cannot be compensated")
    for edge in edges:
        up, down = run_on(edge.upstream), run_on(edge.downstream)
        if UNDO in (up, down):
            raise invalid(
                edge.pointer, "a node that compensates has no edges: its turn follows from what it undoes"
            )
        if up is not None and down is None:
            raise invalid(edge.pointer, "an ordinary node cannot wait for a cleanup node")


def faults(edges: Sequence[NewEdge]) -> list[FieldError]:
    """Where edges stand that come too late."""
    return [
        FieldError(edge.pointer, "its downstream node is already released or over")
        for edge in edges[:_FAULTS_SHOWN_MAX]
    ]


def cycle_error(keys: Sequence[str]) -> Cycle:
    """A cycle, by the keys of its nodes, upstream first."""
    shown = [*keys[:50], *(["..."] if len(keys) > 50 else []), keys[0]]
    return Cycle(f"the edges would close a cycle: {' -> '.join(shown)}")


def check_limits(dag: Dag, adding: Plan, existing: Existing, settings: DagSettings) -> None:
    """Refuse what would outgrow the DAG's limits, but for out-degrees, which only the shard knows.

    Raises:
        LimitExceeded: nothing was written.
    """
    depth = dag.depth + max((node.levels for node in adding.nodes), default=0)
    if depth > settings.subdag_depth_max:
        raise LimitExceeded(f"DAGs would nest {depth} deep; at most {settings.subdag_depth_max} are taken")
    externals = sum(len(node.external) for node in adding.nodes)
    for what, count, limit in (
        ("cleanup nodes", dag.cleanups + len(adding.cleanups), settings.cleanups_per_dag_max),
        ("nodes", dag.next_n + len(adding.nodes), settings.nodes_per_dag_max),
        ("edges", dag.edges + len(adding.edges), settings.edges_per_dag_max),
        ("externals", dag.externals + externals, settings.externals_per_dag_max),
    ):
        if count > limit:
            raise LimitExceeded(f"the DAG would have {count} {what}; at most {limit} are taken")
    above: defaultdict[str, int] = defaultdict(int)
    for edge in adding.edges:
        above[edge.downstream] += 1
    for key, added in above.items():
        old = existing.nodes.get(key)
        if added + (old.upstreams if old else 0) > settings.degree_max:
            raise LimitExceeded(f"a node would have over {settings.degree_max} upstreams")


def late_counts(adding: Plan, existing: Existing) -> dict[NodeNo, Counts]:
    """How the new edges into old nodes count there, by the nodes' numbers."""
    late: dict[NodeNo, Counts] = {}
    for edge in adding.late:
        counts = late.setdefault(existing.nodes[edge.downstream].no, Counts())
        up = existing.nodes.get(edge.upstream)
        counts.add(up.state if up else "blocked")
    return late


def new_counts(adding: Plan, existing: Existing) -> dict[str, Counts]:
    """How the upstreams of each new node stand."""
    counts = {node.key: Counts() for node in adding.nodes}
    for edge in adding.edges:
        if edge.downstream in counts:
            up = existing.nodes.get(edge.upstream)
            counts[edge.downstream].add(up.state if up else "blocked")
    return counts


def added_below(adding: Plan, existing: Existing) -> dict[NodeNo, int]:
    """How many new edges leave nodes that are there, by the nodes' numbers."""
    added: dict[NodeNo, int] = {}
    for edge in adding.edges:
        if up := existing.nodes.get(edge.upstream):
            added[up.no] = added.get(up.no, 0) + 1
    return added


def leaves_old(adding: Plan, existing: Existing) -> bool:
    """Whether a new edge leaves a node that is there."""
    return any(edge.upstream in existing.nodes for edge in adding.edges)


def numbered(edges: Sequence[NewEdge], numbers: dict[str, NodeNo]) -> list[tuple[int, int]]:
    """Edges by the numbers of their nodes within the DAG."""
    return [(numbers[edge.upstream] & _MASK, numbers[edge.downstream] & _MASK) for edge in edges]
