"""Flows: calls that make one DAG. What a call takes from others it waits for, and so it says what comes when."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from headgate._app.call import (
    AddOptions,
    Condition,
    JobCall,
    condition_of,
    node_options,
    references,
    without_calls,
)
from headgate._app.handle import FlowRun
from headgate._calls.dag import Dag, External, Node
from headgate._calls.verbs import present

if TYPE_CHECKING:
    from headgate._app.app import App
    from headgate._app.function import JobFunction

T = TypeVar("T")


class Plan:
    """Calls as nodes of one DAG, each once; `prefix` keeps apart the keys of what one job adds to its flow."""

    def __init__(self, app: "App", prefix: str = "") -> None:
        self._app = app
        self._prefix = prefix
        self._keys: dict[JobCall[Any], str] = {}
        self._counts: dict[str, int] = {}
        self._adding: set[JobCall[Any]] = set()
        self.nodes: dict[str, Node] = {}
        self.undo: dict[str, Node] = {}

    def key_of(self, call: JobCall[Any]) -> str | None:
        return self._keys.get(call)

    def __iter__(self) -> Iterator[Node]:
        yield from self.nodes.values()
        yield from self.undo.values()

    def add(self, call: JobCall[Any], **how: Unpack[AddOptions]) -> str:
        """Add a call, and what it needs, if they are not there yet; its key.

        Raises:
            ValueError: it is there, and is now to wait otherwise; it waits for itself; or it is of another app.
        """
        if call in self._adding:
            raise ValueError(f"{call!r} waits for itself: it needs a call that waits for it; make a new call")
        self._adding.add(call)
        try:
            return self._add(call, how)
        finally:
            self._adding.discard(call)

    def _add(self, call: JobCall[Any], how: AddOptions) -> str:
        if call.function.app is not self._app:
            raise ValueError(f"{call!r} is of another app; a flow has calls of one")
        if call in self._keys:
            if how:
                raise ValueError(f"{call!r} is in the flow already; say how it waits where it is added first")
            return self._keys[call]
        needed = [self.add(reference.call) for reference in call.references]
        after = [self.add(other) for other in how.get("after", ())]
        when = condition_of(how["when"]) if "when" in how else None
        above = "" if when is None else self.add(when.call)
        key = self._new_key(call, how.get("key"))
        self._keys[call] = key
        gates = [] if when is None else [self._gate(key, call, when, above)]
        upstream = list(dict.fromkeys([*needed, *after, *gates]))
        if isinstance(call, FlowCall):
            self.nodes[key] = Node(key, None, upstream, list(how.get("external", ())), _waiting(how), call.dag)
            return key
        self._node(key, call, upstream, how)
        if call.function.undoing is not None:
            self._undo_node(key, call)
        return key

    def fresh(self, call: JobCall[Any], how: AddOptions) -> list[Node]:
        """Add a call; the nodes that were not there before."""
        known = {node.key for node in self}
        self.add(call, **how)
        return [node for node in self if node.key not in known]

    def _node(self, key: str, call: JobCall[Any], upstream: list[str], how: AddOptions) -> None:
        external: list[External] = list(how.get("external", ()))
        options: Any = {
            **self._options(call),
            **_waiting(how),
            "payload": self._app.packed(call.payload(self._key_in_plan)),
            "pass_outputs": bool(external or call.references),
        }
        self.nodes[key] = Node(key, call.function.topic, upstream, external, options)

    def _gate(self, key: str, call: JobCall[Any], when: Condition, above: str) -> str:
        """A node that skips the call's if the condition does not hold, which is its output."""
        gate = f"{self._prefix}if {key.removeprefix(self._prefix)}"
        test = {"skip": key, "path": list(when.path), "operator": when.operator, "other": when.other}
        function = call.function
        payload = {"fn": function.name, "v": function.version, "when": test, "args": {"value": None}}
        options: Any = {
            "payload": {**payload, "from": [[["value"], above, *when.call.inner]]},
            "pass_outputs": True,
        }
        self.nodes[gate] = Node(gate, function.topic, [above], [], options)
        return gate

    def _undo_node(self, key: str, call: JobCall[Any]) -> None:
        undo = f"{self._prefix}undo {key.removeprefix(self._prefix)}"
        function = call.function
        payload = {"fn": function.name, "v": function.version, "undo": key}
        options: Any = {
            **present(max_attempts=function.settings.max_attempts, backoff=function.settings.backoff),
            "payload": payload,
            "compensates": key,
            "pass_outputs": True,
        }
        self.undo[undo] = Node(undo, function.topic, [], [], options)

    def _key_in_plan(self, call: JobCall[Any]) -> str:
        return self._keys[call]

    def _options(self, call: JobCall[Any]) -> dict[str, Any]:
        return {**call.function.settings.node_options(), **node_options(call.options, self._app.now())}

    def _new_key(self, call: JobCall[Any], wanted: str | None) -> str:
        if wanted is not None:  # it stands for the call in the whole flow, whichever job adds it
            if wanted in self.nodes:
                raise ValueError(f"the flow has a call with the key {wanted!r} already")
            return wanted
        name = call.name if isinstance(call, FlowCall) else call.function.name
        while True:
            self._counts[name] = number = self._counts.get(name, 0) + 1
            key = f"{self._prefix}{name}-{number}"
            if key not in self.nodes:
                return key


