"""The verbs that build DAGs and wait for them: what their routes answer, and the short way to them.

What a program does with every DAG (create it, add to it, resolve, wait for its end), and what a worker does with
every run (its turns), comes by the short way of `shared.http.hot_path` when it is asked for plainly, and by its
route otherwise; both end in the same function here, but for new DAGs of the common shape (see `plain`), which are
as that function would have made them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from headgate import wire
from services.dag.api import intake, simple_intake, workflow_intake
from services.dag.api.parts import Orchestrator
from services.dag.api.routing import enter, enter_as_decider, path_name
from services.dag.api.run_views import history_view, turn_view
from services.dag.api.views import added_view, dag_view, node_end_view
from services.dag.build.create import Created
from services.dag.model import NewEdge, NewNode
from shared.admission.connection_priority import Urgency
from shared.beside import beside
from shared.fallback import Fallback
from shared.http import json_body
from shared.http.edge import M, validate, validate_by_parts
from shared.http.hot_path import Call, Verb

Answer = tuple[int, Any]

_plain_history = re.compile(r"after=(?P<after>[0-9]{1,15})").fullmatch

_PLAIN_WAIT = re.compile(
    r"timeout_s=(?P<seconds>[0-9]{1,3}(?:\.[0-9]{1,6})?)(?:&node=(?P<node>[A-Za-z0-9._-]{1,200}))?"
).fullmatch


async def create(duties: Orchestrator, namespace: str, body: wire.DagSpec) -> Answer:
    """201 and the DAG that was made, or 200 and the one of the same key."""
    settings = duties.context.settings
    new, edges = intake.new_dag(body, settings), intake.new_edges(body.dependencies or ())
    nodes = await new_nodes(duties, body.nodes or ())
    return _created(await duties.builder.create(namespace, new, nodes, edges))


async def new_nodes(duties: Orchestrator, nodes: Sequence[wire.NodeSpec]) -> list[NewNode]:
    """Nodes of a call, of any size.

    Raises:
        ServiceError: as `intake.new_nodes`.
    """
    settings = duties.context.settings
    is_large = intake.edge_count(nodes) > settings.edges_at_once_max
    return await beside(is_large, intake.new_nodes, nodes, settings)


def _created(created: Created) -> Answer:
    view = dag_view(created.dag) | {"existing": not created.made, "same": created.same}
    return 201 if created.made else 200, view


async def add_nodes(duties: Orchestrator, namespace: str, dag: str, body: wire.AddNodes) -> dict[str, Any]:
    """The call's nodes as they stand now."""
    nodes = await new_nodes(duties, body.nodes)
    return await _add(duties, namespace, dag, nodes, intake.new_edges(body.dependencies or ()))


async def _add(
    duties: Orchestrator, namespace: str, dag: str, nodes: list[NewNode], edges: list[NewEdge]
) -> dict[str, Any]:
    return {"nodes": added_view(await duties.builder.add(namespace, dag, nodes, edges))}


async def add_dependencies(
    duties: Orchestrator, namespace: str, dag: str, body: wire.AddDependencies
) -> dict[str, Any]:
    """The call's edges, all of which exist now."""
    await duties.builder.add(namespace, dag, [], intake.new_edges(body.dependencies))
    return {
        "dependencies": [{"upstream": edge.upstream, "downstream": edge.downstream} for edge in body.dependencies]
    }


async def resolve(duties: Orchestrator, namespace: str, dag: str, body: wire.ResolveRequest) -> dict[str, Any]:
    """What each fact was: news, or known."""
    facts = intake.resolutions(body.external, duties.context.settings)
    answers = await duties.controller.resolve(namespace, dag, facts)
    results = [
        {
            "node": fact.node,
            "name": fact.name,
            "status": "resolved" if answer.is_new else "already_resolved",
            "declared": answer.declared,
        }
        | ({} if answer.hint is None else {"hint": answer.hint})
        for fact, answer in zip(facts, answers, strict=True)
    ]
    return {"results": results}


async def wait(
    duties: Orchestrator, namespace: str, dag: str, timeout_s: float, node: str | None
) -> dict[str, Any]:
    """A DAG, when it has ended or at the timeout, and how one of its nodes stands then."""
    found = await duties.queries.wait(namespace, dag, timeout_s)
    if node is None:
        return dag_view(found)
    row = await duties.queries.standing_of(found, node)
    if row is None and found.over:
        await duties.queries.find(namespace, dag)  # it may have been dropped meanwhile
    return {**dag_view(found), "node": None if row is None else node_end_view(row)}


async def signal(duties: Orchestrator, namespace: str, workflow: str, body: wire.SignalSpec) -> dict[str, Any]:
    """Whether the signal is news to the run."""
    told = workflow_intake.signal(body, duties.context.settings)
    is_new = await duties.run_control.signal(namespace, workflow, told)
    return {"status": "accepted" if is_new else "duplicate"}


