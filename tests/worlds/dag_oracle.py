"""What DAGs must not show: their events against what clients asked for and did, by the contract alone.

A change of a node at a moment is explained by what was answered before it and by what may have been done by then.
Of edges there are those that were taken for certain by a moment, and those that perhaps were.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from tests.worlds.dag_facts import Dag, DagFacts, Node
from tests.worlds.facts import TICK_S, Delivery, History, Word
from tests.worlds.value_facts import judge as judge_values

_ENDED = ("succeeded", "failed", "skipped", "cancelled")
# A release and an end are noted a moment after they were decided.
_SAME_S = 0.01
_Generation = tuple[str, int]


def judge(facts: DagFacts, history: History) -> list[str]:
    """Every violation, as a sentence."""
    found = []
    for dag in facts.all:
        if dag.id is not None and dag.events:
            seen = _Seen(dag, facts, history)
            found += [f"{dag.name} ({dag.id}): {fault}" for look in _LOOKS for fault in look(seen)]
    return found


class _Seen:
    """One DAG with what was delivered and said of its nodes' items."""

    def __init__(self, dag: Dag, facts: DagFacts, history: History) -> None:
        self.dag, self.history, self.facts = dag, history, facts
        self.deliveries: dict[_Generation, list[Delivery]] = {
            (key, generation): came
            for (dag_id, key, generation), came in facts.deliveries.items()
            if dag_id == dag.id
        }
        self.words: dict[_Generation, list[Word]] = {
            generation: [word for item_id in {one.id for one in came} for word in history.words.get(item_id, ())]
            for generation, came in self.deliveries.items()
        }
        self.first: dict[tuple[str, str, int], float] = {}
        for event in dag.events:
            if event["kind"] == "node":
                self.first.setdefault((event["key"], event["state"], event["generation"]), event["at_s"])
        self.newest: dict[str, int] = {key: view["generation"] for key, view in dag.views.items()}
        self.sure = _sure_edges(dag)
        self.perhaps: dict[str, set[str]] = {key: set(view["upstream"]) for key, view in dag.views.items()}

    def node(self, key: str) -> Node | None:
        return self.dag.nodes.get(key)

    def acked(self, generation: _Generation) -> list[Word]:
        return self.history.acked({one.id for one in self.deliveries.get(generation, ())})


def _sure_edges(dag: Dag) -> dict[str, dict[str, float]]:
    """Of each node the upstreams that it had for certain, and since when; with those of expansions."""
    found: dict[str, dict[str, float]] = defaultdict(dict)

    def note(up: str, down: str, since: float) -> bool:
        if up == down or found[down].get(up, since + 1) <= since:
            return False
        found[down][up] = since
        return True

    for edge in dag.edges:
        if edge.since is not None:
            note(edge.up, edge.down, edge.since)
    grew = True
    while grew:
        grew = False
        for node, child, since in dag.children:
            for down, ups in list(found.items()):
                if node in ups and down != child:
                    grew = note(child, down, max(since, ups[node])) or grew
    # What was taken to no effect, as its upstream had succeeded by then, is not there.
    for down, ups in found.items():
        shown = set(dag.views.get(down, {}).get("upstream", ()))
        for up in set(ups) - shown:
            del ups[up]
    return found


def _edges_hold(seen: _Seen) -> Iterator[str]:
    """An edge that was taken is there, unless its lower node had begun by then."""
    for edge in seen.dag.edges:
        view = seen.dag.views.get(edge.down)
        if edge.since is None or view is None or edge.up in view["upstream"]:
            continue
        begun = [at for (key, state, _), at in seen.first.items() if key == edge.down and state != "blocked"]
        if not begun or min(begun) > edge.since:
            yield f"the edge from {edge.up} to {edge.down} was taken at {edge.since} and is not there"


def _children_bind(seen: _Seen) -> Iterator[str]:
    """Who waits for a node waits for its children, and theirs, in whatever state it was; the family does not."""
    dag = seen.dag
    sure = _families((node, child) for node, child, _ in dag.children)
    perhaps = _families([*((node, child) for node, child, _ in dag.children), *dag.perhaps_children])
    for down, view in dag.views.items():
        for up in view["upstream"]:
            missing = sure.get(up, set()) - set(view["upstream"])
            if missing and down not in perhaps[up]:
                yield f"{down} waits for {up}, and not for its children {sorted(missing)}"


