"""The DAG service's bodies."""

from datetime import datetime
from typing import Annotated, Any, Final, Optional, Self

from pydantic import Field, model_validator

from headgate.wire.base import (
    BATCH_MAX,
    INT32_MAX,
    LEASE_S_DEFAULT,
    TTL_S_MAX,
    AttemptOutcome,
    Attempts,
    Batch,
    BlockKind,
    DagState,
    DelayS,
    ErrorText,
    EventKind,
    Json,
    JsonObject,
    Label,
    LeaseS,
    Moment,
    NodeCancelStatus,
    NodeState,
    ObstacleKind,
    OnFailure,
    Priority,
    Request,
    ResolveStatus,
    Response,
    ShardState,
    StandingKind,
    Topic,
    Trigger,
    TtlS,
    fault,
)
from headgate.wire.queue import Backoff

# Requests


class Dependency(Request):
    """An edge: `downstream` waits for `upstream`. Both are node keys."""

    upstream: Label
    downstream: Label


class NodeSpec(Request):
    """A node to add: an item, or a whole DAG in its place, and what it waits for."""

    key: Label
    topic: Topic | None = None
    dag: Optional["SubDag"] = None
    payload: Json = None
    metadata: JsonObject | None = None
    priority: Priority = 0
    upstream: Batch[Label] | None = None
    external: Batch[Label] | None = None
    trigger: Trigger = "all_succeeded"
    max_attempts: Attempts = 0
    backoff: Backoff | None = None
    lease_s: LeaseS = float(LEASE_S_DEFAULT)
    delay_s: DelayS | None = None
    ttl_s: TtlS | None = None
    pass_outputs: bool = False

    @model_validator(mode="after")
    def _item_or_dag(self) -> Self:
        if self.dag is None:
            if self.topic is None:
                raise fault("/topic", "is required, unless `dag` is given")
        elif said := [name for name in _ITEM_FIELDS & self.model_fields_set if getattr(self, name) is not None]:
            raise fault(f"/{min(said)}", "belongs to an item; a node with `dag` has none")
        return self

    @model_validator(mode="after")
    def _deliverable(self) -> Self:
        if self.ttl_s is not None and self.delay_s is not None and self.ttl_s < self.delay_s:
            raise fault("/ttl_s", "must not be shorter than delay_s: the item could never be delivered")
        return self


# What a node says of its item.
_ITEM_FIELDS: Final = frozenset(
    {"topic", "payload", "metadata", "priority", "max_attempts", "backoff", "lease_s", "delay_s", "ttl_s"}
)


class _Build(Request):
    """Nodes and edges of one call. An `any_*` node has its upstream here, or could never fire."""

    nodes: Batch[NodeSpec] | None = None
    dependencies: Batch[Dependency] | None = None

    @model_validator(mode="after")
    def _can_fire(self) -> Self:
        waiting = [
            (position, node)
            for position, node in enumerate(self.nodes or ())
            if node.trigger.startswith("any_") and not node.upstream
        ]
        if waiting:
            downstream = {edge.downstream for edge in self.dependencies or ()}
            for position, node in waiting:
                if node.key not in downstream:
                    raise fault(f"/nodes/{position}/trigger", f"{node.trigger} needs at least one upstream")
        return self


class SubDag(_Build):
    """A DAG that runs in the place of a node: made when the node is released, and its end ends the node."""

    name: Label | None = None
    open: bool = False
    on_failure: OnFailure = "continue"
    deadline_s: Annotated[float, Field(gt=0, le=TTL_S_MAX)] | None = None
    metadata: JsonObject | None = None

    @model_validator(mode="after")
    def _can_end(self) -> Self:
        if not self.nodes and not self.open:
            raise fault("/nodes", "is required, unless the DAG is `open`: it could never end")
        return self


NodeSpec.model_rebuild()


class DagSpec(_Build):
    """A DAG to create. The same `key` again answers the first DAG, whatever else the body says."""

    name: Label | None = None
    key: Label | None = None
    open: bool = False
    hold: bool = False
    on_failure: OnFailure = "continue"
    deadline_s: Annotated[float, Field(gt=0, le=TTL_S_MAX)] | None = None
    metadata: JsonObject | None = None


