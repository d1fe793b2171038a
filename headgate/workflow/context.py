"""What workflow code is given: the one place from which it takes time, chance, data and work."""

import asyncio
import logging
import random
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable, MutableMapping
from contextlib import AbstractContextManager
from datetime import datetime
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Literal,
    NamedTuple,
    NoReturn,
    Protocol,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)
from uuid import UUID

from headgate.workflow.asked import RunNode
from headgate.workflow.commands import Place, canonical
from headgate.workflow.completing import AsCompleted
from headgate.workflow.errors import Refused
from headgate.workflow.guard import lifted
from headgate.workflow.updates import Handler, Validator

if TYPE_CHECKING:
    from headgate.workflow.replay import Replay

T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)

# From then on a run had better go on as a new one.
CONTINUE_AT_EVENTS: Final = 10_000


TIMER: Final = "timer"


class Backoff(TypedDict, total=False):
    """Attempt n + 1 comes `min(base_s * factor ** (n - 1), max_s)` after attempt n."""

    base_s: float
    factor: float
    max_s: float
    jitter: float


class CallOptions(TypedDict, total=False):
    """What a call may carry besides topic and payload, as a graph's node may; see `_calls.dag.NodeOptions`.

    start_to_close_s: for one attempt; then it has failed.
    schedule_to_start_s: within which it must be taken, counted from when it may be; an attempt that would begin
        later does not, and the task has failed.
    """

    priority: int
    max_attempts: int
    backoff: Backoff
    lease_s: float
    delay_s: float
    ttl_s: float
    metadata: dict[str, Any]
    start_to_close_s: float
    schedule_to_start_s: float


class RunOptions(TypedDict, total=False):
    """What a child or another run may carry besides type and input.

    id: the workflow id; one is made by default.
    """

    id: str
    version: str
    deadline_s: float
    priority: int
    metadata: dict[str, Any]


class ChildOptions(RunOptions, total=False):
    """The same of a child.

    parent_close: what becomes of it when its parent waits for it no longer: it is asked to end (`cancel`, the
        default), ended (`terminate`), or left to itself (`abandon`).
    """

    parent_close: Literal["cancel", "terminate", "abandon"]


class Graph(Protocol):
    """A `headgate.Dag`."""

    name: str | None

    def within(self) -> dict[str, Any]: ...


class TypedCall(Protocol[R_co]):
    """A call of a function of an `App`: `charge.call(cents=250)`."""

    def as_task(self, now: datetime) -> tuple[dict[str, Any], dict[str, Any]]:
        """What is asked for, `topic` and `payload` among it; and what of it replay compares."""
        ...

    def result_of(self, output: Any) -> R_co:
        """What a task's output stands for."""
        ...


class Asking(NamedTuple):
    """A task that is about to be asked for: its topic, its spec and what of that is compared, as canonical JSON,
    and what makes its result of its output."""

    topic: str
    text: str
    compared: str | None = None
    decoded: Callable[[Any], Any] | None = None


def _named(topic: str) -> str:
    """By what the keys of a topic's tasks begin: no other kind's do."""
    return f"item:{topic}" if topic == TIMER else topic


class ContinueAsNew(BaseException):
    """Ends the run; the next one begins with this input."""

    def __init__(self, input: str) -> None:
        super().__init__("the run goes on as a new one")
        self.input = input


class Random(random.Random):
    """A run's own chance, the same on every replay. Call it for a float, or take any method of `random.Random`."""

    def __call__(self) -> float:
        return self.random()


