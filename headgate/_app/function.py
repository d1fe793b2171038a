"""A decorated function, and the ways to call it: here, as a job, or as a part of a flow."""

import inspect
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Generic,
    NamedTuple,
    ParamSpec,
    Protocol,
    TypeVar,
    Unpack,
    overload,
)

from pydantic import ValidationError

from headgate import wire
from headgate._app.call import AddOptions, JobCall, JobOptions, references, without_calls
from headgate._app.flow import Flow
from headgate._app.handle import JobHandle
from headgate._app.results import sealed
from headgate._app.typed import Signature, faults
from headgate._calls.elements import BackoffSpec
from headgate._calls.verbs import present
from headgate._worker.job import Job
from headgate.errors import JobFailed, WrongArguments
from headgate.workflow.local.mocks import finished

if TYPE_CHECKING:
    from headgate._app.app import App

# How it is sent, and what its result is; how it is called directly, and what that gives.
P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
C = TypeVar("C")
T = TypeVar("T")

# What `enqueue` takes beside the arguments.
RESERVED: Final = ("delay_s", "at", "priority", "key", "unique_for_s")
TOPIC_PREFIX: Final = "job/"
# Behind `timeout_s` a worker has so long to end an attempt; then the queue ends it, since the worker hangs.
HANGS_S: Final = 30.0
# Settings that are whole numbers, from 1 on.
_WHOLE: Final = (
    *("version", "slots", "max_attempts", "batch", "burst", "concurrency"),
    *("key_burst", "key_concurrency"),
)