class Hot:
    """The short way in: one method per verb, each the same as its route."""

    def __init__(self, duties: Orchestrator) -> None:
        self._duties = duties
        self._settings = duties.context.settings

    def by_path(self) -> dict[str, Verb]:
        """The verbs by the part of their path behind the namespace."""
        return {
            "dags": Verb(self.create, Urgency.ENQUEUE),
            "dags/{dag}/nodes": Verb(self.add_nodes, Urgency.ENQUEUE),
            "dags/{dag}/dependencies": Verb(self.add_dependencies, Urgency.ENQUEUE),
            "dags/{dag}/resolve": Verb(self.resolve, Urgency.DEQUEUE),
            "dags/{dag}/wait": Verb(self.wait, Urgency.LIST, is_plain_wait),
            "dags/{dag}/turn": Verb(self.take_turn, Urgency.DEQUEUE),
            "dags/{dag}/history": Verb(self.history, Urgency.LIST, is_plain_history),
            "workflows/{workflow}/signals": Verb(self.signal, Urgency.DEQUEUE),
        }

    async def create(self, call: Call) -> Answer:
        """`dag_create`."""
        value, builder = await self._value(call), self._duties.builder
        is_large = self._is_large(call, value)
        made = Fallback("large") if is_large else simple_intake.read(value, self._settings)
        dag = made if isinstance(made, Fallback) else await builder.create_plain(call.namespace, *made)
        if not isinstance(dag, Fallback):
            return _created(Created(dag, made=True, same=True))
        dag.counted("dag_create")
        return await create(self._duties, call.namespace, await _validated(wire.DagSpec, value, is_large))

    async def add_nodes(self, call: Call) -> Answer:
        """`dag_add_nodes`."""
        value = await self._value(call)
        is_large = self._is_large(call, value)
        added = Fallback("large") if is_large else simple_intake.read_added(value)
        if isinstance(added, Fallback):
            added.counted("dag_add_nodes")
        else:
            columns = simple_intake.columns_of(added, self._settings)
            builder = self._duties.builder
            found = (
                columns
                if isinstance(columns, Fallback)
                else await builder.add_plain(call.namespace, call.of, *columns)
            )
            if not isinstance(found, Fallback):
                return 201, {"nodes": added_view(found)}
            found.counted("dag_add_nodes")
            nodes = simple_intake.nodes_of(added, self._settings)
            if not isinstance(nodes, Fallback):
                return 201, await _add(self._duties, call.namespace, call.of, *nodes)
        body = await _validated(wire.AddNodes, value, is_large)
        return 201, await add_nodes(self._duties, call.namespace, call.of, body)

    async def add_dependencies(self, call: Call) -> Answer:
        """`dag_add_dependencies`."""
        body = validate(wire.AddDependencies, await self._value(call))
        return 201, await add_dependencies(self._duties, call.namespace, call.of, body)

    async def resolve(self, call: Call) -> Answer:
        """`dag_resolve`."""
        body = validate(wire.ResolveRequest, await self._value(call))
        return 200, await resolve(self._duties, call.namespace, call.of, body)

    async def wait(self, call: Call) -> Answer:
        """`dag_wait`."""
        enter(call.namespace, call.caller, reads=True)
        asked = _plain_wait(call.query)
        assert asked is not None, "the short way takes no other query"
        call.client.step_aside()
        return 200, await wait(self._duties, call.namespace, call.of, *asked)

    async def take_turn(self, call: Call) -> Answer:
        """`run_turn`."""
        enter_as_decider(call.namespace, call.caller)
        value = await json_body.read(call.body, depth_max=self._settings.json_depth_max)
        turn = workflow_intake.turn(validate(wire.TakeTurn, value), self._settings)
        return 200, turn_view(await self._duties.turns.take(call.namespace, call.of, turn, call.client))

    async def history(self, call: Call) -> Answer:
        """`run_history`, of a decider that does not wait."""
        enter(call.namespace, call.caller, reads=True)
        asked = _plain_history(call.query)
        assert asked is not None, "the short way takes no other query"
        return 200, history_view(await self._duties.runs.history(call.namespace, call.of, int(asked["after"])))

    async def signal(self, call: Call) -> Answer:
        """`workflow_signal`."""
        body = validate(wire.SignalSpec, await self._value(call))
        return 202, await signal(self._duties, call.namespace, path_name("workflow", call.of), body)

    def _is_large(self, call: Call, value: Any) -> bool:
        return simple_intake.has_many_edges(call.body, value, self._settings.edges_at_once_max)

    async def _value(self, call: Call) -> Any:
        enter(call.namespace, call.caller, reads=False)
        return await json_body.read(call.body, depth_max=self._settings.json_depth_max)


async def _validated(model: type[M], value: Any, is_large: bool) -> M:
    return await beside(is_large, validate_by_parts if is_large else validate, model, value)


def is_plain_history(query: str) -> bool:
    """True for the query of a decider that reads what there is behind an event."""
    return _plain_history(query) is not None


def is_plain_wait(query: str) -> bool:
    """True for the query of a wait that gives a time within its bounds, maybe a plain node, or nothing."""
    return _plain_wait(query) is not None


def _plain_wait(query: str) -> tuple[float, str | None] | None:
    """How long to wait, and which node to tell of."""
    if not query:
        return wire.WAIT_S_MAX, None
    found = _PLAIN_WAIT(query)
    if found is None or float(found["seconds"]) > wire.WAIT_S_MAX:
        return None
    return float(found["seconds"]), found["node"]
