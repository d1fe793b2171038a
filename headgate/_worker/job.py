"""A job: one leased item in a handler's hands."""

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from pydantic import ValidationError

from headgate import wire
from headgate._calls.elements import Leased, LeasedDag, Nack, Told
from headgate._calls.verbs import present
from headgate._threads import called, in_thread
from headgate._worker.job_logs import JobLog, JobLogs, current_job
from headgate._worker.virtual_loop import VirtualLoop

if TYPE_CHECKING:
    from typing import Unpack

    from headgate._app.call import AddOptions, JobCall
    from headgate._app.flow import Plan
    from headgate._calls.dag import Dag, Node
    from headgate._client.aio.client import AsyncClient
    from headgate._client.aio.values import AsyncDagValues
    from headgate._client.blocking.client import Client

Handler = Callable[["Job"], Any]

_IN_A_THREAD: Final = (
    "job.{name} is for handlers that are coroutine functions (`async def`), in the event loop that runs them; "
    "a plain function calls job.blocking_client{instead}"
)
_EXPAND: Final = (
    ".dag(job.dag.id, namespace=job.namespace).expand(job.dag.node, children, generation=job.dag.generation)"
)

_VALUES: Final = ".dag(job.dag.id, namespace=job.namespace).values"


class Job:
    """What a handler gets.

    The lease is extended by the worker for as long as the handler runs. When it is lost all the same, or
    the item cancelled, a coroutine is cancelled; a thread cannot be, and should look at `lost` now and
    then.
    """

    def __init__(
        self,
        leased: Leased,
        *,
        client: "AsyncClient",
        blocking: Callable[[], "Client"],
        lease_s: float,
        lease_ends_at: float,
        namespace: str | None = None,
    ) -> None:
        self.leased = leased
        self._client = client
        self._loop = _running_loop()
        self._expansions: list[Coroutine[Any, Any, list[wire.NodeAdded]]] = []
        self.namespace = namespace
        self.lease_s = lease_s
        self.lease_ends_at = lease_ends_at
        self.lost: str | None = None
        self.is_cut_off: Callable[[], bool] = lambda: False  # by a worker that goes
        self.output_bytes = 0
        self.told: Told | None = None
        self.is_untold = False  # what was told last has not been sent
        self.tells: Callable[[Job], None] | None = None
        self.task: asyncio.Task[Any] | None = None
        self.app: Any = None
        self.plan: Plan | None = None
        self.logs: JobLogs | None = None
        self._blocking = blocking

    def __repr__(self) -> str:
        return f"Job({self.id!r}, topic={self.topic!r}, attempt={self.attempt})"

    @property
    def id(self) -> str:
        return self.leased.id

    @property
    def topic(self) -> str:
        return self.leased.topic

    @property
    def payload(self) -> Any:
        return self.leased.payload

    @property
    def metadata(self) -> dict[str, Any]:
        return self.leased.metadata

    @property
    def inputs(self) -> Any:
        """For a DAG's node with `pass_outputs`: the outputs of its upstreams, by key."""
        return self.leased.inputs

    @property
    def headers(self) -> dict[str, str]:
        return self.leased.headers

    @property
    def attempt(self) -> int:
        """1 for the first delivery."""
        return self.leased.attempt

    @property
    def dag(self) -> LeasedDag | None:
        """The DAG, node and generation of a DAG's item."""
        return self.leased.dag

    @property
    def client(self) -> "AsyncClient":
        """A client for handlers that are coroutine functions.

        Raises:
            RuntimeError: this is a plain function, in its thread, where nobody would await what it answers.
        """
        self._check_loop("client", "")
        return self._client

    @property
    def values(self) -> "AsyncDagValues":
        """What the jobs of this job's DAG share.

        Raises:
            ValueError: the item is no DAG's.
            RuntimeError: this is a plain function; it says what to call there.
        """
        self._check_loop("values", _VALUES)
        if self.dag is None:
            raise ValueError("this item belongs to no DAG, so there are no values to share")
        return self._client.dag(self.dag.id, namespace=self.namespace).values

    def expand(self, children: "Dag | Sequence[Node]") -> "Coroutine[Any, Any, list[wire.NodeAdded]]":
        """Add children to this job's node: what waits for the node waits for them too, at any depth. Await it.

        Give them keys that a second delivery makes again: children that exist change nothing.

        Raises:
            ValueError: the item is no DAG's.
            RuntimeError: this is a plain function; it says what to call there.
            NodeNotRunning: the node is over, or runs in a newer generation.
        """
        self._check_loop("expand", _EXPAND)
        if self.dag is None:
            raise ValueError("this item belongs to no DAG, so there is nothing to expand")
        expanding = self._expand(self.dag, children)
        self._expansions.append(expanding)
        return expanding

    async def _expand(self, dag: LeasedDag, children: "Dag | Sequence[Node]") -> "list[wire.NodeAdded]":
        handle = self._client.dag(dag.id, namespace=self.namespace)
        return await handle.expand(dag.node, children, generation=dag.generation)

    @property
    def log(self) -> JobLog:
        """A logger whose lines are kept with the job, from whatever thread they come; so are those of all other
        loggers, where they are made in the handler, or in threads and tasks that have its context."""
        return JobLog(self)

    @property
    def state(self) -> Any:
        """What the lifespan of the job's app has yielded; None where there is none."""
        return self.app.shared if self.app is not None else None

    def add(self, call: "JobCall[Any]", **how: "Unpack[AddOptions]") -> Any:
        """Add a call to the flow of this job: what waits for the job waits for the call too. In a coroutine, await
        it. A job that runs again must add the same calls again.

        Raises:
            ValueError: this is no job of an app's function.
        """
        if self.app is None:
            raise ValueError("job.add is for functions of an app; a task's handler uses job.expand")
        return self.app.add(self, call, how)

    def progress(self, done: float, total: float | None = None, note: str | None = None) -> None:
        """Tell how far the job has come: it is shown with its item within a second or so, until the job ends.

        From any thread, as often as you like: it costs nothing but a remark, and the last one counts.

        Raises:
            ValueError: a number is negative or none, or the note is too long.
        """
        told: Any = present(done=done, total=total, note=note)
        try:
            wire.Progress.model_validate(told)
        except ValidationError as error:
            [fault, *_] = wire.field_errors(error.errors())
            raise ValueError(f"job.progress: {fault.pointer[1:]}: {fault.detail}") from None
        self.told = told
        if not self.is_untold:
            self.is_untold = True
            self._tell()

    def _tell(self) -> None:
        if self.tells is None or self._loop is None:
            return
        if _running_loop() is self._loop:
            self.tells(self)
        else:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self.tells, self)

    def drop_expansions(self) -> bool:
        """Whether the handler has ended before an `expand` of its own had; that is not gone on with."""
        left = [expanding for expanding in self._expansions if _is_left(expanding)]
        for expanding in left:
            if inspect.getcoroutinestate(expanding) == inspect.CORO_CREATED:
                expanding.close()
        return bool(left)

    def _check_loop(self, name: str, instead: str) -> None:
        running = _running_loop()
        if running is None or (self._loop is not None and running is not self._loop):
            raise RuntimeError(_IN_A_THREAD.format(name=name, instead=instead))

    @property
    def blocking_client(self) -> "Client":
        """A client for handlers that run in a thread."""
        return self._blocking()

    @property
    def cancelled(self) -> bool:
        """Whether the item was cancelled while this job ran: a plain function should look now and then, and end.
        A coroutine is cancelled."""
        return self.lost == "cancelled"

    def lose(self, why: str) -> None:
        """The item is no longer this worker's: stop, and say nothing about it."""
        self.lost = self.lost or why
        if self.task is not None:
            self.task.cancel()

    def nack(self, **fields: Any) -> Nack:
        nack: Any = {"id": self.id, "lease_token": self.leased.lease_token, **fields}
        found: Nack = nack
        return found


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _is_left(expanding: Coroutine[Any, Any, Any]) -> bool:
    return inspect.getcoroutinestate(expanding) != inspect.CORO_CLOSED


