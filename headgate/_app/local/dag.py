"""DAGs in memory, as the DAG service has them, for tests of apps: states, triggers, growth, undo, retry,
cancel."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal

from headgate.errors import DagFinished, NodeExists, NotFound, NothingToRetry, UnknownNode, VersionConflict

ENDED: Final = ("succeeded", "failed", "skipped", "cancelled")


@dataclass(eq=False)
class LocalNode:
    """A node and what it has come to."""

    spec: dict[str, Any]
    dag: "LocalDag"
    item_id: str
    created_at: datetime
    upstream: list[str]
    externals: dict[str, Any]
    children: list[str] = field(default_factory=list)
    state: str = "blocked"
    generation: int = 1
    attempts: int = 0
    inputs: Any = None
    output: Any = None
    error: str | None = None
    released_at: datetime | None = None
    finished_at: datetime | None = None

    @property
    def key(self) -> str:
        return str(self.spec["key"])

    @property
    def is_cleanup(self) -> bool:
        return bool(self.spec.get("compensates") or self.spec.get("run_on"))

    def view(self) -> dict[str, Any]:
        """The node as the service answers it."""
        shown = {
            name: self.spec.get(name) for name in ("key", "topic", "run_on", "compensates", "tolerate", "trigger")
        }
        return {
            **{name: value for name, value in shown.items() if value is not None},
            "item_id": self.item_id,
            "state": self.state,
            "generation": self.generation,
            "upstream": self.upstream,
            "attempts": self.attempts,
            "output": self.output,
            "error": self.error,
            "created_at": self.created_at,
            "released_at": self.released_at,
            "finished_at": self.finished_at,
        }


class LocalDag:
    """One DAG. `deliver` is called for each node that is released, `ended` when the DAG has ended."""

    def __init__(
        self,
        dag_id: str,
        body: Mapping[str, Any],
        *,
        now: Callable[[], datetime],
        new_id: Callable[[], str],
        deliver: Callable[[LocalNode], None],
        ended: Callable[["LocalDag"], None],
        parent: LocalNode | None = None,
    ) -> None:
        self.id, self.body, self.parent = dag_id, dict(body), parent
        self.state = "running"
        self.held = bool(body.get("hold"))
        self.open = bool(body.get("open"))
        self.reason: str | None = None
        self.created_at = now()
        self.finished_at: datetime | None = None
        self.nodes: dict[str, LocalNode] = {}
        self.values: dict[str, dict[str, Any]] = {}
        self.order: list[LocalNode] = []
        self._undecided: list[LocalNode] = []
        self._verdict: str | None = None
        self._now, self._new_id, self._deliver, self._ended = now, new_id, deliver, ended

    # Building

    def add(self, specs: Iterable[Mapping[str, Any]], edges: Iterable[Mapping[str, str]] = ()) -> list[LocalNode]:
        found = [self._add(dict(spec)) for spec in specs]
        for node in found:
            for key in node.upstream:
                if key not in self.nodes:
                    raise UnknownNode(f"there is no node {key!r}")
        for edge in edges:
            self.nodes[edge["downstream"]].upstream.append(edge["upstream"])
        for node in found:
            self._bring_children(node)
        return found

    def expand(self, key: str, specs: Iterable[Mapping[str, Any]]) -> list[LocalNode]:
        """Add children of a node: what waits for it waits for them too."""
        parent = self.nodes[key]
        found = self.add(specs)
        for child in found:
            if child.key not in parent.children:
                parent.children.append(child.key)
        for node in list(self.nodes.values()):
            if node.state == "blocked":
                self._bring_children(node)
        return found

    def _add(self, spec: dict[str, Any]) -> LocalNode:
        known = self.nodes.get(spec["key"])
        if known is not None:
            if known.spec != spec:
                raise NodeExists(f"there is another node {spec['key']!r}")
            return known
        if self.finished_at is not None:
            raise DagFinished(f"the DAG has ended: {self.state}")
        names = [each if isinstance(each, str) else each["name"] for each in spec.get("external") or ()]
        node = LocalNode(
            spec,
            self,
            self._new_id(),
            self._now(),
            list(spec.get("upstream") or ()),
            dict.fromkeys(names),
        )
        self.nodes[node.key] = node
        self._undecided.append(node)
        return node

    def _bring_children(self, node: LocalNode) -> None:
        for key in node.upstream:
            upstream = self.nodes.get(key)
            for child in upstream.children if upstream is not None else ():
                if child not in node.upstream and child != node.key:
                    node.upstream.append(child)

    # Going on

    def go_on(self) -> None:
        """Decide all that can be decided now."""
        while not self.held and sum(self._decide(node) for node in self._blocked()):
            pass
        self._maybe_end()

    def _blocked(self) -> list[LocalNode]:
        self._undecided = [node for node in self._undecided if node.state == "blocked"]
        return list(self._undecided)

    def _decide(self, node: LocalNode) -> bool:
        if node.state != "blocked" or node.is_cleanup:
            return False
        what = fired(node.spec.get("trigger", "all_succeeded"), [self.nodes[key].state for key in node.upstream])
        if what == "skip":
            self._end_node(node, "skipped")
            return True
        if what == "fire" and all(node.externals.values()):
            self._release(node, self._inputs(node))
            return True
        return False

    def _inputs(self, node: LocalNode) -> Any:
        if not node.spec.get("pass_outputs"):
            return None
        upstream = [self.nodes[key] for key in node.upstream]
        given = {above.key: above.output for above in upstream if above.output is not None}
        told = {
            name: resolved["data"] for name, resolved in node.externals.items() if resolved.get("data") is not None
        }
        return given | {f"external:{name}": data for name, data in told.items()}

    def _release(self, node: LocalNode, inputs: Any) -> None:
        node.state, node.inputs, node.released_at = "released", inputs, self._now()
        self._deliver(node)

    def end(self, node: LocalNode, state: str, output: Any = None, error: str | None = None) -> None:
        """A node's item has ended."""
        if node.state in ENDED:
            return
        node.output, node.error = output, error
        self._end_node(node, state)
        if state == "failed" and not node.spec.get("tolerate") and self.body.get("on_failure") == "cancel":
            self._verdict = "failed"
            self._cancel_rest()
        self.go_on()

    def _end_node(self, node: LocalNode, state: str) -> None:
        node.state, node.finished_at = state, self._now()
        self.order.append(node)

    def cancel(self, reason: str | None, verdict: Literal["cancelled", "failed"] = "cancelled") -> None:
        if self.finished_at is None and self._verdict is None:
            self._verdict, self.reason = verdict, reason
            self._cancel_rest()
            self.go_on()

    def _cancel_rest(self) -> None:
        for node in self.nodes.values():
            if node.state not in ENDED and not node.is_cleanup:
                self._end_node(node, "cancelled")

    def retry(self, keys: Iterable[str] | None) -> None:
        """Run failed nodes again, and what did not run because of them."""
        failed = [node for node in self.nodes.values() if node.state == "failed" and not node.is_cleanup]
        wanted = failed if keys is None else [node for node in failed if node.key in set(keys)]
        if not wanted:
            raise NothingToRetry("no node of it has failed")
        for node in self.nodes.values():
            if node in wanted or node.state in ("skipped", "cancelled") or node.is_cleanup:
                node.state, node.generation = "blocked", node.generation + 1
                node.attempts, node.output, node.error = 0, None, None
                self._undecided.append(node)
        self.state, self.finished_at, self._verdict = "running", None, None
        self.go_on()

    def _maybe_end(self) -> None:
        if (
            self.finished_at is not None
            or self.open
            or self.held
            or any(not node.is_cleanup for node in self._blocked())
        ):
            return
        ordinary = [node for node in self.nodes.values() if not node.is_cleanup]
        if not ordinary:
            return
        if any(node.state not in ENDED for node in ordinary):
            return
        if self._verdict is None:
            failed = any(node.state == "failed" and not node.spec.get("tolerate") for node in ordinary)
            self._verdict = "failed" if failed else "succeeded"
        if self._clean():
            return
        self.state, self.finished_at = self._verdict, self._now()
        self._ended(self)

    def _clean(self) -> bool:
        """Go on with cleanup, last things first; whether some of it is at work."""
        cleanup = [node for node in self.nodes.values() if node.is_cleanup]
        if any(node.state == "released" for node in cleanup):
            return True
        ends = {node.key: at for at, node in enumerate(self.order)}
        waiting = [node for node in cleanup if node.state == "blocked"]
        waiting.sort(key=lambda node: -ends.get(node.spec.get("compensates") or "", -1))
        for node in waiting:
            target = self.nodes.get(node.spec.get("compensates") or "")
            if target is None:
                wanted = _runs_on(str(node.spec.get("run_on")), str(self._verdict))
                inputs: Any = self._inputs(node)
            else:
                wanted = target.state == "succeeded" and self._verdict in ("failed", "cancelled")
                inputs = _undoing(node, target)
            if wanted:
                self._release(node, inputs)
                return True
            self._end_node(node, "skipped")
        return False

    # Shared values

    def value(self, key: str) -> dict[str, Any]:
        if key not in self.values:
            raise NotFound(f"there is no value {key!r}", status=404)
        return self.values[key]

    def write(self, key: str, value: Any, version: int | None) -> dict[str, Any]:
        """Write a value, only where it has this version; 0 is none yet."""
        known = self.values[key]["version"] if key in self.values else 0
        if version is not None and version != known:
            raise VersionConflict(f"value {key!r} has version {known}, not {version}")
        self.values[key] = {"key": key, "version": known + 1, "updated_at": self._now(), "value": value}
        return self.values[key]

    # Telling

    def outputs(self) -> dict[str, Any]:
        """The outputs of the nodes that nothing waits for."""
        waited_for = {key for node in self.nodes.values() for key in node.upstream}
        return {
            node.key: node.output
            for node in self.nodes.values()
            if node.key not in waited_for and node.output is not None and not node.is_cleanup
        }

    def view(self) -> dict[str, Any]:
        """The DAG as the service answers it."""
        states = [node.state for node in self.nodes.values()]
        counts = {state: states.count(state) for state in ("blocked", "released", *ENDED)}
        return {
            "id": self.id,
            "key": self.body.get("key"),
            "name": self.body.get("name"),
            "namespace": self.body.get("namespace", "default"),
            "state": self.state,
            "open": self.open,
            "held": self.held,
            "created_at": self.created_at,
            "finished_at": self.finished_at,
            "nodes": {"total": len(states), **counts},
            "reason": self.reason,
        }


def fired(trigger: str, states: list[str]) -> Literal["fire", "skip"] | None:
    """What a trigger says of upstreams in these states."""
    over = all(state in ENDED for state in states)
    bad = {"all_succeeded": ("failed", "skipped", "cancelled"), "none_failed": ("failed", "cancelled")}
    if trigger in bad and any(state in bad[trigger] for state in states):
        return "skip"
    if trigger.startswith("any_"):
        if trigger.removeprefix("any_") in states:
            return "fire"
        return "skip" if over else None
    return "fire" if over else None


def _runs_on(run_on: str, verdict: str) -> bool:
    return run_on in ("always", verdict) or (run_on == "unsuccessful" and verdict != "succeeded")


def _undoing(node: LocalNode, target: LocalNode) -> dict[str, Any] | None:
    """What a compensation is given of the node that it undoes: no more than there is."""
    if not node.spec.get("pass_outputs"):
        return None
    told = {} if target.output is None else {target.key: target.output}
    if target.spec.get("topic"):
        told[f"payload:{target.key}"] = target.spec.get("payload")
    if target.spec.get("pass_outputs"):
        told[f"inputs:{target.key}"] = target.inputs
    return told
