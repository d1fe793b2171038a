"""DAGs, nodes and what moves between the service and the queue, as plain values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, NewType

import msgspec

DagState = Literal["running", "cancelling", "succeeded", "failed", "cancelled"]
NodeState = Literal["blocked", "released", "succeeded", "failed", "skipped", "cancelled"]
Trigger = Literal["all_succeeded", "all_done", "any_succeeded", "any_failed", "none_failed"]
# What the queue is told of an item; and of sub-DAGs: to begin, to be cancelled, and how one has ended.
Action = Literal["enqueue", "revive", "cancel", "start", "stop", "report"]
Cause = Literal["call", "failure", "deadline", "end"]

# On which ends of its DAG a cleanup node runs; what compensates another node has a rule of its own.
UNDO: Final = "undo"
CLEANUP_ENDS: Final[dict[str, frozenset[str]]] = {
    "always": frozenset({"succeeded", "failed", "cancelled"}),
    "succeeded": frozenset({"succeeded"}),
    "failed": frozenset({"failed"}),
    "cancelled": frozenset({"cancelled"}),
    "unsuccessful": frozenset({"failed", "cancelled"}),
}

# `cleanup_phase` of a DAG while a retry reopens its nodes.
REOPENING: Final = -1

# Of the queue: where completions of nodes are told.
SYSTEM_NAMESPACE: Final = "_dag"

# The key of the first node of a run of a workflow, which no command's has: those end with a number.
DECIDER: Final = "decider"

# A node's number: its DAG's, shifted, and its own within the DAG. Unique in the shard.
NODE_BITS: Final = 22

UNFINISHED: Final = frozenset({"blocked", "released"})
OUTCOME_STATES: Final[dict[str, NodeState]] = {
    "acked": "succeeded",
    "dead": "failed",
    "expired": "failed",
    "cancelled": "cancelled",
}

# What may follow what within one generation; a retry begins the next one at `blocked`.
TRANSITIONS: Final[dict[str, frozenset[str]]] = {
    "blocked": frozenset({"released", "succeeded", "failed", "skipped", "cancelled"}),
    "released": frozenset({"succeeded", "failed", "cancelled"}),
    "succeeded": frozenset(),
    "failed": frozenset(),
    "skipped": frozenset(),
    "cancelled": frozenset(),
}


# The number of a DAG on its shard; its nodes' numbers begin with it.
DagNo = NewType("DagNo", int)
# Of a node of any DAG, on its shard; it holds the DAG's (`dag_of`).
NodeNo = NewType("NodeNo", int)


def dag_of(node_no: NodeNo) -> DagNo:
    """The DAG's number in a node's."""
    return DagNo(node_no >> NODE_BITS)


@dataclass(slots=True)
class Dag:
    """A DAG's row; fields in the order of the columns that `sql/dags.sql` reads."""

    no: DagNo
    id: str
    namespace: str
    key: str | None
    name: str | None
    state: DagState
    open: bool
    held: bool
    paused: bool
    closed: bool
    on_failure: str
    deadline_s: float | None
    deadline_at: datetime | None
    cancel_cause: Cause | None
    reason: str | None
    metadata: str | None
    created_at: datetime
    finished_at: datetime | None
    next_n: int
    structure_version: int
    edges: int
    externals: int
    blocked: int
    released: int
    succeeded: int
    failed: int
    skipped: int
    cancelled: int
    depth: int = 0
    parent_dag: str | None = None
    parent_node: str | None = None
    parent_generation: int | None = None
    endings: int = 0
    last_event: int = 0
    expanded: int = 0
    cleanups: int = 0
    cleanup_left: int = 0
    cleanup_phase: int = 0
    verdict: DagState | None = None
    started_lift: int = 0
    path_lift: int = 0
    tolerated: int = 0
    # The type of the workflow whose run this DAG is; and how the run has ended, while the rest of it is cancelled.
    workflow: str | None = None
    ends_as: DagState | None = None
    # No column: events that were resolved and that no node waits for, (node key, name), where somebody has looked.
    undeclared: Sequence[tuple[str, str]] = ()

    def node_no(self, n: int) -> NodeNo:
        """The number of this DAG's node `n`."""
        return NodeNo((self.no << NODE_BITS) + n)

    @property
    def last_no(self) -> int:
        """The highest number that a node of this DAG may have now."""
        return self.node_no(self.next_n) - 1

    @property
    def unfinished(self) -> int:
        """Nodes that are not terminal."""
        return self.blocked + self.released

    @property
    def total(self) -> int:
        """All nodes."""
        return self.unfinished + self.succeeded + self.failed + self.skipped + self.cancelled

    @property
    def releasing(self) -> bool:
        """True when a node whose trigger fires may be released."""
        return self.state == "running" and not self.held and not self.paused and not self.reopening

    @property
    def reopening(self) -> bool:
        """True while a retry reopens nodes in steps: nothing is decided so long."""
        return self.cleanup_phase == REOPENING

    @property
    def concluded(self) -> bool:
        """True when its ordinary nodes have come to its end: all that may be left is compensation and cleanup."""
        return self.verdict is not None

    @property
    def lifted(self) -> bool:
        """True when priorities of items are worked out of how the DAG stands."""
        return self.started_lift > 0 or self.path_lift > 0

    @property
    def started(self) -> bool:
        """True once any node has ended; what runs in a node's place has begun with its parent."""
        return self.depth > 0 or self.total > self.unfinished

    def given_ahead(self, waits_for: int, *, is_new: bool = False) -> bool:
        """True when the queue is given the item of a blocked node, which waits for so many upstreams, before it
        is released. Its priority has to be known by then: what waits for an upstream is released in a DAG that has
        started; how much comes behind a node is known where the DAG is created with all its nodes."""
        is_ranked = not self.path_lift or (is_new and not self.open and not self.held)
        return not self.lifted or (waits_for > 0 and is_ranked)

    @property
    def flipping(self) -> bool:
        """True when ends are still to be counted below: not while ordinary nodes are being cancelled."""
        return self.state == "running" or self.cleanup_phase > 0

    @property
    def cleaning(self) -> bool:
        """True when compensation and cleanup may be released. A pause does not keep them once the DAG is
        being cancelled."""
        return self.cleanup_phase > 0 and (self.state == "cancelling" or not self.paused)

    def lets_go(self, node: Node) -> bool:
        """True when this node may be released once its trigger fires."""
        return self.releasing if node.run_on is None else self.cleaning

    @property
    def over(self) -> bool:
        """True in a final state."""
        return self.state not in ("running", "cancelling")

    def move(self, was: str | None, state: str, count: int = 1) -> None:
        """Account for `count` nodes that go from `was` (None: new ones) to `state`."""
        if was is not None:
            setattr(self, was, getattr(self, was) - count)
            assert getattr(self, was) >= 0, f"the DAG has fewer than no nodes {was}"
        setattr(self, state, getattr(self, state) + count)


