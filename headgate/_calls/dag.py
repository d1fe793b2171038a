"""Building a DAG here, before the service knows of it.

    dag = Dag("nightly")
    fetch = dag.node("fetch", topic="etl")
    clean = dag.node("clean", topic="etl", after=[fetch])
    dag.node("publish", topic="etl", after=[clean], external=["approval"])
    handle = client.submit(dag)

A DAG goes to the service in one call where it fits, and otherwise held back until all of it is there, so it
starts whole or not at all. Submitting the same `Dag` again, after an error or in doubt, goes on with the
same DAG.
"""

import graphlib
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple, Required, TypedDict, Union, Unpack

from headgate import wire
from headgate._calls import verbs
from headgate._calls.elements import BackoffSpec
from headgate._calls.flows import BODY_BYTES_AIM, Flow, fitting
from headgate._calls.verbs import Call, present
from headgate.errors import Cycle, HeadgateError, Invalid, NodeExists, NotFound, TooLarge, UnknownNode
from headgate.wire import BATCH_MAX, OnFailure, ParentClose, Trigger
from headgate.workflow.context import RunOptions

CYCLE_SHOWN_MAX: Final = 12
# How keys begin that nobody chose.
MADE_KEY: Final = "sdk-"


class DagPriority(TypedDict, total=False):
    """By how much a DAG's items go before others; see `headgate.wire.DagPriority`."""

    inherit: int
    critical_path: int


class WaitOptions(TypedDict, total=False):
    """How any node waits, and what it is given.

    trigger: what its upstreams must have come to; `all_succeeded` by default.
    pass_outputs: give it the outputs of its upstreams as `job.inputs`, by key; to one that compensates another,
        that one's output by key, and its payload and inputs as `payload:<key>` and `inputs:<key>`.
    run_on: a cleanup node, for the DAG's end: `always`, `succeeded`, `failed`, `cancelled`, `unsuccessful`.
    compensates: the key of the node that it undoes if the DAG fails or is cancelled.
    tolerate: its failure does not fail the DAG; what waits for it is decided by its triggers as ever.
    """

    trigger: Trigger
    pass_outputs: bool
    run_on: wire.RunOn
    compensates: str
    tolerate: bool


class NodeOptions(WaitOptions, total=False):
    """What a node may carry besides key, topic and what it waits for, and `WaitOptions`.

    payload: any JSON, up to 64 KiB; what its handler finds in `job.payload`.
    metadata: an object of up to 1 KiB.
    priority: lower is served first; 0 by default.
    max_attempts: deliveries before it has failed; by default a worker's task says, which is 20.
    backoff: `{"base_s": 5}` waits 5, 10, 20, ... up to 300 seconds between them; by default from 1; 0 is at once.
    lease_s: how long a consumer that does not extend has for it; 60 by default, a worker's own says otherwise.
    delay_s, ttl_s: from its release, not before and not after so long.
    deadline_s: from its release; so long after that it has failed, also if somebody has it then.
    timeout_s: how long one delivery may last, however often its lease is extended.
    fairness_key: items of one key take turns with those of others; limits of keys count by it.
    """

    payload: Any
    metadata: dict[str, Any]
    priority: int
    max_attempts: int
    backoff: BackoffSpec
    lease_s: float
    delay_s: float
    ttl_s: float
    deadline_s: float
    timeout_s: float
    fairness_key: str


class TimerOptions(TypedDict, total=False):
    """What a timer may carry: `trigger` and `tolerate`, as of `WaitOptions`."""

    trigger: Trigger
    tolerate: bool


class ExternalOptions(TypedDict, total=False):
    """An event that a node waits for, for up to `deadline_s` from when the node is added; then the node fails."""

    name: Required[str]
    deadline_s: float


External = Union[str, ExternalOptions]  # noqa: UP007 (a runtime alias of a class and str)


