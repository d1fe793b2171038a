"""The statements that answer questions, bound; no locks. `over`: the DAG has ended, its nodes may be elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from services.dag.model import Dag, DagNo, NodeNo, NodeState, Trigger
from services.dag.store.archive import everywhere
from services.dag.store.dags import SQL
from services.dag.store.edges import ExternalName
from shared.postgres.rows import map_of, only_row_of, row_of, rows_of
from shared.postgres.sql import Statement
from shared.shards.shard_map import Shard


class ShownNode(NamedTuple):
    """A node as it is shown; `bytes` of a page's rows up to this one."""

    no: NodeNo
    key: str
    item_id: str
    state: NodeState
    generation: int
    topic: str
    trigger: Trigger
    attempts: int
    output: str | None
    error: str | None
    created_at: datetime
    released_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    worker: str | None
    upstreams: int
    sub: bool
    run_on: str | None
    tolerate: bool
    timer: bool
    bytes: int


class Upstream(NamedTuple):
    """An upstream of node `no`; `bytes` of the rows up to this one."""

    no: NodeNo
    key: str
    state: NodeState
    satisfied: bool
    since: datetime
    bytes: int


class Downstream(NamedTuple):
    """A downstream of node `no`; `bytes` of the rows up to this one."""

    no: NodeNo
    key: str
    bytes: int


class DeclaredExternal(NamedTuple):
    """An external that a node has declared; `bytes` of the rows up to this one."""

    node_key: str
    name: str
    resolved: bool
    failed: bool
    reason: str | None
    deadline_at: datetime | None
    bytes: int


class GraphNode(NamedTuple):
    """A node as a drawing shows it."""

    no: NodeNo
    key: str
    item_id: str
    state: NodeState
    topic: str
    generation: int
    sub: bool


class LoggedChange(NamedTuple):
    """A row of a DAG's log; `nodes` and `dag` are text as table `change` has it."""

    last_event: int
    at: datetime
    nodes: str | None
    dag: str | None


class DagHead(NamedTuple):
    """How far a DAG has come."""

    id: str
    last_event: int
    state: str


class HeldSince(NamedTuple):
    """Since when a DAG is paused, and since when a retry of it goes on, as far as that is so."""

    paused_at: datetime | None = None
    retried_at: datetime | None = None


async def get_dag(shard: Shard, dag_id: str, namespace: str) -> Dag | None:
    """A DAG of this namespace."""
    row = await shard.pool.row(SQL.get_dag, id=dag_id, namespace=namespace)
    return Dag(*row) if row else None


async def get_dags(shard: Shard, ids: Sequence[str]) -> dict[str, Dag]:
    """DAGs by id, of any namespace."""
    return {row["id"]: Dag(*row) for row in await shard.pool.fetch(SQL.get_dags, ids=ids)}


async def list_dags(
    shard: Shard,
    namespace: str,
    *,
    state: str | None,
    name: str | None,
    key: str | None,
    before_id: str,
    rows_max: int,
) -> list[Dag]:
    """DAGs of a namespace, newest first, made before `before_id`."""
    if key is not None:
        rows = await shard.pool.fetch(
            SQL.list_dags_by_key, namespace=namespace, key=key, name=name, state=state, before_id=before_id
        )
    elif name is not None:
        rows = await shard.pool.fetch(
            SQL.list_dags_by_name,
            namespace=namespace,
            name=name,
            state=state,
            before_id=before_id,
            rows_max=rows_max,
        )
    elif state is not None:
        rows = await shard.pool.fetch(
            SQL.list_dags_by_state, namespace=namespace, state=state, before_id=before_id, rows_max=rows_max
        )
    else:
        rows = await shard.pool.fetch(SQL.list_dags, namespace=namespace, before_id=before_id, rows_max=rows_max)
    return [Dag(*row) for row in rows]


async def node_by_key(shard: Shard, dag_no: DagNo, key: str, *, over: bool = False) -> ShownNode | None:
    """One node."""
    return await row_of(ShownNode, shard.pool, _where(SQL.node_by_key, over), dag_no=dag_no, key=key)


# What reads under a bound in bytes ends with the row that reaches it, so there is one row at least.


async def nodes_page(
    shard: Shard,
    *,
    states: Sequence[str] | None,
    after_no: int,
    last_no: int,
    rows_max: int,
    bytes_max: int,
    over: bool = False,
) -> list[ShownNode]:
    """Nodes after `after_no` up to `last_no`, of all states or some; `bytes`: of these up to this one."""
    given = {"after_no": after_no, "last_no": last_no, "rows_max": rows_max, "bytes_max": bytes_max}
    if states is None:
        return await rows_of(ShownNode, shard.pool, _where(SQL.nodes_page, over), **given)
    return await rows_of(ShownNode, shard.pool, _where(SQL.nodes_page_by_state, over), states=states, **given)


async def upstreams_of(
    shard: Shard, nos: Sequence[NodeNo], bytes_max: int, *, over: bool = False
) -> list[Upstream]:
    """The upstreams of these nodes, in the order of the nodes."""
    return await rows_of(Upstream, shard.pool, _where(SQL.upstreams_of, over), nos=nos, bytes_max=bytes_max)


