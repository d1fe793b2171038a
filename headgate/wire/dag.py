"""The DAG service's bodies."""

from datetime import datetime
from typing import Annotated, Any, Self

from pydantic import Field, StringConstraints, model_validator

from headgate.wire.base import (
    BATCH_MAX,
    UUID_PATTERN,
    AttemptOutcome,
    Batch,
    BlockKind,
    ByteQuota,
    DagState,
    ErrorText,
    EventKind,
    Json,
    Key,
    Label,
    MaybeNone,
    Moment,
    NodeCancelStatus,
    NodeState,
    ObstacleKind,
    OnFailure,
    Request,
    ResolveStatus,
    Response,
    RunOn,
    ShardState,
    StandingKind,
    Trigger,
    fault,
)

# Requests


class ExternalResolution(Request):
    """Says that external `name` of `node` has happened; with `failed` its node fails."""

    node: Key
    name: Label
    data: Json = None
    failed: bool = False


class ResolveRequest(Request):
    external: Batch[ExternalResolution]


class CancelDag(Request):
    reason: ErrorText | None = None


class CancelNodes(Request):
    nodes: Batch[Key]
    reason: ErrorText | None = None


class RetryDag(Request):
    """`nodes`: these, of the failed ones; absent: all that failed; each with what was skipped or cancelled because
    of it. `from`: these and everything below, whatever it has come to. `all`: every node. At most one of them.

    An empty list names none: alone, there is nothing to retry. `payloads`: other payloads, by key, for nodes that
    run again.
    """

    nodes: MaybeNone[Key] | None = None
    down_from: Annotated[MaybeNone[Key] | None, Field(alias="from")] = None
    all: bool = False
    payloads: Annotated[dict[Key, Json], Field(max_length=BATCH_MAX)] | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if bool(self.nodes) + bool(self.down_from) + self.all > 1:
            raise fault("", "give one of nodes, from and all")
        return self


class SkipNodes(Request):
    nodes: Batch[Key]


class PutValue(Request):
    """A value to write. `version`: only where it still has that one (0: where there is none). `write_id`: a UUID
    by which the same write, sent again, is recognised."""

    value: Json
    version: Annotated[int, Field(ge=0, le=2**53)] | None = None
    write_id: Annotated[str, StringConstraints(pattern=UUID_PATTERN)] | None = None


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


class Lifted(Response):
    """By how much a DAG's items go before others; see `DagPriority`."""

    inherit: int = 0
    critical_path: int = 0


class Undeclared(Response):
    """An event that was resolved and that no node waits for: it came early, or its name is misspelt."""

    node: str
    name: str


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
    # The type of the workflow whose run it is.
    workflow: str | None = None
    metadata: dict[str, Any] | None = None
    reason: str | None = None
    parent: ParentNode | None = None
    priority: Lifted | None = None
    undeclared: list[Undeclared] = Field(default_factory=list)
    cleaning: bool = False
    last_event_id: str = "0"

    @property
    def finished(self) -> bool:
        return self.state in ("succeeded", "failed", "cancelled")


class CreatedDag(Dag):
    """What a create answers: `existing` of a DAG whose `key` was known, and `same` where it was made of what the
    call asks for."""

    existing: bool = False
    same: bool = True


class NodeEnd(Response):
    """Where a node stands, and what it has come to."""

    key: str
    item_id: str
    state: NodeState
    output: Any = None
    error: str | None = None


class WaitedDag(Dag):
    """What a wait answers: `node` where the call names one."""

    node: NodeEnd | None = None


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
    """`declared` is false while no node waits for the event; then `hint` says so, with the nearest name that its
    node waits for, if there is one."""

    node: str
    name: str
    status: ResolveStatus
    declared: bool = True
    hint: str | None = None


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
    """`reason` is `deadline` where it failed because nobody resolved it in time."""

    name: str
    resolved: bool
    failed: bool = False
    deadline_at: datetime | None = None
    reason: str | None = None


class BlockedBy(Response):
    """What a node waits for: a `node` (`key`, `state`), an `external` (`name`), a hold, a pause, a retry
    that is still at work, the DAG's end."""

    kind: BlockKind
    key: str | None = None
    state: NodeState | None = None
    name: str | None = None
    since: datetime | None = None


class TimerView(Response):
    """What a timer was made of, and when it is due, while it runs."""

    delay_s: float | None = None
    at: datetime | None = None
    due_at: datetime | None = None


class NodeView(Response):
    key: str
    item_id: str
    state: NodeState
    generation: int = 1
    topic: str | None = None
    dag: str | None = None
    timer: TimerView | None = None
    run_on: RunOn | None = None
    compensates: str | None = None
    trigger: Trigger = "all_succeeded"
    tolerate: bool = False
    upstream: list[str] = Field(default_factory=list)
    downstream: list[str] = Field(default_factory=list)
    external: list[ExternalView] = Field(default_factory=list)
    blocked_by: list[BlockedBy] = Field(default_factory=list)
    partial: bool = Field(
        default=False, description="its lists are not whole: they would take more than an answer may"
    )
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


class ValueWritten(Response):
    """A write of a value; its version is one more than before."""

    key: str
    version: int
    updated_at: datetime


class DagValue(ValueWritten):
    """A value that the jobs of a DAG share."""

    value: Any = None


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


class OpenExternal(Response):
    """A node that nothing but externals keeps, and one of them, with `more` beside it. Of each DAG there is one
    node; `blocked` of the DAG's nodes wait, this one included. `since` is null behind very many upstreams."""

    dag: str
    dag_name: str | None = None
    dag_key: str | None = None
    node: str
    external: str
    more: int = 0
    since: datetime | None = None
    blocked: int


class FrontierNode(Response):
    """A node that no upstream keeps. `standing` of a released one is the queue's word on its item; one that
    is `kept` waits for `waits_for`. `worker` has one that runs; for `unasked_s` nobody has asked for the topic of
    one that is queued or delayed, as far as is known."""

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
    worker: str | None = None
    unasked_s: float | None = None


class ChainLeft(Response):
    """The most unfinished nodes that have to end one after another; `keys` holds the first 100 of them.

    `expected_s` is what the slowest way takes if nodes take, from release to end, as long as those of their
    topic took in this DAG; null while none of some topic has ended there: `unknown_topics`.
    """

    nodes: int
    keys: list[str]
    expected_s: float | None = None
    unknown_topics: list[str] = Field(default_factory=list)


class Frontier(Response):
    """What a DAG waits for. With the first page come `undeclared` and, unless the DAG has ended or is large,
    `longest_chain`."""

    id: str
    state: DagState
    nodes: NodeCounts
    waits_for: list[Obstacle] = Field(default_factory=list)
    undeclared: list[Undeclared] = Field(default_factory=list)
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


class DagQuotaSpec(Request):
    dags_max: ByteQuota | None = None
    nodes_max: ByteQuota | None = None
    edges_max: ByteQuota | None = None


class DagQuotas(Response):
    dags_max: int | None = None
    nodes_max: int | None = None
    edges_max: int | None = None


class DagQuota(DagQuotas):
    """A namespace's own quotas (null: as `default`), and its unfinished DAGs with their nodes and edges."""

    namespace: str
    default: DagQuotas
    dags: int = 0
    nodes: int = 0
    edges: int = 0


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
    release_lag_s_p50: float | None = None
    release_lag_s_p99: float | None = None
    db_latency_ms_p50: float | None = None
    db_latency_ms_p99: float | None = None