@dataclass(slots=True, eq=False)
class Node:
    """A node of a `Dag`, to be named in the `after` of others. `dag` runs in the place of a `topic`'s item, and so
    do a `timer` and a `workflow`."""

    key: str
    topic: str | None
    upstream: list[str] = field(default_factory=list)
    external: list[External] = field(default_factory=list)
    options: NodeOptions | WaitOptions | TimerOptions = field(default_factory=NodeOptions)
    dag: Mapping[str, Any] | None = None
    timer: Mapping[str, Any] | None = None
    workflow: Mapping[str, Any] | None = None

    def body(self) -> dict[str, Any]:
        """The node as the service takes it, with the upstreams that one node may name."""
        waits = {"upstream": self.upstream[:BATCH_MAX], "external": self.external}
        named = {name: keys for name, keys in waits.items() if keys}
        does = present(topic=self.topic, dag=self.dag, timer=self.timer, workflow=self.workflow)
        return {"key": self.key, **does, **self.options, **named}

    def further(self) -> list[dict[str, str]]:
        """The edges beyond those."""
        return [{"upstream": key, "downstream": self.key} for key in self.upstream[BATCH_MAX:]]


NodeRef = Union[Node, str]  # noqa: UP007 (a runtime alias of a class and str)


def _node_of(spec: Mapping[str, Any], number: int) -> Node:
    """A node from the JSON that the service takes.

    Raises:
        ValueError: it has no key, or nothing to do.
    """
    fields: Any = dict(spec)
    after, external = fields.pop("upstream", None), fields.pop("external", None)
    sub, timer, workflow = (fields.pop(name, None) for name in ("dag", "timer", "workflow"))
    if "key" not in fields:
        raise ValueError(f"/nodes/{number} has no `key`")
    if "topic" not in fields and sub is None and timer is None and workflow is None:
        advice = "; shell commands are run by `headgate dag run`" if "run" in fields else ""
        raise ValueError(f"node {fields['key']!r} has no `topic`{advice}")
    key, topic = fields.pop("key"), fields.pop("topic", None)
    return Node(key, topic, keys_of(after), externals_of(external), fields, sub, timer, workflow)


