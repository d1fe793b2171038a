"""An app: functions of one namespace, what they share, and the way to the services."""

import contextlib
import inspect
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import datetime
from typing import Any, Concatenate, Final, NoReturn, TypeVar, Unpack, cast, overload

from headgate import wire
from headgate._app.call import AddOptions, JobCall
from headgate._app.flow import Flow
from headgate._app.function import (
    SETTINGS,
    BatchDecorator,
    C,
    JobDecorator,
    JobFunction,
    P,
    Q,
    R,
    Settings,
    default_name,
    is_generator,
)
from headgate._app.handle import JobHandle, Sent
from headgate._app.local.in_process import Testing
from headgate._app.running import add
from headgate._app.schedules import Every, Overlap
from headgate._app.sending import Sender
from headgate._app.stores import Store
from headgate._app.tracing import Tracing
from headgate._app.typed import Codec, Signature, StateOf
from headgate._app.worker import AppWorker
from headgate._calls.elements import BackoffSpec
from headgate._calls.verbs import present
from headgate._client.blocking.client import Client
from headgate._worker.deciders import W, WorkflowOptions, decorator
from headgate._worker.job import Handler, Job
from headgate._worker.task import check_topic

T = TypeVar("T")
F = TypeVar("F", bound=Handler)
S = TypeVar("S", bound=Sent[Any])

Lifespan = Callable[..., Any]