def _waiting(how: AddOptions) -> Any:
    """How a node waits, and what its failure means."""
    return {
        **present(trigger=how.get("trigger")),
        **({"tolerate": True} if how.get("required") is False else {}),
    }


class Flow:
    """Calls to be run as one DAG; made by `app.flow(name)`. Nothing is sent before `start`."""

    def __init__(
        self, app: "App", name: str, *, deadline_s: float | None = None, cancel_rest: bool = False
    ) -> None:
        self.app = app
        self.name = name
        self._deadline_s = deadline_s
        self._cancel_rest = cancel_rest
        self._plan = Plan(app)
        self._last: JobCall[Any] | None = None

    def __repr__(self) -> str:
        return f"<flow {self.name} of {len(self._plan.nodes)} nodes>"

    @overload
    def add(self, call: "JobCall[T]", **how: Unpack[AddOptions]) -> "JobCall[T]": ...
    @overload
    def add(self, call: "Flow", **how: Unpack[AddOptions]) -> JobCall[Any]: ...
    def add(self, call: "JobCall[Any] | Flow", **how: Unpack[AddOptions]) -> JobCall[Any]:
        """Add a call, and the calls that it takes results of; the call itself. `how`: see `AddOptions`.

        A whole flow may stand in the place of a call. Its result is that of the last call that was added to it.
        """
        if isinstance(call, Flow):
            call = call.as_call()
        if not isinstance(call, JobCall):
            raise TypeError(f"flow.add takes a call, like resize.call(...), not {call!r}")
        self._plan.add(call, **how)
        self._last = call
        return call

    def as_call(self) -> "FlowCall":
        """This flow in the place of a call."""
        dag = self.dag()
        last = self._last
        assert last is not None, "a flow without calls makes no DAG"
        key = self.key_of(last)
        if any(key in node.upstream for node in dag.nodes.values()):
            raise ValueError(
                f"the call that was added to {self!r} last, {last!r}, has another one waiting for it: add "
                "the call "
                "whose result is the flow's last"
            )
        return FlowCall(last.function, {}, {}, {}, (key, *last.inner), name=self.name, dag=dag.within(), last=last)

    def chain(self, first: JobCall[Any], *functions: "JobFunction[..., Any, ..., Any]") -> JobCall[Any]:
        """One after the other, each with the result of the one before as its first argument; the last call."""
        if not isinstance(first, JobCall) or not all(hasattr(function, "call") for function in functions):
            raise TypeError(
                "flow.chain takes a call and then functions, like flow.chain(fetch.call(url), clean, store), not "
                f"{[first, *functions]!r}"
            )
        call = self.add(first)
        for function in functions:
            call = self.add(function.call(call))
        return call

    def chord(
        self, calls: Iterable[JobCall[Any]], function: "JobFunction[..., T, ..., Any]", *args: Any, **kwargs: Any
    ) -> "JobCall[T]":
        """All calls, then `function` with the list of their results as its first argument; its call."""
        if not hasattr(function, "call"):
            raise TypeError(
                "flow.chord takes calls and then a function, like "
                f"flow.chord([resize.call(src) for src in sources], stitch), not {function!r}"
            )
        return self.add(function.call(list(calls), *args, **kwargs))

    def map(
        self, function: "JobFunction[..., T, ..., Any]", items: "JobCall[Any] | Iterable[Any]", **kwargs: Any
    ) -> "JobCall[list[T]]":
        """`function` for each element of a list, which may be the result of an earlier call; a call whose
        result is the list of results. The element is its first argument, `kwargs` are the others."""
        call: Any = mapped(function, items, kwargs)
        return self.add(call)

    def key_of(self, call: JobCall[Any]) -> str:
        """The key of a call's node.

        Raises:
            ValueError: it is not in this flow.
        """
        key = self._plan.key_of(call)
        if key is None:
            raise ValueError(f"{call!r} is not in flow {self.name!r}; add it before the flow is started")
        return key

    def start(self, *, key: str | None = None) -> FlowRun:
        """Send it, whole. In a coroutine, `await` what this returns; elsewhere it has been sent.

        With a `key`, the same key again is the same run. Each start without one is a run of its own.
        """
        return self.app.start(self, self.dag(key))

    async def astart(self, *, key: str | None = None) -> FlowRun:
        return await self.start(key=key)

    def dag(self, key: str | None = None) -> Dag:
        """The flow as a DAG.

        Raises:
            ValueError: it has no calls.
        """
        if not self._plan.nodes:
            raise ValueError(f"flow {self.name!r} has no calls; add some with flow.add(...)")
        dag = Dag(
            self.name,
            key=None if key is None else f"flow/{self.name}/{key}",
            deadline_s=self._deadline_s,
            on_failure="cancel" if self._cancel_rest else "continue",
        )
        for node in self._plan:
            dag.nodes[node.key] = replace(node, options=node.options.copy())
        return dag


