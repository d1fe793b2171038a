"""Step Functions: the Amazon States Language (https://states-language.net), as far as it is a graph.

Tasks, Maps and Choices become nodes; Pass, Wait and Succeed are seen through; a Parallel is its branches.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from headgate._calls.dag import CYCLE_SHOWN_MAX, Dag
from headgate.importing.found import (
    EDGES_MAX,
    Fault,
    Found,
    Options,
    backoff,
    delay,
    lease,
    load_json,
    members,
    pointer,
    seconds,
    shown,
    whole,
)
from headgate.wire import INT32_MAX, KEY_BYTES_MAX

DEPTH_MAX: Final = 32

_DATA_FLOW: Final = (
    "InputPath", "OutputPath", "ResultPath", "ResultSelector", "Assign", "Output", "Result", "ItemsPath",
    "ItemSelector", "ItemBatcher", "ItemReader", "ResultWriter", "Items",
)  # fmt: skip
_KINDS: Final = frozenset({"Task", "Parallel", "Map", "Pass", "Wait", "Choice", "Succeed", "Fail"})


@dataclass(frozen=True, slots=True)
class Source:
    """What a state comes after: a node, or the beginning; the pause between; whether ways meet before it.

    `mixed`: ways with other pauses lead there too.
    """

    key: str | None
    delay_s: float = 0.0
    joined: bool = False
    mixed: bool = False


def read_states(text: str, options: Options) -> Found:
    """A state machine.

    Raises:
        Fault, Cycle
    """
    machine = load_json(text)
    if "StartAt" not in machine:
        raise Fault("/StartAt", "it is missing; is this a state machine?")
    comment = machine.get("Comment")
    metadata = {"comment": comment[:500]} if isinstance(comment, str) and comment else None
    found = Found(Dag(deadline_s=seconds(machine.get("TimeoutSeconds")), metadata=metadata))
    reader = _Reader(found, options)
    reader.read(machine, "", [Source(None)], ())
    return found.close()


class _Reader:
    """Walks a machine, and those within it, along `Next`."""

    def __init__(self, found: Found, options: Options) -> None:
        self._found = found
        self._options = options
        self._carried = 0

    def read(self, machine: Any, where: str, before: list[Source], path: tuple[str, ...]) -> list[Source]:
        """Add a machine's states after `before`; what comes after the machine comes after these."""
        if len(path) > DEPTH_MAX:
            raise Fault(where, f"it is nested over {DEPTH_MAX} deep")
        states = members(machine, "States", where, dict)
        start = members(machine, "StartAt", where, str)
        incoming: dict[str, list[Source]] = {start: before}
        ends: list[Source] = []
        for name in _order(states, start, where):
            at = f"{where}/States" + pointer(name)
            sources = incoming.get(name, [])
            after = self._state(states[name], at, name, sources, path)
            followers = list(_followers(states[name]))
            if not followers and states[name].get("Type") != "Fail":
                ends += after
            for follower in followers:
                met = follower in incoming
                joined = self._merged(at, (*incoming.get(follower, ()), *after))
                incoming[follower] = [replace(source, joined=source.joined or met) for source in joined]
        unreached = states.keys() - incoming.keys()
        for name in sorted(unreached):
            self._found.leave(
                "states that only a Catch leads to", f"{where}/States" + pointer(name), "no nodes", changed=True
            )
        return self._merged(where, ends)

    def _merged(self, where: str, sources: Iterable[Source]) -> list[Source]:
        """One source for each node: ways through states that are no nodes would double with each Parallel.

        Raises:
            Fault: too many nodes come before too many states that are seen through.
        """
        merged: dict[str | None, Source] = {}
        for source in sources:
            self._carried += 1
            if self._carried > EDGES_MAX:
                raise Fault(where, f"ways through Pass, Wait and Parallel states are over {EDGES_MAX}")
            other = merged.get(source.key, source)
            merged[source.key] = Source(
                source.key,
                max(source.delay_s, other.delay_s),
                source.joined or other.joined,
                source.mixed or other.mixed or source.delay_s != other.delay_s,
            )
        return list(merged.values())

    def _state(self, state: Any, at: str, name: str, before: list[Source], path: tuple[str, ...]) -> list[Source]:
        kind = members(state, "Type", at, str)
        if kind not in _KINDS:
            raise Fault(f"{at}/Type", f"{shown(kind)} is no type of state")
        self._note(state, at, kind)
        match kind:
            case "Task" | "Map" | "Choice":
                return [Source(self._node(state, at, name, kind, before, path))]
            case "Parallel":
                ends = []
                for i, branch in enumerate(members(state, "Branches", at, list)):
                    inner = f"{at}/Branches{pointer(i)}"
                    ends += self.read(branch, inner, before, (*path, name, str(i)))
                return self._merged(at, ends) or before
            case "Wait":
                return self._wait(state, at, before)
            case "Fail":
                self._found.leave("Fail", at, "a node fails a DAG, a state cannot", changed=True)
        return before

    def _wait(self, state: dict[str, Any], at: str, before: list[Source]) -> list[Source]:
        pause_s = seconds(state.get("Seconds"))
        if pause_s is None:
            self._found.leave("Wait until a time, or for a computed one", at, "no pause", changed=True)
            return before
        if not state.get("Next"):
            self._found.leave("Wait at the end", at, "no pause")
        return [replace(source, delay_s=source.delay_s + pause_s) for source in before]

    def _node(
        self, state: dict[str, Any], at: str, name: str, kind: str, before: list[Source], path: tuple[str, ...]
    ) -> str:
        key = name if name not in self._found.dag.nodes else "/".join((*path, name))
        resource = state.get("Resource") if isinstance(state.get("Resource"), str) else None
        short = resource.split(":")[-1] if resource else None
        more = self._retries(state, at)
        heartbeat_s = seconds(state.get("HeartbeatSeconds"))
        if heartbeat_s:
            more["lease_s"] = lease(heartbeat_s)
        pause_s = max((source.delay_s for source in before), default=0.0)
        if pause_s:
            more["delay_s"] = delay(pause_s)
            if len({source.delay_s for source in before}) > 1 or any(source.mixed for source in before):
                self._found.leave(
                    "Wait on one of several ways", at, "the longest pause counts for all", changed=True
                )
        if any(source.joined for source in before):
            more["trigger"] = "none_failed"
        upstream = [source.key for source in before if source.key is not None]
        if upstream:
            more["pass_outputs"] = True
        payload = {
            "state": name,
            "resource": resource,
            "parameters": state.get("Parameters") or state.get("Arguments"),
        }
        if kind == "Choice":
            payload["choices"] = state.get("Choices")
        topic = self._options.topic_of(name, resource, short, kind)
        self._found.node(at, key, topic, payload={name: value for name, value in payload.items() if value}, **more)
        for source in upstream:
            self._found.depend(at, source, key)
        return key

    def _retries(self, state: dict[str, Any], at: str) -> dict[str, Any]:
        """A retrier's attempts and intervals; several become the most patient one. Without any, one attempt."""
        retriers = members(state, "Retry", at, list)
        if not retriers:
            return {"max_attempts": 1}
        attempts, pauses = 0, []
        for i, retrier in enumerate(retriers):
            if not isinstance(retrier, dict):
                raise Fault(f"{at}/Retry/{i}", "it should be an object")
            count = whole(retrier.get("MaxAttempts"), f"{at}/Retry/{i}/MaxAttempts")
            attempts = max(attempts, 3 if count is None else count)
            base_s = seconds(retrier.get("IntervalSeconds")) or 1.0
            factor = seconds(retrier.get("BackoffRate")) or 2.0
            pauses.append((base_s, factor, seconds(retrier.get("MaxDelaySeconds")) or 43_200.0))
            if retrier.get("ErrorEquals") not in (["States.ALL"], ["States.TaskFailed"]):
                self._found.leave(
                    "Retry for some errors only", f"{at}/Retry/{i}", "every failure is retried", changed=True
                )
            if retrier.get("JitterStrategy") == "FULL":
                self._found.leave(
                    "JitterStrategy", f"{at}/Retry/{i}", "pauses are spread by a fifth of themselves"
                )
        if len(retriers) > 1:
            self._found.leave(
                "several retriers", f"{at}/Retry", "the most attempts and the longest pauses count", changed=True
            )
        return {"max_attempts": min(attempts + 1, INT32_MAX), "backoff": backoff(*max(pauses))}

    def _note(self, state: dict[str, Any], at: str, kind: str) -> None:
        if state.get("Catch"):
            self._found.leave("Catch", f"{at}/Catch", "a node with trigger any_failed comes near", changed=True)
        if kind == "Parallel" and state.get("Retry"):
            self._found.leave("Retry of a Parallel", f"{at}/Retry", "its nodes have their own", changed=True)
        if kind == "Map":
            self._found.leave("Map", at, "one node stands for all of it", changed=True)
        if kind == "Choice":
            self._found.leave("Choice", at, "its consumer says which way by skipping the others", changed=True)
        if state.get("TimeoutSeconds") or state.get("TimeoutSecondsPath"):
            self._found.leave("TimeoutSeconds of a state", at, "a lease that is not extended ends an attempt")
        for name in _DATA_FLOW:
            if name in state:
                self._found.leave(name, at, "outputs of what came before are passed whole, by name")


