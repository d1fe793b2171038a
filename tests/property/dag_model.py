"""A DAG, as two pages of plain Python: what every verb may answer, and where every node is once all settled."""

from dataclasses import dataclass, field

from services.dag.graph import decide
from services.dag.model import Counts, Trigger

UNFINISHED = ("blocked", "released")


@dataclass
class Node:
    """One node; `attempts` and `holder` (a lease's token) are of its present generation."""

    trigger: Trigger
    ups: set[str]
    external: dict[str, str]  # open, resolved or failed
    max_attempts: int
    tolerate: bool = False
    state: str = "blocked"
    generation: int = 1
    by_call: bool = False
    attempts: int = 0
    holder: str = ""
    lease_until_s: float = 0.0


@dataclass
class Model:
    """One DAG, and the queue as far as its items go."""

    open: bool
    held: bool
    on_failure: str
    deadline_s: float | None
    nodes: dict[str, Node] = field(default_factory=dict)
    # Externals that were resolved before they were declared.
    facts: dict[tuple[str, str], str] = field(default_factory=dict)
    state: str = "running"
    paused: bool = False
    closed: bool = False
    cause: str | None = None
    now_s: float = 0.0
    begun_s: float = 0.0

    @property
    def over(self) -> bool:
        return self.state != "running"

    def ready(self) -> set[str]:
        return {key for key, node in self.nodes.items() if node.state == "released" and not node.holder}

    def leased(self) -> set[str]:
        return {key for key, node in self.nodes.items() if node.holder}

    def add(self, key: str, node: Node) -> int:
        if self.over:
            return 409
        node.external = {name: self.facts.pop((key, name), "open") for name in node.external}
        self.nodes[key] = node
        self.settle()
        return 201

    def link(self, up: str, down: str) -> int:
        node = self.nodes[down]
        if up in node.ups:
            return 201
        is_late = node.state != "blocked" and self.nodes[up].state != "succeeded"
        if up == down or (not is_late and self._below(down, up)):
            return 422
        if node.state != "blocked":
            return 409 if is_late else 201
        node.ups.add(up)
        self.settle()
        return 201

    def resolve(self, key: str, name: str, failed: bool) -> str:
        known = self.nodes[key].external if key in self.nodes else {}
        place: dict[str, str] | None = known if name in known else None
        stood = place[name] if place is not None else self.facts.get((key, name), "open")
        if stood != "open":
            return "already_resolved"
        if place is not None:
            place[name] = "failed" if failed else "resolved"
        else:
            self.facts[key, name] = "failed" if failed else "resolved"
        self.settle()
        return "resolved"

    def take(self, key: str, token: str, until_s: float) -> Node:
        node = self.nodes[key]
        node.holder, node.lease_until_s = token, until_s
        return node

    def holds(self, key: str, token: str) -> bool:
        return self.nodes[key].holder == token

    def ack(self, key: str) -> None:
        self._end(key, "succeeded")
        self.settle()

    def give_up(self, key: str, final: bool = False) -> str:
        """An attempt ends without success."""
        node = self.nodes[key]
        node.holder = ""
        node.attempts += 1
        if final or node.attempts == node.max_attempts:
            self._end(key, "failed")
            self.settle()
            return "dead"
        return "requeued"

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        for key in sorted(self.leased()):
            if self.nodes[key].holder and self.nodes[key].lease_until_s <= self.now_s:
                self.give_up(key)
        if not self.over and self.deadline_s is not None and self.begun_s + self.deadline_s <= self.now_s:
            self.cause = "deadline"
            self.settle()

    def skip(self, key: str) -> int:
        node = self.nodes[key]
        if node.state == "blocked":
            node.state, node.by_call = "skipped", True
            self.settle()
        return 200 if node.state == "skipped" else 409

    def cancel_node(self, key: str) -> int:
        node = self.nodes[key]
        was = node.state
        if was in UNFINISHED:
            node.by_call = True
            self._end(key, "cancelled")
            self.settle()
        return 202 if was == "released" else 200

    def cancel(self) -> None:
        if not self.over:
            self.cause = "call"
            self.settle()

    def retry(self, key: str | None, everything: bool) -> int:
        if self.state == "cancelled":
            return 409
        if everything:
            again = {k for k, node in self.nodes.items() if node.state != "blocked"}
        elif key is None:
            again = self._spared_below({k for k, node in self.nodes.items() if node.state == "failed"})
        else:
            node = self.nodes[key]
            named = node.state in ("failed", "cancelled") or (node.state == "skipped" and node.by_call)
            again = self._spared_below({key} if named else set())
        if self.over and self.cause in ("failure", "deadline") and (again or key is None) and not everything:
            again |= self._spared_below(
                {k for k, node in self.nodes.items() if node.state == "cancelled" and not node.by_call}
            )
        if not again:
            return 409
        for k in again:
            node = self.nodes[k]
            self.nodes[k] = Node(node.trigger, node.ups, node.external, node.max_attempts, node.tolerate)
            self.nodes[k].generation = node.generation + 1
            for name, stood in node.external.items():
                node.external[name] = "open" if stood == "failed" else stood
        self.state, self.cause, self.begun_s = "running", None, self.now_s
        self.settle()
        return 200

    def settle(self) -> None:
        """All that follows from how it stands."""
        if self.over:
            return
        while self.cause is None and (key := next(filter(self._decided, self.nodes), None)) is not None:
            pass
        if self.cause is not None:
            for key, node in self.nodes.items():
                if node.state in UNFINISHED:
                    self._end(key, "cancelled")
            self.state = "cancelled" if self.cause == "call" else "failed"
        elif self._ends():
            failed = any(node.state == "failed" and not node.tolerate for node in self.nodes.values())
            self.state = "failed" if failed else "succeeded"

    def _ends(self) -> bool:
        unfinished = any(node.state in UNFINISHED for node in self.nodes.values())
        return not unfinished and not self.open and not self.held and bool(self.nodes or self.closed)

    def _decided(self, key: str) -> bool:
        """Decide a node; True when it moved."""
        node = self.nodes[key]
        if node.state != "blocked":
            return False
        if "failed" in node.external.values():
            self._end(key, "failed")
            return True
        counts = Counts()
        for up in node.ups:
            counts.add(self.nodes[up].state)
        verdict = decide(node.trigger, counts)
        if verdict == "skip":
            node.state = "skipped"
            return True
        if verdict == "fire" and "open" not in node.external.values() and not self.held and not self.paused:
            node.state = "released"
            return True
        return False

    def _end(self, key: str, state: str) -> None:
        node = self.nodes[key]
        node.state, node.holder = state, ""
        if state == "failed" and not node.tolerate and self.on_failure == "cancel" and self.cause is None:
            self.cause = "failure"

    def _below(self, key: str, wanted: str) -> bool:
        below = {key}
        while more := {k for k, node in self.nodes.items() if node.ups & below} - below:
            below |= more
        return wanted in below

    def _spared_below(self, roots: set[str]) -> set[str]:
        found = set(roots)
        while True:
            more = {
                k
                for k, node in self.nodes.items()
                if node.ups & found and node.state in ("skipped", "cancelled") and not node.by_call
            } - found
            if not more:
                return found
            found |= more