@dataclass(slots=True)
class Counts:
    """How a node's upstreams stand; `left` are those that are not terminal."""

    left: int = 0
    ok: int = 0
    failed: int = 0
    skipped: int = 0
    cancelled: int = 0

    def add(self, state: str) -> None:
        """Count one more upstream, by its state."""
        if state in UNFINISHED:
            self.left += 1
        elif state == "succeeded":
            self.ok += 1
        else:
            setattr(self, state, getattr(self, state) + 1)


@dataclass(slots=True)
class Node:
    """What deciding a node takes; fields in the order of the columns that `sql/nodes.sql` reads."""

    dag_no: DagNo
    no: NodeNo
    key: str
    item_id: str
    state: NodeState
    generation: int
    trigger: Trigger
    pass_outputs: bool
    enqueued: bool
    left: int
    ok: int
    failed: int
    skipped: int
    cancelled: int
    ext_left: int
    ext_failed: bool
    sub: bool = False
    run_on: str | None = None
    tolerate: bool = False
    # It has no item: it ends by itself when its time has come.
    timer: bool = False

    @property
    def counts(self) -> Counts:
        """The upstreams by state."""
        return Counts(self.left, self.ok, self.failed, self.skipped, self.cancelled)

    @property
    def upstreams(self) -> int:
        """The in-degree."""
        return self.left + self.ok + self.failed + self.skipped + self.cancelled


def within(nodes: Iterable[Node], edges_max: int) -> list[Node]:
    """The first nodes that together have so many upstreams; always one, if there is any."""
    taken: list[Node] = []
    for node in nodes:
        edges_max -= node.upstreams
        if edges_max < 0 and taken:
            break
        taken.append(node)
    return taken


@dataclass(slots=True)
class NewNode:
    """A node of a call. `item` is its queue item as JSON text: all that does not change between generations;
    or, with `levels`, its sub-DAG, so many deep; or, of a `timer`, when it ends."""

    key: str
    topic: str
    trigger: Trigger
    pass_outputs: bool
    upstream: tuple[str, ...]
    external: tuple[str, ...]
    item: str
    fingerprint: bytes
    levels: int = 0
    run_on: str | None = None
    compensates: str | None = None
    # Of externals that have one, in seconds from their declaration.
    deadlines: tuple[tuple[str, float], ...] = ()
    # Its failure does not fail its DAG.
    tolerate: bool = False
    timer: bool = False

    @property
    def sub(self) -> bool:
        """True when a DAG runs in the node's place, not an item."""
        return self.levels > 0