class Limits(NamedTuple):
    """What all workers together take of a function at most, and of each key of it."""

    rate: float | None = None
    burst: int = 1
    concurrency: int | None = None
    key_rate: float | None = None
    key_burst: int = 1
    key_concurrency: int | None = None


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What `@app.job` says of a function."""

    name: str
    version: int = 1
    topic: str | None = None
    max_attempts: int | None = None
    backoff: BackoffSpec | None = None
    timeout_s: float | None = None
    slots: int = 8
    batch: int | None = None
    batch_wait_s: float = 0.02
    lease_s: float | None = None
    result: bool = True
    unique: bool = False
    priority: int | None = None
    rate: float | None = None
    burst: int | None = None
    concurrency: int | None = None
    key_rate: float | None = None
    key_burst: int | None = None
    key_concurrency: int | None = None
    defaults: JobOptions = field(default_factory=JobOptions)

    def node_options(self) -> dict[str, Any]:
        """What a node of the function has, unless its call says otherwise."""
        return present(
            priority=self.priority,
            max_attempts=self.max_attempts,
            backoff=self.backoff,
            timeout_s=None if self.timeout_s is None else min(self.timeout_s + HANGS_S, wire.TTL_S_MAX),
        )

    def limits(self) -> Limits | None:
        """The limits of its topic, if it says any."""
        found = Limits(
            self.rate,
            self.burst or max(1, math.ceil(self.rate or 0)),
            self.concurrency,
            self.key_rate,
            self.key_burst or max(1, math.ceil(self.key_rate or 0)),
            self.key_concurrency,
        )
        return None if found == Limits() else found

    def __post_init__(self) -> None:
        if unknown := sorted(set(self.backoff or ()) - set(BackoffSpec.__annotations__)):
            known = ", ".join(BackoffSpec.__annotations__)
            raise ValueError(f"backoff of {self.name} has no {unknown[0]!r}; there are {known}")
        for name in _WHOLE:
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise ValueError(f"{name} of {self.name} must be a whole number from 1 on, not {value!r}")
        if (self.key_concurrency or 0) > wire.KEY_CONCURRENCY_MAX:
            raise ValueError(f"key_concurrency of {self.name} must be up to {wire.KEY_CONCURRENCY_MAX}")
        if self.timeout_s is not None and not self.timeout_s > 0:
            raise ValueError(f"timeout_s of {self.name} must be more than 0")
        for rate, burst in (("rate", "burst"), ("key_rate", "key_burst")):
            value = getattr(self, rate)
            if value is not None and not 0.001 <= value <= 1_000_000:
                raise ValueError(f"{rate} of {self.name} must be from 0.001 to 1,000,000, not {value!r}")
            if getattr(self, burst) is not None and value is None:
                raise ValueError(f"{burst} of {self.name} belongs to {rate}")


SETTINGS: Final = tuple(one.name for one in fields(Settings) if one.name != "defaults")


class JobFunction(Generic[P, R, Q, C]):
    """A function that may run as a job. Calling it runs it here, as if it were not decorated."""

    def __init__(self, app: "App", function: Callable[Q, C], settings: Settings) -> None:
        self.app = app
        self.function = function
        self.settings = settings
        self.name, self.version = settings.name, settings.version
        self.topic = settings.topic or TOPIC_PREFIX + settings.name
        self.signature = Signature(function, app.codecs, batch=settings.batch is not None)
        self.undoing: Callable[..., Any] | None = None
        self.__doc__ = function.__doc__
        self.__name__ = getattr(function, "__name__", settings.name)
        self.__wrapped__ = function

    def __repr__(self) -> str:
        return f"<job function {self.name} of app {self.app.namespace}>"

    def __call__(self, *args: Q.args, **kwargs: Q.kwargs) -> C:
        return self.function(*args, **kwargs)

    @overload
    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]: ...
    @overload
    def enqueue(
        self,
        *args: Any,
        delay_s: float,
        at: datetime = ...,
        priority: int = ...,
        key: str = ...,
        unique_for_s: float = ...,
        **kwargs: Any,
    ) -> JobHandle[R]: ...
    @overload
    def enqueue(
        self,
        *args: Any,
        at: datetime,
        priority: int = ...,
        key: str = ...,
        unique_for_s: float = ...,
        **kwargs: Any,
    ) -> JobHandle[R]: ...
    @overload
    def enqueue(
        self, *args: Any, priority: int, key: str = ..., unique_for_s: float = ..., **kwargs: Any
    ) -> JobHandle[R]: ...
    @overload
    def enqueue(self, *args: Any, key: str, unique_for_s: float = ..., **kwargs: Any) -> JobHandle[R]: ...
    @overload
    def enqueue(self, *args: Any, unique_for_s: float, **kwargs: Any) -> JobHandle[R]: ...
    def enqueue(self, *args: Any, **kwargs: Any) -> JobHandle[R]:
        """Send a job. In a coroutine, `await` what this returns; elsewhere it has been sent.

        `delay_s`, `at`, `priority`, `key` and `unique_for_s` are options (see `JobOptions`), all else is for the
        function. `resize.options(...).enqueue(...)` takes all options, and its keywords are the function's alone.

        Raises:
            WrongArguments: the function cannot be called so; nothing was sent.
            HeadgateError: the service did not take it.
        """
        options, arguments = self._parted(kwargs)
        return self.options(**options).enqueue(*args, **arguments)

    async def aenqueue(self, *args: Any, **kwargs: Any) -> JobHandle[R]:
        """`enqueue` in a coroutine."""
        return await self.enqueue(*args, **kwargs)

    def call(self, *args: Any, **kwargs: Any) -> JobCall[R]:
        """A call for a flow. Its arguments may be other calls, also inside lists and dicts.

        Raises:
            WrongArguments: the function cannot be called so.
        """
        return self.options().call(*args, **kwargs)

    def options(self, **options: Unpack[JobOptions]) -> "WithOptions[P, R]":
        """This function with options: `resize.options(delay_s=5).enqueue("s3://a")`."""
        return WithOptions(self, options)

    def job(self, job_id: str) -> JobHandle[R]:
        """The job of this function with this id; nothing is sent."""
        return JobHandle(self.app, self, job_id)

    def undo(self, function: T) -> T:
        """Decorates what takes back a call of this function that succeeded, if its flow fails or is cancelled.

        It gets those of the function's arguments that it names, and `result`, if it names that.
        """
        if not callable(function):
            raise TypeError(f"@{self.name}.undo decorates a function")
        self.undoing = function
        return function

    def encode(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments as JSON; nothing where a call's result will be. Those are checked when it is there."""
        if missing := self.signature.missing(arguments):
            raise WrongArguments(f"{self.signature.name}: `{missing[0]}` is missing; see {self.signature.given}")
        later = {name for name, value in arguments.items() if any(references(value))}
        found = self.signature.encode({name: arguments[name] for name in arguments if name not in later})
        return {**found, **{name: without_calls(arguments[name]) for name in sorted(later)}}

    def decoded(self, value: Any) -> Any:
        """A result from JSON.

        Raises:
            JobFailed: it is not of the type that the function is annotated with.
        """
        try:
            return self.signature.result.decode({"value": value})["value"]
        except ValidationError as error:
            raise JobFailed(
                f"the result of {self.name} is not of the type that it is annotated with here: {faults(error)}"
            ) from None

    def in_test(self, output: Any) -> Callable[[Any], Any]:
        """What a task of this function puts out, in the test of a workflow: `output`, or what that makes of the
        arguments."""

        def work(payload: Any) -> Any:
            value = output
            if callable(output):
                args, kwargs = self.signature.call_with(self.signature.arguments.decode(payload["args"]), {})
                value = finished(partial(output, *args, **kwargs))
            return sealed(self.signature.result.encode({"value": value})["value"])

        return work

    def encode_some(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Some of the arguments as JSON, whatever the others are; raises WrongArguments."""
        return self.signature.encode(arguments)

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any], options: JobOptions) -> JobCall[R]:
        """The call with these arguments, checked.

        Raises:
            WrongArguments: the function cannot be called so.
        """
        try:
            arguments = self.signature.bind(args, kwargs)
        except WrongArguments as error:
            self.signature.check()  # a type that no JSON is made of says better what is wrong
            raise WrongArguments(f"{error}{self._advice(kwargs)}") from None
        for name, value in arguments.items():
            if isinstance(value, Flow):
                raise WrongArguments(
                    f"{self.name}: `{name}` is {value!r}: add it to the flow around it, and pass the call that "
                    "flow.add(...) returns"
                )
        kind = {}
        if self.settings.batch is not None and arguments:
            arguments, one = self._elements(arguments)
            kind = {"one": True} if one else {}
        return JobCall(self, arguments, options, kind, encoded=self.encode(arguments))

    def _advice(self, kwargs: Mapping[str, Any]) -> str:
        """Where a keyword belongs that is none of the function's."""
        others = kwargs.keys() - self.signature.given.parameters.keys()
        if option := min(others & JobOptions.__annotations__.keys(), default=""):
            return f". `{option}` is an option: {self.name}.options({option}=...).enqueue(...)"
        if how := min(others & AddOptions.__annotations__.keys(), default=""):
            return f". `{how}` is for the flow: flow.add({self.name}.call(...), {how}=...)"
        return ""

    def _elements(self, arguments: dict[str, Any]) -> tuple[dict[str, Any], bool]:
        """A batch's argument as a list, and whether one element was given in its place."""
        ((name, value),) = arguments.items()
        if isinstance(value, JobCall):
            return arguments, False
        try:
            self.encode(arguments)
        except WrongArguments:
            if isinstance(value, list):
                raise
            return {name: [value]}, True
        return arguments, False

    def _parted(self, kwargs: Mapping[str, Any]) -> tuple[JobOptions, dict[str, Any]]:
        """Options and arguments.

        Raises:
            WrongArguments: a keyword may be either.
        """
        if not kwargs:
            return {}, {}
        own = self.signature.parameters
        for name in RESERVED:
            if name in kwargs and name in own:
                raise WrongArguments(
                    f"`{name}` is an argument of {self.name}, and an option of enqueue: pass the argument by "
                    f"{self.name}.options().enqueue({name}=...), or by position, and the option by "
                    f"{self.name}.options({name}=...).enqueue(...)"
                )
        options: Any = {name: value for name, value in kwargs.items() if name in RESERVED}
        return options, {name: value for name, value in kwargs.items() if name not in RESERVED}


class WithOptions(Generic[P, R]):
    """A function with options for its next jobs and calls."""

    def __init__(self, function: JobFunction[P, R, ..., Any], options: JobOptions) -> None:
        if options and (unknown := sorted(options.keys() - JobOptions.__annotations__.keys())):
            known = ", ".join(JobOptions.__annotations__)
            raise TypeError(f"a job has no option {unknown[0]!r}; there are {known}")
        self.function = function
        self.given = options

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Send a job; see `JobFunction.enqueue`."""
        call = self.function.bind(args, kwargs, self.given)
        if call.references:
            raise WrongArguments(
                f"an argument of {self.function.name} is a call: put both into a flow, app.flow(name).add(...)"
            )
        return self.function.app.send(call)

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        return await self.enqueue(*args, **kwargs)

    def call(self, *args: Any, **kwargs: Any) -> JobCall[R]:
        """A call for a flow; see `JobFunction.call`."""
        return self.function.bind(args, kwargs, self.given)


class JobDecorator(Protocol):
    """What `@app.job(...)` is."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[Job, P], Awaitable[R]], /
    ) -> JobFunction[P, R, Concatenate[Job, P], Awaitable[R]]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Job, P], R], /
    ) -> JobFunction[P, R, Concatenate[Job, P], R]: ...
    @overload
    def __call__(self, function: Callable[P, Awaitable[R]], /) -> JobFunction[P, R, P, Awaitable[R]]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> JobFunction[P, R, P, R]: ...