class AddNodes(_Build):
    nodes: Batch[NodeSpec]


class ExpandNode(AddNodes):
    """Children of `node`, which runs: what waits for it waits for them too. With `generation` only that one of
    the node may add them."""

    node: Label
    generation: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = None


class AddDependencies(Request):
    dependencies: Batch[Dependency]


class ExternalResolution(Request):
    """Says that external `name` of `node` has happened; with `failed` its node fails."""

    node: Label
    name: Label
    data: Json = None
    failed: bool = False


class ResolveRequest(Request):
    external: Batch[ExternalResolution]


class CancelDag(Request):
    reason: ErrorText | None = None


class CancelNodes(Request):
    nodes: Batch[Label]
    reason: ErrorText | None = None


class RetryDag(Request):
    """`nodes`: these, of the failed ones; absent: all that failed; each with what was skipped or cancelled because
    of it. `from`: these and everything below, whatever it has come to. `all`: every node. At most one of them.

    `payloads`: other payloads, by key, for nodes that run again.
    """

    nodes: Batch[Label] | None = None
    down_from: Annotated[Batch[Label] | None, Field(alias="from")] = None
    all: bool = False
    payloads: Annotated[dict[Label, Json], Field(min_length=1, max_length=BATCH_MAX)] | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if (self.nodes is not None) + (self.down_from is not None) + self.all > 1:
            raise fault("", "give one of nodes, from and all")
        return self


class SkipNodes(Request):
    nodes: Batch[Label]


# Responses


class NodeCounts(Response):
    total: int = 0
    blocked: int = 0
    released: int = 0
    succeeded: int = 0
    failed: int = 0
    skipped: int = 0
    cancelled: int = 0

    @property
    def finished(self) -> int:
        return self.succeeded + self.failed + self.skipped + self.cancelled


class ParentNode(Response):
    """The node in whose place a DAG runs."""

    dag: str
    node: str
    generation: int = 1


class Dag(Response):
    id: str
    key: str | None = None
    name: str | None = None
    namespace: str
    state: DagState
    open: bool = False
    held: bool = False
    paused: bool = False
    created_at: datetime
    finished_at: datetime | None = None
    deadline_at: datetime | None = None
    nodes: NodeCounts = Field(default_factory=NodeCounts)
    on_failure: OnFailure = "continue"
    metadata: dict[str, Any] | None = None
    reason: str | None = None
    parent: ParentNode | None = None
    last_event_id: str = "0"

    @property
    def finished(self) -> bool:
        return self.state in ("succeeded", "failed", "cancelled")


class NodeAdded(Response):
    key: str
    item_id: str
    state: NodeState


class NodesAdded(Response):
    nodes: list[NodeAdded]


class Edge(Response):
    """An edge in an answer."""

    upstream: str
    downstream: str


class DependenciesAdded(Response):
    """The edges of the call, all of which exist now."""

    dependencies: list[Edge]


class Resolution(Response):
    node: str
    name: str
    status: ResolveStatus


class Resolutions(Response):
    results: list[Resolution]


class NodeCancelled(Response):
    """`cancelling`: the queue has not confirmed yet that the item will not be delivered."""

    key: str
    status: NodeCancelStatus


class NodesCancelled(Response):
    results: list[NodeCancelled]


class DagEvent(Response):
    """A change of a node (`key`, `generation`) or of the DAG itself (`open`, `held`, `paused`); `state` is new.

    `id` orders the events of a DAG and is where a stream is gone on with.
    """

    id: str
    kind: EventKind
    dag: str
    at: datetime
    state: DagState | NodeState
    key: str | None = None
    generation: int | None = None
    open: bool | None = None
    held: bool | None = None
    paused: bool | None = None


class ExternalView(Response):
    name: str
    resolved: bool
    failed: bool = False


class BlockedBy(Response):
    """What a node waits for: a `node` (`key`, `state`), an `external` (`name`), a hold, a pause."""

    kind: BlockKind
    key: str | None = None
    state: NodeState | None = None
    name: str | None = None
    since: datetime | None = None