class Log(logging.LoggerAdapter[logging.Logger]):
    """Says everything once: while the run is replayed it is silent."""

    def __init__(self, run: "Replay", logger: logging.Logger) -> None:
        super().__init__(logger, {"workflow": run.id})
        self._run = run

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 (logging's name)
        return not self._run.is_replaying and self.logger.isEnabledFor(level)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return f"{self._run.id}: {msg}", kwargs


class Workflow:
    """Await nothing else than this, and what asyncio makes of it: tasks, `gather`, `wait`, `TaskGroup`, `timeout`,
    `shield`, `sleep`, queues and locks.

    id, run: the workflow's id, and this run's own.
    type, version: what was started.
    """

    def __init__(self, run: "Replay", logger: logging.Logger) -> None:
        self._run = run
        self.log = Log(run, logger)
        self.id: str = run.id
        self.run_id: str = run.run
        self.type: str = run.type
        self.version: str | None = run.version
        self.random = Random(f"{run.run}/random")
        self._uuids = random.Random(f"{run.run}/uuid")  # noqa: S311 (equal on every replay, which is its purpose)

    # Work

    @overload
    def call(self, topic: TypedCall[T]) -> Coroutine[Any, Any, T]: ...
    @overload
    def call(
        self, topic: str, payload: Any = None, **options: Unpack[CallOptions]
    ) -> Coroutine[Any, Any, Any]: ...
    def call(
        self, topic: str | TypedCall[Any], payload: Any = None, **options: Unpack[CallOptions]
    ) -> Coroutine[Any, Any, Any]:
        """Have a task done by whoever works on `topic`, and await its output. If the await is cancelled, so is it.

        In the place of a topic may stand a call of an `App`'s function, `wf.call(charge.call(cents=250))`: its
        result is of the type that the function is annotated with. Options are then `charge.options(...)`.

        Raises:
            NodeFailed: it has no attempts left, or was cancelled.
            JobFailed: the function's result is not of its type.
        """
        place = _place()
        asking = self._asking(topic, payload, options)
        return self._run.ask_and_wait(
            "item", _named(asking.topic), asking.text, place, compared=asking.compared, decoded=asking.decoded
        )

    @overload
    def fork(self, topic: TypedCall[Any]) -> Coroutine[Any, Any, str]: ...
    @overload
    def fork(
        self, topic: str, payload: Any = None, **options: Unpack[CallOptions]
    ) -> Coroutine[Any, Any, str]: ...
    def fork(
        self, topic: str | TypedCall[Any], payload: Any = None, **options: Unpack[CallOptions]
    ) -> Coroutine[Any, Any, str]:
        """The first half of `call`: the id of a task that is being done. It is made as the turn ends; a run that
        ends cancels what it has not joined."""
        place = _place()
        return self._fork(self._asking(topic, payload, options), place)

    async def _fork(self, asking: Asking, place: Place) -> str:
        return self._run.ask(
            "item",
            _named(asking.topic),
            asking.text,
            place,
            forked=True,
            compared=asking.compared,
            decoded=asking.decoded,
        )

    def _asking(self, topic: str | TypedCall[Any], payload: Any, options: CallOptions) -> Asking:
        if isinstance(topic, str):
            return Asking(topic, _item(topic, payload, options))
        if not hasattr(topic, "as_task"):
            raise TypeError(
                f"a workflow calls a topic, or a function's call, like charge.call(cents=250), not {topic!r}"
            )
        if payload is not None or options:
            raise TypeError(
                f"{topic!r} has its arguments already, and options by charge.options(max_attempts=5).call(...)"
            )
        spec, compared = topic.as_task(self._run.now)
        what = f"what {topic!r} sends"
        return Asking(spec["topic"], canonical(spec, what), canonical(compared, what), topic.result_of)

    async def join(self, task_id: str) -> Any:
        """The other half: its output, awaited. A cancelled `join` leaves the task as it is.

        Raises:
            NodeFailed: it has failed.
            KeyError: this run has forked no such task.
        """
        return await self._run.wait_for_fork(task_id)

    def is_task_finished(self, task_id: str) -> bool:
        """Whether a forked task has ended. The same call answers the same on every replay; the next may differ.

        Raises:
            KeyError: this run has forked no such task.
        """
        return self._run.forked(task_id).ended

    async def cancel_task(self, task_id: str) -> None:
        """Cancel a forked task that has not ended; whoever joins it gets a `NodeFailed`."""
        self._run.cancel_fork(task_id, _place())

    def run(
        self,
        function: Callable[..., Any],
        *args: Any,
        name: str | None = None,
        max_attempts: int = 1,
        backoff: Backoff | None = None,
        timeout_s: float | None = None,
    ) -> Coroutine[Any, Any, Any]:
        """Call a function here, on this worker, once; its result is written down and given again on every replay.

        It may do what a workflow may not, and may run again if the worker dies before its result is written. A
        plain function runs in a thread. `args` and the result are JSON.

        Raises:
            NodeFailed: it raised, at the last of `max_attempts`.
        """
        label = name or getattr(function, "__name__", type(function).__name__)
        spec: dict[str, Any] = {"name": label, "args": list(args)}
        spec |= _present(max_attempts=max_attempts, backoff=backoff, timeout_s=timeout_s)
        text = canonical(spec, f"an argument of the step {label}")
        return self._run.ask_and_wait("step", f"step:{label}", text, _place(), partial(function, *args))

    def dag(self, dag: Graph) -> Coroutine[Any, Any, dict[str, Any]]:
        """Start a graph and await the outputs of its last nodes, by key. If the await is cancelled, so is it.

        Raises:
            NodeFailed: the graph has failed, or was cancelled.
        """
        if not hasattr(dag, "within"):
            raise TypeError(f"a workflow awaits a Dag, or that of an App's flow, flow.dag(); not {dag!r}")
        text = canonical({"dag": dag.within()}, "this graph")
        return self._run.ask_and_wait("sub", f"dag:{dag.name or 'dag'}", text, _place())

    def child(self, type: str, input: Any = None, **options: Unpack[ChildOptions]) -> Coroutine[Any, Any, Any]:
        """Start another workflow within this one, and await its output. If the await is cancelled, so is it.

        Raises:
            NodeFailed: it has failed, or was cancelled.
        """
        text = _workflow(type, input, options, ChildOptions)
        return self._run.ask_and_wait("child", f"child:{type}", text, _place())

    def start(
        self, type: str, input: Any = None, **options: Unpack[RunOptions]
    ) -> Coroutine[Any, Any, dict[str, str]]:
        """Start a workflow that does not depend on this one, and await that it is there: its `id` and `run`."""
        text = _workflow(type, input, options)
        return self._run.ask_and_wait("start", f"start:{type}", text, _place())

    def signal(self, workflow_id: str, name: str, data: Any = None) -> Coroutine[Any, Any, None]:
        """Send a signal to another workflow, and await that it is taken.

        Raises:
            NodeFailed: there is no such run, or it has ended.
        """
        text = canonical({"workflow": workflow_id, "name": name, "data": data}, "this signal's data")
        return self._run.ask_and_wait("send", f"send:{workflow_id}:{name}", text, _place())

    # Time, chance, and what is told

    async def sleep(self, delay_s: float) -> None:
        """Wait, and hold nothing meanwhile; for days, if need be."""
        await self._run.sleep_until(self._run.loop.now_s + delay_s)

    async def until(self, when: datetime) -> None:
        """Wait until then.

        Raises:
            ValueError: `when` has no timezone.
        """
        if when.tzinfo is None:
            raise ValueError("give a time with a timezone, like datetime(2030, 1, 31, tzinfo=UTC)")
        await self._run.sleep_until((when - self._run.started).total_seconds())

    def now(self) -> datetime:
        """The time of the event that the code runs after; it never goes back."""
        return self._run.now

    @property
    def nodes(self) -> dict[str, RunNode]:
        """All that this run has asked for so far, in that order, by key (`card/charge#2`): of each its kind and
        how far it is, as the code was told by now. So it is the same on every replay, and changes at awaits
        only."""
        return self._run.nodes

    def uuid(self) -> UUID:
        """A random UUID, the same on every replay."""
        return UUID(int=self._uuids.getrandbits(128), version=4)

    async def receive(self, name: str) -> Any:
        """The data of the next signal of that name; those that came before are kept, in order."""
        return await self._run.receive(name)

    def on_update(self, name: str, handler: Handler, *, validator: Validator | None = None) -> None:
        """Answer updates of that name from now on, and those that came before: what `handler(data)` returns is the
        answer, what it raises is a failure of the update, not of the run. Each runs in a task of its own, and may
        await what the workflow may. Where `validator(data)` raises, the update is rejected, and not handled.

        What is not answered when the run ends has failed; see `updates_done`. Signals of that name are handled
        too, and nobody is told; a `receive` of an update's name answers it with nothing.

        Raises:
            ValueError: the name has a handler already.
        """
        self._run.on_update(name, handler, validator)

    async def updates_done(self) -> None:
        """Wait until no handler of an update runs."""
        self._run.check_in_task()
        await self._run.updates.done()

    def publish(self, key: str, value: Any) -> None:
        """Show a value to whoever looks at the run."""
        self._run.publish(key, canonical({"value": value}, f"what {key!r} is to show"), _place())

    def patched(self, id: str) -> bool:
        """Whether this run may take the new way through code that was changed: True unless it has passed here
        before the change. The first answer holds for the run."""
        return self._run.patched(id, _place())

    def continue_as_new(self, input: Any = None) -> NoReturn:
        """End this run and begin the next, of the same id, with the signals that nobody has received yet.

        Raises:
            Refused: this is not the run's first task.
        """
        self._run.check_in_task(main=True)
        raise ContinueAsNew(canonical({"state": "continued", "input": input}, "the next run's input"))

    @property
    def should_continue(self) -> bool:
        """Whether the history is so long that the run had better go on as a new one."""
        return self._run.told_count >= CONTINUE_AT_EVENTS

    @property
    def is_replaying(self) -> bool:
        """Whether this event's code has run before; for what is only said, never for what is done."""
        return self._run.is_replaying

    def shield(self, awaitable: Awaitable[T]) -> "asyncio.Future[T]":
        """Await it so that a cancel of the await does not cancel it."""
        return asyncio.shield(awaitable)

    def as_completed(self, awaitables: Iterable[Awaitable[T]]) -> AsCompleted[T]:
        """Several calls, or other awaitables, in the order of their ends.

        `async for task in wf.as_completed([...])` gives tasks that have ended (`await task` is the output, or
        raises), `for each in ...` what to await for the next end. What has not ended when the loop is left goes
        on: cancel tasks that are not needed more.

        Raises:
            Refused: of a set of coroutines, whose order differs by process.
        """
        self._run.check_in_task()
        return AsCompleted(awaitables)

    def unsafe(self) -> AbstractContextManager[None]:
        """Within `with wf.unsafe():` the guard of tests looks away: for code that reads a clock or a file and of
        whose answer nothing depends. It changes nothing in production, and must not hold an await."""
        return lifted()


def _item(topic: str, payload: Any, options: CallOptions) -> str:
    _check(options, CallOptions)
    return canonical({"topic": topic, "payload": payload, **options}, f"the payload of {topic!r}")


def _workflow(type: str, input: Any, options: RunOptions, known: Any = RunOptions) -> str:
    _check(options, known)
    return canonical({"type": type, "input": input, **options}, f"the input of {type!r}")


def _check(options: Any, known: Any) -> None:
    unknown = [name for name in options if name not in known.__annotations__]
    if unknown:
        raise TypeError(f"there is no option {unknown[0]!r}; there are {', '.join(known.__annotations__)}")


def _present(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _place() -> Place:
    """The line that called the caller."""
    frame = sys._getframe(2)
    return frame.f_code, frame.f_lineno


def refuse_outside(why: str) -> NoReturn:
    raise Refused(f"{why}: only the run's own tasks may ask for anything, where they are awaited")
