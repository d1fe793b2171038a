"""What clients did to DAGs and were answered, as records that can be judged later (`dag_oracle`)."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.worlds.facts import Delivery
from tests.worlds.value_facts import Cells, cells
from tests.worlds.wire import Answer, Known


@dataclass(slots=True)
class Node:
    """A node that somebody tried to add; `since` is when it was answered for."""

    key: str
    spec: dict[str, Any]
    sent: float
    since: float | None = None

    @property
    def trigger(self) -> str:
        return str(self.spec.get("trigger", "all_succeeded"))

    @property
    def is_last(self) -> bool:
        """Whether it is there for the end: cleanup, or a compensation."""
        return "run_on" in self.spec or "compensates" in self.spec

    @property
    def externals(self) -> list[str]:
        return [one if isinstance(one, str) else one["name"] for one in self.spec.get("external", ())]

    @property
    def has_deadline(self) -> bool:
        return any(not isinstance(one, str) for one in self.spec.get("external", ()))


@dataclass(frozen=True, slots=True)
class Edge:
    """An edge that was asked for; `since` is when it was answered for, None where nobody knows."""

    up: str
    down: str
    since: float | None


@dataclass(frozen=True, slots=True)
class Act:
    """A call that steers a DAG: what, of which nodes, and what was answered."""

    verb: str
    keys: tuple[str, ...]
    known: Known
    sent: float
    done: float
    status: int = 0
    state: str = ""  # of the DAG, by the answer
    body: Any = None

    @property
    def may_have_acted(self) -> bool:
        return self.known != "fail"


@dataclass(slots=True)
class Dag:
    """One DAG, and what is known of it."""

    name: str
    namespace: str
    body: dict[str, Any]
    sent: float
    id: str | None = None
    is_made: bool = True  # False: nobody has ever seen it
    is_left_alone: bool = False  # nobody resolves in the end what it waits for
    parent: tuple[str, str] | None = None  # of a sub-DAG: the DAG's id, and the node
    nodes: dict[str, Node] = field(default_factory=dict)
    edges: list[Edge] = field(default_factory=list)
    children: list[tuple[str, str, float]] = field(default_factory=list)  # node, its child, since
    perhaps_children: list[tuple[str, str]] = field(default_factory=list)  # of which nobody was answered
    acts: list[Act] = field(default_factory=list)
    shown: dict[str, Any] = field(default_factory=dict)
    views: dict[str, dict[str, Any]] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    values: Cells = field(default_factory=cells)

    def add(self, specs: list[dict[str, Any]], answer: Answer) -> None:
        """Nodes that were sent; taken, or perhaps so."""
        since = answer.done if answer.known == "ok" else None
        for spec in specs if answer.known != "fail" else ():
            node = self.nodes.setdefault(spec["key"], Node(spec["key"], spec, answer.sent))
            node.since = since if node.since is None else node.since
            self.edges += [Edge(up, spec["key"], since) for up in spec.get("upstream", ())]

    def act(self, verb: str, answer: Answer, keys: tuple[str, ...] = (), body: Any = None) -> None:
        state = str(answer.body.get("state", "")) if answer.known == "ok" and isinstance(answer.body, dict) else ""
        self.acts.append(Act(verb, keys, answer.known, answer.sent, answer.done, answer.status, state, body))

    def did(self, *verbs: str) -> Iterator[Act]:
        """Acts of these verbs that may have had their effect."""
        return (act for act in self.acts if act.verb in verbs and act.may_have_acted)


class DagFacts:
    """All DAGs, and what was delivered of them."""

    def __init__(self) -> None:
        self.all: list[Dag] = []
        self.by_id: dict[str, Dag] = {}
        self.items: set[tuple[str, str]] = set()
        self.deliveries: dict[tuple[str, str, int], list[Delivery]] = defaultdict(list)

    def new(self, dag: Dag) -> Dag:
        self.all.append(dag)
        return dag

    def named(self, dag: Dag, dag_id: str) -> None:
        """A DAG's id is known."""
        dag.id = dag_id
        self.by_id[dag_id] = dag

    def delivered(self, delivery: Delivery, fault: Callable[[str], None]) -> None:
        """A node's item came."""
        assert delivery.dag is not None
        dag_id, key, generation = delivery.dag["id"], delivery.dag["node"], delivery.dag["generation"]
        self.items.add((delivery.namespace, delivery.id))
        self.deliveries[dag_id, key, generation].append(delivery)
        dag = self.by_id.get(dag_id)
        if dag is not None and dag.namespace != delivery.namespace:
            fault(f"{delivery.namespace} was given {key} of {dag.name} of {dag.namespace}")