def _is_reference(inputs: Any, dag: LeasedDag) -> bool:
    """Whether `inputs` only say where this node's are. An upstream may be called `$ref` too, hence the path."""
    if not isinstance(inputs, dict) or len(inputs) != 1:
        return False
    path = inputs.get("$ref")
    return isinstance(path, str) and path.endswith(f"/dags/{dag.id}/node/inputs?key={quote(dag.node, safe='')}")


async def _fetch_inputs(job: Job) -> None:
    if job.dag is not None and _is_reference(job.inputs, job.dag):
        handle = job.client.dag(job.dag.id, namespace=job.namespace)
        job.leased.inputs = await handle.inputs(job.dag.node)


async def run_handler(handler: Handler, job: Job) -> Any:
    """Call a handler: a coroutine function here, anything else in a thread of its own. Inputs that are too large
    for an item are fetched before."""
    current_job.set(job)
    await _fetch_inputs(job)
    if inspect.iscoroutinefunction(handler):
        return await handler(job)
    found = await _in_thread(handler, job)
    return await found if inspect.isawaitable(found) else found


def _in_thread(handler: Handler, job: Job) -> Awaitable[Any]:
    loop, name, call = asyncio.get_running_loop(), f"headgate-{job.topic}", partial(handler, job)
    if not isinstance(loop, VirtualLoop):
        return in_thread(name, call)
    future, serve, _ = called(call)
    thread = threading.Thread(target=serve, args=(lambda: None,), name=name, daemon=True)
    loop.thread_begins(thread, future)
    thread.start()
    return future