def _followers(state: dict[str, Any]) -> Iterator[str]:
    """Where a state leads to, each once; a Catch is no way of the graph."""
    names = [state.get("Next"), state.get("Default")]
    if state.get("Type") == "Choice":
        choices = state.get("Choices")
        found = choices if isinstance(choices, list) else ()
        names += [choice.get("Next") for choice in found if isinstance(choice, dict)]
    yield from dict.fromkeys(name for name in names if isinstance(name, str))


def _order(states: dict[str, Any], start: str, where: str) -> list[str]:
    """The states that `Next` leads to from `start`, each after all that lead to it.

    Raises:
        Fault: one is not there, or they lead back.
    """
    order: list[str] = []
    on_way: dict[str, Iterator[str]] = {}
    done: set[str] = set()

    def enter(name: str) -> None:
        if not isinstance(states.get(name), dict):
            raise Fault(f"{where}/States", f"there is no state {shown(name)}")
        if len(name.encode()) > KEY_BYTES_MAX:
            raise Fault(f"{where}/States", f"{shown(name)} is too long a name: up to {KEY_BYTES_MAX} bytes")
        on_way[name] = _followers(states[name])

    enter(start)
    while on_way:
        name = next(reversed(on_way))
        follower = next(on_way[name], None)
        if follower is None:
            del on_way[name]
            done.add(name)
            order.append(name)
        elif follower in on_way:
            names = list(on_way)
            names = [*names[names.index(follower) :], follower]
            names = names if len(names) <= CYCLE_SHOWN_MAX else [*names[:6], "...", *names[-5:]]
            loop = " -> ".join(names)
            raise Fault(f"{where}/States", f"the states lead back: {loop}; a DAG has no loops")
        elif follower not in done:
            enter(follower)
    return order[::-1]
