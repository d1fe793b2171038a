"""What operators are shown: the last hour, and what happened meanwhile."""

from datetime import datetime
from typing import Literal

from pydantic import Field

from headgate.wire.base import Request, Response

MarkKind = Literal["start", "drain", "move", "failover", "owner", "breaker"]


class AuditEntry(Response):
    """A call by which somebody changed what runs."""

    at: datetime
    namespace: str
    who: str = Field(description="the id of a token; `anybody` where none is asked for")
    verb: str
    target: str
    changed: int | None = Field(default=None, description="how many, where the call says so")
    origin: str
    detail: str = Field(description="the call's body, cut")


class AuditPage(Response):
    """A page of the log; what is on shards that are `away` is missing."""

    items: list[AuditEntry]
    next_cursor: str | None = None
    away: list[int] = Field(default_factory=list)


class Cause(Response):
    """One cause; `near` are names like the one that was asked for, `node` is the node that it is about."""

    kind: str
    text: str
    since: datetime | None = None
    near: list[str] = Field(default_factory=list)
    node: str | None = None


class Why(Response):
    """Why something does not go on: one sentence, and the chain of causes, the nearest first."""

    about: Literal["topic", "item", "node", "dag", "namespace"]
    name: str
    sentence: str
    causes: list[Cause]
    topic: str | None = Field(default=None, description="of an item")


class Me(Response):
    """What a caller's token allows; without a tokens file, everything but scope `dag`."""

    token: str | None = Field(default=None, description="the token's id, which is not secret")
    scopes: list[str]
    namespaces: list[str] | None = Field(default=None, description="null: all")
    history_s_max: float = Field(default=3_600.0, description="of the longest range of `GET /v1/history`")


class ShardView(Response):
    """How one process sees a shard."""

    process: str
    breaker: Literal["closed", "open", "half_open"]
    takes_items: bool
    is_full: bool = False
    draining: bool
    owns: bool
    owner: str | None = None
    owner_epoch: int
    map_version: int
    schema_name: str = Field(alias="schema")
    shard_epoch: int
    connections_in_use: int
    connections_max: int
    calls_waiting: int
    latency_ms_p50: float | None = None
    latency_ms_p99: float | None = None


class Sessions(Response):
    """Sessions of the shard's database that do and wait for the same."""

    application: str
    state: str
    wait_event_type: str | None = None
    wait_event: str | None = None
    sessions: int
    oldest_s: float | None = None


class OpenTransaction(Response):
    """One of the oldest transactions of the shard's database."""

    pid: int
    application: str
    state: str | None = None
    wait_event: str | None = None
    age_s: float | None = None
    statement: str


class WaitingLock(Response):
    """A session that waits for a lock."""

    pid: int
    kind: str
    mode: str
    table: str
    blocked_by: list[int]
    waits_s: float | None = None
    statement: str


class TableSize(Response):
    """A table of the shard."""

    table: str
    bytes: int
    index_bytes: int
    rows: int
    dead: int
    vacuumed_at: datetime | None = None


class StatementCost(Response):
    """A statement, as pg_stat_statements counts it."""

    statement: str
    calls: int
    mean_ms: float
    total_ms: float
    rows: int


class Standby(Response):
    """A standby of the shard's server."""

    name: str
    state: str | None = None
    sync_state: str | None = None
    behind_bytes: float | None = None
    behind_s: float | None = None


class ShardServer(Response):
    """The server that a shard is on."""

    version: str
    is_standby: bool
    wal_bytes: float = Field(description="written in all; two looks tell how fast")
    at_s: float
    up_s: float
    database_bytes: int
    connections: int
    connections_max: int


class ShardCommandSpec(Request):
    """A change of the shard map. `to` is a shard on the server that a move is to."""

    kind: Literal["drain", "undrain", "rebalance", "move"]
    to: int | None = Field(default=None, ge=0, le=4_095)
    dry_run: bool = False


class ShardCommand(Response):
    """A change of the shard map, and what it says; `planned` is what would be done."""

    id: str
    kind: str
    shard: int
    to: int | None = None
    state: Literal["planned", "running", "done", "failed"]
    lines: list[str]
    begun_at: datetime
    ended_at: datetime | None = None
    process: str


class ShardCommands(Response):
    """What was begun lately, as far as the processes that did it remember; `enabled`: whether more may be."""

    enabled: bool
    items: list[ShardCommand]


class Inspection(Response):
    """A close look at a shard; a part is null where its server does not tell it, and `untold` says why."""

    shard: int
    why: str
    views: list[ShardView]
    silent: int = Field(description="processes that were asked and have not answered in time")
    server: ShardServer | None = None
    sessions: list[Sessions] | None = None
    transactions: list[OpenTransaction] | None = None
    locks: list[WaitingLock] | None = None
    tables: list[TableSize] | None = None
    statements: list[StatementCost] | None = Field(default=None, description="null: no pg_stat_statements")
    standbys: list[Standby] | None = None
    untold: list[str]


class HistoryLine(Response):
    """Points of one metric, oldest first; null where nothing was sampled."""

    metric: str
    shard: int | None = None
    namespace: str | None = None
    topic: str | None = None
    values: list[float | None]


class HistoryMark(Response):
    """Something that a process saw happen."""

    at_s: float
    kind: MarkKind
    shard: int | None = None
    text: str
    process: str


class History(Response):
    """The last hour of a service's shards, as its processes remember it, or longer, as Prometheus does."""

    begins_at_s: float = Field(description="of the first point, seconds since the epoch")
    step_s: float = Field(description="from one point to the next")
    points: int
    series: list[HistoryLine]
    marks: list[HistoryMark]
    processes: list[str] = Field(description="who has answered")
    silent: int = Field(description="processes that were asked and have not answered in time")
    source: Literal["processes", "prometheus"] = "processes"
    left_out: int = Field(description="series over the limits of a process or of the answer")