class BatchDecorator(Protocol):
    """What `@app.job(batch=...)` is: a job is sent with one element, or a list of them."""

    @overload
    def __call__(
        self, function: Callable[[Job, list[T]], Awaitable[None]], /
    ) -> JobFunction[[T | list[T]], None, [Job, list[T]], Awaitable[None]]: ...
    @overload
    def __call__(
        self, function: Callable[[Job, list[T]], None], /
    ) -> JobFunction[[T | list[T]], None, [Job, list[T]], None]: ...
    @overload
    def __call__(
        self, function: Callable[[list[T]], Awaitable[None]], /
    ) -> JobFunction[[T | list[T]], None, [list[T]], Awaitable[None]]: ...
    @overload
    def __call__(
        self, function: Callable[[list[T]], None], /
    ) -> JobFunction[[T | list[T]], None, [list[T]], None]: ...
    @overload
    def __call__(
        self, function: Callable[[Job, list[T]], C], /
    ) -> JobFunction[[T | list[T]], Any, [Job, list[T]], C]: ...
    @overload
    def __call__(self, function: Callable[[list[T]], C], /) -> JobFunction[[T | list[T]], Any, [list[T]], C]: ...


def default_name(function: Callable[..., Any]) -> str:
    """The name of a function that is given none: its own, without where it is defined."""
    name = getattr(function, "__qualname__", None) or type(function).__name__
    return str(name).rsplit("<locals>.", 1)[-1]


def is_generator(function: Callable[..., Any]) -> bool:
    whole = inspect.unwrap(function)
    return inspect.isgeneratorfunction(whole) or inspect.isasyncgenfunction(whole)