class App(Sender):
    """Functions that run as jobs of one namespace.

        app = App("media")

        @app.job(max_attempts=5, timeout_s=60, slots=8)
        async def resize(src: str, width: int = 640) -> str: ...

        job = resize.enqueue("s3://a", width=320)
        print(job.result(timeout_s=30))

    Where the services are comes from `HEADGATE_QUEUE_URL`, `HEADGATE_DAG_URL` and `HEADGATE_TOKEN`, unless a
    `client` says so. `lifespan` makes what the functions share in a worker, as a pool: an async generator
    function that yields it, or a function that returns an async context manager. `store` keeps arguments and
    results that are too large for the services. `codecs` are for types that pydantic does not know: what makes
    JSON of one, and one of that JSON.
    """

    def __init__(
        self,
        namespace: str | None = None,
        *,
        client: Client | None = None,
        lifespan: Lifespan | None = None,
        store: Store | None = None,
        codecs: Mapping[type[Any], Codec] | None = None,
        tracing: bool | Tracing = False,
        unknown_after_s: float = 30.0,
    ) -> None:
        traced = tracing if isinstance(tracing, Tracing) else Tracing() if tracing else None
        super().__init__(namespace, client=client, store=store, tracing=traced)
        self.codecs: Mapping[type[Any], Codec] = codecs or {}
        self.versions: dict[tuple[str, int], JobFunction[..., Any, ..., Any]] = {}
        self.tasks: list[tuple[str, Handler, dict[str, Any]]] = []
        self.deciders: list[tuple[str, Callable[..., Any], WorkflowOptions]] = []
        self.schedules: dict[str, Every] = {}
        self.unknown_after_s = unknown_after_s
        self._lifespan = lifespan
        self._state: Any = None
        self._signatures: dict[Callable[..., Any], Signature] = {}

    def __repr__(self) -> str:
        return f"<App {self.namespace}: {', '.join(self.functions) or 'no functions'}>"

    # What it is made of

    @overload
    def job(
        self, function: Callable[Concatenate[Job, P], Awaitable[R]], /
    ) -> JobFunction[P, R, Concatenate[Job, P], Awaitable[R]]: ...
    @overload
    def job(self, function: Callable[Concatenate[Job, P], R], /) -> JobFunction[P, R, Concatenate[Job, P], R]: ...
    @overload
    def job(self, function: Callable[P, Awaitable[R]], /) -> JobFunction[P, R, P, Awaitable[R]]: ...
    @overload
    def job(self, function: Callable[P, R], /) -> JobFunction[P, R, P, R]: ...
    @overload
    def job(
        self,
        *,
        name: str | None = None,
        version: int = 1,
        max_attempts: int | None = None,
        backoff: BackoffSpec | None = None,
        timeout_s: float | None = None,
        slots: int = 8,
        batch: None = None,
        priority: int | None = None,
        rate: float | None = None,
        burst: int | None = None,
        concurrency: int | None = None,
        key_rate: float | None = None,
        key_burst: int | None = None,
        key_concurrency: int | None = None,
        lease_s: float | None = None,
        result: bool = True,
        unique: bool = False,
        topic: str | None = None,
    ) -> JobDecorator: ...
    @overload
    def job(
        self,
        *,
        batch: int,
        batch_wait_s: float = 0.02,
        name: str | None = None,
        version: int = 1,
        max_attempts: int | None = None,
        backoff: BackoffSpec | None = None,
        timeout_s: float | None = None,
        slots: int = 8,
        priority: int | None = None,
        rate: float | None = None,
        burst: int | None = None,
        concurrency: int | None = None,
        key_rate: float | None = None,
        key_burst: int | None = None,
        key_concurrency: int | None = None,
        lease_s: float | None = None,
        result: bool = True,
        unique: bool = False,
        topic: str | None = None,
    ) -> BatchDecorator: ...
    def job(self, *functions: Any, **settings: Any) -> Any:
        """Let a function run as a job; also without parentheses.

        name: what names it to callers and workers, on its topic `job/<name>`; by default its own. Renaming the
            function does not matter where this is given.
        version: raise it when arguments change in a way that older callers cannot meet, and keep the older
            function beside for what is still queued.
        max_attempts: so often it is run before it has failed. By default what it raises ends the job at once, and
            only a worker that was lost brings another attempt.
        backoff: the waits between attempts, as of an item: `{"base_s": 5}`.
        timeout_s: an attempt that takes longer has failed. A plain function's thread cannot be ended; it is
            left alone.
        slots: how many run at once in one worker; a plain function in a thread each.
        batch: call it once for up to so many jobs; it takes one list, and jobs are sent with an element or a
            list. `batch_wait_s` is how long a call that is not full waits for more.
        rate, burst, concurrency: so many of its jobs are begun a second, so many of them at once (by default as
            many as a second has), and so many run at a time, over all workers. A worker sets them when it starts.
        key_rate, key_burst, key_concurrency: the same for the jobs of each `fairness_key`, an option of jobs.
        result: whether results are kept; without, a job costs what a bare item costs.
        unique: with equal arguments, or the same `key`, one job at a time is queued or running; a second `enqueue`
            answers the first one.
        """

        def decorate(function: Callable[..., Any]) -> JobFunction[..., Any, ..., Any]:
            return self._register(function, settings)

        if len(functions) > 1:
            raise TypeError("@app.job takes settings by name, like @app.job(slots=8)")
        return decorate(functions[0]) if functions else decorate

    def every(
        self,
        name: str,
        *,
        cron: str | None = None,
        every_s: float | None = None,
        tz: str = "UTC",
        overlap: Overlap = "skip",
        catchup_s: float | None = None,
        jitter_s: float | None = None,
        **settings: Any,
    ) -> Callable[[Callable[Q, C]], JobFunction[Q, Any, Q, C]]:
        """Run a function by the clock: at the times of `cron` in time zone `tz`, or every `every_s` seconds.

        Workers of the app bring the schedule to the service when they start. A parameter `at` is given the time
        that the run is for. `overlap` says what happens when the one before is still at work; after an outage
        times of the last `catchup_s` are made up for (3600 by default, 10 at least); each is put off by a part
        of `jitter_s`, up to a day. More settings are as of `job`.
        """
        more = present(catchup_s=catchup_s, jitter_s=jitter_s)
        schedule = Every(name=name, cron=cron, every_s=every_s, tz=tz, overlap=overlap, more=more)
        if name in self.schedules:
            raise ValueError(f"there is a schedule {name!r} already")

        def decorate(function: Callable[Q, C]) -> JobFunction[Q, Any, Q, C]:
            made: Any = function if isinstance(function, JobFunction) else self._register(function, settings)
            schedule.function = made
            with contextlib.suppress(TypeError):  # an annotation of what the module defines later
                schedule.check()
            self.schedules[name] = schedule
            found: JobFunction[Q, Any, Q, C] = made
            return found

        return decorate

    def task(self, topic: str, **options: Any) -> Callable[[F], F]:
        """Handle items of a topic, as `Worker.task` does, in the same worker as the functions."""
        check_topic(topic)

        def register(handler: F) -> F:
            self.tasks.append((topic, handler, options))
            return handler

        return register

    @overload
    def workflow(self, type: W, /) -> W: ...
    @overload
    def workflow(self, type: str | None = None, **options: Unpack[WorkflowOptions]) -> Callable[[W], W]: ...
    def workflow(self, type: Any = None, **options: Unpack[WorkflowOptions]) -> Any:
        """Run workflows of a type, as `Worker.workflow` does, in the same worker as the functions."""

        def register(name: str, function: W) -> W:
            self.deciders.append((name, function, options))
            return function

        return decorator(type, register)

    def lifespan(self, function: Lifespan) -> Lifespan:
        """Decorates the async generator function that makes what the functions share in a worker."""
        self._lifespan = function
        return function

    @property
    def state(self) -> "State":
        """`app.state(Pool)` is the default of a parameter that is given what the lifespan yields, or the part of
        it that is a `Pool`:

        async def resize(src: str, pool: Pool = app.state(Pool)) -> str: ...
        """
        return State(self)

    def flow(self, name: str, *, deadline_s: float | None = None, cancel_rest: bool = False) -> Flow:
        """A flow to add calls to. With `deadline_s` it fails when it takes longer; with `cancel_rest` the first
        failure cancels what has not ended."""
        return Flow(self, name, deadline_s=deadline_s, cancel_rest=cancel_rest)

    def handle(self, job_id: str) -> JobHandle[Any]:
        """A job by its id, of whichever function; nothing is sent."""
        return JobHandle(self, None, job_id)

    def worker(self, **options: Any) -> AppWorker:
        """A worker of all functions and tasks; options are those of `Worker`, and `only`, names of functions."""
        return AppWorker(self, **options)

    def check_names(self, only: Iterable[str] | None) -> None:
        """Raises ValueError for the name of a function that the app has not."""
        if unknown := sorted(set(only or ()) - set(self.functions)):
            raise ValueError(f"{self!r} has no function {unknown[0]!r}")

    def testing(self, *, start: datetime | None = None) -> Testing:
        """Run functions, flows and schedules in this process, without servers, and without waiting:

            with app.testing() as tests:
                assert resize.enqueue("a", delay_s=3600).result() == "a@640"
                tests.advance(hours=24)

        Time stands still but for those who wait for a result, and for `tests.advance`; it begins at `start`.
        `asyncio.sleep` and timeouts take no time.
        """
        return Testing(self, start)

    def add(self, job: Job, call: JobCall[Any], how: AddOptions) -> Any:
        """Add a call to the flow of a job that runs."""
        return add(job, call, how)

    def _register(self, function: Any, settings: Mapping[str, Any]) -> JobFunction[..., Any, ..., Any]:
        if isinstance(function, str):
            raise TypeError(f"@app.job decorates a function; the job with an id is app.handle({function!r})")
        if not inspect.isroutine(function):
            raise TypeError(f"@app.job decorates a function, not {function!r}: call that in one")
        if is_generator(function):
            raise TypeError(f"{function!r} is a generator: a job returns its result, `yield` gives it none")
        given = {**settings, "name": settings.get("name") or default_name(function)}
        if unknown := sorted(given.keys() - set(SETTINGS)):
            raise TypeError(f"@app.job has no option {unknown[0]!r}; there are {', '.join(SETTINGS)}")
        made: JobFunction[..., Any, ..., Any] = JobFunction(self, function, Settings(**given))
        if not re.fullmatch(wire.TOPIC_PATTERN, made.topic):
            raise ValueError(
                f"{made.name!r} is no name for a job: letters, digits and . _ / - are; give one, "
                "@app.job(name=...)"
            )
        known = self.versions.get((made.name, made.version))
        if known is not None and not _same(known.function, function):
            raise ValueError(
                f"there is a function {made.name!r} of version {made.version} already; give one of them another "
                "name, @app.job(name=...), or version"
            )
        self.versions[made.name, made.version] = made
        if made.name not in self.functions or self.functions[made.name].version <= made.version:
            self.functions[made.name] = made
        return made

    def signature_of(self, function: Callable[..., Any]) -> Signature:
        if function not in self._signatures:
            self._signatures[function] = Signature(function, self.codecs)
        return self._signatures[function]

    # What functions share

    @contextlib.asynccontextmanager
    async def alive(self) -> AsyncIterator[None]:
        """The time in which the functions have what the lifespan makes."""
        if self._lifespan is None:
            self._check_state()
            yield
            return
        async with self._spanning(self._lifespan) as state:
            self._state = state
            self._check_state()
            try:
                yield
            finally:
                self._state = None

    def _spanning(self, lifespan: Lifespan) -> AbstractAsyncContextManager[Any]:
        made: Any = lifespan
        if inspect.isasyncgenfunction(lifespan):
            made = contextlib.asynccontextmanager(lifespan)
        elif inspect.isgeneratorfunction(lifespan):
            made = contextlib.contextmanager(lifespan)
        takes_app = bool(inspect.signature(lifespan).parameters)
        found: Any = made(self) if takes_app else made()
        if hasattr(found, "__aenter__"):
            return cast(AbstractAsyncContextManager[Any], found)
        if hasattr(found, "__enter__"):
            return _in_coroutine(found)
        raise TypeError(
            f"the lifespan of {self!r} gives {found!r}: it is an async generator function that yields once, or a "
            "function that returns a context manager"
        )

    def _check_state(self) -> None:
        for function in self.versions.values():
            for what in function.signature.injected.values():
                if isinstance(what, StateOf):
                    self.state_of(what.kind)

    @property
    def shared(self) -> Any:
        """What the lifespan has yielded; None outside of it."""
        return self._state

    def state_of(self, kind: type[Any]) -> Any:
        """The part of the state that is of a type.

        Raises:
            RuntimeError: there is none, or more than one.
        """
        if isinstance(self._state, kind):
            return self._state
        parts = self._state.values() if isinstance(self._state, Mapping) else _attributes(self._state)
        found = [part for part in parts if isinstance(part, kind)]
        if self._lifespan is None:
            raise RuntimeError(
                f"a function of {self!r} asks for a {kind.__name__}, and the app has no lifespan, which makes "
                f"it:\n{_LIFESPAN}"
            )
        if len(found) != 1:
            raise RuntimeError(
                f"a function of {self!r} asks for a {kind.__name__}, of which its lifespan yields {len(found)}; "
                "yield one, or an object or a dict that has one"
            )
        return found[0]


