"""A call that has not been sent: a function, its arguments, and which of them are results of other calls.

As a node it carries `{"fn", "v", "args", "from"}`: `from` lists where in `args` the output of which node belongs.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, NoReturn, TypedDict, TypeVar

from headgate._app.typed import loose
from headgate._calls.elements import BackoffSpec
from headgate.errors import JobFailed, WrongArguments
from headgate.wire import Trigger

if TYPE_CHECKING:
    from headgate._app.function import JobFunction

R_co = TypeVar("R_co", covariant=True)
Path = tuple[str | int, ...]
NESTING_MAX: Final = 30


class JobOptions(TypedDict, total=False):
    """What one job may carry besides its arguments; what is left out is as the function says.

    delay_s, at: not before so many seconds, or that moment (with a time zone); up to 30 days ahead.
    priority: lower is served first; 0 by default.
    key: which job it is: the same key for the same function again is the same job, as long as its result is kept.
        It is not the key of limits and of `Throttled(key=)`, which is the `fairness_key`.
    unique: with equal arguments (or the same `key`) one job at a time is queued or running; a second is the first.
    unique_for_s: with equal arguments no second job within so many seconds; the first one is answered.
    max_attempts: runs before it has failed.
    backoff: `{"base_s": 5}` waits 5, 10, 20, ... seconds between them.
    ttl_s: dropped if it has not begun so long after it was sent; its result raises.
    deadline_s: ended so long after it was sent, also while it runs; its result raises.
    fairness_key: whose job it is: jobs of one key take turns with those of others; limits of keys and
        `Throttled(key=)` go by it.
    result: whether its result is kept; without, it costs what a bare item costs.
    headers: passed on with the item, as trace context; only without a result.
    """

    delay_s: float
    at: datetime
    priority: int
    key: str
    unique: bool
    unique_for_s: float
    max_attempts: int
    backoff: BackoffSpec
    ttl_s: float
    deadline_s: float
    fairness_key: str
    result: bool
    headers: dict[str, str]


class Reference(NamedTuple):
    """Where in the arguments the result of which call belongs."""

    path: Path
    call: "JobCall[Any]"


@dataclass(eq=False)
class JobCall(Generic[R_co]):
    """A call of a function in a flow. Give it to other calls as an argument, also inside lists and dicts: they get
    its result. Made by `resize.call(...)`; it is no result itself."""

    function: "JobFunction[..., R_co, ..., Any]"
    arguments: dict[str, Any]
    options: JobOptions = field(default_factory=JobOptions)
    kind: dict[str, Any] = field(default_factory=dict)
    # Of a flow in the place of a call: the key of the node in it whose result this is.
    inner: tuple[str, ...] = ()
    # The arguments as JSON, where they have been brought to it already.
    encoded: dict[str, Any] | None = None
    _references: tuple[Reference, ...] | None = field(default=None, init=False)

    def __repr__(self) -> str:
        return f"<call of {self.function.name}>"

    def __iter__(self) -> Iterator[Any]:
        raise TypeError(f"{self!r} has no result yet: to call a function for each element of it, use flow.map")

    def __bool__(self) -> bool:
        raise TypeError(f"{self!r} has no result yet: to run something if it holds, use flow.add(..., when=...)")

    if not TYPE_CHECKING:

        def _compared(self, _: Any) -> NoReturn:
            raise TypeError(
                f"{self!r} has no result yet: in a condition compare its `.value`, when=call.value > 0.5"
            )

        __lt__ = __le__ = __gt__ = __ge__ = __getitem__ = _compared

    @property
    def value(self) -> "Value":
        """Its result in a condition: `when=check.value["score"] > 0.5`."""
        return Value(self, ())

    @property
    def references(self) -> tuple[Reference, ...]:
        """The calls among its arguments."""
        if self._references is None:  # `cached_property` takes a lock until Python 3.12
            self._references = tuple(references(self.arguments))
        return self._references

    def decoded(self, value: Any) -> Any:
        """Its result from JSON."""
        return self.function.decoded(value)

    def as_task(self, now: datetime) -> tuple[dict[str, Any], dict[str, Any]]:
        """What a workflow asks for that calls it, and what of that must be the same on replay: all but what
        `@app.job` says, which may change while runs go on.

        Raises:
            TypeError: it belongs in a flow, or has an option that means nothing in a workflow.
        """
        if type(self) is not JobCall:
            raise TypeError(f"{self!r} makes a graph: await wf.dag(flow.dag())")
        if self.references:
            raise TypeError(
                f"an argument of {self!r} is a call: await that one first, or await wf.dag(flow.dag())"
            )
        if alien := sorted(self.options.keys() & _UNKNOWN_TO_WORKFLOWS):
            raise TypeError(
                f"a task of a workflow has no option {alien[0]!r}: it is one task of its run, by its key"
            )
        said = node_options(self.options, now)
        compared = {"topic": self.function.topic, "payload": self.payload(_key_of_none), **said}
        return {**self.function.settings.node_options(), **compared}, compared

    def result_of(self, output: Any) -> R_co:
        """Its result from a task's output.

        Raises:
            JobFailed: it is not of the function's type, or not in the output.
        """
        from headgate._app.results import opened

        opening = opened(output)
        try:
            next(opening)
        except StopIteration as found:
            result: R_co = self.decoded(found.value)
            return result
        raise JobFailed(
            f"the result of {self.function.name} is in the app's store, where a workflow cannot look: let it "
            "return a reference, and read that in a step, await wf.run(load, reference)"
        )

    def payload(self, keys: Callable[["JobCall[Any]"], str]) -> dict[str, Any]:
        """What the node carries; `keys` names the nodes of other calls."""
        places = [[list(path), keys(call), *call.inner] for path, call in self.references]
        args = self.function.encode(self.arguments) if self.encoded is None else self.encoded
        made = {"fn": self.function.name, "v": self.function.version, "args": args, **self.kind}
        if self.options.get("max_attempts") is not None:
            made["tries"] = self.options["max_attempts"]
        return {**made, "from": places} if places else made


@dataclass(frozen=True, eq=False)
class Value:
    """A part of the result that a call will have."""

    call: JobCall[Any]
    path: Path

    def __getitem__(self, key: str | int) -> "Value":
        return Value(self.call, (*self.path, key))

    def _compared(self, operator: str, other: Any) -> "Condition":
        return Condition(self.call, self.path, operator, loose(other))

    def __eq__(self, other: object) -> "Condition":  # type: ignore[override]
        return self._compared("==", other)

    def __ne__(self, other: object) -> "Condition":  # type: ignore[override]
        return self._compared("!=", other)

    def __lt__(self, other: Any) -> "Condition":
        return self._compared("<", other)

    def __le__(self, other: Any) -> "Condition":
        return self._compared("<=", other)

    def __gt__(self, other: Any) -> "Condition":
        return self._compared(">", other)

    def __ge__(self, other: Any) -> "Condition":
        return self._compared(">=", other)

    def one_of(self, values: Iterable[Any]) -> "Condition":
        return self._compared("in", list(values))

    __hash__ = None  # type: ignore[assignment]


class Condition(NamedTuple):
    """Whether something is to run, by the result of a call."""

    call: JobCall[Any]
    path: Path
    operator: str
    other: Any

    def __bool__(self) -> bool:
        raise TypeError("a condition has no value before its call has ended: give it to flow.add(..., when=...)")


_OPERATORS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "true": lambda value, _: bool(value),
    "==": lambda value, other: bool(value == other),
    "!=": lambda value, other: bool(value != other),
    "<": lambda value, other: bool(value < other),
    "<=": lambda value, other: bool(value <= other),
    ">": lambda value, other: bool(value > other),
    ">=": lambda value, other: bool(value >= other),
    "in": lambda value, other: value in other,
}


# Of a job's options.
_UNKNOWN_TO_WORKFLOWS: Final = frozenset({"key", "unique", "unique_for_s", "result", "headers"})


def _key_of_none(call: JobCall[Any]) -> str:
    raise AssertionError(f"{call!r} has no node here")


def condition_of(when: "JobCall[Any] | Value | Condition") -> Condition:
    if isinstance(when, JobCall):
        return Condition(when, (), "true", None)
    if isinstance(when, Value):
        return Condition(when.call, when.path, "true", None)
    if isinstance(when, Condition):
        return when
    raise TypeError(
        f"`when` is a call or what its value is compared with, like when=check.value > 0.5, not {when!r}"
    )


def holds(operator: str, value: Any, path: Iterable[str | int], other: Any) -> bool:
    """Whether a condition is met by a value; one whose parts are not there meets none."""
    for part in path:
        try:
            value = value[part]
        except (LookupError, TypeError):
            return False
    return _OPERATORS[operator](value, other)


def references(value: Any, path: Path = ()) -> Iterator[Reference]:
    """The calls in a value, also inside lists and dicts."""
    if isinstance(value, JobCall):
        yield Reference(path, value)
    elif isinstance(value, (list, tuple)):
        _check_depth(path)
        for at, part in enumerate(value):
            yield from references(part, (*path, at))
    elif isinstance(value, dict):
        _check_depth(path)
        for key, part in value.items():
            yield from references(part, (*path, key))


def _check_depth(path: Path) -> None:
    if len(path) > NESTING_MAX:
        raise WrongArguments(f"a value is nested deeper than {NESTING_MAX} levels, or holds itself")


def without_calls(value: Any) -> Any:
    """The value with nothing where its calls are, as JSON."""
    if isinstance(value, JobCall):
        return None
    if isinstance(value, (list, tuple)):
        return [without_calls(part) for part in value]
    if isinstance(value, dict):
        return {str(key): without_calls(part) for key, part in value.items()}
    return loose(value)


def put(value: Any, path: Iterable[str | int], part: Any) -> Any:
    """`value` with `part` at `path`; changes it in place where it can."""
    steps = list(path)
    if not steps:
        return part
    *way, last = steps
    place = value
    for step in way:
        place = place[step]
    place[last] = part
    return value


def seconds_until(at: datetime, now: datetime) -> float:
    """From now to `at`; 0 where it is over.

    Raises:
        ValueError: it has no time zone.
        TypeError: it is no datetime.
    """
    if not isinstance(at, datetime):
        raise TypeError(f"at={at!r} is no datetime; say datetime(..., tzinfo=UTC)")
    if at.tzinfo is None:
        raise ValueError(f"at={at.isoformat()} has no time zone; say datetime(..., tzinfo=UTC), or astimezone()")
    return max(0.0, (at - now).total_seconds())


def node_options(options: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """What of a job's options a node takes, now."""
    names = ("priority", "max_attempts", "backoff", "ttl_s", "deadline_s", "delay_s", "fairness_key")
    found = {name: options[name] for name in names if options.get(name) is not None}
    if options.get("at") is not None:
        if "delay_s" in found:
            raise ValueError("give a job `delay_s` or `at`, not both")
        found["delay_s"] = seconds_until(options["at"], now)
    return found


class AddOptions(TypedDict, total=False):
    """How a call waits in its flow.

    key: its node's key in the whole flow; by default made of the function's name, in the order of the calls. A job
        that adds a call by a key that the flow has already adds nothing.
    after: calls that must succeed before it, though it needs none of their results.
    external: events that it waits for, as of a `Dag`.
    when: a call, or a comparison of its value; where it does not hold, the call is skipped, and what needs it too.
    required: False: the flow does not fail if this call does.
    trigger: what its upstreams must have come to; a result that is not there is None then.
    """

    key: str
    after: Iterable["JobCall[Any]"]
    external: Iterable[str]
    when: "JobCall[Any] | Value | Condition"
    required: bool
    trigger: Trigger