def mapped(function: "JobFunction[..., T, ..., Any]", items: Any, kwargs: dict[str, Any]) -> JobCall[Any]:
    """The call that calls `function` for each of the items, which it is given when it runs."""
    if not hasattr(function, "signature"):
        raise TypeError(
            "flow.map takes a function and then what to call it for, like flow.map(resize, listing.call()), not "
            f"{function!r}"
        )
    parameters = list(function.signature.given.parameters.values())
    if not parameters:
        raise TypeError(f"{function.name} takes no argument, so it cannot be called for each element of a list")
    first = parameters[0].name
    if first in kwargs:
        raise TypeError(f"`{first}` of {function.name} is what it is called for; leave it out of the others")
    fixed = function.encode_some(kwargs)
    given = items if isinstance(items, JobCall) else list(items)
    return MapCall(function, {"items": given, **kwargs}, {}, {"map": first, "fixed": fixed})


class MapCall(JobCall[Any]):
    """A function called for each element of a list."""

    def decoded(self, value: Any) -> Any:
        return [self.function.decoded(element) for element in value]

    def payload(self, keys: Callable[[JobCall[Any]], str]) -> dict[str, Any]:
        items = self.arguments["items"]
        made = {"fn": self.function.name, "v": self.function.version, **self.kind}
        if isinstance(items, JobCall):
            return {**made, "args": {"items": None}, "from": [[["items"], keys(items), *items.inner]]}
        places = [[["items", *found.path], keys(found.call), *found.call.inner] for found in references(items)]
        name = self.kind["map"]
        encoded = [
            without_calls(item) if any(references(item)) else self.function.encode_some({name: item})[name]
            for item in items
        ]
        return {**made, "args": {"items": encoded}, **({"from": places} if places else {})}


@dataclass(eq=False)
class FlowCall(JobCall[Any]):
    """A flow in the place of a call."""

    name: str = ""
    dag: Mapping[str, Any] = field(default_factory=dict)
    last: JobCall[Any] | None = None

    def __repr__(self) -> str:
        return f"<flow {self.name} in another>"

    def decoded(self, value: Any) -> Any:
        return value if self.last is None else self.last.decoded(value)