_LIFESPAN: Final = """\
    @app.lifespan
    async def shared() -> AsyncIterator[Pool]:
        async with Pool() as pool:
            yield pool"""


class State:
    """What the lifespan has made, as functions ask for it; see `App.state`."""

    __slots__ = ("_app",)

    def __init__(self, app: App) -> None:
        object.__setattr__(self, "_app", app)

    def __call__(self, kind: type[T]) -> T:
        return cast(T, StateOf(kind))

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"the state of {self._app!r} has no {name!r}: a function asks for what the lifespan made by its type, "
            f"`{name}: Pool = app.state(Pool)`; in a handler `job.state` is all of it"
        )

    def __setattr__(self, name: str, _value: Any) -> None:
        raise AttributeError(
            f"nothing is put into the state of {self._app!r}: what functions share, as {name!r}, its lifespan "
            f"yields, in each worker:\n{_LIFESPAN}\nand a function asks for it by its type: "
            f"`{name}: Pool = app.state(Pool)`"
        )


@contextlib.asynccontextmanager
async def _in_coroutine(manager: AbstractContextManager[T]) -> AsyncIterator[T]:
    with manager as found:
        yield found


def _attributes(state: Any) -> list[Any]:
    return list(vars(state).values()) if hasattr(state, "__dict__") else []


def _same(one: Any, other: Any) -> bool:
    """Whether two functions are the same code, as of a module that was loaded twice."""
    places = [(getattr(each, "__code__", None), getattr(each, "__qualname__", None)) for each in (one, other)]
    return places[0] == places[1]