class NodeView(Response):
    key: str
    item_id: str
    state: NodeState
    generation: int = 1
    topic: str | None = None
    dag: str | None = None
    trigger: Trigger = "all_succeeded"
    upstream: list[str] = Field(default_factory=list)
    downstream: list[str] = Field(default_factory=list)
    external: list[ExternalView] = Field(default_factory=list)
    blocked_by: list[BlockedBy] = Field(default_factory=list)
    attempts: int = 0
    output: Any = None
    error: str | None = None
    created_at: datetime
    released_at: datetime | None = None
    finished_at: datetime | None = None


class NodeOutput(Response):
    key: str
    output: Any = None


class NodeExport(NodeView):
    """A node with what its queue item is made of: payload, priority, attempts and the rest."""

    item: dict[str, Any]


class ExportMark(Request):
    """All that ended before `until` is exported; nothing of it need be kept for that."""

    until: Moment


class ExportMarked(Response):
    """Up to which end the namespace is exported, on every shard; null: never."""

    until: datetime | None


class GraphNode(Response):
    key: str
    state: NodeState
    topic: str | None = None
    dag: str | None = None
    generation: int = 1


class GraphView(Response):
    """`graph?format=json`: the whole DAG, states included."""

    id: str
    name: str | None = None
    state: DagState
    nodes: list[GraphNode]
    edges: list[Edge]


class Obstacle(Response):
    """What is no part of the graph and keeps a node, or the DAG, from going on; `external` has a `name`."""

    kind: ObstacleKind
    name: str | None = None
    since: datetime


class FrontierNode(Response):
    """A node that no upstream keeps. `standing` of a released one is the queue's word on its item; one that
    is `kept` waits for `waits_for`."""

    key: str
    state: NodeState
    topic: str | None = None
    dag: str | None = None
    generation: int = 1
    item_id: str
    standing: StandingKind
    since: datetime
    waits_for: list[Obstacle] = Field(default_factory=list)
    attempt: int | None = None
    deliver_at: datetime | None = None
    lease_expires_at: datetime | None = None
    error: str | None = None


class ChainLeft(Response):
    """The most unfinished nodes that have to end one after another; `keys` holds the first 100 of them.

    `expected_s` is what the slowest way takes if nodes take, from release to end, as long as those of their
    topic took in this DAG; null when none has. Topics that are unknown count for nothing in it.
    """

    nodes: int
    keys: list[str]
    expected_s: float | None = None
    unknown_topics: list[str] = Field(default_factory=list)


class Frontier(Response):
    """What a DAG waits for. `longest_chain` comes with the first page, unless the DAG has ended or is large."""

    id: str
    state: DagState
    nodes: NodeCounts
    waits_for: list[Obstacle] = Field(default_factory=list)
    longest_chain: ChainLeft | None = None
    items: list[FrontierNode]
    next_cursor: str | None = None


class Attempt(Response):
    """One delivery of a node's item, as far as it is known."""

    attempt: int
    started_at: datetime | None = None
    ended_at: datetime | None = None
    outcome: AttemptOutcome
    error: str | None = None
    worker: str | None = None


class Timeline(Response):
    """A node's present generation, in the order of time; `generation_at` is when a retry began it."""

    key: str
    state: NodeState
    topic: str | None = None
    item_id: str
    generation: int
    created_at: datetime
    generation_at: datetime
    released_at: datetime | None = None
    attempts: list[Attempt] = Field(default_factory=list)
    deliver_at: datetime | None = None
    lease_expires_at: datetime | None = None
    ended_at: datetime | None = None
    error: str | None = None


class DagShardHealth(Response):
    shard: int
    state: ShardState = "healthy"
    owner: str | None = None
    epoch: int = 0
    dags: dict[DagState, int] = Field(default_factory=dict)
    nodes: dict[NodeState, int] = Field(default_factory=dict)
    outbox: int = 0
    ack_lag_s: float | None = None
    release_lag_s: float | None = None
    db_latency_ms_p50: float | None = None
    db_latency_ms_p99: float | None = None