async def kept_since(shard: Shard, dag: Dag) -> HeldSince:
    """Since when a DAG's nodes are kept."""
    held = await row_of(HeldSince, shard.pool, SQL.kept_since, no=dag.no) if dag.paused or dag.reopening else None
    return held or HeldSince()


async def downstreams_of(
    shard: Shard, nos: Sequence[NodeNo], bytes_max: int, *, over: bool = False
) -> list[Downstream]:
    """The downstreams of these nodes, in the order of the nodes."""
    return await rows_of(Downstream, shard.pool, _where(SQL.downstreams_of, over), nos=nos, bytes_max=bytes_max)


async def out_degrees(
    shard: Shard, nos: Sequence[NodeNo], degree_max: int, *, over: bool = False
) -> dict[NodeNo, int]:
    """How many edges leave each node, counted up to `degree_max`."""
    return await map_of(NodeNo, int, shard.pool, _where(SQL.out_degrees, over), ups=nos, degree_max=degree_max)


async def externals_of(
    shard: Shard, dag_no: DagNo, keys: Sequence[str], bytes_max: int, *, over: bool = False
) -> list[DeclaredExternal]:
    """What these nodes declared, in order."""
    values = {"dag_no": dag_no, "keys": keys, "bytes_max": bytes_max}
    return await rows_of(DeclaredExternal, shard.pool, _where(SQL.externals_of, over), **values)


async def declared_names(
    shard: Shard, dag_no: DagNo, keys: Sequence[str], rows_max: int, *, over: bool
) -> list[ExternalName]:
    """Externals that these nodes have declared, up to `rows_max` of each."""
    values = {"dag_no": dag_no, "keys": keys, "rows_max": rows_max}
    return await rows_of(ExternalName, shard.pool, _where(SQL.declared_names, over), **values)


async def undeclared(shard: Shard, dags: Sequence[Dag], rows_max: int) -> dict[int, list[ExternalName]]:
    """Events that were resolved and that no node waits for, up to `rows_max` of each DAG."""
    found: dict[int, list[ExternalName]] = {dag.no: [] for dag in dags}
    rows = await shard.pool.fetch(everywhere(SQL.undeclared), dag_nos=list(found), rows_max=rows_max)
    for no, *external in rows:
        found[no].append(ExternalName(*external))
    return found


async def graph_nodes(
    shard: Shard, after_no: int, last_no: int, rows_max: int, *, over: bool = False
) -> list[GraphNode]:
    """Nodes after `after_no`."""
    values = {"after_no": after_no, "last_no": last_no, "rows_max": rows_max}
    return await rows_of(GraphNode, shard.pool, _where(SQL.graph_nodes, over), **values)


async def changes_after(shard: Shard, dag_no: DagNo, after: int, rows_max: int) -> list[LoggedChange]:
    """Rows of the DAG's log with changes after `after`, in order, wherever they are: it may end meanwhile."""
    values = {"dag_no": dag_no, "after": after, "rows_max": rows_max}
    return await rows_of(LoggedChange, shard.pool, everywhere(SQL.changes_after), **values)


async def node_keys(shard: Shard, nos: Sequence[NodeNo]) -> dict[NodeNo, str]:
    """The keys of nodes by number, wherever they are."""
    return await map_of(NodeNo, str, shard.pool, everywhere(SQL.node_keys), nos=nos)


async def heads(shard: Shard, ids: Sequence[str]) -> list[DagHead]:
    """How far these DAGs have come."""
    return await rows_of(DagHead, shard.pool, SQL.heads, ids=ids)


class StateCounts(NamedTuple):
    """DAGs in a state, and their nodes by state."""

    state: str
    dags: int
    blocked: int
    released: int
    succeeded: int
    failed: int
    skipped: int
    cancelled: int


async def health(shard: Shard) -> list[StateCounts]:
    """DAGs and their nodes by the DAG's state."""
    return await rows_of(StateCounts, shard.pool, SQL.health)


def _where(statement: Statement, over: bool) -> Statement:
    return everywhere(statement) if over else statement


class NamespaceUse(NamedTuple):
    """DAGs that have not ended, and nodes and edges in them."""

    dags: int
    nodes: int
    edges: int


async def namespace_use(shard: Shard, namespace: str) -> NamespaceUse:
    """What has not ended in a namespace."""
    return await only_row_of(NamespaceUse, shard.pool, SQL.namespace_use, namespace=namespace)


class Limits(NamedTuple):
    """How many unfinished DAGs a namespace may have, and nodes and edges in them; None: not said."""

    dags_max: int | None = None
    nodes_max: int | None = None
    edges_max: int | None = None

    def over(self, default: Limits) -> Limits:
        """These, where they say nothing the default."""
        return Limits(*(own if own is not None else other for own, other in zip(self, default, strict=True)))


async def quotas(shard: Shard) -> list[tuple[str, Limits, datetime]]:
    """Namespaces with quotas of their own, and when they were given them."""
    rows = await shard.pool.fetch(SQL.quotas)
    return [(namespace, Limits(*limits), updated_at) for namespace, *limits, updated_at in rows]


async def set_quota(shard: Shard, namespace: str, limits: Limits) -> None:
    """Give a namespace quotas of its own."""
    await shard.pool.fetch(SQL.set_quota, namespace=namespace, **limits._asdict())