class NewEdge(msgspec.Struct, frozen=True, gc=False):
    """An edge of a call, by keys, and where in the body it stands: at a place among the dependencies, or in the
    upstream of the `node` at a place; None for a node that is expanded. A call may bring a million."""

    upstream: str
    downstream: str
    place: int | None
    node: int | None = None

    @property
    def pointer(self) -> str:
        """Where it stands, as a JSON pointer."""
        if self.place is None:
            return "/node"
        if self.node is None:
            return f"/dependencies/{self.place}"
        return f"/nodes/{self.node}/upstream/{self.place}"


@dataclass(slots=True, frozen=True)
class NewDag:
    """A DAG to create."""

    key: str | None
    name: str | None
    open: bool
    held: bool
    on_failure: str
    deadline_s: float | None
    metadata: str | None
    # None: not said; a sub-DAG then has its parent's.
    started_lift: int | None = None
    path_lift: int | None = None
    # Of one with a key: a digest of the call, by which a later call with the same key is judged.
    content: bytes | None = None
    # The key is free again as soon as its DAG has ended.
    unique: bool = False


class Parent(NamedTuple):
    """The node, in a generation, in whose place a DAG runs; and what the node was given, as JSON text."""

    dag: str
    node: str
    generation: int
    depth: int
    inputs: str | None = None


class Retry(NamedTuple):
    """Which nodes to run again: by default all that failed. Payloads are JSON text by key; `below` is how the DAG
    in the place of the only one of `nodes` is to be retried."""

    nodes: Sequence[str] | None = None
    down_from: Sequence[str] | None = None
    everything: bool = False
    payloads: Mapping[str, str] = MappingProxyType({})
    below: Retry | None = None

    def dump(self) -> str:
        """As text, for `load`."""
        return msgspec.json.encode(self._told()).decode()

    def _told(self) -> list[object]:
        below = None if self.below is None else self.below._told()
        return [self.nodes, self.down_from, self.everything, dict(self.payloads), below]

    @classmethod
    def load(cls, text: str) -> Retry:
        """What was dumped."""
        return cls._of(msgspec.json.decode(text))

    @classmethod
    def _of(cls, told: list[Any]) -> Retry:
        nodes, down_from, everything, payloads, below = told
        return cls(nodes, down_from, everything, payloads, None if below is None else cls._of(below))


class Resolved(NamedTuple):
    """One element of a resolve call; `data` is JSON text."""

    node: str
    name: str
    data: str | None
    failed: bool


class Ending(NamedTuple):
    """One completion: how the item of a node's generation ended, and since when who held it."""

    dag_id: str
    key: str
    generation: int
    state: NodeState
    attempts: int
    output: str | None
    error: str | None
    finished_at: datetime | None
    started_at: datetime | None = None
    worker: str | None = None


class Ref(NamedTuple):
    """A node's generation, by number."""

    no: NodeNo
    generation: int


@dataclass(slots=True)
class Send:
    """An outbox row: something the queue is to be told. `item` is known where the row was just written."""

    no: NodeNo
    generation: int
    action: Action
    item_id: str
    namespace: str
    inputs: str | None = None
    item: Item | None = None
    # Of a `start`: how a DAG that is there already is retried, where that is not all that failed.
    retry: str | None = None

    @property
    def ref(self) -> Ref:
        """The node's generation that this is about."""
        return Ref(self.no, self.generation)


class Item(NamedTuple):
    """A node's queue item, as an enqueue needs it; `spec` is JSON text."""

    dag_id: str
    key: str
    spec: str
    lifts: Lifts | None = None


class Lifts(NamedTuple):
    """By how much an item's priority is lowered: at once, and per level behind its node in a structure."""

    started: int
    per_level: int
    version: int


class Change(NamedTuple):
    """What one transaction did to one DAG, as it is logged; `last_event` is the number of its last change.

    `nodes` and `dag` are text as table `change` has it.
    """

    dag_no: DagNo
    last_event: int
    nodes: str | None
    dag: str | None


class Added(NamedTuple):
    """A node of a call, as it stands at the call's end."""

    key: str
    item_id: str
    state: str


class Addition(NamedTuple):
    """The nodes that one add call wrote, by number."""

    first_no: int
    last_no: int

    @property
    def dag_no(self) -> DagNo:
        """The DAG that they were added to."""
        return dag_of(NodeNo(self.first_no))