def _families(pairs: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    """Of each node its children, however deep."""
    found: dict[str, set[str]] = defaultdict(set)
    for node, child in pairs:
        found[node].add(child)
    grew = True
    while grew:
        grew = False
        for family in list(found.values()):
            below = set().union(*(found.get(child, set()) for child in family)) - family
            grew, _ = grew or bool(below), family.update(below)
    return found


def _nodes_hold(seen: _Seen) -> Iterator[str]:
    for node in seen.dag.nodes.values():
        if node.since is not None and node.key not in seen.dag.views:
            yield f"{node.key} was taken and is not there"
    for key in seen.dag.views:
        if key not in seen.dag.nodes:
            yield f"{key} was added by nobody"


def _explained(seen: _Seen) -> Iterator[str]:
    """Each change of each node, in its order, by how everything stood then."""
    stood: dict[str, str] = {}
    of_dag: dict[str, Any] = {"state": "running", "held": False, "paused": False}
    for event in seen.dag.events:
        if event["kind"] == "dag":
            of_dag = event
            continue
        key, state, at = event["key"], event["state"], event["at_s"]
        node = seen.node(key)
        goes_on = state == "released" and stood.get(key) == "released"
        stood[key] = state
        if node is None or goes_on:
            # In its next generation: its item was lost, or its sub-DAG was retried by itself.
            continue
        sure = {up: stood.get(up, "blocked") for up, since in seen.sure.get(key, {}).items() if since < at}
        perhaps = {up: stood.get(up, "blocked") for up in seen.perhaps[key]}
        match state:
            case "released":
                yield from _release(seen, node, event, of_dag, sure, perhaps, stood)
            case "skipped":
                if (
                    not node.is_last
                    and not _may_skip(node.trigger, sure, perhaps)
                    and not _called(seen, key, at, "skip")
                ):
                    yield f"{key} was skipped ({node.trigger}) while upstreams were {perhaps}"
            case "succeeded" | "failed" | "cancelled":
                yield from _end(seen, node, event)


def _release(
    seen: _Seen,
    node: Node,
    event: dict[str, Any],
    of_dag: dict[str, Any],
    sure: dict[str, str],
    perhaps: dict[str, str],
    stood: dict[str, str],
) -> Iterator[str]:
    what = f"generation {event['generation']} of {node.key} was released at {event['at_s']:.3f}"
    if node.is_last:
        unended = [
            key for key, state in stood.items() if state not in _ENDED and (n := seen.node(key)) and not n.is_last
        ]
        if unended:
            yield f"{what}, which is for the end, before {unended}"
    elif of_dag["held"] or of_dag["paused"] or of_dag["state"] != "running":
        yield f"{what} by a DAG that lets nothing go: {of_dag}"
    if not _may_fire(node.trigger, sure, perhaps):
        yield f"{what} ({node.trigger}) while upstreams were {sure or perhaps}"
    resolved = {
        (one["node"], one["name"])
        for act in seen.dag.did("resolve")
        if act.sent < event["at_s"] + TICK_S
        for one in act.body["external"]
    }
    if missing := [name for name in node.externals if (node.key, name) not in resolved]:
        yield f"{what} before anybody resolved {missing}"


def _may_fire(trigger: str, sure: dict[str, str], perhaps: dict[str, str]) -> bool:
    states = list(sure.values())
    match trigger:
        case "all_succeeded":
            return all(state == "succeeded" for state in states)
        case "all_done":
            return all(state in _ENDED for state in states)
        case "any_succeeded":
            return "succeeded" in perhaps.values()
        case "any_failed":
            return "failed" in perhaps.values()
    return all(state in ("succeeded", "skipped") for state in states)


def _may_skip(trigger: str, sure: dict[str, str], perhaps: dict[str, str]) -> bool:
    states = list(sure.values())
    match trigger:
        case "all_succeeded":
            return any(state in ("failed", "skipped", "cancelled") for state in perhaps.values())
        case "any_succeeded":
            return all(state in _ENDED and state != "succeeded" for state in states)
        case "any_failed":
            return all(state in _ENDED and state != "failed" for state in states)
        case "none_failed":
            return any(state in ("failed", "cancelled") for state in perhaps.values())
    return False


def _called(seen: _Seen, key: str, at: float, *verbs: str) -> bool:
    """Whether somebody may have asked for it by then."""
    return any(act.sent < at + TICK_S and (not act.keys or key in act.keys) for act in seen.dag.did(*verbs))


def _end(seen: _Seen, node: Node, event: dict[str, Any]) -> Iterator[str]:
    key, at = node.key, event["at_s"]
    generation = (key, event["generation"])
    words = [word for word in seen.words.get(generation, ()) if word.may_have_acted and word.sent < at + TICK_S]
    what = f"generation {generation[1]} of {key} {event['state']} at {at:.3f}"
    if "dag" in node.spec:
        return
    if "timer" in node.spec and event["state"] == "succeeded":
        released = seen.first.get((key, "released", event["generation"]))
        if released is None or at < released + node.spec["timer"]["delay_s"] - _SAME_S:
            yield f"{what}, before its time: released at {released}"
    elif event["state"] == "succeeded" and not any(word.verb == "ack" for word in words):
        yield f"{what}, and nobody had acked it"
    if event["state"] == "failed":
        spec = node.spec
        limit = spec.get("max_attempts", 0)
        gone = "ttl_s" in spec or (limit and len(seen.deliveries.get(generation, ())) >= limit)
        lost = limit > 0  # a delivery that nobody heard of
        failed = node.has_deadline or any(
            one["node"] == key and one.get("failed")
            for act in seen.dag.did("resolve")
            for one in act.body["external"]
        )
        if not (gone or lost or failed or any(word.verb == "nack" for word in words)):
            yield f"{what} without a reason"
    if event["state"] == "cancelled":
        by_rule = seen.dag.body.get("on_failure") == "cancel" or "deadline_s" in seen.dag.body
        if not (by_rule or seen.dag.parent or _called(seen, key, at, "cancel", "nodes/cancel")):
            yield f"{what}, and nobody had asked for it"


def _deliveries(seen: _Seen) -> Iterator[str]:
    """Nothing came before its release, nor as two items, and what was acked has succeeded."""
    for (key, generation), came in seen.deliveries.items():
        released = seen.first.get((key, "released", generation))
        first = min(came, key=lambda one: one.done)
        if released is None or released > first.done:
            yield f"generation {generation} of {key} came before its release ({released}): {first}"
        elif (node := seen.node(key)) and first.done < released + node.spec.get("delay_s", 0.0) - _SAME_S:
            yield f"generation {generation} of {key} was to wait since {released}, and came: {first}"
        if len(ids := {one.id for one in came}) > 1:
            yield f"generation {generation} of {key} is {len(ids)} items: {sorted(ids)}"
        acked = [
            word
            for word in seen.words[key, generation]
            if word.is_own and word.status in ("acked", "already_acked")
        ]
        is_told = (key, "succeeded", generation) in seen.first or seen.newest.get(key, 0) > generation
        if acked and not is_told:
            yield f"generation {generation} of {key} was acked and has not succeeded: {acked[0]}"


def _outputs(seen: _Seen) -> Iterator[str]:
    """A node's output is what the ack that counted gave, and so is what others are given of it."""
    for key, view in seen.dag.views.items():
        node = seen.node(key)
        if view["state"] != "succeeded" or node is None or "dag" in node.spec or "timer" in node.spec:
            continue
        given = [word.given.get("output") for word in seen.acked((key, view["generation"]))]
        if view["output"] not in given:
            yield f"{key} has the output {view['output']}, and was acked with {given}"
    for (key, generation), came in seen.deliveries.items():
        node = seen.node(key)
        if node is None or node.is_last:
            continue
        for one in came:
            yield from _inputs(seen, f"generation {generation} of {key}", node, one)


def _inputs(seen: _Seen, what: str, node: Node, came: Delivery) -> Iterator[str]:
    if came.inputs is None or not node.spec.get("pass_outputs") or "$ref" in came.inputs:
        return
    for name, value in came.inputs.items():
        if name.startswith("external:"):
            continue
        up = seen.node(name)
        if up is None or name not in seen.perhaps[node.key]:
            yield f"{what} was given {name}, which it does not wait for"
        elif "dag" not in up.spec:
            given = [
                word.given.get("output")
                for generation in range(1, seen.newest[name] + 1)
                for word in seen.acked((name, generation))
                if word.sent < came.done
            ]
            if value not in given:
                yield f"{what} was given {value} of {name}, which was acked with {given}"


def _cancel_is_final(seen: _Seen) -> Iterator[str]:
    final = [act.done for act in seen.dag.did("cancel") if act.status == 200 and act.state == "cancelled"]
    if not final:
        return
    for (key, generation), came in seen.deliveries.items():
        node = seen.node(key)
        for one in came if node is not None and not node.is_last else ():
            if one.sent > min(final):
                yield f"generation {generation} of {key} came after the cancel was final: {one}"


def _ends(seen: _Seen) -> Iterator[str]:
    """How the DAG ended follows from how its nodes did."""
    dag, state = seen.dag, seen.dag.shown["state"]
    failed = [
        key
        for key, view in dag.views.items()
        if view["state"] == "failed" and (n := seen.node(key)) and not n.is_last and not n.spec.get("tolerate")
    ]
    if state == "cancelled" and not any(dag.did("cancel")) and dag.parent is None:
        yield "it was cancelled by nobody"
    if state == "succeeded" and failed:
        yield f"it succeeded, and {failed} failed"
    if state == "failed" and not failed and "deadline_s" not in dag.body:
        yield f"it failed, and no node of it did: {dag.shown}"


def _reasons(seen: _Seen) -> Iterator[str]:
    """The reason of an end is that of the first cancel, of a deadline, or of a failure that cancelled the rest."""
    dag, shown = seen.dag, seen.dag.shown
    reason, state = shown["reason"], shown["state"]
    if reason and reason.startswith("whim "):
        asked = [act for act in dag.did("cancel") if act.body.get("reason") == reason]
        if not asked:
            yield f"its reason is {reason}, which nobody gave"
        # A retry begins anew, so what was asked for before the last one says nothing.
        since = max((act.done for act in dag.did("retry")), default=0.0)
        first = [act for act in dag.did("cancel") if act.known == "ok" and act.status < 300 and act.sent > since]
        if asked and first and min(act.done for act in first) < min(act.sent for act in asked):
            yield f"its reason is {reason}, and it was being cancelled before: {first}"
    # A node with a DAG in its place may have been cancelled by that one's own id.
    cancelled = [key for key, view in dag.views.items() if view["state"] == "cancelled" and view["dag"] is None]
    if state == "failed" and cancelled and not reason and not any(dag.did("cancel", "nodes/cancel")):
        yield f"it failed, {cancelled} were cancelled with it, and no reason is told: {shown}"


def _parents(seen: _Seen) -> Iterator[str]:
    """A node in whose place a DAG runs ends as that does; one that was cancelled under it has failed."""
    for key, view in seen.dag.views.items():
        below = seen.facts.by_id.get(view["dag"] or "")
        if below is None or not below.shown or view["state"] not in ("succeeded", "failed", "cancelled"):
            continue
        ends = (view["state"], below.shown["state"])
        if ends[0] != ends[1] and ends != ("failed", "cancelled"):
            yield f"{key} {ends[0]}, and the DAG in its place, {below.id}, {ends[1]}"


def _undoing(seen: _Seen) -> Iterator[str]:
    """A compensation is given what the node gave that it undoes."""
    for (key, generation), came in seen.deliveries.items():
        node = seen.node(key)
        if node is None or not node.spec.get("pass_outputs") or "compensates" not in node.spec:
            continue
        undone = node.spec["compensates"]
        acks = [word for n in range(1, seen.newest.get(undone, 0) + 1) for word in seen.acked((undone, n))]
        given = [word.given.get("output") for word in acks]
        of = seen.node(undone)
        is_item = of is not None and "timer" not in of.spec and "dag" not in of.spec
        for one in came:
            inputs = one.inputs or {}
            told = inputs.get(undone)
            if not _is_what_was_done(seen.node(undone), undone, inputs) or (told not in given and is_item):
                yield f"generation {generation} of {key} undoes {undone} ({given}), and was given {inputs}"


def _is_what_was_done(undone: Node | None, key: str, inputs: dict[str, Any]) -> bool:
    """Whether a compensation was told of what there is: of an item with its payload, of a timer nothing."""
    if undone is None:
        return f"payload:{key}" in inputs
    names = {key, f"payload:{key}"} | ({f"inputs:{key}"} if undone.spec.get("pass_outputs") else set())
    if "timer" in undone.spec:
        return not inputs
    if "dag" in undone.spec:
        return set(inputs) <= {key}
    return f"payload:{key}" in inputs and set(inputs) <= names


def _dead(seen: _Seen) -> Iterator[str]:
    """Of what was retried and has succeeded no dead item is left."""
    for (key, generation), came in seen.deliveries.items():
        view = seen.dag.views.get(key)
        left = {one.id for one in came if seen.history.left.get(one.id) == "dead"}
        if left and view is not None and (view["state"], view["generation"]) != ("failed", generation):
            yield f"{key} {view['state']} in generation {view['generation']}, and {left} of {generation} lie dead"


def _values(seen: _Seen) -> Iterator[str]:
    return judge_values(seen.dag.values)


_LOOKS = [
    _nodes_hold,
    _edges_hold,
    _children_bind,
    _explained,
    _deliveries,
    _outputs,
    _cancel_is_final,
    _ends,
    _values,
]
_LOOKS += [_reasons, _parents, _undoing, _dead]