class Dag:
    """A graph of items, each delivered when what it waits for is done.

    `key` makes the DAG one: whoever submits the same key gets the first one. Without one a random key is
    made, so that this object is submitted once however often the call is repeated.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        key: str | None = None,
        open: bool = False,
        hold: bool = False,
        on_failure: OnFailure = "continue",
        deadline_s: float | None = None,
        priority: DagPriority | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.key = key or f"{MADE_KEY}{secrets.token_hex(12)}"
        self.made_key = key is None
        self.hold = hold
        self.nodes: dict[str, Node] = {}
        self._settings = present(
            name=name,
            open=open or None,
            deadline_s=deadline_s,
            metadata=metadata,
            priority=priority,
            on_failure=on_failure,
        )

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> "Dag":
        """A DAG from the JSON that `POST /dags` takes, of any size.

        Raises:
            Invalid: it is not of that form.
        """
        settings = {name: value for name, value in spec.items() if name not in ("nodes", "dependencies")}
        try:
            dag = cls(**settings)
            for number, node in enumerate(spec.get("nodes") or ()):
                dag._add(_node_of(node, number))
            for edge in spec.get("dependencies") or ():
                dag.depend(edge["upstream"], edge["downstream"])
        except (TypeError, AttributeError, ValueError) as error:
            raise Invalid(f"this is not a DAG: {error}") from None
        except KeyError as error:
            raise Invalid(f"this is not a DAG: {error} is missing") from None
        return dag

    def node(
        self,
        key: str,
        topic: str,
        *,
        after: Iterable[NodeRef] | None = None,
        external: Iterable[External] | None = None,
        **options: Unpack[NodeOptions],
    ) -> Node:
        """Add a node that waits for the nodes in `after` and the events in `external`; see `NodeOptions`.

        Raises:
            NodeExists: `key` is taken.
        """
        return self._add(Node(key, topic, keys_of(after), externals_of(external), options))

    def subdag(
        self,
        key: str,
        dag: "Dag",
        *,
        after: Iterable[NodeRef] | None = None,
        external: Iterable[External] | None = None,
        **options: Unpack[WaitOptions],
    ) -> Node:
        """Add a node in whose place a whole DAG runs: made when the node is released, and its end ends the node.

        The node's output is that of the DAG's last nodes, by key. Up to 1,000 nodes and 1 MiB.

        Raises:
            NodeExists: `key` is taken.
        """
        node = Node(key, None, keys_of(after), externals_of(external), options, dag.within())
        return self._add(node)

    def timer(
        self,
        key: str,
        *,
        delay_s: float | None = None,
        at: datetime | None = None,
        after: Iterable[NodeRef] | None = None,
        external: Iterable[External] | None = None,
        **options: Unpack[TimerOptions],
    ) -> Node:
        """Add a node that ends by itself: `delay_s` after what it waits for has ended, or `at` a time.

        Raises:
            NodeExists: `key` is taken.
        """
        return self._add(timer_node(key, delay_s, at, after, external, options))

    def workflow(
        self,
        key: str,
        type: str,
        input: Any = None,
        *,
        after: Iterable[NodeRef] | None = None,
        external: Iterable[External] | None = None,
        parent_close: ParentClose | None = None,
        trigger: Trigger | None = None,
        tolerate: bool | None = None,
        **options: Unpack[RunOptions],
    ) -> Node:
        """Add a node in whose place a run of a workflow goes: begun when the node is released, and its end ends
        the node. The node's output is what the workflow returns. `parent_close` says what becomes of the run when
        the node is cancelled: it is asked to end (`cancel`), ended (`terminate`), or left to itself (`abandon`).

        Raises:
            NodeExists: `key` is taken.
        """
        said = present(parent_close=parent_close) | {"type": type, "input": input, **options}
        waits = present(trigger=trigger, tolerate=tolerate)
        return self._add(Node(key, None, keys_of(after), externals_of(external), waits, workflow=said))  # type: ignore[arg-type]

    def within(self) -> dict[str, Any]:
        """This DAG as a node takes it; key and hold are those of DAGs of their own."""
        ordered = self.ordered()
        lists = {
            "nodes": [node.body() for node in ordered],
            "dependencies": [edge for node in ordered for edge in node.further()],
        }
        return {**self._settings, **{name: value for name, value in lists.items() if value}}

    def _add(self, node: Node) -> Node:
        if node.key in self.nodes:
            raise NodeExists(f"there is already a node {node.key!r}")
        self.nodes[node.key] = node
        return node

    def depend(self, upstream: NodeRef, downstream: NodeRef) -> None:
        """Let `downstream` wait for `upstream`, which need not be there yet.

        Raises:
            UnknownNode: there is no node `downstream`.
        """
        key = key_of(downstream)
        if key not in self.nodes:
            raise UnknownNode(f"there is no node {key!r}")
        if key_of(upstream) not in self.nodes[key].upstream:
            self.nodes[key].upstream.append(key_of(upstream))

    def ordered(self) -> list[Node]:
        """The nodes, each after its upstreams.

        Raises:
            UnknownNode: a node waits for one that is not here.
            Cycle: nodes wait for one another.
        """
        for node in self.nodes.values():
            for key in node.upstream:
                if key not in self.nodes:
                    raise UnknownNode(f"node {node.key!r} comes after {key!r}, which is not in this DAG")
        try:
            order = graphlib.TopologicalSorter({node.key: node.upstream for node in self.nodes.values()})
            return [self.nodes[key] for key in order.static_order()]
        except graphlib.CycleError as error:
            raise Cycle(f"these nodes wait for one another: {_loop(error.args[1])}") from None

    def body(self, **more: Any) -> dict[str, Any]:
        return {"key": self.key, **self._settings, **more}


def timer_node(
    key: str,
    delay_s: float | None,
    at: datetime | None,
    after: Iterable[NodeRef] | None,
    external: Iterable[External] | None,
    options: TimerOptions,
) -> Node:
    """A timer.

    Raises:
        ValueError: it says both, or neither, of when it ends.
    """
    if (delay_s is None) == (at is None):
        raise ValueError("give one of delay_s= and at=")
    if at is not None and at.tzinfo is None:
        raise ValueError(f"{at!r} has no time zone")
    said = present(delay_s=delay_s, at=at and at.isoformat())
    return Node(key, None, keys_of(after), externals_of(external), options, timer=said)


def key_of(node: NodeRef) -> str:
    return node if isinstance(node, str) else node.key


def keys_of(nodes: Iterable[NodeRef] | None) -> list[str]:
    """The keys of nodes, each once.

    Raises:
        TypeError: one node or key was given in place of a list.
    """
    if isinstance(nodes, str | Node):
        raise TypeError("give a list of nodes, like after=[a]")
    return verbs.unique(key_of(node) for node in nodes or ())


def externals_of(external: Iterable[External] | None) -> list[External]:
    """Events to wait for, each once.

    Raises:
        TypeError: one was given in place of a list.
    """
    if isinstance(external, str | dict):
        raise TypeError("give a list of events, like external=['approval']")
    found: list[External] = []
    for each in external or ():
        if each not in found:
            found.append(each)
    return found


def _loop(keys: Sequence[str]) -> str:
    shown = list(keys) if len(keys) <= CYCLE_SHOWN_MAX else [*keys[:6], "...", *keys[-5:]]
    return " -> ".join(shown)


def create(ns: str, body: Mapping[str, Any]) -> Call[wire.CreatedDag]:
    parse = wire.CreatedDag.model_validate
    return verbs.call(verbs.DAG_CREATE, parse, ns=ns, body=body, safe=body.get("key") is not None)


def add_nodes(ns: str, dag_id: str, nodes: Sequence[Any]) -> Call[list[wire.NodeAdded]]:
    return verbs.call(verbs.DAG_NODES_ADD, _added, ns=ns, dag=dag_id, body={"nodes": nodes})


def expand(ns: str, dag_id: str, fields: Mapping[str, Any], nodes: Sequence[Any]) -> Call[list[wire.NodeAdded]]:
    return verbs.call(verbs.DAG_EXPAND, _added, ns=ns, dag=dag_id, body={**fields, "nodes": nodes})


def add_dependencies(ns: str, dag_id: str, edges: Sequence[Any]) -> Call[None]:
    return verbs.call(verbs.DAG_DEPENDENCIES_ADD, _nothing, ns=ns, dag=dag_id, body={"dependencies": edges})


def _added(answer: Any) -> list[wire.NodeAdded]:
    return wire.NodesAdded.model_validate(answer).nodes


def _nothing(_answer: Any) -> None:
    return None


class Submitted(NamedTuple):
    """The DAG of the key; `same`: whether it was made of what was to be submitted, None where nobody knows."""

    dag: wire.Dag
    existing: bool
    same: bool | None


def submission(ns: str, dag: Dag) -> Flow[Submitted]:
    """Bring `dag` to the service."""
    ordered = dag.ordered()
    whole = _in_one_call(ns, dag, ordered)
    made: wire.CreatedDag = yield whole or create(ns, dag.body(hold=True))
    if whole is not None:
        return Submitted(made, made.existing, made.same)
    # The call that made it had no nodes: of them it says nothing.
    submitted = Submitted(made, made.existing, None if made.existing else True)
    if made.existing and not made.held:  # the release comes last, so there is nothing to go on with
        return submitted if made.nodes.total >= len(ordered) else submitted._replace(same=False)
    try:
        yield from grow(ns, made.id, ordered)
    except (Invalid, NotFound, TooLarge):
        if dag.made_key:
            yield from _abandon(ns, made.id)
        raise
    verb = verbs.DAG if dag.hold else verbs.DAG_RELEASE
    shown: wire.Dag = yield verbs.call(verb, wire.Dag.model_validate, ns=ns, dag=made.id)
    return submitted._replace(dag=shown)


def grow(
    ns: str, dag_id: str, nodes: Sequence[Node], *, expanding: Mapping[str, Any] | None = None
) -> Flow[list[wire.NodeAdded]]:
    """Add nodes, upstreams first, in as many calls as they need; as children of the node that expands itself."""

    def build(part: Sequence[Any]) -> Call[list[wire.NodeAdded]]:
        return add_nodes(ns, dag_id, part) if expanding is None else expand(ns, dag_id, expanding, part)

    added: list[wire.NodeAdded] = []
    for call in fitting(build, [node.body() for node in nodes]):
        added += yield call
    edges = [edge for node in nodes for edge in node.further()]
    yield from fitting(lambda part: add_dependencies(ns, dag_id, part), edges)
    return added


def _in_one_call(ns: str, dag: Dag, ordered: Sequence[Node]) -> Call[wire.CreatedDag] | None:
    edges = [edge for node in ordered for edge in node.further()]
    if max(len(ordered), len(edges)) > BATCH_MAX:
        return None
    lists = {"nodes": [node.body() for node in ordered], "dependencies": edges, "hold": dag.hold}
    call = create(ns, dag.body(**{name: value for name, value in lists.items() if value}))
    return call if len(call.body or b"") <= BODY_BYTES_AIM else None


def _abandon(ns: str, dag_id: str) -> Flow[None]:
    """Cancel what nobody else can know of; a failure here would only hide the first one."""
    try:
        body = {"reason": "it could not be submitted whole"}
        yield verbs.call(verbs.DAG_CANCEL, wire.Dag.model_validate, ns=ns, dag=dag_id, body=body)
    except HeadgateError:
        return
